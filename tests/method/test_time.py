"""What the clock allows: no call and no script is begun whose result could not be scored any more."""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mle_star.phase1 import IN_TIME, run_phase1
from mle_star.phase2_inner import run_phase2_inner_loop
from mle_star.phase2_outer import run_phase2_outer_loop
from mle_star.phase3 import run_phase3
from mle_star.run import events as ev
from mle_star.run import timing
from mle_star.run.budget import PhaseTimeExceeded
from mle_star.run.context import RunContext, ScriptRequest, path_context, scope
from mle_star.run.reached import partial_phase1
from mle_star.run.timing import in_phase_time, plan_time, seconds_for, share_in_run, study_fits
from mle_star.safety import check_and_evaluate
from mle_star.search import probes
from tests.conftest import ran, script_finished
from tests.pipeline.clock import Clock, in_its_own_time

from .conftest import ScriptedExecutor, ScriptedRun, account_as_kept, scripted_run, settings
from .replies import INPUTS, base_solution, block, broken_script, by_step, fenced, part, plans, script, solution
from .test_phase1 import TIMES, candidates

CALL, SHARE = 10.0, 100.0
CALLED = ev.AgentFinished(agent="init", step="phase1/init", seconds=CALL, digest="d", prompt="", text="")
THREE = [script(0.5, note="m0"), script(0.6, note="m1"), script(0.4, note="m2")]


def slow(clock: Clock, seconds: float) -> ScriptedExecutor:
    """Every script takes so many seconds of the clock."""

    async def move(request: ScriptRequest) -> None:
        clock.now += seconds

    return ScriptedExecutor(seconds=seconds, before=move)


@contextmanager
def timed(root: Path, *, left: float, seconds: float = 100.0, **changes: Any) -> Iterator[ScriptedRun]:
    """A run with so much of its time left; its solution was measured at `seconds`, as long as every script takes."""
    clock, config = Clock(), settings(time_limit_seconds=10_000, **changes)
    with scripted_run(root, config=config, executor=slow(clock, seconds), clock=clock) as run:
        ran(run.context, 0.5, seconds)
        run.agents.change = lambda call, reply: reply.model_copy(update={"seconds": CALL})
        run.context.budget.set_phase_deadline(left)
        yield run


async def test_a_loop_ends_where_the_script_of_its_next_iteration_could_not_be_scored(quick_path: Path) -> None:
    """A script takes 100 s: with 250 s left there is time for two attempts and no third."""
    for left, until in ((250, math.inf), (5000, 250)):  # the end of the phase, or that of the path's turn
        with timed(quick_path / f"inner-{left}", left=left) as run, scope(until=until):
            run.agents.reply("coder", *[fenced(f"level = 0.7{k}") for k in range(4)])
            assert seconds_for(run.context, calls=2, scripts=3) == 300, "nothing is known of calls yet"
            await run_phase2_inner_loop(base_solution(), block(), "plan 0", 0.5, run.task, settings(K=4))
            assert len(run.executor.scripts) == 2 and run.agents.names.count("coder") == 2, "no call for a third"
            begun = sum(event.value for event in run.events(ev.Decided) if event.name == "go-on")
            assert begun == 2 and run.context.shared.wound_down
            assert seconds_for(run.context, calls=2, scripts=3) == 320
    for ideas, steps in ((9, 7), (2, 3), (0, 2)):  # while there is time, and what is written is new
        changes: dict[str, Any] = {"leakage_checks": "promising", "T": 1, "K": 1, "more_steps": True}
        with timed(quick_path / f"more-{ideas}", left=850, **changes) as run:
            run.agents.reply("extractor", *[plans((part(t), f"plan {t}")) for t in range(9)])
            run.agents.reply("coder", *[fenced(f"part_{t} = {int(t < ideas)}") for t in range(9)])
            result = await run_phase2_outer_loop(base_solution(blocks=9), 0.5, run.task, run.config)
            assert len(result.step_history) == steps
    with timed(quick_path / "ensemble", left=330) as run, scope("phase3"):
        run.agents.reply("ensembler", *[fenced(script(0.8, note=str(r))) for r in range(4)])
        await run_phase3(INPUTS, run.task, settings(R=4))
        assert len(run.executor.scripts) == 2 and run.agents.names.count("ens_planner") == 2
    with timed(quick_path / "letter", left=90, preset="letter", K=1) as run:
        await run_phase2_inner_loop(base_solution(), block(), "plan 0", 0.5, run.task, run.config)
        assert run.agents.names[0] == "coder", "to the letter the loop tries"
        with pytest.raises(PhaseTimeExceeded), in_phase_time(run.context):
            raise PhaseTimeExceeded(limit="time", used=1, allowed=1)


@pytest.mark.parametrize(("left", "tries", "steps"), [(119, 0, 0), (121, 1, 0), (131, 1, 1), (229, 1, 1), (231, 2, 1)])
async def test_what_an_iteration_needs_is_left(quick_path: Path, left: int, tries: int, steps: int) -> None:
    """A script of 100 s and calls of 10 s: two, three with a plan, and in a step study, summary and choice."""
    with timed(quick_path / "inner", left=left, K=3) as run:
        run.context.record(CALLED)
        run.agents.reply("coder", *[fenced(f"level = 0.7{k}") for k in range(3)])
        await run_phase2_inner_loop(base_solution(), block(), "plan 0", 0.5, run.task, run.config)
        assert run.agents.names.count("coder") == tries
    with timed(quick_path / "outer", left=left, T=1) as run:
        run.context.record(CALLED)
        result = await run_phase2_outer_loop(base_solution(), 0.5, run.task, run.config)
        assert run.agents.names[:1] == ["extractor"] * steps and result.best_score == (0.7 if steps else 0.5)


@pytest.mark.parametrize(("seconds", "ahead"), [(2.0, 3), (45.0, 0)])
async def test_where_calls_take_long_the_next_plan_is_made(
    quick_path: Path, seconds: float, ahead: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The first plan came from the extractor, and nobody plans beyond the last attempt."""
    with timed(quick_path, left=5000, seconds=seconds, K=4, more_steps=True) as run:
        run.context.record(CALLED)
        run.agents.reply("coder", *[fenced(f"level = 0.7{k}") for k in range(4)])
        result = await run_phase2_inner_loop(base_solution(), block(), "plan 0", 0.5, run.task, run.config)
        prompts = [call.prompt for call in run.agents.log if call.name == "planner"]
        running = [prompt.count("## Score: not known yet: it is running now") for prompt in prompts]
        assert running == [1] * ahead + [0] * (3 - ahead) and result.best_score == 0.73
        assert [prompt.count("## Plan: ") for prompt in prompts] == [1, 2, 3]
        account_as_kept(f"{ahead}-ahead", run, caplog.records)


RUN, TOO_LATE = script(0.4), "124 s are left, and the scored solution ran for 100 s"
QUESTIONS: list[tuple[Callable[[RunContext], object], float, float, str]] = [
    (timing.fits, 100.0, 100, ""),
    (lambda run: timing.fits(run, calls=2, scripts=3), 100.0, 320, ""),
    (timing.calls_take_long, 40.0, 110, ""),
    (lambda run: not timing.stops_before(run, calls=3), 100.0, 130, "go-on"),
    (lambda run: timing.repair_fits(run, "solution"), 100.0, 110, ""),
    (lambda run: timing.repair_fits(run, "ablation"), 100.0, 200, ""),  # a study has half of what is left
    (study_fits, 100.0, 450, ""),
    (lambda run: timing.too_late_for(run, RUN) != TOO_LATE, 100.0, 125, "run-again"),
]
"""With what a run takes, where a call takes 10 s, how much must be left for a yes, and what is decided by it."""


@pytest.mark.parametrize(("question", "takes", "least", "name"), QUESTIONS)
def test_what_fits_is_known_to_the_second(
    question: Callable[[RunContext], object], takes: float, least: float, name: str, quick_path: Path
) -> None:
    for left, preset in ((least, {}), (least - 1, {}), (least - 1, {"preset": "letter"})):
        with timed(quick_path / f"{left}{preset}", left=left, seconds=takes, **preset) as run:
            ran(run.context, 0.4, 100.0, script=RUN)
            run.context.record(CALLED)
            yes = left == least or bool(preset and name != "run-again")
            assert question(run.context) == yes and timing.repair_fits(run.context, "submission")
            assert decisions(run) == [(name, name, yes, True)] * bool(name)
            assert run.context.shared.wound_down == (name == "go-on" and not yes)
    with timed(quick_path / "at once", left=0.5, seconds=0.0) as run:
        assert question(run.context), "what took no time fits"


def decisions(run: ScriptedRun) -> list[tuple[str, str, bool, bool]]:
    return [(event.step, event.name, event.value, event.reopen) for event in run.events(ev.Decided)]


def test_a_run_that_was_asked_to_finish_answers_no_more_views(quick_path: Path) -> None:
    with timed(quick_path, left=100.0) as run:
        known = [probes._fits(run.context, "fits", seconds, 100.0) for seconds in (99.0, 101.0)]
        run.context.budget.finish_requested = True
        assert [*known, probes._fits(run.context, "fits", 1.0, 100.0)] == [True, False, False]


@pytest.mark.parametrize(("left", "runs"), [(99.0, 0), (101.0, 1)])
async def test_a_script_begins_where_what_the_solution_takes_is_left(quick_path: Path, left: float, runs: int) -> None:
    with timed(quick_path, left=left) as run:
        if runs:
            await check_and_evaluate(solution(script(0.7)))
        else:
            with pytest.raises(PhaseTimeExceeded, match=r"time spent: 0 of 10000 s; .* had until 99 s"):
                await check_and_evaluate(solution(script(0.7)))
        assert len(run.executor.scripts) == runs


@pytest.mark.parametrize(("left", "repairs"), [(100.0, 0), (300.0, 1)])
async def test_nobody_is_asked_for_a_repair_that_could_not_run(quick_path: Path, left: float, repairs: int) -> None:
    with timed(quick_path, left=left) as run:
        tried, _ = await check_and_evaluate(solution(broken_script()))
        assert run.agents.names.count("debugger") == repairs == (tried.score is not None)
        assert decisions(run) == [("repair", "repair", bool(repairs), True)], "it is decided once"
    with timed(quick_path, left=left) as again:
        await check_and_evaluate(solution(broken_script()))
        assert again.agents.log == [], "what was decided is decided, however much time is left"


@pytest.mark.parametrize("seconds", [960.0, 961.0])
def test_studies_have_a_fifth_of_the_time_of_their_path(quick_path: Path, seconds: float) -> None:
    """A study takes about three runs and two calls, 320 s here. Of the 6,500 s of Phase 2 they may have 1,300."""
    with timed(quick_path, left=5000) as run, scope("phase2"), path_context(1, run.work_dir), scope("t-0") as place:
        run.context.record(CALLED)
        ran(place, 0.1, 1200.0)  # a solution: no study
        assert study_fits(place)
        study = {"step": "phase2/path-1/t-0/ablation-script", "purpose": "ablation", "digest": "d", "script": "s"}
        run.context.record(script_finished(seconds, **study))
        assert study_fits(place) == (seconds == 960), "its two calls count as well"
        with path_context(11, run.work_dir), scope("t-0") as other:
            assert study_fits(other)
            for lanes, fit in ((8, True), (2, True), (1, False)):  # of two, each path has 325 s
                run.context.shared.scripts.lanes = lanes
                assert study_fits(replace(other, config=settings(L=8, time_limit_seconds=10_000))) is fit
            run.context.budget.time_limit = 4000  # of 520 s a single lane leaves them half, where every minute is used
            assert [study_fits(replace(other, config=settings(L=1, more_steps=m))) for m in (0, 1)] == [True, False]


def test_what_was_cut_has_as_long_again_once_it_is_repaired_if_there_is_time(quick_path: Path) -> None:
    """Of 3,000 s a script has half at most; of what is left later, less."""
    with timed(quick_path, left=3000, seconds=200.0) as run, scope("phase2"), scope("k-0") as place:
        assert timing.limit_in_run(place) == 1500
        cut: dict[str, Any] = {"step": "phase2/k-0/script", "digest": "d", "script": "s", "timed_out": True}
        cut |= {"is_error": True, "surroundings": run.context.shared.scripts.surroundings}
        run.context.record(script_finished(1500.0, **cut))
        for left, its, usual in ((2000, 1500, 1000), (1000, 1000, 500)):
            run.context.budget.set_phase_deadline(left)
            with scope("k-1") as other:
                assert (timing.limit_in_run(place), timing.limit_in_run(other)) == (its, usual)
    for left, takes, limit in ((3000, 200.0, 400), (5000, 200.0, 625), (600, 30.0, 120)):  # where every minute is used
        with timed(quick_path / f"{left}", left=left, seconds=takes, more_steps=True), scope("phase2") as place:
            assert timing.limit_in_run(place) == limit


@pytest.mark.parametrize(("script", "call", "views"), [(16, 40, 3), (16, 5, 1), (96, 40, 1), (2, 1, 6)])
def test_further_views_take_no_longer_than_a_call(quick_path: Path, script: float, call: float, views: int) -> None:
    with timed(quick_path, left=5000, more_steps=True) as run:
        run.context.record(CALLED.model_copy(update={"seconds": call}))
        ran(run.context, 0.1, script, answers=["1", "2", "3"])
        assert timing.affordable_views(run.context, script) == views
        plain = run.config.model_copy(update={"more_steps": False})
        assert (run.context.views_in_turn, replace(run.context, config=plain).views_in_turn) == (1, 3)
        assert timing.affordable_views(replace(run.context, config=plain), script) == 500 // script, "its share"


async def test_where_calls_were_slow_a_loop_ends_and_its_winner_is_checked(quick_path: Path) -> None:
    with timed(quick_path, left=300, leakage_checks="promising") as run:
        run.agents.reply("coder", fenced("level = 0.7"), fenced("level = 0.8"))
        run.agents.faults[2] = lambda: setattr(run.context.budget, "_started", run.context.budget._started - 110)
        result = await run_phase2_inner_loop(base_solution(), block(), "plan 0", 0.5, run.task, run.config)
        assert run.agents.names == ["coder", "planner", "coder", "leakage-detection"] and result.best_score == 0.7
        assert len(run.executor.scripts) == 1 and run.context.shared.wound_down
    late = PhaseTimeExceeded(limit="time", used=1, allowed=1)
    with timed(quick_path / "late", left=5000, K=4, R=4) as run:
        run.agents.faults |= {"k-1/coder": late, "r-1/ensembler": late}
        inner = await run_phase2_inner_loop(base_solution(), block(), "plan 0", 0.5, run.task, run.config)
        rounds = await run_phase3(INPUTS, run.task, run.config)
        assert (len(inner.attempts), len(rounds.attempts)) == (1, 1), "what found no time is the last, whatever is left"
        run.context.budget.set_phase_deadline(0)
        with pytest.raises(PhaseTimeExceeded), in_phase_time(run.context):
            raise late


@pytest.mark.parametrize(
    ("lanes", "takes", "call", "paths", "tries"),
    [
        *((1, 96, 5, 1, 6), (1, 96, 40, 2, 6), (1, 16, 5, 2, 6), (1, 40, 40, 3, 6), (1, 10, 40, 5, 6)),
        *((2, 480, 5, 2, 4), (3, 96, 40, 5, 6), (1, 3000, 5, 1, 3), (0, 480, 5, 5, 4), (1, 0, 0, 5, 6)),
    ],  # of the last two, nothing has run here, or took no time
)
def test_there_are_no_more_paths_than_fill_the_lanes_and_no_more_attempts_than_leave_time_for_all_blocks(
    lanes: int, takes: float, call: float, paths: int, tries: int, quick_path: Path
) -> None:
    with timed(quick_path, left=5000, seconds=takes, L=5, T=4, K=6, more_steps=True) as run:
        run.context.record(CALLED.model_copy(update={"seconds": call}))
        run.context.shared.scripts.lanes = lanes
        assert [*timing.fitting_sizes(run.context).values()] == [paths, tries]
        named = [(f"fewer-paths-{n}-of-{n + 1}", n >= paths) for n in range(4, max(paths - 2, 0), -1)]
        named += [(f"fewer-attempts-{n}-of-{n + 1}", n >= tries) for n in range(5, max(tries - 2, 2), -1)]
        assert [(name, value) for _, name, value, _ in decisions(run)] == named, "with other sizes, it is decided again"
        why = ["5: more would wait for each other's scripts"] * (paths < 5)
        why += ["6: the time would not do for more on each block"] * (tries < 6)
        assert [event.message.split(" instead of ")[1] for event in run.events(ev.Notice)] == why
        plain = replace(run.context, config=run.config.model_copy(update={"more_steps": False}))
        assert [*timing.fitting_sizes(plain).values()] == [5, 6], "what was asked for, where there is no limit to use"


def test_where_every_minute_is_used_the_last_run_is_kept_as_solutions_become_slower(quick_path: Path) -> None:
    with timed(quick_path, left=250, more_steps=True) as run:
        run.context.budget.time_limit = 250
        for takes, fit in ((100.0, True), (101.0, False)):
            ran(run.context, 0.6, takes)
            assert [timing.fits(replace(run.context, parts=(phase,))) for phase in ("phase2", "phase3")] == [fit, True]
        ran(run.context, 0.4, 200.0)
        plan_time(run.context, "phase2")
        before = run.context.budget.rerun_seconds
        plan_time(run.context, "phase3")
        assert (before, run.context.budget.rerun_seconds) == (200, 101), "what is slower than the best has lost to it"


def test_phase_1_measures_by_its_own_scripts_and_a_resumed_run_keeps_phase_3(quick_path: Path) -> None:
    few = {"M": 6, "max_concurrent_scripts": 1}
    with timed(quick_path, left=9000, seconds=400.0, **few) as run, scope("phase1") as place:
        assert share_in_run(place, 9000) == 4500, "half of its limit between phases"
        run.context.budget.open_phase("phase1")
        measured = [place.solution_seconds, share_in_run(place, 9000)]  # a fork knows of an ensemble of its origin
        ran(place, 0.4, 30.0)
        assert [*measured, place.solution_seconds] == [None, 1000 / 6, 30], "six candidates ..."
        assert share_in_run(place, 9000) == pytest.approx(1000 / 11), "... and five merges"
        plan_time(run.context, "phase2")
        run.context.budget.ensemble_limit = 0.0
        plan_time(run.context, "phase3")
        assert run.context.budget.ensemble_limit == 0.0


@pytest.mark.parametrize(
    ("changes", "takes", "has", "growth"),
    [
        ({"more_steps": False}, 828.75, 9000 * 6.5 / 8, 2),  # three calls and two runs take as long as Phase 3 has
        ({"more_steps": False}, 829.0, 9000, 2),
        ({"more_steps": False, "L": 1}, 10.0, 9000, 2),  # one path has no ensembles
        ({"preset": "letter"}, 829.0, 10_000 * 6.5 / 9, 2),
        ({"more_steps": True}, 829.0, 9000, 1),
        ({"more_steps": True}, 980.0, 10_000 - 1020, 1),  # a run of the solution, and four calls
        # the rest is for 1.5 runs of a solution of each path, six calls, and R rounds, or those that fit into Phase 3
        ({"more_steps": True}, 10.0, 10_000 - (3 * 10 + 60) - 1.2 * 5 * 50, 1),
        ({"more_steps": True}, 320.0, 9000 - 1.2 * 2 * 670, 1),
    ],
)
def test_phase_2_has_what_later_phases_cannot_use(
    changes: dict[str, Any], takes: float, has: float, growth: float, quick_path: Path
) -> None:
    with timed(quick_path, left=10_000, seconds=takes, R=5, **changes) as run:
        run.context.record(CALLED)
        ran(run.context, None, 9000.0)  # what was cut is never submitted: no time is kept for it
        plan_time(run.context, "phase2")
        assert run.context.budget.open_phase("phase2") == pytest.approx(has)
        can, is_decided = takes < 829, not {"preset", "L"} & {*changes}
        assert decisions(run) == [("ensembles", "ensembles", can, True)] * is_decided
        run.context.shared.holdout = cast(Any, object())
        plan_time(run.context, "phase2")
        least = growth * takes + 40 if run.config.more_steps else 0
        assert run.context.budget.rerun_seconds == max(1.5 * growth * takes, least)


@contextmanager
def opened(root: Path, clock: Callable[[], float]) -> Iterator[ScriptedRun]:
    """A run that has just opened Phase 1, which has 100 s; scripts run one at a time, and take no time."""
    config = settings(M=3, max_concurrent_scripts=1, time_limit_seconds=int(10 * SHARE))
    with scripted_run(root, config=config, executor=ScriptedExecutor(), clock=clock) as run:
        run.context.budget.open_phase("phase1")
        yield run


def passed(run: ScriptedRun) -> list[str]:
    return [e.step.removesuffix(f"/{IN_TIME}") for e in run.events(ev.Decided) if e.name == IN_TIME and not e.value]


async def never() -> str:
    await asyncio.sleep(3600)
    raise AssertionError("nobody cancelled this")


@pytest.mark.req("REQ-OR-025")
@pytest.mark.parametrize("first", [0.5, None])
@in_its_own_time
async def test_a_used_up_share_leaves_what_is_there_also_when_resumed(quick_path: Path, first: float | None) -> None:
    """The second candidate runs when the share ends, and is kept; the third is not begun. As long as no candidate has a
    score the phase goes on. A resumed run has time again, but what was paid for later was built on these."""
    clock = Clock()
    with opened(quick_path, clock) as run:

        async def second() -> str:
            while not run.events(ev.CandidateEvaluated):
                await asyncio.sleep(0.001)
            run.executor.inner, clock.now = slow(clock, SHARE + 1), 0.0 if first else 5 * SHARE
            return THREE[1]

        async def third() -> str:
            while len(run.executor.scripts) < 2:
                await asyncio.sleep(0.001)
            return THREE[2] if first else await never()

        candidates(run, THREE[0] if first else broken_script(note="m0"), second, third)
        run.agents.always("debugger", "no idea")
        result = await run_phase1(run.task, run.config)
        assert result.candidate_scores == [first, 0.6, None] and result.initial_score == 0.6
        assert [script.source_model for script in result.candidate_solutions] == ["m0", "m1", "m2"]
        stopped = [e.step for e in run.events(ev.Decided) if e.name == "go-on" and not e.value]
        assert (passed(run), stopped) == (["phase1/candidate-2"], ["phase1/go-on"] * bool(first))
        assert {e.index: e.error for e in run.events(ev.CandidateEvaluated)}[2] == ev.OUT_OF_TIME
        assert run.agents.calls("merger") == []
        assert run.agents.names[-2:] == ["data", "leakage-detection"], "the checks have one more share"
    with opened(quick_path, Clock()) as run:
        again = await run_phase1(run.task, run.config)
        assert run.agents.log == [] and run.executor.scripts == []
    assert again.model_dump(exclude=TIMES) == result.model_dump(exclude=TIMES)


@pytest.mark.parametrize(("who", "at"), [("merger", "merge-1"), ("data", "data-use"), ("leakage-detection", "leakage")])
@in_its_own_time
async def test_what_follows_the_candidates_is_cut_off_and_s_0_stays(quick_path: Path, who: str, at: str) -> None:
    with opened(quick_path, asyncio.get_running_loop().time) as run:
        candidates(run, *THREE)
        run.agents.always("merger", fenced(script(0.1)))
        usual = run.agents._standing[who]
        run.agents.always(who, by_step(**{at.replace("-", "_"): lambda call: never(), "otherwise": usual}))
        result = await run_phase1(run.task, run.config)
        assert result.initial_score == 0.6 and len(result.merge_attempts) == (at != "merge-1")
        assert passed(run)[0] == f"phase1/{at}"


@in_its_own_time
async def test_cancelled_from_outside_no_finished_candidate_is_lost(quick_path: Path) -> None:
    with opened(quick_path, asyncio.get_running_loop().time) as run:
        assert partial_phase1() is None
        candidates(run, *THREE[:2], never)
        phase = asyncio.create_task(run_phase1(run.task, run.config))
        await asyncio.sleep(1)
        phase.cancel()
        with pytest.raises(asyncio.CancelledError):
            await phase
        assert sorted((e.index, e.score) for e in run.events(ev.CandidateEvaluated)) == [(0, 0.5), (1, 0.6)]
        found = partial_phase1()
        assert found is not None and found.candidate_scores == [0.5, 0.6, None]
        assert found.initial_score == 0.6 and found.initial_solution.source_model == "m1"
    with opened(quick_path / "slow", asyncio.get_running_loop().time) as run:
        candidates(run, THREE[0], lambda: asyncio.sleep(30, THREE[1]), never)
        result = await run_phase1(run.task, run.config)
        assert result.candidate_scores == [0.5, 0.6, None] and round(run.context.budget.elapsed()) == SHARE
    with opened(quick_path / "limit", asyncio.get_running_loop().time) as run, pytest.raises(ZeroDivisionError):
        candidates(run, THREE[0], never, THREE[2])
        run.agents.faults["phase1/candidate-2/init"] = ZeroDivisionError()  # what stops one stops all
        await asyncio.wait_for(run_phase1(run.task, run.config), 1)
