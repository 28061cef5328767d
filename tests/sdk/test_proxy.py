"""The credential proxy: who may use it, what it passes on, and that nobody learns what it holds."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from mle_star.engineer.server import BrainReply, BrainRequest, Fault, MessagesServer
from mle_star.errors import ConfigError
from mle_star.sdk.credentials import Upstream
from mle_star.sdk.meter import Meter
from mle_star.sdk.proxy import CredentialProxy
from mle_star.serving import LoopbackServer
from mle_star.testing import ScriptedBrain
from tests.sdk.test_wire import Reply, ask, body

SECRET = "sk-canary-0123456789"
HEADERS = {"x-api-key": SECRET, "authorization": f"Bearer {SECRET}", "x-team": "a"}


async def post(proxy: CredentialProxy, key: str, headers: Mapping[str, str] | None = None) -> Reply:
    netloc, content = urlsplit(proxy.base_url).netloc, json.dumps(body()).encode()
    return await ask(netloc, "POST", "/v1/messages?beta=true", content, headers={"x-api-key": key, **(headers or {})})


@pytest.mark.req("REQ-OR-046")
async def test_requests_go_out_with_the_credential_and_the_agents_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    brain = ScriptedBrain("fine")
    async with MessagesServer(brain) as server, CredentialProxy(Upstream(server.base_url, HEADERS)) as proxy:
        forged = {"x-mle-star-agent": "test", "x-mle-star-variant": "z", "x-team": "b", "authorization": "Bearer x"}
        reply = await post(proxy, proxy.key("leakage", "detection"), {"anthropic-beta": "one,two", **forged})
        await post(proxy, proxy.key("coder"))
    first, second = (request.headers for request in brain.requests)
    assert "message_stop" in reply.text
    assert {name: first[name] for name in HEADERS} == HEADERS
    assert (first["x-mle-star-agent"], first["x-mle-star-variant"]) == ("leakage", "detection")
    assert first["anthropic-beta"] == "one,two"
    assert second["x-mle-star-agent"] == "coder"
    assert "x-mle-star-variant" not in second
    assert SECRET not in reply.text + str(reply.headers)
    ours = [record.getMessage() for record in caplog.records]
    assert SECRET not in "".join(ours)


async def test_without_a_key_of_the_run_or_under_another_name_nothing_is_passed_on() -> None:
    brain = ScriptedBrain("fine")
    async with MessagesServer(brain) as server, CredentialProxy(Upstream(server.base_url, HEADERS)) as proxy:
        key, netloc = proxy.key("coder"), urlsplit(proxy.base_url).netloc
        for given in ("", "wrong", key[:-1], SECRET):
            reply = await post(proxy, given)
            assert (reply.status, reply.json()["error"]["type"]) == (401, "authentication_error")
        for host in ("evil.example", "127.0.0.1", f"{netloc}.evil.example"):
            assert (await post(proxy, key, {"host": host})).status == 403
        bearer = await ask(netloc, "POST", "/v1/messages", b"{}", headers={"authorization": f"Bearer {key}"})
        assert bearer.status == 401
        for method, path in (
            ("GET", "/"), ("GET", "/v1/messages"), ("POST", "/v1/models"), ("POST", "/v1/files"),
            ("DELETE", "/v1/messages"), ("POST", "/v1/messages/../files"), ("POST", "//v1/messages"),
            ("GET", "/v1/models/../organizations"), ("GET", "/v1/models/%2e%2e%2forganizations"),
        ):  # fmt: skip
            assert (await ask(netloc, method, path, headers={"x-api-key": key})).status == 404, path
        assert brain.requests == []
        assert (await ask(netloc, "GET", "/v1/models", headers={"x-api-key": key})).json()["data"]
        counted = await ask(netloc, "POST", "/v1/messages/count_tokens", b"{}", headers={"x-api-key": key})
        assert counted.json()["input_tokens"] == 1


async def test_errors_of_the_service_come_through_as_they_are() -> None:
    brain = ScriptedBrain()
    faults = (Fault("status", 429, retry_after=7), Fault("status", 529), Fault("status", 401), Fault("cut"))
    brain.reply_with("coder", *(BrainReply(text="x" * 9999, fault=fault) for fault in faults))
    async with MessagesServer(brain) as server:
        async with CredentialProxy(Upstream(server.base_url)) as proxy:
            busy = await post(proxy, proxy.key("coder"))
            assert (busy.status, busy.headers["retry-after"]) == (429, "7")
            assert busy.json()["error"]["type"] == "rate_limit_error"
            assert [(await post(proxy, proxy.key("coder"))).status for _ in range(2)] == [529, 401]
            with pytest.raises(http.client.IncompleteRead):
                await post(proxy, proxy.key("coder"))
        address = server.base_url
    async with CredentialProxy(Upstream(address)) as proxy:  # nobody is there any more
        lost = await post(proxy, proxy.key("coder"))
        assert lost.status == 502
        assert urlsplit(address).path not in lost.text


@pytest.mark.req("REQ-OR-027")
@pytest.mark.parametrize("streams", [True, False])
async def test_what_each_reply_used_is_heard_by_the_meter_of_the_cli_that_asked(streams: bool) -> None:
    brain = ScriptedBrain()
    brain.reply_with("coder", *(BrainReply(text="x" * 99, input_tokens=1000 * n, output_tokens=n) for n in (1, 2, 3)))
    async with MessagesServer(brain) as server, CredentialProxy(Upstream(server.base_url)) as proxy:
        one, other = proxy.key("coder"), proxy.key("coder")
        meters = [Meter(), Meter(), Meter()]
        content = json.dumps({**body(), "stream": streams}).encode()
        for key, meter in zip((one, other, one), meters, strict=True):
            proxy.assign(key, "coder", None, meter)
            headers = {"x-api-key": key, "accept-encoding": "gzip"}
            await ask(urlsplit(proxy.base_url).netloc, "POST", "/v1/messages", content, headers=headers)
            await proxy.usage_complete(key)
    used = [
        [(message.usage["input_tokens"], message.usage["output_tokens"]) for message in one.messages] for one in meters
    ]
    assert used == [[(1000, 1)], [(2000, 2)], [(3000, 3)]]
    assert {request.headers["accept-encoding"] for request in brain.requests} == {"identity"}


class _Slow(ScriptedBrain):
    """Answers when it may."""

    def __init__(self, reply: BrainReply) -> None:
        super().__init__(reply)
        self.may = asyncio.Event()

    async def reply(self, request: BrainRequest) -> BrainReply:
        reply = await super().reply(request)
        await self.may.wait()
        return reply


@pytest.mark.req("REQ-OR-027")
async def test_a_reply_on_its_way_to_a_cli_that_hung_up_is_usage_complete() -> None:
    brain, meter = _Slow(BrainReply(text="x", input_tokens=1000, output_tokens=7)), Meter()
    async with MessagesServer(brain) as server, CredentialProxy(Upstream(server.base_url)) as proxy:
        key, content = proxy.key("coder"), json.dumps(body()).encode()
        proxy.assign(key, "coder", None, meter)
        async with httpx2.AsyncClient(trust_env=False, timeout=240) as client:
            url, headers = f"{proxy.base_url}/v1/messages", {"x-api-key": key}
            sending = asyncio.ensure_future(client.post(url, content=content, headers=headers))
            while not brain.requests:
                await asyncio.sleep(0.02)
            sending.cancel()
            for _ in range(20):  # rounds of the event loop, in which the proxy learns of it
                await asyncio.sleep(0)
        brain.may.set()
        await proxy.usage_complete(key)
        assert [(message.usage["input_tokens"], message.usage["output_tokens"]) for message in meter.messages] == [
            (1000, 7)
        ]
        assert len(server.charges) == 1


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


async def test_a_proxy_of_the_user_is_used_for_the_service_but_not_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brain = ScriptedBrain("fine")
    async with MessagesServer(brain) as server:
        asked: list[str] = []

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append((await reader.readline()).decode().strip())
            writer.close()

        listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, address)
        async with CredentialProxy(Upstream(server.base_url)) as proxy:
            assert (await post(proxy, proxy.key("coder"))).status == 200
        assert asked == []
        async with CredentialProxy(Upstream("https://service.example", HEADERS)) as proxy:
            assert (await post(proxy, proxy.key("coder"))).status == 502
        assert asked == ["CONNECT service.example:443 HTTP/1.1"]
        listener.close()


def test_certificates_that_cannot_be_used_are_refused_in_words() -> None:
    for environ in ({"NODE_EXTRA_CA_CERTS": "/none"}, {"CLAUDE_CODE_CLIENT_CERT": "/none"}):
        with pytest.raises(ConfigError, match=r"NODE_EXTRA_CA_CERTS.*cannot be read"):
            asyncio.run(CredentialProxy(Upstream("https://service.example"), environ).__aenter__())
