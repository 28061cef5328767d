"""Servers for this machine alone: on loopback, under their own name only, behind a token.

`LoopbackServer` serves on the event loop of a run; `GuardedServer` serves pages for one person, in a thread. The
address of a page holds a token. Without it nothing is shown or done. Requests that change something are accepted from
its own pages only.
"""

import asyncio
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from mle_star.errors import ConfigError

HOST = "127.0.0.1"
FOREIGN_NAME = "this server answers to its own name only"  # another one may resolve to this machine, too
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}
STARTUP_SECONDS = 10.0
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def _config(app: ASGIApp, **more: Any) -> uvicorn.Config:
    quiet: dict[str, Any] = {"log_config": None, "log_level": "critical", "access_log": False}  # faults are no news
    bare: dict[str, Any] = {"lifespan": "off", "ws": "none", "proxy_headers": False, "server_header": False}
    return uvicorn.Config(app, interface="asgi3", **quiet, **bare, timeout_graceful_shutdown=1, **more)


# --- on the event loop of a run --------------------------------------------------------------------------


class LoopbackServer:
    """Serves an ASGI application from `start()` to `stop()`; a request with another Host header gets 403."""

    def __init__(self, app: ASGIApp, *, name: str) -> None:
        self._app, self._name = app, name
        # Named as TCP, or asyncio leaves small packets waiting for each other: 40 ms a call.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind((HOST, 0))
        self.host = f"{HOST}:{self._socket.getsockname()[1]}"
        self.url = f"http://{self.host}"
        self._server = _QuietServer(_config(self._guarded, http="h11", date_header=False, timeout_keep_alive=3600))

    async def start(self) -> None:
        """Listen, and come back when requests are answered."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name=self._name)
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError(f"{self._name} did not start")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """End at once, with every connection; one that never started ends as well."""
        self._server.should_exit = self._server.force_exit = True
        if self._server.started:
            await asyncio.wait({self._task}, timeout=5)
        self._socket.close()

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        app = self._app if header(scope, "host") == self.host else api_error(403, FOREIGN_NAME)
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
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return JSONResponse(body, status_code=status, headers=headers)


# --- pages, in a thread ----------------------------------------------------------------------------------


class GuardedServer:
    """Serves `routes()` behind the guard; a subclass says what they are."""

    def __init__(self, *, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        try:
            self._socket = socket.create_server((HOST, port))
        except OSError as error:
            raise ConfigError(f"port {port} cannot be used: {os.strerror(error.errno or 0)}") from None
        self.port: int = self._socket.getsockname()[1]
        app = Starlette(routes=list(self.routes()), middleware=[Middleware(BaseHTTPMiddleware, dispatch=self._guard)])
        self._server = uvicorn.Server(_config(app))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="pages", daemon=True)

    def routes(self) -> Sequence[BaseRoute]:
        """What is served."""
        raise NotImplementedError

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
        """Serve until someone stops the server, or Ctrl-C."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def stop(self) -> None:
        """End."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(10)
        self._socket.close()

    async def _guard(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Answer what must not pass itself, and put our headers on every answer."""
        refusal = self._refusal(request)
        response = PlainTextResponse(refusal, status_code=403) if refusal else await call_next(request)
        response.headers.update(HEADERS)
        return response

    def _refusal(self, request: Request) -> str:
        """Why a request is not for us, or an empty text."""
        host = request.headers.get("host", "")
        if host.partition(":")[0] not in (HOST, "localhost"):  # any port: it may be forwarded from another machine
            return FOREIGN_NAME
        posted, foreign = request.method == "POST", request.headers.get("origin", f"http://{host}") != f"http://{host}"
        site = request.headers.get("sec-fetch-site", "same-origin")
        if foreign or (posted and site != "same-origin"):
            return "requests of other sites are refused"
        # A header of our own cannot be sent across sites without being asked for first; an address can.
        given = request.headers.get("x-mle-star-token", "") if posted else request.query_params.get("token", "")
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return "the address lacks its token; it stands where the page was started"
        return ""
