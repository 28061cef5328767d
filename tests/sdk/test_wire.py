"""The Messages API on loopback and the credential proxy in front of it, and the price of what was streamed."""

import asyncio
import http.client
import json
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mle_star.engineer.server import BrainReply, BrainRequest, MessagesServer, events_of, message_of
from mle_star.errors import ConfigError
from mle_star.run.budget import CHARACTERS_PER_TOKEN, UNKNOWN, Price, price_of, usage_cost
from mle_star.sdk.credentials import Upstream
from mle_star.sdk.meter import Meter, Tariff
from mle_star.sdk.proxy import CredentialProxy
from mle_star.serving import LoopbackServer, api_error
from mle_star.testing import Answer, ScriptedBrain
from tests.conftest import Logs
from tests.faults import cut
from tests.sdk.conftest import MODEL

SECRET = "sk-canary-0123456789"
HEADERS = {"x-api-key": SECRET, "authorization": f"Bearer {SECRET}", "x-team": "a"}
CODER = {"x-mle-star-agent": "coder"}


def body(stream: bool = True, **more: Any) -> dict[str, Any]:
    user = {"role": "user", "content": [{"type": "text", "text": "<note>"}, {"type": "text", "text": "the prompt"}]}
    return {"model": "m", "max_tokens": 9, "stream": stream, "system": "who you are", "messages": [user], **more}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


async def ask(base: str, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] = CODER) -> Reply:
    """One request to a path below an address, with these headers besides the usual ones."""

    def exchange() -> Reply:
        with closing(http.client.HTTPConnection(urlsplit(base).netloc, timeout=240)) as connection:
            connection.request(method, urlsplit(base).path + path, body=content or None, headers=dict(headers))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read().decode())

    return await asyncio.to_thread(exchange)


async def post(base: str, headers: Mapping[str, str] = CODER, **payload: Any) -> Reply:
    return await ask(base, "POST", "/v1/messages?beta=true", json.dumps(body(**payload)).encode(), headers)


async def test_the_other_endpoints_answer_and_a_brain_that_fails_is_an_api_error_and_is_remembered() -> None:
    """And without the token, or under another name, there is no answer."""
    brain = ScriptedBrain()
    async with MessagesServer(brain) as server:
        assert (await ask(server.base_url, "HEAD", "/")).status == 200
        models = (await ask(server.base_url, "GET", "/v1/models")).json()["data"]
        assert [model["id"] for model in models] == ["mle-star-offline"]
        counted = await ask(server.base_url, "POST", "/v1/messages/count_tokens", json.dumps(body()).encode())
        assert counted.json()["input_tokens"] == -(-len(json.dumps(body())) // 4)
        assert (await ask(server.base_url, "GET", "/api/elsewhere")).status == 404
        broken = await ask(server.base_url, "POST", "/v1/messages", b"{")
        assert broken.json()["error"]["type"] == "invalid_request_error"
        reply = await post(server.base_url)
        assert (reply.status, reply.json()["error"]["type"]) == (500, "api_error") and "for 'coder'" in reply.text
        assert isinstance(server.errors[0], LookupError)
        brain.requests.clear()
        url = urlsplit(server.base_url)
        refused = [(path, url.netloc, 401) for path in ("", "/wrong", url.path[:-1])]
        for path, host, status in (*refused, (url.path, "evil.example", 403), (url.path, "127.0.0.1", 403)):
            for method, rest in (("POST", "/v1/messages"), ("GET", "/v1/models"), ("HEAD", "/"), ("GET", "/none")):
                content = json.dumps(body()).encode() if method == "POST" else b""
                reply = await ask(f"http://{url.netloc}{path}", method, rest, content, {"host": host})
                assert reply.status == status, (path, host, method)
                assert method == "HEAD" or reply.json()["type"] == "error"
    assert brain.requests == []


@pytest.mark.req("REQ-OR-046")
async def test_only_what_has_a_key_of_the_run_goes_out_with_the_credential_and_the_agent_s_name(caplog: Logs) -> None:
    caplog.set_level(logging.DEBUG)
    brain = ScriptedBrain("fine")
    async with MessagesServer(brain) as server, CredentialProxy(Upstream(server.base_url, HEADERS)) as proxy:
        key, netloc = {"x-api-key": proxy.key("coder")}, urlsplit(proxy.base_url).netloc
        wrong = [{"x-api-key": text} for text in ("", "wrong", key["x-api-key"][:-1], SECRET)]
        for headers in (*wrong, {"authorization": f"Bearer {key['x-api-key']}"}):
            reply = await post(proxy.base_url, headers)
            assert (reply.status, reply.json()["error"]["type"]) == (401, "authentication_error")
        for host in ("evil.example", "127.0.0.1", f"{netloc}.evil.example"):
            assert (await post(proxy.base_url, {**key, "host": host})).status == 403
        for method, path in (
            ("GET", "/"), ("GET", "/v1/messages"), ("POST", "/v1/models"), ("POST", "/v1/files"),
            ("DELETE", "/v1/messages"), ("POST", "/v1/messages/../files"), ("POST", "//v1/messages"),
            ("GET", "/v1/models/../organizations"), ("GET", "/v1/models/%2e%2e%2forganizations"),
        ):  # fmt: skip
            assert (await ask(proxy.base_url, method, path, headers=key)).status == 404, path
        assert brain.requests == [], "without a key, under another name or on another road nothing is passed on"
        assert (await ask(proxy.base_url, "GET", "/v1/models", headers=key)).json()["data"]
        counted = await ask(proxy.base_url, "POST", "/v1/messages/count_tokens", b"{}", key)
        assert counted.json()["input_tokens"] == 1
        forged = {"x-mle-star-agent": "test", "x-mle-star-variant": "z", "x-team": "b", "authorization": "Bearer x"}
        own = {"x-api-key": proxy.key("leakage", "detection"), "anthropic-beta": "one,two"}
        reply = await post(proxy.base_url, {**own, **forged})
        await post(proxy.base_url, key)
    assert proxy._client.is_closed and server._server._socket.proto == socket.IPPROTO_TCP
    first, second = (request.headers for request in brain.requests)
    kind = reply.headers["content-type"]
    assert "message_stop" in reply.text and reply.text.count("fine") == 1 and kind.startswith("text/event-stream")
    assert {name: first[name] for name in HEADERS} == HEADERS
    assert (first["x-mle-star-agent"], first["x-mle-star-variant"]) == ("leakage", "detection")
    assert first["anthropic-beta"] == "one,two"
    assert second["x-mle-star-agent"] == "coder" and "x-mle-star-variant" not in second
    assert SECRET not in reply.text + str(reply.headers) + "".join(record.getMessage() for record in caplog.records)


async def test_errors_of_the_service_come_through_as_they_are() -> None:
    brain = ScriptedBrain()
    faults: list[Answer] = [api_error(429, "busy", retry_after=7), api_error(529, "full"), api_error(401, "no"), cut]
    brain.reply_with("coder", *faults)
    async with MessagesServer(brain) as server, CredentialProxy(Upstream(server.base_url)) as proxy:
        key, address = {"x-api-key": proxy.key("coder")}, server.base_url
        busy, *others = [await post(proxy.base_url, key) for _ in range(3)]
        assert (busy.status, busy.headers["retry-after"]) == (429, "7")
        assert busy.json()["error"]["type"] == "rate_limit_error" and [other.status for other in others] == [529, 401]
        with pytest.raises(http.client.IncompleteRead):
            await post(proxy.base_url, key)
    async with CredentialProxy(Upstream(address)) as proxy:  # nobody is there any more
        lost = await post(proxy.base_url, {"x-api-key": proxy.key("coder")})
        assert lost.status == 502 and urlsplit(address).path not in lost.text


def used(meter: Meter) -> list[tuple[int, int]]:
    return [(message.usage["input_tokens"], message.usage["output_tokens"]) for message in meter.messages]


@pytest.mark.req("REQ-OR-027")
@pytest.mark.parametrize("streams", [True, False])
async def test_what_each_reply_used_is_heard_by_the_meter_of_the_cli_that_asked(streams: bool) -> None:
    brain, meters = ScriptedBrain(), [Meter(), Meter(), Meter()]
    brain.reply_with("coder", *(BrainReply(text="x" * 99, input_tokens=1000 * n, output_tokens=n) for n in (1, 2, 3)))
    async with MessagesServer(brain) as server, CredentialProxy(Upstream(server.base_url)) as proxy:
        one, other = proxy.key("coder"), proxy.key("coder")
        for key, meter in zip((one, other, one), meters, strict=True):
            proxy.assign(key, "coder", None, meter)
            await post(proxy.base_url, {"x-api-key": key, "accept-encoding": "gzip"}, stream=streams)
            await proxy.usage_complete(key)
    assert list(map(used, meters)) == [[(1000, 1)], [(2000, 2)], [(3000, 3)]]
    assert {request.headers["accept-encoding"] for request in brain.requests} == {"identity"}


@pytest.mark.req("REQ-OR-027")
async def test_a_reply_on_its_way_to_a_cli_that_hung_up_is_counted() -> None:
    class Slow(ScriptedBrain):
        async def reply(self, request: BrainRequest) -> BrainReply | Response:
            reply = await super().reply(request)
            await may.wait()
            return reply

    brain, meter, may = Slow(BrainReply(text="x", input_tokens=1000, output_tokens=7)), Meter(), asyncio.Event()
    async with MessagesServer(brain) as server, CredentialProxy(Upstream(server.base_url)) as proxy:
        key = proxy.key("coder")
        proxy.assign(key, "coder", None, meter)
        async with httpx2.AsyncClient(trust_env=False, timeout=240) as client:
            url, headers = f"{proxy.base_url}/v1/messages", {"x-api-key": key}
            sending = asyncio.ensure_future(client.post(url, content=json.dumps(body()).encode(), headers=headers))
            while not brain.requests:
                await asyncio.sleep(0.02)
            sending.cancel()
            for _ in range(20):  # rounds of the event loop, in which the proxy learns of it
                await asyncio.sleep(0)
        may.set()
        await proxy.usage_complete(key)
        assert (used(meter), len(server.delivered)) == ([(1000, 7)], 1)


async def test_bodies_stream_both_ways_and_whoever_hangs_up_ends_the_exchange() -> None:
    got, more, ended = asyncio.Queue[bytes](), asyncio.Queue[bytes](), asyncio.Event()

    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"request-id", b"r1")]})
        while (message := await receive())["type"] == "http.request":
            await got.put(message["body"])
            await send({"type": "http.response.body", "body": message["body"], "more_body": True})
        ended.set()  # the answer itself has no end

    async def upload() -> AsyncIterator[bytes]:
        while piece := await more.get():
            yield piece

    await LoopbackServer(echo, name="never started").stop()
    service = LoopbackServer(echo, name="service")
    await service.start()
    try:
        async with (
            CredentialProxy(Upstream(service.url)) as proxy,
            httpx2.AsyncClient(trust_env=False, timeout=240) as client,
        ):
            url, headers = f"{proxy.base_url}/v1/messages", {"x-api-key": proxy.key("coder")}
            request = client.build_request("POST", url, content=upload(), headers=headers)
            sending = asyncio.ensure_future(client.send(request, stream=True))
            await more.put(b"first")
            assert await asyncio.wait_for(got.get(), 240) == b"first"  # while the request is still being written
            await more.put(b"")
            answer = await asyncio.wait_for(sending, 240)
            assert answer.headers["request-id"] == "r1"
            assert await asyncio.wait_for(anext(answer.aiter_raw()), 240) == b"first"  # while the answer is
            assert not ended.is_set()
            await answer.aclose()
            await asyncio.wait_for(ended.wait(), 240)
    finally:
        await service.stop()


async def test_the_user_s_proxy_is_used_for_the_service_but_not_locally(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append((await reader.readline()).decode().strip())
        writer.close()

    async with (
        MessagesServer(ScriptedBrain("fine")) as server,
        await asyncio.start_server(refuse, "127.0.0.1", 0) as own,
    ):
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{own.sockets[0].getsockname()[1]}")
        for url, status in ((server.base_url, 200), ("https://service.example", 502)):
            async with CredentialProxy(Upstream(url, HEADERS)) as proxy:
                assert (await post(proxy.base_url, {"x-api-key": proxy.key("coder")})).status == status
    assert lines == ["CONNECT service.example:443 HTTP/1.1"]


def test_certificates_that_cannot_be_used_are_refused_in_words() -> None:
    for environ in ({"NODE_EXTRA_CA_CERTS": "/none"}, {"CLAUDE_CODE_CLIENT_CERT": "/none"}):
        with pytest.raises(ConfigError, match=r"NODE_EXTRA_CA_CERTS.*cannot be read"):
            asyncio.run(CredentialProxy(Upstream("https://service.example"), environ).__aenter__())


def streamed(meter: Meter, *, model: str = MODEL, events: int | None = None, **reply: Any) -> None:
    """Let a meter hear a reply as the API streams it and as the SDK repeats it; only its first `events`, when given."""
    message = message_of(BrainRequest("coder", None, "", "", model=model), BrainReply(text="x" * 700, **reply))
    for event in list(events_of(message))[:events]:
        meter.stream(json.loads(event.split(b"data: ")[1]))
        early = {**message["usage"], "output_tokens": 1}  # what the SDK's own messages know
        meter.message(message["id"], model, early)


@pytest.mark.req("REQ-OR-027")
def test_a_reply_counts_once_by_its_last_word_or_as_far_as_it_came_and_of_two_that_heard_it_the_larger() -> None:
    for events, written in ((None, 300.0), (3, 700 / CHARACTERS_PER_TOKEN)):
        meter = Meter()
        streamed(meter, input_tokens=1000, output_tokens=500)
        streamed(meter, input_tokens=2000, output_tokens=300, events=events)
        assert Tariff().cost(meter, MODEL) == pytest.approx(3000 * 3e-6 + (500 + written) * 15e-6)
        assert meter.broken_off == (events is not None)
    meter = Meter()
    meter.stream({"type": "message_start", "message": {"id": "1", "model": MODEL, "usage": {"input_tokens": 10}}}, "a")
    for parent, name in (("a", "text"), ("a", "partial_json"), ("a", "thinking"), ("a", "other"), ("b", "text")):
        meter.stream({"type": "content_block_delta", "delta": {name: "x" * 35}}, parent)
    meter.stream({"type": "message_delta", "delta": {}}, "a")  # which tells of no usage
    assert Tariff().cost(meter, MODEL) == pytest.approx(10 * 3e-6 + 105 / CHARACTERS_PER_TOKEN * 15e-6)
    heard: list[Any] = [json.loads(event.split(b"data: ")[1]) for event in events_of(message_of(
        BrainRequest("coder", None, "", "", model=MODEL), BrainReply(text="x" * 700, output_tokens=500)))]  # fmt: skip
    for by_cli, passed in ((heard, heard[:2]), (heard[:2], heard), ([], heard), (heard, []), ([], heard[:3])):
        meters = Meter(), Meter()
        for meter, event in [*((meters[0], one) for one in by_cli), *((meters[1], one) for one in passed)]:
            meter.stream(event)
        meters[0].add(meters[1])
        written = 500 if heard in (by_cli, passed) else 700 / CHARACTERS_PER_TOKEN
        assert meters[0].broken_off == (written != 500)
        assert used(meters[0])[0][0] * 3e-6 + written * 15e-6 == pytest.approx(Tariff().cost(meters[0], MODEL))
    for parent, start in (("a", {"usage": {"input_tokens": 10}}), ("b", {"usage": {"input_tokens": 5}}), ("c", None)):
        meter.stream({"type": "message_start", "message": start}, parent)  # some servers give no id
    assert len(meter.messages) == 3


def test_the_price_is_the_user_s_or_the_list_s_or_an_estimate_with_a_warning_and_the_cli_s_own_words_are_free() -> None:
    warnings, meter = list[str](), Meter()
    streamed(meter, model="claude-opus-4-1", input_tokens=1000, output_tokens=100)
    tariff = Tariff(own={"small": Price(1, 2), "opus": Price(10, 50)})
    assert tariff.cost(meter, "opus") == pytest.approx(1000 * 10e-6 + 100 * 50e-6)
    assert tariff.is_own(meter, "opus") and not tariff.is_own(meter, "sonnet")
    meter = Meter()
    meter.message("1", "<synthetic>", {"input_tokens": 0, "output_tokens": 0, "server_tool_use": None})
    meter.message(None, "sonnet", {"input_tokens": 5})
    assert (Tariff(warnings.append).cost(meter, ""), warnings, meter.broken_off) == (0, [], False)
    meter = Meter()
    streamed(meter, model="mystery-1", input_tokens=1000, output_tokens=100)
    charged = Tariff(warnings.append).cost(meter, "mystery")
    assert charged == pytest.approx(1000 * 4e-6 + 100 * 20e-6), "what the CLI takes for such names"
    how = "what calls that break off have cost is estimated at the price that the CLI takes for such names"
    assert warnings == [f"the price of 'mystery-1' is not known: {how}"]


@given(
    own=st.tuples(st.floats(0, 90), st.floats(0, 90)),
    used=st.tuples(st.integers(0, 10**7), st.integers(0, 10**6)),
    model=st.sampled_from(["small", "claude-sonnet-4-5", "opus"]),
)
def test_a_limit_by_the_user_s_prices_is_kept(own: tuple[float, float], used: tuple[int, int], model: str) -> None:
    tariff = Tariff(own={model: Price(*own)})
    limit, usage = tariff.as_the_cli_counts(5.0, model), {"input_tokens": used[0], "output_tokens": used[1]}
    listed, paid = (usage_cost(usage, price) for price in (price_of(model) or UNKNOWN, Price(*own)))
    if limit is None:
        assert paid == 0
    elif listed <= limit:
        assert paid <= 5.0 * (1 + 1e-9)
    assert Tariff().as_the_cli_counts(5.0, model) == 5.0 and tariff.as_the_cli_counts(None, model) is None
