"""The connected clients of a run, each in a task of its own that opens it, uses it and closes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeSDKClient,
    ResultMessage,
    StreamEvent,
    SystemMessage,
    TextBlock,
    ToolUseBlock,
)

from mle_star.method.continuation import joined
from mle_star.models import AgentConfig
from mle_star.prompts import Prompt
from mle_star.sdk.credentials import MARKER
from mle_star.sdk.definitions import STRUCTURED_TOOL
from mle_star.sdk.hooks import CallSite
from mle_star.sdk.meter import Tariff
from mle_star.sdk.processes import kill_marked
from mle_star.sdk.replies import Turn

if TYPE_CHECKING:
    from claude_agent_sdk import ClaudeAgentOptions

    from mle_star.sdk.proxy import CredentialProxy

logger = logging.getLogger(__name__)

MAX_IDLE = 6
CLEAR_SECONDS = 30.0
ABORT_SECONDS = 2.0
CLOSE_SECONDS = 4.0

OnWait = Callable[[int | None, float, int, int], None]
"""Told when the CLI waits before it tries again: HTTP status, seconds, attempt, attempts at most."""


@dataclass
class _Job:
    """A prompt to send; None stands for `/clear`."""

    prompt: str | None = None
    on_wait: OnWait = lambda *_: None
    turn: Turn = field(default_factory=Turn)
    done: asyncio.Future[Turn] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Worker:
    """Connects as soon as it is made. Serves one call at a time; `clear()` makes it fit for another one."""

    def __init__(
        self, options: ClaudeAgentOptions, site: CallSite, tariff: Tariff, proxy: CredentialProxy | None
    ) -> None:
        self.key = ""
        self.site = site
        self.failure: Exception | None = None
        self.closed = False
        self._options = options
        self._jobs: asyncio.Queue[_Job | None] = asyncio.Queue()
        self._free = asyncio.Event()
        self._client: ClaudeSDKClient | None = None
        self._current: _Job | None = None
        self._billed: dict[str, float] = {}
        self._tariff = tariff
        self._proxy, self._api_key = proxy, options.env.get("ANTHROPIC_API_KEY", "")
        self._task = asyncio.create_task(self._own(), name=f"agent-client-{site.agent}")

    @property
    def usable(self) -> bool:
        """May a call still be given to it?"""
        return self.failure is None and not self.closed and not self._task.done()

    async def ready(self) -> None:
        """Wait until it is connected and idle; raise what went wrong."""
        await self._free.wait()
        if self.failure is not None:
            raise self.failure

    def start(self, config: AgentConfig, prompt: str, label: str, on_wait: OnWait) -> asyncio.Future[Turn]:
        """Send a prompt to an agent, verbatim; the future gets what came of it and never an exception."""
        self.site.agent, self.site.label = config.agent_type.value, label
        if self._proxy is not None:
            self._proxy.rename(self._api_key, config.agent_type.value, config.variant)
        self._free.clear()
        job = _Job(prompt, on_wait)
        self._current = job
        self._jobs.put_nowait(job)
        return job.done

    def clear(self) -> None:
        """Forget the conversation, in the background."""
        self._free.clear()
        self._jobs.put_nowait(_Job())

    async def abort(self) -> Turn:
        """End the running call and learn what it has cost so far."""
        job, client = self._current, self._client
        if job is None:
            return Turn()
        if client is not None and not job.done.done():
            job.turn.cut_off = True
            with suppress(Exception):
                await asyncio.wait_for(client.interrupt(), ABORT_SECONDS)
            await asyncio.wait({job.done}, timeout=ABORT_SECONDS)
        if not job.done.done():
            self.kill()
            await asyncio.wait({job.done}, timeout=ABORT_SECONDS)
        return job.done.result() if job.done.done() else await self._priced(job.turn)

    async def close(self) -> None:
        """Disconnect, by force when it does not go by itself."""
        self.closed = True
        self._jobs.put_nowait(None)
        if not self._free.is_set() and self._client is None:
            self.kill()  # still connecting: nobody will need it
        done, _ = await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        if not done:
            self.kill()
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)

    def kill(self) -> None:
        """End the CLI process and whatever it started."""
        kill_marked(self._options.env[MARKER])

    async def _own(self) -> None:
        client = ClaudeSDKClient(self._options)
        try:
            await client.connect()
        except Exception as error:  # the SDK raises plain exceptions, too, when the CLI dies while connecting
            self.failure = error
            self._free.set()
            return
        self._client = client
        self._free.set()
        try:
            while (job := await self._jobs.get()) is not None:
                if job.prompt is None:
                    await self._clear(client)
                else:
                    job.done.set_result(await self._priced(await self._turn(client, job.prompt, job)))
        finally:
            self._free.set()
            with suppress(Exception):
                await client.disconnect()

    async def _turn(self, client: ClaudeSDKClient, prompt: str, job: _Job) -> Turn:
        turn = job.turn
        if self._proxy is not None:
            self._proxy.listen(self._api_key, turn.passed)
        try:
            await client.query(_message(prompt, verbatim=True))
            async for message in client.receive_response():
                self._take(message, turn, job)
        except Exception as error:  # whatever breaks a client, the call learns of it as a value
            turn.error = error
        return turn

    def _take(self, message: object, turn: Turn, job: _Job) -> None:
        if isinstance(message, StreamEvent):
            turn.meter.stream(message.event, message.parent_tool_use_id)
            if message.parent_tool_use_id is None:
                _follow(message.event, turn)
        elif isinstance(message, AssistantMessage):
            turn.meter.message(message.message_id, message.model, message.usage)
        if isinstance(message, AssistantMessage) and message.parent_tool_use_id is None:
            texts = [block.text for block in message.content if isinstance(block, TextBlock)]
            calls = {block.name: block.input for block in message.content if isinstance(block, ToolUseBlock)}
            turn.written = "".join(texts) or turn.written
            turn.text = joined(turn.begun, turn.written) if turn.written else turn.text
            turn.api_error = message.error
            turn.structured = calls.get(STRUCTURED_TOOL, turn.structured)
        elif isinstance(message, SystemMessage) and message.subtype == "api_retry":
            data = message.data
            seconds = float(data.get("retry_delay_ms") or 0) / 1000
            job.on_wait(data.get("error_status"), seconds, data.get("attempt") or 0, data.get("max_retries") or 0)
        elif isinstance(message, SystemMessage) and message.subtype.startswith("model_refusal"):
            turn.refused = True
        elif isinstance(message, ResultMessage):
            turn.result = message

    async def _priced(self, turn: Turn) -> Turn:
        """The turn with its cost: what its result says; where there is none, and for what broke off, what streamed."""
        reported = None if turn.result is None else self._difference(turn.result)
        if reported is None or turn.cut_off:
            if self._proxy is not None:
                await self._proxy.usage_complete(self._api_key)
            turn.meter.add(turn.passed)
        else:
            self._tariff.settle(turn.meter, reported)
        if self._tariff.is_own(turn.meter):
            turn.meter.add(turn.passed)  # searches and the like, which the CLI makes beside the conversation
            turn.cost_usd = self._tariff.cost(turn.meter)
            return turn
        streamed = self._tariff.cost(turn.meter) if reported is None or turn.cut_off or turn.meter.broken_off else 0.0
        turn.cost_usd = max(reported or 0.0, streamed)
        return turn

    def _difference(self, result: ResultMessage) -> float | None:
        """What this call added to the cost of its session: results report the sum so far."""
        if result.total_cost_usd is None:
            return None
        before = self._billed.get(result.session_id, 0.0)
        self._billed[result.session_id] = result.total_cost_usd
        return max(result.total_cost_usd - before, 0.0)

    async def _clear(self, client: ClaudeSDKClient) -> None:
        try:
            await client.query(_message("/clear", verbatim=False))
            await asyncio.wait_for(_drain(client), CLEAR_SECONDS)
        except Exception as error:
            self.failure = error
        finally:
            self._current = None
            self._free.set()


def _follow(event: dict[str, Any], turn: Turn) -> None:
    """Keep what a message said when its end was cut, for the next one to go on from."""
    stop = (event.get("delta") or {}).get("stop_reason")
    if event.get("type") == "message_start":
        turn.written = ""
    elif stop == "max_tokens":
        turn.begun = joined(turn.begun, turn.written)
    elif stop == "tool_use":
        turn.begun = ""


async def _drain(client: ClaudeSDKClient) -> None:
    async for message in client.receive_response():
        if isinstance(message, ResultMessage) and message.is_error:
            raise RuntimeError(f"/clear failed: {message.subtype}")


async def _message(text: str, *, verbatim: bool) -> AsyncIterator[dict[str, Any]]:
    steady = text.steady if isinstance(text, Prompt) else 0
    kept = {"type": "text", "text": text[:steady], "cache_control": {"type": "ephemeral"}}
    yield {
        "type": "user",
        "message": {"role": "user", "content": [kept, {"type": "text", "text": text[steady:]}] if steady else text},
        "parent_tool_use_id": None,
        "client_composed": verbatim,
    }


class Pool:
    """Gives a client to one call at a time, and leaves none behind. One with a key is cleared for the next call."""

    def __init__(self) -> None:
        self.closed = True
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    async def acquire(self, key: str, make: Callable[[], Worker]) -> Worker:
        """A connected client, which must come back by `release`, `distrust` or `discard`."""
        if self.closed:
            raise RuntimeError("the clients are closed")
        worker = next((one for one in self._idle if one.key == key and one.usable), None)
        if worker is None:
            worker = make()
            worker.key = key
        else:
            self._idle.remove(worker)
        self._busy.add(worker)
        try:
            await worker.ready()
        except BaseException:
            self.discard(worker)
            raise
        return worker

    def release(self, worker: Worker) -> None:
        """A call ended well: the client is cleared for the next one, or has done its work."""
        if not worker.key or self.closed or not worker.usable:
            self.discard(worker)
            return
        self._busy.discard(worker)
        worker.clear()
        self._idle.append(worker)
        if len(self._idle) > MAX_IDLE:
            self.discard(self._idle.pop(0))

    def distrust(self, worker: Worker) -> None:
        """A client broke: those that waited may have met the same fate, so the next one will be new."""
        for one in (worker, *self._idle):
            self.discard(one)
        self._idle.clear()

    def discard(self, worker: Worker, running: Callable[[Worker], Awaitable[object]] | None = None) -> None:
        """A client is not to be used again; `running` gets it first when its call was not finished."""
        self._busy.discard(worker)
        task = asyncio.create_task(_see_off(worker, running), name="agent-client-close")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Let go of every client and wait until it is gone."""
        self.closed = True
        for worker in self._idle:
            self.discard(worker)
        for worker in list(self._busy):
            self.discard(worker, running=Worker.abort)
        self._idle.clear()
        while self._leaving:
            await asyncio.wait(set(self._leaving))


async def _see_off(worker: Worker, running: Callable[[Worker], Awaitable[object]] | None) -> None:
    try:
        if running is not None:
            await running(worker)
        await worker.close()
    except Exception:  # closing must not hide what went wrong before
        logger.warning("closing a client failed", exc_info=True)
