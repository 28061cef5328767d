"""The live page: the report, served on loopback and kept up to date, with two buttons."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from mle_star.run.folder import RunFolder, is_running, request_finish
from mle_star.serving.guarded import GuardedServer
from mle_star.views.follow import Follower
from mle_star.views.page import Page

POLL_SECONDS = 0.5
HEARTBEAT_SECONDS = 15.0
LAST_WORDS_SECONDS = 3.0
"""How long pages may take to hear how the run ended when the server is stopped."""
FILES = ("final/submission.csv", "final/best_submission.csv", "solution.py")


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
        """Tell the open pages how things stand, and wait for a moment until they have heard it."""
        self._closing.set()
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while self._listeners and time.monotonic() < deadline:
            time.sleep(0.05)

    async def _page(self, request: Request) -> Response:
        await asyncio.to_thread(self._refresh)
        html = await asyncio.to_thread(self._whole)
        return HTMLResponse(html)

    async def _file(self, request: Request) -> Response:
        path = request.path_params["path"]
        if path not in FILES or not (self.run_dir / path).is_file():
            return PlainTextResponse("no such file", status_code=404)
        return FileResponse(self.run_dir / path, filename=Path(path).name, media_type="text/plain")

    async def _events(self, request: Request) -> Response:
        return StreamingResponse(self._news(), media_type="text/event-stream")

    async def _ask(self, request: Request) -> Response:
        """Finish now, or stop: handed to the run the way another process would."""
        if not is_running(self.run_dir):
            return PlainTextResponse("no process is at work on this run", status_code=409)
        request_finish(self.run_dir, now=request.url.path.endswith("/stop"))
        return PlainTextResponse("asked")

    async def _news(self) -> AsyncIterator[str]:
        """All pieces of the page first, then those that change."""
        page, first, quiet = Page(self.run_dir, token=self.token, home=self.home), True, 0.0
        heard: tuple[int, bool] | None = None
        self._listeners += 1
        try:
            while True:
                closing = self._closing.is_set()
                await asyncio.to_thread(self._refresh)
                now = (self._follower.story.heard, self._follower.alive)
                if first or now != heard:
                    yield f"event: news\ndata: {await asyncio.to_thread(self._changes, page)}\n\n"
                    first, quiet, heard = False, 0.0, now
                elif quiet >= HEARTBEAT_SECONDS:
                    yield ": still here\n\n"
                    quiet = 0.0
                if closing:
                    yield "event: bye\ndata: {}\n\n"
                    return
                await asyncio.sleep(POLL_SECONDS)
                quiet += POLL_SECONDS
        finally:
            self._listeners -= 1

    def _refresh(self) -> None:
        with self._reading:
            self._follower.refresh()

    def _whole(self) -> str:
        with self._reading:
            follower = self._follower
            return Page(self.run_dir, token=self.token, home=self.home).html(follower.story, alive=follower.working)

    def _changes(self, page: Page) -> str:
        with self._reading:
            follower = self._follower
            news = page.changes(follower.story, alive=follower.working)
            news |= {"working": follower.working, "state": follower.story.state}
        news["now"] = datetime.now(timezone.utc).isoformat()
        return json.dumps(news)


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


def check_run(run_dir: Path) -> Path:
    """The folder of a run, or one line that says that it is none."""
    return RunFolder(run_dir).open().root
