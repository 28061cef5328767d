"""The Messages API on loopback, seen by a plain HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from mle_star.engineer.server import BrainReply, BrainRequest, MessagesServer, ToolCall
from mle_star.testing import FAULT_NAMES, FaultyBrain, ScriptedBrain

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def body(stream: bool = True, **more: Any) -> dict[str, Any]:
    user = {"role": "user", "content": [{"type": "text", "text": "<note>"}, {"type": "text", "text": "the prompt"}]}
    return {"model": "m", "max_tokens": 9, "stream": stream, "system": "who you are", "messages": [user], **more}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


async def ask(
    netloc: str, method: str, path: str, content: bytes | None = None, *, headers: dict[str, str], timeout: float = 240
) -> Reply:
    """One request, with these headers besides the usual ones."""

    def exchange() -> Reply:
        connection = http.client.HTTPConnection(netloc, timeout=timeout)
        try:
            connection.request(method, path, body=content, headers=headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read().decode())
        finally:
            connection.close()

    return await asyncio.to_thread(exchange)


async def send(server: MessagesServer, method: str, path: str, content: bytes = b"", *, timeout: float = 240) -> Reply:
    url = urlsplit(server.base_url)
    return await ask(
        url.netloc, method, url.path + path, content, headers={"x-mle-star-agent": "coder"}, timeout=timeout
    )


async def post(server: MessagesServer, payload: dict[str, Any], *, timeout: float = 240) -> Reply:
    return await send(server, "POST", "/v1/messages?beta=true", json.dumps(payload).encode(), timeout=timeout)


async def test_a_streamed_reply_is_the_same_message_in_pieces() -> None:
    brain = ScriptedBrain(BrainReply(text="é" * 100_000, input_tokens=7, output_tokens=11))
    async with MessagesServer(brain) as server:
        streamed = events((await post(server, body())).text)
        plain = (await post(server, body(stream=False))).json()
    pieces = [event["delta"]["text"] for event in streamed if event["type"] == "content_block_delta"]
    assert len(pieces) > 1
    assert "".join(pieces) == plain["content"][0]["text"] == "é" * 100_000
    assert streamed[0]["type"] == "message_start"
    assert streamed[-1]["type"] == "message_stop"
    assert streamed[-2]["usage"]["output_tokens"] == plain["usage"]["output_tokens"] == 11
    assert [(charge.input_tokens, charge.output_tokens) for charge in server.charges] == [(7, 11), (7, 11)]


async def test_the_brain_sees_who_asks_what_and_its_value_becomes_a_tool_call_where_one_is_offered() -> None:
    brain, tool = ScriptedBrain({"a": "x"}), {"name": "StructuredOutput", "input_schema": SCHEMA}
    async with MessagesServer(brain) as server:
        offered = (await post(server, body(stream=False, tools=[tool, {"name": "Read", "input_schema": {}}]))).json()
        not_offered = (await post(server, body(stream=False))).json()
        brain.reply_with("coder", BrainReply(tool=ToolCall("Read", {"file_path": "x"})), "done")
        first = (await post(server, body(stream=False))).json()
        result = {"type": "tool_result", "tool_use_id": first["content"][0]["id"], "content": "the file"}
        messages = [*body()["messages"], {"role": "assistant", "content": first["content"]}]
        await post(server, body(messages=[*messages, {"role": "user", "content": [result]}]))
    asked, *_, last = brain.calls("coder")
    assert (asked.system, asked.prompt, asked.schema) == ("who you are", "the prompt", SCHEMA)
    assert asked.wants_structured and asked.tools == ("StructuredOutput", "Read")
    assert (offered["content"][0]["input"], offered["stop_reason"]) == ({"a": "x"}, "tool_use")
    assert json.loads(not_offered["content"][0]["text"]) == {"a": "x"}
    assert (last.prompt, last.tool_results) == ("the prompt", ("the file",))


async def test_the_other_endpoints_answer() -> None:
    async with MessagesServer(ScriptedBrain("x"), models=("one", "two")) as server:
        assert (await send(server, "HEAD", "/")).status == 200
        models = (await send(server, "GET", "/v1/models")).json()["data"]
        assert [model["id"] for model in models] == ["one", "two"]
        counted = await send(server, "POST", "/v1/messages/count_tokens", json.dumps(body()).encode())
        assert 10 < counted.json()["input_tokens"] < 200
        assert (await send(server, "GET", "/api/elsewhere")).status == 404
        broken = await send(server, "POST", "/v1/messages", b"{")
        assert broken.json()["error"]["type"] == "invalid_request_error"


async def test_without_the_token_or_under_another_name_there_is_no_answer() -> None:
    brain = ScriptedBrain("fine")
    async with MessagesServer(brain) as server:
        url = urlsplit(server.base_url)
        for path, host, status in (
            ("", url.netloc, 401),
            ("/wrong", url.netloc, 401),
            (url.path[:-1], url.netloc, 401),
            (url.path, "evil.example", 403),
            (url.path, "127.0.0.1", 403),
        ):
            for method, rest in (("POST", "/v1/messages"), ("GET", "/v1/models"), ("HEAD", "/"), ("GET", "/none")):
                content = json.dumps(body()).encode() if method == "POST" else None
                reply = await ask(url.netloc, method, path + rest, content, headers={"host": host})
                assert reply.status == status, (path, host, method)
                assert method == "HEAD" or reply.json()["type"] == "error"
    assert brain.requests == []


async def test_a_brain_that_fails_is_an_api_error_and_is_remembered() -> None:
    async with MessagesServer(ScriptedBrain()) as server:
        reply = await post(server, body())
        assert reply.status == 500
        assert "no reply was scripted for 'coder'" in reply.json()["error"]["message"]
        assert isinstance(server.errors[0], LookupError)


async def test_faults_carry_the_api_s_error_body_or_break_off_and_charge_nothing() -> None:
    for name, status in (("rate_limit", 429), ("server_error", 500), ("overloaded", 529)):
        async with MessagesServer(FaultyBrain(ScriptedBrain("x"), rate=1, kinds=(name,))) as server:
            reply = await post(server, body())
            assert (reply.status, reply.json()["type"], server.charges) == (status, "error", [])
            assert ("retry-after" in reply.headers) == (status == 429)
    for name, error in (("cut_stream", http.client.IncompleteRead), ("hang", TimeoutError)):
        async with MessagesServer(FaultyBrain(ScriptedBrain("x"), rate=1, kinds=(name,))) as server:
            with pytest.raises(error):
                await post(server, body(), timeout=0.3 if name == "hang" else 240)
            assert server.charges == []


async def test_the_same_seed_spoils_the_same_replies() -> None:
    async def faults(seed: int) -> list[tuple[str, ...]]:
        brain = FaultyBrain(ScriptedBrain("x"), rate=0.2, seed=seed)
        hits: list[tuple[str, ...]] = []
        for _ in range(300):
            before = len(brain.injected)
            await brain.reply(BrainRequest("coder", None, "", ""))
            hits.append(tuple(fault.name for fault in brain.injected[before:]))
        return hits

    first = await faults(1)
    assert first == await faults(1) != await faults(2)
    assert 40 <= sum(bool(hit) for hit in first) <= 80
    assert {hit[0] for hit in first if hit} == set(FAULT_NAMES)
