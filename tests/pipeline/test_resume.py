"""Resume is replay: what is recorded is never paid for again, and a change is paid for from where it matters."""

import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from mle_star import ConfigError, ExecutionRawResult, JournalError, PipelineState, TaskDescription
from mle_star.config import effective_config
from mle_star.run.context import ScriptRequest
from mle_star.run.events import AgentFailed, AgentFinished, Decided, Notice, RunStarted, ScriptFinished
from mle_star.run.folder import RunFolder, first_line, fork_run, spent_by
from mle_star.run.journal import Journal, read_journal
from tests.pipeline.clock import in_its_own_time
from tests.pipeline.conftest import QuickRun, events, settings, story, submitted, timed
from tests.pipeline.mind import Answer, Crash, LevelExecutor, Mind, MindAgents, failing, fenced, hang, leaking, levels


@pytest.mark.parametrize("failures", [0, 2])
async def test_a_finished_run_is_replayed_for_nothing_even_out_of_time(quick: QuickRun, failures: int) -> None:
    def uneven(prompt: str) -> Answer:  # one path is done long before the others
        return {"plans": []} if agents.count("extractor") % 3 else Mind().answer("extractor", None, prompt)

    config, agents = settings(M=3, T=2, L=3), MindAgents(Mind(overrides={"extractor": uneven}))
    if failures:  # from which the run went on
        config, agents = settings(L=1), MindAgents(failing={"coder": "out of order"})
    first = await quick(config, agents=agents)
    failed = quick.events(AgentFailed)
    assert len(failed) == failures and all("out of order" in event.message for event in failed)
    idle, executor, state = MindAgents(), LevelExecutor(), PipelineState()
    late = config.model_copy(update={"time_limit_seconds": 1})
    again = await quick(late, agents=idle, executor=executor, resume=True, state=state)
    assert (idle.calls, executor.ran) == ([], [])
    assert state.phase2_path_statuses == ["completed"] * config.num_parallel_solutions
    assert {**story(again), "config": None} == {**story(first), "config": None}
    assert again.total_cost_usd == first.total_cost_usd, "what failed calls cost counts, once"
    assert again.total_duration_seconds > first.total_duration_seconds


async def test_a_run_that_died_ends_as_if_nothing_had_happened(quick: QuickRun) -> None:
    config, undisturbed = settings(M=1, K=1, R=1), MindAgents()
    expected = await quick(config, agents=undisturbed, name="undisturbed")
    for calls in (0, 3, 8, 13, 19):
        with pytest.raises(Crash):
            await quick(config, agents=MindAgents(before=failing("", error=Crash(), after=calls)), name=f"died-{calls}")
        paid, agents = len(quick.events(AgentFinished, f"died-{calls}")), MindAgents()
        result = await quick(config, agents=agents, resume=True, name=f"died-{calls}")
        assert (story(result), paid + len(agents.calls)) == (story(expected), len(undisturbed.calls)), calls
        assert result.total_cost_usd == pytest.approx(expected.total_cost_usd)


@in_its_own_time
async def test_what_its_share_of_the_time_ended_stays_ended_once_the_run_had_gone_on(quick: QuickRun) -> None:
    """Phase 3 rests on a path as it was cut off: going on with that path would have it all paid for again."""
    cut, dies = hang("coder", label="path-1", after=1), failing("ens_planner", error=Crash(), after=1)

    async def before(label: str, agent: str) -> None:
        await cut(label, agent)
        await dies(label, agent)

    config = timed(60, 0.02, 0.13, 0.1, 0.75, K=3)
    with pytest.raises(Crash):
        await quick(config, agents=MindAgents(before=before))
    agents, state = MindAgents(), PipelineState()
    result = await quick(config, agents=agents, resume=True, state=state)
    assert {label for label, _ in agents.calls} == {"main"} and agents.count("ens_planner") == 1
    assert state.phase2_path_statuses == ["completed", "cancelled"]
    assert result.phase3 is not None and len(result.phase3.attempts) == 2
    more = MindAgents()
    await quick(config.model_copy(update={"time_limit_seconds": 600}), agents=more, resume=True)
    assert ("path-1", "coder") in more.calls, "with more time the path goes on"


@in_its_own_time
async def test_a_phase_that_a_finished_run_had_ended_with_the_same_words_stays_ended_as_well(quick: QuickRun) -> None:
    """With more time its paths go on, and come to nothing better: the second end of Phase 2 is worded as the first."""

    def coder(prompt: str) -> str:
        level = levels(prompt)[0]
        return fenced(f"level = {level + 0.05 if level < 0.51 else level - 0.1:.4f}")

    mind, config = Mind(overrides={"coder": coder}), settings(M=1, T=99, R=1, time_limit_seconds=60)
    await quick(config, agents=MindAgents(mind, delay=3.0))
    longer = config.model_copy(update={"time_limit_seconds": 120, "ensemble_rounds": 4})
    agents = MindAgents(mind, delay=3.0, before=failing("ens_planner", error=Crash(), after=1))
    with pytest.raises(Crash):
        await quick(longer, agents=agents, resume=True)
    assert agents.count("coder"), "the paths went on"
    agents = MindAgents(mind, delay=3.0)
    await quick(longer, agents=agents, resume=True)
    assert {label for label, _ in agents.calls} == {"main"} and agents.count("ens_planner") == 2


@pytest.mark.parametrize("left", [0.0, 0.015], ids=["nothing", "a call or two"])
async def test_a_step_that_a_limit_refuses_loses_nothing_recorded_later(quick: QuickRun, left: float) -> None:
    """More rounds are asked for and hardly any money is left: Phase 3 and the last script rest on what is there."""
    first = await quick(settings())
    agents, executor = MindAgents(), LevelExecutor()
    limit = (first.total_cost_usd or 0.0) + left
    again = await quick(settings(T=2, max_budget_usd=limit), agents=agents, executor=executor, resume=True)
    names = {agent for _, agent in agents.calls}
    assert "ablation" in names <= {"ablation", "summarize"} if left else not names  # a path may be ahead of the other
    assert executor.directories <= ({"path-0", "path-1"} if left else set())
    assert again.phases_skipped == [] and again.phase3 is not None and first.phase3 is not None
    assert again.phase3.best_ensemble_score == first.phase3.best_ensemble_score
    assert again.final_solution.content == first.final_solution.content
    assert story(again)["submitted"] == story(first)["submitted"]


@pytest.mark.parametrize("place", ["", "titanic", "data"])
def test_a_fork_takes_over_what_its_results_rest_on(place: str, tmp_path: Path, task: TaskDescription) -> None:
    run = RunFolder(tmp_path / "data" / "run").create()
    (run.data / place).mkdir(parents=True)
    (run.data / place / "train.csv").write_text("id,y\n1,2\n")
    own = task.model_copy(update={"data_dir": str((run.data / place).resolve())})
    started = RunStarted(run_id="r", task=own, config=settings(), model="offline")
    with Journal(run.journal) as journal:
        journal.record(started)
        for reopen in (False, True):
            journal.record(Decided(step=f"phase1/{reopen}", name="in-time", value=False, reopen=reopen))
    fork = RunFolder(tmp_path / "fork").create()
    assert Path(fork_run(run.root, fork, started).data_dir) == (fork.data / place).resolve()
    assert (fork.data / place / "train.csv").is_file()
    with pytest.raises(ConfigError, match="holds a run already"):  # of another process that began at the same time
        fork_run(run.root, fork, started)
    assert [event.step for event in events(fork.root, Decided)] == ["phase1/False"], "its clock begins anew"
    moved = run.root.rename(tmp_path / "moved")
    assert Path(first_line(moved).task.data_dir) == (moved / "data" / place).resolve()
    (moved / "journal.jsonl").write_text(Notice(message="").model_dump_json() + "\n", encoding="utf-8")
    with pytest.raises(JournalError, match="line 1: a run's first event is missing"):
        first_line(moved)


async def test_a_changed_agent_is_asked_again_with_all_that_follows_and_nothing_before(quick: QuickRun) -> None:
    await quick(settings(L=1))
    same = MindAgents(changed="coder")
    await quick(settings(L=1), agents=same, resume=True)
    assert {agent for _, agent in same.calls} == {"coder"}  # it answers as before, so nothing follows from it

    def bolder(prompt: str) -> str:
        return str(Mind().answer("coder", None, prompt)).replace("0.5", "0.6")

    other = MindAgents(Mind(overrides={"coder": bolder}), changed="coder", change="again")
    result = await quick(settings(L=1), agents=other, resume=True)
    assert [other.count(name) for name in ("ablation", "extractor", "init", "coder")] == [0, 0, 0, 2]
    assert other.count("test") >= 1 and result.phase2_results[0].best_score > 0.6


async def test_a_fork_pays_only_for_what_is_new_and_leaves_its_parent_alone(quick: QuickRun, tmp_path: Path) -> None:
    parent, journal = await quick(settings(), name="parent"), tmp_path / "parent" / "journal.jsonl"
    first, *rest = read_journal(journal)
    earlier = first.model_copy(update={"at": first.at - timedelta(seconds=400)})
    journal.write_text("".join(f"{event.model_dump_json()}\n" for event in [earlier, *rest]), encoding="utf-8")
    before = journal.read_bytes()
    config, agents = settings(T=2, time_limit_seconds=300), MindAgents()
    result = await quick(config, name="fork", fork_from=tmp_path / "parent", agents=agents)
    assert journal.read_bytes() == before
    assert spent_by(read_journal(journal)).seconds > 400 and result.stopped_by is None, "its time limit is its own"
    assert agents.count("retriever") == agents.count("init") == agents.count("data") == 0
    assert agents.count("ablation") == 2  # t-1 of both paths
    started = first_line(tmp_path / "fork")
    assert started.forked_from == str(tmp_path / "parent")
    assert started.inherited_cost_usd == pytest.approx(parent.total_cost_usd)
    assert started.run_id != first_line(tmp_path / "parent").run_id
    assert result.total_cost_usd == pytest.approx((parent.total_cost_usd or 0) + 0.01 * len(agents.calls))
    assert result.total_duration_seconds < 300
    shutil.rmtree(tmp_path / "parent")
    agents = MindAgents(failing={"coder": "must not be asked"})
    assert story(await quick(config, name="fork", resume=True, agents=agents)) == story(result)


async def test_the_journal_begins_with_everything_that_resume_needs(quick: QuickRun, task: TaskDescription) -> None:
    answers = submitted(await quick(settings(L=1)))
    started = quick.events(RunStarted)[0]
    assert (started.task, started.config, started.schema_version) == (task, effective_config(settings(L=1)), 5)
    assert {"mle-star", "claude-agent-sdk", "python"} <= set(started.versions)
    assert all(event.digest for event in quick.events(ScriptFinished))
    with Journal(quick.dir / "journal.jsonl"), pytest.raises(JournalError, match="another process"):
        await quick(settings(L=1), resume=True)
    with pytest.raises(ConfigError, match="holds no run"):
        await quick(name="nothing", resume=True)
    shutil.rmtree(quick.dir / "work")
    (quick.dir / "final" / "submission.csv").unlink()
    executor = LevelExecutor()
    again = await quick(settings(L=1), executor=executor, resume=True)
    assert (executor.ran, submitted(again)) == ([], answers)
    shutil.rmtree(quick.dir / "artifacts")
    await quick(settings(L=1), executor=executor, resume=True)
    assert executor.ran  # what is lost is made again


async def test_a_leak_that_a_later_phase_found_changes_no_earlier_result_on_resume(quick: QuickRun) -> None:
    config = settings(M=3, R=1, K=1, diversity=("starts",), leakage_checks="promising")
    mind = Mind(overrides=leaking("level = 0.5200"))  # of a candidate that path 1 would have begun with
    whole = await quick(config, name="whole", agents=MindAgents(mind))
    with pytest.raises(Crash):
        await quick(config, agents=MindAgents(mind, before=failing("ens_planner", error=Crash())))
    agents = MindAgents(mind)
    assert story(await quick(config, agents=agents, resume=True)) == story(whole)
    assert {agent for _, agent in agents.calls} <= {"ens_planner", "ensembler", "leakage", "test"}


async def test_scores_on_data_that_have_changed_since_count_for_nothing(quick: QuickRun, task: TaskDescription) -> None:
    def worse(_: ScriptRequest, raw: ExecutionRawResult) -> ExecutionRawResult:
        low = re.sub(r"Performance: ([\d.]+)", lambda found: f"Performance: {float(found[1]) - 0.2:.4f}", raw.stdout)
        return raw.model_copy(update={"stdout": low})

    config = settings(L=1, R=1)
    with pytest.raises(Crash):
        await quick(config, agents=MindAgents(before=failing("planner", error=Crash())))
    with (Path(task.data_dir) / "train.csv").open("a", encoding="utf-8") as train:
        train.write("900,1,1\n")
    agents = MindAgents(before=failing("planner"))
    result = await quick(config, agents=agents, executor=LevelExecutor(after=worse), resume=True)
    assert "the run continues with 0.325" in result.warnings[0] and result.final_solution.score == 0.325
