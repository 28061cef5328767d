"""`mle-star mlebench`: a competition of MLE-bench from its folders to the submission that it grades."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mle_star.cli.run import (
    EXIT_NO_SUBMISSION,
    Assignments,
    ConfigFile,
    MaxBudget,
    Model,
    explicit_settings,
    seconds_of,
)


def mlebench(
    data_dir: Annotated[Path, typer.Argument(metavar="DATA_DIR", help="The competition's data.")] = Path("/home/data"),
    competition: Annotated[
        str, typer.Option(envvar="COMPETITION_ID", help="The competition's id; else the folder's name.")
    ] = "",
    home: Annotated[Path, typer.Option(help="Where instructions.txt, submission/, code/ and logs/ lie.")] = Path(
        "/home"
    ),
    time_limit: Annotated[str, typer.Option(help="Wall-clock limit: seconds, or 90m, 12h, 1d.")] = "24h",
    model: Model = None,
    max_budget: MaxBudget = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    validate_url: Annotated[str, typer.Option(help="The benchmark's server that checks a submission's form.")] = (
        "http://localhost:5000/validate"
    ),
) -> None:
    """Solve a competition of MLE-bench: task from its folders, submission where it is graded.

    The run's folder is logs/mle-star; a run that was stopped there is taken up again.

    \b
    Examples:
      mle-star mlebench /home/data --time-limit 24h
      mle-star mlebench data/spaceship-titanic --home out --model offline --time-limit 10m
    """
    from mle_star.cli.run import start_run
    from mle_star.config import load_config
    from mle_star.integrations.mlebench import Bench, bench_task, hand_in, validate

    bench = Bench(data_dir, home / "instructions.txt", home / "submission", home / "code", home / "logs")
    given = {"time_limit_seconds": seconds_of("--time-limit", time_limit), "model": model, "max_budget_usd": max_budget}
    settings = load_config(explicit_settings(given, assignments), config)
    guess = bench_task(bench, competition or data_dir.resolve().name)
    for note in guess.notes:
        typer.echo(f"note: {note}", err=True)
    run_dir = bench.logs / "mle-star"
    code = 0
    try:
        start_run(guess.task, settings, run_dir, mode="plain", resume=(run_dir / "journal.jsonl").exists())
    except typer.Exit as end:
        code = end.exit_code
    if code not in (0, EXIT_NO_SUBMISSION):
        raise typer.Exit(code)
    place = hand_in(run_dir, bench)
    if place is None:
        typer.echo("no submission; script and report are handed in", err=True)
        raise typer.Exit(EXIT_NO_SUBMISSION)
    said = validate(place, validate_url)
    typer.echo(f"submission: {place}" + (f" ({said})" if said else "; no server checked its form"))
