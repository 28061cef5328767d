"""What watches the agents' tools: progress, cost, safety, elapsed time, errors.

`Guard` takes a first look at what agents with tools do: the few commands of the specification, and files outside their
folder. It reads text, for an agent that errs. What a command really does, the sandbox decides: see docs/security.md.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mle_star.data.place import DataFolder
from mle_star.run.budget import Budget

if TYPE_CHECKING:
    from claude_agent_sdk import HookCallback, HookContext, HookJSONOutput, HookMatcher
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
    total_cost_usd: float = 0.0  # as result messages say: the Stop event carries no cost
    cost_by_label: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    consecutive_failures: Counter[str] = field(default_factory=Counter)


class Hooks:
    """The hooks of one client."""

    def __init__(self, site: CallSite, state: HookState, guard: Guard) -> None:
        self.site, self.state, self.guard = site, state, guard
        self._started: dict[str | None, float] = {}

    def by_event(self) -> dict[HookEvent, list[HookMatcher]]:
        """As the SDK takes them."""
        from claude_agent_sdk import HookMatcher

        hooks: dict[HookEvent, HookCallback] = {"PreToolUse": self.before_tool, "Stop": self.log_cost}
        hooks |= {"PostToolUse": self.after_tool, "PostToolUseFailure": self.after_tool}
        return {event: [HookMatcher(hooks=[hook])] for event, hook in hooks.items()}

    async def before_tool(self, data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        """Refuse what the guard refuses, and note when a tool begins."""
        self._started[tool_use_id] = time.monotonic()
        reason = self.guard.check_tool(str(data.get("tool_name", "")), _mapping(data.get("tool_input")))
        if reason is None:
            return {}
        self._log("tool_blocked", data, logging.WARNING, reason=reason)
        return _output(data, permissionDecision="deny", permissionDecisionReason=f"Blocked for safety: {reason}.")

    async def after_tool(self, data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        """Log every use of a tool and every failure, count failures in a row, and say when the deadline is near."""
        error, failures, begun = _failure(data), self.state.consecutive_failures, self._started.pop(tool_use_id, None)
        elapsed = None if begun is None else round(time.monotonic() - begun, 3)
        self._log("tool_use", data, elapsed_seconds=elapsed, success=error is None)
        failures[self.site.agent] = count = 0 if error is None else failures[self.site.agent] + 1
        if error is not None:
            self._log("tool_failed", data, logging.WARNING, error=error[:MAX_ERROR_TEXT], consecutive_failures=count)
        if self.state.budget is None or not self.state.budget.finalize_now:
            return {}
        self._log("deadline_near", data)
        return _output(data, additionalContext=HURRY)

    async def log_cost(self, data: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        """Log the money when an agent stops: what the calls before have cost, and whether the limit is reached."""
        state, gone = self.state, self.state.budget is not None and self.state.budget.money_is_gone
        total, path = state.total_cost_usd, state.cost_by_label.get(self.site.label, 0.0)
        level = logging.WARNING if gone else logging.INFO
        self._log("agent_stopped", data, level, total_cost_usd=total, path_cost_usd=path, money_is_gone=gone)
        return {}

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
    failed = response.get("is_error") or response.get("isError")
    return str(response.get("content") or response.get("error") or response) if failed else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# --- the guard ---------------------------------------------------------------------------------------------

_BEFORE_A_COMMAND = re.compile(r"(.*/)?(sudo|env|nohup|time|command|exec|then|do|else|!|\{)|\w+=.*|-.*", re.DOTALL)
_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "eval"}
_CHANGES_ALL = re.compile("rm|rmdir|unlink|shred|mv|touch|mkdir|tee|truncate|chmod|chown|chgrp|mkfifo")
_CHANGES_LAST = {"cp", "ln", "install", "rsync"}
_HARMLESS_TARGETS = re.compile(r"/dev/(null|zero|stdout|stderr|tty|fd/\d+)|\d+|-")
_FORK_BOMB = re.compile(r"(?:function)?([\w:.\-]{1,60})(?:\(\))?\{(.{0,200}?)\|\1&(?:.{0,200}?)\}[;&]*\1")
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*(['\"]?)(?P<word>\w+)\1")
_SEPARATORS = re.compile(r"[;|&()\n]+")


class Guard:
    """Checks the tool calls of an agent that works in `work_dir` and may read the data in `readable` folders, too.

    What is none of the data there, such as hidden files and other runs, is no more for agents than for scripts.
    """

    def __init__(self, work_dir: Path, *, readable: Iterable[Path] = (), blocked: Iterable[str] = ()) -> None:
        self.work_dir = Path(os.path.realpath(work_dir))
        self._data = [DataFolder(path) for path in readable]
        self._blocked = [(pattern, _compiled(pattern)) for pattern in blocked]

    def check_tool(self, tool: str, arguments: dict[str, object]) -> str | None:
        """Why this tool call is refused, or None."""
        if tool == "Bash":
            return self.check_command(str(arguments.get("command", "")))
        if tool in ("Write", "Edit", "MultiEdit", "NotebookEdit"):
            path = str(arguments.get("file_path") or arguments.get("notebook_path") or "")
            return None if self.is_inside(path) else f"{tool} to {path!r}: outside the working directory"
        if tool in ("Read", "Grep", "Glob"):
            path = str(arguments.get("file_path") or arguments.get("path") or ".")
            may_read = self.is_inside(path) or any(data.holds(self._real(path)) for data in self._data)
            return None if may_read else f"{tool} of {path!r}: only the working folder and data may be read"
        return None

    def check_command(self, text: str) -> str | None:
        """Why this shell command is refused, or None."""
        if _FORK_BOMB.search(re.sub(r"\s+", "", text)):
            return "a fork bomb"
        for name, pattern in self._blocked:
            if pattern.search(text):
                return f"the blocked pattern {name!r}"
        return next(filter(None, (self._refusal(words) for words in _commands(_without_here_documents(text)))), None)

    def is_inside(self, path: str) -> bool:
        """Does this path, links followed, lie in the working directory?"""
        real = self._real(path)
        return real == self.work_dir or self.work_dir in real.parents

    def _real(self, path: str) -> Path:
        return Path(os.path.realpath(self.work_dir / os.path.expanduser(path)))  # noqa: PTH111

    def _refusal(self, words: list[str]) -> str | None:
        """Why a command, given as its words, is refused."""
        arrows = [at for at, word in enumerate(words) if re.fullmatch(r"[<>&|]*>[<>&|]*", word)]
        for target in (words[at + 1] for at in arrows if at + 1 < len(words)):
            if self._is_outside(target):
                return f"a redirection to {target!r}, outside the working directory"
        start = next((at for at, word in enumerate(words) if not _BEFORE_A_COMMAND.fullmatch(word)), len(words))
        program, rest = words[start].rsplit("/", 1)[-1] if start < len(words) else "", words[start + 1 :]
        if program.startswith("mkfs"):
            return f"{program} makes file systems"
        if program == "dd" and any(word.startswith("if=") for word in rest):
            return "dd if= copies devices"
        operands = [word for word in rest if not word.startswith("-")]
        targets = operands if _CHANGES_ALL.fullmatch(program) else operands[-1:] if program in _CHANGES_LAST else []
        if program == "dd":
            targets = [word[3:] for word in rest if word.startswith("of=")]
        for target in filter(self._is_outside, targets):
            return f"{program} on {target!r}, outside the working directory"
        inner = [word for word in rest if " " in word] if program in _SHELLS else []
        return next(filter(None, map(self.check_command, inner)), None)

    def _is_outside(self, word: str) -> bool:
        if not word or _HARMLESS_TARGETS.fullmatch(word):
            return False
        if re.match(r"~|\$HOME|\$\{HOME\}", word):
            return True
        return not word.startswith("$") and not self.is_inside(word)


def _without_here_documents(text: str) -> str:
    """A text without the lines that it only feeds to its commands, from `<<WORD` to the line that says WORD."""
    lines = text.split("\n")
    ends, waited, kept = {line.strip() for line in lines}, list[str](), list[str]()
    for line in lines:
        if not waited:
            kept.append(line)
            waited = [found["word"] for found in _HERE_DOCUMENT.finditer(line) if found["word"] in ends]
        elif line.strip() == waited[0]:
            waited.pop(0)
    return "\n".join(kept)


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a text, quotes resolved; an arrow is a word of its own."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if _SEPARATORS.fullmatch(word):
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:  # a quote that is never closed: the shell will refuse it, too
        words += text.split()
    yield words


def _compiled(pattern: str) -> re.Pattern[str]:
    """A configured pattern: a regular expression, or, when it is none, the text itself."""
    try:
        return re.compile(pattern)
    except re.error:
        return re.compile(re.escape(pattern))
