"""Campaigns: tasks times seeds, so many at once, within one budget, and resumed without doing anything twice."""

import asyncio
import csv
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from mle_star import models as m
from mle_star.cli.app import main
from mle_star.data.folder import Medals, load_medals
from mle_star.errors import ConfigError, PipelineError
from mle_star.integrations.campaign import Campaign, Entry
from mle_star.models.settings import SIZES
from mle_star.run.events import RunFinished, RunResumed, RunStarted
from mle_star.run.folder import spent_by
from mle_star.run.journal import read_journal
from mle_star.testing.executor import gone
from tests.conftest import Captured, Logs, Patch, as_kept, small_task
from tests.execution.machines import two_machines
from tests.pipeline.conftest import events
from tests.views.journals import Invented

SWEEP = "--seeds 2 --model offline --executor ray --at-once 3 --set score_views=2"
CONFIG = m.PipelineConfig(seed=7, model="offline")


def task(name: str, folder: Path) -> m.TaskDescription:
    return small_task(folder).model_copy(update={"competition_id": name, "description": "d"})


class Died(BaseException):
    """The end of the whole process, as far as a campaign can see."""


class Runs:
    """Stands in for `run_pipeline`: leaves the files of a run, costs a dollar, and fails for some."""

    def __init__(self, fails: tuple[str, ...] = (), dies_after: int = 1000) -> None:
        self.fails, self.dies_after = fails, dies_after
        self.calls: list[tuple[str, bool, float | None]] = []
        self.running = self.most = 0

    async def __call__(self, task: m.TaskDescription, config: m.PipelineConfig, **options: Any) -> m.FinalResult:
        folder = Path(options["run_dir"])
        self.calls.append((folder.name, options["resume"], config.max_budget_usd))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "journal.jsonl").write_text("{}\n")
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if len(self.calls) > self.dies_after:
            raise Died
        if "odd" in folder.name:
            raise KeyError("nobody thought of this")
        if folder.name in self.fails:
            Invented(seed=4, T=1, outcome="failed").write(folder)
            raise PipelineError("no candidate worked\r")
        script = m.SolutionScript(content="x", phase=m.SolutionPhase.final, score=round(0.5 + config.seed / 100, 2))
        last = Invented(seed=4, T=1).ended(
            task=task, config=config, final_solution=script, submission_path=str(folder / "final" / "submission.csv"),
            total_duration_seconds=3.0, total_cost_usd=1.0, expected=m.Measure(score=0.4, low=0.3, high=0.5),
        )[-1]  # fmt: skip
        assert isinstance(last, RunFinished) and last.result is not None
        result = last.result
        (folder / "result.json").write_text(result.model_dump_json())
        return result


def made(folder: Path, *names: str, seeds: int = 1, **more: Any) -> Campaign:
    """A campaign of tasks by these names."""
    return Campaign.create(folder / "c", [task(name, folder) for name in names], seeds, CONFIG, **more)


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


async def test_every_task_runs_with_every_seed_come_what_may(tmp_path: Path, caplog: Logs) -> None:
    medals = {"a": Medals(gold=0.9, silver=0.4, bronze=0.3)}
    campaign = made(tmp_path, "a", "b", "odd", seeds=2, medals=medals, at_once=3)
    runs, entries = Runs(fails=("b-seed-8",)), list[Entry]()
    await campaign.run(runs, tell=entries.append)
    folders = [f"{name}-seed-{seed}" for name in ("a", "b", "odd") for seed in (7, 8)]
    assert sorted(name for name, _, _ in runs.calls) == folders and runs.most == 3 and len(entries) == 6
    lines = table(tmp_path / "c")
    # medals are won by the expected score, not by the measured one
    as_kept("campaign.txt", "\n".join(map(str, lines)).replace(str(tmp_path), "…"))
    assert f"odd-seed-7: {lines[4]['message']}" in caplog.text
    page = (tmp_path / "c" / "results.html").read_text()
    assert "3 of 6 finished" in page and "2 silver" in page and "no candidate worked" in page
    submitted = [json.loads(line) for line in (tmp_path / "c" / "submission.jsonl").read_text().splitlines()]
    assert [line["competition_id"] for line in submitted] == ["a", "a", "b"]


async def test_every_run_lies_in_the_folder_of_its_campaign_whatever_its_task_is_called(tmp_path: Path) -> None:
    names = ["../../x", "/tmp/abs", "s3/e12"]
    await made(tmp_path, *names).run(Runs())
    assert [line["task"] for line in table(tmp_path / "c")] == names
    folders = {path.name for path in (tmp_path / "c").iterdir() if path.is_dir()}
    assert folders == {"x-seed-7", "tmp-abs-seed-7", "s3-e12-seed-7"}


async def test_what_was_stopped_goes_on_and_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    campaign = made(tmp_path, "a", seeds=4)
    with pytest.raises(Died):
        await campaign.run(Runs(dies_after=2))
    assert [line["state"] for line in table(tmp_path / "c")] == ["finished", "finished", "waiting", "waiting"]
    again = Runs()
    assert [entry.state for entry in await Campaign.open(tmp_path / "c").run(again)] == ["finished"] * 4
    assert sorted(name for name, _, _ in again.calls) == ["a-seed-10", "a-seed-9"]
    assert ("a-seed-9", True, None) in again.calls


async def test_the_money_is_shared_by_the_runs_that_are_left_after_all_that_was_spent(tmp_path: Path) -> None:
    await made(tmp_path / "once", "a", seeds=3, at_once=3, max_budget_usd=2.5).run(Runs())
    (tmp_path / "once" / "c" / "a-seed-7" / "result.json").unlink()
    await Campaign.open(tmp_path / "once" / "c").run(resumed := Runs())
    assert resumed.calls == [("a-seed-7", True, 0.5)], "what later runs have cost was counted before"
    campaign, runs = made(tmp_path, "a", seeds=4, max_budget_usd=2.0), Runs()
    entries = await campaign.run(runs)
    assert [money for _, _, money in runs.calls] == [0.5, pytest.approx(1 / 3)]
    assert [entry.state for entry in entries] == ["finished", "finished", "left out", "left out"]
    assert entries[3].message == "the campaign's money is spent"
    again = await Campaign.open(tmp_path / "c").run(runs)
    assert [entry.message for entry in again][2:] == ["the campaign's money is spent"] * 2 and len(runs.calls) == 2
    raised = Campaign.open(tmp_path / "c")
    raised.change(max_budget_usd=9.0)
    assert [entry.message for entry in await raised.run(runs, seconds=0)][2:] == ["the campaign's time is over"] * 2


@pytest.mark.parametrize(
    ("teams", "gold", "silver", "bronze"), [(5, 1, 1, 2), (99, 9, 19, 39), (200, 10, 40, 80), (500, 11, 50, 100),
    (2000, 14, 100, 200)],
)  # fmt: skip
@pytest.mark.parametrize("direction", list(m.MetricDirection))
def test_medals_are_won_by_kaggle_s_rules(
    teams: int, gold: int, silver: int, bronze: int, direction: m.MetricDirection, tmp_path: Path
) -> None:
    sign = 1 if direction is m.MetricDirection.maximize else -1
    scores = [sign * (1 - number / 10_000) for number in range(teams)]
    lines = [f"{number},{score}" for number, score in enumerate(reversed(scores))]
    (tmp_path / "leaderboard.csv").write_text("\n".join(["teamId,score", *lines]))
    found = load_medals(tmp_path, task("a", tmp_path / "input").model_copy(update={"metric_direction": direction}))
    assert found == Medals(gold=scores[gold - 1], silver=scores[silver - 1], bronze=scores[bronze - 1])
    won = [found.won(score, direction) for score in (scores[0], scores[bronze - 1], scores[bronze - 1] - sign, None)]
    assert won == ["gold", "silver" if silver == bronze else "bronze", None, None]


def test_thresholds_lie_beside_the_task_and_not_among_its_data(tmp_path: Path) -> None:
    own, text = task("a", tmp_path), "medal,score\nGold,0.9\nsilver,0.8\nbronze,0.7\n"
    (tmp_path / "leaderboard.csv").write_text(text)
    assert load_medals(tmp_path, own) is None, "a table of the data"
    (tmp_path / ".leaderboard.csv").write_text(text)
    assert load_medals(tmp_path, own) == Medals(gold=0.9, silver=0.8, bronze=0.7)
    for wrong in ("", "medal,score\ngold,1\n", "team\na\n", "score\nmany\n"):
        (tmp_path / ".leaderboard.csv").write_text(wrong)
        with pytest.raises(ConfigError, match=r"\.leaderboard\.csv"):
            load_medals(tmp_path, own)


async def test_a_run_that_fails_counts_against_the_money_and_has_a_report(tmp_path: Path) -> None:
    campaign, runs = made(tmp_path, "a", seeds=2, max_budget_usd=10.0), Runs(fails=("a-seed-7",))
    first, second = await campaign.run(runs)
    lost = spent_by(read_journal(tmp_path / "c" / "a-seed-7" / "journal.jsonl")).usd
    assert first.state == "failed" and first.cost_usd == pytest.approx(lost) and lost > 0
    assert runs.calls[1][2] == pytest.approx(10 - lost) and second.state == "finished"
    assert (tmp_path / "c" / "a-seed-7" / "report.html").is_file()
    assert table(tmp_path / "c")[0]["message"] == "no candidate worked\r", "whatever an error says"


async def test_a_campaign_is_neither_begun_twice_nor_made_up_nor_shared(tmp_path: Path) -> None:
    folder, runs = tmp_path / "c", Runs()
    campaign = made(tmp_path, "a")
    with pytest.raises(ConfigError, match="--resume"):
        made(tmp_path, "a")
    with pytest.raises(ConfigError, match="holds no campaign"):
        Campaign.open(tmp_path)
    for names in (("a", "a"), ("s3/e12", "s3-e12")):
        with pytest.raises(ConfigError, match="same name as a folder"):
            made(tmp_path / "d", *names)
    with FileLock(folder / "campaign.json.lock"), pytest.raises(ConfigError, match="another process works on"):
        await campaign.run(runs)
    assert runs.calls == [] and (await campaign.run(runs))[0].state == "finished"


def test_data_become_tasks_and_a_refusal_leaves_no_trace(tmp_path: Path, capsys: Captured, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "size,kind,price\n" + "".join(f"{i},{'ab'[i % 2]},{i * 1.5}\n" for i in range(60))
    (tmp_path / "cars").mkdir()
    for name in ("houses.csv", "cars/train.csv"):
        (tmp_path / name).write_text(rows, encoding="utf-8")
    begin = ["sweep", "houses.csv", "cars", "--model", "offline", "--max-budget", "0", "-o", "c"]
    assert main([*begin, "--executor", "slurm"]) == 1
    assert "there are local, ray" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.glob("c/tasks/*/data"))
    assert main(begin) == 3, "no run begins without money"
    printed = capsys.readouterr()
    assert printed.err.count("task: predict price (regression), scored by rmse") == 2
    assert "cars-seed-0: left out" in printed.out or "cars-seed-42: left out" in printed.out
    houses, cars = Campaign.open(tmp_path / "c").plan.tasks
    assert (houses.competition_id, cars.competition_id) == ("houses", "cars")
    assert (Path(houses.data_dir) / "train.csv").read_text(encoding="utf-8") == rows
    assert Path(cars.data_dir) == (tmp_path / "cars").resolve()
    Path("c", "campaign.json").unlink()
    assert main(begin) == 1, "nobody's results.csv is written over"
    assert "holds files of a campaign already" in capsys.readouterr().err


def test_a_campaign_goes_on_with_other_valid_settings(tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "c"
    Campaign.create(folder, [task("a", tmp_path)], 0, CONFIG)
    assert main(["sweep", "--resume", str(folder), "--executor", "slurm"]) == 1
    assert "there are local, ray, ray://HOST:PORT" in capsys.readouterr().err
    assert Campaign.open(folder).plan.config == CONFIG
    assert main(["sweep", "--resume", str(folder), "--model", "haiku", "--set", "inner_loop_steps=1"]) == 0
    assert Campaign.open(folder).plan.config == CONFIG.model_copy(update={"model": "haiku", "inner_loop_steps": 1})
    assert main(["sweep", "--resume", str(folder), "--set", "agents.coder.effort=high"]) == 0
    assert main(["sweep", "--resume", str(folder), "--set", "agents.coder.model=opus", "--set", "preset=quick"]) == 0
    kept = Campaign.open(folder).plan.config
    assert (kept.model, kept.seed, kept.outer_loop_steps, kept.inner_loop_steps) == ("haiku", 7, 1, 2)
    assert kept.agents[m.AgentType.coder] == m.RoleSettings(model="opus", effort="high")
    with pytest.raises(ConfigError, match="there are local"):
        Campaign.create(tmp_path / "d", [task("a", tmp_path)], 1, CONFIG.model_copy(update={"executor": "slurm"}))
    assert not (tmp_path / "d").exists()


def made_tasks(folder: Path, count: int) -> list[str]:
    """Small tables to predict a class or a number from."""
    chance, found = random.Random(1), list[str]()
    for number in range(count):
        place = folder / f"task{number:02}"
        place.mkdir(parents=True)
        rows = []
        for _ in range(150):
            size, kind, age = chance.random(), chance.choice("abc"), chance.randint(1, 60)
            worth = 3 * size + (kind == "a") + age / 60 + chance.gauss(0, 0.3)
            rows.append(f"{size:.4f},{kind},{age},{f'{worth:.4f}' if number % 2 else 'yes' if worth > 2.3 else 'no'}\n")
        (place / "train.csv").write_text(f"size,kind,age,{'price' if number % 2 else 'label'}\n{''.join(rows)}")
        found.append(str(place))
    return found


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif("MLE_STAR_SOAK" not in os.environ, reason="many runs on a cluster take a while: make soak")
async def test_a_campaign_whose_process_is_killed_goes_on_to_the_end_on_a_real_cluster(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    campaign = tmp_path / "campaign"
    begin = [*made_tasks(tmp_path / "tasks", 12), "-o", str(campaign), *SWEEP.split()]
    begin += [word for name in (*SIZES, "script_cpus") for word in ("--set", f"{name}=1")]
    command = [sys.executable, "-m", "mle_star", "sweep"]

    def finished() -> set[str]:
        lines = table(campaign) if (campaign / "results.csv").exists() else []
        return {line["folder"] for line in lines if line["state"] == "finished"}

    with two_machines(str(tmp_path / name) for name in ("one", "two")) as machines:
        env = {**os.environ, "RAY_ADDRESS": machines["cluster"].address}
        with (tmp_path / "log").open("wb") as log:
            killed = subprocess.Popen([*command, *begin], env=env, stdout=log, stderr=log)
        while len(finished()) < 4:
            assert killed.poll() is None, (tmp_path / "log").read_text()
            await asyncio.sleep(0.2)
        killed.kill()
        killed.wait()
        before = finished()
        again = subprocess.run([*command, "--resume", str(campaign)], env=env, capture_output=True, text=True)
        assert again.returncode == 0, again.stdout + again.stderr
        assert await gone(f"{campaign}/"), "nothing works on it any more"
    assert len(table(campaign)) == len(finished()) == 24
    for name in finished():
        assert len(events(campaign / name, RunStarted)) == 1
        assert json.loads((campaign / name / "result.json").read_text())["expected"] is not None
    resumed = {name for name in finished() if events(campaign / name, RunResumed)}
    assert resumed and not resumed & before, "what was under way goes on, what was finished is left alone"
