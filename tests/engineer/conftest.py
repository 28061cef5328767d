"""Runs the engineer's scripts in this process: quick, and nothing else is to be seen here."""

import contextlib
import io
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mle_star.engineer import planning
from mle_star.engineer.brain import Question
from mle_star.engineer.design import Design, families, fitting_families
from mle_star.engineer.profile import Profile
from mle_star.engineer.server import BrainRequest
from tests.engineer.small_tasks import SmallTask

Run = Callable[[str], str]


@pytest.fixture
def run_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a script beside `tmp_path/input`; what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLE_STAR_SHARE", "3")

    def run(code: str) -> str:
        path, printed = tmp_path / "solution.py", io.StringIO()
        path.write_text(code, encoding="utf-8")
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(path), run_name="__main__")
        return printed.getvalue()

    return run


def profile_of(task: SmallTask) -> Profile:
    """What the engineer sees of a small task."""
    return question(task.system).profile


def question(system: str, prompt: str = "") -> Question:
    """What an agent is asked."""
    return Question(BrainRequest("init", None, system, prompt))


def quick(profile: Profile, *keys: str) -> Design:
    """A first design of these families, or of one that suits the task, with their cheap settings."""
    chosen = [families()[key] for key in keys] or [fitting_families(profile)[0]]
    designs = [planning.first_design(profile, family, 30_000) for family in chosen]
    design = planning.united(designs, "weights" if len(designs) > 1 else "mean")
    models = {name: {**own, **families()[own["family"]].cheap} for name, own in design.models.items()}
    return replace(design, models=models, folds={**design.folds, "count": min(2, design.folds["count"]), "repeats": 1})
