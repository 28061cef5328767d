"""What the tests of the harness share: executors of each kind, a run around them, and harnesses of other users."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from mle_star import models as m
from mle_star.execution import LocalExecutor, link_input_data, prepare_path_directory
from mle_star.execution.workspace import remove_entry
from mle_star.run import events as ev
from mle_star.run.budget import Budget
from mle_star.run.context import Executor, RunContext, ScriptRequest, enter_run
from mle_star.run.journal import Journal
from mle_star.testing.executor import PLAIN_ENV
from tests.conftest import write_split, write_texts

OpenRun = Callable[..., AbstractContextManager[RunContext]]
Kind = Literal["auto", "namespaces", "none"]
"""How a script is confined: as well as it goes, without bubblewrap, or not at all."""


def script(content: str, phase: m.SolutionPhase = m.SolutionPhase.init) -> m.SolutionScript:
    """A script as the phases hand it around."""
    return m.SolutionScript(content=content, phase=phase)


def scored(value: float | str, *more: str) -> m.SolutionScript:
    """A script that prints a score."""
    return script("\n".join([*more, f"print('Final Validation Performance: {value}')"]))


def request_for(folder: Path, code: str, **fields: Any) -> ScriptRequest:
    """A request for a script's text, with this folder as its working directory."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "solution.py").write_text(code, encoding="utf-8")
    values = {"timeout_seconds": 240, "env": PLAIN_ENV, **fields}
    return ScriptRequest(script_path=str(folder / "solution.py"), working_dir=str(folder), **values)


def request_on(folder: Path, code: str = "print(open('input/a.csv').read())", **fields: Any) -> ScriptRequest:
    """A request with data of its own, for a machine elsewhere."""
    for name in ("data", "work/input", "work/final"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if not (folder / "data" / "a.csv").exists():
        (folder / "data" / "a.csv").write_text("a")
    return request_for(folder / "work", code, **{"input_dir": str(folder / "data"), **fields})


def write_files(folder: Path, *names: str, text: str = "x") -> None:
    """Files with the same text, and the folders that they lie in."""
    write_texts(folder, dict.fromkeys(names, text))


class FixedExecutor:
    """Answers after `seconds`, the first two when both are `together`; for what does not depend on processes.

    What a script would do first is done by `first`.
    """

    def __init__(
        self, stdout: str = "Final Validation Performance: 0.5\n", seconds: float = 0.0, *, together: bool = False,
        first: Callable[[ScriptRequest], object] = lambda request: None, **fields: object,
    ) -> None:  # fmt: skip
        self.raw = m.ExecutionRawResult.model_validate(
            {"stdout": stdout, "stderr": "", "exit_code": 0, "duration_seconds": 1.0, "timed_out": False, **fields}
        )
        self.seconds, self.together, self.first, self.requests = seconds, together, first, list[ScriptRequest]()
        self.running = self.most = 0

    async def run(self, request: ScriptRequest) -> m.ExecutionRawResult:
        self.requests.append(request)
        self.first(request)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        while self.together and self.most < 2:
            await asyncio.sleep(0.01)
        self.running -= 1
        return self.raw


class Repairs:
    """A debugger that answers from a list, the last answer again and again, and remembers what it was given."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.errors, self.given = list(answers), list[str](), list[m.SolutionScript]()

    async def __call__(self, solution: m.SolutionScript, text: str) -> m.SolutionScript:
        self.given.append(solution)
        self.errors.append(text)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return cast(m.SolutionScript, answer)


def finished(run: RunContext) -> list[ev.ScriptFinished]:
    """The scored runs of scripts that the journal holds."""
    return [event for event in run.journal.events if isinstance(event, ev.ScriptFinished)]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder for everybody; those of pytest are for its own user alone."""
    folder = Path(tempfile.mkdtemp(prefix="everybody-"))
    folder.chmod(0o777)
    yield folder
    assert remove_entry(folder)


@pytest.fixture
def open_run(tmp_path: Path, task: m.TaskDescription) -> OpenRun:
    """Opens a run in `tmp_path/run`, again and again: the journal is what an earlier opening left."""

    @contextmanager
    def opened(
        config: m.PipelineConfig | None = None, executor: Executor | None = None, **fields: Any
    ) -> Iterator[RunContext]:
        config, run_dir = config or m.PipelineConfig(time_limit_seconds=600), tmp_path / "run"
        run_dir.mkdir(exist_ok=True)
        work = Path(prepare_path_directory(run_dir / "work", "main"))
        link_input_data(task.data_dir, str(work))
        with Journal(run_dir / "journal.jsonl") as journal:
            given = {"executor": executor or LocalExecutor(config), "budget": Budget(config), **fields}
            nobody = cast(Any, None)  # the harness asks no agent
            context = RunContext(task, config, nobody, journal=journal, run_dir=run_dir, work_dir=work, **given)
            with enter_run(context):
                yield context

    return opened


def write_sizes(folder: Path, count: int = 400) -> Path:
    """A task of so many labelled rows and 40 to answer; the label follows from the size."""
    rows = [(i, i * 7 % 50, int(i * 7 % 50 > 25)) for i in range(count + 40)]
    return write_split(folder, "id,size,label", rows, count)


ROOT = Path(__file__).parents[2]
SITE = next(path for path in sys.path if path.endswith("site-packages"))
SCRIPT = str(ROOT / "tests" / "scripts" / "harness_as_user.py")
NAMED = 65534
ALONE = ["unshare", "--map-root-user", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh"]
"""As in a container without privileges: root is the only user there, and nobody can make namespaces."""


def driver(*words: str, **options: object) -> subprocess.Popen[bytes]:
    """Start a program that can import this package."""
    more = {"MLE_STAR_SECRET": words[-1], "PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT / 'src'}:{SITE}"}
    return subprocess.Popen([*words], env=more, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


def harness(*words: str, user: str = "ordinary", number: int | None = None) -> dict[str, Any]:
    """What came of a mode of `SCRIPT`, by its words, with a harness of that user."""
    if user == "root" and os.getuid() != 0:
        pytest.skip("only root can try what root's scripts can do")
    python, who = unprivileged_python(number) if user == "ordinary" else (sys.executable, {})
    program = [*(ALONE if user == "alone" else ()), python, SCRIPT]
    output, errors = driver(*program, *words, stderr=subprocess.PIPE, **who).communicate(timeout=900)
    assert output, errors.decode()
    seen: dict[str, Any] = json.loads(output)
    assert (seen["uid"] == 0) is (user != "ordinary")
    return seen


def printed_by_user(code: str, *words: str) -> list[str]:
    """The lines that a program prints when an ordinary user runs it: root passes every lock."""
    python, who = unprivileged_python()
    return driver(python, "-c", code, *words, **who).communicate(timeout=240)[0].decode().splitlines()


def unprivileged_python(number: int | None = None) -> tuple[str, dict[str, Any]]:
    """An interpreter of this version that an ordinary user can start, and how to become one.

    Unless a number is given, the user is made for the test: in the range that services have for users as short-lived as
    they are. The kernel counts a user's processes, and `nobody` has some in other tests.
    """
    if os.getuid() != 0:
        return sys.executable, {}
    own = number or 61184 + os.getpid() % 4096
    somebody: dict[str, Any] = {"user": own, "group": own, "extra_groups": []}
    for python in (sys.executable, "/usr/bin/python{}.{}".format(*sys.version_info[:2])):
        try:
            subprocess.run([python, "-c", "pass"], check=True, capture_output=True, **somebody)
        except (OSError, subprocess.SubprocessError):
            continue
        return python, somebody
    raise AssertionError("an ordinary user can start no interpreter here")
