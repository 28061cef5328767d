"""The connected clients of a run, each in a task of its own that opens, uses and closes it; none outlives the run."""

import asyncio
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import claude_agent_sdk as agent_sdk
import psutil
from anyio import fail_after
from claude_agent_sdk import ClaudeAgentOptions

from mle_star.method.codeblocks import joined
from mle_star.models import AgentConfig
from mle_star.prompts import Prompt
from mle_star.sdk.credentials import MARKER
from mle_star.sdk.definitions import STRUCTURED_TOOL
from mle_star.sdk.hooks import CallSite
from mle_star.sdk.meter import Tariff
from mle_star.sdk.proxy import CredentialProxy
from mle_star.sdk.replies import Turn

logger = logging.getLogger(__name__)

CLEAR_SECONDS = 30.0
ABORT_SECONDS = 2.0
CLOSE_SECONDS = 4.0

_PREFIX = "mle-star-cli-"
_SWEEP_AFTER_SECONDS = 2 * 86400

OnWait = Callable[[dict[str, Any]], None]
"""Told when the CLI waits before it tries again, in the CLI's own words."""


@dataclass
class _Job:
    """A prompt to send, and its outcome."""

    prompt: str
    on_wait: OnWait
    turn: Turn = field(default_factory=Turn)
    done: asyncio.Future[Turn] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Worker:
    """Connects as soon as it is made. Serves one call at a time; one with a key forgets it, for the next one."""

    def __init__(
        self, key: str, options: ClaudeAgentOptions, site: CallSite, tariff: Tariff, proxy: CredentialProxy | None
    ) -> None:
        self.key, self.site = key, site
        self.failure: Exception | None = None
        self._options = options
        self._jobs: asyncio.Queue[_Job | None] = asyncio.Queue()
        self._free = asyncio.Event()
        self._client: agent_sdk.ClaudeSDKClient | None = None
        self._current: _Job | None = None
        self._tariff, self._proxy, self._api_key = tariff, proxy, options.env.get("ANTHROPIC_API_KEY", "")
        self._task = asyncio.create_task(self._own(), name=f"agent-client-{site.agent}")

    @property
    def usable(self) -> bool:
        """May a call still be given to it?"""
        return self.failure is None and not self._task.done()

    async def ready(self) -> None:
        """Wait until it is connected and idle; raise what went wrong."""
        await self._free.wait()
        if self.failure is not None:
            raise self.failure

    def start(self, config: AgentConfig, prompt: str, label: str, on_wait: OnWait) -> asyncio.Future[Turn]:
        """Send a prompt to an agent, verbatim; the future gets what came of it and never an exception."""
        self.site.agent, self.site.label = config.agent_type.value, label
        job = self._current = _Job(prompt, on_wait)
        if self._proxy is not None:
            self._proxy.assign(self._api_key, config.agent_type.value, config.variant, job.turn.passed)
        self._free.clear()
        self._jobs.put_nowait(job)
        return job.done

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
        client = agent_sdk.ClaudeSDKClient(self._options)
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
                await self._turn(client, job)
                job.done.set_result(await self._priced(job.turn))
                if self.key and job.turn.result is not None:
                    await self._clear(client)
        finally:
            self._free.set()
            with suppress(Exception):
                await client.disconnect()

    async def _turn(self, client: agent_sdk.ClaudeSDKClient, job: _Job) -> None:
        try:
            await client.query(_message(job.prompt, verbatim=True))
            async for message in client.receive_response():
                self._take(message, job.turn, job.on_wait)
        except Exception as error:  # whatever breaks a client, the call learns of it as a value
            job.turn.error = error

    def _take(self, message: object, turn: Turn, on_wait: OnWait) -> None:
        if isinstance(message, agent_sdk.StreamEvent):
            turn.meter.stream(message.event, message.parent_tool_use_id)
            if message.parent_tool_use_id is None:
                _follow(message.event, turn)
        elif isinstance(message, agent_sdk.AssistantMessage):
            turn.meter.message(message.message_id, message.model, message.usage)
        if isinstance(message, agent_sdk.AssistantMessage) and message.parent_tool_use_id is None:
            texts = [block.text for block in message.content if isinstance(block, agent_sdk.TextBlock)]
            calls = {block.name: block.input for block in message.content if isinstance(block, agent_sdk.ToolUseBlock)}
            turn.written = "".join(texts) or turn.written
            turn.text = joined(turn.begun, turn.written) if turn.written else turn.text
            turn.api_error = message.error
            turn.structured = calls.get(STRUCTURED_TOOL, turn.structured)
        elif isinstance(message, agent_sdk.SystemMessage) and message.subtype == "api_retry":
            on_wait(message.data)
        elif isinstance(message, agent_sdk.SystemMessage) and message.subtype.startswith("model_refusal"):
            turn.refused = True
        elif isinstance(message, agent_sdk.ResultMessage):
            turn.result = message

    async def _priced(self, turn: Turn) -> Turn:
        """The turn with its cost: what its result says; where there is none, and for what broke off, what streamed."""
        reported = None if turn.result is None else turn.result.total_cost_usd  # of its session, which serves one call
        if reported is None or turn.cut_off:
            if self._proxy is not None:
                await self._proxy.usage_complete(self._api_key)
            turn.meter.add(turn.passed)
        model = self._options.model or ""
        if self._tariff.is_own(turn.meter, model):
            turn.meter.add(turn.passed)  # searches and the like, which the CLI makes beside the conversation
            turn.cost_usd = self._tariff.cost(turn.meter, model)
        elif reported is None or turn.cut_off or turn.meter.broken_off:
            turn.cost_usd = max(reported or 0.0, self._tariff.cost(turn.meter, model))
        else:
            turn.cost_usd = reported
        return turn

    async def _clear(self, client: agent_sdk.ClaudeSDKClient) -> None:
        try:
            await client.query(_message("/clear", verbatim=False))
            with fail_after(CLEAR_SECONDS):
                async for message in client.receive_response():
                    if isinstance(message, agent_sdk.ResultMessage) and message.is_error:
                        raise RuntimeError(f"/clear failed: {message.subtype}")
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

    def __init__(self, max_idle: int) -> None:
        self.closed, self._max_idle = True, max_idle
        self._idle: dict[Worker, None] = {}  # the one that waits longest first
        self._busy: set[Worker] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    async def acquire(self, key: str, make: Callable[[], Worker]) -> Worker:
        """A connected client, which must come back by `release`, `distrust` or `discard`."""
        if self.closed:
            raise RuntimeError("the clients are closed")
        worker = next((one for one in self._idle if one.key == key and one.usable), None) or make()
        self._idle.pop(worker, None)
        self._busy.add(worker)
        try:
            await worker.ready()
        except BaseException:
            self.discard(worker)
            raise
        return worker

    def release(self, worker: Worker) -> None:
        """A call ended well: the client waits for the next one, or has done its work."""
        if not worker.key or self.closed or not worker.usable:
            self.discard(worker)
            return
        self._busy.discard(worker)
        self._idle[worker] = None
        if len(self._idle) > self._max_idle:
            self.discard(next(iter(self._idle)))

    def distrust(self, worker: Worker) -> None:
        """A client broke: those that waited may be broken as well, so the next one will be new."""
        for one in (worker, *self._idle):
            self.discard(one)

    def discard(self, worker: Worker, end: Callable[[Worker], Awaitable[object]] = Worker.abort) -> None:
        """A client is not to be used again; `end` ends the call that it may still be busy with."""
        self._idle.pop(worker, None)
        self._busy.discard(worker)
        task = asyncio.create_task(_see_off(worker, end), name="agent-client-close")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Let go of every client and wait until it is gone."""
        self.closed = True
        for worker in (*self._idle, *self._busy):
            self.discard(worker)
        while self._leaving:
            await asyncio.wait(set(self._leaving))


async def _see_off(worker: Worker, end: Callable[[Worker], Awaitable[object]]) -> None:
    try:
        await end(worker)
        await worker.close()
    except Exception:  # closing must not hide what went wrong before
        logger.warning("closing a client failed", exc_info=True)


# --- processes and folders ---------------------------------------------------------------------------------


class ProcessKeeper:
    """Knows the processes of a run by a variable in their environment, and owns their home."""

    def __init__(self, marker: str) -> None:
        self.marker = marker
        # Short, because the path of a socket below it may have no more than about a hundred characters.
        self.home = Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getpid()}-{marker[:6]}"

    def watch(self) -> None:
        """Make the home; catch SIGTERM where nobody else does, for its default would leave the CLIs running."""
        _sweep()
        self.home.mkdir(parents=True, mode=0o700)  # transcripts are nobody else's business
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._die)

    def _die(self, number: int, frame: FrameType | None) -> None:
        self.end()
        os.kill(os.getpid(), number)

    def end(self) -> None:
        """End what is left, and clean up."""
        kill_marked(self.marker)
        if signal.getsignal(signal.SIGTERM) == self._die:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        shutil.rmtree(self.home, ignore_errors=True)


def _sweep() -> None:
    """Remove the homes of runs that were killed and could not do it themselves.

    Not at once: in a folder that containers share, the process may live where we cannot see it.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = folder.name[len(_PREFIX) :].partition("-")[0]
        with suppress(OSError):
            old = time.time() - folder.stat().st_mtime > _SWEEP_AFTER_SECONDS
            if old and owner.isdigit() and not psutil.pid_exists(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)


def marked_processes(marker: str) -> list[psutil.Process]:
    """The CLI processes of a run (`marker`) or of one client (`marker.number`), with everything they started.

    All processes are looked at: what an agent's shell puts into the background is soon no child of ours.
    """
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mark = process.environ().get(MARKER, "")
            if mark == marker or mark.startswith(f"{marker}."):
                found.update((one.pid, one) for one in (*process.children(recursive=True), process))
    return list(found.values())


def kill_marked(marker: str) -> None:
    """End these processes now."""
    for process in marked_processes(marker):
        with suppress(psutil.Error):
            process.kill()
