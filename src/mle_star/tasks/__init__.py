"""Task folders: read one, or look at a data folder and guess one."""

from mle_star.tasks.folder import TASK_FILE, load_task, task_text, write_task
from mle_star.tasks.guess import TaskGuess, guess_task
from mle_star.tasks.metrics import find_metric, normalise_metric

__all__ = [
    "TASK_FILE",
    "TaskGuess",
    "find_metric",
    "guess_task",
    "load_task",
    "normalise_metric",
    "task_text",
    "write_task",
]
