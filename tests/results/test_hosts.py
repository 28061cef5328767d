"""Runs of a campaign as actors of a real Ray cluster (`MLE_STAR_SOAK`): where they live, what becomes of lost ones."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mle_star.integrations.campaign import Campaign
from mle_star.models import FinalResult, PipelineConfig, TaskDescription
from mle_star.orchestrator import run_pipeline
from mle_star.run.events import AgentFinished, RunFinished, RunResumed, ScriptFinished
from tests.execution.machines import SMALL
from tests.pipeline.conftest import events, settings, story
from tests.pipeline.mind import MindAgents

pytest.importorskip("ray")
from mle_star.integrations.cluster import Shares, living_machines
from mle_star.integrations.hosts import Hosts, find_hosts

CONFIG = settings(M=1, K=1, L=1, R=1, executor="ray", model="offline", script_cpus=1, scoring="self_reported")


async def scripted(task: TaskDescription, config: PipelineConfig, **options: Any) -> FinalResult:
    """The pipeline with a scripted mind, which does what the first words of the task's description say."""
    run_dir, calls = Path(options["run_dir"]), 0
    with run_dir.with_suffix(".hosts").open("a") as stream:
        stream.write(f"{os.getpid()}\n")

    async def before(label: str, agent: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 5 and len(hosts(run_dir)) == 1:
            if task.description.startswith("die"):
                os.kill(os.getpid(), signal.SIGKILL)
            if task.description.startswith("wait"):
                run_dir.with_suffix(".waits").touch()
                await asyncio.Event().wait()

    return await run_pipeline(task, config, agents=MindAgents(before=before), **options)


def hosts(run_dir: Path) -> list[int]:
    return [int(line) for line in run_dir.with_suffix(".hosts").read_text().split()]


def campaign_of(folder: Path, task: TaskDescription, *does: str) -> Campaign:
    tasks = [
        task.model_copy(update={"competition_id": f"{word}-{number}", "description": f"{word} {task.description}"})
        for number, word in enumerate(does)
    ]
    return Campaign.create(folder, tasks, 1, CONFIG, at_once=len(tasks))


@pytest.mark.usefixtures("cluster")
async def test_each_run_is_an_actor_and_a_lost_one_costs_no_more(task: TaskDescription, tmp_path: Path) -> None:
    entries = await campaign_of(tmp_path / "c", task, "go", "die").run(scripted)
    assert [(entry.state, entry.message) for entry in entries] == [("finished", "")] * 2
    calm, lost = (tmp_path / "c" / entry.folder for entry in entries)
    assert (len(hosts(calm)), len(hosts(lost))) == (1, 2)
    assert len({os.getpid(), *hosts(calm), *hosts(lost)}) == 4
    assert len(events(lost, RunResumed)) == 1 and all(event.result.machine for event in events(calm, ScriptFinished))
    assert len(events(calm, AgentFinished)) == len(events(lost, AgentFinished))
    results = [FinalResult.model_validate_json((folder / "result.json").read_text()) for folder in (calm, lost)]
    stories = [{name: value for name, value in story(one).items() if name != "task"} for one in results]
    assert stories[0] == stories[1]
    assert sorted(path.name for path in (tmp_path / "c").glob(".sign*")) == []


@pytest.mark.usefixtures("cluster")
async def test_a_stopped_campaign_stops_its_actors_and_goes_on_later(task: TaskDescription, tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path / "c", task, "wait")
    running = asyncio.create_task(campaign.run(scripted))
    run_dir = tmp_path / "c" / campaign.entries[0].folder
    while not run_dir.with_suffix(".waits").exists():
        assert not running.done()
        await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [event.state for event in events(run_dir, RunFinished)] == ["interrupted"]
    assert [entry.state for entry in campaign.entries] == ["waiting"]
    again = await Campaign.open(tmp_path / "c").run(scripted)
    assert [entry.state for entry in again] == ["finished"] and len(hosts(run_dir)) == 2


@pytest.mark.usefixtures("cluster")
def test_a_machine_has_runs_if_it_sees_the_campaign_and_its_data_and_can_reach_the_model(tmp_path: Path) -> None:
    data = (str(tmp_path),)
    living = living_machines()
    assert len(find_hosts(CONFIG, tmp_path, data, living)) == 3
    assert find_hosts(CONFIG, tmp_path, (*data, str(tmp_path / "gone")), living) == []
    online = CONFIG.model_copy(update={"model": "sonnet"})
    assert find_hosts(online, tmp_path, data, living) == [], "no credential there"


async def test_a_machine_that_joins_the_cluster_later_gets_runs_too(cluster: dict[str, Any], tmp_path: Path) -> None:
    find = partial(find_hosts, CONFIG, tmp_path, (str(tmp_path),))
    hosts = Hosts(scripted, find, Shares.of(CONFIG), None)
    assert [len(await hosts.look_around()) for _ in range(2)] == [3, 0]
    joined = cluster["cluster"].add_node(num_cpus=1, object_store_memory=SMALL)
    try:
        twice = await asyncio.gather(hosts.look_around(), hosts.look_around())
        assert list(twice) == [[joined.node_id], []]
    finally:
        cluster["cluster"].remove_node(joined)
