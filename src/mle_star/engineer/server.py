"""A Messages API on loopback: the agents' CLI talks to it as it would to the real service; a `Brain` gives the answers.

Only the wire lives here: what a request asks of a brain, and how its reply is spelt. The server starts in the process
and on the event loop of the run, on a free port, and stops with it.
"""

import json
import logging
import secrets
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mle_star.serving import LoopbackServer, api_error, behind_token

logger = logging.getLogger("mle_star.engineer")

AGENT_HEADER = "x-mle-star-agent"
VARIANT_HEADER = "x-mle-star-variant"
STRUCTURED_TOOL = "StructuredOutput"
OFFLINE_MODEL = "mle-star-offline"
_CLI_PREAMBLES = ("x-anthropic-billing-header:", "You are a Claude agent, built on")
_CHUNK = 64 * 1024


class ToolCall(NamedTuple):
    """A tool that the model wants to use instead of answering."""

    name: str
    input: dict[str, Any]


@dataclass(frozen=True)
class BrainRequest:
    """What an agent was asked: for a text, or for a value of `schema`.

    `tool_results` holds what its tools said since `prompt`, oldest first.
    """

    agent: str
    variant: str | None
    system: str
    prompt: str
    schema: dict[str, Any] | None = None
    tools: tuple[str, ...] = ()
    tool_results: tuple[str, ...] = ()
    model: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class BrainReply(NamedTuple):
    """An answer: a text, a structured value or a tool to use. Token counts are estimated unless given."""

    text: str | None = None
    structured: Any = None
    tool: ToolCall | None = None
    stop_reason: str | None = None  # where it differs from that of a whole answer
    input_tokens: int | None = None
    output_tokens: int | None = None


class Brain(Protocol):
    """What answers in place of a model."""

    async def reply(self, request: BrainRequest) -> BrainReply | Response:
        """The answer to one request; a response goes out as it is, and nothing is charged for it."""


def estimate_tokens(text: str) -> int:
    """About what a tokenizer would count: four characters a token."""
    return max(1, (len(text) + 3) // 4)


def read_request(payload: dict[str, Any], headers: dict[str, str], body: bytes = b"") -> BrainRequest:
    """What a request of the CLI asks, without the CLI's own additions."""
    tools = {tool.get("name", ""): tool for tool in payload.get("tools") or []}
    schema = tools[STRUCTURED_TOOL].get("input_schema") if STRUCTURED_TOOL in tools else None
    prompt, results = _prompt_and_results(payload["messages"])
    system = "\n".join(text for text in _texts(payload.get("system") or "") if not text.startswith(_CLI_PREAMBLES))
    agent, variant, model = headers.get(AGENT_HEADER, ""), headers.get(VARIANT_HEADER) or None, payload.get("model", "")
    return BrainRequest(agent, variant, system, prompt, schema, tuple(tools), results, str(model), headers, body)


def _prompt_and_results(messages: list[dict[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """The last text that a user sent, and the tool results that came after it."""
    results: list[str] = []
    for message in reversed(messages):
        content = message.get("content") if message.get("role") == "user" else []
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        texts, found = ([block for block in blocks if block.get("type") == kind] for kind in ("text", "tool_result"))
        if found:
            results[:0] = ["\n".join(_texts(block.get("content") or "")) for block in found]
        elif texts:
            kept = [block for block in texts[:-1] if "cache_control" in block]  # what a prompt shares with later ones
            return "".join(block["text"] for block in [*kept, texts[-1]]), tuple(results)
    return "", tuple(results)


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in content or [] if block.get("type") == "text"]


def message_of(request: BrainRequest, reply: BrainReply) -> dict[str, Any]:
    """A whole Messages API reply."""
    text, tool = reply.text, reply.tool
    if reply.structured is not None and tool is None:
        if request.schema is not None:
            tool = ToolCall(STRUCTURED_TOOL, reply.structured)
        elif text is None:
            text = json.dumps(reply.structured)
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    if tool is not None:
        use = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": tool.name, "input": tool.input}
        content.append(use)
    stop = reply.stop_reason or ("end_turn" if tool is None else "tool_use")
    spoken = (text or "") + (json.dumps(tool.input) if tool is not None else "")
    read, written = estimate_tokens(request.body.decode("utf-8", "replace")), estimate_tokens(spoken)
    usage = {
        "input_tokens": read if reply.input_tokens is None else reply.input_tokens,
        "output_tokens": written if reply.output_tokens is None else reply.output_tokens,
        **dict.fromkeys(("cache_creation_input_tokens", "cache_read_input_tokens"), 0),
    }
    head = {"id": f"msg_{uuid.uuid4().hex[:24]}", "type": "message", "role": "assistant", "model": request.model}
    return {**head, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}


def events_of(message: dict[str, Any]) -> Iterator[bytes]:
    """The same reply as server-sent events."""
    usage = message["usage"]
    begun = {**usage, "output_tokens": min(1, usage["output_tokens"])}
    yield _event({"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "usage": begun}})
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty, kind, key, whole = {**block, "text": ""}, "text_delta", "text", block["text"]
        else:
            empty, kind, key = {**block, "input": {}}, "input_json_delta", "partial_json"
            whole = json.dumps(block["input"])
        yield _event({"type": "content_block_start", "index": index, "content_block": empty})
        for start in range(0, len(whole), _CHUNK):
            delta = {"type": kind, key: whole[start : start + _CHUNK]}
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": stop, "usage": {"output_tokens": usage["output_tokens"]}})
    yield _event({"type": "message_stop"})


def _event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


# --- the server ------------------------------------------------------------------------------------------


class MessagesServer:
    """`async with MessagesServer(brain) as server:` answers at `server.base_url` until the block ends."""

    def __init__(self, brain: Brain) -> None:
        self.brain = brain
        self.delivered: list[dict[str, Any]] = []
        """The replies that went out whole: these alone are charged."""
        self.errors: list[BaseException] = []
        self._token = secrets.token_urlsafe(24)
        routes = [
            Route("/v1/messages", self._messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", self._count_tokens, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/", lambda http: Response()),
        ]
        self._server = LoopbackServer(behind_token(Starlette(routes=routes), self._token), name="offline-server")

    @property
    def base_url(self) -> str:
        """Where the server listens, with the token that opens it; the value for ANTHROPIC_BASE_URL."""
        return f"{self._server.url}/{self._token}"

    async def __aenter__(self) -> "MessagesServer":
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.stop()

    async def _models(self, http: Request) -> Response:
        name, created = OFFLINE_MODEL, "2026-01-01T00:00:00Z"
        data = [{"type": "model", "created_at": created, "id": name, "display_name": name}]
        return JSONResponse({"data": data, "has_more": False, "first_id": name, "last_id": name})

    async def _count_tokens(self, http: Request) -> Response:
        return JSONResponse({"input_tokens": estimate_tokens((await http.body()).decode("utf-8", "replace"))})

    async def _messages(self, http: Request) -> Response:
        body = await http.body()
        try:
            payload = json.loads(body)
            request = read_request(payload, dict(http.headers), body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return api_error(400, f"cannot read the request: {error}")
        try:
            reply = await self.brain.reply(request)
        except Exception as error:  # whatever a brain does, the CLI gets an answer
            logger.exception("the brain failed on %s", request.agent)
            self.errors.append(error)
            return api_error(500, f"{type(error).__name__}: {error}")
        if isinstance(reply, Response):
            return reply
        if await http.is_disconnected():
            return Response(status_code=499)  # nobody is there any more: nothing is delivered, nothing is charged
        message = message_of(request, reply)
        if payload.get("stream"):
            return StreamingResponse(self._stream(message), media_type="text/event-stream")
        self.delivered.append(message)
        return JSONResponse(message)

    async def _stream(self, message: dict[str, Any]) -> AsyncIterator[bytes]:
        for event in events_of(message):
            yield event
        self.delivered.append(message)
