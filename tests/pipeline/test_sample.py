"""What a run does beyond the specification: long scripts are met on a sample of the rows, only promising ones are
checked, paths begin differently, and limits are known."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mle_star.data.place import DataFolder
from mle_star.execution.scoring import write_sample
from mle_star.models import ExecutionRawResult, TaskDescription
from mle_star.run import events as ev
from mle_star.run.context import ScriptRequest
from tests.pipeline.conftest import QuickRun, settings
from tests.pipeline.mind import LevelExecutor, Mind, MindAgents, crash, fenced, leaking, levels, script

ROWS = 60_000


@pytest.fixture
def large(task: TaskDescription) -> None:
    """Gives the task a training table of many rows, two of them of a rare class."""
    rows = [f"{row},{row % 97}.125,{2 if row in (7, 70) else row % 2}" for row in range(ROWS)]
    (Path(task.data_dir) / "train.csv").write_text("\n".join(["id,x,label", *rows]) + "\n", encoding="utf-8")


def seen(executor: LevelExecutor) -> list[tuple[bool, bool]]:
    """Of every run, whether the script crashes, and whether it is on the sample."""
    return [(crashes, "sample-" in data) for data, crashes in executor.ran]


ONE = {"M": 1, "L": 1, "T": 1, "K": 1}
CRASHING = Mind(models=1, overrides={"init": fenced(script(0.5, note="first") + "\nraise RuntimeError('late')\n")})


@pytest.mark.modes("self_reported")
async def test_a_script_that_crashes_late_is_repaired_on_the_sample(quick: QuickRun, large: None) -> None:
    runs, config = dict[str, list[tuple[bool, bool]]](), settings(**ONE, max_debug_attempts=2)
    for name, chosen in {"auto": {}, "off": {"sample_first": "off"}, "offline": {"model": "offline"}}.items():
        executor, agents = LevelExecutor(), MindAgents(CRASHING)
        result = await quick(config.model_copy(update=chosen), name=name, agents=agents, executor=executor)
        assert (result.phase1.candidate_scores, agents.count("debugger")) == ([0.5], 1)
        runs[name] = seen(executor)
    assert runs["auto"][:3] == [(True, True), (False, True), (False, False)] and (True, False) not in runs["auto"]
    assert sum(on_sample for _, on_sample in runs["auto"]) == 2  # the solution is quick: later ones need no sample
    assert runs["off"][:2] == [(True, False), (False, False)] and not any(sample for _, sample in runs["off"])
    assert runs["offline"] == runs["off"]  # its scripts watch the clock: the first whole answer comes first
    ends = [(run.purpose, run.result.is_error, run.result.score) for run in quick.events(ev.ScriptFinished, "auto")]
    assert ends[:3] == [("sample", True, None), ("sample", False, None), ("solution", False, 0.5)]
    (prompt,) = quick.prompts("debugger", "auto")
    assert "On a sample of 6002 of the 60000 training rows:" in prompt
    again, agents = LevelExecutor(), MindAgents(CRASHING)
    for late in (config, config.model_copy(update={"time_limit_seconds": 1})):  # too little time for any sample
        await quick(late, name="auto", agents=agents, executor=again, resume=True)
        assert (again.ran, agents.calls) == ([], [])


@pytest.mark.modes("self_reported")
async def test_what_fails_on_the_sample_only_or_has_little_time_runs_in_full(quick: QuickRun, large: None) -> None:
    def fails_there(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
        return crash("ValueError: too few") if "sample-" in str(request.input_dir) else done

    executor, agents = LevelExecutor(after=fails_there), MindAgents(Mind(models=1))
    await quick(settings(**ONE), agents=agents, executor=executor)  # until no repair is left
    (candidate,) = quick.events(ev.CandidateEvaluated)
    assert candidate.score == 0.5 and seen(executor)[:2] == [(False, True), (False, False)]
    await quick(settings(**ONE), executor=LevelExecutor(seconds=1003.0), agents=agents, name="slow")
    first = quick.prompts("debugger", "slow")[0]
    assert "the script takes 1003 s on 6002 of 60000 rows, so about 5001 s on all of them" in first
    assert "faster by measured means" in first
    await quick(settings(**ONE, script_timeout_seconds=50), executor=(short := LevelExecutor()), name="short")
    assert short.ran and not any(on_sample for _, on_sample in seen(short)), "a whole answer comes first"


@pytest.mark.modes("self_reported")
async def test_after_a_slow_solution_new_scripts_meet_the_sample(quick: QuickRun, large: None) -> None:
    def slow(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
        return done.model_copy(update={"duration_seconds": 1.0 if "sample-" in str(request.input_dir) else 40.0})

    numbers = count()

    def changed(prompt: str) -> str:
        number = next(numbers)
        return fenced(f"# another number\nlevel = 0.6{number}00\n" + "tries = [1]\n" * (number == 1))

    config, executor = settings(**{**ONE, "K": 3}, time_limit_seconds=36_000), LevelExecutor(after=slow)
    await quick(config, executor=executor, agents=MindAgents(Mind(models=1, overrides={"coder": changed})))
    refined = [(e.step.split("/")[3], e.purpose) for e in quick.events(ev.ScriptFinished) if "/k-" in e.step]
    assert refined == [("k-0", "solution"), ("k-1", "sample"), ("k-1", "solution"), ("k-2", "solution")]
    for prompt in quick.prompts("coder"):
        assert "on a sample of 6002 of the 60000 training rows, and must work there" in prompt
        assert "more than 60000 training samples" in prompt  # there is time for all of them


async def test_a_small_table_sees_no_sample(quick: QuickRun) -> None:
    for seconds in (0.0, 100.0):
        await quick(settings(**ONE), executor=(executor := LevelExecutor(seconds=seconds)), name=f"{seconds:g}")
        assert executor.ran and not any(on_sample for _, on_sample in seen(executor))
        assert not list(quick.dir.parent.glob("*/views/sample*"))


def test_the_sample_holds_every_class_and_the_other_files(task: TaskDescription, tmp_path: Path, large: None) -> None:
    (Path(task.data_dir) / "sample_submission.csv").write_text("id,x,label\n100,0,0\n", encoding="utf-8")
    found = [write_sample(DataFolder(task.data_dir), tmp_path / name, task.description, 1) for name in ("one", "two")]
    files = {sample.folder / "train.csv" for sample in found if sample}
    lines, again = ([*path.read_text(encoding="utf-8").splitlines()] for path in files)
    assert lines == again and len(lines) == 6003 and sum(line.endswith(",2") for line in lines) == 2
    (sample, _) = found
    assert sample is not None and (sample.rows, sample.of) == (6002, ROWS)
    assert {path.name for path in sample.folder.iterdir()} == {path.name for path in Path(task.data_dir).iterdir()}


async def test_checking_only_what_is_promising_saves_a_quarter_of_the_calls(quick: QuickRun) -> None:
    calls, plateau = {}, Mind(overrides={"coder": lambda p: fenced(f"level = {min(levels(p)[0] + 0.01, 0.57):.4f}")})
    for checks in ("all", "promising"):
        config, agents = settings(M=4, T=4, K=4, L=1, leakage_checks=checks, use_cache=False), MindAgents(plateau)
        assert (await quick(config, name=checks, agents=agents)).submission_path and agents.count("leakage") >= 3
        calls[checks] = len(agents.calls)
    assert calls["promising"] <= 0.75 * calls["all"], calls


async def test_paths_begin_with_different_clean_scripts_unless_the_specification_is_wanted(quick: QuickRun) -> None:
    """Of the candidates only the best was checked, and no change of a path's start is ever checked for what it had."""
    leak = Mind(overrides={**leaking("level = 0.5100"), "merger": "No idea."})
    runs: dict[str, tuple[dict[str, Any], Mind, list[float | None]]] = {
        "differ": ({"diversity": ("starts",)}, Mind(), [None, 0.52, 0.51]),  # the initial solution, then the best ones
        "same": ({"diversity": ()}, Mind(), [None] * 3),
        "leak": ({"diversity": ("starts",), "leakage_checks": "promising"}, leak, [None, None, 0.5]),
    }
    for name, (config, mind, begun) in runs.items():
        await quick(settings(M=3, L=3, T=1, K=1, **config), name=name, agents=MindAgents(mind))
        scores = {one.model_name: one.score for one in quick.events(ev.CandidateEvaluated, name)}
        assert {*scores.values()} == {0.5, 0.51, 0.52}
        paths = {e.path: scores.get(e.model) for e in quick.events(ev.PhaseStarted, name) if e.path is not None}
        assert [paths[number] for number in range(3)] == begun, "the journal names what a path began with"
        studies = {study.path: study.solution_score for study in quick.events(ev.AblationFinished, name)}
        assert [studies[number] for number in range(3)] == [score or studies[0] for score in begun]
    found = [event.step for event in quick.events(ev.LeakageChecked, "leak") if event.found]
    assert found == ["phase2/path-1/leakage-detection"]


async def test_a_path_has_time_for_its_slow_start_and_the_last_script_knows_its_limit(quick: QuickRun) -> None:
    """What stems from model 0 takes three minutes, all else five seconds; it is stopped where it takes too long."""

    def slow(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
        seconds = 170.0 if "# model 0" in Path(request.script_path).read_text(encoding="utf-8") else 5.0
        if seconds > request.timeout_seconds:
            stopped = {"stdout": "", "exit_code": -1, "duration_seconds": request.timeout_seconds, "timed_out": True}
            return done.model_copy(update=stopped)
        return done.model_copy(update={"duration_seconds": seconds})

    mind, executor = Mind(overrides=dict.fromkeys(("merger", "debugger"), "No idea.")), LevelExecutor(after=slow)
    await quick(settings(T=4, K=4, R=1, diversity=("starts",)), agents=MindAgents(mind), executor=executor)
    tried = [event.score for event in quick.events(ev.RefinementTried) if event.path == 1]
    assert len(tried) == 16 and None not in tried
    prompts = {event.step: event.prompt for event in quick.events(ev.AgentFinished)}
    assert "The best solution so far takes 3 min." in prompts["phase2/path-1/t-0/k-0/coder"]
    await quick(settings(**{**ONE, "M": 2}, script_timeout_seconds=400), executor=executor, name="limited")
    (last,) = [e.prompt for e in quick.events(ev.AgentFinished, "limited") if e.step == "finalization/test"]
    assert "A script is stopped after 1 h." in last and "The best solution so far takes" not in last
    (started,) = [e for e in quick.events(ev.ScriptStarted, "limited") if e.purpose == "submission"]
    assert started.timeout_seconds == pytest.approx(3600, abs=60)
