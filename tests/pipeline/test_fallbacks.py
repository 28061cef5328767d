"""Whatever fails, runs out or is cut off, a run ends with the best it has: a table of runs and how each must end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mle_star.models import ExecutionRawResult, PipelineConfig
from mle_star.orchestrator import PipelineState
from mle_star.run.context import ScriptRequest
from tests.pipeline.clock import in_its_own_time
from tests.pipeline.conftest import ALL_PHASES, QuickRun, settings, submitted
from tests.pipeline.mind import Hook, LevelExecutor, Mind, MindAgents, Rule, failing, fenced

SAME = "all paths ended with the same script: an ensemble of it has little value"
FALLBACK = (
    "no submission by a script of its own: ",
    "the submission is the best one kept on the way, by a script with ",
)


@dataclass
class Row:
    """A run and its end; whatever is not said is as in a run without trouble."""

    config: PipelineConfig = field(default_factory=settings)
    before: Hook | None = None
    overrides: dict[str, Rule] = field(default_factory=dict)
    after: Callable[[ScriptRequest, ExecutionRawResult], ExecutionRawResult] | None = None
    paths_alike: bool = False
    # the end
    phases: dict[str, str] = field(default_factory=dict)
    """Those that were not completed, with the outcome and its reason; that of Phase 2 is how its paths ended."""
    initial: float = 0.515
    paths: tuple[tuple[str, float], ...] = (("completed", 0.525), ("completed", 0.527))
    tries: list[list[int]] | None = None
    """How many attempts every step of every path has made."""
    ensemble: float | None = 0.547
    final: float = 0.547
    warnings: tuple[str, ...] = ()
    """What else they begin with, after the end of the run, of paths and of phases."""
    log: str = ""
    submits: bool = True


def coded(*levels: float) -> dict[str, Rule]:
    """What the coder reaches, call by call."""
    left = iter(levels)
    return {"coder": lambda _: fenced(f"level = {next(left):.4f}")}


def no_file(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
    """The script leaves no submission."""
    Path(request.working_dir, "final", "submission.csv").unlink(missing_ok=True)
    return done


def paths(*ends: float | tuple[str, float]) -> dict[str, Any]:
    """How the paths ended: those with only a score were completed. One path alone needs no ensemble."""
    ended = tuple(("completed", end) if isinstance(end, float) else end for end in ends)
    alone = {"phases": {"phase3": "skipped there is one path only"}, "ensemble": None}
    return {"paths": ended, **(alone if len(ends) == 1 else {})}


def better_first(agent: str, **end: Any) -> Row:
    """A bug where an agent is asked; the first path is the better one."""
    config = settings(K=1, max_concurrent_paths=1)
    return Row(config, failing(agent), coded(0.7, 0.6), paths_alike=True, **paths(0.7, 0.6), **end)


BUG = "failed RuntimeError: a bug"
PROMISING: dict[str, Any] = {"diversity": ("starts",), "leakage_checks": "promising"}
EVEN: dict[str, Any] = {"ensemble": 0.535, "final": 0.535, "log": SAME}
ALL: dict[str, Any] = {"phases": {"phase2": "failed"}, **paths(("failed", 0.515), ("failed", 0.515)), **EVEN}
ROWS: dict[str, Callable[[], Row]] = {
    "a path at its first attempt": lambda: Row(before=failing("coder", "path-0"), **paths(("failed", 0.515), 0.527)),
    "a path at its second one": lambda: Row(before=failing("planner", "path-0"), **paths(("failed", 0.525), 0.527)),
    "the other path": lambda: Row(before=failing("planner", "path-1"), **paths(0.525, ("failed", 0.527))),
    "a path when its start is checked, which is a candidate": lambda: Row(
        settings(**PROMISING),
        failing("leakage", "path-1"),
        **paths(0.525, ("failed", 0.515)),
        ensemble=0.545,
        final=0.545,
    ),
    "all paths": lambda: Row(before=failing("ablation"), **ALL),
    "all paths, which would have begun differently": lambda: Row(settings(**PROMISING), failing("ablation"), **ALL),
    "all coders": lambda: Row(overrides={"coder": "No idea."}, **paths(0.515, 0.515), **EVEN),
    "Phase 1": lambda: better_first("merger", phases={"phase1": BUG}, initial=0.51, ensemble=0.72, final=0.72),
    "Phase 3": lambda: better_first("ens_planner", phases={"phase3": BUG}, ensemble=None, final=0.7),
    "finalization": lambda: better_first(
        "test", phases={"finalization": BUG}, ensemble=0.72, final=0.72, warnings=FALLBACK
    ),
    "the file of every script": lambda: Row(
        settings(L=1), after=no_file, **paths(0.525), final=0.525, warnings=FALLBACK[:1], submits=False
    ),
    "nothing with one path": lambda: Row(
        settings(T=3, K=1, L=1, max_budget_usd=50), **paths(0.545), tries=[[1, 1, 1]], final=0.545
    ),
}


@pytest.mark.req("REQ-OR-014", "REQ-OR-015", "REQ-OR-018", "REQ-OR-020", "REQ-OR-022", "REQ-OR-028", "REQ-OR-040")
@pytest.mark.req("REQ-OR-041", "REQ-OR-042", "REQ-OR-043", "REQ-OR-045")
@pytest.mark.parametrize("what_fails", ROWS)
@in_its_own_time
async def test_the_best_there_is_goes_on(quick: QuickRun, caplog: pytest.LogCaptureFixture, what_fails: str) -> None:
    row, state = ROWS[what_fails](), PipelineState()
    agents = MindAgents(Mind(overrides=row.overrides), before=row.before, paths_alike=row.paths_alike)
    result = await quick(row.config, agents=agents, executor=LevelExecutor(after=row.after), state=state)
    initial, last = result.phase1.initial_solution, result.phase3
    outcomes = ", ".join(outcome for outcome, _ in row.paths)
    assert state.phase2_path_statuses == outcomes.split(", ") and len(result.phase2_results) == len(row.paths)
    for (outcome, score), path in zip(row.paths, result.phase2_results, strict=True):
        assert (path.best_score, path.best_solution.score, path.partial) == (score, score, outcome != "completed")
        assert f"level = {score:.4f}" in path.best_solution.content
        assert (path.best_solution.content == initial.content) == (score == row.initial)
        assert path.step_history[-1]["failed"] == (outcome == "failed")
    assert len({id(initial), *(id(path.best_solution) for path in result.phase2_results)}) == 1 + len(row.paths)
    if row.tries is not None:
        steps = [path.step_history for path in result.phase2_results]
        assert [[len(step["inner_loop_attempts"]) for step in history] for history in steps] == row.tries
    assert (None if last is None else last.best_ensemble_score) == row.ensemble
    if last is not None:
        inputs = [(script.content, script.score) for script in last.input_solutions]
        assert inputs == [(path.best_solution.content, path.best_score) for path in result.phase2_results]

    phases = {name: row.phases.get(name, "completed") for name in ALL_PHASES}
    if not row.submits:
        phases["finalization"] = "failed no submission"
    assert result.phases_completed == [name for name, how in phases.items() if how == "completed"]
    assert result.phases_skipped == [name for name, how in phases.items() if how.startswith("skipped")]
    fallback = phases["finalization"] in (BUG,)
    scores = [row.initial, max(score for _, score in row.paths), row.ensemble, None if fallback else row.final]
    phases["phase2"] += f" {outcomes}"
    said = [(name, *how.partition(" ")[::2], score) for (name, how), score in zip(phases.items(), scores, strict=True)]
    assert quick.ends() == said
    assert agents.count("ens_planner") == 0 or not phases["phase3"].startswith("skipped")

    assert (result.phase1.initial_score, result.phase1.candidate_scores) == (row.initial, [0.5, 0.51])
    assert result.final_solution.score == row.final and result.stopped_by is None
    assert result.lineage["finalization"].get("fallback", False) == fallback
    assert not fallback or (last is not None and result.final_solution == last.best_ensemble)
    assert result.submission_path == (str(quick.dir / "final" / "submission.csv") if row.submits else "")
    assert not row.submits or submitted(result).endswith(f",{row.final}\n")
    broken = [(number, score) for number, (outcome, score) in enumerate(row.paths) if outcome == "failed"]
    warnings = [
        *(f"path-{number} failed: RuntimeError: a bug; it goes on with {score}" for number, score in broken),
        *(f"{name} failed: {detail}" for name, outcome, detail, _ in said if outcome == "failed"),
        *row.warnings,
    ]
    assert [found[: len(begin)] for found, begin in zip(result.warnings, warnings, strict=True)] == warnings
    assert row.log in caplog.text and (not broken or "RuntimeError: a bug" in caplog.text)
    for name, how in phases.items():
        assert f"{name} failed: the best there is goes on" in caplog.messages or how != BUG
    if (money := row.config.max_budget_usd) is not None:
        assert agents.caps[0] == money and all(cap is not None and 0 < cap <= money for cap in agents.caps)
