"""Commands to look at runs: `report`, `runs`, `show`, `diff`, `watch`, `ui`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mle_star.cli.options import AsList, Open, Port, Run, complete_step
from mle_star.cli.printing import console, serve, table
from mle_star.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from mle_star.cli.browse import StepRecord

Folder = Annotated[Path | None, typer.Argument(metavar="[DIR]", help="Where the runs are; runs/ if not given.")]
MOST_STEPS = 12
RULE = 100
"""Characters of a line across the page: a pipe has no width."""


def report(run_folder: Run, open_it: Open = False) -> None:
    """Rewrite report.html of a run from its journal; also while the run is going.

    \b
    Examples:
      mle-star report titanic-20260131
      mle-star report titanic-20260131 --open
    """
    from mle_star.views import write_report

    path = write_report(run_folder).absolute()
    typer.echo(path)
    if open_it:
        typer.launch(path.as_uri())


def runs(folder: Folder = None, as_json: AsList = False) -> None:
    """List runs: task, model, score, cost, time, state.

    Whatever a command takes as RUN may be a name of this list, the beginning of one, or `latest`.

    \b
    Examples:
      mle-star runs
      mle-star runs experiments/
      mle-star runs --json | jq '.[] | select(.state == "completed") | .path'
    """
    from rich.text import Text

    from mle_star.run.finding import runs_folder
    from mle_star.views import text
    from mle_star.views.shelf import find_runs, glance

    looked_at = find_runs(runs_folder() if folder is None else folder)
    found = sorted((glance(run_dir) for run_dir in looked_at), key=lambda one: (one.begun, one.name))
    if as_json:
        typer.echo(json.dumps([one._asdict() for one in found], indent=2))
        return
    made = table(
        "run", "task", "model", "score", "cost", "time", "state", numbers=("score", "cost", "time"), whole=("run",)
    )
    for one in found:
        style = {"completed": "green", "failed": "red", "running": "cyan"}.get(one.state, "yellow")
        cells = [
            one.name,
            text.one_line(one.task, 40),
            text.one_line(one.model, 30),
            f"{text.score(one.score)} {text.one_line(one.metric, 16)}",
            text.money(one.cost_usd),
            text.duration(one.seconds),
        ]
        made.add_row(*(Text(cell) for cell in cells), Text(one.title, style=style))
    console().print(made)


def show(
    run_folder: Run,
    step: Annotated[
        str, typer.Argument(metavar="[STEP]", help="A step, or the beginning of one.", autocompletion=complete_step)
    ] = "",
) -> None:
    """Show one step of a run: prompt, reply, script, output, score. Without a step, list them.

    A step is shown with all that belongs to it; of very many, there is a list.

    \b
    Examples:
      mle-star show titanic-20260131
      mle-star show titanic-20260131 phase1/candidate-0/init
      mle-star show titanic-20260131 phase2/path-0/t-0/k-1
    """
    from mle_star.cli.browse import read_steps

    screen, steps = console(), read_steps(run_folder)
    step = step.rstrip("/")
    wanted = [one for name, one in steps.items() if name == step or name.startswith(f"{step}/")]
    wanted = wanted or [one for name, one in steps.items() if name.startswith(step)]
    if not steps:
        raise ConfigError(f"{run_folder} has no steps yet")
    if not wanted:
        raise ConfigError(f"{run_folder} has no step {step!r}; `mle-star show {run_folder}` lists them")
    if not step or len(wanted) > MOST_STEPS:
        _list_steps(screen, wanted)
        return
    for one in wanted:
        _show_step(screen, one)


def diff(
    run_folder: Run,
    before: Annotated[str, typer.Argument(metavar="A", help="A script's step, or its beginning; `best`, `final`.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The script to compare it with.")],
) -> None:
    """Compare two scripts of a run.

    \b
    Examples:
      mle-star diff titanic-20260131 phase1/candidate-0 phase2/path-0/t-0/k-1
      mle-star diff titanic-20260131 phase1/candidate-1 final
    """
    from rich.text import Text

    from mle_star.cli.browse import find_script
    from mle_star.views.diffs import unified

    old, new = find_script(run_folder, before), find_script(run_folder, after)
    screen = console()
    styles = {"+": "green", "-": "red", "@": "cyan"}
    lines = list(unified(old.code, new.code, old.title, new.title))
    if not lines:
        screen.print(f"{old.title} and {new.title} are the same")
    for line in lines:
        style = "bold" if line[:3] in ("+++", "---") else styles.get(line[:1], "")
        screen.print(Text(line, style=style))


def watch(run_folder: Run, port: Port = 0, open_it: Open = False) -> None:
    """Serve the live page of a run, also of one in another process; end with Ctrl-C.

    The page is for this machine only, and its address holds a token: who has it may also end the run.

    \b
    Examples:
      mle-star watch titanic-20260131 --open
    """
    from mle_star.views.live import LiveServer, check_run

    serve(LiveServer(check_run(run_folder), port=port), open_it=open_it)


def ui(folder: Folder = None, port: Port = 0, open_it: Open = False) -> None:
    """Serve one page with all runs: live ones on top, searchable, two of them compared; end with Ctrl-C.

    Each run opens its report, which follows the run while it continues. The page is for this machine only, and its
    address holds a token: who has it may also end runs.

    \b
    Examples:
      mle-star ui --open
      mle-star ui experiments/
    """
    from mle_star.run.finding import runs_folder
    from mle_star.views.index import IndexServer

    place = runs_folder() if folder is None else folder
    if not place.is_dir():
        raise ConfigError(f"{place} is no folder; name the one that holds your runs")
    serve(IndexServer(place, port=port), open_it=open_it)


def _list_steps(screen: Console, steps: list[StepRecord]) -> None:
    from rich.text import Text

    from mle_star.views import text

    made = table("step", "outcome", "score", "cost", "time", numbers=("score", "cost", "time"))
    for one in steps:
        score = "" if one.score is None else text.score(one.score)
        cost = "" if one.call is None else text.money(one.cost_usd)
        time = "" if one.seconds is None else text.duration(one.seconds)
        style = {"failed": "red", "accepted": "green"}.get(one.outcome, "")
        made.add_row(Text(one.step), Text(one.outcome, style=style), score, cost, time)
    screen.print(made)


def _show_step(screen: Console, one: StepRecord) -> None:
    from rich.rule import Rule
    from rich.syntax import Syntax
    from rich.text import Text

    from mle_star.views import text

    screen.print(Text(f"{one.step}: {one.outcome}", style="bold"))
    for name, value in one.facts:
        screen.print(Text(f"{name:<10}", style="dim").append(text.one_line(value, 300), style="not dim"))
    for name, content, kind in one.texts:
        screen.print(Rule(name, align="left", style="dim"), width=min(screen.width, RULE))
        shown = Text(text.clean(content, max_text=400_000).rstrip("\n"))
        if kind:  # as text, not as a block: the terminal may wrap it, and a pipe gets whole lines
            shown = Syntax("", kind, background_color="default").highlight(shown.plain)
        screen.print(shown, end="\n" if not shown.plain.endswith("\n") else "")
    screen.print()
