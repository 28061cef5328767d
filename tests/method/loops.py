"""What the tests of the phases share: scripts with blocks, replies by rule, and a watched clock."""

from __future__ import annotations

import asyncio
import cProfile
import functools
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any, TypeVar

from tests.prompt_samples import sections

from .conftest import ScriptedAgents
from .replies import broken_script, fenced, part, plans, script

Outcome = float | str
T = TypeVar("T")


def section(prompt: str, heading: str) -> str:
    """The text below one `# Heading` of a prompt, up to the next one; lines inside code fences are no headings."""
    return sections(prompt)[heading]


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


UNSEEN = 0.3
"""Locks that nobody holds take microseconds each, and a journal waits for its disk: so many seconds are no idling."""


class WatchedLoop(asyncio.SelectorEventLoop):
    """An event loop that adds up the seconds for which it was asked to wait; a busy machine adds nothing to them.

    What would run in a thread runs at once, where the profile sees whether it idles. What watches the control file
    polls beside the work and keeps nobody waiting.
    """

    waited = 0.0

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As always. A timer that comes due was a wait, one that is cancelled was a limit."""
        task = asyncio.current_task(self)
        seconds = 0.0 if task is not None and task.get_name() == "run-control" else when - self.time()

        def due() -> None:
            self.waited += seconds
            callback(*args)

        return super().call_at(when, due, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Do it here and now, by a call that the profile sees."""
        future, words = self.create_future(), args
        if isinstance(func, functools.partial):  # `asyncio.to_thread` hands over the context's own `run`
            func, words = functools.partial(func.func, _call, **func.keywords), (*func.args, *args)
        try:
            future.set_result(func(*words))
        except Exception as error:
            future.set_exception(error)
        return future


def _call(function: Callable[..., T], *args: Any, **named: Any) -> T:
    return function(*args, **named)


_IDLING = re.compile(r"time\.sleep|'(?:acquire|join|wait)' of '_thread|select\.select")
_WAITING = re.compile(rf"{_IDLING.pattern}|'poll' of 'select")
"""Calls in which a thread waits, as a profile names them; the loop itself polls where nothing is left to do."""


def measured(work: Awaitable[T], *, processes: bool = False) -> tuple[T, float, float]:
    """The result, the seconds that were waited for nothing, and the seconds of work of this process.

    With `processes` the work may wait for processes of its own.
    """
    loop, profile, started = WatchedLoop(), cProfile.Profile(), time.process_time()
    profile.enable()
    try:
        result = loop.run_until_complete(work)
    finally:
        profile.disable()
        worked = time.process_time() - started
        loop.close()
    waits = _IDLING if processes else _WAITING
    calls = [entry for entry in profile.getstats() if isinstance(entry.code, str) and waits.search(entry.code)]
    idled = sum(entry.totaltime for entry in calls)
    return result, loop.waited + (idled if idled > UNSEEN else 0.0), worked
