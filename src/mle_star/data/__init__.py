"""The data of a task: files, columns, targets, metrics, and the task folder that names them."""
