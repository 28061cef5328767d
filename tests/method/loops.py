"""What the tests of the phases share: scripts with blocks, replies by rule, and a watched clock."""

import logging
import re
import sys
import threading
import time
from collections.abc import Awaitable, Sequence
from types import FrameType
from typing import Any, TypeVar

from tests.conftest import as_kept
from tests.pipeline.clock import PatientLoop
from tests.prompt_samples import sections

from .conftest import ScriptedAgents, ScriptedRun
from .replies import broken_script, fenced, part, plans, script

Outcome = float | str
T = TypeVar("T")


def section(prompt: str, heading: str) -> str:
    """The text below one `# Heading` of a prompt, up to the next one; lines inside code fences are no headings."""
    return sections(prompt)[heading]


def account_as_kept(name: str, run: ScriptedRun, log: Sequence[logging.LogRecord]) -> None:
    """Is all that phases record and log what is kept, apart from times? Calls and scripts have tests of their own."""
    events = [event for event in run.journal.events if not event.kind.startswith(("agent_", "script_"))]
    lines = [f"{event.kind} {event.model_dump_json(exclude={'at'}, exclude_defaults=True)}" for event in events]
    names = ("mle_star.phase", "mle_star.run", "mle_star.safety")
    lines += [f"{one.levelname} {one.getMessage()}" for one in log if one.name.startswith(names)]
    as_kept(f"method/{name}.txt", re.sub(r"\d+(\.\d+)? s\b|(?<=bug of )\d+", "…", "\n".join(lines)))


def play_attempts(agents: ScriptedAgents, attempts: Sequence[Outcome], mark: str = "", before: str = "") -> None:
    """Queue the replies for one inner loop: each attempt leaves its mark, and nobody can repair a crash."""
    agents.always("debugger", "I cannot repair this.")
    for k, outcome in enumerate(attempts):
        if k > 0:
            agents.reply("planner", "" if outcome == "planner" else f"plan {mark}{k}")
        crashes, scores = f"raise RuntimeError('{mark}k{k}')", f"level = {outcome}  # {mark}k{k}"
        if outcome in ("coder", "planner"):  # the first attempt has no planner to fail
            agents.reply("coder", *["No code today."] * (k == 0 or outcome == "coder"))
        else:
            agents.reply("coder", fenced(before + (crashes if outcome == "crash" else scores)))


Step = Sequence[Outcome] | str
"""What happens in one outer step: the outcomes of its attempts, or `skip` when no block is found."""


def play_steps(agents: ScriptedAgents, steps: Sequence[Step]) -> None:
    """Queue the replies for a path: step `t` refines `part_{t}`, attempt `k` leaves the mark `t{t}k{k}`."""
    for t, step in enumerate(steps):
        agents.reply("summarize", f"summary {t}")
        if isinstance(step, str):
            agents.reply("extractor", "no JSON", "still no JSON")
            continue
        agents.reply("extractor", plans((part(t), f"plan t{t}k0")))
        play_attempts(agents, step, mark=f"t{t}", before=f"part_{t} = 1\n")


def play_rounds(agents: ScriptedAgents, outcomes: Sequence[Outcome]) -> None:
    """Queue the replies for the rounds of Phase 3; round `r` leaves its mark, and nobody can repair a crash."""
    agents.always("debugger", "I cannot repair this.")
    for r, outcome in enumerate(outcomes):
        agents.reply("ens_planner", "" if outcome == "planner" else f"plan {r}")
        failures = {"ensembler": "No code today.", "crash": fenced(broken_script(note=f"round {r}"))}
        if outcome != "planner":
            agents.reply("ensembler", failures.get(str(outcome)) or fenced(script(outcome, note=f"round {r}")))


def measured(work: Awaitable[T]) -> tuple[T, float, float]:
    """The result, the seconds that were waited for nothing, each sleep of ours a second more, and those of work."""
    loop, sleeps, started = PatientLoop(), list[FrameType](), time.process_time()

    def look(frame: FrameType, event: str, what: Any) -> None:
        if event == "c_call" and what is time.sleep and frame.f_globals["__name__"].startswith("mle_star"):
            sleeps.append(frame)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        result = loop.run_until_complete(work)
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        loop.close()
    return result, loop.now + len(sleeps), time.process_time() - started
