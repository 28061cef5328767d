"""`mle-star score`: the submissions of a run, scored anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mle_star.cli.names import Run
from mle_star.errors import ConfigError


def score(
    run_folder: Run,
    answers: Annotated[Path | None, typer.Option("--answers", help="The labels of the test, in a .csv file.")] = None,
) -> None:
    """Score every submission of a run anew: by its hidden rows and, with --answers, by the truth.

    \b
    Examples:
      mle-star score latest
      mle-star score titanic-20260131 --answers answers.csv
    """
    from rich.table import Table

    from mle_star.cli.runs import console
    from mle_star.models import Measure
    from mle_star.pipeline.rescore import rescore
    from mle_star.views import text

    def interval(measure: Measure | None) -> str:
        if measure is None or measure.low is None or measure.high is None:
            return "–" if measure is None else text.score(measure.score)
        return f"{text.score(measure.score)} ({text.score(measure.low)} to {text.score(measure.high)})"

    if answers is not None:
        _refuse_other_than_text(answers)
    rows = rescore(run_folder, answers)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("step", "printed", "search rows", "other hidden rows", *(["truth"] if answers else []), ""):
        table.add_column(name, overflow="fold")
    for row in rows:
        printed = "–" if row.printed is None else text.score(row.printed)
        truth = ["–" if row.truth is None else text.score(row.truth)] if answers else []
        table.add_row(row.step, printed, interval(row.search), interval(row.select), *truth, row.problem)
    console().print(table)


def _refuse_other_than_text(path: Path) -> None:
    """A workbook, an archive and the like hold no lines that could be read as labels."""
    try:
        with path.open(encoding="utf-8-sig") as stream:
            is_text = all("\0" not in line for line in stream)
    except UnicodeDecodeError:
        is_text = False
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if not is_text:
        raise ConfigError(f"{path}: no separated text in UTF-8; save the labels as .csv")
