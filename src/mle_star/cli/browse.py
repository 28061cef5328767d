"""Finding things in run folders: runs, steps, scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mle_star.errors import ConfigError
from mle_star.run.events import AgentFailed, AgentFinished, AnyEvent, ScriptFinished
from mle_star.run.folder import RunFolder
from mle_star.run.journal import read_journal
from mle_star.views import text
from mle_star.views.headlines import headline
from mle_star.views.story import RunStory

# --- steps -------------------------------------------------------------------------------------------------------


@dataclass
class StepRecord:
    """All that the journal says about one step."""

    step: str
    call: AgentFinished | AgentFailed | None = None
    script: ScriptFinished | None = None
    others: list[AnyEvent] = field(default_factory=list)

    @property
    def cost_usd(self) -> float:
        """What its call cost."""
        return self.call.cost_usd if self.call is not None else 0.0

    @property
    def seconds(self) -> float | None:
        """How long its call or script took."""
        if self.script is not None:
            return self.script.result.duration_seconds
        return None if self.call is None else self.call.seconds

    @property
    def score(self) -> float | None:
        """The score of its script, or of the attempt that ended here."""
        if self.script is not None:
            return None if self.script.result.is_error else self.script.result.score
        return next((value for one in self.others if (value := getattr(one, "score", None)) is not None), None)

    @property
    def outcome(self) -> str:
        """How it ended, in a word or two."""
        if self.script is not None:
            if self.script.result.is_error:
                return "timed out" if self.script.result.timed_out else "failed"
            return "not run again" if self.script.result.cached else "ran"
        if self.call is not None:
            return "failed" if isinstance(self.call, AgentFailed) else "answered"
        for one in self.others:
            accepted = getattr(one, "accepted", None)
            if accepted is not None:
                return "accepted" if accepted else "not accepted"
        return ""

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Short facts by name."""
        found: list[tuple[str, str]] = []
        call, script = self.call, self.script
        if call is not None:
            found.append(("agent", call.agent.value + (f" ({call.variant})" if call.variant else "")))
            found.append(("cost", f"{text.money(call.cost_usd)}, {text.duration(call.seconds)}"))
        if isinstance(call, AgentFinished):
            found.append(("tokens", f"{call.input_tokens} in, {call.output_tokens} out, {call.model}"))
        if script is not None:
            result = script.result
            network = "no network" if result.isolation.network_blocked else "network open"
            found.append(("exit code", f"{result.exit_code} after {text.duration(result.duration_seconds)}"))
            found.append(("isolation", f"{result.isolation.sandbox}, {network}"))
        if self.score is not None:
            found.append(("score", text.score(self.score)))
        for one in self.others:
            said = headline(one)
            found += [("said", said.words)] if said is not None else []
        return found

    @property
    def texts(self) -> list[tuple[str, str, str]]:
        """Long texts as name, content and language."""
        found: list[tuple[str, str, str]] = []
        if self.call is not None:
            found.append(("prompt", self.call.prompt, "markdown"))
        if isinstance(self.call, AgentFailed):
            found.append(("failure", f"{self.call.reason}: {self.call.message}", ""))
        if isinstance(self.call, AgentFinished):
            structured = self.call.structured
            reply = self.call.text if structured is None else json.dumps(structured, indent=2, ensure_ascii=False)
            found.append(("reply", reply, "markdown" if structured is None else "json"))
        if self.script is not None:
            found.append(("script", self.script.script, "python"))
            found.append(("output", self.script.result.stdout, ""))
            found.append(("errors", self.script.result.stderr, ""))
        for one in self.others:
            if one.kind == "refinement_tried":
                found += [("plan", one.plan, ""), ("before", one.before, "python"), ("after", one.after, "python")]
            elif one.kind == "ablation_finished":
                found.append(("summary", one.summary, ""))
        return [(name, content, kind) for name, content, kind in found if content.strip()]


def read_steps(run_dir: Path) -> dict[str, StepRecord]:
    """The steps of a run in the order in which they ended; a step that was repeated shows its last time."""
    steps: dict[str, StepRecord] = {}
    for event in read_journal(RunFolder(run_dir).open().journal):
        if not event.step or event.kind in ("agent_started", "script_started", "phase_started"):
            continue
        record = steps[event.step] = steps.pop(event.step, StepRecord(event.step))
        if isinstance(event, (AgentFinished, AgentFailed)):
            record.call = event
        elif isinstance(event, ScriptFinished):
            record.script = event
        else:
            record.others = [one for one in record.others if one.kind != event.kind] + [event]
    return steps


# --- scripts -----------------------------------------------------------------------------------------------------


class Script(NamedTuple):
    """A script with the name that a comparison shows."""

    title: str
    code: str


def find_script(run_dir: Path, name: str) -> Script:
    """The script of a step: its own, or the last one below it; `best` and `final` are the run's."""
    folder = RunFolder(run_dir).open()
    if name in ("best", "final"):
        story = RunStory.from_events(read_journal(folder.journal))
        best = story.bests[-1].score if story.bests else None
        code, score = (story.final_script, story.score) if name == "final" else (story.best_script, best)
        if not code:
            raise ConfigError(f"{run_dir} has no {name} script yet")
        return Script(f"{name} ({text.score(score)})", code)
    scripts = [record for record in read_steps(run_dir).values() if record.script is not None]
    exact = [record for record in scripts if record.step == name]
    below = [record for record in scripts if record.step.startswith(name.rstrip("/") + "/")]
    chosen = exact or below or [record for record in scripts if record.step.startswith(name)]
    if not chosen:
        raise ConfigError(f"{run_dir}: no script ran at {name!r}; there are {_some(scripts)}")
    script = chosen[-1].script
    return Script(f"{chosen[-1].step} ({text.score(chosen[-1].score)})", script.script if script else "")


def _some(records: Iterable[StepRecord]) -> str:
    names = [record.step for record in records]
    return ", ".join(names[:6]) + (" and more" if len(names) > 6 else "") if names else "none"
