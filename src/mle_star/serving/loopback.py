"""Servers for this machine alone: a free port on loopback, on the event loop of the run, under their own name only."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

HOST = "127.0.0.1"
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class LoopbackServer:
    """Serves an ASGI application from `start()` to `stop()`; whoever sends another Host header gets 403."""

    def __init__(self, app: ASGIApp, *, name: str) -> None:
        self._app, self._name = app, name
        self._socket: socket.socket | None = None
        self._server: _QuietServer | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.host}"

    @property
    def host(self) -> str:
        """The one Host header that it answers to."""
        if self._socket is None:
            raise RuntimeError("the server is not running")
        return f"{HOST}:{self._socket.getsockname()[1]}"

    async def start(self) -> None:
        """Listen, and come back when requests are answered."""
        # Named as TCP, or asyncio leaves small packets waiting for each other: 40 ms a call.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind((HOST, 0))
        config = uvicorn.Config(
            self._guarded,
            log_config=None,
            log_level="critical",  # injected faults are no news
            access_log=False,
            interface="asgi3",
            proxy_headers=False,
            lifespan="off",
            http="h11",
            ws="none",
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=3600,
        )
        self._server = _QuietServer(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name=self._name)
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError(f"{self._name} did not start")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """End at once, with every connection."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            self._server.force_exit = True
            done, _ = await asyncio.wait({self._task}, timeout=5)
            if not done:
                self._task.cancel()
                with suppress(asyncio.CancelledError):
                    await self._task
        if self._socket is not None:
            self._socket.close()

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        foreign = header(scope, "host") != self.host  # a name that resolves to this machine is not ours
        app = api_error(403, "this server answers to its own name only") if foreign else self._app
        await app(scope, receive, send)


class _QuietServer(uvicorn.Server):
    """Signals belong to the run, not to its server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def behind_token(app: ASGIApp, token: str) -> ASGIApp:
    """The application for those who know the first part of its paths; 401 for all others."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        given, _, rest = scope["path"].lstrip("/").partition("/")
        if not secrets.compare_digest(given.encode(), token.encode()):
            await api_error(401, "the address lacks its token")(scope, receive, send)
            return
        await app({**scope, "path": f"/{rest}"}, receive, send)

    return guarded


def header(scope: Scope, name: str) -> str:
    """A header of a request; an empty text when it is missing or there twice."""
    found = [value for key, value in scope["headers"] if key == name.encode()]
    return str(found[0].decode("latin-1")) if len(found) == 1 else ""


def api_error(status: int, message: str, *, retry_after: float | None = None) -> Response:
    """An error as the Messages API spells it."""
    kind = _ERROR_TYPES.get(status, "api_error")
    headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
    return JSONResponse(
        {"type": "error", "error": {"type": kind, "message": message}}, status_code=status, headers=headers
    )
