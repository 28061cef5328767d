"""Honest evaluation: scripts get a view of the data without some labels, and are judged by what they say of those."""
