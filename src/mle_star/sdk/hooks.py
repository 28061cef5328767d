"""What watches the agents' tools: progress, cost, safety, elapsed time, errors. Each hook stands alone."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from mle_star.run.budget import Budget
from mle_star.sdk.permissions import Guard

if TYPE_CHECKING:
    from claude_agent_sdk import HookContext, HookJSONOutput, HookMatcher
    from claude_agent_sdk.types import HookEvent, HookInput

logger = logging.getLogger(__name__)

MAX_ERROR_TEXT = 20_000
HURRY = "The time of this run is almost used up: use no more tools, and answer now with what you have."


@dataclass
class CallSite:
    """Who is calling: a client serves one agent, `label` says for which path it works at the moment."""

    agent: str
    label: str = "main"


@dataclass
class HookState:
    """What the hooks of all clients of a run share. Whether time or money is up, the run's ledger says: `budget`."""

    budget: Budget | None = None
    total_cost_usd: float = 0.0
    cost_by_label: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    consecutive_failures: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_cost(self, usd: float, label: str) -> None:
        """Add what a result message said; this is where cost comes from, the Stop event carries none."""
        with self.lock:
            self.total_cost_usd += usd
            self.cost_by_label[label] += usd


class Hooks:
    """The hooks of one client. They run side by side, and each stands alone."""

    def __init__(self, site: CallSite, state: HookState, guard: Guard) -> None:
        self.site, self.state, self.guard = site, state, guard
        self._started: dict[str, float] = {}

    def by_event(self) -> dict[HookEvent, list[HookMatcher]]:
        """As the SDK takes them."""
        from claude_agent_sdk import HookMatcher

        after = [HookMatcher(hooks=[self.log_progress, self.watch_time, self.log_error])]
        return {
            "PreToolUse": [HookMatcher(hooks=[self.refuse_danger, self.note_start])],
            "PostToolUse": after,
            "PostToolUseFailure": after,
            "Stop": [HookMatcher(hooks=[self.log_cost])],
        }

    async def note_start(self, data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        """Note when a tool begins."""
        self._started[tool_use_id or ""] = time.monotonic()
        return {}

    async def log_progress(self, data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        """Log every use of a tool."""
        begun = self._started.pop(tool_use_id or "", None)
        elapsed = None if begun is None else round(time.monotonic() - begun, 3)
        self._log("tool_use", data, elapsed_seconds=elapsed, success=_failure(data) is None)
        return {}

    async def log_cost(self, data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        """Log the money when an agent stops: what the calls before have cost, and whether the limit is reached."""
        state, gone = self.state, self.state.budget is not None and self.state.budget.money_is_gone
        with state.lock:
            total, path = state.total_cost_usd, state.cost_by_label.get(self.site.label, 0.0)
        level = logging.WARNING if gone else logging.INFO
        self._log("agent_stopped", data, level, total_cost_usd=total, path_cost_usd=path, money_is_gone=gone)
        return {}

    async def watch_time(self, data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        """Tell an agent to come to an end once the deadline is near; the loops ask the ledger themselves."""
        if self.state.budget is None or not self.state.budget.finalize_now:
            return {}
        self._log("deadline_near", data)
        return _output(data, additionalContext=HURRY)

    async def log_error(self, data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        """Log every tool that failed, and count failures in a row per agent."""
        error, failures = _failure(data), self.state.consecutive_failures
        with self.state.lock:
            failures[self.site.agent] = count = 0 if error is None else failures[self.site.agent] + 1
        if error is not None:
            self._log("tool_failed", data, logging.WARNING, error=error[:MAX_ERROR_TEXT], consecutive_failures=count)
        return {}

    async def refuse_danger(self, data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        """Refuse what the guard refuses."""
        reason = self.guard.check_tool(str(data.get("tool_name", "")), _mapping(data.get("tool_input")))
        if reason is None:
            return {}
        self._log("tool_blocked", data, logging.WARNING, reason=reason)
        return _output(data, permissionDecision="deny", permissionDecisionReason=f"Blocked for safety: {reason}.")

    def _log(self, event: str, data: HookInput, level: int = logging.INFO, **more: Any) -> None:
        """One JSON object."""
        entry = {
            "event": event,
            "timestamp": datetime.now(timezone.utc).isoformat(),
            "agent": self.site.agent,
            "path": self.site.label,
            "tool": data.get("tool_name"),
            "session_id": data.get("session_id"),
        }
        logger.log(level, json.dumps({**entry, **more}))


def _output(data: HookInput, **words: str) -> HookJSONOutput:
    output: Any = {"hookEventName": data["hook_event_name"], **words}
    return {"hookSpecificOutput": output}


def _failure(data: HookInput) -> str | None:
    """The error of a tool that failed, traceback and all, else None."""
    if data.get("hook_event_name") == "PostToolUseFailure":
        return str(data.get("error") or "unknown error")
    response = _mapping(data.get("tool_response"))
    if response.get("is_error") or response.get("isError"):
        return str(response.get("content") or response.get("error") or response)
    return None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
