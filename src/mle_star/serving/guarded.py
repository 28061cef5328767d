"""Pages for one person on this machine: on loopback, behind a token, under their own name only, in a thread.

Whoever has the address, with its token, may look and may ask. Nobody else may do either: the server listens on this
machine only, answers to its own name only, and takes what changes something from its own pages only.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mle_star.errors import ConfigError
from mle_star.serving.loopback import HOST

STARTUP_SECONDS = 10.0
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class GuardedServer:
    """Serves `routes()` behind the guard; a subclass says what they are."""

    def __init__(self, *, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        self._socket = _bind(port)
        self.port: int = self._socket.getsockname()[1]
        app = Starlette(routes=list(self.routes()), middleware=[Middleware(_Guard, refusal=self._refusal)])
        config = uvicorn.Config(
            app, log_level="critical", lifespan="off", timeout_graceful_shutdown=2, server_header=False
        )
        self._server = uvicorn.Server(config)
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
        """Serve until somebody stops the server, or Ctrl-C."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def stop(self) -> None:
        """End."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(10)
        self._socket.close()

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
