"""A metric of the user's own is code of the task folder: it runs confined, without credentials, for many calls."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pandas
import pytest

import mle_star.execution  # noqa: F401 - what runs such a metric
from mle_star.data.metrics import Metric, known_metric
from mle_star.errors import ConfigError
from mle_star.models import MetricDirection

TRUTH = pandas.DataFrame({"y": [1.0, 2.0, 3.0]})
CODE = """
import contextlib, os, socket
import numpy

CALLS = []

def calls(truth, answer):
    CALLS.append(1)
    return len(CALLS) + numpy.abs(truth["y"] - answer["y"]).mean()

def spy(truth, answer):
    found = [name for name in os.environ if "KEY" in name or os.getpid() == HARNESS]
    for attempt in (
        lambda: open("SECRET").read(),
        lambda: open(f"/proc/{os.getppid()}/environ", "rb").read(),
        lambda: socket.create_connection(("127.0.0.1", PORT), 5),
    ):
        try:
            found.append(attempt())
        except OSError:
            pass
    with contextlib.suppress(OSError):
        open("WRITTEN", "w").close()  # where it can be written to, that is a folder of its own
    raise ValueError(f"found {found!r}")

def ends(truth, answer):
    os._exit(3)

def lies(truth, answer):
    for number in range(3, 9):  # one of them leads to the harness
        try:
            os.write(number, b"x" * 100000)
        except OSError:
            pass
    return "many\\nlines of no number"
"""


def own(folder: Path, name: str, port: int = 9) -> Metric:
    words = {"PORT": port, "SECRET": folder / "secret", "WRITTEN": folder / "written", "HARNESS": os.getpid()}
    text = functools.reduce(lambda text, word: text.replace(word[0], str(word[1])), words.items(), CODE)
    (folder / "score.py").write_text(text, encoding="utf-8")
    return known_metric(f"score.py:{name}", folder=folder, direction=MetricDirection.minimize)


def test_it_is_computed_elsewhere_and_finds_no_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary-77")
    (tmp_path / "secret").write_text("sk-canary-77")
    server = socket.create_server(("127.0.0.1", 0))
    with server, pytest.raises(ConfigError) as refused:
        own(tmp_path, "spy", server.getsockname()[1]).compute(TRUTH, TRUTH)
    assert str(refused.value) == f"{tmp_path}/score.py:spy failed: ValueError: found []"
    assert not (tmp_path / "written").exists()


def test_one_process_serves_many_calls_and_another_one_after_a_pause(tmp_path: Path) -> None:
    metric = own(tmp_path, "calls")
    assert metric.needs == "frames"
    assert [metric.compute(TRUTH, TRUTH + 0.5) for _ in range(200)] == [number + 0.5 for number in range(1, 201)]
    time.sleep(4)
    assert metric.compute(TRUTH, TRUTH) == 1.0


def test_its_process_ends_with_the_program_and_nothing_is_said_of_it(tmp_path: Path) -> None:
    file, deep = tmp_path / "score.py", tmp_path / ("temporary" * 15)  # longer than the path of a socket may be
    file.write_text("def half(truth, answer):\n    return 0.5\n", encoding="utf-8")
    deep.mkdir()
    program = (
        "from pathlib import Path\nfrom mle_star.execution import OwnMetric\n"
        f"print(OwnMetric(Path({str(file)!r}), 'half')(1, 2))"
    )
    env = {**os.environ, "TMPDIR": str(deep)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0.5\n", "")
    assert list(deep.iterdir()) == []


@pytest.mark.parametrize("name", ["ends", "lies", "missing"])
def test_what_gives_no_number_is_told_in_a_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        own(tmp_path, name).compute(TRUTH, TRUTH)
    assert f"score.py:{name} failed: " in str(refused.value)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 800
