"""Keeps the credential: the agents' CLIs send keys of this run, which it replaces with the real one.

So no process that an agent can reach holds the credential. It runs as long as the clients of a run do. Every reply
passes here, so what one has used is known even where the CLI dies before it can tell.
"""

import asyncio
import json
import os
import re
import secrets
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx2
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from mle_star.errors import ConfigError
from mle_star.sdk.credentials import Upstream, agent_headers
from mle_star.sdk.meter import Meter
from mle_star.serving import LoopbackServer, api_error, header

CONNECT_SECONDS = 30.0
LAST_WORD_SECONDS = 0.5
"""How long a reply that may be on its way is waited for when the CLI has hung up: it is paid for."""
_LOCAL = ("127.0.0.1", "localhost")
_PATHS = re.compile(r"POST /v1/messages(/count_tokens)?|GET /v1/models(/[\w.:@-]+)?")
"""What the agents' CLIs need of the API; everything else ends here."""
_OF_ONE_CONNECTION = "connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade"
_NOT_RETURNED = re.compile(_OF_ONE_CONNECTION)
_NOT_SENT = re.compile(f"host|x-api-key|authorization|x-mle-star-.*|{_OF_ONE_CONNECTION}")
"""The headers of answers and of requests that are not passed on."""


@dataclass
class _Caller:
    """One CLI: the names its requests go out under, who counts what its replies use, and those still to come."""

    named: dict[str, str]
    meter: Meter = field(default_factory=Meter)
    answers: set[asyncio.Future[None]] = field(default_factory=set)


class CredentialProxy:
    """`async with CredentialProxy(upstream) as proxy:` passes on what comes to `proxy.base_url`."""

    def __init__(self, upstream: Upstream, environ: Mapping[str, str] = os.environ) -> None:
        self.upstream, self._environ = upstream, environ
        self._server = LoopbackServer(self._serve, name="credential-proxy")
        self._callers: dict[str, _Caller] = {}
        self._client = _client(upstream, environ)

    @property
    def base_url(self) -> str:
        """Where it listens; the value for ANTHROPIC_BASE_URL."""
        return self._server.url

    def key(self, agent: str, variant: str | None = None) -> str:
        """A new API key for one CLI of an agent: requests with it go out under this agent's name."""
        key = f"mle-star-{secrets.token_urlsafe(24)}"
        self._callers[key] = _Caller(agent_headers(agent, variant))
        return key

    def environment(self, agent: str, variant: str | None) -> dict[str, str]:
        """What leads a new CLI of an agent here; our address would hide from it that the service is Anthropic's."""
        local = ",".join(filter(None, [self._environ.get("NO_PROXY") or self._environ.get("no_proxy"), *_LOCAL]))
        here = {"ANTHROPIC_BASE_URL": self.base_url, "ANTHROPIC_API_KEY": self.key(agent, variant)}
        first_party = {"_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL": "1"} if self.upstream.is_first_party else {}
        return {**here, **first_party, "NO_PROXY": local, "no_proxy": local}

    def assign(self, key: str, agent: str, variant: str | None, meter: Meter) -> None:
        """From now on requests with this key go out under this agent's name, and `meter` counts what replies use."""
        self._callers[key].named, self._callers[key].meter = agent_headers(agent, variant), meter

    async def usage_complete(self, key: str) -> None:
        """Wait, briefly, until no reply to a CLI that has ended is on its way any more."""
        if answers := self._callers[key].answers:
            await asyncio.wait(set(answers), timeout=2 * LAST_WORD_SECONDS)

    async def __aenter__(self) -> "CredentialProxy":
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.stop()
        await self._client.aclose()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._callers.get(header(scope, "x-api-key"))
        if caller is None:
            await api_error(401, "this key is not of this run")(scope, receive, send)
        elif not _PATHS.fullmatch(f"{scope['method']} {scope['path']}"):
            await api_error(404, "the agents need nothing else of the API")(scope, receive, send)
        else:
            await self._forward(scope, receive, send, caller)

    async def _forward(self, scope: Scope, receive: Receive, send: Send, caller: _Caller) -> None:
        """Pass a request on and its answer back, piece by piece; when one side hangs up, the other is closed, too."""
        sent = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            async for piece in Request(scope, receive).stream():  # broken off if the CLI is gone
                yield piece
            sent.set()

        async def gone() -> None:
            await sent.wait()
            while (await receive())["type"] != "http.disconnect":
                pass

        answer = asyncio.ensure_future(self._answer(scope, body(), receive, send, caller))
        caller.answers.add(answer)
        left = asyncio.ensure_future(gone())
        try:
            await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({answer}, timeout=LAST_WORD_SECONDS)
        finally:
            left.cancel()
            answer.cancel()  # nothing is lost of one that is done
            await asyncio.wait({answer, left})
            caller.answers.discard(answer)
        if not answer.cancelled():
            answer.result()  # an answer that broke off breaks off here, too

    async def _answer(
        self, scope: Scope, body: AsyncIterator[bytes], receive: Receive, send: Send, caller: _Caller
    ) -> None:
        query = str(scope["query_string"], "latin-1")
        address = self.upstream.url.rstrip("/") + scope["path"] + (f"?{query}" if query else "")
        # Asked for in plain text, since the usage is read from it.
        own = {"accept-encoding": "identity", **self.upstream.headers, **caller.named}
        meter = caller.meter  # the next call may have another one before this reply is there
        kept = [(name.decode(), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = [(name, value) for name, value in kept if not _NOT_SENT.fullmatch(name) and name not in own]
        request = httpx2.Request(scope["method"], address, headers=[*headers, *own.items()], content=body)
        try:
            response = await self._client.send(request, stream=True)
        except httpx2.HTTPError as error:  # its words may hold the address, and that a token
            await api_error(502, f"the model's API cannot be reached: {type(error).__name__}")(scope, receive, send)
            return
        try:
            answered = [pair for pair in response.headers.raw if not _NOT_RETURNED.fullmatch(pair[0].decode().lower())]
            await send({"type": "http.response.start", "status": response.status_code, "headers": answered})
            reader = _UsageReader(meter, response.headers.get("content-type", ""))
            async for piece in response.aiter_raw():
                reader.read(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            reader.end()
            await send({"type": "http.response.body"})
        finally:
            await response.aclose()


class _UsageReader:
    """Tells a meter what a reply has used, while it passes: event by event, or at the end of a plain one."""

    def __init__(self, meter: Meter, content_type: str) -> None:
        self._meter, self._rest = meter, bytearray()
        self._streams = content_type.startswith("text/event-stream")

    def read(self, piece: bytes) -> None:
        """A piece of the reply, cut anywhere."""
        self._rest += piece
        if self._streams and b"\n" in piece:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    self._take(line[5:])

    def end(self) -> None:
        """The reply is whole."""
        if not self._streams:
            self._take(self._rest)

    def _take(self, text: bytearray) -> None:
        with suppress(ValueError, LookupError, TypeError, AttributeError):  # not of the Messages API: passed on
            message = json.loads(text)
            if message.get("type") == "message":
                self._meter.message(message["id"], message["model"], message["usage"])
            else:
                self._meter.stream(message, self)


def _client(upstream: Upstream, environ: Mapping[str, str]) -> httpx2.AsyncClient:
    """A client for one service: with the machine's proxies and certificates, unless the service is on this machine."""
    local = re.fullmatch(r"localhost|127(\.\d+){3}|::1", urlsplit(upstream.url).hostname or "")
    verify = _certificates(environ) if upstream.url.lower().startswith("https:") else False
    try:
        return httpx2.AsyncClient(
            verify=verify,
            trust_env=local is None,
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),  # how long an answer may take, the CLI says
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        )
    except (ImportError, ValueError) as error:
        raise ConfigError(f"the proxy in HTTPS_PROXY, HTTP_PROXY or ALL_PROXY cannot be used: {error}") from None


def _certificates(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Whom to trust and who we are, by the variables that the CLI knows, too."""
    context = httpx2.create_ssl_context()
    extra, own = environ.get("NODE_EXTRA_CA_CERTS"), environ.get("CLAUDE_CODE_CLIENT_CERT")
    try:
        if extra:
            context.load_verify_locations(extra)
        if own:
            password = environ.get("CLAUDE_CODE_CLIENT_KEY_PASSPHRASE") or ""
            context.load_cert_chain(own, environ.get("CLAUDE_CODE_CLIENT_KEY") or None, password)
    except OSError as error:
        names = "NODE_EXTRA_CA_CERTS, CLAUDE_CODE_CLIENT_CERT and CLAUDE_CODE_CLIENT_KEY"
        raise ConfigError(f"the certificates of {names} cannot be read: {error.strerror or error}") from None
    return context
