"""What goes over the wire of the Messages API: what a request asks of a `Brain`, and how its reply is spelt."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

AGENT_HEADER = "x-mle-star-agent"
VARIANT_HEADER = "x-mle-star-variant"
STRUCTURED_TOOL = "StructuredOutput"
OFFLINE_MODEL = "mle-star-offline"
_CLI_PREAMBLES = ("x-anthropic-billing-header:", "You are a Claude agent, built on")
_CHUNK = 64 * 1024

FaultKind = Literal["status", "hang", "cut", "garbage", "empty", "refusal", "max_tokens"]


@dataclass(frozen=True)
class Fault:
    """A way for a reply to go wrong on the wire. What follows `kind` belongs to the kind "status"."""

    kind: FaultKind
    status: int = 500
    retry_after: float | None = None
    message: str = "injected"


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model wants to use instead of answering."""

    name: str
    input: dict[str, Any]


@dataclass(frozen=True)
class BrainRequest:
    """What an agent was asked. `tool_results` holds what its tools said since `prompt`, oldest first."""

    agent: str
    variant: str | None
    system: str
    prompt: str
    schema: dict[str, Any] | None = None
    wants_structured: bool = False
    tools: tuple[str, ...] = ()
    tool_results: tuple[str, ...] = ()
    model: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class BrainReply:
    """An answer: a text, a structured value, a tool to use, or a fault. Token counts are estimated unless given."""

    text: str | None = None
    structured: Any = None
    tool: ToolCall | None = None
    fault: Fault | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    delay_seconds: float = 0.0


class Brain(Protocol):
    """Whoever answers for the model."""

    async def reply(self, request: BrainRequest) -> BrainReply:
        """The answer to one request."""


@dataclass(frozen=True)
class Charge:
    """The tokens of one reply that was delivered whole."""

    agent: str
    model: str
    input_tokens: int
    output_tokens: int


def estimate_tokens(text: str) -> int:
    """About what a tokenizer would count: four characters a token."""
    return max(1, (len(text) + 3) // 4)


def read_request(payload: dict[str, Any], headers: dict[str, str], body: bytes = b"") -> BrainRequest:
    """What a request of the CLI asks, without the CLI's own additions."""
    tools = {tool.get("name", ""): tool for tool in payload.get("tools") or []}
    schema = tools[STRUCTURED_TOOL].get("input_schema") if STRUCTURED_TOOL in tools else None
    prompt, results = _prompt_and_results(payload["messages"])
    return BrainRequest(
        agent=headers.get(AGENT_HEADER, ""),
        variant=headers.get(VARIANT_HEADER) or None,
        system="\n".join(text for text in _texts(payload.get("system") or "") if not text.startswith(_CLI_PREAMBLES)),
        prompt=prompt,
        schema=schema,
        wants_structured=schema is not None,
        tools=tuple(tools),
        tool_results=results,
        model=str(payload.get("model", "")),
        headers=headers,
        body=body,
    )


def _prompt_and_results(messages: list[dict[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """The last text that a user sent, and the tool results that came after it."""
    results: list[str] = []
    for message in reversed(messages):
        if message.get("role") != "user":
            continue
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        found = [block for block in blocks if block.get("type") == "tool_result"]
        if found:
            results[:0] = ["\n".join(_texts(block.get("content") or "")) for block in found]
            continue
        if isinstance(content, str):
            return content, tuple(results)
        texts = [block for block in blocks if block.get("type") == "text"]
        if texts:
            kept = [block for block in texts[:-1] if "cache_control" in block]  # what a prompt shares with later ones
            return "".join(block["text"] for block in [*kept, texts[-1]]), tuple(results)
    return "", tuple(results)


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in content or [] if block.get("type") == "text"]


def message_of(asked: BrainRequest, reply: BrainReply) -> dict[str, Any]:
    """A whole Messages API reply."""
    fault = reply.fault.kind if reply.fault else None
    content: list[dict[str, Any]] = []
    tool = reply.tool
    if tool is None and reply.structured is not None and asked.wants_structured:
        tool = ToolCall(STRUCTURED_TOOL, reply.structured)
    text = reply.text
    if text is None and tool is None and reply.structured is not None:
        text = json.dumps(reply.structured)
    if text and fault != "empty":
        content.append({"type": "text", "text": text})
    if tool is not None and fault != "empty":
        content.append(
            {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": tool.name, "input": tool.input}
        )
    stop = "tool_use" if tool is not None and content else "end_turn"
    if fault in ("refusal", "max_tokens"):
        stop = fault
    spoken = (text or "") + (json.dumps(tool.input) if tool is not None else "")
    given_in, given_out = reply.input_tokens, reply.output_tokens
    return {
        "id": f"msg_{uuid.uuid4().hex[:24]}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": estimate_tokens(asked.body.decode("utf-8", "replace")) if given_in is None else given_in,
            "output_tokens": estimate_tokens(spoken) if given_out is None else given_out,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }


def events_of(message: dict[str, Any]) -> Iterator[bytes]:
    """The same reply as server-sent events."""
    usage = message["usage"]
    start = {
        **message,
        "content": [],
        "stop_reason": None,
        "usage": {**usage, "output_tokens": min(1, usage["output_tokens"])},
    }
    yield _event({"type": "message_start", "message": start})
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            yield _event({"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}})
            deltas: Iterator[dict[str, Any]] = ({"type": "text_delta", "text": part} for part in _parts(block["text"]))
        else:
            empty = {**block, "input": {}}
            yield _event({"type": "content_block_start", "index": index, "content_block": empty})
            whole = json.dumps(block["input"])
            deltas = ({"type": "input_json_delta", "partial_json": part} for part in _parts(whole))
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": stop, "usage": {"output_tokens": usage["output_tokens"]}})
    yield _event({"type": "message_stop"})


def _parts(text: str) -> Iterator[str]:
    for start in range(0, len(text), _CHUNK):
        yield text[start : start + _CHUNK]


def _event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()
