"""MLE-STAR: hand over a task and a folder of data, get back a validated submission, a script and a report."""
