"""A harness under attack, in a process of its own: `SANDBOX FOLDER CANARY`; prints what each attempt came to.

The canary stands in files, in this process's environment and command line, in the keyring, in shared memory and in a
neighbour's environment: no script may see it.
"""

import asyncio
import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from mle_star.execution import Limits, LocalExecutor, link_input_data, prepare_path_directory
from mle_star.execution import local as harness_code
from mle_star.execution.workspace import reset_working_directory
from mle_star.holdout.holdout import HoldOut
from mle_star.models import DataModality, MetricDirection, PipelineConfig, TaskDescription, TaskType
from mle_star.run.context import ScriptRequest

SANDBOX, FOLDER, CANARY = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
LIBC = ctypes.CDLL(None, use_errno=True)
KEYRING = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]


def write(path: Path, text: str = CANARY) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def examined(task: Path) -> dict:
    """A task with labels that are like no other number, and an holdout on it: what is hidden is told by its digest."""
    rows = [(i, i % 7, 100_000_000 + (i + 1) * 7_654_321 % 900_000_000) for i in range(120)]
    table = "id,x,y\n" + "".join(f"{i},{x},{y}\n" for i, x, y in rows)
    labels = write(task / "holdout" / "train.csv", table)
    write(task / "holdout" / "test.csv", "id,x\n" + "".join(f"{i},{i % 7}\n" for i in range(500, 540)))
    description = TaskDescription(
        competition_id="labels", task_type=TaskType.regression, data_modality=DataModality.tabular,
        evaluation_metric="rmse", metric_direction=MetricDirection.minimize, description="Predict `y`.",
        data_dir=str(task / "holdout"),
    )  # fmt: skip
    holdout = HoldOut.prepare(description, PipelineConfig(), task / "runs" / "one")
    hidden = [holdout.scorer.data.truth[row][0] for row in holdout.views[0].hidden]
    return {
        "task": str(task), "labels": labels, "other_view": str(holdout.views[1].folder / "train.csv"),
        "other_answers": write(task / "runs" / "one" / "answers" / "script-0.csv", table),
        "view": str(holdout.views[0].folder),
        "hidden": [hashlib.sha256(label.encode()).hexdigest() for label in hidden],
    }  # fmt: skip


def plant(stack: contextlib.ExitStack) -> dict:
    """Everything worth attacking, and where it is."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir=FOLDER))
    public = tempfile.mkdtemp(prefix="mle-star-public-", dir="/var/tmp")
    stack.callback(shutil.rmtree, public)
    shared = Path("/dev/shm") / CANARY
    stack.callback(shared.unlink)
    task, outside = FOLDER / "task", FOLDER / "outside"
    holdout = examined(task)
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    listener6 = stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
    datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    datagrams.bind(("127.0.0.1", 0))
    for address in (str(FOLDER / "socket"), f"\0{CANARY}"):
        service = stack.enter_context(socket.socket(socket.AF_UNIX))
        service.bind(address)
        service.listen()
    inner, outer = os.openpty()
    for number in (inner, outer):
        stack.callback(os.close, number)
    neighbour = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", CANARY], env={"SECRET": CANARY})
    stack.callback(neighbour.wait)
    stack.callback(neighbour.kill)
    key = LIBC.syscall(KEYRING[0], b"user", CANARY.encode(), CANARY.encode(), len(CANARY), ctypes.c_long(-4))
    stack.callback(LIBC.syscall, KEYRING[1], 3, ctypes.c_long(key))
    segment = LIBC.shmget(os.getpid(), 4096, 0o1000 | 0o600)
    stack.callback(LIBC.shmctl, segment, 0, None)
    return {
        "canary": CANARY, "harness": os.getpid(), "neighbour": neighbour.pid, "cwd": os.getcwd(),
        "home": str(home), "home_file": write(home / ".ssh" / "id"), "public": write(Path(public) / "notes"),
        **holdout, "answers": write(task / "answers.csv"), "data_file": str(Path(holdout["view"]) / "train.csv"),
        "journal": write(task / "runs" / "one" / "journal.jsonl"),
        "other_run": write(task / "runs" / "two" / "journal.jsonl"),
        "outside": str(outside), "precious": write(outside / "precious"), "disposable": write(outside / "disposable"),
        "harness_code": str(harness_code.__file__), "shared_memory": write(shared), "segment": os.getpid(),
        "terminal": os.ttyname(outer), "terminal_number": os.fstat(outer).st_rdev,
        "port": listener.getsockname()[1], "port6": listener6.getsockname()[1],
        "datagrams": datagrams.getsockname()[1], "socket": str(FOLDER / "socket"), "abstract": CANARY,
    }  # fmt: skip


async def main() -> None:
    with contextlib.ExitStack() as stack:
        planted = plant(stack)
        stack.callback(shutil.rmtree, f"/dev/shm/left-{os.getpid()}", ignore_errors=True)
        work = Path(prepare_path_directory(FOLDER / "task" / "runs" / "one" / "work", "main"))
        executor = LocalExecutor(limits=Limits(memory_bytes=1 << 30), sandbox=SANDBOX)
        request = ScriptRequest(
            script_path=str(work / "solution.py"), working_dir=str(work), timeout_seconds=500,
            env={"PATH": os.environ["PATH"]}, input_dir=planted["view"],
        )  # fmt: skip
        for leave in (True, False):  # one script after another in the same folder
            reset_working_directory(str(work))
            link_input_data(planted["view"], str(work), ours=work.parents[1])
            write(work / "planted.json", json.dumps({**planted, "leave": leave}))
            shutil.copy(Path(__file__).with_name("attacks.py"), work / "solution.py")
            raw = await executor.run(request)
        told = {"uid": os.getuid(), "sandbox": raw.isolation.sandbox, "stderr": raw.stderr, "exit": raw.exit_code}
        told["limits"] = raw.isolation.limits
        told["planted"] = int(LIBC.syscall(KEYRING[1], 10, ctypes.c_long(-4), b"user", CANARY.encode(), 0) > 0)
        print(
            json.dumps({**told, "results": json.loads(raw.stdout or "{}"), "missing": executor.probe().sandbox.missing})
        )


asyncio.run(main())
