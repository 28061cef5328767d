"""What every `Executor` must do: subclass `ExecutorContract` in a test file and give it an `executor` fixture.

Scripts may run on another machine: nothing is asked of it but what the request says, and nothing is looked at but what
comes back: the outcome, the output while it runs, `final/`, and `model/` where there is one. The tests need pytest and
pytest-asyncio, which the package itself does not.
"""

import asyncio
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path

import psutil
import pytest

from mle_star.models import ExecutionRawResult
from mle_star.run.context import Executor, ScriptRequest

Run = Callable[..., Coroutine[object, object, ExecutionRawResult]]
PLAIN_ENV = {"PATH": os.environ.get("PATH", ""), "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}


def living(*words: str) -> list[str]:
    """The command lines of all processes that have one of `words` in them, this one's own family excepted."""
    mine = {process.pid for process in (psutil.Process(), *psutil.Process().parents())}
    known = (process.info for process in psutil.process_iter(["pid", "cmdline", "status"]))
    others = (one for one in known if one["pid"] not in mine and one["status"] != psutil.STATUS_ZOMBIE)
    lines = (" ".join(one["cmdline"] or ()) for one in others)
    return [line for line in lines if any(word in line for word in words)]


async def heard(log: Path, word: str) -> None:
    """Wait until a script has said `word`."""
    while not log.exists() or word not in log.read_text():
        await asyncio.sleep(0.02)


async def gone(*words: str, within: float = 120.0) -> bool:
    """Do all processes with one of `words` in their command line end in time?"""
    deadline = time.monotonic() + within
    while living(*words):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


@pytest.mark.asyncio
class ExecutorContract:
    """A script runs as a process with its own directory, environment and limits, and leaves nothing behind."""

    @pytest.fixture
    def executor(self) -> Executor:
        raise NotImplementedError

    @pytest.fixture
    def request_for(self, tmp_path: Path) -> Callable[..., ScriptRequest]:
        """Makes a request for a script's text, in a working directory below `tmp_path`."""

        def make(code: str, *, timeout: float = 120.0, folder: str = "work", **fields: object) -> ScriptRequest:
            work = tmp_path / folder
            for name in ("input", "final"):
                (work / name).mkdir(parents=True, exist_ok=True)
            (work / "solution.py").write_text(code, encoding="utf-8")
            values = {"env": PLAIN_ENV, "working_dir": str(work), **fields}
            return ScriptRequest(script_path=str(work / "solution.py"), timeout_seconds=timeout, **values)

        make("")
        return make

    @pytest.fixture
    def run(self, executor: Executor, request_for: Callable[..., ScriptRequest]) -> Run:
        """Runs a script's text."""
        return lambda code, **fields: executor.run(request_for(code, **fields))

    @pytest.mark.parametrize(
        ("code", "exit_code", "stdout", "stderr"),
        [
            ("import os\nprint(*sorted(os.listdir()))\nraise SystemExit(3)", 3, "final input solution.py\n", ""),
            ("import sys\nprint('oh', file=sys.stderr)\nprint(repr(sys.stdin.read()))", 0, "''\n", "oh\n"),
            ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", -11, "", None),
            ("import sys\nsys.stdout.buffer.write(b'\\xff\\xfe ok\\n')", 0, "\ufffd\ufffd ok\n", ""),
            ("import sys, pydantic\nprint(sys.executable)", 0, f"{sys.executable}\n", ""),
        ],
        ids=["directory", "streams", "signal", "no text", "interpreter"],
    )
    async def test_streams_exit_code_and_directory_come_back_as_they_were(
        self, run: Run, tmp_path: Path, code: str, exit_code: int, stdout: str, stderr: str | None
    ) -> None:
        log = tmp_path / "out.log"
        raw = await run(code, output_file=str(log))
        assert (raw.stdout, raw.exit_code, raw.timed_out) == (stdout, exit_code, False), raw.stderr
        assert stderr in (None, raw.stderr) and 0 < raw.duration_seconds < 120
        assert set((stdout + (stderr or "")).split()) == set(log.read_text(errors="replace").split())

    async def test_environment_and_home_are_the_script_s_own(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HARNESS_ONLY", "1")
        code = (
            "import os, pathlib, tempfile\nhome = pathlib.Path.home()\n(home / 'x').write_text('1')\n"
            "print(home, tempfile.mkstemp()[1], *os.environ)"
        )
        raw = await run(code, env={**PLAIN_ENV, "MINE": "2"})
        assert raw.exit_code == 0, raw.stderr
        home, temporary, *names = raw.stdout.split()
        assert home != str(Path.home())
        assert not Path(temporary).exists() and not (Path(home) / "x").exists()
        assert "MINE" in names and "HARNESS_ONLY" not in names

    async def test_data_are_shown_as_input_cannot_be_changed_and_outputs_stay(self, run: Run, tmp_path: Path) -> None:
        data, work = tmp_path / "data", tmp_path / "work"
        (data / "more").mkdir(parents=True)
        (data / "train.csv").write_text("a\n1\n")
        (data / "more" / "notes.txt").write_text("b\n")
        for name in ("train.csv", "more"):
            (work / "input" / name).symlink_to(data / name)
        code = (
            "import os\ntext = open('./input/train.csv').read() + open('./input/more/notes.txt').read()\n"
            "open('./final/submission.csv', 'w').write(text)\nos.mkdir('final/more')\n"
            "open('final/more/model.bin', 'wb').write(bytes(1000))\nos.symlink('/etc/passwd', 'final/link')"
        )
        for _ in range(2):  # what the first one left is gone
            raw = await run(code, input_dir=str(data))
            assert raw.exit_code == 0, raw.stderr
            assert (work / "final" / "submission.csv").read_text() == "a\n1\nb\n"
            assert (work / "final" / "more" / "model.bin").read_bytes() == bytes(1000)
            shutil.rmtree(work / "final")
            (work / "final").mkdir()
        (data / "train.csv").write_text("a\n2\n")
        await run(code, input_dir=str(data))
        assert (work / "final" / "submission.csv").read_text() == "a\n2\nb\n"
        raw = await run("open('./input/train.csv', 'a').write('3')", input_dir=str(data))
        if raw.isolation.sandbox not in ("none", "seccomp"):  # else it does not claim to confine scripts
            assert raw.exit_code != 0 and (data / "train.csv").read_text() == "a\n2\n"
            raw = await run("print(open('./input/train.csv').read())", input_dir=str(data))
            assert raw.stdout.strip() == "a\n2"

    async def test_what_a_script_fitted_comes_back_and_goes_with_it_the_next_time(
        self, run: Run, tmp_path: Path
    ) -> None:
        work = tmp_path / "work"
        for name in ("model", "solution"):
            (work / name).mkdir()
        (work / "solution" / "member_1.py").write_text("print('a member')")
        code = (
            "import os, runpy\nrunpy.run_path('solution/member_1.py')\nprint(*sorted(os.listdir('model')))\n"
            "os.makedirs('model/deep', exist_ok=True)\n"
            "open('model/deep/weights.bin', 'ab').write(bytes(1000))\nopen('model/' + os.urandom(4).hex(), 'w')"
        )
        raw = await run(code)
        assert (raw.exit_code, raw.stdout) == (0, "a member\n\n"), raw.stderr
        assert (work / "model" / "deep" / "weights.bin").read_bytes() == bytes(1000)
        kept = sorted(path.name for path in (work / "model").iterdir())
        assert len(kept) == 2 and (await run(code)).stdout == f"a member\n{' '.join(kept)}\n"
        assert (work / "model" / "deep" / "weights.bin").read_bytes() == bytes(2000)

    @pytest.mark.parametrize("reaction", ["pass", "raise SystemExit(0)"])
    async def test_past_its_time_a_script_gets_a_hint_and_ends_whatever_it_does_with_all_its_children(
        self, run: Run, reaction: str
    ) -> None:
        token = uuid.uuid4().hex
        code = (
            f"import signal, subprocess, sys, time\ndef end(*_):\n    print('told', flush=True)\n    {reaction}\n"
            "signal.signal(signal.SIGTERM, end)\n"
            f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', '{token}'])\n"
            "print('begun', flush=True)\ntime.sleep(600)"
        )
        for seconds in (2.0, 20.0, 120.0):  # more where it takes longer until it has begun
            raw = await run(code, timeout=seconds)
            assert raw.timed_out and await gone(token)
            if "begun" in raw.stdout:
                break
        assert (raw.exit_code, raw.stdout) == (-1, "begun\ntold\n")

    @pytest.mark.parametrize("times", [1, 2])
    async def test_cancellation_ends_the_tree_and_lets_nothing_escape(
        self, run: Run, tmp_path: Path, times: int
    ) -> None:
        token, log = uuid.uuid4().hex, tmp_path / "out.log"
        code = (
            "import signal, subprocess, sys, time\n"
            f"signal.signal(signal.SIGTERM, signal.{'SIG_IGN' if times > 1 else 'SIG_DFL'})\n"
            f"sleep = [sys.executable, '-c', 'import time; time.sleep(600)', '{token}']\n"
            f"subprocess.Popen(sleep, start_new_session={times > 1})\nprint('ready', flush=True)\ntime.sleep(600)"
        )
        task = asyncio.create_task(run(code, timeout=600, output_file=str(log)))
        await heard(log, "ready")
        started = time.monotonic()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.1)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await gone(token) and time.monotonic() - started < 240

    async def test_a_daemon_that_outlives_the_script_is_ended_and_does_not_hold_the_result_back(self, run: Run) -> None:
        token = uuid.uuid4().hex
        code = (
            "import os, sys, time\n"
            "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
            f"        sleep = ['-c', 'import time; time.sleep(600)', '{token}']\n"
            "        os.execve(sys.executable, [sys.executable, *sleep], {})\n"
            "    os._exit(0)\nos.wait()\nprint('done')"
        )
        raw = await run(code)  # within its time, which is shorter than the daemon's
        assert (raw.exit_code, raw.stdout) == (0, "done\n")
        assert await gone(token)

    async def test_runs_side_by_side_do_not_touch_each_other(self, run: Run) -> None:
        before = Path.cwd()
        code = "import os, time\ntime.sleep(0.2)\nos.environ['X'] = '1'\nprint({})"
        results = await asyncio.gather(*(run(code.format(i % 3), folder=f"work{i}") for i in range(4)))
        assert [(raw.stdout, raw.exit_code) for raw in results] == [("0\n", 0), ("1\n", 0), ("2\n", 0), ("0\n", 0)]
        assert Path.cwd() == before and "X" not in os.environ
