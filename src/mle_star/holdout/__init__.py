"""Honest evaluation: scripts get a view of the data without some labels, and are scored by what they say of those.

Larger than planned: it finds out which rows follow each other or belong together, and compares scripts row by row.
"""
