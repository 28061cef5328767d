"""The live page: the report, served on loopback and kept up to date, with two buttons.

Whoever has the address, with its token, may look and may ask the run to end. Nobody else may do either: the server
listens on this machine only, answers to its own name only, and takes a request to end a run from its own page only.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timezone
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mle_star.errors import ConfigError
from mle_star.run.folder import RunFolder, is_running, request_finish
from mle_star.views.follow import Follower
from mle_star.views.page import Page

HOST = "127.0.0.1"
POLL_SECONDS = 0.5
HEARTBEAT_SECONDS = 15.0
STARTUP_SECONDS = 10.0
LAST_WORDS_SECONDS = 3.0
"""How long pages may take to hear how the run ended when the server is stopped."""
FILES = ("final/submission.csv", "final/best_submission.csv", "solution.py")
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LiveServer:
    """Serves the live page of one run, in a thread of its own."""

    def __init__(self, run_dir: Path, *, port: int = 0) -> None:
        self.run_dir, self.token = run_dir.absolute(), secrets.token_urlsafe(24)
        self._follower = Follower(self.run_dir)
        self._reading = threading.Lock()
        self._closing = threading.Event()
        self._listeners = 0
        self._socket = _bind(port)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self.app(), log_level="critical", lifespan="off", timeout_graceful_shutdown=2, server_header=False
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="live", daemon=True)

    @property
    def address(self) -> str:
        """Where the page is; the token makes it work."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def start(self) -> str:
        """Begin to serve; the address."""
        self._thread.start()
        deadline = time.monotonic() + STARTUP_SECONDS
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.address

    def wait(self) -> None:
        """Serve until somebody stops the server, or Ctrl-C."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def stop(self) -> None:
        """Tell the open pages how things stand, then end."""
        self._closing.set()
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while self._listeners and time.monotonic() < deadline:
            time.sleep(0.05)
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(10)
        self._socket.close()

    # --- pages ---

    def app(self) -> Starlette:
        """The routes, behind the guard."""
        routes = [
            Route("/", self._page),
            Route("/events", self._events),
            Route("/files/{path:path}", self._file),
            Route("/finish", self._ask, methods=["POST"]),
            Route("/stop", self._ask, methods=["POST"]),
        ]
        return Starlette(routes=routes, middleware=[Middleware(_Guard, refusal=self._refusal)])

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
        request_finish(self.run_dir, now=request.url.path == "/stop")
        return PlainTextResponse("asked")

    async def _news(self) -> AsyncIterator[str]:
        """All pieces of the page first, then those that change."""
        page, first, quiet = Page(self.run_dir, token=self.token), True, 0.0
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
            return Page(self.run_dir, token=self.token).html(follower.story, alive=follower.working)

    def _changes(self, page: Page) -> str:
        with self._reading:
            follower = self._follower
            news = page.changes(follower.story, alive=follower.working)
            news |= {"working": follower.working, "state": follower.story.state}
        news["now"] = datetime.now(timezone.utc).isoformat()
        return json.dumps(news)

    # --- the guard ---

    def _refusal(self, request: Request) -> str:
        """Why a request is not for us, or an empty text."""
        host = request.headers.get("host", "")
        if host.partition(":")[0] not in (HOST, "localhost"):  # any port: it may be forwarded from another machine
            return "this server answers to its own name only"  # a foreign name that resolves to this machine
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return "requests of other sites are refused"
        if request.method == "POST" and request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "requests of other sites are refused"
        # A header of our own cannot be sent across sites without being asked for first; an address can.
        given = request.headers.get("x-mle-star-token", "")
        if request.method != "POST":
            given = given or request.query_params.get("token", "")
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return "the address lacks its token; it stands where the page was started"
        return ""


class _Guard:
    """Answers what must not pass itself, and puts our headers on every answer."""

    def __init__(self, app: ASGIApp, refusal: Callable[[Request], str]) -> None:
        self._app, self._refusal = app, refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if scope["type"] != "http":
            return
        refusal = self._refusal(Request(scope))
        app = PlainTextResponse(refusal, status_code=403) if refusal else self._app
        await app(scope, receive, send_with_headers)


def _bind(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"port {port} cannot be used: {error.strerror}") from None
    return listener


def check_run(run_dir: Path) -> Path:
    """The folder of a run, or one line that says that it is none."""
    return RunFolder(run_dir).open().root
