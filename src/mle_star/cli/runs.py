"""Commands to look at runs: `runs`, `report`, `show`, `diff`, `watch`, `ui`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
from mle_star.cli.options import AsList, Open, Port, Run, complete_step
from mle_star.errors import ConfigError
from mle_star.models.texts import some_of
from mle_star.run.folder import RunFolder, runs_folder
from mle_star.run.journal import read_journal
from mle_star.run.log_lines import DEBUG, LINES
from mle_star.serving import GuardedServer
from mle_star.views import RunStory, text, write_report
from mle_star.views.shelf import find_runs, glance, unified

Folder = Annotated[Path | None, Argument(metavar="[DIR]", help="Where the runs are; runs/ if not given.")]
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


def show(
    run_folder: Run,
    step: Annotated[str, Argument(metavar="[STEP]", help="Or its beginning.", autocompletion=complete_step)] = "",
) -> None:
    """Show one step of a run: prompt, reply, script, output, score. Without a step, list them.

    A step is shown with all that belongs to it; of very many, there is a list.

    \b
    Examples:
      mle-star show titanic-20260131
      mle-star show titanic-20260131 phase1/candidate-0/init
      mle-star show titanic-20260131 phase2/path-0/t-0/k-1
    """
    screen, steps = console(), read_steps(run_folder)
    wanted = _named(steps.values(), step)
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
    before: Annotated[str, Argument(metavar="A", help="A script's step, or its beginning; `best`, `final`.")],
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
    """Serve the live page of a run, also of one in another process; end with Ctrl-C.

    The page is for this machine only, and its address holds a token: who has it may also end the run.

    \b
    Examples:
      mle-star watch titanic-20260131 --open
    """
    from mle_star.views.live import LiveServer

    _serve(LiveServer(run_folder, port=port), open_it=open_it)


def ui(folder: Folder = None, port: Port = 0, open_it: Open = False) -> None:
    """Serve one page with all runs: live ones on top, searchable, two of them compared; end with Ctrl-C.

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
        raise ConfigError(f"{place} is no folder; name the one that holds your runs")
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


@dataclass
class StepRecord:
    """All that the journal says about one step: its call, its script, and other events by their kind."""

    step: str
    events: dict[str, Any] = field(default_factory=dict)

    @property
    def score(self) -> float | None:
        """The score of its script, or of the attempt that ended here."""
        if "script" in self.events:
            result = self.events["script"].result
            return None if result.is_error else result.score
        found: float | None = self._first("score")
        return found

    @property
    def outcome(self) -> str:
        """How it ended, in a word or two."""
        if "script" in self.events:
            result = self.events["script"].result
            failed = "timed out" if result.timed_out else "failed"
            return failed if result.is_error else "not run again" if result.cached else "ran"
        if "call" in self.events:
            return "failed" if self.events["call"].kind == "agent_failed" else "answered"
        return {True: "accepted", False: "not accepted", None: ""}[self._first("accepted")]

    def _first(self, name: str) -> Any:
        """What the first event that has such a field says."""
        return next((getattr(event, name) for event in self.events.values() if hasattr(event, name)), None)

    def facts(self) -> Iterator[str]:
        """What the log says of it, and a little more."""
        for event in self.events.values():
            lines = (write(event) for level, write in LINES.get(event.kind, ()) if level > DEBUG)
            yield from filter(None, (MORE.get(event.kind, "").format(event), *lines))

    def texts(self) -> Iterator[tuple[str, str, str]]:
        """Long texts as name, content and language."""
        for event in self.events.values():
            for name, language in TEXTS.get(event.kind, {}).items():
                content = attrgetter(name)(event) or ""
                if content.strip():
                    yield TITLES.get(name, name), content, language


def read_steps(run_dir: Path) -> dict[str, StepRecord]:
    """The steps of a run in the order in which they ended; a step that was repeated shows its last time."""
    steps: dict[str, StepRecord] = {}
    for event in read_journal(RunFolder(run_dir).open().journal):
        if event.step and not event.kind.endswith("_started"):
            record = steps[event.step] = steps.pop(event.step, StepRecord(event.step))
            record.events[PARTS.get(event.kind, event.kind)] = event
    return steps


def _named(records: Iterable[StepRecord], name: str) -> list[StepRecord]:
    """The step of this name with those below it; where there is none, those that begin like this."""
    name, known = name.rstrip("/"), list(records)
    whole = [one for one in known if one.step == name or one.step.startswith(f"{name}/")]
    return whole or [one for one in known if one.step.startswith(name)]


def _find_script(run_dir: Path, name: str) -> tuple[str, str]:
    """A script with its title: that of a step, or the last one below it; `best` and `final` are the run's."""
    if name in ("best", "final"):
        story = RunStory.of(run_dir)
        best = story.bests[-1].score if story.bests else None
        code, score = (story.final_script, story.score) if name == "final" else (story.best_script, best)
        if not code:
            raise ConfigError(f"{run_dir} has no {name} script yet")
        return f"{name} ({text.score(score)})", code
    scripts = [record for record in read_steps(run_dir).values() if "script" in record.events]
    chosen = _named(scripts, name)
    if not chosen:
        raise ConfigError(f"{run_dir}: no script ran at {name!r}; there are {some_of([s.step for s in scripts], 6)}")
    return f"{chosen[-1].step} ({text.score(chosen[-1].score)})", chosen[-1].events["script"].script


def _list_steps(screen: Console, steps: list[StepRecord]) -> None:
    made = table("step", "outcome", "score>", "cost>", "time>")
    for one in steps:
        call, script = one.events.get("call"), one.events.get("script")
        seconds = script.result.duration_seconds if script else call.seconds if call else None
        numbers = {text.score: one.score, text.money: call and call.cost_usd, text.duration: seconds}
        cells = ["" if value is None else write(value) for write, value in numbers.items()]
        style = {"failed": "red", "accepted": "green"}.get(one.outcome, "")
        made.add_row(Text(one.step), Text(one.outcome, style=style), *cells)
    screen.print(made)


def _show_step(screen: Console, one: StepRecord) -> None:
    screen.print(Text(f"{one.step}: {one.outcome}", style="bold"))
    for words in one.facts():
        screen.print(Text(text.one_line(words, 300)))
    for name, content, kind in one.texts():
        screen.print(Rule(name, align="left", style="dim"), width=min(screen.width, RULE))
        shown = Text(text.clean(content, max_text=400_000).rstrip("\n"))
        if kind:  # as text, not as a block: the terminal may wrap it, and a pipe gets whole lines
            shown = Syntax("", kind, background_color="default").highlight(shown.plain)
        screen.print(shown, end="\n" if not shown.plain.endswith("\n") else "")
    screen.print()
