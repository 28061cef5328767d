"""The data of a task: files, columns, targets, metrics, and the task folder that names them.

Larger than planned: it finds leaks in the data, and its reader is what engineer, hold-out and results ask as well.
"""
