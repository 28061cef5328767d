"""A harness in a process of its own: `MODE SANDBOX FOLDER TOKEN`; modes are `sleep`, `suite`, `work` and `cases`."""

import asyncio
import json
import os
import sys
from pathlib import Path

from mle_star.execution import (
    Limits,
    LocalExecutor,
    build_evaluation_result,
    debug_text,
    parse_score,
    prepare_path_directory,
    write_script,
)
from mle_star.models import PipelineConfig, SolutionPhase, SolutionScript
from mle_star.run.context import ScriptRequest

MB = 1 << 20
SMALL = Limits(
    memory_bytes=300 * MB, tasks=60, file_bytes=50 * MB, open_files=256, output_bytes=4 * MB, grace_seconds=0.3
)
LIMITS = Limits(memory_bytes=300 << 20, tasks=40, grace_seconds=0.3)


async def run(executor, folder, code, timeout=200.0, data=None, **variables):
    (folder / "solution.py").write_text(code)
    env = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", **variables}
    request = ScriptRequest(
        script_path=str(folder / "solution.py"),
        working_dir=str(folder),
        timeout_seconds=timeout,
        env=env,
        input_dir=data,
    )
    return await executor.run(request)


async def suite(executor, folder):
    plain = await run(executor, folder, "print('Final Validation Performance: 0.5')")
    forks = await run(
        executor, folder, "import os, time\nfor _ in range(200):\n    if os.fork() == 0:\n        time.sleep(60)"
    )
    memory = await run(executor, folder, "hoard = []\nwhile True:\n    hoard.append(bytearray(20 << 20))")
    outside = await run(executor, folder, f"open({str(folder.parent / 'escaped')!r}, 'w')\nopen('/var/escaped', 'w')")
    late = await run(executor, folder, "import time\ntime.sleep(60)", timeout=1.0)
    return {
        "uid": os.getuid(),
        "sandbox": plain.isolation.sandbox,
        "plain": [str(plain.exit_code), str(parse_score(plain.stdout))],
        "forks": forks.stderr,
        "memory": memory.stderr,
        "outside": "error" if outside.exit_code else outside.stdout,
        "late": str(late.exit_code),
        "left": sorted(path.name for path in Path("/tmp").glob(f"mle-star-*-{os.getpid()}-*")),
    }


async def cases(executor, folder, token):
    """Every hostile script that needs no more than a folder, and what came of it."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.execution.hostile import CASES

    (folder / "outside").mkdir()
    (folder / "outside" / "precious").write_text("mine")
    data = folder / "data"
    data.mkdir()
    (data / "train.csv").write_text("a\n1\n")
    seen = {}
    for number, case in enumerate(CASES):
        work = Path(prepare_path_directory(folder / "work", f"case-{number}"))
        (work / "input" / "train.csv").symlink_to(data / "train.csv")
        code = case.code
        for word, value in {"TOKEN": token, "OUTSIDE": folder / "outside", "PORT": 9, "REALHOME": "/home"}.items():
            code = code.replace(word, str(value))
        try:
            write_script(SolutionScript(content=code, phase=SolutionPhase.init), str(work))
        except ValueError:
            continue  # refused before it runs, whoever runs it
        if case.confined and not executor.probe().sandbox.kind:
            continue
        raw = await run(executor, work, code, case.timeout, str(data), PYTHONIOENCODING="utf-8:backslashreplace")
        result = build_evaluation_result(raw)
        told = debug_text(result) if result.is_error else result.stdout[-1000:]
        seen[case.name] = {"is_error": result.is_error, "score": result.score, "told": told}
        kept = [(folder / "outside" / "precious").read_text(), (data / "train.csv").read_text()]
        assert kept == ["mine", "a\n1\n"], case.name
    return {"cases": seen, "uid": os.getuid()}


async def work(executor, folder, parts):
    """What scripts do every day; `parts` are the optional ones."""
    code = Path(__file__).with_name("ordinary_work.py").read_text()
    for name in ("input", "final"):
        (folder / name).mkdir()
    (folder / "input" / "train.csv").write_text("a\n1\n")
    path = os.environ["PYTHONPATH"] if os.getuid() else ""  # where this interpreter is not the one with the packages
    raw = await run(executor, folder, code, 500, PYTHONPATH=path, MPLBACKEND="Agg", **dict.fromkeys(parts, "1"))
    seen = json.loads(raw.stdout) if raw.exit_code == 0 else {"failed": raw.stderr}
    left = [name for name in ("submission.csv", "curve.png") if (folder / "final" / name).exists()]
    return {**seen, "uid": os.getuid(), "sandbox": raw.isolation.sandbox, "left": left}


async def main():
    mode, sandbox, folder, token = sys.argv[1:]
    if mode == "work":
        config = PipelineConfig(model_caches=tuple(filter(None, os.environ["PYTHONPATH"].split(":"))))
        executor = LocalExecutor(config, limits=Limits(memory_bytes=4 << 30), sandbox=sandbox)
        sys.stdout.write(json.dumps(await work(executor, Path(folder), token.split(","))))
        return
    executor = LocalExecutor(limits=LIMITS, sandbox=sandbox)
    if mode == "cases":
        executor = LocalExecutor(limits=SMALL, sandbox=sandbox)
        sys.stdout.write(json.dumps(await cases(executor, Path(folder), token)))
        return
    if mode == "suite":
        sys.stdout.write(json.dumps(await suite(executor, Path(folder))))
        return
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(600)', '{token}'])"
    await run(executor, Path(folder), code, timeout=600)


asyncio.run(main())
