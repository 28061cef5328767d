"""Whatever fails, runs out or is cut off, a run ends with the best it has: a table of runs and how each must end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mle_star import ExecutionRawResult, FinalResult, PipelineConfig, PipelineState
from mle_star.config import effective_config
from mle_star.run.context import ScriptRequest
from mle_star.run.events import BudgetWarning, PhaseFinished
from tests.pipeline import conftest
from tests.pipeline.clock import in_its_own_time
from tests.pipeline.conftest import ALL_PHASES, QuickRun, ending_of, submitted
from tests.pipeline.mind import Hook, LevelExecutor, Mind, MindAgents, Rule, failing, fenced, hang
from tests.pipeline.weak import WeakAgents, WeakMind, as_python_would

settings, timed = (partial(make, diversity=()) for make in (conftest.settings, conftest.timed))
SAME = "all paths ended with the same script: an ensemble of it has little value"
FALLBACK = "no submission by a script of its own: ", "the submission is what the scored script answered in the search"
PRINTED = "self_reported"
UNCHECKED = ("the submitted script was not checked for data leakage: the money was spent",)
BUG, SPENT = "failed RuntimeError: a bug", "skipped the money is spent"
NO_GAIN = "skipped no path got beyond the initial solution in its time"
CUT, CUT_ALIKE = ("cancelled", 0.515), (("cancelled", 0.525), ("cancelled", 0.525))
CUT_LATER, DONE_CUT = (("cancelled", 0.525), ("cancelled", 0.527)), (0.525, ("cancelled", 0.527))


@dataclass
class Row:
    """A run and its end; whatever is not said is as in a run without trouble."""

    config: PipelineConfig = field(default_factory=settings)
    before: Hook | None = None
    paths: tuple[float | tuple[str, float], ...] = (0.525, 0.527)
    """Their best scores, with how they ended unless they were completed."""
    overrides: dict[str, Rule] = field(default_factory=dict)
    after: Callable[[ScriptRequest, ExecutionRawResult], ExecutionRawResult] | None = None
    delay: float = 0.0
    paths_alike: bool = False
    phase1: str = "completed"
    """The outcome and its reason, as those below; the reason of Phase 2 is how its paths ended."""
    phase2: str = "completed"
    phase3: str = "completed"
    finalization: str = "completed"
    initial: float = 0.515
    candidates: tuple[float | None, ...] = (0.5, 0.51)
    tries: list[list[int]] | None = None
    """How many attempts every step of every path has made."""
    rounds: int = 2
    stopped: str | None = None
    used: bool = False
    """Was its time there to be used? Its paths were cut off then, somewhat earlier where calls are slow."""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    """How they begin, after those of the end of the run, of paths and of phases."""
    log: str = ""

    def __post_init__(self) -> None:
        self.ended = [("completed", end) if isinstance(end, float) else end for end in self.paths]
        self.best = max((score for _, score in self.ended), default=None)
        self.broken = [number for number, (outcome, _) in enumerate(self.ended) if outcome == "failed"]
        self.phases = {name: str(getattr(self, name)) for name in ALL_PHASES}
        ensembled = self.phase3.startswith(("completed", "cancelled"))
        self.ensemble = round(self.best + 0.01 * self.rounds, 4) if self.best and ensembled else None
        self.final = self.ensemble or self.best or self.initial


def coded(*levels: float) -> dict[str, Rule]:
    left = iter(levels)
    return {"coder": lambda _: fenced(f"level = {next(left):.4f}")}


def no_file(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
    Path(request.working_dir, "final", "submission.csv").unlink(missing_ok=True)
    return done


def a_second(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
    return done.model_copy(update={"duration_seconds": 1.0})


async def cling(label: str, agent: str) -> None:
    """A path that does not let go when its time is over."""
    try:
        await asyncio.sleep(600 if agent == "planner" else 0)
    except asyncio.CancelledError:
        await asyncio.sleep(19)
        raise


def alone(config: PipelineConfig, score: float, **end: Any) -> Row:
    return Row(config, paths=(score,), phase3="skipped there is one path only", **end)


def better_first(agent: str, **end: Any) -> Row:
    """A bug where an agent is asked; the first path is the better one."""
    config, coder = settings(K=1, max_concurrent_paths=1), coded(0.7, 0.6)
    return Row(config, failing(agent), (0.7, 0.6), coder, paths_alike=True, **end)


def short(agent: str, without: str, seconds: float, *paths: float, after: int = 0, **end: Any) -> Row:
    """Out of the time of Phase 1, which alone does not stop the run."""
    config, missing = timed(600, 0.004, 0.596, 0.2, 0.2), (f"Phase 1 ended without {without}",)
    return Row(config, hang(agent, after=after), paths, warnings=missing, seconds=seconds, **end)


def late(took: float, config: PipelineConfig, hook: Hook | None, *paths: float | tuple[str, float], **end: Any) -> Row:
    return Row(config, hook, paths or (0.525, 0.527), seconds=took, stopped="time", **end)


def poor(usd: float, scoring: str = "auto", **end: Any) -> Row:
    return Row(settings(max_budget_usd=usd, scoring=scoring), stopped="money", warnings=UNCHECKED, **end)


def late_in_phase_3(agent: str) -> Row:
    """The rounds that were finished count."""
    reason = "cancelled time spent: 24 of 30 s; phase3 had until 24 s"
    return late(24.0, timed(30, 0.35, 0.35, 0.1, 0.2, R=3), hang(agent, after=1), phase3=reason, rounds=1)


MANY = timed(12, M=1, T=4, K=4, R=5, use_cache=False, scoring=PRINTED)
PROMISING: dict[str, Any] = {"diversity": ("starts",), "leakage_checks": "promising"}
ALL: dict[str, Any] = {"phase2": "failed", "paths": (("failed", 0.515), ("failed", 0.515)), "log": SAME}
SLOW: dict[str, Any] = {"delay": 1.0, "phase2": "cancelled", "initial": 0.5, "candidates": (0.5,), "rounds": 1}
SLOW["phase3"] = "cancelled time spent: 10.8 of 12 s; phase3 had until 10.8 s"
IN_TURN: dict[str, Any] = {"more_steps": True, "max_concurrent_paths": 1, "max_concurrent_scripts": 2}
TURNS: dict[str, Any] = {"seconds": 15.0, "used": True, "tries": [[1] * 5, [1] * 5]}
ONE_PATH: dict[str, Any] = {"after": a_second, "seconds": 16.0, "used": True}
ONE_PATH["log"] = "1 path instead of 2: more would wait for each other's scripts"
NO_TIME = {"phase2": "cancelled", "phase3": "skipped the time is nearly used up"}
ROWS: dict[str, Callable[[], Row]] = {
    "a path at its first attempt": lambda: Row(before=failing("coder", "path-0"), paths=(("failed", 0.515), 0.527)),
    "a path at its second one": lambda: Row(before=failing("planner", "path-0"), paths=(("failed", 0.525), 0.527)),
    "the other path": lambda: Row(before=failing("planner", "path-1"), paths=(0.525, ("failed", 0.527))),
    "a path when its start is checked, which is a candidate": lambda: Row(
        settings(**PROMISING), failing("leakage", "path-1"), (0.525, ("failed", 0.515))
    ),
    "all paths": lambda: Row(before=failing("ablation"), **ALL),
    "all paths, which would have begun differently": lambda: Row(settings(**PROMISING), failing("ablation"), **ALL),
    "all coders": lambda: Row(overrides={"coder": "No idea."}, paths=(0.515, 0.515), log=SAME),
    "Phase 1": lambda: better_first("merger", phase1=BUG, initial=0.51),
    "Phase 3": lambda: better_first("ens_planner", phase3=BUG),
    "finalization": lambda: better_first("test", finalization=BUG, warnings=FALLBACK),
    "the file of every script": lambda: alone(
        settings(L=1, scoring=PRINTED), 0.525, after=no_file, finalization="failed no submission", warnings=FALLBACK[:1]
    ),
    "nothing with one path": lambda: alone(settings(T=3, K=1, L=1, max_budget_usd=50), 0.545, tries=[[1, 1, 1]]),
    "time for a second candidate": lambda: short(
        "init", "candidate 1", 2.4, 0.51, 0.512, after=1, initial=0.5, candidates=(0.5, None)
    ),
    "time for the merger": lambda: short("merger", "merge 1", 2.4, 0.52, 0.522, initial=0.51),
    "time for the data": lambda: short("data", "data use, leakage", 4.8, 0.525, 0.527),
    "time for a first try": lambda: late(5.85, timed(8), hang("coder"), CUT, CUT, phase2="cancelled", phase3=NO_GAIN),
    "all time, which nearly all belongs to Phase 2": lambda: late(
        5.0, timed(5, 0.3, 0.69998, 0.00001, 0.00001, scoring=PRINTED), hang("coder", after=1), *CUT_LATER, **NO_TIME
    ),
    "time for one path": lambda: late(
        8.478,
        timed(60, 0.02, 0.13, 0.1, 0.75, K=3),
        hang("coder", label="path-1", after=1),
        *DONE_CUT,
        tries=[[3], [1]],
    ),
    "time for paths that were cut off alike": lambda: late(
        10.5, timed(60, 0.3, 0.1, 0.3, 0.3), hang("planner"), *CUT_ALIKE, phase2="cancelled", paths_alike=True
    ),
    "time for a hundred scripts of a second": lambda: late(
        11.8, MANY, None, ("cancelled", 0.52), ("cancelled", 0.524), **SLOW
    ),
    "time for the first of two paths in turn": lambda: late(
        12.8, timed(40, 0.3, 0.4, 0.1, 0.2, max_concurrent_paths=1), hang("coder", label="path-0"), CUT, 0.527
    ),
    "nothing when the time is there to be used": lambda: Row(
        timed(60, more_steps=True, K=1), hang("coder", after=1), after=a_second, used=True, seconds=51.45
    ),
    "nothing when paths in turn use their time": lambda: Row(
        timed(17, 0.2, 0.55, 0.15, 0.1, K=1, **IN_TURN), None, (0.565, 0.575), delay=1.0, after=a_second, **TURNS
    ),
    "nothing when one path is enough for the only lane": lambda: alone(
        timed(17, 0.2, 0.55, 0.15, 0.1, K=1, more_steps=True, max_concurrent_scripts=1), 0.635, delay=1.0, **ONE_PATH
    ),
    "time that paths take from Phase 3": lambda: late(92.125, timed(100), cling, *CUT_LATER, **NO_TIME),
    "time for a second plan of an ensemble": lambda: late_in_phase_3("ens_planner"),
    "time for a second ensemble": lambda: late_in_phase_3("ensembler"),
    "time for the last script": lambda: late(
        60.0, timed(60), hang("test"), finalization="cancelled time spent: 60 of 60 s", warnings=FALLBACK
    ),
    "money for the question about subsampling": lambda: poor(0.319, PRINTED),
    "money for the check of the last script": lambda: poor(0.329, PRINTED),
    "money for Phase 2": lambda: poor(
        0.09, paths=(), phase1="cancelled money spent: 0.09 of 0.09", phase2=SPENT, phase3=SPENT
    ),
    "money for a merger": lambda: poor(
        0.06, paths=(), phase1="cancelled money spent: 0.06 of 0.06", phase2=SPENT, phase3=SPENT, initial=0.51
    ),
}


@pytest.mark.req("REQ-OR-014", "REQ-OR-015", "REQ-OR-018", "REQ-OR-020", "REQ-OR-022", "REQ-OR-023", "REQ-OR-024")
@pytest.mark.req("REQ-OR-025", "REQ-OR-026", "REQ-OR-028", "REQ-OR-029", "REQ-OR-030", "REQ-OR-040", "REQ-OR-041")
@pytest.mark.req("REQ-OR-042", "REQ-OR-043", "REQ-OR-045")
@pytest.mark.parametrize("missing", ROWS)
@in_its_own_time
async def test_the_best_there_is_goes_on(quick: QuickRun, caplog: pytest.LogCaptureFixture, missing: str) -> None:
    row, state = ROWS[missing](), PipelineState()
    agents = MindAgents(Mind(overrides=row.overrides), before=row.before, paths_alike=row.paths_alike)
    result = await quick(row.config, agents=agents, executor=LevelExecutor(row.delay, after=row.after), state=state)
    assert asyncio.get_running_loop().time() == pytest.approx(row.seconds, abs=3 if row.used else 0.1)
    late = row.seconds >= 0.8 * row.config.time_limit_seconds and not row.used
    warned = [event.limit for event in quick.events(BudgetWarning)]
    assert warned == ["money"] * (row.stopped == "money") + ["time"] * late
    assert (result.final_solution.score, result.stopped_by, result.used_time) == (row.final, row.stopped, row.used)
    ideas_ended = missing not in ("time for a second candidate", "time for the merger", "time for the data")
    ending = "nothing left to do" if ideas_ended else "ended: too little time for more"
    words = "used its time" if row.used else ending * ("finalization" in result.phases_completed)
    assert row.stopped or quick.last.message.partition(" after")[0] == words
    assert (result.phase1.initial_score, result.phase1.candidate_scores) == (row.initial, [*row.candidates])
    assert result.config == effective_config(row.config)
    assert state.phase2_path_statuses == [outcome for outcome, _ in row.ended]
    check_paths(row, result)
    check_phases(row, result, quick)
    if row.finalization == "failed no submission":
        assert result.submission_path == ""
    else:
        assert Path(result.submission_path) == quick.dir / "final" / "submission.csv"
        assert submitted(result).endswith(f",{row.final}\n")
    bugs = [name for name, how in row.phases.items() if how == BUG]
    assert [name for name in ALL_PHASES if f"{name} failed: the best so far is used" in caplog.messages] == bugs
    assert row.log in caplog.text and ("RuntimeError: a bug" in caplog.text) == bool(bugs or row.broken)
    assert agents.count("ens_planner") == 0 or not row.phase3.startswith("skipped")
    if (money := row.config.max_budget_usd) is not None:
        assert agents.caps[0] == money and all(cap is not None and 0 < cap <= money for cap in agents.caps)
        assert agents.count("test") == (1 if row.phase3 == SPENT or row.config.scoring == "auto" else 2)


def check_paths(row: Row, result: FinalResult) -> None:
    """Every path has its own script with its own score, and the ensemble got them."""
    initial, last = result.phase1.initial_solution, result.phase3
    for (outcome, score), path in zip(row.ended, result.phase2_results, strict=True):
        cut = outcome != "completed" or (row.used and row.before is not None)
        assert (path.best_score, path.best_solution.score, path.partial) == (score, score, cut)
        assert f"level = {score:.4f}" in path.best_solution.content
        assert (path.best_solution.content == initial.content) == (score == row.initial)
        assert path.step_history[-1]["failed"] == (outcome == "failed" or (outcome, score) == CUT)
    assert len({id(initial), *(id(path.best_solution) for path in result.phase2_results)}) == 1 + len(row.paths)
    if row.tries is not None:
        steps = [path.step_history for path in result.phase2_results]
        assert [[len(step["inner_loop_attempts"]) for step in history] for history in steps] == row.tries
    assert (None if last is None else last.best_ensemble_score) == row.ensemble
    if last is not None:
        assert len(last.attempts) == row.rounds and last.best_ensemble == last.attempts[-1].solution
        inputs = [(script.content, script.score) for script in last.input_solutions]
        assert inputs == [(path.best_solution.content, path.best_score) for path in result.phase2_results]


def check_phases(row: Row, result: FinalResult, quick: QuickRun) -> None:
    """The result, its warnings and the journal say how every phase ended."""
    assert result.phases_completed == [name for name, how in row.phases.items() if how == "completed"]
    assert result.phases_skipped == [name for name, how in row.phases.items() if how.startswith("skipped")]
    fallback = row.warnings == FALLBACK
    assert result.lineage["finalization"].get("fallback", False) == fallback
    assert not fallback or (result.phase3 is not None and result.final_solution == result.phase3.best_ensemble)
    scores = row.initial, row.best, row.ensemble, None if fallback else row.final
    details = {**row.phases, "phase2": f"{row.phase2} {', '.join(how for how, _ in row.ended)}".strip()}
    if not row.paths:
        assert result.cost_breakdown["phase2_per_path_cost_usd"] == [0.0, 0.0]
    ends = [(name, *how.partition(" ")[::2], score) for (name, how), score in zip(details.items(), scores, strict=True)]
    assert quick.ends() == ends
    warnings = list(result.warnings)
    if row.stopped:
        cut = [event.detail for event in quick.events(PhaseFinished) if event.outcome == "cancelled"]
        assert not cut or f"({cut[0]})" in warnings[0], "what was cut off first is the reason"
        assert ending_of(result, quick.dir) == f"stopped by the {row.stopped} limit"
        assert {"time": "--time-limit ", "money": "--max-budget "}[row.stopped] in warnings.pop(0)
    expected = [
        *(f"path-{n} failed: RuntimeError: a bug; the run continues with {row.ended[n][1]}" for n in row.broken),
        *(f"{name} {outcome}: {detail}" for name, outcome, detail, _ in ends if outcome in ("failed", "cancelled")),
        *row.warnings,
    ]
    assert [warning[: len(begin)] for warning, begin in zip(warnings, expected, strict=True)] == expected


async def test_a_weak_model_gets_its_submission_whatever_it_writes(quick: QuickRun) -> None:
    """One reply in three can be used; `test_crash.py` does the same by the real CLI."""
    for seed in range(20):
        agents, executor = WeakAgents(weak=WeakMind(seed)), LevelExecutor(before=as_python_would)
        result = await quick(settings(M=2, max_debug_attempts=3), name=f"run-{seed}", agents=agents, executor=executor)
        assert submitted(result).count("\n") > 1, seed
