"""Honest evaluation: scripts get a view of the data without some labels, and are scored by what they say of those."""
