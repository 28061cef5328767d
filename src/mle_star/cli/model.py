"""Commands that put a finished run to use: `predict`, `export`, `leaderboard`, `compare`, `promote`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mle_star.cli.names import HELP, Run, complete_run, complete_step, run_named
from mle_star.errors import ConfigError

Other = Annotated[
    Path,
    typer.Argument(
        metavar="OTHER", help="The run to compare it with.", callback=run_named, autocompletion=complete_run
    ),
]
WRITTEN: dict[str, Callable[[Any, Path], object]] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
    ".xlsx": lambda frame, path: frame.to_excel(path, index=False),
}
"""How predictions are written, by the ending of the file's name."""


def predict(
    run_folder: Run,
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="A table of new rows: .csv, .tsv, .json, .parquet, .xlsx.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .csv, .tsv, .parquet or .xlsx file; standard output if not given."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds that it may take; else those of the run.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Predict new rows with the solution of a run: its own script, in the sandbox, with the rows as its test file.

    The rows need the columns of the training data, without the target; more columns are left out.

    \b
    Examples:
      mle-star predict latest new.csv --output predictions.csv
      mle-star predict houses-20260131 new.xlsx > predictions.csv
    """
    from mle_star.results.model import load_model

    if output is not None and output.exists() and not force:
        raise ConfigError(f"{output}: exists already; --force overwrites it")
    if output is not None and not output.absolute().parent.is_dir():
        raise ConfigError(f"{output}: there is no folder {output.absolute().parent}")
    if output is not None and output.suffix.lower() not in WRITTEN:
        raise ConfigError(f"{output}: predictions are written as {', '.join(WRITTEN)}")
    answers = load_model(run_folder).predict(new, timeout_seconds=timeout)
    if output is None:
        typer.echo(answers.to_csv(index=False), nl=False)
        return
    WRITTEN[output.suffix.lower()](answers, output)
    typer.echo(f"{len(answers)} predictions in {output}", err=True)


def export(
    run_folder: Run,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
) -> None:
    """Write a folder that runs on its own: script, data, fitted state, requirements, Dockerfile, model card.

    \b
    Examples:
      mle-star export latest houses-model/
    """
    from mle_star.results.export import export_run

    for path in export_run(run_folder, target):
        typer.echo(path)


def leaderboard(
    run_folders: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help=HELP, autocompletion=complete_run)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A list of objects, for programs.")] = False,
    top: Annotated[int, typer.Option(min=1, help="So many lines of each task at most.")] = 20,
) -> None:
    """Rank the scripts of one run or of several by their score; without a run, those of all runs, task by task.

    \b
    Examples:
      mle-star leaderboard latest
      mle-star leaderboard houses-2026 houses-2027 --top 5
      mle-star leaderboard --json
    """
    from rich.table import Table
    from rich.text import Text

    from mle_star.cli.runs import console as make_console
    from mle_star.results.leaderboard import leaderboards
    from mle_star.run.finding import find_run, runs_folder, runs_in
    from mle_star.views import text

    runs = [find_run(name) for name in run_folders] if run_folders else runs_in(runs_folder())
    if not runs:
        raise ConfigError(f"there is no run in {runs_folder()} yet")
    boards, unread = leaderboards(runs)
    if run_folders and unread:
        raise ConfigError(unread[0])
    if run_folders and len(boards) > 1:
        raise ConfigError(f"these runs are about {' and '.join(boards)}: no one scale")
    for problem in unread:
        typer.echo(f"note: left out: {problem}", err=True)
    rows = [row for board in boards.values() for row in board[:top]]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("run", "script", "score", "between", "time", ""):
        table.add_column(name, justify="right" if name in ("score", "time") else "left", no_wrap=True)
    for row in rows:
        between = "" if row["low"] is None else f"{text.score(row['low'])} – {text.score(row['high'])}"
        cells = [row["run"], row["step"], f"{text.score(row['score'])} {row['metric']}", between]
        final = "final solution" if row["chosen"] else ""
        if row["final_rows"] is not None and row["final_score"] != row["score"]:
            final += f": {text.score(row['final_score'])} on {row['final_rows']:,} rows kept for the end"
        cells += [text.duration(row["seconds"]), final]
        table.add_row(*map(Text, cells), style="bold" if row["chosen"] else "")
    console = make_console()
    console.print(table)
    most = max(map(len, boards.values()), default=0)
    if most > top:
        console.print(f"{sum(map(len, boards.values())) - len(rows)} more: --top {most}")


def compare(run_folder: Run, other: Other) -> None:
    """Compare two runs: scores, cost, time, and the settings in which they differ.

    \b
    Examples:
      mle-star compare houses-20260131 latest
    """
    from rich.table import Table
    from rich.text import Text

    from mle_star.cli.runs import console as make_console
    from mle_star.run.folder import RunFolder
    from mle_star.run.journal import read_journal
    from mle_star.views import RunStory, text
    from mle_star.views.comparison import Comparison

    first, second = (RunStory.from_events(read_journal(RunFolder(one).journal)) for one in (run_folder, other))
    both = Comparison.of(first, second)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", run_folder.name, other.name):
        table.add_column(name, overflow="fold")
    for pair in (*both.facts, *both.settings):
        styles = ["bold" if pair.better == side else "" for side in ("first", "second")]
        cells = zip((pair.first, pair.second), styles, strict=True)
        table.add_row(
            Text(pair.name, style="dim"), *(Text(text.one_line(cell, 160), style=style) for cell, style in cells)
        )
    console = make_console()
    console.print(table)
    if both.why_not:
        console.print(f"their scores are not comparable: {both.why_not}")


def promote(
    run_folder: Run,
    step: Annotated[
        str, typer.Argument(metavar="STEP", help="The step of a scored script.", autocompletion=complete_step)
    ],
) -> None:
    """Hand over another script of a finished run: solution.py, result, submission and report become its own.

    `mle-star leaderboard RUN` lists the scripts; the journal keeps what was handed over before.

    \b
    Examples:
      mle-star promote latest phase1/candidate-0
    """
    from mle_star.results.leaderboard import promote as hand_over_another
    from mle_star.views import text, write_report

    chosen, score = hand_over_another(run_folder, step)
    write_report(run_folder)
    typer.echo(f"handed over: the script of {chosen}, score {text.score(score)}")
