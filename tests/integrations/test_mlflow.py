"""Runs in MLflow, on one real server with SQLite that comes late."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mle_star.cli.app import main
from mle_star.integrations.mlflow import EXPERIMENT, POLL_SECONDS, MlflowMirror
from mle_star.run.events import AnyEvent, RunFinished, RunResumed, RunStarted, ScriptFinished
from tests.views.journals import Invented


def _is_free(port: int) -> bool:
    """Is nobody at this port? It is none of those that the kernel hands out, so it stays free until it is needed."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class Server:
    """`mlflow server` on a database of its own, at one port."""

    def __init__(self, folder: Path) -> None:
        self.port = next(filter(_is_free, range(20_000 + os.getpid() % 10_000, 32_000)))
        self.uri, self._folder = f"http://127.0.0.1:{self.port}", folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is not None:
            return
        words = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db", "--artifacts-destination", str(self._folder),
        ]  # fmt: skip
        with (self._folder / "server.log").open("ab") as log:
            bare = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
            self._process = subprocess.Popen(words, stdout=log, stderr=log, env=bare, start_new_session=True)
        for _ in range(1200):
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=240)
                return
            except OSError:
                time.sleep(0.2)
        raise AssertionError((self._folder / "server.log").read_text(encoding="utf-8"))

    def stop(self) -> None:
        import psutil

        if self._process is None:
            return
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self._process.wait()
        self._process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Started by the first test that needs it."""
    made = Server(tmp_path_factory.mktemp("mlflow"))
    yield made
    made.stop()


def write(run_dir: Path, events: list[AnyEvent]) -> None:
    with (run_dir / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(f"{event.model_dump_json()}\n" for event in events)


def invented(seed: int) -> list[AnyEvent]:
    first, *others = Invented(seed=seed, M=2, T=1, K=2, L=1, R=1).events()
    return [first.model_copy(update={"run_id": f"run-{seed}"}), *others]


def parents(uri: str, events: list[AnyEvent]) -> tuple[list[Any], list[Any]]:
    """The runs on the server for a run by its first event, and those of its scripts."""
    from mlflow import MlflowClient

    client, first = MlflowClient(tracking_uri=uri), events[0]
    assert isinstance(first, RunStarted)
    found = client.get_experiment_by_name(EXPERIMENT)
    runs = [] if found is None else client.search_runs([found.experiment_id])
    own = [run for run in runs if run.data.tags["mle_star.key"] == first.run_id]
    return own, [run for run in runs for one in own if run.data.tags.get("mlflow.parentRunId") == one.info.run_id]


@pytest.mark.long
def test_a_run_is_mirrored_late_but_once(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mlflow import MlflowClient

    server.stop()
    events, uri = invented(11), server.uri.replace("://", "://me:s3cret@")
    scripts = [event for event in events if isinstance(event, ScriptFinished) and not event.result.cached]
    write(tmp_path, events)  # the run does not wait
    assert main(["mlflow", str(tmp_path), uri]) == 1, "nobody is there yet"
    shown = capsys.readouterr()
    assert server.uri in shown.err and "s3cret" not in shown.err + shown.out
    with MlflowMirror(tmp_path, uri, patience=(0.2,), end_seconds=240) as mirror:
        while not mirror.problem:
            time.sleep(0.05)
        assert "s3cret" not in mirror.problem
        server.start()
        while mirror.problem:
            time.sleep(0.05)
        (tmp_path / "report.html").write_text("<p>the report", encoding="utf-8")
    assert not mirror.behind
    (parent,), nested = parents(server.uri, events)
    assert len(nested) == len(scripts) > 3, "each script once"
    scores = sorted(event.result.score for event in scripts if event.result.score is not None)
    assert sorted(run.data.metrics["score"] for run in nested if "score" in run.data.metrics) == pytest.approx(scores)
    assert any("plan" in run.data.tags for run in nested)
    assert parent.data.params["task.evaluation_metric"] and parent.data.metrics["cost_usd"] >= 0
    files = MlflowClient(tracking_uri=server.uri).list_artifacts(parent.info.run_id)
    assert "report.html" in {file.path for file in files} and parent.info.status == "FINISHED"

    assert main(["mlflow", str(tmp_path), uri]) == 0
    kept, shown = (tmp_path / "mlflow.json").read_text(encoding="utf-8"), capsys.readouterr()
    assert shown.out == f"nothing new for {server.uri}\n"
    assert "s3cret" not in kept + shown.err and '"run_id"' in kept
    (tmp_path / "mlflow.json").unlink()  # a process that died before it could note what it had sent
    assert main(["mlflow", str(tmp_path), uri]) == 0
    assert capsys.readouterr().out == f"{len(events)} events sent to {server.uri}\n"
    assert [len(runs) for runs in parents(server.uri, events)] == [1, len(nested)]


def _soon(is_so: Callable[[], bool]) -> bool:
    for _ in range(4800):
        if is_so():
            return True
        time.sleep(0.05)
    return False


def test_a_run_that_is_resumed_is_sent_as_it_goes_and_only_its_last_end_waits(server: Server, tmp_path: Path) -> None:
    server.start()
    events = invented(12)

    def states() -> list[str]:
        return [run.info.status for run in parents(server.uri, events)[0]]

    first = next(at for at, event in enumerate(events) if isinstance(event, ScriptFinished))
    begun, script = events[:first], events[first]
    write(tmp_path, [*begun, RunFinished(state="interrupted")])
    with MlflowMirror(tmp_path, server.uri) as mirror:
        assert _soon(lambda: states() == ["RUNNING"])
        assert mirror.behind, "its report is still to be written"
        write(tmp_path, [RunResumed(spent_cost_usd=1.0, spent_seconds=1.0), script])
        assert _soon(lambda: not mirror.behind) and states() == ["KILLED"]
        write(tmp_path, [RunFinished(state="failed")])
        time.sleep(2 * POLL_SECONDS)
        assert mirror.behind and states() == ["KILLED"]
    assert states() == ["FAILED"]
