"""Output is kept in bounded memory, head and tail, and a cut is never silent."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star.execution import Limits, LocalExecutor, parse_score
from mle_star.execution.limits import MAX_OUTPUT_BYTES
from mle_star.execution.process import NOTE, Keeper, LogFile
from mle_star.models import PipelineConfig
from mle_star.run.context import ScriptRequest
from mle_star.testing.executor import PLAIN_ENV

LIMITS = dataclasses.replace(
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
    raw = await LocalExecutor(limits=LIMITS).run(
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
