"""Commands to look at runs: `runs`, `report`, `show`, `diff`, `watch`, `ui`."""

import json
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text
from typer import Argument

from mle_star.cli import console, table, tell
from mle_star.cli.options import AsList, Open, Port, Run
from mle_star.errors import ConfigError
from mle_star.models.texts import some_of
from mle_star.run.events import OUT_OF_TIME
from mle_star.run.folder import RunFolder, callable_name, runs_folder
from mle_star.run.journal import read_journal
from mle_star.run.log_lines import DEBUG, LINES
from mle_star.serving import GuardedServer
from mle_star.views import RunStory, text, write_report
from mle_star.views.shelf import find_runs, glance, unified

Folder = Annotated[Path | None, Argument(metavar="[DIR]", help="The folder that holds the runs; runs/ if not given.")]
MOST_STEPS = 12
RULE = 100
"""Characters of a line across the page: a pipe has no width."""


def report(run_folder: Run, open_it: Open = False) -> None:
    """Write the report page of a run and print its path. Works while the run is going, too.

    \b
    Examples:
      mle-star report titanic-20260131
      mle-star report titanic-20260131 --open
    """
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
    looked_at = find_runs(folder or runs_folder())
    found = sorted((glance(run_dir) for run_dir in looked_at), key=lambda one: (one.begun, one.name))
    if as_json:
        typer.echo(json.dumps([one._asdict() for one in found], indent=2))
        return
    made = table("run", "task", "model", "score>", "cost>", "time>", "state", whole=("run",))
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
        made.add_row(*map(Text, cells), Text(one.title, style=style))
    console().print(made)


def show(run_folder: Run, step: Annotated[str, Argument(metavar="[STEP]", help="Or its beginning.")] = "") -> None:
    """Show one step of a run: prompt, reply, script, output, score. Without a step, list them.

    A step is shown with all steps below it, or as a list where these are many.

    \b
    Examples:
      mle-star show titanic-20260131
      mle-star show titanic-20260131 phase1/candidate-0/init
      mle-star show titanic-20260131 phase2/path-0/t-0/k-1
    """
    screen, steps = console(), read_steps(run_folder)
    wanted = _named(steps, step)
    if not steps:
        raise ConfigError(f"{run_folder} has no steps yet")
    if not wanted:
        raise ConfigError(f"{run_folder} has no step {step!r}; `mle-star show {run_folder}` lists them")
    if not step or len(wanted) > MOST_STEPS:
        _list_steps(screen, {name: record for name, record in wanted.items() if record.keys() != {"decided"}})
        tell(f"one of them, whole: mle-star show {callable_name(run_folder)} STEP")
        return
    for name, record in wanted.items():
        _show_step(screen, name, record)


def diff(
    run_folder: Run,
    before: Annotated[str, Argument(metavar="A", help="The step of a script, or its beginning; `best`, `final`.")],
    after: Annotated[str, Argument(metavar="B", help="The script to compare it with.")],
) -> None:
    """Compare two scripts of a run.

    \b
    Examples:
      mle-star diff titanic-20260131 phase1/candidate-0 phase2/path-0/t-0/k-1
      mle-star diff titanic-20260131 phase1/candidate-1 final
    """
    (old, old_code), (new, new_code) = _find_script(run_folder, before), _find_script(run_folder, after)
    screen, styles = console(), {"+": "green", "-": "red", "@": "cyan"}
    lines = list(unified(old_code, new_code, old, new))
    if not lines:
        screen.print(f"{old} and {new} are the same")
    for line in lines:
        screen.print(Text(line, style="bold" if line[:3] in ("+++", "---") else styles.get(line[:1], "")))


def watch(run_folder: Run, port: Port = 0, open_it: Open = False) -> None:
    """Serve the live page of a run, whichever process it runs in; end with Ctrl-C.

    The page is for this machine only. Its address holds a token: with it, the run can also be ended.

    \b
    Examples:
      mle-star watch titanic-20260131 --open
    """
    from mle_star.views.live import LiveServer

    _serve(LiveServer(run_folder, port=port), open_it=open_it)


def ui(folder: Folder = None, port: Port = 0, open_it: Open = False) -> None:
    """Serve a page that lists all runs, to search, open and compare them; end with Ctrl-C.

    Each run opens its report, which follows the run while it continues. The page is for this machine only, and its
    address holds a token: who has it may also end runs.

    \b
    Examples:
      mle-star ui --open
      mle-star ui experiments/
    """
    from mle_star.views.live import IndexServer

    place = folder or runs_folder()
    if not place.is_dir():
        raise ConfigError(f"there are no runs yet: no folder {place}")
    _serve(IndexServer(place, port=port), open_it=open_it)


def _serve(server: GuardedServer, *, open_it: bool) -> None:
    """Say the address, and serve until Ctrl-C."""
    address = server.start()
    typer.echo(address)
    if open_it:
        typer.launch(address)
    try:
        server.wait()
    except KeyboardInterrupt:
        tell("no longer served")
    finally:
        server.stop()


# --- steps -------------------------------------------------------------------------------------------------------


PARTS = {"agent_finished": "call", "agent_failed": "call", "script_finished": "script"}
"""Events of a step of which the last one counts; of others, the last of each kind."""
MORE = {
    "agent_finished": "{0.agent.value}, {0.model}: {0.input_tokens} tokens in, {0.output_tokens} out",
    "script_finished": "isolation: {0.result.isolation.sandbox}",
}
"""What the log leaves out of an event."""
TEXTS = {
    "agent_finished": {"prompt": "markdown", "json_text": "markdown"},
    "agent_failed": {"prompt": "markdown", "message": ""},
    "script_finished": {"script": "python", "result.stdout": "", "result.stderr": ""},
    "refinement_tried": {"plan": "", "before": "python", "after": "python"},
    "ablation_finished": {"summary": ""},
}
"""The long texts of events, and in which language they are."""
TITLES = {"json_text": "reply", "result.stdout": "output", "result.stderr": "errors"}


Record = dict[str, Any]
"""All that the journal says about one step: its `call`, its `script`, and other events by their kind."""


def read_steps(run_dir: Path) -> dict[str, Record]:
    """The steps of a run in the order in which they ended; a step that was repeated shows its last time."""
    steps: dict[str, Record] = {}
    for event in read_journal(RunFolder(run_dir).open().journal):
        if event.step and not event.kind.endswith("_started"):
            record = steps[event.step] = steps.pop(event.step, {})
            record[PARTS.get(event.kind, event.kind)] = event
    return steps


def _outcome(record: Record) -> tuple[str, float | None]:
    """How a step ended, in a word or two, and the score of its script or of the attempt that ended here."""
    if "script" in record:
        result = record["script"].result
        failed = "timed out" if result.timed_out else "failed"
        words = failed if result.is_error else "not run again" if result.cached else "ran"
        return words, None if result.is_error else result.score
    known = {name: value for event in reversed(record.values()) for name, value in vars(event).items()}
    score, accepted, error = (known.get(name) for name in ("score", "accepted", "error"))
    if "call" in record:
        return "failed" if record["call"].kind == "agent_failed" else "answered", score
    if accepted is not None:
        return "accepted" if accepted else "not accepted", score
    return "left out" if error == OUT_OF_TIME else "failed" if error else "", score


def _named(steps: dict[str, Record], name: str) -> dict[str, Record]:
    """The step of this name with those below it; where there is none, those that begin like this."""
    name = name.rstrip("/")
    whole = {step: record for step, record in steps.items() if step == name or step.startswith(f"{name}/")}
    return whole or {step: record for step, record in steps.items() if step.startswith(name)}


def _find_script(run_dir: Path, name: str) -> tuple[str, str]:
    """A script with its title: that of a step, or the last one below it; `best` and `final` are the run's."""
    if name in ("best", "final"):
        story = RunStory.of(run_dir)
        best = story.bests[-1].score if story.bests else None
        code, score = (story.final_script, story.score) if name == "final" else (story.best_script, best)
        if not code:
            raise ConfigError(f"{run_dir} has no {name} script yet")
        return f"{name} ({text.score(score)})", code
    scripts = {step: record for step, record in read_steps(run_dir).items() if "script" in record}
    chosen = list(_named(scripts, name))
    if not chosen:
        raise ConfigError(f"{run_dir}: no script ran at {name!r}; there are {some_of(list(scripts), 6)}")
    last = scripts[chosen[-1]]
    return f"{chosen[-1]} ({text.score(_outcome(last)[1])})", last["script"].script


def _list_steps(screen: Console, steps: dict[str, Record]) -> None:
    made = table("step", "outcome", "score>", "cost>", "time>")
    for step, record in steps.items():
        (words, score), call, script = _outcome(record), record.get("call"), record.get("script")
        seconds = script.result.duration_seconds if script else call.seconds if call else None
        numbers = {text.score: score, text.money: call and call.cost_usd, text.duration: seconds}
        cells = ["" if value is None else write(value) for write, value in numbers.items()]
        made.add_row(Text(step), Text(words, {"failed": "red", "accepted": "green"}.get(words, "")), *cells)
    screen.print(made)


def _show_step(screen: Console, step: str, record: Record) -> None:
    """What the log says of a step, a little more, and its long texts."""
    screen.print(Text(f"{step}: {_outcome(record)[0]}", style="bold"))
    for event in record.values():
        lines = (write(event) for level, write in LINES.get(event.kind, ()) if level != DEBUG)
        for words in filter(None, (MORE.get(event.kind, "").format(event), *lines)):
            screen.print(Text(text.one_line(words, 300)))
    names = [(event, *named) for event in record.values() for named in TEXTS.get(event.kind, {}).items()]
    for event, name, language in names:
        if not (content := attrgetter(name)(event) or "").strip():
            continue
        screen.print(Rule(TITLES.get(name, name), align="left", style="dim"), width=min(screen.width, RULE))
        shown = Text(text.clean(content, max_text=400_000).rstrip("\n"))
        if language:  # as text, not as a block: the terminal may wrap it, and a pipe gets whole lines
            shown = Syntax("", language, background_color="default").highlight(shown.plain)
        screen.print(shown, end="\n" if not shown.plain.endswith("\n") else "")
    screen.print()
