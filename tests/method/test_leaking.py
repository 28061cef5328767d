"""A script that leaks and cannot be fixed: it never becomes the best while a clean one has a score."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mle_star import BudgetExceeded, InnerLoopResult, Phase2Result, SolutionScript
from mle_star.models.texts import digest_of
from mle_star.phase1 import run_phase1
from mle_star.phase2_inner import run_phase2_inner_loop
from mle_star.phase3 import run_phase3
from mle_star.run import events as ev
from mle_star.run.context import scope
from mle_star.run.folder import RunFolder
from mle_star.run.reached import best_reached, partial_phase1, partial_phase3, phase1_result
from mle_star.safety import check_and_fix_leakage, check_at_last, evaluate_checked
from mle_star.search.final_result import best_path, diagnostics_of
from mle_star.search.shortlist import yardsticks
from mle_star.search.stages import Paths, Stages
from mle_star.views import RunStory
from tests.conftest import best_score, check, leaks, ran

from .conftest import ScriptedRun, account_as_kept, quick, settings
from .replies import NO_LEAKAGE, ScriptedCall, block, by_step, fenced, leaky, script, solution
from .test_phase1 import stage


def leaking(run: ScriptedRun, fixes: dict[float, str], other: str = "I cannot.") -> None:
    """The checker flags scripts with these levels, and this is what comes back for each."""

    blocks = {f"level = {level}": fix for level, fix in fixes.items()}

    def found(call: ScriptedCall) -> list[str]:
        return [block for block in blocks if f"{block}\n" in call.prompt]

    run.agents.always("leakage-detection", lambda call: leaky(*found(call)) if found(call) else NO_LEAKAGE)
    run.agents.always("leakage-correction", lambda call: blocks[found(call)[0]])
    run.agents.always("leakage-rewrite", other)


def unfixed(run: ScriptedRun, *levels: float) -> None:
    leaking(run, dict.fromkeys(levels, "Nor can I."))


def found_at_last(run: ScriptedRun, level: float, correction: object) -> None:
    """A leak that only the last check of Phase 1 finds."""
    run.agents.always("leakage-detection", by_step(leakage=leaky(f"level = {level}"), otherwise=NO_LEAKAGE))
    run.agents.always("leakage-correction", correction)


async def refined(run: ScriptedRun, start: SolutionScript, *levels: object) -> InnerLoopResult:
    run.agents.reply("coder", *fenced(*(f"level = {level}" for level in levels)))
    config, level = run.config.model_copy(update={"inner_loop_steps": len(levels)}), start.score or 0.0
    return await run_phase2_inner_loop(start, block(f"level = {level}"), "plan", level, run.task, config)


async def test_a_leaking_candidate_or_merge_is_passed_over_while_a_clean_one_is_scored(quick_run: ScriptedRun) -> None:
    unfixed(quick_run, 0.98, 0.99)
    run = quick_run.context
    result = await run_phase1(quick_run.task, stage(quick_run, 0.5, 0.99, 0.6, merges=(0.99,)))
    assert (result.initial_score, result.candidate_scores) == (0.6, [0.5, None, 0.6])
    assert not leaks(run, result.initial_solution) and "m2" in result.initial_solution.content
    errors = {event.index: event.error for event in quick_run.events(ev.CandidateEvaluated)}
    assert errors == {0: "", 1: ev.LEAKS, 2: ""}
    assert result.merge_attempts[0]["accepted"] is False and best_score(quick_run.context) == 0.6
    assert quick_run.events(ev.Notice) == []
    result = await run_phase1(quick_run.task, stage(quick_run, 0.98, 0.99, merges=(0.7,)))
    assert (result.initial_score, leaks(run, result.initial_solution)) == (0.7, False), "a clean merge beats it"
    assert result.merge_attempts[0]["accepted"] is True
    start = (await run_phase1(quick_run.task, stage(quick_run, 0.98))).initial_solution
    assert (start.score, leaks(run, start), start.is_executable) == (0.98, True, True), "where there is no other"
    assert any("every candidate leaks" in notice.message for notice in quick_run.events(ev.Notice))


CRASHES = fenced("raise ValueError('x')")
NEXT, STANDS_IN = "the next best takes its place", "it stands in until a clean script has a score"


@pytest.mark.req("REQ-P1-031", "REQ-SF-023")
@pytest.mark.parametrize(
    ("levels", "correction", "initial", "leaking", "words"),
    [
        ((0.9, 0.5), "I cannot.", 0.5, False, NEXT), ((0.9, 0.5), CRASHES, 0.5, False, NEXT),
        ((0.9,), CRASHES, 0.9, True, STANDS_IN), ((0.9,), fenced("level = 0.8"), 0.8, False, ""),
        pytest.param((0.9, 0.5), CRASHES, 0.9, False, "", marks=pytest.mark.modes("letter")),
    ],
)  # fmt: skip
async def test_a_leak_that_only_the_last_check_finds_gives_way_to_its_correction_or_to_the_next_candidate(
    levels: tuple[float, ...], correction: object, initial: float, leaking: bool, words: str, quick_run: ScriptedRun
) -> None:
    found_at_last(quick_run, 0.9, correction)
    quick_run.agents.always("debugger", "No.")
    result = await run_phase1(quick_run.task, stage(quick_run, *levels, merges=(0.4,) * (len(levels) - 1)))
    letter, run = quick_run.config.letter, quick_run.context
    assert (result.initial_score, leaks(run, result.initial_solution)) == (initial, leaking)
    notices = [(event.level, event.message) for event in quick_run.events(ev.Notice)]
    message = f"data leakage that could not be fixed: the initial solution leaks; {words}"
    assert notices == ([("warning", message)] if words else [])
    first = (None if words else 0.9, not letter)
    assert [(one.score, leaks(run, one)) for one in result.candidate_solutions] == [first, (0.5, False)][: len(levels)]
    assert run.ledger.kept is not None and run.ledger.kept.score == initial
    assert f"level = {initial}" in RunFolder(quick_run.run_dir).best_solution.read_text(encoding="utf-8")
    if leaking or letter:
        return
    assert best_score(run) == initial, "nothing rests on the leak any more"
    seen = RunStory.from_events(run.journal.events)
    assert seen.score == initial and f"level = {initial}" in seen.best_script
    if words:
        assert seen.chosen_candidate is not None
        zero = next(one for one in seen.tried(ev.CandidateEvaluated) if one.index == 0)
        assert (seen.chosen_candidate.index, zero.score, zero.error) == (1, None, ev.LEAKS)
        cut = partial_phase1()
        assert cut is not None and cut.initial_score == 0.5


@pytest.mark.parametrize(("levels", "initial", "checks"), [((0.9, 0.8, 0.7, 0.5, 0.4), 0.5, 4), ((0.9, 0.8), 0.9, 2)])
async def test_where_candidates_were_not_checked_before_the_first_clean_one_takes_the_place_of_a_leak(
    levels: tuple[float, ...], initial: float, checks: int, quick_run: ScriptedRun
) -> None:
    leaking(quick_run, {0.9: CANNOT, 0.8: CANNOT, 0.7: fenced("level = 0.75")})
    config = stage(quick_run, *levels, merges=(0.1,)).model_copy(update={"leakage_checks": LATER})
    result = await run_phase1(quick_run.task, config)
    assert (result.initial_score, leaks(quick_run.context, result.initial_solution)) == (initial, initial == 0.9)
    assert len(quick_run.agents.calls("leakage-detection")) == checks


@pytest.mark.req("REQ-OR-043")
async def test_what_is_submitted_after_a_cut_never_leaks_if_something_clean_is_scored(quick_run: ScriptedRun) -> None:
    """Candidate 0 leaks; candidate 1 and, on path 1 of many, a refinement were scored and not taken in yet."""
    unfixed(quick_run, 0.99)
    run, stand_in = quick_run.context, await run_phase1(quick_run.task, stage(quick_run, 0.99))
    assert leaks(run, stand_in.initial_solution)
    assert diagnostics_of(run, ValueError("cut"), reason="time")["best_candidate"] is None
    cut = partial_phase1()
    assert cut is not None and leaks(run, cut.initial_solution)
    for place, level in (("phase1/candidate-1", 0.6), ("phase2/path-1", 0.7), ("phase2/path-10", 0.8)):
        with scope(*place.split("/")) as inner:
            ran(inner, level, script=script(level))
    merge: dict[str, Any] = {"index": 1, "base_score": 0.99, "reference_model": "m1", "score": 0.99, "accepted": True}
    leaking = ev.MergeTried(step="phase1/merge-1", digest=digest_of(script(0.99, note="m0")), **merge)
    for known in ([], [leaking]):
        for event in known:
            run.record(event)
        cut = partial_phase1()
        assert cut is not None and (cut.initial_score, leaks(run, cut.initial_solution)) == (0.6, False)
    refined = best_reached("phase2/path-1/", stand_in.initial_solution)
    assert refined is not None and refined.score == 0.7, "that of path 10 is not its own"
    better = solution(script(0.75), score=0.75)
    assert best_reached("phase2/path-1/", better) is better


async def test_among_paths_and_inputs_a_clean_one_counts(quick_run: ScriptedRun) -> None:
    leaking, clean = (solution(script(score), score=score) for score in (0.99, 0.6))
    with scope("phase1") as earlier:
        check(earlier, leaking.content, leaking=True)
    empty: dict[str, Any] = {"ablation_summaries": [], "refined_blocks": [], "step_history": []}
    results = [Phase2Result(**empty, best_solution=one, best_score=one.score or 0.0) for one in (clean, leaking)]
    assert best_path(quick_run.context, results) is results[0]
    assert best_path(quick_run.context, results[1:]) is results[1]
    quick_run.agents.always("ensembler", "No.")
    fallback = await run_phase3([leaking, clean], quick_run.task, settings(R=1))
    assert fallback.best_ensemble == clean and fallback.best_ensemble_score == 0.6
    phase1 = phase1_result(clean).model_copy(update={"candidate_solutions": [leaking, clean]})
    alone = yardsticks(quick_run.context, phase1, None)["single_model"]
    assert alone is not None and alone.measure.score == 0.6
    config = quick_run.config.model_copy(update={"num_parallel_solutions": 2, "diversity": ("starts",)})
    with scope(config=config) as run:
        await Paths(Stages(run), phase1, [], slots=2, refine=lambda *_: asyncio.sleep(0, results[0])).run(60.0)
    assert {event.digest for event in quick_run.events(ev.PhaseStarted)} == {digest_of(clean.content)}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_what_one_path_finds_is_not_known_on_another_and_the_worse_answer_counts_after_both(
    order: tuple[int, int], quick_run: ScriptedRun
) -> None:
    run, places = quick_run.context, "phase1/merge-1 phase2/path-0/t-1 phase2/path-1/t-1 phase2/path-2 phase3/r-0 probe"
    for path in order:
        with scope("phase2", f"path-{path}") as here:
            ran(here, 0.9, script=script(0.9))
            check(here, script(0.9), leaking=path == 0)
            assert here.leaks(script(0.9)) == (path == 0)
    bests = [best_reached(f"phase2/path-{path}/", solution(script(0.5), score=0.5)) for path in (0, 1)]
    assert [one and one.score for one in bests] == [0.5, 0.9]
    known = [place for place in places.split() if run.leaks(script(0.9), place)]
    assert known == ["phase2/path-0/t-1", "phase3/r-0", "probe"]
    with scope("phase3") as here:
        check(here, script(0.9))
    assert [place for place in places.split() if run.leaks(script(0.9), place)] == known[:1]


CANNOT, BEFORE, LATER = "no code", "all", "promising"


@pytest.mark.req("REQ-P2I-030")
@pytest.mark.parametrize(
    ("checks", "start", "levels", "fixes", "best", "calls", "ran"),
    [
        (BEFORE, 0.5, (0.99, 0.3), {0.99: CANNOT}, 0.5, 2, 2), (BEFORE, "0.5 leaking", (0.3, 0.2), {}, 0.3, 2, 2),
        # of the second none reaches what it began with
        (LATER, 0.5, (0.6, 0.7, 0.4), {}, 0.7, 1, 3), (LATER, 0.5, (0.4, 0.3), {}, 0.5, 0, 2),
        *((LATER, 0.5, (0.6, 0.7, 0.4), {0.7: no}, 0.6, 2, ran) for no, ran in ((CANNOT, 3), (CRASHES, 4))),
        (LATER, 0.5, (0.6, 0.7, 0.4), {0.7: fenced("level = 0.65")}, 0.65, 1, 4),
        (LATER, 0.5, (0.7, 0.4), {0.7: fenced("level = 0.5  # fixed")}, "0.5  # fixed", 1, 3),
        *((LATER, 0.5, (0.6, 0.7, 0.4), {0.7: worse}, 0.6, 2, 4) for worse in fenced("level = 0.45", "level = 0.55")),
        (LATER, 0.5, (0.6, 0.7), {0.7: CANNOT, 0.6: CANNOT}, 0.5, 2, 2),
        *((LATER, 0.5, levels, {0.99: CANNOT}, 0.65, 2, 3) for levels in ((0.99, 0.6, 0.65), (0.99, 0.65, 0.6))),
        (LATER, 0.5, ("0.5  # same", 0.4), {}, "0.5  # same", 1, 2),
        # the leak of a script says nothing of those that are made from it
        (LATER, "0.9 leaking", (0.2, 0.3), {}, 0.3, 1, 2), (LATER, "0.9 leaking", (0.2, 0.3), {0.3: CANNOT}, 0.2, 2, 2),
        (LATER, "0.9 leaking", (0.2, 0.3), {0.2: CANNOT, 0.3: CANNOT}, 0.9, 2, 2),
    ],
)  # fmt: skip
async def test_in_the_inner_loop_a_leak_never_wins_and_a_start_that_leaks_loses_to_what_is_clean(
    checks: str, start: object, levels: tuple[object, ...], fixes: dict[float, str], best: object, calls: int, ran: int,
    quick_path: Path,
) -> None:  # fmt: skip
    """Of promising scripts the winner alone is checked, and a leaking one gives way."""
    begun, _, leak = str(start).partition(" ")
    score, before = float(str(best).split()[0]), solution(script(begun), score=float(begun))
    with quick(quick_path, leakage_checks=checks) as run:
        check(run.context, *[before.content] * bool(leak), leaking=True)
        leaking(run, fixes)
        run.agents.always("debugger", "no code")
        found = await refined(run, before, *levels)
        places = ["check/leakage-detection", "check/leakage-detection-2"]
        places = [f"k-{k}/leakage-detection" for k in range(calls)] if checks == BEFORE else places[:calls]
        assert [call.step for call in run.agents.calls("leakage-detection")] == places
        assert len(run.executor.scripts) == ran and before.content == script(begun), "the input is left alone"
        stays = found.best_solution.content == before.content
        assert found.best_solution == before if stays else not leaks(run.context, found.best_solution)
        assert found.best_solution.content == script(str(best))
        improved = score > float(begun) or bool(leak and not stays)
        assert (found.best_score, found.best_solution.score, found.improved) == (score, score, improved)
        for attempt, level in zip(found.attempts, levels, strict=True):
            known = None if checks == BEFORE and level in fixes else float(str(level).split()[0])
            fixed = attempt.was_improvement and attempt.score == score  # one that was fixed has a score of its own
            assert (attempt.score == known or fixed) and (attempt.was_improvement or not leak or checks == BEFORE)
        study = ev.AblationFinished(path=0, t=0, solution_score=float(begun))
        (step,) = RunStory.from_events([study, *run.context.journal.events]).steps
        assert step.kept is None or found.attempts[step.kept.k].was_improvement
        if not leak:
            kept = before.score if step.kept is None else step.kept.best_score
            assert kept == score, "a reader sees what the path went on from"


@pytest.mark.parametrize(("fix", "best"), [(None, 0.7), (0.6, 0.7), (0.8, 0.8)])
async def test_what_is_kept_rests_on_no_script_that_a_later_check_finds_leaking(
    fix: float | None, best: float, quick_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The winner of an inner loop is checked when it has run already: its submission was the best until then."""
    with quick(quick_path, leakage_checks="promising") as run:
        leaking(run, {0.99: fenced(f"level = {fix}") if fix else CANNOT})
        with scope("phase1", "candidate-0"):
            start, _ = await evaluate_checked(solution(script(0.5)))
        with scope("phase2", "path-0"):
            await refined(run, start, 0.99, 0.7)
        ledger, folder = run.context.ledger, RunFolder(run.run_dir)
        assert ledger.kept is not None and (best_score(run.context), ledger.kept.score) == (best, best)
        assert [one.score for one in ledger.bests("phase2/path-0/")] == sorted({0.7, best})
        assert folder.best_solution.read_text(encoding="utf-8") == script(best) and leaks(run.context, script(0.99))
        account_as_kept(f"leak-{fix}", run, caplog.records)


async def test_a_path_that_scores_its_first_script_while_a_leak_is_cleaned_away_keeps_it(quick_path: Path) -> None:
    with quick(quick_path, leakage_checks="promising") as run:
        unfixed(run, 0.99)
        ledger, shared = run.context.ledger, run.context.shared
        tasks: list[asyncio.Future[Any]] = []

        async def until(condition: Callable[[], bool]) -> None:
            while not condition():
                await asyncio.sleep(0.01)

        with scope("phase2", "path-0"):
            for level in (0.7, 0.99):
                await evaluate_checked(solution(script(level)))
        async with shared.scripts.locks["keeping"]:  # what is kept waits to be put in order after the leak
            with scope("phase2", "path-0"):
                tasks.append(asyncio.create_task(check_and_fix_leakage(solution(script(0.99)))))
            await asyncio.wait_for(until(lambda: best_score(run.context) == 0.7), 120)
            with scope("phase2", "path-1"):
                tasks.append(asyncio.create_task(evaluate_checked(solution(script(0.6)))))
            await asyncio.wait_for(until(lambda: ledger.best("phase2/path-1/") is not None), 120)
        await asyncio.gather(*tasks)
        bests = [ledger.best(f"phase2/path-{index}/") for index in (0, 1)]
        assert [one and one.score for one in bests] == [0.7, 0.6]
        assert (best_score(run.context), ledger.kept and ledger.kept.score) == (0.7, 0.7)


STOP = BudgetExceeded(limit="money", message="the money is spent")


@pytest.mark.parametrize("cut", ["correction", "run"])
async def test_a_leak_is_one_although_the_end_comes_before_it_is_fixed(cut: str, quick_run: ScriptedRun) -> None:
    run, config = quick_run, stage(quick_run, 0.9)
    run.executor.faults, run.executor.fault = {"level = 0.8\n"}, STOP
    found_at_last(run, 0.9, STOP if cut == "correction" else fenced("level = 0.8"))
    with pytest.raises(BudgetExceeded):
        await run_phase1(run.task, config)
    found = partial_phase1()
    assert found is not None and found.initial_score == 0.9 and leaks(run.context, found.initial_solution)
    (event,) = (event for event in run.events(ev.LeakageChecked) if event.found)
    assert event.leaking == [digest_of(script(0.9, note="m0"))]
    with scope(config=config):
        at_last, remarks = await check_at_last(found.initial_solution)
    assert (at_last, remarks) == (found.initial_solution, []), "nobody says that it was not checked"


@pytest.mark.parametrize("phase", ["phase 2", "phase 3"])
async def test_a_phase_cut_off_while_its_winner_is_checked_drops_what_leaks(phase: str, quick_path: Path) -> None:
    with quick(quick_path, R=2, leakage_checks="promising") as run:
        run.executor.faults, run.executor.fault = {"level = 0.98\n"}, STOP
        run.agents.reply("leakage-detection", leaky("level = 0.99"))
        run.agents.always("leakage-detection", STOP)
        run.agents.always("leakage-correction", CANNOT if phase == "phase 2" else fenced("level = 0.98"))
        run.agents.reply("ensembler", *fenced(script(0.7), script(0.99)))
        start = solution(script(0.5), score=0.5)
        with pytest.raises(BudgetExceeded), scope("phase2", "path-0"):
            if phase == "phase 2":
                await refined(run, start, 0.7, 0.99)
            else:
                await run_phase3([start, solution(script(0.4), score=0.4)], run.task, run.config)
        if phase == "phase 2":
            beyond = best_reached("phase2/path-0/", start)
            assert beyond is not None and beyond.score == 0.7
        else:
            cut = partial_phase3("phase2/path-0/", [start])
            assert cut is not None and cut.best_ensemble_score == 0.7


@pytest.mark.req("REQ-P3-032")
@pytest.mark.parametrize("second", [CANNOT, fenced("raise RuntimeError('broken')")])
async def test_a_round_of_which_no_clean_script_was_made_stays_as_it_ran(second: str, quick_path: Path) -> None:
    with quick(quick_path, R=3, leakage_checks="promising") as run:
        leaks_twice, same = f"{script(0.99)}\nx = 1", script(0.7, note="later")
        run.agents.reply("ensembler", *fenced(script(0.7), leaks_twice, same))
        run.agents.reply("leakage-detection", leaky("level = 0.99", "x = 1"))
        run.agents.reply("leakage-correction", fenced("level = 0.98"), second)
        run.agents.always("leakage-rewrite", CANNOT)
        run.agents.always("debugger", CANNOT)
        inputs = [solution(script(score), score=score) for score in (0.5, 0.4)]
        results = [await run_phase3(inputs, run.task, run.config), partial_phase3("", inputs)]
        for kept in (result.attempts[1].solution for result in results if result is not None):
            assert (kept.score, kept.content, leaks(run.context, kept)) == (None, leaks_twice, True)
        assert [r and (r.best_ensemble_score, r.best_ensemble.content) for r in results] == [(0.7, same)] * 2


@pytest.mark.modes("delivered", "letter")
@pytest.mark.req("REQ-SF-022")
async def test_a_script_made_from_a_clean_one_is_checked_by_its_changes(quick_run: ScriptedRun) -> None:
    """To the letter whole; whole as well where nothing clean is known of its origin."""
    rest = "".join(f"\nremark_{n} = 'a line that has nothing to do with the level, number {n}'" for n in range(30))
    start, changed = solution(script(0.5) + rest), solution(script(0.6) + rest)
    for known in (False, True):
        await check_and_fix_leakage(changed, origin=start)
        seen, whole = quick_run.agents.log[-1].prompt, not known or quick_run.config.letter
        assert ("remark_7" in seen) == whole and "level = 0.6" in seen
        assert ("Made from a script without leakage" in seen) != whole
        await check_and_fix_leakage(start)
