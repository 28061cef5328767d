"""Pages on loopback: the report of a run, kept up to date while it runs, with two buttons; and a list of all runs."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import Receive, Scope, Send

from mle_star.errors import ConfigError, JournalError
from mle_star.run.events import EVENT_ADAPTER, AnyEvent, Notice
from mle_star.run.folder import RunFolder, is_running, request_finish
from mle_star.serving import GuardedServer
from mle_star.views.page import Page, render, render_page
from mle_star.views.shelf import Comparison, Glance, find_runs, glance
from mle_star.views.story import RunStory

CHECK_SECONDS = 2.0
"""How often to look whether a process holds the journal: looking takes hold of it for a moment."""
POLL_SECONDS = 0.5
LAST_WORDS_SECONDS = 3.0
"""How long pages may take to learn how the run ended when the server is stopped."""
FILES = ("final/submission.csv", "final/best_submission.csv", "solution.py")


class Follower:
    """The story of a run as far as its journal goes; `refresh` reads what was added since."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = RunFolder(run_dir)
        self.story = RunStory()
        self.alive = False
        self._offset = 0
        self._checked = float("-inf")

    @property
    def working(self) -> bool:
        """Is the run at work, or about to begin?"""
        return self.story.finished is None and (self.alive or self.story.started is None)

    def refresh(self) -> tuple[int, bool]:
        """Read on to the last whole line; how many events there are, and whether a process is at work."""
        before = self.story.heard
        self._read_on()
        if (self.story.heard != before and not self.alive) or time.monotonic() - self._checked > CHECK_SECONDS:
            self.alive = is_running(self.folder.root)
            self._checked = time.monotonic()
        return self.story.heard, self.alive

    def _read_on(self) -> None:
        with suppress(FileNotFoundError), self.folder.journal.open("rb") as file:  # the run may not have begun yet
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self._offset += len(line)
                self.story.apply(self._event(line))

    def _event(self, line: bytes) -> AnyEvent:
        """A line of the journal; a live page without one line is better than none."""
        try:
            return EVENT_ADAPTER.validate_json(line)
        except ValidationError:
            damage = f"{self.folder.journal.name}, line {self.story.heard + 1}: cannot be read"
            at = self.story.spent.last.get("", datetime.now(timezone.utc))  # later, it would seem that time has passed
            return Notice(at=at, level="error", message=damage)


class RunPages:
    """What is served of one run, below whatever address; `home` is the way back to the list of runs."""

    def __init__(self, run_dir: Path, token: str, *, home: str = "") -> None:
        self.run_dir, self.token, self.home = run_dir.absolute(), token, home
        self._follower = Follower(self.run_dir)
        self._reading = threading.Lock()
        self._closing = threading.Event()
        self._listeners = 0

    def routes(self) -> Sequence[BaseRoute]:
        """The page, its news, its files, and its two buttons."""
        return [
            Route("/", self._page),
            Route("/events", self._events),
            Route("/files/{path:path}", self._file),
            Route("/finish", self._ask, methods=["POST"]),
            Route("/stop", self._ask, methods=["POST"]),
        ]

    def close(self) -> None:
        """Send the open pages the current state, and wait for a moment until they have it."""
        self._closing.set()
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while self._listeners and time.monotonic() < deadline:
            time.sleep(0.05)

    def _page(self, request: Request) -> Response:
        with self._reading:
            self._follower.refresh()
            page = Page(self.run_dir, token=self.token, home=self.home)
            return HTMLResponse(page.html(self._follower.story, alive=self._follower.working))

    def _file(self, request: Request) -> Response:
        path = request.path_params["path"]
        if path not in FILES or not (self.run_dir / path).is_file():
            return PlainTextResponse("no such file", status_code=404)
        return FileResponse(self.run_dir / path, filename=Path(path).name, media_type="text/plain")

    def _events(self, request: Request) -> Response:
        return StreamingResponse(self._news(), media_type="text/event-stream")

    def _ask(self, request: Request) -> Response:
        """Finish now, or stop: asked of the run the way another process would."""
        if not is_running(self.run_dir):
            return PlainTextResponse("no process is at work on this run", status_code=409)
        request_finish(self.run_dir, now=request.url.path.endswith("/stop"))
        return PlainTextResponse("asked")

    async def _news(self) -> AsyncIterator[str]:
        """All pieces of the page first, then those that change."""
        page, heard = Page(self.run_dir, token=self.token, home=self.home), (-1, False)
        self._listeners += 1
        try:
            while True:
                closing = self._closing.is_set()
                heard, news = await asyncio.to_thread(self._read_on, page, heard)
                if news:
                    yield f"event: news\ndata: {json.dumps(news)}\n\n"
                if closing:
                    yield "event: bye\ndata: {}\n\n"
                    return
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self._listeners -= 1

    def _read_on(self, page: Page, heard: tuple[int, bool]) -> tuple[tuple[int, bool], dict[str, Any]]:
        """How far the run has come, and what that changes on a page that has `heard` so much of it."""
        with self._reading:
            follower, now = self._follower, self._follower.refresh()
            if now == heard:
                return now, {}
            about = {"working": follower.working, "state": follower.story.state}
            changes = page.changes(follower.story, alive=follower.working)
        return now, {**changes, **about, "now": datetime.now(timezone.utc).isoformat()}


class LiveServer(GuardedServer):
    """Serves the live page of one run, in a thread of its own."""

    def __init__(self, run_dir: Path, *, port: int = 0) -> None:
        self.run_dir = run_dir.absolute()
        super().__init__(port=port)

    def routes(self) -> Sequence[BaseRoute]:
        """The pages of the run."""
        self._pages = RunPages(self.run_dir, self.token)
        return self._pages.routes()

    def stop(self) -> None:
        """Tell the open pages how things stand, then end."""
        self._pages.close()
        super().stop()


@lru_cache(maxsize=1000)
def _glance(run_dir: Path, *stamp: float) -> Glance:
    """What is known of a run as long as its journal has not grown, and the same process is at work or none."""
    return glance(run_dir)


class IndexServer(GuardedServer):
    """Serves the list of the runs in `folder`, and below it the live page of each."""

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        self.folder = folder.absolute()
        self._pages: dict[str, RunPages] = {}
        super().__init__(port=port)

    def routes(self) -> Sequence[BaseRoute]:
        """The list, its rows alone, two runs compared, and the pages of every run."""
        return [
            Route("/", self._index),
            Route("/rows", self._rows),
            Route("/compare", self._compare),
            Mount("/runs/{name}", app=self._run),
        ]

    def stop(self) -> None:
        """Tell the open pages how things stand, then end."""
        for pages in self._pages.values():
            pages.close()
        super().stop()

    # --- what there is ---

    def glances(self) -> list[Glance]:
        """Every run at a glance: live ones first, then the latest."""
        found = []
        for run_dir in self._runs().values():
            facts = RunFolder(run_dir).journal.stat()
            found.append(_glance(run_dir, facts.st_mtime, facts.st_size, is_running(run_dir)))
        found.sort(key=lambda one: one.begun, reverse=True)
        return sorted(found, key=lambda one: one.state != "running")

    def _runs(self) -> dict[str, Path]:
        with suppress(ConfigError):  # there may be one soon
            return {run_dir.name: run_dir for run_dir in find_runs(self.folder)}
        return {}

    # --- pages ---

    def _index(self, request: Request) -> Response:
        return self._html("index.html.j2", rows=Markup(self._row_html()), folder=self.folder, title="All runs")

    def _rows(self, request: Request) -> Response:
        return HTMLResponse(self._row_html())

    def _row_html(self) -> str:
        return render("rows.html.j2", runs=self.glances(), link=self._link)

    def _compare(self, request: Request) -> Response:
        names = (request.query_params.get("a", ""), request.query_params.get("b", ""))
        runs = self._runs()
        if not all(name in runs for name in names):
            return PlainTextResponse("there is no such run", status_code=404)
        try:
            both = Comparison.of(RunStory.of(runs[names[0]]), RunStory.of(runs[names[1]]), names)
        except (JournalError, OSError) as error:
            return PlainTextResponse(str(error), status_code=422)
        return self._html("compare.html.j2", both=both, names=names, link=self._link, title="Two runs")

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The pages of one run; only runs that are in the folder have any."""
        name = scope["path_params"]["name"]
        run_dir = self._runs().get(name)
        if run_dir is None:
            await PlainTextResponse("there is no such run", status_code=404)(scope, receive, send)
            return
        if name not in self._pages:
            self._pages[name] = RunPages(run_dir, self.token, home=f"../../?token={self.token}")
        await Router(routes=list(self._pages[name].routes()))(scope, receive, send)

    def _link(self, name: str) -> str:
        return f"runs/{quote(name)}/?token={self.token}"

    def _html(self, template: str, **values: object) -> Response:
        return HTMLResponse(render_page(template, ["index.js"], token=self.token, **values))
