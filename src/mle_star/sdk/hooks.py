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
    from claude_agent_sdk.types import HookCallback, HookEvent, HookInput

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


def build_hooks(site: CallSite, state: HookState, guard: Guard) -> dict[HookEvent, list[HookMatcher]]:
    """The hooks of one client, as the SDK takes them. Those of one event run side by side."""
    from claude_agent_sdk import HookMatcher

    started: dict[str, float] = {}
    after = [progress_hook(site, started), time_hook(site, state), error_hook(site, state)]
    return {
        "PreToolUse": [HookMatcher(hooks=[safety_hook(site, guard), clock_hook(started)])],
        "PostToolUse": [HookMatcher(hooks=after)],
        "PostToolUseFailure": [HookMatcher(hooks=after)],
        "Stop": [HookMatcher(hooks=[cost_hook(site, state)])],
    }


def clock_hook(started: dict[str, float]) -> HookCallback:
    """Notes when a tool begins."""

    async def begin(data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        started[tool_use_id or ""] = time.monotonic()
        return {}

    return begin


def progress_hook(site: CallSite, started: dict[str, float]) -> HookCallback:
    """Logs every use of a tool as one JSON object."""

    async def log(data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        begun = started.pop(tool_use_id or "", None)
        entry = _entry(site, data)
        entry["elapsed_seconds"] = None if begun is None else round(time.monotonic() - begun, 3)
        entry["success"] = _failure(data) is None
        logger.info(json.dumps({"event": "tool_use", **entry}))
        return {}

    return log


def cost_hook(site: CallSite, state: HookState) -> HookCallback:
    """Logs the money when an agent stops: what the calls before have cost, and whether the run's limit is reached."""

    async def check(data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        gone = state.budget is not None and state.budget.money_is_gone
        with state.lock:
            money = {"total_cost_usd": state.total_cost_usd, "path_cost_usd": state.cost_by_label.get(site.label, 0.0)}
        entry = {"event": "agent_stopped", **_entry(site, data), **money, "money_is_gone": gone}
        logger.log(logging.WARNING if gone else logging.INFO, json.dumps(entry))
        return {}

    return check


def time_hook(site: CallSite, state: HookState) -> HookCallback:
    """Tells an agent to come to an end once the deadline is near; the loops ask the ledger themselves."""

    async def watch(data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        if state.budget is None or not state.budget.finalize_now:
            return {}
        logger.info(json.dumps({"event": "deadline_near", **_entry(site, data)}))
        output: Any = {"hookEventName": data["hook_event_name"], "additionalContext": HURRY}
        return {"hookSpecificOutput": output}

    return watch


def error_hook(site: CallSite, state: HookState) -> HookCallback:
    """Logs every tool that failed, and counts failures in a row per agent."""

    async def note(data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        error = _failure(data)
        with state.lock:
            if error is None:
                state.consecutive_failures[site.agent] = 0
                return {}
            state.consecutive_failures[site.agent] += 1
            count = state.consecutive_failures[site.agent]
        entry = {**_entry(site, data), "error": error[:MAX_ERROR_TEXT], "consecutive_failures": count}
        logger.warning(json.dumps({"event": "tool_failed", **entry}))
        return {}

    return note


def safety_hook(site: CallSite, guard: Guard) -> HookCallback:
    """Refuses what the guard refuses."""

    async def scorer(data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        tool, arguments = str(data.get("tool_name", "")), dict(_mapping(data.get("tool_input")))
        reason = guard.check_tool(tool, arguments)
        if reason is not None:
            logger.warning(json.dumps({"event": "tool_blocked", **_entry(site, data), "reason": reason}))
            return _decision(permissionDecision="deny", permissionDecisionReason=f"Blocked for safety: {reason}.")
        return {}

    return scorer


def _decision(**words: Any) -> HookJSONOutput:
    output: Any = {"hookEventName": "PreToolUse", **words}
    return {"hookSpecificOutput": output}


def _entry(site: CallSite, data: HookInput) -> dict[str, Any]:
    return {
        "timestamp": datetime.now(timezone.utc).isoformat(),
        "agent": site.agent,
        "path": site.label,
        "tool": data.get("tool_name"),
        "session_id": data.get("session_id"),
    }


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
