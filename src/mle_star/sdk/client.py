"""`AgentClient`: the one logical client of a run, and the only way to the model."""

import asyncio
import logging
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mle_star.errors import AgentError, ConfigError
from mle_star.models import AgentConfig, AgentType, PipelineConfig, TaskDescription
from mle_star.models.agents import section
from mle_star.run.budget import Budget, read_prices
from mle_star.run.events import AgentReply
from mle_star.sdk.credentials import Upstream, find_upstream, require_credentials, require_sdk
from mle_star.sdk.definitions import EnvironmentFacts, build_system_prompt, build_tool_server
from mle_star.sdk.hooks import CallSite, HookState
from mle_star.sdk.meter import Tariff
from mle_star.sdk.options import Launcher, Replies, prepare_shell
from mle_star.sdk.replies import Failure, Turn, answers_in_text, outcome_of, refuses_tools

if TYPE_CHECKING:
    from claude_agent_sdk import CanUseTool

    from mle_star.sdk.connection import Worker

logger = logging.getLogger(__name__)
# The SDK calls each client that we end an error. Who wants to read that can still add a handler of their own.
logging.getLogger("claude_agent_sdk").addHandler(logging.NullHandler())

CLOSE_SECONDS = 5.0
"""How long calls may take to end once their clients are gone."""
_BUSY_WORDS = {429: "rate limited", 529: "overloaded"}


@dataclass
class _Bill:
    """What one call has cost so far, whatever its outcome. A call that is cancelled tells it once, when it is over."""

    label: str
    on_late_cost: Callable[[float], None]
    usd: float = 0.0
    ends_later: bool = False


@dataclass(frozen=True)
class CallPolicy:
    """How patient calls are, and how many clients wait for the next ones.

    The CLI itself tries `cli_retries` times before any of the delays here is used.
    """

    retry_delays: tuple[float, ...] = (1.0, 2.0, 4.0)
    busy_delays: tuple[float, ...] = (15.0, 30.0, 60.0, 120.0, 240.0, 300.0, 300.0)
    cli_retries: int = 4
    max_idle: int = 6


class AgentClient:
    """Implements `Agents`. `async with AgentClient(...) as agents:`; nothing of it is left after the block."""

    def __init__(
        self,
        task: TaskDescription,
        config: PipelineConfig,
        facts: EnvironmentFacts,
        *,
        work_dir: Path | None = None,
        base_url: str | None = None,
        budget: Budget | None = None,
        notify: Callable[[str], None] = lambda message: None,
        policy: CallPolicy | None = None,
        can_use_tool: "CanUseTool | None" = None,
        hidden: tuple[str, ...] = (),
    ) -> None:
        require_sdk()
        from mle_star.sdk.connection import Pool, ProcessKeeper

        if config.traits.is_embedded and base_url is None:
            raise ConfigError(f"the model {config.model!r} is reached through its own server: give base_url")
        self.config, self.policy = config, policy or CallPolicy()
        self.state = HookState(budget=budget)
        self.system_prompt = build_system_prompt(task, facts)
        self.marker = uuid.uuid4().hex
        self.max_concurrent_sessions = config.max_concurrent_paths
        self._base_url, self._notify = base_url, notify
        self._servers = AsyncExitStack()
        self._keeper = ProcessKeeper(self.marker)

        warn = cache(self._warn)
        self._launcher = Launcher(
            task=task,
            config=config,
            system_prompt=self.system_prompt,
            essence=build_system_prompt(task, facts, essence=True),
            work_dir=(work_dir or Path(config.work_dir)).resolve(),
            home=self._keeper.home,
            marker=self.marker,
            state=self.state,
            cli_retries=self.policy.cli_retries,
            can_use_tool=can_use_tool,
            hidden=hidden,
            warn=warn,
            replies="plain" if config.tool_use == "none" or config.traits.is_embedded else "tools",
        )
        self._tariff = Tariff(warn, {} if config.prices_file is None else read_prices(Path(config.prices_file)))
        self._tools_work = False
        self._pool = Pool(self.policy.max_idle)
        most = 1 if self._launcher.shares_client else self.max_concurrent_sessions
        self._slots = asyncio.Semaphore(most or sys.maxsize)
        self._calls: set[asyncio.Future[None]] = set()

    # --- life ---

    async def __aenter__(self) -> "AgentClient":
        from mle_star.sdk.proxy import CredentialProxy

        if self._base_url is None:
            require_credentials(self.config)
        self._launcher.work_dir.mkdir(parents=True, exist_ok=True)
        self._launcher.tool_server = build_tool_server(Path(self._launcher.task.data_dir))
        upstream = Upstream(self._base_url) if self._base_url else find_upstream(base_url=self.config.base_url)
        if upstream is not None:
            self._launcher.proxy = await self._servers.enter_async_context(CredentialProxy(upstream))
        self._keeper.watch()
        self._launcher.programs.mkdir()
        if self.config.tool_profile == "full" and (missing := await prepare_shell(self._launcher.programs)):
            await self._close()
            raise ConfigError(f"tool_profile: full gives agents a shell, and nothing confines it: {missing}")
        self._pool.closed = False
        return self

    async def __aexit__(self, *error: object) -> None:
        from mle_star.sdk.connection import kill_marked

        closing = asyncio.ensure_future(self._close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            kill_marked(self.marker)  # asked to hurry
            await asyncio.wait({closing})
            raise

    async def _close(self) -> None:
        try:
            await self._pool.close()
            if self._calls:  # their clients are gone: they end by themselves, and are charged for
                await asyncio.wait(set(self._calls), timeout=CLOSE_SECONDS)
        except Exception:  # must not hide the error that ended the run
            logger.warning("closing the agents' clients failed", exc_info=True)
        finally:
            self._keeper.end()
            await self._servers.aclose()

    def _warn(self, message: str) -> None:
        logger.warning(message)
        self._notify(message)

    # --- calls ---

    @property
    def replies(self) -> Replies:
        """How structured replies come, for all that is known of the server."""
        return self._launcher.replies

    def fingerprint(self, config: AgentConfig) -> str:
        """A digest of all that shapes a reply besides the prompt: model, system prompt, tools, schema."""
        return self._launcher.fingerprint(config)

    async def ask(
        self,
        config: AgentConfig,
        prompt: str,
        *,
        label: str = "main",
        max_cost_usd: float | None = None,
        on_late_cost: Callable[[float], None] = lambda usd: None,
    ) -> AgentReply:
        """Send `prompt`, verbatim, to the agent of `config` and wait for its answer.

        The cost of a call that was cancelled is known when its client has ended: `on_late_cost` is told then.
        """
        if self._pool.closed:
            raise AgentError("the client is not open: use `async with`", agent=config.agent_type.value)
        if self.config.traits.is_embedded:
            max_cost_usd = None  # a client with a cap is not used again
        bill, call = _Bill(label, on_late_cost), asyncio.get_running_loop().create_future()
        self._calls.add(call)
        try:
            if self.max_concurrent_sessions and self._slots.locked():
                logger.warning("%s waits: %s sessions are open", label, self.max_concurrent_sessions)
            async with self._slots:
                return await self._ask(config, prompt, max_cost_usd, bill)
        except asyncio.CancelledError:
            if not bill.ends_later:
                on_late_cost(bill.usd)
            raise
        finally:
            self._calls.discard(call)
            call.set_result(None)

    async def _ask(self, config: AgentConfig, prompt: str, cap: float | None, bill: _Bill) -> AgentReply:
        agent, started = config.agent_type.value, time.monotonic()
        tries, note = 0, ""
        delays = {"transport": list(self.policy.retry_delays), "rate_limit": list(self.policy.busy_delays)}
        while True:
            tries += 1
            left = None if cap is None else cap - bill.usd
            if left is not None and left <= 0:
                raise AgentError("no money is left for it", agent=agent, reason="budget", cost_usd=bill.usd)
            expected = self.replies
            turn, outcome = await self._attempt(config, f"{prompt}\n\n{note}" if note else prompt, left, bill)
            self._learn_of_tools(config, turn, outcome)
            if isinstance(outcome, AgentReply):  # its price is that of all attempts
                return outcome.model_copy(update={"cost_usd": bill.usd, "seconds": time.monotonic() - started})
            if self.replies != expected:
                continue
            if outcome.reason == "unparseable":
                level = logging.WARNING if self.config.letter and agent == AgentType.extractor else logging.DEBUG
                logger.log(level, "%s: the whole reply, which cannot be read: %r", agent, outcome.reply)
            if outcome.reason == "unparseable" and not note and not self.config.letter:
                note = section("unreadable_reply", problem=outcome.message)
                continue
            waits = delays.get(outcome.reason)
            if not waits or self._pool.closed:
                raise AgentError(outcome.message, agent=agent, reason=outcome.reason, attempts=tries, cost_usd=bill.usd)
            what = "the service is busy" if outcome.reason == "rate_limit" else "the connection failed"
            self._warn(f"{agent}: {what} ({outcome.message[:200]}); trying again in {waits[0]:g} s")
            await asyncio.sleep(waits.pop(0))

    def _learn_of_tools(self, config: AgentConfig, turn: Turn, outcome: AgentReply | Failure) -> None:
        """A server that refuses tools is sent none from now on; one that overlooks that for replies, all others."""
        launcher = self._launcher
        if turn.structured is not None:
            self._tools_work = True
        elif self._tools_work or launcher.proxy is None or launcher.proxy.upstream.is_first_party:
            return  # only of a gateway or a server of the user's nothing is known
        elif launcher.sends_tools(config) and refuses_tools(turn, outcome):
            launcher.expect("plain")
        elif launcher.sends_schema(config) and answers_in_text(turn, outcome):
            launcher.expect("text")

    async def _attempt(
        self, config: AgentConfig, prompt: str, cap: float | None, bill: _Bill
    ) -> tuple[Turn, AgentReply | Failure]:
        """One call on one client; one that may spend `cap` and no more serves no other call."""
        key = self._launcher.key(config, bill.label) if self._launcher.reuse and cap is None else ""
        try:
            worker = await self._pool.acquire(key, lambda: self._make_worker(key, config, bill.label, cap))
        except Exception as error:
            return (turn := Turn(error=error)), outcome_of(config, turn)
        turn = await self._await_turn(worker, config, prompt, bill)
        self._charge(turn, bill)
        if turn.timed_out:
            return turn, Failure("timeout", f"no answer within {self.config.agent_timeout_seconds} s")
        outcome = outcome_of(config, turn)
        if isinstance(outcome, Failure) and outcome.reason == "transport":
            self._pool.distrust(worker)
        else:
            self._pool.release(worker)  # also after an error: the CLI outlives what the API refuses
        return turn, outcome

    async def _await_turn(self, worker: "Worker", config: AgentConfig, prompt: str, bill: _Bill) -> Turn:
        """Wait for the answer until the call's time is up; waiting for a busy service does not count."""
        agent, loop = config.agent_type.value, asyncio.get_running_loop()
        deadline = loop.time() + self.config.agent_timeout_seconds

        def on_wait(retry: dict[str, Any]) -> None:
            nonlocal deadline
            status, seconds = retry.get("error_status"), (retry.get("retry_delay_ms") or 0) / 1000
            if status in _BUSY_WORDS:
                deadline += seconds
                attempt = f"attempt {retry.get('attempt')} of {retry.get('max_retries')}"
                self._notify(f"{agent}: {_BUSY_WORDS[status]} ({status}), waiting {seconds:.1f} s ({attempt})")

        done = worker.start(config, self._launcher.prompt(config, prompt), bill.label, on_wait)
        try:
            while not done.done() and loop.time() < deadline:
                await asyncio.wait({done}, timeout=max(deadline - loop.time(), 0))
            if done.done():
                return done.result()
            turn = await worker.abort()
        except asyncio.CancelledError:
            bill.ends_later = True
            self._pool.discard(worker, lambda one: self._charge_aborted(one, bill))
            raise
        turn.timed_out = True
        self._pool.discard(worker)
        return turn

    async def _charge_aborted(self, worker: "Worker", bill: _Bill) -> None:
        self._charge(await worker.abort(), bill)
        bill.on_late_cost(bill.usd)

    def _charge(self, turn: Turn, bill: _Bill) -> None:
        if self.config.traits.is_embedded:
            turn.cost_usd = 0.0  # the CLI prices names it does not know; this one is free
        bill.usd += turn.cost_usd
        self.state.total_cost_usd += turn.cost_usd
        self.state.cost_by_label[bill.label] += turn.cost_usd

    def _make_worker(self, key: str, config: AgentConfig, label: str, cap: float | None) -> "Worker":
        from mle_star.sdk.connection import Worker

        site = CallSite(config.agent_type.value, label)
        cap = self._tariff.as_the_cli_counts(cap, self._launcher.model(config))
        return Worker(key, self._launcher.options(config, site, cap), site, self._tariff, self._launcher.proxy)
