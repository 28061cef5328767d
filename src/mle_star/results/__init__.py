"""Before and after a run: data of any shape made into a task, and a finished run put to use."""
