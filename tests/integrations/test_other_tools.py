"""Other tools: Kaggle's client against a stand-in for its service, MLE-bench below /home, a real server of MLflow."""

import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.responses import Response
from typer.testing import CliRunner

from mle_star import FinalResult, Measure, load_task
from mle_star.cli.app import build_app, main
from mle_star.engineer.server import BrainReply, BrainRequest, MessagesServer
from mle_star.integrations.competitions import kept
from mle_star.integrations.mlflow import EXPERIMENT, POLL_SECONDS, MlflowMirror
from mle_star.run.events import AnyEvent, RunFinished, RunResumed, RunStarted, ScriptFinished
from mle_star.run.folder import RunFolder, first_line, request_finish
from tests.conftest import Captured, Patch, as_kept, write_texts
from tests.pipeline.mind import Mind, MindBrain, fenced
from tests.pipeline.test_cli_run import Cli
from tests.views.journals import EXPECTED, Invented

SERVICE = "http://localhost"  # where the client looks for a service under test; a proxy leads to the stand-in's port
DATA = {
    "train.csv": "id,size,colour,price\n" + "".join(f"{i},{i % 7},{'rgb'[i % 3]},{i * 1.5}\n" for i in range(60)),
    "test.csv": "id,size,colour\n" + "".join(f"{i},{i % 7},{'rgb'[i % 3]}\n" for i in range(60, 80)),
    "sample_submission.csv": "id,price\n" + "".join(f"{i},0\n" for i in range(60, 80)),
}
PAGES = [
    {"name": "rules", "content": "<p>Be nice.</p>"},
    {"name": "evaluation", "content": "<p>Scored by the <b>root mean squared error</b> (RMSE).</p>"},
    {"name": "description", "content": "<p>What do houses cost &amp; why?</p>"},
]
KEPT = '[{"competition": "flats", "ref": 70, "message": "n"}, {"competition": "houses", "ref": 71, "message": "m"}]'


@dataclass
class Service:
    """What the stand-in was sent, and what it says of submissions."""

    uploads: list[bytes] = field(default_factory=list)
    submissions: list[dict[str, Any]] = field(default_factory=list)
    score: str | None = "0.1234"

    def answer(self, call: str, request: dict[str, Any]) -> dict[str, Any]:
        if call == "ListCompetitionPages":
            return {"pages": PAGES}
        if call == "StartSubmissionUpload":
            return {"token": "t", "createUrl": f"{SERVICE}/upload"}
        if call == "CreateSubmission":
            status = "PENDING" if self.score is None else "COMPLETE"
            entry = {"ref": 71, "description": request["submissionDescription"], "status": status}
            self.submissions.append({**entry, "publicScore": self.score, "date": "2026-01-31T14:05:09.000Z"})
            return {"message": "ok", "ref": 71}
        if call == "ListSubmissions":
            return {"submissions": self.submissions if request["competitionName"] == "houses" else []}
        return {"code": 404, "message": f"no such call: {call}"}


@pytest.fixture(autouse=True)
def _no_account(tmp_path: Path, monkeypatch: Patch) -> None:
    """Nothing of whoever runs the tests; the client reads the first of these when it is first imported."""
    monkeypatch.setenv("KAGGLE_API_ENVIRONMENT", "LOCALHOST")
    monkeypatch.setenv("KAGGLE_CONFIG_DIR", str(tmp_path / "kaggle"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KAGGLE_USERNAME", "KAGGLE_KEY", "KAGGLE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def service(monkeypatch: Patch) -> Iterator[Service]:
    made, packed = Service(), io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in DATA.items():
            archive.writestr(name, text)

    class Kaggle(BaseHTTPRequestHandler):
        def say(self, kind: str, body: bytes, status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            request, call = json.loads(self.body() or b"{}"), self.path.rsplit("/", 1)[-1]
            if call == "DownloadDataFiles":
                self.say("text/plain", b"", 302, Location=f"{SERVICE}/data.zip")
                return
            self.say("application/json", json.dumps(made.answer(call, request)).encode())

        def do_GET(self) -> None:
            self.say("application/zip", packed.getvalue())

        def do_PUT(self) -> None:
            made.uploads.append(self.body())
            self.say("text/plain", b"")

    with ThreadingHTTPServer(("127.0.0.1", 0), Kaggle) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        proxies = {"HTTP_PROXY": f"http://127.0.0.1:{server.server_port}", "NO_PROXY": "", "no_proxy": ""}
        for name, value in {"KAGGLE_USERNAME": "somebody", "KAGGLE_KEY": "secret", **proxies}.items():
            monkeypatch.setenv(name, value)
        yield made
        server.shutdown()


def test_a_competition_becomes_a_folder(service: Service, tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "houses"
    assert main(["kaggle", "get", "houses", "--output", str(folder)]) == 0
    assert load_task(folder).competition_id == "houses"
    assert {path.name for path in (folder / "input").iterdir()} == set(DATA)
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("description.md", "task.yaml")]
    printed = capsys.readouterr()
    as_kept("integrations/kaggle_get.txt", "\n".join([*texts, printed.err, printed.out]).replace(str(tmp_path), "…"))
    (folder / "task.yaml").unlink()
    assert main(["kaggle", "get", "houses", "--output", str(folder)]) == 1, "no folder with files is written to"


def expected(run_dir: Path, score: float) -> None:
    """A result with this expected score."""
    last = Invented().ended(expected=Measure(score=score, low=score - 0.1, high=score + 0.1))[-1]
    assert isinstance(last, RunFinished) and last.result is not None
    RunFolder(run_dir).result.write_text(last.result.model_dump_json(), encoding="utf-8")


def test_a_run_is_sent_only_after_a_yes(service: Service, tmp_path: Path, capsys: Captured) -> None:
    run_dir = tmp_path / "run"
    Invented(seed=11, M=2, T=1, K=1, L=1, R=1).write(run_dir)
    submission = RunFolder(run_dir).submission
    submission.unlink(missing_ok=True)
    assert main(["kaggle", "submit", str(run_dir), "--competition", "houses"]) == 1, "nothing to ask about"
    assert "there is no submission to send" in capsys.readouterr().err
    submission.parent.mkdir(exist_ok=True)
    submission.write_text(DATA["sample_submission.csv"], encoding="utf-8")
    done = CliRunner().invoke(build_app(), ["kaggle", "submit", str(run_dir), "--competition", "houses"], input="n\n")
    assert done.exit_code == 0 and "nothing was sent" in done.output and not service.uploads
    expected(run_dir, 0.4)
    assert main(["kaggle", "submit", str(run_dir), "--competition", "houses", "--yes"]) == 0
    assert service.uploads == [submission.read_bytes()]
    (sent,) = kept(run_dir)
    expected(run_dir, 0.7)  # another script was submitted since
    assert main(["kaggle", "status", str(run_dir)]) == 0
    (run_dir / "kaggle.json").write_text(KEPT, encoding="utf-8")
    for status, score in (("PENDING", None), ("ERROR", "?")):
        service.submissions[0].update(status=status, publicScore=score, errorDescription="broken")
        assert main(["kaggle", "status", str(run_dir)]) == 0
    Invented(seed=12, M=2, T=1, K=1, L=1, R=1).write(tmp_path / "bare")
    assert main(["kaggle", "status", str(tmp_path / "bare")]) == 1
    lines = [done.output, str(sent), *map(str, kept(run_dir)), str(service.submissions), *capsys.readouterr()]
    as_kept("integrations/kaggle_sent.txt", "\n".join(lines).replace(str(tmp_path), "…"))


def test_without_a_credential_a_line_says_where_to_get_one(tmp_path: Path, capsys: Captured) -> None:
    assert main(["kaggle", "get", "houses", "--output", str(tmp_path / "houses")]) == 1
    assert "no credential for Kaggle: set KAGGLE_API_TOKEN" in capsys.readouterr().err


AGENT = Path(__file__).parents[2] / "integrations" / "mle-bench" / "mle-star"
SMALLEST = [
    f"--set={key}=1"
    for key in ("num_retrieved_models", "outer_loop_steps", "inner_loop_steps", "num_parallel_solutions", "score_views")
]

SOLUTION = """\
import csv
from pathlib import Path
level = 9.5
rows = csv.DictReader(Path("input/test.csv").read_text().splitlines())
Path("final").mkdir(exist_ok=True)
Path("final/submission.csv").write_text("id,price\\n" + "".join(f"{r['id']},{level * int(r['size'])}\\n" for r in rows))
print("Final Validation Performance: 1.0")
"""


class Finishing(MindBrain):
    """Knows the price of houses, and lets the run end with Phase 1: what comes later is the same wherever it runs."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(Mind(overrides={name: lambda prompt: fenced(SOLUTION) for name in ("init", "test")}))
        self._run_dir = run_dir

    async def reply(self, request: BrainRequest) -> BrainReply | Response:
        """Answer as ever."""
        if request.agent == "init":
            request_finish(self._run_dir)
        return await super().reply(request)


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder below /home, where the benchmark works: no sandbox may hide it."""
    if not os.access("/home", os.W_OK):
        pytest.skip("/home cannot be written to")
    with tempfile.TemporaryDirectory(dir="/home") as folder:
        yield Path(folder)


@pytest.mark.long
async def test_a_whole_run(home: Path, monkeypatch: Patch) -> None:
    data = write_texts(home / "data", {**DATA, "description.md": "Predict the price. Scored by RMSE."})
    with (data / "train.csv").open("a", encoding="utf-8") as stream:
        stream.writelines(f"{i},{i % 7},{'rgb'[i % 3]},{i % 7 * 9.5 + i % 3}\n" for i in range(100, 640))
    (home / "instructions.txt").write_text("Write /home/submission/submission.csv.", encoding="utf-8")
    monkeypatch.setenv("COMPETITION_ID", "houses")
    words = ["--home", str(home), "--model", "sonnet", "--time-limit", "1h", *SMALLEST]
    async with MessagesServer(Finishing(home / "logs" / "mle-star")) as server:
        code, output, complaint = await Cli(server.base_url).run("mlebench", str(data), *words)
    submission = home / "submission" / "submission.csv"
    assert code == 0 and f"submission: {submission}" in output and "--open" not in complaint, complaint
    assert submission.read_text(encoding="utf-8").startswith("id,price")
    assert (home / "code" / "solution.py").is_file() and (home / "logs" / "report.html").is_file()
    expected = FinalResult.model_validate_json((home / "logs" / "mle-star" / "result.json").read_bytes()).expected
    assert expected is not None and expected.measured == "harness" and expected.rows == 60
    task = first_line(home / "logs" / "mle-star").task
    assert (task.competition_id, task.evaluation_metric) == ("houses", "rmse")
    assert task.description.startswith("Predict the price. Scored by RMSE.\n\nWrite /home/submission")


def test_the_agent_folder_is_as_the_benchmark_wants_it_whatever_conda_does(tmp_path: Path) -> None:
    agents = yaml.safe_load((AGENT / "config.yaml").read_text(encoding="utf-8"))
    for name in ("mle-star", "mle-star/offline"):
        agent = agents[name]
        assert (AGENT.parent / agent["start"]).is_file() and (AGENT.parent / agent["dockerfile"]).is_file()
        assert agent["kwargs_type"] == "omegaconf" and agent["kwargs"]["model"]
    assert (AGENT / "Dockerfile").read_text(encoding="utf-8").startswith("FROM mlebench-env\n")
    assert os.access(AGENT / "start.sh", os.X_OK)
    bin_dir, seen = tmp_path / "bin", tmp_path / "seen"
    bin_dir.mkdir()
    hook = """echo 'conda() { [ "$OF_A_PACKAGE" ] || true; }'"""
    for name, code in (("conda", hook), ("mle-star", f'echo "$@" > {seen}')):
        (bin_dir / name).write_text(f"#!/bin/bash\n{code}\n", encoding="utf-8")
        (bin_dir / name).chmod(0o755)
    env = {"PATH": f"{bin_dir}:{os.environ['PATH']}", "TIME_LIMIT_SECS": "4200"}
    subprocess.run(["bash", str(AGENT / "start.sh"), "model=offline"], env=env, capture_output=True, check=False)
    assert seen.read_text(encoding="utf-8") == ("mlebench /home/data --home /home --model offline --time-limit 3600s\n")


def test_without_a_submission_it_hands_in_the_rest(tmp_path: Path, capsys: Captured) -> None:
    data = tmp_path / "data"
    assert main(["mlebench", str(data), "--home", str(tmp_path)]) == 1
    assert "MLE-bench mounts the data" in capsys.readouterr().err
    write_texts(data, DATA)
    assert main(["mlebench", str(data), "--home", str(tmp_path), "--model", "offline", "--time-limit", "1s"]) == 3
    assert "no solution: stopped by the time limit" in capsys.readouterr().err
    assert (tmp_path / "logs" / "report.html").is_file() and not (tmp_path / "submission").exists()


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
    first, *others = Invented(seed=seed, M=2, T=1, K=2, L=1, R=1).ended(expected=EXPECTED)
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
    lines, client = list[str](), MlflowClient(tracking_uri=server.uri)
    for run in (parent, *sorted(nested, key=lambda run: int(run.data.tags["mle_star.key"].partition(":")[2]))):
        tags = {name: tag for name, tag in run.data.tags.items() if name not in ("mlflow.user", "mle_star.key")}
        files = [file.path for file in client.list_artifacts(run.info.run_id)]
        lines += [
            f"{run.info.run_name} {run.info.status} {files} {tags} {run.data.metrics}",
            *map(str, (pair for pair in run.data.params.items() if pair[0].startswith("task.") or pair[0] == "seed")),
        ]
    best = [(one.step, one.value) for one in client.get_metric_history(parent.info.run_id, "best_score")]
    as_kept("integrations/mlflow.txt", "\n".join([*lines, str(best)]).replace(parent.info.run_id, "…"))
    assert len(nested) == len(scripts) > 3, "each script once"
    assert main(["mlflow", str(tmp_path), uri]) == 0
    kept, shown = (tmp_path / "mlflow.json").read_text(encoding="utf-8"), capsys.readouterr()
    assert shown.out == f"nothing new for {server.uri}\n" and "s3cret" not in kept + shown.err and '"run_id"' in kept
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
        assert _soon(lambda: states() == ["RUNNING"]) and mirror.behind, "its report is still to be written"
        write(tmp_path, [RunResumed(spent_cost_usd=1.0, spent_seconds=1.0), script])
        assert _soon(lambda: not mirror.behind) and states() == ["KILLED"]
        write(tmp_path, [RunFinished(state="failed")])
        time.sleep(2 * POLL_SECONDS)
        assert mirror.behind and states() == ["KILLED"]
    assert states() == ["FAILED"]
