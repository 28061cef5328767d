"""Hostile scripts are contained, attacks are held, and everyday work is not refused, for root and for other users."""

import dataclasses
import functools
import hashlib
import locale
import os
import pwd
import runpy
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from mle_star import execution as ex
from mle_star.execution.limits import find_cgroup_parent
from mle_star.execution.recorded import execute_in_run
from mle_star.execution.workspace import own_prefix
from mle_star.models import PipelineConfig, TaskDescription
from mle_star.run.context import RunContext, RunShared, Scripts
from mle_star.testing.executor import gone
from tests.conftest import Patch
from tests.conftest import kept as kept_submission
from tests.execution import hostile
from tests.execution.conftest import NAMED, ROOT, Kind, OpenRun, harness, scored, script
from tests.execution.hostile import CASES, Case

pytestmark = pytest.mark.long

SMALL = ex.Limits(**hostile.SMALL)
CANARY = "canary-9b1d"
HOMEFILE = f".mle-star-{CANARY}-{os.getpid()}"
NEXT = (
    "import hashlib, os\nprint(hashlib.sha256(open('input/train.csv', 'rb').read()).hexdigest())\n"
    "assert sorted(os.listdir()) == ['cache', 'final', 'input', 'solution.py'], os.listdir()\n"
    "assert not os.listdir('cache') and not os.listdir('final')"
)
"""What the next script in the same directory must find: the data, itself, and nothing of its predecessor."""
NAMES: dict[Kind, str] = {"auto": "bubblewrap+seccomp", "namespaces": "namespaces+seccomp", "none": "seccomp"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def open_small(open_run: OpenRun) -> OpenRun:
    """A run with an executor of small limits; what a run finds out once is given."""

    def opened(executor: ex.LocalExecutor | None = None, **options: Any) -> AbstractContextManager[RunContext]:
        shared = RunShared(scripts=Scripts(surroundings="the same for all", gpus=[]))
        return open_run(executor=executor or ex.LocalExecutor(**{"limits": SMALL, **options}), shared=shared)

    return opened


@pytest.fixture(scope="module")
def secrets() -> Iterator[list[str]]:
    """What no script may get to see: of another process of this user, of the home folder, of the password files."""
    seen = [CANARY]
    for path in (Path("/etc/shadow"), Path("/etc/gshadow")):
        if os.access(path, os.R_OK):
            seen += [line for line in path.read_text().splitlines() if line.count(":") > 2]
    planted = Path(pwd.getpwuid(os.getuid()).pw_dir) / HOMEFILE
    planted.write_text(CANARY)
    env = {"SECRET": CANARY, "PATH": os.environ.get("PATH", "")}
    neighbour = subprocess.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE)
    yield seen
    planted.unlink()
    assert neighbour.poll() is None, "a script has killed somebody else's process"
    neighbour.communicate(b"\n")


def kinds(number: int, case: Case) -> list[Kind]:
    """Bubblewrap holds every case, and every third one is tried without; the soak tries all three kinds."""
    others: list[Kind] = ["namespaces"] if case.confined else ["namespaces", "none"]
    if os.environ.get("MLE_STAR_SOAK") or case.everywhere:
        return ["auto", *others]
    return ["auto", *([] if number % 3 else [others[number % len(others)]])]


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, id=f"{case.name}, {NAMES[kind]}")
        for number, case in enumerate(CASES)
        for kind in kinds(number, case)
    ],
)
async def test_a_hostile_script_is_contained(
    case: Case, kind: Kind, open_small: OpenRun, task: TaskDescription, tmp_path: Path, secrets: list[str],
    monkeypatch: Patch,
) -> None:  # fmt: skip
    """A case for the box never runs outside it: without bubblewrap it is skipped, or fails where that must be there."""
    if kind == "auto" and ex.LocalExecutor().means.sandbox.kind != "bubblewrap":
        (pytest.fail if os.environ.get("CI") else pytest.skip)("bubblewrap does not work here")
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    token, home, outside = uuid.uuid4().hex, pwd.getpwuid(os.getuid()).pw_dir, tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine\n")
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    words = {"TOKEN": token, "OUTSIDE": str(outside), "PORT": str(port), "HOMEFILE": HOMEFILE, "REALHOME": home}
    code = functools.reduce(lambda text, word: text.replace(*word), words.items(), case.code)
    before = contents(Path(task.data_dir)), contents(outside), Path.cwd(), locale.setlocale(locale.LC_ALL)
    with server, open_small(config=PipelineConfig(require_sandbox=kind != "none"), sandbox=kind) as run:
        result = await execute_in_run(script(code), purpose="solution", timeout_seconds=case.timeout)
        if result.timed_out and case.score is not None and result.score is None:  # too slow to come to its score
            result = await execute_in_run(script(code), purpose="solution", timeout_seconds=60)
        error = ex.debug_text(result) if result.is_error else ""
        assert case.error is None or result.is_error is case.error, result
        assert result.score == case.score or (case.error is None and result.is_error), result
        assert any(word in error or word in result.stdout for word in case.says.split("|")), error
        assert len(error) < 40_000 and len(result.stdout) + len(result.stderr) < 300_000
        assert not [secret for secret in secrets if secret in result.stdout]
        assert ex.verify_submission(str(run.work_dir)) is case.submission and await gone(token, str(run.run_dir))
        groups = parent.glob(f"mle-star-{os.getpid()}-*") if (parent := find_cgroup_parent()) else ()
        folders = Path(tempfile.gettempdir()).glob(f"{own_prefix('mle-star-')}*")
        assert not [*groups, *folders], "temporary folders and control groups of this process"
        after = contents(Path(task.data_dir)), contents(outside), Path.cwd(), locale.setlocale(locale.LC_ALL)
        assert after == before and not (Path(home) / token).exists() and not (run.work_dir.parent / "escaped").exists()
        again = await execute_in_run(scored(0.75, NEXT), timeout_seconds=240)
        assert (again.score, again.is_error) == (0.75, False), again
        assert hashlib.sha256((Path(task.data_dir) / "train.csv").read_bytes()).hexdigest() in again.stdout
        assert again.isolation.sandbox == NAMES[kind] and contents(outside) == before[1]


COUNTED = {
    "shared mapping": "import mmap\nm = mmap.mmap(-1, 400 << 20)\nfor _ in range(100):\n    m.write(bytes(4 << 20))",
    "memory file": "import os\nfor i in range(10):\n    os.write(os.memfd_create(str(i)), bytes(40 << 20))",
    **{case.name: case.code for case in CASES},
}
CAUSES = {
    "shared mapping": "more than 0.3 GB of memory",
    "memory file": "more than 0.3 GB of memory",
    "children that sleep": "more than 60 processes|BlockingIOError",
    "thread bomb": "more than 60 processes|can't start new thread",
    "memory hogs side by side": "more than",
}


@pytest.mark.parametrize(
    ("what", "how"),
    [*((what, how) for what in CAUSES for how in ("bubblewrap", "alone")), ("children that sleep", "outside")],
)
async def test_without_a_group_the_supervisor_counts(what: str, how: str, open_small: OpenRun, tmp_path: Path) -> None:
    executor = ex.LocalExecutor(limits=SMALL, sandbox="none" if how == "alone" else "auto", use_cgroups=False)
    if how == "outside":
        executor.means = dataclasses.replace(executor.means, cgroups=tmp_path)
    with open_small(executor) as run:
        result = await execute_in_run(script(f"{COUNTED[what]}\nimport time\ntime.sleep(600)"), timeout_seconds=240)
        text = ex.debug_text(result)
        assert result.is_error and any(word in text for word in CAUSES[what].split("|")), text
        assert {"processes 60", "memory 0.3 GB"} <= set(result.isolation.limits) and await gone(str(run.run_dir))


@pytest.mark.parametrize("held", ["m = mmap.mmap(-1, 120 << 20)\nm.write(bytes(len(m)))", "m = b'x' * (120 << 20)"])
async def test_memory_that_processes_share_counts_once(held: str, open_small: OpenRun) -> None:
    """Mapped by all of them, or theirs since a fork."""
    code = (
        f"import mmap, os, time\n{held}\n"
        "for _ in range(3):\n    if os.fork() == 0:\n        total = sum(m[::4096])\n        time.sleep(2)\n"
        "        os.kill(os.getpid(), 9)\nfor _ in range(3):\n    os.wait()\n"
    )
    with open_small(use_cgroups=False):
        assert (await execute_in_run(scored(0.5, code), timeout_seconds=240)).score == 0.5


async def test_a_script_that_kills_its_supervisor_is_swept_up(open_small: OpenRun) -> None:
    """Where no namespaces keep it from doing so."""
    token = uuid.uuid4().hex
    code = (
        "import os, signal, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', '{token}'], start_new_session=True)\n"
        "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)"
    )
    with open_small(sandbox="none", use_cgroups=False) as run:
        result = await execute_in_run(script(code), timeout_seconds=240)
        assert (result.is_error, result.exit_code) == (True, -9) and await gone(token, str(run.run_dir))
        assert (await execute_in_run(scored(0.75), timeout_seconds=240)).score == 0.75


async def test_a_submission_of_seven_gigabytes_is_refused_unread(open_small: OpenRun) -> None:
    code = "open('final/submission.csv', 'wb').truncate(7 << 30)"
    with open_small(limits=dataclasses.replace(SMALL, file_bytes=8 << 30)) as run:
        assert (await execute_in_run(scored(0.5, code), timeout_seconds=240)).score == 0.5
        (problem,) = ex.check_submission_format(str(run.work_dir))
        assert "larger than 1 GiB" in problem
        assert not ex.verify_submission(str(run.work_dir)) and kept_submission(run) is None
        assert not (run.run_dir / "artifacts").exists()
        assert (await execute_in_run(scored(0.75, NEXT), timeout_seconds=240)).score == 0.75


FEW = ("prints the score twice", "children that sleep", "memory hog", "ignores SIGTERM", "writes elsewhere")


@pytest.mark.parametrize(("kind", "user"), [*((kind, "ordinary") for kind in NAMES), ("auto", "alone")])
def test_scripts_of_users_and_in_containers_are_contained(kind: Kind, user: str, open_folder: Path) -> None:
    """A few of them; in the soak, all that need no more than a folder."""
    names = () if os.environ.get("MLE_STAR_SOAK") else FEW
    seen = harness("cases", kind, str(open_folder), ";".join(names), user=user)
    assert (seen["sandbox"], seen["left"]) == (NAMES["none" if user == "alone" else kind], [])
    assert set(seen["cases"]) >= {*FEW[: 4 if seen["sandbox"] == "seccomp" else 5]}
    assert names or len(seen["cases"]) >= 60
    for case in CASES:
        if (result := seen["cases"].get(case.name)) is not None:
            assert case.error is None or result["is_error"] is case.error, (case.name, result)
            assert result["score"] == case.score or (case.error is None and result["is_error"]), (case.name, result)
            assert case.name not in FEW or any(word in result["text"] for word in case.says.split("|")), result


ATTACKS: dict[str, Any] = runpy.run_path(str(ROOT / "tests" / "scripts" / "attacks.py"))["ATTACKS"]
BOXES = ("auto", "namespaces")


@pytest.mark.parametrize("user", ["root", "ordinary"])
@pytest.mark.parametrize("sandbox", BOXES)
def test_nothing_gets_through(sandbox: Kind, user: str, open_folder: Path) -> None:
    seen = harness("attacks", sandbox, str(open_folder), f"canary-{uuid.uuid4().hex[:12]}", user=user)
    assert (seen["exit"], seen["sandbox"], seen["planted"], seen["missing"]) == (0, NAMES[sandbox], 1, ""), seen
    assert "no root" in seen["limits"]
    # that one is told apart from an attempt that broke down on its way
    assert seen["results"]["find a label that is hidden from it, in any file within reach"] == "held: nothing found"
    assert {title: outcome for title, outcome in seen["results"].items() if not outcome.startswith("held")} == {}
    assert set(seen["results"]) == set(ATTACKS) and len(ATTACKS) >= 105


def test_there_are_enough_of_them_and_the_list_in_the_docs_is_current() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 70
    tool = runpy.run_path(str(ROOT / "tools" / "attacks.py"))
    assert tool["page"]() == tool["PAGE"].read_text(encoding="utf-8"), "python tools/attacks.py --write"


@pytest.mark.parametrize("user", ["root", "ordinary"])
@pytest.mark.parametrize("sandbox", NAMES)
def test_what_scripts_do_every_day_works(sandbox: str, user: str, open_folder: Path) -> None:
    """Nothing that a training script does is refused; outside of the soak models are trained in one sandbox only."""
    models = ["MODELS"] if os.environ.get("MLE_STAR_SOAK") or (sandbox, user) == ("auto", "root") else []
    parts = [*models, *(["LOOPBACK"] if sandbox in BOXES else [])] or ["NOTHING"]
    seen = harness("work", sandbox, str(open_folder), ",".join(parts), user=user, number=NAMED)  # they ask who they are
    assert seen["failed"] == {}, seen
    assert ("trees" in seen["done"]) is bool(models) and "managers" in seen["done"]
    assert seen["left"] == ["submission.csv", *(["curve.png"] if models else [])]
