"""Medals: the scores that win one, from a file beside the task.

`leaderboard.csv` holds either a line for each medal (`medal,score`), or, as MLE-bench keeps it, a line for each team
with its `score`; then the places that win follow Kaggle's rules. Where the data lie in the task's own folder, the file
is called `.leaderboard.csv`, so that it is none of them.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Literal

from mle_star.errors import ConfigError
from mle_star.models import Frozen, MetricDirection, TaskDescription

Medal = Literal["gold", "silver", "bronze"]
MEDALS: tuple[Medal, ...] = ("gold", "silver", "bronze")
FILES = (".leaderboard.csv", "leaderboard.csv")


class Medals(Frozen):
    """The least score that wins each medal."""

    gold: float
    silver: float
    bronze: float

    def won(self, score: float | None, direction: MetricDirection) -> Medal | None:
        """The best medal that a score wins."""
        if score is None or not math.isfinite(score):
            return None
        sign = 1 if direction is MetricDirection.maximize else -1
        return next((medal for medal in MEDALS if sign * score >= sign * getattr(self, medal)), None)


def load_medals(folder: Path | str, task: TaskDescription) -> Medals | None:
    """The medals of the task in a folder, where there is a file that says so."""
    place = Path(folder) if Path(folder).is_dir() else Path(folder).parent
    hidden, plain = (place / name for name in FILES)
    if hidden.is_file():
        return _read(hidden, task.metric_direction)
    among_data = place.resolve() == Path(task.data_dir).resolve()
    return _read(plain, task.metric_direction) if plain.is_file() and not among_data else None


def _read(path: Path, direction: MetricDirection) -> Medals:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        scores = [float(row["score"]) for row in rows if row["score"]]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise ConfigError(f"{path}: a column `score` with numbers is wanted ({error})") from None
    if not scores:
        raise ConfigError(f"{path}: there is no score in it")
    if "medal" not in rows[0]:
        return _by_rank(sorted(scores, reverse=direction is MetricDirection.maximize))
    by_name = dict(zip((str(row["medal"]).strip().lower() for row in rows), scores, strict=False))
    if set(by_name) != set(MEDALS) or len(scores) != len(rows):
        raise ConfigError(f"{path}: one line each for gold, silver and bronze is wanted")
    return Medals(**by_name)


def _by_rank(scores: list[float]) -> Medals:
    """Kaggle's rules for the number of teams: the score of the last place that wins."""
    teams = len(scores)
    if teams < 250:
        gold = teams // 10 if teams < 100 else 10
        places = (gold, teams // 5, teams * 2 // 5)
    else:
        gold = 10 + teams // 500
        places = (gold, 50, 100) if teams < 1000 else (gold, teams // 20, teams // 10)
    first, second, third = (scores[max(1, place) - 1] for place in places)
    return Medals(gold=first, silver=second, bronze=third)
