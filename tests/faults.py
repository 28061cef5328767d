"""Replies that go wrong on the wire, and a brain that spoils a share of another's replies with them."""

import json
import random
from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mle_star.engineer.server import Brain, BrainReply, BrainRequest, ToolCall, events_of, message_of
from mle_star.serving import api_error
from mle_star.testing import Answer


class Hang(Response):
    """Says nothing until the client hangs up."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


HANG = Hang()


def cut(request: BrainRequest) -> Response:
    """Part of a reply, after which the connection breaks; what is not delivered is not charged."""
    message = message_of(request, BrainReply(text="This sentence is cut " * 50, input_tokens=0, output_tokens=0))
    pieces = list(events_of(message))[:3] if _streams(request) else [json.dumps(message).encode()[:200]]
    return StreamingResponse(_broken_off(b"".join(pieces)), media_type=_media_type(request))


def garbage(request: BrainRequest) -> Response:
    """Half of a JSON object."""
    half = '{"type": "mess'
    text = f"event: message_start\ndata: {half}\n\n" if _streams(request) else half
    return Response(text, media_type=_media_type(request))


def _streams(request: BrainRequest) -> bool:
    return bool(json.loads(request.body or b"{}").get("stream"))


def _media_type(request: BrainRequest) -> str:
    return "text/event-stream" if _streams(request) else "application/json"


async def _broken_off(part: bytes) -> AsyncIterator[bytes]:
    yield part
    raise ConnectionAbortedError("a fault that was asked for")


def wrong_schema(request: BrainRequest) -> BrainReply:
    """A text, or a value of another form where one is asked for."""
    if request.schema is not None:
        return BrainReply(tool=ToolCall("StructuredOutput", {"not": "what was asked for"}))
    return BrainReply(text="I would rather talk about the weather.")


SPOILT: dict[str, Answer] = {
    "rate_limit": api_error(429, "injected", retry_after=0),
    "server_error": api_error(500, "injected"),
    "overloaded": api_error(529, "injected"),
    "hang": HANG,
    "cut_stream": cut,
    "garbage_json": garbage,
    "empty_reply": BrainReply(text=""),
    "refusal": BrainReply(text="I cannot help with that.", stop_reason="refusal"),
    "wrong_schema": wrong_schema,
    "huge_reply": BrainReply(text="x" * 2 * 1024 * 1024),
}


class FaultyBrain:
    """Lets another brain answer, and makes a share of the replies fail in every way the wire can.

    Replies of `brain` fail at `rate`; the same seed and order of requests give the same faults.
    """

    def __init__(self, brain: Brain, *, rate: float, seed: int) -> None:
        self.injected: list[str] = []
        self._brain, self._rate, self._random = brain, rate, random.Random(seed)

    async def reply(self, request: BrainRequest) -> BrainReply | Response:
        """The other brain's answer, or a spoilt one."""
        # Both numbers are drawn for every request, so that the faults depend on the order of requests alone.
        hit, name = self._random.random() < self._rate, self._random.choice(list(SPOILT))
        if not hit:
            return await self._brain.reply(request)
        self.injected.append(name)
        spoilt = SPOILT[name]
        made = spoilt(request) if callable(spoilt) and not isinstance(spoilt, Response) else spoilt
        assert isinstance(made, (BrainReply, Response))
        return made
