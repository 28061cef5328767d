"""A Messages API on loopback: the agents' CLI talks to it as it would to the real service; a `Brain` gives the answers.

Only the wire lives here. It starts in the process and on the event loop of the run, on a free port, and stops with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from mle_star.engineer.wire import (
    AGENT_HEADER,
    OFFLINE_MODEL,
    STRUCTURED_TOOL,
    VARIANT_HEADER,
    Brain,
    BrainReply,
    BrainRequest,
    Charge,
    Fault,
    ToolCall,
    estimate_tokens,
    events_of,
    message_of,
    read_request,
)
from mle_star.serving.loopback import LoopbackServer, api_error, behind_token

__all__ = [
    "AGENT_HEADER",
    "OFFLINE_MODEL",
    "STRUCTURED_TOOL",
    "VARIANT_HEADER",
    "Brain",
    "BrainReply",
    "BrainRequest",
    "Charge",
    "Fault",
    "MessagesServer",
    "ToolCall",
    "estimate_tokens",
]

logger = logging.getLogger("mle_star.engineer")


class MessagesServer:
    """`async with MessagesServer(brain) as server:` answers at `server.base_url` until the block ends."""

    def __init__(self, brain: Brain, *, models: tuple[str, ...] = (OFFLINE_MODEL,)) -> None:
        self.brain = brain
        self.models = models
        self.charges: list[Charge] = []
        self.errors: list[BaseException] = []
        self._token = secrets.token_urlsafe(24)
        self._server = LoopbackServer(behind_token(self._app(), self._token), name="offline-server")
        self._stopping = asyncio.Event()

    @property
    def base_url(self) -> str:
        """Where the server listens, with the token that opens it; the value for ANTHROPIC_BASE_URL."""
        return f"{self._server.url}/{self._token}"

    async def __aenter__(self) -> MessagesServer:
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._stopping.set()
        await self._server.stop()

    def _app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/messages", self._messages, methods=["POST"]),
                Route("/v1/messages/count_tokens", self._count_tokens, methods=["POST"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/", self._alive, methods=["GET", "HEAD"]),
            ]
        )

    async def _alive(self, request: Request) -> Response:
        return Response(status_code=200)

    async def _models(self, request: Request) -> Response:
        data = [
            {"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"}
            for name in self.models
        ]
        return JSONResponse({"data": data, "has_more": False, "first_id": self.models[0], "last_id": self.models[-1]})

    async def _count_tokens(self, request: Request) -> Response:
        return JSONResponse({"input_tokens": estimate_tokens((await request.body()).decode("utf-8", "replace"))})

    async def _messages(self, request: Request) -> Response:
        body = await request.body()
        try:
            payload = json.loads(body)
            asked = read_request(payload, dict(request.headers), body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return api_error(400, f"cannot read the request: {error}")
        try:
            reply = await self.brain.reply(asked)
        except Exception as error:  # whatever a brain does, the CLI gets an answer
            logger.exception("the brain failed on %s", asked.agent)
            self.errors.append(error)
            return api_error(500, f"{type(error).__name__}: {error}")
        if reply.delay_seconds:
            await asyncio.sleep(reply.delay_seconds)
        if await request.is_disconnected():
            return Response(status_code=499)  # nobody is there any more: nothing is delivered, nothing is charged
        return await self._respond(request, payload, asked, reply)

    async def _respond(
        self, request: Request, payload: dict[str, Any], asked: BrainRequest, reply: BrainReply
    ) -> Response:
        fault = reply.fault
        if fault is not None and fault.kind == "status":
            return api_error(fault.status, fault.message, retry_after=fault.retry_after)
        if fault is not None and fault.kind == "hang":
            await self._until_gone(request)
            return _Cut(b"")
        message = message_of(asked, reply)
        if not payload.get("stream"):
            if fault is not None and fault.kind in ("cut", "garbage"):
                whole = json.dumps(message).encode()
                return _Cut(whole[: len(whole) // 2]) if fault.kind == "cut" else Response(b'{"type": "mess')
            self._charge(asked, message)
            return JSONResponse(message)
        if fault is not None and fault.kind == "cut":
            free = {**message, "usage": dict.fromkeys(message["usage"], 0)}  # what is not delivered is not charged
            return _Cut(b"".join(list(events_of(free))[:3]), content_type=b"text/event-stream")
        if fault is not None and fault.kind == "garbage":
            return Response(b'event: message_start\ndata: {"type": "mess\n\n', media_type="text/event-stream")
        return StreamingResponse(self._stream(asked, message), media_type="text/event-stream")

    async def _until_gone(self, request: Request) -> None:
        """Wait until the client hangs up or the server stops."""
        waiters = [asyncio.ensure_future(request.receive()), asyncio.ensure_future(self._stopping.wait())]
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)

    async def _stream(self, asked: BrainRequest, message: dict[str, Any]) -> AsyncIterator[bytes]:
        for event in events_of(message):
            yield event
        self._charge(asked, message)

    def _charge(self, asked: BrainRequest, message: dict[str, Any]) -> None:
        usage = message["usage"]
        self.charges.append(Charge(asked.agent, asked.model, usage["input_tokens"], usage["output_tokens"]))


class _Cut(Response):
    """Sends part of a reply and closes the connection in the middle."""

    def __init__(self, part: bytes, content_type: bytes = b"application/json") -> None:
        super().__init__(b"")
        self.part, self.kind = part, content_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", self.kind)]}
        await send(start)
        await send({"type": "http.response.body", "body": self.part, "more_body": True})
