"""Commands that put a finished run to use: `predict`, `export`, `leaderboard`, `compare`, `promote`, `score`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from typer import Argument, Option

from mle_star.cli import console, note, table, tell
from mle_star.cli.options import NAMED, RUN_HELP, AsList, Force, Run
from mle_star.data.tables import read_table
from mle_star.errors import ConfigError
from mle_star.run.folder import find_run, runs_folder, runs_in
from mle_star.views import RunStory, text, write_report

Other = Annotated[Path, Argument(metavar="OTHER", help="The run to compare it with.", **NAMED)]
WRITTEN: dict[str, Callable[[Any, Path], object]] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
    ".xlsx": lambda frame, path: frame.to_excel(path, index=False),
}
"""How predictions are written, by the ending of the file's name."""


def predict(
    run_folder: Run,
    new: Annotated[Path, Argument(metavar="NEW", help="New rows: .csv, .tsv, .json, .parquet, .xlsx.")],
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="A .csv, .tsv, .parquet or .xlsx file; standard output if not given."),
    ] = None,
    timeout: Annotated[float | None, Option(min=1, help="Time limit in seconds; that of the run if not given.")] = None,
    force: Force = False,
) -> None:
    """Predict new rows with the fitted model of a run: one answer for each row, in their order.

    The rows need the columns of the training data, without the target; more columns are left out.

    \b
    Examples:
      mle-star predict latest new.csv --output predictions.csv
      mle-star predict houses-20260131 new.xlsx > predictions.csv
    """
    from mle_star.results import load_model

    if output is not None:
        if output.exists() and not force:
            raise ConfigError(f"{output}: exists already; --force overwrites it")
        if not output.absolute().parent.is_dir():
            raise ConfigError(f"{output}: there is no folder {output.absolute().parent}")
        if output.suffix.lower() not in WRITTEN:
            raise ConfigError(f"{output}: predictions are written as {', '.join(WRITTEN)}")
    model = load_model(run_folder)
    answers, known = model.predict(new, timeout_seconds=timeout), read_table(new)
    if held := [name for name in model.targets if not isinstance(known, str) and name in known.columns]:
        note(f"{new} holds {', '.join(held)}: not used; rows that the model learned from are predicted too well")
    if output is None:
        typer.echo(answers.to_csv(index=False), nl=False)
        return
    WRITTEN[output.suffix.lower()](answers, output)
    tell(f"{len(answers)} predictions in {output}")


def export(run_folder: Run, target: Annotated[Path, Argument(metavar="DIR", help="A new folder.")]) -> None:
    """Write a folder that works without MLE-STAR: script, model, training data, requirements, Dockerfile, model card.

    \b
    Examples:
      mle-star export latest houses-model/
    """
    from mle_star.results.finished import export_run

    for path in export_run(run_folder, target):
        typer.echo(path)


def leaderboard(
    named: Annotated[list[str] | None, Argument(metavar="[RUN]...", help=RUN_HELP)] = None,
    as_json: AsList = False,
    top: Annotated[int, Option(min=1, help="Most lines per task.")] = 20,
) -> None:
    """Rank the scripts of one run or of several by their score; without a run, those of all runs, task by task.

    \b
    Examples:
      mle-star leaderboard latest
      mle-star leaderboard houses-2026 houses-2027 --top 5
      mle-star leaderboard --json
    """
    from mle_star.views.shelf import leaderboards

    runs = [find_run(name) for name in named] if named else runs_in(runs_folder())
    if not runs:
        raise ConfigError(f"there are no runs in {runs_folder()} yet")
    boards, unread = leaderboards(runs)
    if named and unread:
        raise ConfigError(unread[0])
    if named and len(boards) > 1:
        raise ConfigError(f"these runs are about {' and '.join(boards)}: no one scale")
    for problem in unread:
        note(f"left out: {problem}")
    rows = [row for board in boards.values() for row in board[:top]]
    if as_json or not rows:
        typer.echo(json.dumps(rows, indent=2) if as_json else "no script has a score")
        return
    names = ("run", "script", "score>", "95 % interval", "time>", "")
    made = table(*names, whole=names)
    for row in rows:
        between = "" if row["low"] is None else f"{text.score(row['low'])} – {text.score(row['high'])}"
        cells = [row["run"], row["step"], f"{text.score(row['score'])} {row['metric']}", between]
        final = "final solution" if row["chosen"] else ""
        if row["final_rows"] is not None and row["final_score"] != row["score"]:
            final += f": expect {row['expected']}"
        cells += [text.duration(row["seconds"]), final]
        made.add_row(*map(Text, cells), style="bold" if row["chosen"] else "")
    screen = console()
    screen.print(made)
    if any(row["chosen"] and row["final_rows"] is not None for row in rows):
        screen.print("Ranked on the rows of the search; the final solution is chosen on all hidden rows.")
    most = max(map(len, boards.values()), default=0)
    if most > top:
        screen.print(f"{sum(map(len, boards.values())) - len(rows)} more: --top {most}")


def compare(run_folder: Run, other: Other) -> None:
    """Compare two runs: scores, cost, time, and the settings in which they differ.

    \b
    Examples:
      mle-star compare houses-20260131 latest
    """
    from mle_star.views.shelf import Comparison

    both = Comparison.of(RunStory.of(run_folder), RunStory.of(other))
    made = table("", run_folder.name, other.name)
    for pair in (*both.facts, *both.settings):
        sides = {"first": pair.first, "second": pair.second}
        cells = [Text(text.one_line(sides[s], 160), style="bold" if pair.better == s else "") for s in sides]
        made.add_row(Text(pair.name, style="dim"), *cells)
    screen = console()
    screen.print(made)
    if both.why_not:
        screen.print(f"their scores are not comparable: {both.why_not}")


def promote(
    run_folder: Run, step: Annotated[str, Argument(metavar="STEP", help="The step of a scored script.")]
) -> None:
    """Make another script of a finished run the final solution. Result, submission and report follow.

    `mle-star leaderboard RUN` lists the scripts; the journal keeps the earlier final solution.

    \b
    Examples:
      mle-star promote latest phase1/candidate-0
    """
    from mle_star.results.finished import promote as make_final

    chosen, score = make_final(run_folder, step)
    write_report(run_folder)
    typer.echo(f"final solution: the script of {chosen}, score {text.score(score)}")


def score(
    run_folder: Run,
    answers: Annotated[Path | None, Option("--answers", help="The labels of the test, in a .csv file.")] = None,
) -> None:
    """Compute the scores of a run again: on its hidden rows and, with --answers, on the test.

    \b
    Examples:
      mle-star score latest
      mle-star score titanic-20260131 --answers answers.csv
    """
    from mle_star.search.final_result import rescore

    if answers is not None:
        _refuse_other_than_text(answers)
    made = table("step", "printed", "search rows", "other hidden rows", *(["truth"] if answers else []), "")
    for row in rescore(run_folder, answers):
        cells = [text.score(row.printed), f"{row.search or '–'}", f"{row.select or '–'}"]
        cells += [text.score(row.truth)] if answers else []
        made.add_row(row.step, *cells, row.problem)
    console().print(made)


def _refuse_other_than_text(path: Path) -> None:
    """A workbook, an archive and the like hold no lines that could be read as labels."""
    table = read_table(path)
    if isinstance(table, str):
        raise ConfigError(f"{table}; save the labels as .csv")
    if table.form.kind != "csv" or not table.form.encoding.startswith("utf-8"):
        raise ConfigError(f"{path}: no separated text in UTF-8; save the labels as .csv")
