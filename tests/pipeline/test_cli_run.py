"""`mle-star run` and `mle-star resume`: what they plan, how they are interrupted, and a whole life of a run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import venv
from pathlib import Path

import pytest

from mle_star.cli.app import main
from mle_star.engineer.server import BrainReply, BrainRequest, Fault, MessagesServer
from mle_star.models import AgentType, Isolation, PipelineConfig, RoleSettings, TaskDescription
from mle_star.run import events as ev
from mle_star.run.folder import first_line, request_finish
from tests.pipeline.conftest import events, install
from tests.pipeline.mind import Mind, MindBrain, fenced

pytestmark = pytest.mark.long

SMALL = [
    "-M", "1", "-T", "1", "-K", "1", "-L", "1", "--set", "client_reuse=clear", "--set", "max_debug_attempts=1",
    "--set", "leakage_checks=promising",
]  # fmt: skip


def test_a_dry_run_shows_plan_and_forecast_and_does_nothing(
    data_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", str(data_dir), "--model", "sonnet", "--time-limit", "2h", "--max-budget", "5", "--dry-run"]
    assert main([*words, "-M", "3"]) == 0
    out = capfd.readouterr().out
    assert "3 models, 2 paths of 4 x 4 refinements, 5 ensembles" in out
    assert "limit 5 USD" in out and " 2 hours\n" in out and " USD" in out
    assert main([*words, "--json", "--metric", "auc", "--set", "seed=7"]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["config"]["time_limit_seconds"] == 7200 and plan["config"]["seed"] == 7
    assert plan["forecast"]["calls"] > 100 and 0 < plan["forecast"]["cost_usd"] < 50
    assert plan["task"]["evaluation_metric"] == "roc_auc"
    assert Path(plan["run_folder"]).parent == tmp_path / "runs"
    assert list(tmp_path.iterdir()) == [data_dir]


def test_another_run_is_continued_with_its_settings_and_those_given_now(
    data_dir: Path, tmp_path: Path, task: TaskDescription, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old").mkdir()
    roles = {AgentType.planner: RoleSettings(model="opus"), AgentType.coder: RoleSettings(model="haiku")}
    config = PipelineConfig(model="offline", seed=5, outer_loop_steps=9, agents=roles)
    first = ev.RunStarted(run_id="one", task=task, config=config, model="offline", isolation=Isolation(sandbox="none"))
    (tmp_path / "old" / "journal.jsonl").write_text(f"{first.model_dump_json()}\n", encoding="utf-8")
    words = ["--set", "agents.planner.effort=high", "--preset", "quick", "--dry-run", "--json"]
    assert main(["run", "--from", str(tmp_path / "old"), *words]) == 0
    plan = json.loads(capfd.readouterr().out)["config"]
    assert (plan["seed"], plan["model"], plan["outer_loop_steps"]) == (5, "offline", 1)
    assert plan["agents"]["planner"] == {"model": "opus", "effort": "high", "thinking": None}
    assert plan["agents"]["coder"]["model"] == "haiku" and plan["agents"]["summarize"]["effort"] == "low"
    assert main(["resume", str(tmp_path / "old"), "--executor", "slurm"]) == 1
    assert "there are local, ray, ray://HOST:PORT" in capfd.readouterr().err


def ctrl_c(process: asyncio.subprocess.Process) -> None:
    """As a terminal does it: every process of the group gets the signal."""
    os.killpg(process.pid, signal.SIGINT)


class Cli:
    """The command in a process of its own, with the mind's API as its model."""

    def __init__(self, url: str) -> None:
        self.env = {**os.environ, "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "key-of-a-loopback-test"}

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mle_star.cli.app", *words, env=self.env, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    async def until(self, journal: Path, words: bytes, process: asyncio.subprocess.Process) -> None:
        """Come back when the journal holds `words`."""
        while not journal.exists() or words not in journal.read_bytes():
            assert process.returncode is None, (await process.communicate())[1].decode()
            await asyncio.sleep(0.05)

    async def run(self, *words: str) -> tuple[int | None, str, str]:
        process = await self.start(*words)
        out, err = await asyncio.wait_for(process.communicate(), 600)
        return process.returncode, out.decode(), err.decode()


IMPATIENT = """
import os, signal

class Impatient:
    \"\"\"Presses Ctrl-C when the first line of the journal is written.\"\"\"
    def __init__(self, run_dir):
        pass
    def __call__(self, event):
        if event.kind == "run_started":
            os.kill(os.getpid(), signal.SIGINT)
    def end(self):
        pass
"""


async def test_ctrl_c_before_the_run_heeds_signals_says_how_to_resume(data_dir: Path, tmp_path: Path) -> None:
    plugins, run_dir, cli = tmp_path / "plugins", tmp_path / "run", Cli("http://127.0.0.1:9")
    install(plugins, "impatient", "1.0", "[mle_star.views]\nimpatient = impatient:Impatient\n")
    (plugins / "impatient.py").write_text(IMPATIENT, encoding="utf-8")
    cli.env["PYTHONPATH"] = os.pathsep.join([str(plugins), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    words = ["run", str(data_dir), "--model", "sonnet", *SMALL, "--display", "impatient", "--output", str(run_dir)]
    code, _, err = await cli.run(*words)
    assert code == 130, err
    assert err.splitlines()[-1].startswith("mle-star: stopped by Ctrl-C; `mle-star resume ")
    assert (run_dir / "report.html").is_file()


class Pausing(MindBrain):
    """Its A_data keeps silent until it is told to go on; then the next call asks `finishing` to finish."""

    silent = True
    finishing: Path | None = None

    async def reply(self, request: BrainRequest) -> BrainReply:
        """Answer, or not."""
        if self.silent and request.agent == "data":
            return BrainReply(fault=Fault("hang"))
        if self.finishing is not None:
            request_finish(self.finishing)
            self.finishing = None
        return await super().reply(request)


@pytest.mark.modes("self_reported")
async def test_a_run_is_stopped_moved_resumed_in_vain_and_forked_with_success(data_dir: Path, tmp_path: Path) -> None:
    """What was paid for counts all the way, although a package is installed between."""
    bare = "from pathlib import Path\nlevel = 0.5000\nprint(f'Final Validation Performance: {level}')\n"
    mind = Mind(overrides={name: lambda prompt: fenced(bare) for name in ("init", "debugger", "test")})
    begun, run_dir, fork = tmp_path / "begun", tmp_path / "run", tmp_path / "fork"
    brain, python = Pausing(mind), tmp_path / "venv" / "bin" / "python"
    venv.create(tmp_path / "venv", symlinks=True)
    async with MessagesServer(brain) as server:
        cli = Cli(server.base_url)

        process = await cli.start(
            "run", str(data_dir), "--target", "label", "--metric", "accuracy", "--model", "sonnet", *SMALL,
            "--set", f"python={python}", "--json", "--output", str(begun),
        )  # fmt: skip
        for moment in (b'"phase1/data-use/data"', b'"finish_requested"'):
            await cli.until(begun / "journal.jsonl", moment, process)
            ctrl_c(process)
        out, err = await asyncio.wait_for(process.communicate(), 600)
        assert process.returncode == 130, err.decode()
        assert "`mle-star resume " in err.decode().splitlines()[-1]
        lines = [json.loads(line) for line in out.decode().splitlines()]
        assert lines[0]["kind"] == "run_started" and lines[-1]["kind"] == "run_finished"
        assert [event.now for event in events(begun, ev.FinishRequested)] == [False, True]
        scripts = [event.step for event in events(begun, ev.ScriptFinished)]
        assert scripts == ["phase1/candidate-0/script"] and brain.calls == {"retriever": 1, "init": 1}
        brain.silent, brain.finishing = False, run_dir  # Phase 2 is left to the fork

        begun.rename(run_dir)
        (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
        install(packages, "torch", "2.9.1")
        code, _, complaint = await cli.run("resume", str(run_dir), "--quiet")
        assert code == 2, complaint
        assert (brain.calls["retriever"], brain.calls["init"], len(events(run_dir, ev.RunResumed))) == (1, 1, 1)
        assert [event.step for event in events(run_dir, ev.ScriptFinished) if "candidate" in event.step] == scripts
        (notice,) = [event.message for event in events(run_dir, ev.Notice) if "Python of the scripts" in event.message]
        assert "(torch 2.9.1 is new): what is recorded counts" in notice
        assert events(run_dir, ev.RunFinished)[-1].submission_path == ""
        for name in ("result.json", "solution.py", "report.html"):
            assert (run_dir / name).is_file()

        shutil.rmtree(packages)  # a fork begins with the packages that there are
        del mind.overrides["test"]
        before = sum(brain.calls.values())
        words = ["--output", str(fork), "--set", "outer_loop_steps=4", "--display", "plain"]
        process = await cli.start("run", "--from", str(run_dir), *words)
        await cli.until(fork / "journal.jsonl", b'"phase2/path-0/t-0/k-0/coder"', process)
        ctrl_c(process)
        out, err = await asyncio.wait_for(process.communicate(), 600)
        assert process.returncode == 0, err.decode()  # once: finish with the best so far
        assert brain.calls["init"] == 1 and sum(brain.calls.values()) > before
        assert events(fork, ev.AgentFailed) == events(run_dir, ev.AgentFailed)  # the clients were not told to end
        assert len(events(fork, ev.AblationFinished)) == 1 and events(run_dir, ev.AblationFinished) == []
        started = first_line(fork)
        assert started.forked_from == str(run_dir) and started.config.outer_loop_steps == 4
        assert started.task.competition_id == first_line(run_dir).task.competition_id
        assert (fork / "final" / "submission.csv").read_text(encoding="utf-8").startswith("id,label\n")
        assert "submission.csv" in (out + err).decode()
    assert "key-of-a-loopback-test" not in (run_dir / "journal.jsonl").read_text(encoding="utf-8")


async def test_a_pipeline_that_fails_is_exit_code_3(data_dir: Path, tmp_path: Path) -> None:
    async with MessagesServer(MindBrain()) as server:
        code, _, err = await Cli(server.base_url).run(
            "run", str(data_dir), "--model", "sonnet", *SMALL, "--quiet", "--output", str(tmp_path / "run"),
            "--max-budget", "0.001",
        )  # fmt: skip
    assert code == 3 and "mle-star: error: no solution: stopped by the money limit" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert events(tmp_path / "run", ev.RunFinished)[-1].state == "failed"
    assert (tmp_path / "run" / "report.html").is_file()
