"""A harness in a process of its own: `MODE SANDBOX FOLDER WORD`; prints what came of it.

`sleep` runs a script that sleeps, `cases` hostile scripts (WORD: their names, or nothing for all), `work` what scripts
do every day (WORD: the optional parts), `attacks` all attempts to reach what is not a script's. There WORD is a canary:
it stands in files, in this process's environment and command line, in the keyring, in shared memory and in a
neighbour's environment, and no script may see it.
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

from mle_star import execution as ex
from mle_star.execution import local as harness_code
from mle_star.execution.workspace import reset_working_directory
from mle_star.models import PipelineConfig, SolutionPhase, SolutionScript
from mle_star.run.context import ScriptRequest

MODE, SANDBOX, FOLDER, WORD = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
LIBC = ctypes.CDLL(None, use_errno=True)
KEYRING = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]


async def run(executor, folder, code, timeout=200.0, data=None, **variables):
    (folder / "solution.py").write_text(code)
    env = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", **variables}
    script = str(folder / "solution.py")
    return await executor.run(
        ScriptRequest(script_path=script, working_dir=str(folder), timeout_seconds=timeout, env=env, input_dir=data)
    )


def write(path, text=WORD):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


async def cases():
    """Hostile scripts that need no more than a folder, and what came of them."""
    from tests.execution.hostile import CASES, SMALL

    executor = ex.LocalExecutor(limits=ex.Limits(**SMALL), sandbox=SANDBOX)
    precious, train = FOLDER / "outside" / "precious", FOLDER / "data" / "train.csv"
    write(precious, "mine")
    write(train, "a\n1\n")
    words = {"TOKEN": "token", "OUTSIDE": precious.parent, "PORT": 9, "REALHOME": "/home"}
    seen, sandbox = {}, ""
    for number, case in enumerate(case for case in CASES if not WORD or case.name in WORD.split(";")):
        work, code = Path(ex.prepare_path_directory(FOLDER / "work", f"case-{number}")), case.code
        (work / "input" / "train.csv").symlink_to(train)
        for word, value in words.items():
            code = code.replace(word, str(value))
        try:
            ex.write_script(SolutionScript(content=code, phase=SolutionPhase.init), str(work))
        except ValueError:
            continue  # refused before it runs, whoever runs it
        if case.confined and not executor.means.sandbox.kind:
            continue
        encoding = {"PYTHONIOENCODING": "utf-8:backslashreplace"}
        raw = await run(executor, work, code, case.timeout, str(train.parent), **encoding)
        result, sandbox = ex.build_evaluation_result(raw, timeout_seconds=case.timeout), raw.isolation.sandbox
        text = ex.debug_text(result) if result.is_error else result.stdout[-1000:]
        seen[case.name] = {"is_error": result.is_error, "score": result.score, "text": text}
        assert [precious.read_text(), train.read_text()] == ["mine", "a\n1\n"], case.name
    left = [path.name for path in Path("/tmp").glob(f"mle-star-*-{os.getpid()}-*")]
    return {"cases": seen, "sandbox": sandbox, "left": left}


async def work():
    """What scripts do every day."""
    config = PipelineConfig(model_caches=tuple(filter(None, os.environ["PYTHONPATH"].split(":"))))
    executor = ex.LocalExecutor(config, limits=ex.Limits(memory_bytes=4 << 30), sandbox=SANDBOX)
    for name in ("input", "final"):
        (FOLDER / name).mkdir()
    (FOLDER / "input" / "train.csv").write_text("a\n1\n")
    path = os.environ["PYTHONPATH"] if os.getuid() else ""  # where this interpreter is not the one with the packages
    variables = {"PYTHONPATH": path, "MPLBACKEND": "Agg", **dict.fromkeys(WORD.split(","), "1")}
    raw = await run(executor, FOLDER, (HERE / "ordinary_work.py").read_text(), 500, **variables)
    seen = json.loads(raw.stdout) if raw.exit_code == 0 else {"failed": raw.stderr}
    return {**seen, "left": [name for name in ("submission.csv", "curve.png") if (FOLDER / "final" / name).exists()]}


async def sleep():
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(600)', '{WORD}'])"
    await run(ex.LocalExecutor(sandbox=SANDBOX), FOLDER, code, timeout=600)


def examined(task):
    """A task with labels that are like no other number, and a hold-out on it: what is hidden is told by its digest."""
    from mle_star.holdout.holdout import HoldOut
    from mle_star.models import DataModality, MetricDirection, TaskDescription, TaskType

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
    hidden = [holdout.scorer.data.truth[0][row] for row in holdout.views[0].hidden]
    return {
        "task": str(task), "labels": labels, "other_view": str(holdout.views[1].folder / "train.csv"),
        "other_answers": write(task / "runs" / "one" / "answers" / "script-0.csv", table),
        "view": str(holdout.views[0].folder),
        "hidden": [hashlib.sha256(label.encode()).hexdigest() for label in hidden],
    }  # fmt: skip


def plant(stack):
    """Everything worth attacking, and where it is."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir=FOLDER))
    public = tempfile.mkdtemp(prefix="mle-star-public-", dir="/var/tmp")
    stack.callback(shutil.rmtree, public)
    shared = Path("/dev/shm") / WORD
    stack.callback(shared.unlink)
    task, outside = FOLDER / "task", FOLDER / "outside"
    holdout = examined(task)
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    listener6 = stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
    datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    datagrams.bind(("127.0.0.1", 0))
    for address in (str(FOLDER / "socket"), f"\0{WORD}"):
        service = stack.enter_context(socket.socket(socket.AF_UNIX))
        service.bind(address)
        service.listen()
    inner, outer = os.openpty()
    for number in (inner, outer):
        stack.callback(os.close, number)
    neighbour = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", WORD], env={"SECRET": WORD})
    stack.callback(neighbour.wait)
    stack.callback(neighbour.kill)
    key = LIBC.syscall(KEYRING[0], b"user", WORD.encode(), WORD.encode(), len(WORD), ctypes.c_long(-4))
    stack.callback(LIBC.syscall, KEYRING[1], 3, ctypes.c_long(key))
    segment = LIBC.shmget(os.getpid(), 4096, 0o1000 | 0o600)
    stack.callback(LIBC.shmctl, segment, 0, None)
    return {
        "canary": WORD, "harness": os.getpid(), "neighbour": neighbour.pid, "cwd": str(Path.cwd()),
        "home": str(home), "home_file": write(home / ".ssh" / "id"), "public": write(Path(public) / "notes"),
        **holdout, "answers": write(task / "answers.csv"), "data_file": str(Path(holdout["view"]) / "train.csv"),
        "journal": write(task / "runs" / "one" / "journal.jsonl"),
        "other_run": write(task / "runs" / "two" / "journal.jsonl"),
        "outside": str(outside), "precious": write(outside / "precious"), "disposable": write(outside / "disposable"),
        "harness_code": str(harness_code.__file__), "shared_memory": write(shared), "segment": os.getpid(),
        "terminal": os.ttyname(outer), "terminal_number": os.fstat(outer).st_rdev,
        "port": listener.getsockname()[1], "port6": listener6.getsockname()[1],
        "datagrams": datagrams.getsockname()[1], "socket": str(FOLDER / "socket"), "abstract": WORD,
    }  # fmt: skip


async def attacks():
    with contextlib.ExitStack() as stack:
        planted = plant(stack)
        stack.callback(shutil.rmtree, f"/dev/shm/left-{os.getpid()}", ignore_errors=True)
        place = Path(ex.prepare_path_directory(FOLDER / "task" / "runs" / "one" / "work", "main"))
        executor = ex.LocalExecutor(limits=ex.Limits(memory_bytes=1 << 30), sandbox=SANDBOX)
        for leave in (True, False):  # one script after another in the same folder
            reset_working_directory(str(place))
            ex.link_input_data(planted["view"], str(place), ours=place.parents[1])
            write(place / "planted.json", json.dumps({**planted, "leave": leave}))
            raw = await run(executor, place, (HERE / "attacks.py").read_text(), 500, planted["view"])
        key = int(LIBC.syscall(KEYRING[1], 10, ctypes.c_long(-4), b"user", WORD.encode(), 0) > 0)
        facts = {"sandbox": raw.isolation.sandbox, "stderr": raw.stderr, "exit": raw.exit_code, "planted": key}
        facts |= {"limits": raw.isolation.limits, "missing": executor.means.sandbox.missing}
        return {**facts, "results": json.loads(raw.stdout or "{}")}


seen = asyncio.run({"sleep": sleep, "cases": cases, "work": work, "attacks": attacks}[MODE]())
sys.stdout.write(json.dumps({**(seen or {}), "uid": os.getuid()}))
