"""The local executor keeps the contract in each of its forms, says what confines a script, cuts no output silently."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star.execution import Limits, LocalExecutor, link_input_data, parse_score, prepare_path_directory
from mle_star.execution.limits import MAX_OUTPUT_BYTES
from mle_star.execution.process import NOTE, Keeper, LogFile
from mle_star.models import PipelineConfig
from mle_star.run.context import ScriptRequest
from mle_star.testing.executor import PLAIN_ENV, ExecutorContract

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


# --- output -----------------------------------------------------------------------------------------------


CUTTING = dataclasses.replace(
    Limits.of(PipelineConfig()), head_bytes=2000, tail_bytes=1000, output_bytes=5000, memory_bytes=2 * 10**9
)


@pytest.mark.req("REQ-EX-038")
@given(st.lists(st.binary(max_size=40), max_size=40), st.integers(1, 30), st.integers(1, 30))
def test_short_output_is_whole_and_long_output_keeps_both_ends(chunks: list[bytes], head: int, tail: int) -> None:
    keeper = Keeper(head, tail, LogFile(None, 0))
    for chunk in chunks:
        keeper.feed(chunk)
    whole = b"".join(chunks)
    text = keeper.text()
    assert keeper.total == len(whole)
    if len(whole) <= head + tail:
        assert text == whole.decode("utf-8", "replace")
    else:
        assert text.startswith(whole[:head].decode("utf-8", "replace"))
        assert whole[-tail:].decode("utf-8", "replace") in text
        assert f"{len(whole) - head - tail} bytes of output left out" in text
        assert text.splitlines()[-1].startswith(f"{NOTE} warning: the output was cut")


@pytest.mark.req("REQ-EX-038")
def test_a_disk_that_is_full_for_a_moment_costs_the_log_and_not_the_output() -> None:
    class Full(LogFile):
        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    keeper = Keeper(10, 100, Full(None, 0))
    with pytest.raises(OSError):
        keeper.feed(b"Final Validation Performance: 0.5\n")
    assert keeper.text() == "Final Validation Performance: 0.5\n"


async def test_past_the_cap_the_script_goes_on_and_its_last_line_counts(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(
        "for i in range(100_000):\n    print(i, 'x' * 50)\nprint('Final Validation Performance: 0.5')"
    )
    log = tmp_path / "out.log"
    raw = await LocalExecutor(limits=CUTTING).run(
        ScriptRequest(
            script_path=str(tmp_path / "s.py"), working_dir=str(tmp_path), timeout_seconds=240, env=PLAIN_ENV,
            output_file=str(log),
        )
    )  # fmt: skip
    assert raw.exit_code == 0
    assert raw.stdout.startswith("0 xxx") and parse_score(raw.stdout) == 0.5
    assert len(raw.stdout) < 4000
    assert "warning: the output was cut" in raw.stdout.splitlines()[-1]
    assert log.stat().st_size < 11_000 and "more bytes were not stored" in log.read_text()


@pytest.mark.req("REQ-EX-038")
def test_a_hundred_megabytes_of_each_stream_are_stored() -> None:
    assert MAX_OUTPUT_BYTES == 100 * 1024 * 1024
    assert Limits.of(PipelineConfig()).output_bytes == MAX_OUTPUT_BYTES
    assert Limits.of(PipelineConfig()).tail_bytes == 1024 * 1024
