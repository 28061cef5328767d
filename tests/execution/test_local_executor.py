"""The local executor keeps the contract in each of its forms, and says truthfully what confines a script."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from mle_star.execution import Limits, LocalExecutor, link_input_data, prepare_path_directory
from mle_star.models import PipelineConfig
from mle_star.run.context import ScriptRequest
from mle_star.testing.executor import ExecutorContract

LIMITS = dataclasses.replace(Limits.of(PipelineConfig()), tasks=200, memory_bytes=2 * 10**9, grace_seconds=1.0)
CONFINED = "writes only in the working directory"


class TestConfined(ExecutorContract):
    """By bubblewrap; and without it, by a kernel that lets users make namespaces."""

    @pytest.fixture(params=["auto", "namespaces"])
    def executor(self, request: pytest.FixtureRequest) -> LocalExecutor:
        return LocalExecutor(limits=LIMITS, sandbox=request.param)

    async def test_it_says_so(self, executor: LocalExecutor, request_for: Callable[..., ScriptRequest]) -> None:
        raw, expected = await executor.run(request_for("print(1)")), executor.announce().isolation
        assert raw.isolation.sandbox in ("bubblewrap+seccomp", "namespaces+seccomp")
        assert raw.isolation.network_blocked and CONFINED in raw.isolation.limits
        assert (expected.sandbox, expected.network_blocked) == (raw.isolation.sandbox, True)


class TestUnconfined(ExecutorContract):
    """No namespaces, no control groups: what is left in most containers."""

    @pytest.fixture
    def executor(self) -> LocalExecutor:
        return LocalExecutor(limits=LIMITS, sandbox="none", use_cgroups=False)

    async def test_it_says_so_once_and_claims_nothing_more(
        self, executor: LocalExecutor, request_for: Callable[..., ScriptRequest], caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2):
            raw = await executor.run(request_for("print(1)"))
        assert (raw.isolation.sandbox, raw.isolation.network_blocked) == ("seccomp", True)
        assert CONFINED not in raw.isolation.limits
        warnings = [record.getMessage() for record in caplog.records if "unconfined" in record.getMessage()]
        assert len(warnings) == 1 and "your files, your programs are open" in warnings[0]


@pytest.mark.parametrize("sandbox", ["auto", "namespaces"])
async def test_a_login_beside_the_weights_stays_hidden(sandbox: Literal["auto", "namespaces"], tmp_path: Path) -> None:
    cache, work = tmp_path / "hf", tmp_path / "work"
    for folder in (cache / "hub", work):
        folder.mkdir(parents=True)
    (cache / "hub" / "model.bin").write_text("weights", encoding="utf-8")
    (cache / "token").write_text("hf_canary", encoding="utf-8")
    code = (
        f"print(open('{cache}/hub/model.bin').read())\n"
        f"try:\n    print(open('{cache}/token').read())\nexcept OSError:\n    print('hidden')\n"
    )
    (work / "solution.py").write_text(code, encoding="utf-8")
    env = {"PATH": os.environ["PATH"], "HF_HOME": str(cache)}
    request = ScriptRequest(script_path=str(work / "solution.py"), working_dir=str(work), timeout_seconds=240, env=env)
    raw = await LocalExecutor(limits=LIMITS, sandbox=sandbox).run(request)
    assert raw.stdout.split() == ["weights", "hidden"], raw.stderr


@pytest.mark.parametrize("sandbox", ["auto", "namespaces"])
async def test_thousands_of_files_beside_one_that_is_no_data_can_be_shown(
    sandbox: Literal["auto", "namespaces"], tmp_path: Path
) -> None:
    """Then the data are shown piece by piece, which makes an order that no argument of a program can hold."""
    data, run = tmp_path / "data", tmp_path / "data" / "runs" / "one"
    work = Path(prepare_path_directory(run / "work", "main"))
    secrets = [data / ".DS_Store", run / "journal.jsonl"]
    for path in (*secrets, *(data / str(number) for number in range(3000))):
        path.write_text("1", encoding="utf-8")
    link_input_data(str(data), str(work), ours=run)
    code = (
        "import os\nprint(sum(int(open(f'input/{name}').read()) for name in os.listdir('input')))\n"
        f"for path in {list(map(str, secrets))}:\n"
        "    try:\n        open(path)\n    except OSError:\n        print('held')\n"
        "print([number for number in os.listdir('/proc/self/fd') if int(number) > 3])\n"
        "open('final/submission.csv', 'w').close()\n"
    )
    (work / "solution.py").write_text(code, encoding="utf-8")
    env = {"PATH": os.environ["PATH"]}
    request = ScriptRequest(script_path=str(work / "solution.py"), working_dir=str(work), timeout_seconds=240, env=env)
    raw = await LocalExecutor(limits=LIMITS, sandbox=sandbox).run(request)
    assert raw.stdout.splitlines() == ["3000", "held", "held", "[]"], raw.stderr
    assert (work / "final" / "submission.csv").exists()
