"""The debugger, the leakage checker and the data-use checker: what each makes of a script, and what it records."""

import json
import logging
from typing import Any

import pytest

from mle_star import AgentType, SolutionPhase, safety
from mle_star.execution import evaluate_with_retry
from mle_star.models.texts import digest_of
from mle_star.run.context import scope
from mle_star.run.events import LEAKS, DebugAttempted, LeakageChecked, ScriptPurpose
from tests.conftest import as_kept, check, leaks

from .conftest import ScriptedRun, account_as_kept, settings
from .replies import BOTH, GARBAGE, LETTER, NO_LEAKAGE, broken_script, fenced, leaky, script, solution

TRACEBACK = 'Traceback (most recent call last):\n  File "solution.py", line 2\nRuntimeError: broken'
HONEST = "model.fit(pandas.read_csv('./input/train.csv'))\nprint(f'Final Validation Performance: {s}')"


@BOTH
@pytest.mark.req("REQ-SF-004", "REQ-SF-006", "REQ-SF-035")
async def test_a_first_fix_that_runs_takes_one_call_needs_no_score_and_keeps_phase_and_model(run: ScriptedRun) -> None:
    silent = f"if False:\n    {script(0.7).splitlines()[-1]}\nprint('done')"
    broken = solution(broken_script(), score=0.2, phase=SolutionPhase.merged).model_copy(
        update={"source_model": "alpha", "is_executable": False}
    )
    before = broken.model_dump()
    run.agents.reply("debugger", *fenced(script(0.7), silent, script(0.6)))
    for code, score, stdout in ((script(0.7), 0.7, "Final Validation Performance: 0.7\n"), (silent, None, "done\n")):
        fixed, result = await safety.debug_solution(broken, TRACEBACK, run.task, run.config)
        assert (fixed.content, fixed.score, fixed.is_executable) == (code, score, True)
        assert (result.is_error, result.score, result.stdout) == (False, score, stdout), "left to whoever asked"
        assert (fixed.phase, fixed.source_model) == ("merged", "alpha") and fixed is not broken
    fixed = await safety.make_debug_callback(run.task, run.config)(broken, "it was killed")
    assert (fixed.content, fixed.score, fixed.is_executable) == (script(0.6), None, True)
    assert "it was killed" in run.agents.calls("debugger")[-1].prompt and broken.model_dump() == before
    assert len(run.agents.calls("debugger")) == 3 and len(run.executor.scripts) == 2


@BOTH
@pytest.mark.req("REQ-SF-006", "REQ-SF-008", "REQ-SF-003", "REQ-SF-007", "REQ-P1-020", "REQ-P2I-031", "REQ-P3-028")
async def test_each_attempt_gets_the_newest_script_and_error_until_none_is_left(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    agents, config = quick_run.agents, settings(max_debug_attempts=3)
    agents.reply("debugger", *fenced(*(broken_script(f"still {n}", note=f"v{n}") for n in range(9))))
    before = solution(broken_script("first", note="v"), score=0.9)
    failed, result = await safety.debug_solution(before, TRACEBACK, quick_run.task, config)
    prompts = [call.prompt for call in agents.calls("debugger")]
    assert len(prompts) == 3 and "# v\n" in prompts[0] and TRACEBACK in prompts[0]
    for n, prompt in enumerate(prompts[1:]):
        assert f"# v{n}\n" in prompt and f"RuntimeError: still {n}" in prompt.split("# Error")[1]
        assert "# v\n" not in prompt and TRACEBACK not in prompt
    assert result.is_error and (failed.score, failed.is_executable) == (None, False) and "still 2" in failed.content
    account_as_kept("repairs", quick_run, caplog.records)


UNSAID = "'SAID'\nn = 1  # SAID"


CODES = (
    "\nx = 1\n\n\n|x = 1\nif __name__ == 'x':\n    run()\n|def f():\n    if __name__ == 'x':\n        run()\n|"
    "def f():\n    if __name__:\n        pass\nif __name__ == 'x':\n    f()\n|print('SAID: 1')|n = (  # SAID\n|"
    f"say = 'SAID'; n = 1; b = b'SAID'|{UNSAID}|n = (\nprint('SAID: 1')"
)


@pytest.mark.req("REQ-SF-010")
def test_the_score_line_goes_to_the_end_or_before_main(quick_run: ScriptedRun) -> None:
    codes = CODES.replace("SAID", "Final Validation Performance").split("|")
    as_kept("method/score_lines.txt", "\n".join([f"--- {code!r}\n{safety.with_score_line(code)}" for code in codes]))


@BOTH
@pytest.mark.req("REQ-SF-002", "REQ-SF-006", "REQ-SF-007", "REQ-SF-010")
@pytest.mark.parametrize("purpose", ["solution", "ablation", "submission"])
async def test_a_repair_is_one_call_and_solutions_need_a_score(purpose: ScriptPurpose, quick_run: ScriptedRun) -> None:
    agents, plain = quick_run.agents, purpose == "solution" or quick_run.config.letter
    name = "debugger" if plain else f"debugger-{purpose}"
    fixes = [HONEST.replace("read_csv", "read_fwf"), HONEST.replace("fit", "fine_tune"), "x = 1"]
    agents.reply("debugger", *fenced(*fixes))
    phase = SolutionPhase.final if purpose == "submission" else SolutionPhase.refined
    kind: ScriptPurpose = "ablation" if purpose == "ablation" else "solution"
    repair = safety.make_debug_callback(quick_run.task, quick_run.config, purpose=kind)
    with scope("here"):
        fixed = [(await repair(solution(HONEST, phase=phase), TRACEBACK)).content for _ in fixes]
    assert fixed == [safety.with_score_line(fix) if purpose == "solution" else fix for fix in fixes]
    steps = [f"here/{name}", f"here/{name}-2", f"here/{name}-3"]
    assert [call.step for call in agents.log if call.agent is AgentType.debugger] == steps
    repairs = [(event.step, event.digest) for event in quick_run.events(DebugAttempted)]
    assert repairs == [*zip(steps, map(digest_of, fixed), strict=True)]
    checks = agents.names.count("leakage-detection")
    assert checks == (0 if purpose == "ablation" else 3), "ablations are run, not evaluated"


@pytest.mark.req("REQ-SF-040", "REQ-SF-005")
@pytest.mark.parametrize("reply", [GARBAGE, "Run this:\n```bash\npip install lightgbm\n```\nand try once more."])
async def test_a_reply_without_code_uses_up_an_attempt(quick_run: ScriptedRun, reply: str) -> None:
    agents = quick_run.agents
    agents.always("debugger", reply)
    broken = solution(broken_script())
    failed, result = await safety.debug_solution(broken, TRACEBACK, quick_run.task, settings(max_debug_attempts=3))
    assert len(agents.calls("debugger")) == 3 and agents.calls("leakage-detection") == []
    assert failed.content == broken.content and result.is_error
    refused = [(event.accepted, event.reason) for event in quick_run.events(DebugAttempted)]
    assert refused == [(False, "no code in the reply")] * 3


LEAKY = "a = 1\nlevel = 0.9\nb = 2\nscaled = 3\nprint(f'Final Validation Performance: {level}')"
INDENTED = "def f():\n    level = 0.9\n    x = 1\n    return level\n"
ONE, TWO = "level = 0.9", "scaled = 3"


def becomes(*changes: tuple[str, str]) -> str:
    text = LEAKY
    for old, new in changes:
        text = text.replace(old, new)
    return text


CANNOT, NEW, BOTH_NEW = "I cannot.", fenced("level = 0.7"), becomes((ONE, "level = 0.7"), (TWO, "scaled = 4"))
IN_TURN: list[tuple[Any, ...]] = [
    (LEAKY, [ONE], [NEW], CANNOT, becomes((ONE, "level = 0.7")), 1),
    (LEAKY, [ONE, TWO], [NEW, fenced("scaled = 4")], CANNOT, BOTH_NEW, 2),
    (INDENTED, ["    level = 0.9\n    x = 1"], [fenced("level = 0.7\nx = 2")], CANNOT,
     INDENTED.replace("0.9", "0.7").replace("x = 1", "x = 2"), 1),
]  # fmt: skip


@pytest.mark.req("REQ-SF-014", "REQ-SF-015", "REQ-SF-017", "REQ-SF-018", "REQ-SF-019", "REQ-SF-020", "REQ-SF-021")
@pytest.mark.req("REQ-SF-035", "REQ-SF-037", "REQ-SF-045")
@pytest.mark.parametrize(
    ("content", "flagged", "corrections", "rewrite", "fixed", "count"),
    [
        *IN_TURN, *(pytest.param(*row, marks=LETTER) for row in IN_TURN),
        # blocks that differ in blanks are found, others are skipped
        *((LEAKY, [same], [NEW], CANNOT, becomes((ONE, "level = 0.7")), 1) for same in (f"{ONE} ", fenced(ONE))),
        (LEAKY, ["level  =  0.9", "", TWO], [fenced("scaled = 4")], CANNOT, becomes((TWO, "scaled = 4")), 1),
        # a correction that changes nothing, or breaks the script
        *((LEAKY, [ONE], [no], CANNOT, LEAKY, 0) for no in (*fenced(ONE, f" {ONE} "), GARBAGE, "```python\n\n```")),
        (LEAKY, [ONE, TWO], [*fenced("level = (", "scaled = 4")], CANNOT, becomes((TWO, "scaled = 4")), 1),
        # what no block can fix is asked for once, as a whole script
        (LEAKY, ["scaler.fit(X)", ONE, "enc.fit(X)"], [fenced("level = 0.8")], fenced(script(0.7)), script(0.7), 3),
        (LEAKY, ["nowhere"], [], fenced(LEAKY), LEAKY, 1),  # misquoted: it came back as it was, and never leaked
        *((LEAKY, [ONE], [CANNOT], no, LEAKY, 0) for no in fenced(LEAKY, "level = (")),
        (LEAKY, [ONE], [CANNOT], fenced("level = 0.5"), f"level = 0.5\n{safety.SCORE_LINE}\n", 1),
        # a script that does not compile may be rewritten to one that does not either
        ("level = ((0.9", ["level = ((0.9"], [CANNOT], fenced("level = ("), f"level = (\n{safety.SCORE_LINE}\n", 1),
    ],
)  # fmt: skip
async def test_each_leaking_block_is_rewritten_in_turn_and_as_a_whole_what_no_block_can_fix(
    content: str, flagged: list[str], corrections: list[str], rewrite: str, fixed: str, count: int,
    quick_run: ScriptedRun,
) -> None:  # fmt: skip
    agents, ledger, leaking = quick_run.agents, quick_run.context.ledger, count < len(flagged)
    before = solution(content, score=0.9)
    given, letter = before.model_dump(), quick_run.config.letter
    check(quick_run.context, "another", leaking=True)
    answers = [*NO_LEAKAGE["answers"], *leaky(*flagged)["answers"]]  # only answers that say yes count
    forms = [answers, {"answers": answers}, json.dumps({"answers": answers})]  # a bare list is an answer, too
    agents.reply("leakage-detection", forms[len(flagged) - 1])
    agents.reply("leakage-correction", *corrections)
    agents.reply("leakage-rewrite", rewrite)
    checked = await safety.check_and_fix_leakage(before)
    assert (checked.content, ledger.leaks(digest_of(fixed))) == (fixed, leaking) and before.model_dump() == given
    assert checked.score == (None if (fixed in rewrite and fixed != LEAKY) or safety.SCORE_LINE in fixed else 0.9)
    leaks = set() if letter else {content, fixed} if leaking else {content} - {fixed}
    event, digests = quick_run.events(LeakageChecked)[-1], sorted(map(digest_of, leaks))
    clean = "" if fixed in leaks else digest_of(fixed)
    found = {"found": len(flagged), "fixed": count, "blocks": flagged, "leaking": digests, "fixed_digest": clean}
    assert event == LeakageChecked(at=event.at, step="leakage-detection", digest=digest_of(content), **found)
    detection, corrected, rewritten = map(agents.calls, ("leakage-detection", "leakage-correction", "leakage-rewrite"))
    assert content in detection[0].prompt and len(detection) == 1, "there is no second round"
    assert not corrections or content in corrected[0].prompt, "the whole script, not the block"
    assert fixed != BOTH_NEW or "level = 0.7" in corrected[1].prompt, "the current script"
    assert len(corrected) == len(corrections) and len(rewritten) == (leaking or rewrite != CANNOT)
    if rewritten:
        stays = [block for block in flagged if block not in (ONE, TWO)] or flagged[:1]
        assert all(block in rewritten[0].prompt for block in stays)
    assert ledger.leaking == set(map(digest_of, {"another", *leaks}))
    assert ledger.check_state(digest_of(fixed)) == ("leaking" if leaking else "clean")


async def test_a_script_whose_leak_stays_has_no_score_until_a_later_check_finds_nothing(run: ScriptedRun) -> None:
    agents, ledger = run.agents, run.context.ledger
    agents.reply("leakage-detection", leaky("level = 0.99"), GARBAGE, NO_LEAKAGE)
    agents.reply("leakage-correction", CANNOT)
    leaking = await safety.check_and_fix_leakage(solution(script(0.99)))
    callback = safety.make_debug_callback(run.task, run.config)
    scored, result = await evaluate_with_retry(leaking, run.task, run.config, callback)
    assert (scored.score, result.score, scored.is_executable) == (None, 0.99, True) and leaks(run.context, scored)
    assert (ledger.best(), ledger.kept) == (None, None)
    for stays, words in ((True, "a check that failed clears no script that leaks"), (False, "a later one does")):
        assert leaks(run.context, await safety.check_and_fix_leakage(scored)) == stays, words


@BOTH
@pytest.mark.req("REQ-SF-013", "REQ-SF-018", "REQ-SF-020", "REQ-SF-037", "REQ-SF-038")
@pytest.mark.parametrize(
    "reply", [NO_LEAKAGE, "{oops", "", GARBAGE, {"answers": []}, {"answers": [{"leakage_status": "Maybe"}]}]
)
async def test_a_clean_or_unreadable_verdict_leaves_the_script_as_it_is(reply: Any, quick_run: ScriptedRun) -> None:
    for blank in ("", "  \n"):
        nothing = solution(blank)
        assert await safety.check_and_fix_leakage(nothing) is nothing and quick_run.agents.log == []
    quick_run.agents.reply("leakage-detection", reply)
    checked = solution(LEAKY)
    assert await safety.check_and_fix_leakage(checked) is checked
    assert quick_run.agents.names == ["leakage-detection"], "it is not asked again"
    assert quick_run.context.check_state(LEAKY) == ("clean" if reply is NO_LEAKAGE else "unanswered")
    assert [event.found for event in quick_run.events(LeakageChecked)] == [0]


@pytest.mark.req("REQ-SF-010")
async def test_a_final_script_that_is_rewritten_needs_no_score(quick_run: ScriptedRun) -> None:
    quick_run.agents.always("leakage-detection", leaky("not in it"))
    quick_run.agents.always("leakage-rewrite", fenced("fixed = 1"))
    final = await safety.check_and_fix_leakage(solution(LEAKY, phase=SolutionPhase.final))
    searched = await safety.check_and_fix_leakage(solution(LEAKY))
    assert final.content == "fixed = 1" and "Final Validation Performance" in searched.content
    prompts = [call.prompt.replace(LEAKY, "") for call in quick_run.agents.calls("leakage-rewrite")]
    assert ["Final Validation Performance" in prompt for prompt in prompts] == [False, True]


@pytest.mark.req("REQ-SF-008")
async def test_the_log_says_why_nothing_was_changed(quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture) -> None:
    quick_run.agents.reply("leakage-detection", leaky("gone" * 30, ONE, TWO))
    quick_run.agents.reply("leakage-correction", *fenced(ONE, "scaled = ("))
    quick_run.agents.reply("debugger", fenced("x = 1"))
    quick_run.agents.reply("data", fenced("try:\n    x = 1\nexcept:\n    pass"))
    with scope("phase1", "merge-1"):
        await safety.check_and_fix_leakage(solution(LEAKY))
        assert safety.with_block(solution(LEAKY), "nowhere", "x = 1") is None
        await safety.make_debug_callback(quick_run.task, quick_run.config)(solution(LEAKY), "it was killed")
        broken = solution("a = 3", score=0.9).model_copy(update={"is_executable": False})
        alone = safety.fall_back(solution("a = 3", score=0.9), [broken, solution("a = 4")], attempts=2)
        assert (alone.content, alone.is_executable, alone.score) == ("a = 3", False, None)
        first, working = solution("a = 1", score=0.4), solution("a = 2", score=0.5)
        assert safety.fall_back(broken, [first, working, broken], attempts=3) is working
        await safety.check_data_usage(solution(" "), quick_run.task)
        await safety.check_data_usage(solution(LEAKY), quick_run.task)
    lines = [record.getMessage() for record in caplog.records if record.name == "mle_star.safety"]
    as_kept("method/unchanged.txt", "\n".join(lines))


@pytest.mark.parametrize(
    ("checks", "others", "leaks", "known", "chosen", "calls"),
    [
        ("promising", [0.8, 0.7, 0.6], [0.8, 0.7], [], 0.6, 3),
        ("promising", [0.8, 0.7, 0.6, 0.5], [0.8, 0.7, 0.6], [], None, 3),  # so many are checked
        ("promising", [0.8, 0.7, 0.6, 0.5], [0.8, 0.7, 0.6], [0.5], 0.5, 3),
        ("all", [0.8, 0.7], [0.8], [], 0.8, 0),  # nothing was found when it was checked
    ],
)
async def test_in_the_place_of_a_solution_that_leaks_the_first_clean_one_is_submitted(
    checks: str, others: list[float], leaks: list[float], known: list[float], chosen: float | None, calls: int,
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    agents, run = quick_run.agents, quick_run.context
    replies = [leaky(f"level = {level}") if level in leaks else NO_LEAKAGE for level in others]
    agents.reply("leakage-detection", *replies)
    agents.always("leakage-correction", CANNOT)
    agents.always("leakage-rewrite", CANNOT)
    scripts = {level: solution(script(level), score=level) for level in (0.95, *others)}
    check(run, script(0.95), leaking=True)
    check(run, *(script(level) for level in known))
    leaking = solution(script(0.99), score=0.99)
    check(run, leaking.content, leaking=True)
    with scope(config=settings(leakage_checks=checks)):
        instead = await safety.clean_at_last(leaking, None, [leaking, *scripts.values()])
    assert instead == ((leaking, []) if chosen is None else (scripts[chosen], [safety.LEAK_REPLACED]))
    assert run.shared.ending.stand_in == (None if chosen is None else instead[0])
    assert agents.names.count("leakage-detection") == calls
    assert (caplog.messages[-1] == f"{safety.LEAK_REPLACED}, score {chosen}") == (chosen is not None)


async def test_the_last_check_says_what_it_found(quick_run: ScriptedRun) -> None:
    agents, run, lines = quick_run.agents, quick_run.context, list[str]()

    async def at_last(level: float, *members: float, checks: str = "promising") -> None:
        best = solution(script(level), score=0.9)
        with scope(config=settings(leakage_checks=checks)):
            found, remarks = await safety.check_at_last(best, {script(one): 0.5 for one in members} or None)
        assert found == best.model_copy(update={"content": found.content})
        words = f"{found.content.splitlines()[1]}{' leaks' * leaks(run, found)}, {remarks}, {len(agents.log)} calls"
        lines.append(f"{level} {members or ''} {checks}: {words}")

    await at_last(0.9, checks="all")
    check(run, script(0.85), leaking=True)
    await at_last(0.85)
    await at_last(0.9, 0.9)
    check(run, script(0.9), script(0.8))
    for members in ((0.8, 0.9), (0.8, 0.7), ()):
        await at_last(0.9, *members)
    agents.reply("leakage-detection", NO_LEAKAGE, leaky("level = 0.96"), leaky("level = 0.97"))
    agents.always("leakage-correction", CANNOT)
    agents.reply("leakage-rewrite", "Nor can I.", fenced(script(0.7)))
    for level in (0.95, 0.96, 0.97):
        await at_last(level)
    assert run.ledger.check_state(digest_of(script(0.95))) == "clean"
    await at_last(0.97, checks="all")  # what was found once is known
    agents.reply("leakage-detection", "What a question!", "What a question!", NO_LEAKAGE)
    await at_last(0.98)
    for _ in range(2):
        await safety.check_and_fix_leakage(solution(script(0.98)))
        for members in ((), (0.8, 0.7)):
            await at_last(0.98, *members, checks="all")
    run.budget.time_limit = 0.0
    await at_last(0.99)
    as_kept("method/at_last.txt", "\n".join(lines))


@pytest.mark.parametrize(
    ("content", "becomes", "score", "error"),
    [
        (script(0.6), None, 0.6, ""), (script(0.9), None, None, LEAKS), (script(0.95), script(0.65), 0.65, ""),
        (broken_script(), None, None, "RuntimeError: broken"), ("x = 1", None, None, "no score was printed"),
        (script("'1,5'"), None, None, "the line says '1,5': print a plain number"),
    ],
)  # fmt: skip
async def test_an_evaluated_script_has_a_score_or_a_reason_why_not(
    content: str, becomes: str | None, score: float | None, error: str, quick_run: ScriptedRun
) -> None:
    agents = quick_run.agents
    agents.always("debugger", "No.")
    agents.always("leakage-detection", lambda call: leaky("level = 0.9") if "= 0.9" in call.prompt else NO_LEAKAGE)
    agents.always("leakage-correction", lambda call: fenced("level = 0.65") if "= 0.95" in call.prompt else CANNOT)
    agents.always("leakage-rewrite", fenced(becomes) if becomes else CANNOT)
    with scope(config=settings(max_debug_attempts=1)):
        tried, result = await safety.check_and_evaluate(solution(content, score=0.1))
    assert (tried.content, tried.score, tried.is_executable) == (becomes or content, score, score is not None)
    assert safety.why_no_score(tried, result) == error and leaks(quick_run.context, tried) == (error == LEAKS)
    nothing, result = await safety.check_and_evaluate(solution(""))
    assert not nothing.content and result.is_error and safety.why_no_score(nothing, result) == "no code in the reply"


REVISED = "geometry = open('./input/1.xyz').read()\nprint('Final Validation Performance: 0.8')"


@BOTH
@pytest.mark.req("REQ-SF-026", "REQ-SF-027", "REQ-SF-028", "REQ-SF-030", "REQ-SF-031", "REQ-SF-035", "REQ-SF-039")
@pytest.mark.parametrize(
    ("reply", "content"),
    [
        (fenced(REVISED), REVISED), (safety.ALL_USED, ""), (f"{safety.ALL_USED.upper()}\n{fenced('b')}", ""), ("", ""),
        (f"Not {safety.ALL_USED.lower()} Here it is:\n{fenced('b = 1')}", "b = 1"),  # to the letter this wins
        (f"I do not know. {'x' * 300}", ""), (fenced("def f(:\n  pass"), ""), (GARBAGE, ""),
    ],
)  # fmt: skip
async def test_a_revision_becomes_the_script_unless_all_is_used_or_it_is_none(
    reply: str, content: str, quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {"source_model": "TabPFN v2", "is_executable": False}
    original = solution(script(0.5), score=0.5, phase=SolutionPhase.merged).model_copy(update=odd)
    before, letter = original.model_dump(), quick_run.config.letter
    for given, description in ((solution(" "), "Predict."), (original, " ")):
        task = quick_run.task.model_copy(update={"description": description})
        assert await safety.check_data_usage(given, task) is given and quick_run.agents.log == []
    quick_run.agents.reply("data", reply)
    changed = await safety.check_data_usage(original, quick_run.task)
    stays = not content or (letter and reply.startswith("Not"))
    assert (changed is original) == stays and changed == safety.parse_data_agent_response(reply, original)
    assert stays or changed == original.model_copy(update={"content": content}), "all but the content stays"
    assert original.model_dump() == before and original.content in quick_run.agents.log[0].prompt
    assert not any("x" * 300 in record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
