"""A run by its folder, its name, the beginning of its name, or `latest`."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

from mle_star.config import did_you_mean
from mle_star.data.place import RUNS
from mle_star.errors import ConfigError

LATEST = "latest"
LISTED = 5


def runs_folder() -> Path:
    """Where runs are kept unless the user names another place."""
    return Path(os.environ.get("MLE_STAR_WORK_DIR") or ".") / RUNS


def runs_in(folder: Path) -> list[Path]:
    """The runs in a folder, the one that began last at the end."""
    if not folder.is_dir():
        return []
    return sorted((path.parent for path in folder.glob("*/journal.jsonl")), key=lambda run: (_begun(run), run.name))


def find_run(name: str | Path, folder: Path | None = None) -> Path:
    """The run that `name` means: a folder with a journal, a name among the runs, its beginning, or `latest`."""
    path, place = Path(name), runs_folder() if folder is None else folder
    if (path / "journal.jsonl").is_file():
        return path
    known = runs_in(place)
    if str(name) == LATEST:
        if not known:
            raise ConfigError(f"there is no run in {place} yet")
        return known[-1]
    names = [run for run in known if run.name == str(name)] or [run for run in known if run.name.startswith(str(name))]
    if path.exists() and not names:
        raise ConfigError(f"{path} holds no run: there is no journal.jsonl in it")
    if len(names) > 1:
        some = ", ".join(run.name for run in names[-LISTED:])
        raise ConfigError(f"{str(name)!r} may be any of {len(names)} runs: {some}; give more of the name, or `latest`")
    if not names:
        nearest = f"; {did_you_mean(str(name), [run.name for run in known[-LISTED:]])}" if known else ""
        raise ConfigError(f"{name}: no such run{nearest}; `mle-star runs` lists those in {place}")
    return names[0]


def callable_name(run_dir: Path) -> str:
    """How a command calls a run from here: by its name, or by its folder where that lies elsewhere."""
    return run_dir.name if run_dir.parent.resolve() == runs_folder().resolve() else os.path.relpath(run_dir)


def _begun(run: Path) -> float:
    """When a run began, by its first line; by its file where that cannot be read."""
    journal = run / "journal.jsonl"
    try:
        with journal.open("rb") as file:
            return datetime.fromisoformat(json.loads(file.readline())["at"].replace("Z", "+00:00")).timestamp()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return journal.stat().st_mtime
