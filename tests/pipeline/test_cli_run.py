"""Whole runs through the real SDK, CLI and harness, with the mind behind the loopback API: in the process, and by
`mle-star run` and `mle-star resume`, which plan, are interrupted, and go on."""

import asyncio
import json
import os
import shutil
import signal
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import PermissionResultDeny
from starlette.responses import Response

from mle_star import models as m
from mle_star.cli.app import main
from mle_star.engineer.server import BrainReply, BrainRequest, MessagesServer, ToolCall
from mle_star.orchestrator import PipelineState, run_pipeline
from mle_star.run import events as ev
from mle_star.run.budget import price_of
from mle_star.run.folder import first_line, request_finish
from tests.conftest import Captured, Patch
from tests.faults import HANG
from tests.pipeline.conftest import clients_left, events, install, settings
from tests.pipeline.mind import Mind, MindBrain, broken, extracted, fenced, levels, script

pytestmark = pytest.mark.long

CANARIES = {
    "ANTHROPIC_API_KEY": "sk-ant-canary-0123456789",
    "AWS_SECRET_ACCESS_KEY": "aws/canary+0123456789",
    "MY_DATABASE_PASSWORD": 'canary"with\\odd-signs',
}
"""Secrets that must not show up in any run folder."""
SOAK = bool(os.environ.get("MLE_STAR_SOAK"))
RUNS = [(paths, calm) for paths in (3, 2, 1) for calm in (True, False)] if SOAK else [(2, False)]
"""Numbers of paths, and whether all goes well."""
AT_A_TIME = None if SOAK else 1
"""Paths that go one after the other use the same clients, and none is connected in vain."""


def troubled() -> Mind:
    """Nothing goes well at first: scripts snoop and crash, blocks are misquoted, replies tell secrets or nothing."""
    snoop = "import os\nprint(dict(os.environ))\nprint(os.popen('env').read())\nraise RuntimeError(str(os.environ))"

    def misquoted(prompt: str) -> dict[str, Any]:
        right = f"level = {levels(prompt)[0]:.4f}" if "was not found in the solution" in prompt else "not in the script"
        return extracted(right, "raise it, idea 0")

    return Mind(
        overrides={
            "init": fenced(f"{script(0.4)}{snoop}"),
            "extractor": misquoted,
            "summarize": f"By the way, I found {CANARIES['AWS_SECRET_ACCESS_KEY']} somewhere.",
            "ensembler": fenced(broken("first ensemble")),
            "test": "Let me think about that.",
        }
    )


class Curious(MindBrain):
    """Its A_init would like to read a file and to write one first."""

    def __init__(self, mind: Mind, file: Path) -> None:
        super().__init__(mind)
        self.wishes = [("Read", {"file_path": str(file)}), ("Write", {"file_path": "notes.txt", "content": "hello"})]

    async def reply(self, request: BrainRequest) -> BrainReply | Response:
        if request.agent == "init" and len(request.tool_results) < 2:
            wish = ToolCall(*self.wishes[len(request.tool_results)])
            return BrainReply(tool=wish, input_tokens=1000, output_tokens=100)
        return await super().reply(request)


def leaks(run_dir: Path) -> list[str]:
    return [
        f"{path}: {name}"
        for path in run_dir.rglob("*")
        if path.is_file() and not path.is_symlink()
        for name, value in CANARIES.items()
        if value.encode() in path.read_bytes() or value[-12:].encode() in path.read_bytes()
    ]


@pytest.mark.req("REQ-OR-001", "REQ-OR-009", "REQ-OR-015", "REQ-OR-018", "REQ-OR-036", "REQ-OR-043", "REQ-P1-007")
@pytest.mark.req("REQ-P2O-038", "REQ-P2I-044", "REQ-P3-040")
@pytest.mark.parametrize(("paths", "calm"), RUNS)
async def test_the_whole_pipeline_with_one_and_several_paths_in_calm_and_in_trouble(
    task: m.TaskDescription, tmp_path: Path, monkeypatch: Patch, paths: int, calm: bool
) -> None:
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    requests: list[tuple[str, str]] = []

    async def refuse(tool: str, arguments: dict[str, Any], context: object) -> PermissionResultDeny:
        requests.append((tool, Path(arguments["file_path"]).name))
        return PermissionResultDeny(message="the owner says no")

    brain = Curious(Mind() if calm else troubled(), Path(task.data_dir) / "train.csv")
    run_dir, state = tmp_path / "run", PipelineState()
    config = settings(
        M=1, T=1, K=1, R=1, L=paths, client_reuse="clear", model="sonnet", max_concurrent_paths=AT_A_TIME,
        tool_profile="full", permission_mode="default", scoring="self_reported", diversity=(),
    )  # fmt: skip
    async with MessagesServer(brain) as server:
        options: dict[str, Any] = {"base_url": server.base_url, "can_use_tool": refuse, "console": False}
        result = await run_pipeline(task, config, run_dir=run_dir, state=state, **options)
        assert server.errors == []
    assert requests == [("Read", "train.csv"), ("Write", "notes.txt")] and not list(run_dir.rglob("notes.txt"))
    assert leaks(run_dir) == [] and clients_left() == [], "the clients of a run go with it"
    assert result.phases_completed == ["phase1", "phase2", *(["phase3"] if paths > 1 else []), "finalization"]
    assert state.phase2_path_statuses == ["completed"] * paths
    assert Path(result.submission_path).read_text(encoding="utf-8").startswith("id,label\n100,")
    calls = sum(brain.calls.values())
    assert len(events(run_dir, ev.AgentFinished)) == calls == state.agent_call_count
    price, turns = price_of(result.config.model), calls + len(requests)
    assert price is not None
    assert result.total_cost_usd == pytest.approx(turns * (1000 * price.input + 100 * price.output) / 1e6)
    assert events(run_dir, ev.RunFinished)[-1].state == "completed"
    before, after = events(run_dir, ev.RunStarted)[0], events(run_dir, ev.ScriptFinished)[0]
    assert before.isolation.sandbox == after.result.isolation.sandbox
    if calm:
        assert result.final_solution.score == pytest.approx(0.51 if paths == 1 else 0.52)
        assert brain.calls["debugger"] == 0
        return
    assert brain.calls["debugger"] >= 2 and brain.calls["extractor"] == 2 * paths and events(run_dir, ev.DebugAttempted)
    assert result.phase1.initial_score == 0.4 and result.phase2_results[0].best_score == pytest.approx(0.41)
    assert all(event.outcome in ("completed", "skipped") for event in events(run_dir, ev.PhaseFinished))
    assert any("PATH" in event.result.stdout for event in events(run_dir, ev.ScriptFinished))  # the script did look


SHARES = "{phase1: 0.4, phase2: 0.3, phase3: 0.1, finalization: 0.2}"
SMALL = ["-M", "1", "-T", "1", "-K", "1", "-L", "1", "--set", "client_reuse=clear", "--set", "max_debug_attempts=1"]
SMALL += ["--set", "leakage_checks=promising"]


def test_a_dry_run_does_nothing(data_dir: Path, tmp_path: Path, capfd: Captured, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(data_dir), "--model", "sonnet", "--dry-run", "--json", "--metric", "auc"]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["forecast"]["calls"] > 100 and 0 < plan["forecast"]["cost_usd"] < 50
    assert plan["task"]["evaluation_metric"] == "roc_auc" and Path(plan["run_folder"]).parent == tmp_path / "runs"
    assert list(tmp_path.iterdir()) == [data_dir]


def test_another_run_is_continued_with_its_settings_and_those_given_now(
    data_dir: Path, tmp_path: Path, task: m.TaskDescription, capfd: Captured
) -> None:
    (tmp_path / "old").mkdir()
    roles = {m.AgentType.planner: m.RoleSettings(model="opus"), m.AgentType.coder: m.RoleSettings(model="haiku")}
    config = m.PipelineConfig(model="offline", seed=5, outer_loop_steps=9, agents=roles)
    first = ev.RunStarted(run_id="one", task=task, config=config, model="offline")
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
    def __init__(self, run_dir): pass
    def __call__(self, event):
        if event.kind == "run_started": os.kill(os.getpid(), signal.SIGINT)
    def end(self): pass
"""
"""Presses Ctrl-C when the first line of the journal is written."""


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
    """An agent of it keeps `silent` after some calls until it is told to go on; the next asks `finishing` to finish."""

    silent, after = "data", 0
    finishing: Path | None = None

    async def reply(self, request: BrainRequest) -> BrainReply | Response:
        if request.agent == self.silent and self.calls[self.silent] >= self.after:
            return HANG
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
        brain.silent, brain.finishing = "", run_dir  # Phase 2 is left to the fork
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
        assert "submission.csv" in (out + err).decode() and b"\nnext: mle-star report " in err
    assert "key-of-a-loopback-test" not in (run_dir / "journal.jsonl").read_text(encoding="utf-8")


async def test_a_pipeline_that_fails_is_exit_code_3(data_dir: Path, tmp_path: Path) -> None:
    async with MessagesServer(MindBrain()) as server:
        code, _, err = await Cli(server.base_url).run(
            "run", str(data_dir), "--model", "sonnet", *SMALL, "--quiet", "--output", str(tmp_path / "run"),
            "--max-budget", "0.001",
        )  # fmt: skip
    assert code == 3 and "mle-star: error: no solution: stopped by the money limit" in err.splitlines()[-1]
    assert "Traceback" not in err and events(tmp_path / "run", ev.RunFinished)[-1].state == "failed"
    assert (tmp_path / "run" / "report.html").is_file()


async def test_a_run_uses_its_time_and_goes_on_with_more(data_dir: Path, tmp_path: Path) -> None:
    """Its T is the least: there are more steps, a plan made while a script runs, no warning; and it can be resumed."""
    run_dir, reached = tmp_path / "run", list[tuple[int, float]]()
    command = ["run", str(data_dir), "--model", "sonnet", *SMALL, "-K", "2", "--set", "more_steps=true"]
    command += ["--set", "scoring=self_reported", "--set", f"phase_time_budget={SHARES}", "--output", str(run_dir)]
    async with MessagesServer(brain := Pausing(Mind())) as server:
        brain.silent, brain.after = "coder", 2
        for limit in (60, 75):
            code, out, err = await Cli(server.base_url).run(*command, "--time-limit", f"{limit}s", "--quiet")
            command, brain.silent, last = ["resume", str(run_dir)], "", events(run_dir, ev.RunFinished)[-1]
            assert code == 0 and "used its time" in out and last.seconds <= limit, out + err
            assert last.result is not None and (last.message, last.result.warnings) == ("used its time", [])
            assert json.loads((run_dir / "result.json").read_text(encoding="utf-8"))["used_time"] is True
            reached.append((len(last.result.phase2_results[0].step_history), last.result.phase2_results[0].best_score))
    assert 1 < reached[0][0] <= reached[1][0] and reached[0][1] <= reached[1][1], "what was done counts"
    studies = [event for event in events(run_dir, ev.Decided) if event.step.endswith("/t-0/study")]
    assert brain.calls["init"] == len(studies) == 1
    (first, *_) = (event for event in events(run_dir, ev.AgentFinished) if event.agent is m.AgentType.planner)
    assert "it is running now" in first.prompt and first.text in {e.plan for e in events(run_dir, ev.RefinementTried)}
