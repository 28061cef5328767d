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

from mle_star.cli import console, table, tell
from mle_star.cli.options import AsList, Open, Port, Run, complete_step
from mle_star.errors import ConfigError
from mle_star.models.texts import some_of
from mle_star.run import events
from mle_star.run.folder import RunFolder, runs_folder
from mle_star.run.journal import read_journal
from mle_star.serving import GuardedServer
from mle_star.views import RunStory, text, write_report
from mle_star.views.headlines import headline
from mle_star.views.shelf import find_runs, glance, unified

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
    before: Annotated[str, typer.Argument(metavar="A", help="A script's step, or its beginning; `best`, `final`.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The script to compare it with.")],
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


TEXTS = {
    "agent_finished": {"prompt": "markdown", "text": "markdown", "structured": "json"},
    "agent_failed": {"prompt": "markdown", "message": ""},
    "script_finished": {"script": "python", "result.stdout": "", "result.stderr": ""},
    "refinement_tried": {"plan": "", "before": "python", "after": "python"},
    "ablation_finished": {"summary": ""},
}
"""The long texts of events, and in which language they are."""
TITLES = {"text": "reply", "structured": "reply", "result.stdout": "output", "result.stderr": "errors"}


@dataclass
class StepRecord:
    """All that the journal says about one step: its call, its script, and other events by their kind."""

    step: str
    call: events.AgentFinished | events.AgentFailed | None = None
    script: events.ScriptFinished | None = None
    others: dict[str, events.AnyEvent] = field(default_factory=dict)

    def hear(self, event: events.AnyEvent) -> None:
        """One more event, or a later one in the place of an earlier."""
        if isinstance(event, events.AgentFinished | events.AgentFailed):
            self.call = event
        elif isinstance(event, events.ScriptFinished):
            self.script = event
        else:
            self.others[event.kind] = event

    @property
    def score(self) -> float | None:
        """The score of its script, or of the attempt that ended here."""
        if self.script is not None:
            return None if self.script.result.is_error else self.script.result.score
        return next((event.score for event in self.others.values() if hasattr(event, "score")), None)

    @property
    def outcome(self) -> str:
        """How it ended, in a word or two."""
        if self.script is not None:
            result = self.script.result
            failed = "timed out" if result.timed_out else "failed"
            return failed if result.is_error else "not run again" if result.cached else "ran"
        if self.call is not None:
            return "failed" if isinstance(self.call, events.AgentFailed) else "answered"
        accepted = next((event.accepted for event in self.others.values() if hasattr(event, "accepted")), None)
        return "" if accepted is None else "accepted" if accepted else "not accepted"

    def facts(self) -> Iterator[tuple[str, str]]:
        """Short facts with their names."""
        if call := self.call:
            variant = f" ({call.variant})" if call.variant else ""
            yield "agent", f"{call.agent.value}{variant}, {text.money(call.cost_usd)}, {text.duration(call.seconds)}"
            if isinstance(call, events.AgentFinished):
                yield "tokens", f"{call.input_tokens} in, {call.output_tokens} out, {call.model}"
        if self.script is not None:
            result = self.script.result
            network = "no network" if result.isolation.network_blocked else "network open"
            yield "exit code", f"{result.exit_code} after {text.duration(result.duration_seconds)}"
            yield "isolation", f"{result.isolation.sandbox}, {network}"
        if self.score is not None:
            yield "score", text.score(self.score)
        for news in filter(None, map(headline, self.others.values())):
            yield "event", news.words

    def texts(self) -> Iterator[tuple[str, str, str]]:
        """Long texts as name, content and language."""
        heard: list[Any] = [self.call, self.script, *self.others.values()]
        for event in filter(None, heard):
            for name, language in TEXTS.get(event.kind, {}).items():
                content = attrgetter(name)(event)
                if name == "structured" and content is not None:
                    content = json.dumps(content, indent=2, ensure_ascii=False)
                is_said_again = name == "text" and getattr(event, "structured", None) is not None
                if content and content.strip() and not is_said_again:
                    yield TITLES.get(name, name), content, language


def read_steps(run_dir: Path) -> dict[str, StepRecord]:
    """The steps of a run in the order in which they ended; a step that was repeated shows its last time."""
    steps: dict[str, StepRecord] = {}
    for event in read_journal(RunFolder(run_dir).open().journal):
        if event.step and not event.kind.endswith("_started"):
            record = steps[event.step] = steps.pop(event.step, StepRecord(event.step))
            record.hear(event)
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
    scripts = [record for record in read_steps(run_dir).values() if record.script is not None]
    chosen = _named(scripts, name)[-1:]
    if not chosen or chosen[0].script is None:
        raise ConfigError(f"{run_dir}: no script ran at {name!r}; there are {some_of([s.step for s in scripts], 6)}")
    return f"{chosen[0].step} ({text.score(chosen[0].score)})", chosen[0].script.script


def _list_steps(screen: Console, steps: list[StepRecord]) -> None:
    made = table("step", "outcome", "score>", "cost>", "time>")
    for one in steps:
        score = "" if one.score is None else text.score(one.score)
        cost = "" if one.call is None else text.money(one.call.cost_usd)
        seconds = one.script.result.duration_seconds if one.script else one.call.seconds if one.call else None
        style = {"failed": "red", "accepted": "green"}.get(one.outcome, "")
        time = "" if seconds is None else text.duration(seconds)
        made.add_row(Text(one.step), Text(one.outcome, style=style), score, cost, time)
    screen.print(made)


def _show_step(screen: Console, one: StepRecord) -> None:
    screen.print(Text(f"{one.step}: {one.outcome}", style="bold"))
    for name, value in one.facts():
        screen.print(Text(f"{name:<10}", style="dim").append(text.one_line(value, 300), style="not dim"))
    for name, content, kind in one.texts():
        screen.print(Rule(name, align="left", style="dim"), width=min(screen.width, RULE))
        shown = Text(text.clean(content, max_text=400_000).rstrip("\n"))
        if kind:  # as text, not as a block: the terminal may wrap it, and a pipe gets whole lines
            shown = Syntax("", kind, background_color="default").highlight(shown.plain)
        screen.print(shown, end="\n" if not shown.plain.endswith("\n") else "")
    screen.print()
