"""What a run will take: calls and scripts by the formulas of M, T, K, L, R; money and time by what was measured so far.

A forecast counts a run without surprises, plus repairs at the rate seen so far. It is refined with every event.
"""

import functools
import math
from collections import Counter, defaultdict
from pathlib import Path

from mle_star.models import AgentType, PhaseTimeBudget, PipelineConfig, TaskDescription, agent_config
from mle_star.models.agents import AGENTS
from mle_star.models.enums import ORDER, PHASES
from mle_star.models.texts import plural
from mle_star.prompts import PromptRegistry
from mle_star.run import events
from mle_star.run.budget import CHARACTERS_PER_TOKEN, price_of, read_prices
from mle_star.run.timing import FEWER_PATHS, plan_seconds

SCRIPT_CHARACTERS, SCRIPT_SECONDS = 6000, 60.0
"""A script's size and time before any was seen."""
REPAIR_PRIOR = (1, 8)
"""Before anything was seen: one repair in eight scripts."""
CHANGE_WORTH_TELLING = 0.25
ACCEPTED_OF = 3

Step = tuple[str, str]
"""A phase and an agent (`leakage`, `test-subsampling_extract`), or a phase and `script`."""


# --- how many --------------------------------------------------------------------------------------------


def planned_steps(config: PipelineConfig) -> Counter[Step]:
    """The calls and script runs of a run in which every script works and every merge is accepted."""
    sizes, agents = config.sizes, AGENTS.items()
    counts = {(phase, agent.value): count(sizes) for agent, one in agents for phase, count in one.planned.items()}
    if config.leakage_checks == "promising":  # of what would be accepted: about one in `ACCEPTED_OF` attempts is
        checked = {step: math.ceil(n / ACCEPTED_OF) for step, n in counts.items() if step[1] == AgentType.leakage}
        counts.update(checked)
    counts |= {(phase.name, "script"): phase.scripts(sizes) for phase in PHASES}
    return Counter({step: n for step, n in counts.items() if n and (step[0] != "phase3" or sizes.L > 1)})


# --- how much --------------------------------------------------------------------------------------------

_EFFORT = {"low": 0.7, "high": 1.5, "xhigh": 2.0, "max": 3.0}
"""How much more, or less, is written by an agent that tries so hard: thinking is paid for as output."""
_REQUEST_OVERHEAD = {"none": 1760, "Read": 3900, "WebSearch": 3900, "Bash": 9900}  # characters, as measured


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


class Forecaster:
    """Listens to a run and says what the whole of it will take."""

    def __init__(self, task: TaskDescription, config: PipelineConfig) -> None:
        self._task, self._config = task, config
        self._planned = planned_steps(config)
        self._done: Counter[Step] = Counter()
        self._over: set[str] = set()
        self._cost: dict[str, list[float]] = defaultdict(list)
        self._latency, self._runtime = list[float](), list[float]()
        self._last: events.Forecast | None = None
        self._guess = functools.cache(self._guessed_cost)  # a forecast follows every call and script
        self._own_prices = {} if config.prices_file is None else read_prices(Path(config.prices_file))

    def hear(self, event: events.AnyEvent) -> None:
        """Learn from an event of the run."""
        phase = event.step.split("/")[0]
        if isinstance(event, (events.AgentFinished, events.AgentFailed)):
            self._done[phase, event.agent.value] += 1
            self._cost[event.agent.value].append(event.cost_usd)
            self._latency.append(event.seconds)
        elif isinstance(event, events.ScriptFinished):
            self._done[phase, "script"] += 1
            if not event.result.cached:
                self._runtime.append(event.result.duration_seconds)
        elif isinstance(event, events.HoldOutPrepared) and 0 < event.train_rows <= self._config.subsample_limit:
            self._planned["finalization", "test"] = 1  # no script is told to cut rows, so nobody is asked where
        elif isinstance(event, events.PhaseFinished) and event.path is None:
            self._over.add(event.phase)
        elif isinstance(event, events.Decided) and event.name.startswith(FEWER_PATHS) and event.value:
            self._plan_for(num_parallel_solutions=self._config.num_parallel_solutions - 1)

    def forecast(self, *, spent_usd: float = 0.0, elapsed: float = 0.0) -> events.Forecast:
        """The whole run as it looks now."""
        if self._config.more_steps:
            self._fit_steps()
        left = Counter({step: n for step, n in (self._planned - self._done).items() if step[0] not in self._over})
        (calls, scripts), (done_calls, done_scripts) = _calls_and_scripts(left), _calls_and_scripts(self._done)
        repaired = REPAIR_PRIOR[0] + sum(n for (_, name), n in self._done.items() if name == "debugger")
        repairs = scripts * repaired / (REPAIR_PRIOR[1] + done_scripts)
        basis = f"after {plural(done_calls, 'call')} and {plural(done_scripts, 'script')}"
        return events.Forecast(
            calls=done_calls + calls + round(2 * repairs),  # a repair: the debugger, and the check of what it wrote
            scripts=done_scripts + scripts + round(repairs),
            cost_usd=self._money(left, repairs, spent_usd),
            seconds=self._time(left, repairs / max(scripts, 1), elapsed),
            basis=basis if self._done else "by settings and prices, before the first call",
        )

    def _fit_steps(self) -> None:
        """Count on as many outer steps as fit into the time of Phase 2, where more than T of them may come."""
        config, shares = self._config, self._config.phase_time_budget or PhaseTimeBudget()
        call, script = _mean(self._latency) or config.traits.call_seconds, _mean(self._runtime) or SCRIPT_SECONDS
        takes = plan_seconds(config, call, script, left={"phase2": 1.0})
        steps = max(round(config.outer_loop_steps * shares.phase2 * config.time_limit_seconds / max(takes, 1.0)), 1)
        if steps != config.outer_loop_steps:
            self._plan_for(outer_loop_steps=steps)

    def _plan_for(self, **sizes: int) -> None:
        """Phases 2 and 3 of other sizes."""
        self._config = self._config.model_copy(update=sizes)
        known = {step: n for step, n in self._planned.items() if step[0] not in ("phase2", "phase3")}
        later = {step: n for step, n in planned_steps(self._config).items() if step[0] in ("phase2", "phase3")}
        self._planned = Counter(known | later)

    def news(self, *, spent_usd: float, elapsed: float) -> events.Forecast | None:
        """The forecast, when it differs enough from the last one that this gave back."""
        new, old = self.forecast(spent_usd=spent_usd, elapsed=elapsed), self._last
        names = ("calls", "scripts", "cost_usd", "seconds")
        is_new = old is None or any(_differs(getattr(new, name), getattr(old, name)) for name in names)
        if not is_new or "finalization" in self._over:  # in the second case nothing is left to be told of
            return None
        self._last = new
        return new

    def _money(self, left: Counter[Step], repairs: float, spent: float) -> float | None:
        expected = [(name, float(count)) for (_, name), count in left.items() if name != "script"]
        calls = [*expected, ("debugger", repairs), ("leakage", repairs)]
        costs = [count * cost for name, count in calls if (cost := self._call_cost(name)) is not None]
        return spent + sum(costs) if len(costs) == len(calls) else None

    def _call_cost(self, agent: str) -> float | None:
        """What one call costs: as measured, else by price and size, else as other calls did."""
        measured = _mean(self._cost[agent])
        guess = self._guess(AgentType(agent)) if measured is None else measured
        return _mean([usd for costs in self._cost.values() for usd in costs]) if guess is None else guess

    def _guessed_cost(self, agent: AgentType) -> float | None:
        """By the price of its model and the size of its template, and of the scripts that it reads and writes."""
        config, declared, role = self._config, AGENTS[agent], self._config.role(agent)
        model = role.model or config.model
        price = self._own_prices.get(model) or price_of(model)
        if price is None:
            return None
        tools = agent_config(agent, tool_profile=config.tool_profile).tools or ["none"]
        scripts = config.num_parallel_solutions if declared.scripts_read is None else declared.scripts_read
        texts = len(PromptRegistry().get(agent).template) + 2 * len(self._task.description)
        sent = max(_REQUEST_OVERHEAD.get(tool, 0) for tool in tools) + texts + scripts * SCRIPT_CHARACTERS
        written = declared.scripts_written * SCRIPT_CHARACTERS * _EFFORT.get(role.effort or "", 1.0)
        return (sent * price.input + written * price.output) / CHARACTERS_PER_TOKEN / 1e6

    def _time(self, left: Counter[Step], repair_rate: float, elapsed: float) -> float | None:
        """Time so far plus the way still to go; None until a script has shown how long one takes."""
        runtime, latency = _mean(self._runtime), _mean(self._latency)
        if runtime is None:
            return None if left else elapsed
        latency = latency or 0.0
        shares = {phase: _steps_of(left, phase) / max(_steps_of(self._planned, phase), 1) for phase in ORDER}
        script = runtime * (1 + repair_rate) + 2 * repair_rate * latency
        return elapsed + plan_seconds(self._config, latency, script, left=shares)


def _steps_of(steps: Counter[Step], phase: str) -> int:
    return sum(count for (one, _), count in steps.items() if one == phase)


def _calls_and_scripts(steps: Counter[Step]) -> tuple[int, int]:
    scripts = sum(n for (_, name), n in steps.items() if name == "script")
    return sum(steps.values()) - scripts, scripts


def _differs(new: float | None, old: float | None) -> bool:
    if new is None or old is None:
        return new is not old
    return abs(new - old) > CHANGE_WORTH_TELLING * max(abs(old), 1e-9)
