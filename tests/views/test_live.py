"""The live page, in a real browser, beside a run that goes on."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mle_star.errors import ConfigError
from mle_star.models import FinalResult, TaskDescription
from mle_star.orchestrator import run_pipeline
from mle_star.run.events import FinishRequested, RefinementTried, RunFinished
from mle_star.run.folder import RunFolder
from mle_star.run.journal import Journal, read_journal
from mle_star.serving import GuardedServer
from mle_star.views import RunStory, text
from mle_star.views.live import Follower, IndexServer, LiveServer
from mle_star.views.page import SECTIONS
from tests.pipeline.conftest import events, settings
from tests.pipeline.mind import LevelExecutor, MindAgents
from tests.views.conftest import Watched
from tests.views.journals import Invented

Watch = Callable[..., Watched]


@contextmanager
def served(run_dir: Path) -> Iterator[LiveServer]:
    """A live server, stopped in any case."""
    server = LiveServer(run_dir)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class RunInThread:
    """The real pipeline beside the test, with scripted agents, one of which waits for `go_on`."""

    def __init__(self, task: TaskDescription, run_dir: Path, *, waits: str, **letters: int) -> None:
        self.result: FinalResult | None = None
        self.error: Exception | None = None
        self.go_on, self._waits = threading.Event(), waits
        self._thread = threading.Thread(target=self._run, args=(task, run_dir, letters), daemon=True)
        self._thread.start()

    async def _wait_for_the_reader(self, label: str, agent: str) -> None:
        while agent == self._waits and not self.go_on.is_set():
            await asyncio.sleep(0.02)

    def _run(self, task: TaskDescription, run_dir: Path, letters: dict[str, Any]) -> None:
        work = run_pipeline(
            task, settings(**letters), run_dir=run_dir, executor=LevelExecutor(), console=False,
            agents=MindAgents(before=self._wait_for_the_reader),
        )  # fmt: skip
        try:
            self.result = asyncio.run(work)
        except Exception as error:
            self.error = error

    def wait(self) -> None:
        """Until it has ended."""
        self._thread.join(240)
        assert not self._thread.is_alive()


# --- in the browser ----------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_the_page_follows_a_run_to_its_end(task: TaskDescription, tmp_path: Path, watch: Watch) -> None:
    run_dir, seen = tmp_path / "run", watch()
    with served(run_dir) as server:  # before there is anything to see
        page = seen.open(server.address)
        assert "Running" in page.locator(".verdict").inner_text()
        run = RunInThread(task, run_dir, waits="ens_planner", T=2)
        page.wait_for_selector("#now .working li")
        page.wait_for_selector("details.step >> nth=0")
        first = page.locator("details.try").first
        first.locator("summary").click()
        run.go_on.set()
        page.wait_for_selector("body[data-state=completed]")
        run.wait()
    assert run.error is None
    story = RunStory.from_events(read_journal(run_dir / "journal.jsonl"))
    assert "Completed" in page.locator(".verdict").inner_text()
    assert text.score(story.score) in page.locator("h1").inner_text()
    assert page.locator("#scores .mark").count() == len(story.attempts)
    assert page.locator("details.try").count() == len(story.refinements) == 8
    assert first.locator("table.diff").is_visible()  # what a reader has opened stays open
    assert not page.locator("#now").is_visible()
    assert not page.locator("#finish-now").is_visible()
    for section in SECTIONS:
        assert page.locator(f"section#{section} h2").count() == 1
    assert seen.complaints == []
    assert all(url.startswith(f"http://127.0.0.1:{server.port}/") for url in seen.requests)


@pytest.mark.browser
def test_finish_now_ends_the_run_gracefully_with_a_submission(
    task: TaskDescription, tmp_path: Path, watch: Watch
) -> None:
    run_dir = tmp_path / "run"
    run = RunInThread(task, run_dir, waits="planner", T=40, K=10)
    with served(run_dir) as server:
        page = watch().open(server.address)
        page.wait_for_selector("details.try >> nth=1")
        page.locator("#finish-now").click()
        while not events(run_dir, FinishRequested):
            page.wait_for_timeout(50)
        run.go_on.set()
        page.wait_for_selector("body[data-state=completed]")
        assert "final/submission.csv" in page.locator(".submit").inner_text()
        with page.expect_download() as download:
            page.locator(".submit a").click()
        run.wait()
        assert run.result is not None
        expected = Path(run.result.submission_path).read_text(encoding="utf-8")
        assert Path(download.value.path()).read_text(encoding="utf-8") == expected
    assert not events(run_dir, FinishRequested)[0].now
    assert len(events(run_dir, RefinementTried)) < 100
    assert events(run_dir, RunFinished)[-1].state == "completed"


@pytest.mark.browser
def test_stop_asks_once_more_and_then_stops_at_once(task: TaskDescription, tmp_path: Path, watch: Watch) -> None:
    run_dir = tmp_path / "run"
    run = RunInThread(task, run_dir, waits="planner", T=40, K=10)
    with served(run_dir) as server:
        page = watch().open(server.address)
        page.wait_for_selector("#scores .mark")
        questions: list[str] = []

        def answer(dialog: Any) -> None:
            questions.append(dialog.message)
            dialog.accept()

        page.on("dialog", answer)
        page.locator("#stop").click()
        page.wait_for_selector("body[data-state=interrupted]")
        run.wait()
        assert "Interrupted" in page.locator(".verdict").inner_text()
    assert len(questions) == 1
    assert "RunInterrupted" in type(run.error).__name__


@pytest.mark.browser
def test_a_finished_run_can_be_watched_and_hostile_words_stay_words(tmp_path: Path, watch: Watch) -> None:
    nasty = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"
    Invented(T=1, K=2, R=1, words=nasty).write(tmp_path / "run", synced=False)
    with served(tmp_path / "run") as server:
        seen = watch()
        page = seen.open(server.address)
        page.wait_for_selector("body[data-state=completed]")
        assert page.evaluate("window.pwned") is None
        assert nasty in page.locator("main").inner_text()
        assert seen.complaints == []


# --- the guard ---------------------------------------------------------------------------------------------------


def ask(server: GuardedServer, method: str, path: str, **headers: str) -> tuple[int, str]:
    """One request, with exactly these headers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers={"Host": f"127.0.0.1:{server.port}", **names})
    reply = connection.getresponse()
    status, body = reply.status, reply.read().decode("utf-8", "replace")
    connection.close()
    return status, body


def test_only_its_own_page_may_look_or_end_the_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    events = list(Invented().events())
    with Journal(run_dir / "journal.jsonl") as journal, served(run_dir) as server:
        for event in events[:40]:
            journal.record(event)
        token, own = server.token, f"http://127.0.0.1:{server.port}"
        control = RunFolder(run_dir).control
        assert ask(server, "GET", "/")[0] == 403
        assert ask(server, "GET", "/?token=wrong")[0] == 403
        assert ask(server, "GET", "/events?token=")[0] == 403
        assert ask(server, "GET", f"/?token={token}", Host="evil.example")[0] == 403  # a name that was rebound
        assert ask(server, "GET", f"/?token={token}", Host="evil.example:80")[0] == 403
        assert ask(server, "GET", f"/?token={token}")[0] == 200
        assert ask(server, "GET", f"/?token={token}", Host="localhost:8000")[0] == 200  # a forwarded port
        assert ask(server, "POST", "/finish")[0] == 403
        assert ask(server, "POST", f"/finish?token={token}")[0] == 403  # an address can be sent across sites
        across = {"X_MLE_Star_Token": token, "Origin": "https://evil.example"}
        assert ask(server, "POST", "/finish", **across)[0] == 403
        assert ask(server, "POST", "/finish", X_MLE_Star_Token=token, Sec_Fetch_Site="cross-site")[0] == 403
        assert ask(server, "POST", "/finish", X_MLE_Star_Token=token, Origin="null")[0] == 403
        assert ask(server, "POST", "/finish", X_MLE_Star_Token=token, Origin="http://127.0.0.1:9")[0] == 403
        assert ask(server, "GET", f"/finish?token={token}")[0] == 405
        assert not control.exists()
        assert ask(server, "POST", "/finish", X_MLE_Star_Token=token, Origin=own) == (200, "asked")
        assert control.read_text() == "finish\n"
        assert ask(server, "POST", "/stop", X_MLE_Star_Token=token, Origin=own) == (200, "asked")
        assert control.read_text() == "stop\n"


def test_only_the_files_of_a_result_are_served(tmp_path: Path) -> None:
    Invented().write(tmp_path / "run", synced=False)
    (tmp_path / "secret.txt").write_text("secret")
    with served(tmp_path / "run") as server:
        token = server.token
        assert ask(server, "GET", f"/files/final/submission.csv?token={token}") == (200, "id,label\n1,0\n")
        for path in ("journal.jsonl", "../secret.txt", "final/../../secret.txt", "%2e%2e/secret.txt", ""):
            assert ask(server, "GET", f"/files/{path}?token={token}")[0] == 404
        assert ask(server, "GET", "/files/solution.py")[0] == 403
        # Nobody is at work on a run that is over: there is nothing to ask.
        status, words = ask(server, "POST", "/finish", X_MLE_Star_Token=token)
        assert (status, words) == (409, "no process is at work on this run")
        assert not RunFolder(tmp_path / "run").control.exists()


def test_the_list_of_runs_has_the_same_guard_and_shows_nothing_but_its_runs(tmp_path: Path) -> None:
    Invented(T=1).write(tmp_path / "runs" / "one", synced=False)
    Invented(T=1).write(tmp_path / "elsewhere", synced=False)
    server = IndexServer(tmp_path / "runs")
    server.start()
    try:
        token, own = f"token={server.token}", f"http://127.0.0.1:{server.port}"
        for path in ("/", "/rows", "/compare?a=one&b=one", "/runs/one/", "/runs/one/files/solution.py"):
            join = "&" if "?" in path else "?"
            assert ask(server, "GET", path)[0] == 403
            assert ask(server, "GET", f"{path}{join}{token}", Host="evil.example")[0] == 403
            assert ask(server, "GET", f"{path}{join}{token}")[0] == 200, path
        assert ask(server, "POST", f"/runs/one/stop?{token}")[0] == 403  # an address can be sent across sites
        assert ask(server, "POST", "/runs/one/stop", X_MLE_Star_Token=server.token, Origin=own)[0] == 409
        for path in (
            "/runs/elsewhere/",
            "/runs/..%2felsewhere/",
            "/runs/../elsewhere/",
            "/runs/one/files/journal.jsonl",
        ):
            assert ask(server, "GET", f"{path}?{token}")[0] == 404, path
        assert ask(server, "GET", f"/compare?a=one&b=elsewhere&{token}")[0] == 404
        assert f"{text.score(server.glances()[0].score)}" in ask(server, "GET", f"/rows?{token}")[1]
    finally:
        server.stop()


def test_the_page_cannot_be_framed_cached_or_reached_from_elsewhere(tmp_path: Path) -> None:
    Invented(T=1).write(tmp_path / "run", synced=False)
    with served(tmp_path / "run") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
        connection.request("GET", f"/?token={server.token}")
        headers = {name.lower(): value for name, value in connection.getresponse().getheaders()}
        connection.close()
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert server._socket.getsockname()[0] == "127.0.0.1"


def test_a_taken_port_is_refused_in_words(tmp_path: Path) -> None:
    with served(tmp_path) as server, pytest.raises(ConfigError, match="cannot be used"):
        LiveServer(tmp_path, port=server.port)


# --- following ---------------------------------------------------------------------------------------------------


def test_a_follower_reads_whole_lines_only_and_survives_damage(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    follower = Follower(run_dir)
    assert follower.refresh() == (0, False)
    assert follower.working
    events = Invented(T=1, K=1).write(run_dir, synced=False)
    journal = run_dir / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    whole = RunStory.from_events(events)
    journal.write_bytes(lines[0] + lines[1][:20])
    assert follower.refresh()[0] == 1
    journal.write_bytes(b"".join(lines[:30]))
    follower.refresh()
    assert follower.story.heard == 30
    journal.write_bytes(b"".join(lines[:30]) + b'{"kind": "nonsense"}\n' + b"".join(lines[30:]))
    follower.refresh()
    assert follower.story.score == whole.score
    assert any("line 31" in message for _, message in follower.story.notices)
    assert not follower.working


def test_a_run_whose_process_died_is_shown_as_stopped(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    events = list(Invented().events())
    follower = Follower(run_dir)
    with Journal(run_dir / "journal.jsonl") as journal:
        for event in events[:20]:
            journal.record(event)
        follower.refresh()
        assert follower.working
    deadline = time.monotonic() + 120
    while follower.working and time.monotonic() < deadline:
        follower.refresh()
        time.sleep(0.1)
    assert not follower.working
