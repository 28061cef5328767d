"""The data of a task: files, columns, targets, metrics, and the task folder that names them."""

from mle_star.data.folder import TASK_FILE, load_task, task_text, write_task
from mle_star.data.guess import TaskGuess, guess_task
from mle_star.data.metrics import Metric, find_metric, known_metric

__all__ = [
    "TASK_FILE",
    "Metric",
    "TaskGuess",
    "find_metric",
    "guess_task",
    "known_metric",
    "load_task",
    "task_text",
    "write_task",
]
