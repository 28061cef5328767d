"""Kaggle's own client against a stand-in for its service on this machine, which it reaches as `http://localhost`."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mle_star.cli.app import build_app, main
from mle_star.data.folder import load_task
from mle_star.integrations.competitions import kept
from mle_star.models import Measure
from mle_star.run.events import RunFinished
from mle_star.run.folder import RunFolder
from tests.views.journals import Invented

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
            return {"submissions": self.submissions}
        return {"code": 404, "message": f"no such call: {call}"}


@pytest.fixture(autouse=True)
def _no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of whoever runs the tests; the client reads the first of these when it is first imported."""
    monkeypatch.setenv("KAGGLE_API_ENVIRONMENT", "LOCALHOST")
    monkeypatch.setenv("KAGGLE_CONFIG_DIR", str(tmp_path / "kaggle"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KAGGLE_USERNAME", "KAGGLE_KEY", "KAGGLE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)


class Handler(BaseHTTPRequestHandler):
    """What stand-ins for services on this machine have in common."""

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


@contextmanager
def served(handler: type[Handler]) -> Iterator[str]:
    """The address of a server that answers by `handler`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    made = Service()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in DATA.items():
            archive.writestr(name, text)

    class Kaggle(Handler):
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

    with served(Kaggle) as address:
        account = {"KAGGLE_USERNAME": "somebody", "KAGGLE_KEY": "secret"}
        for name, value in {**account, "HTTP_PROXY": address, "NO_PROXY": "", "no_proxy": ""}.items():
            monkeypatch.setenv(name, value)
        yield made


def test_a_competition_becomes_a_folder(service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "houses"
    assert main(["kaggle", "get", "houses", "--output", str(folder)]) == 0
    task = load_task(folder)
    assert (task.competition_id, task.evaluation_metric, task.metric_direction.value) == ("houses", "rmse", "minimize")
    assert "What do houses cost & why?" in task.description and "Be nice" not in task.description
    assert {path.name for path in (folder / "input").iterdir()} == set(DATA)
    assert f"mle-star run {folder}" in capsys.readouterr().out
    assert main(["kaggle", "get", "houses", "--output", str(folder)]) == 1, "a task folder is not overwritten"


def expected(run_dir: Path, score: float) -> None:
    """A result with this expected score."""
    last = Invented().ended(expected=Measure(score=score, low=score - 0.1, high=score + 0.1))[-1]
    assert isinstance(last, RunFinished) and last.result is not None
    RunFolder(run_dir).result.write_text(last.result.model_dump_json(), encoding="utf-8")


def test_a_run_is_sent_only_after_a_yes(service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    printed = capsys.readouterr().out
    assert "houses 71: complete, public score 0.1234, expected 0.40000 (0.30000 to 0.50000), self-reported" in printed
    (sent,) = kept(run_dir)
    assert (sent.ref, sent.score, sent.status) == (71, 0.1234, "COMPLETE")
    assert sent.expected == "0.40000 (0.30000 to 0.50000), self-reported"
    expected(run_dir, 0.7)  # another script was submitted since
    assert main(["kaggle", "status", str(run_dir)]) == 0
    assert "public score 0.1234, expected 0.40000 (0.30000 to 0.50000)" in capsys.readouterr().out


def test_without_a_credential_a_line_says_where_to_get_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kaggle", "get", "houses", "--output", str(tmp_path / "houses")]) == 1
    assert "no credential for Kaggle: set KAGGLE_API_TOKEN" in capsys.readouterr().err
