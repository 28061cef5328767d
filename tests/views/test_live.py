"""The live page, in a real browser, beside a run at work."""

import asyncio
import http.client
import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Dialog

from mle_star import ConfigError, FinalResult, RunInterrupted, TaskDescription, run_pipeline
from mle_star.run.events import FinishRequested, RefinementTried, RunFinished
from mle_star.run.folder import RunFolder
from mle_star.run.journal import Journal
from mle_star.serving import GuardedServer
from mle_star.views import RunStory, text
from mle_star.views.live import Follower, IndexServer, LiveServer
from mle_star.views.page import page_title
from mle_star.views.verdict import Verdict
from tests.pipeline.conftest import events, settings
from tests.pipeline.mind import LevelExecutor, MindAgents
from tests.views.conftest import Watch, served
from tests.views.journals import Invented


class RunInThread:
    """The real pipeline beside the test, with scripted agents, one of which waits for `go_on`."""

    def __init__(self, task: TaskDescription, run_dir: Path, *, waits: str, **letters: int) -> None:
        self.go_on = threading.Event()

        async def wait_for_the_reader(label: str, agent: str) -> None:
            while agent == waits and not self.go_on.is_set():
                await asyncio.sleep(0.02)

        def run() -> FinalResult:
            agents, executor, config = (
                MindAgents(before=wait_for_the_reader),
                LevelExecutor(),
                settings(scoring="self_reported", diversity=(), **letters),
            )
            work = run_pipeline(task, config, run_dir=run_dir, executor=executor, agents=agents, console=False)
            return asyncio.run(work)

        self.end: Future[FinalResult] = ThreadPoolExecutor(1).submit(run)


@pytest.mark.browser
def test_finish_now_submits_and_stop_asks_again_and_stops(task: TaskDescription, tmp_path: Path, watch: Watch) -> None:
    finished, stopped = tmp_path / "finished", tmp_path / "stopped"
    run = RunInThread(task, finished, waits="planner", T=40, K=10)
    with served(LiveServer(finished)) as server:
        page = watch().open(server.address)
        page.wait_for_selector("details.try >> nth=1")
        page.locator("#finish-now").click()
        while not events(finished, FinishRequested):
            page.wait_for_timeout(50)
        run.go_on.set()
        page.wait_for_selector("body[data-state=completed]")
        assert "final/submission.csv" in page.locator(".submit").inner_text()
        with page.expect_download() as download:
            page.locator(".submit a").click()
        assert Path(download.value.path()).read_bytes() == Path(run.end.result(240).submission_path).read_bytes()
    assert not events(finished, FinishRequested)[0].now and events(finished, RunFinished)[-1].state == "completed"
    assert len(events(finished, RefinementTried)) < 100
    run = RunInThread(task, stopped, waits="planner", T=40, K=10)
    questions: list[str] = []

    def answer(dialog: Dialog) -> None:
        questions.append(dialog.message)
        dialog.accept()

    with served(LiveServer(stopped)) as server:
        page = watch().open(server.address)
        page.wait_for_selector("#scores .mark")
        page.on("dialog", answer)
        page.locator("#stop").click()
        page.wait_for_selector("body[data-state=interrupted]")
        assert isinstance(run.end.exception(240), RunInterrupted) and len(questions) == 1
        assert "Interrupted" in page.locator(".verdict").inner_text()


@pytest.mark.browser
@pytest.mark.long
def test_the_page_follows_a_run_of_the_engineer_to_its_end(data_dir: Path, tmp_path: Path, watch: Watch) -> None:
    run_dir, dice = tmp_path / "run", random.Random(1)
    rows = ((i, i * 7 % 50, "ab"[i % 2], int((i * 7 % 50 > 25) ^ (dice.random() < 0.1))) for i in range(1000, 1600))
    lines = ["id,size,kind,label", *(",".join(map(str, row)) for row in rows)]  # a tenth of the labels are wrong
    (data_dir / "train.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "mle_star.cli.app", "run", str(data_dir), "--model", "offline", "--serve"]
    command += ["-M", "1", "-T", "1", "-K", "1", "-L", "1", "--set", "score_views=1", "-o", str(run_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert process.stderr is not None
        address = next(line for line in process.stderr if line.startswith("live page: ")).split()[-1]
        live = watch()
        page = live.open(address)
        assert "Running" in page.locator(".verdict").inner_text()
        page.wait_for_selector("#now .working li", timeout=120_000)
        attempt = page.locator("details.try").first
        attempt.locator("summary").click(timeout=600_000)
        page.wait_for_selector("body[data-state=completed]", timeout=600_000)
        out, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, live.complaints) == (0, [])
    assert all(url.startswith(address.partition("?")[0]) for url in live.requests)
    assert attempt.locator("table.diff").is_visible(), "what a reader has opened stays open"
    assert not page.locator("#now").is_visible() and not page.locator("#finish-now").is_visible()
    assert re.search(r"submission\s+\S*final/submission\.csv", out)  # the summary on standard output
    story = RunStory.of(run_dir)
    expected = story.expected
    assert expected is not None and expected.rows == 60
    assert expected.low is not None and expected.high is not None and expected.low < 0.9 < expected.high
    seen = watch()
    report = seen.open(run_dir / "report.html")
    for place in (page, report):  # the live page has reached what the report says
        heading = place.locator("h1").inner_text()
        assert all(part in heading for part in re.split(r" \(|, ", Verdict(story).figure))
        assert "Completed" in place.locator(".verdict").inner_text()
        assert "built-in rules, no language model" in place.locator(".tiles").inner_text()
        assert str(run_dir / "final" / "submission.csv") in place.locator(".submit").inner_text()
        assert place.locator("#scores .mark").count() == len(story.attempts)
    assert report.locator("details.try").count() == len(story.refinements) == 1
    assert (seen.complaints, seen.requests) == ([], [(run_dir / "report.html").as_uri()])


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
    with Journal(run_dir / "journal.jsonl") as journal, served(LiveServer(run_dir)) as server:
        for event in Invented().events()[:40]:
            journal.record(event)
        page, own = f"/?token={server.token}", f"http://127.0.0.1:{server.port}"
        key, control = {"X_MLE_Star_Token": server.token}, RunFolder(run_dir).control
        table: list[tuple[int, str, str, dict[str, str]]] = [
            *((403, "GET", path, {}) for path in ("/", "/?token=wrong", "/events?token=")),
            (403, "GET", page, {"Host": "evil.example"}),  # a name that was rebound
            (403, "GET", page, {"Host": "evil.example:80"}),
            (200, "GET", page, {}),
            (200, "GET", page, {"Host": "localhost:8000"}),  # a forwarded port
            (405, "GET", f"/finish{page[1:]}", {}),
            (403, "POST", "/finish", {}),
            (403, "POST", f"/finish{page[1:]}", {}),  # an address can be sent across sites
            *((403, "POST", "/finish", {**key, "Origin": one}) for one in ("https://evil.example", "null", f"{own}9")),
            (403, "POST", "/finish", {**key, "Sec_Fetch_Site": "cross-site"}),
        ]
        for status, method, path, headers in table:
            assert ask(server, method, path, **headers)[0] == status, (method, path, headers)
        assert not control.exists()
        for word in ("finish", "stop"):
            assert ask(server, "POST", f"/{word}", **key, Origin=own) == (200, "asked")
            assert control.read_text() == f"{word}\n"


def test_only_files_of_a_result_are_served_and_no_page_is_framed_cached_or_reached_from_afar(tmp_path: Path) -> None:
    Invented().write(tmp_path / "run")
    (tmp_path / "secret.txt").write_text("secret")
    with served(LiveServer(tmp_path / "run")) as server:
        token = server.token
        assert ask(server, "GET", f"/files/final/submission.csv?token={token}") == (200, "id,label\n1,0\n")
        for path in ("journal.jsonl", "../secret.txt", "final/../../secret.txt", "%2e%2e/secret.txt", ""):
            assert ask(server, "GET", f"/files/{path}?token={token}")[0] == 404
        assert ask(server, "GET", "/files/solution.py")[0] == 403
        # Nobody is at work on a run that is over: there is nothing to ask.
        assert ask(server, "POST", "/finish", X_MLE_Star_Token=token) == (409, "no process is at work on this run")
        assert not RunFolder(tmp_path / "run").control.exists()
        with urllib.request.urlopen(server.address, timeout=240) as reply:
            headers = {name.lower(): value for name, value in reply.getheaders()}
        assert headers["x-frame-options"] == "DENY" and headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer" and server._socket.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ConfigError, match="cannot be used"):
            LiveServer(tmp_path, port=server.port)


def test_the_list_of_runs_has_the_same_guard_and_shows_nothing_but_its_runs(tmp_path: Path) -> None:
    for place in ("runs/one", "elsewhere"):
        Invented(T=1).write(tmp_path / place)
    with served(IndexServer(tmp_path / "runs")) as server:
        token, own = f"token={server.token}", f"http://127.0.0.1:{server.port}"
        for path in ("/?", "/rows?", "/compare?a=one&b=one&", "/runs/one/?", "/runs/one/files/solution.py?"):
            assert ask(server, "GET", path)[0] == 403
            assert ask(server, "GET", f"{path}{token}", Host="evil.example")[0] == 403
            assert ask(server, "GET", f"{path}{token}")[0] == 200, path
        assert ask(server, "POST", f"/runs/one/stop?{token}")[0] == 403  # an address can be sent across sites
        assert ask(server, "POST", "/runs/one/stop", X_MLE_Star_Token=server.token, Origin=own)[0] == 409
        elsewhere = ("elsewhere/", "..%2felsewhere/", "../elsewhere/", "one/files/journal.jsonl")
        for path in (*(f"/runs/{one}?" for one in elsewhere), "/compare?a=one&b=elsewhere&"):
            assert ask(server, "GET", f"{path}{token}")[0] == 404, path
        (one, *_), rows = server.glances(), ask(server, "GET", f"/rows?{token}")[1]
        assert text.score(one.score) in rows and "<html" not in rows


def test_a_follower_reads_whole_lines_only_survives_damage_and_sees_that_a_process_died(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "run")
    assert follower.refresh() == (0, False) and follower.working
    whole = RunStory.from_events(Invented(T=1, K=1).write(tmp_path / "run"))
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    for heard, written in ((1, [lines[0], lines[1][:20]]), (30, lines[:30])):
        journal.write_bytes(b"".join(written))
        assert follower.refresh()[0] == heard
    journal.write_bytes(b"".join([*lines[:30], b'{"kind": "nonsense"}\n', *lines[30:]]))
    follower.refresh()
    assert (follower.story.score, follower.working) == (whole.score, False)
    assert any("line 31" in message for _, message in follower.story.notices)
    died = Follower(tmp_path / "died")
    with Journal(tmp_path / "died" / "journal.jsonl") as begun:
        for event in Invented().events()[:20]:
            begun.record(event)
        died.refresh()
        assert died.working
    deadline = time.monotonic() + 120
    while died.working and time.monotonic() < deadline:
        died.refresh()
        time.sleep(0.1)
    assert died.refresh() == (20, False)
    with served(LiveServer(tmp_path / "died")) as server:  # whoever listens hears all, and then that it is over
        reply = urllib.request.urlopen(server.address.replace("?", "events?"), timeout=240)
        news = json.loads((reply.readline(), reply.readline())[1].removeprefix(b"data: "))
        server._pages.close()
        assert reply.read() == b"\nevent: bye\ndata: {}\n\n" and server._pages._listeners == 0
    assert news["title"] == page_title(died.story, False) != page_title(died.story, True)
    assert [*news["pieces"]] == [name for names in news["order"].values() for name in names]
