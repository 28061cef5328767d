"""How a client of the SDK is started for one agent: its options, its environment, its permissions."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mle_star.agents.credentials import OFFLINE, client_environment
from mle_star.agents.definitions import (
    MCP_SERVER,
    MCP_TOOLS,
    WRITING_TOOLS,
    build_definitions,
    effective_tools,
    takes_our_tools,
)
from mle_star.agents.guard import Guard
from mle_star.agents.hooks import CallSite, HookState, build_hooks
from mle_star.models import AgentConfig, PipelineConfig, TaskDescription

if TYPE_CHECKING:
    from claude_agent_sdk import CanUseTool, ClaudeAgentOptions, McpSdkServerConfig, PermissionMode

logger = logging.getLogger(__name__)

OFFLINE_MODEL = "mle-star-offline"
"""The name under which requests for the embedded model go out."""
MAX_REPLY_BYTES = 64 * 2**20
_READING_TOOLS = frozenset({"Read", "WebSearch", "WebFetch", *MCP_TOOLS})


def is_root() -> bool:
    """Does this process run as root?"""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def sandbox_available() -> bool:
    """Can the CLI confine an agent's shell here?"""
    if sys.platform == "darwin":
        return True
    return sys.platform.startswith("linux") and all(shutil.which(name) for name in ("bwrap", "socat"))


@dataclass
class Launcher:
    """Everything that the clients of one run have in common."""

    task: TaskDescription
    config: PipelineConfig
    system_prompt: str
    work_dir: Path
    home: Path
    marker: str
    state: HookState
    base_url: str | None = None
    cli_retries: int = 4
    tool_server: McpSdkServerConfig | None = None
    can_use_tool: CanUseTool | None = None
    notify: Callable[[str], None] = lambda message: None
    _said: set[str] = field(default_factory=set)
    _serial: Iterator[int] = field(default_factory=itertools.count)
    _prompt_digest: str = ""

    def __post_init__(self) -> None:
        self._prompt_digest = hashlib.sha256(self.system_prompt.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def reuse(self) -> bool:
        """Is a client used again after `/clear`?"""
        chosen = self.config.client_reuse
        return self.config.model == OFFLINE if chosen == "auto" else chosen == "clear"

    def model(self, config: AgentConfig) -> str:
        """The model name that requests of an agent carry."""
        if self.config.model == OFFLINE:
            return OFFLINE_MODEL
        return config.model if config.model not in (None, "inherit") else self.config.model

    def tools(self, config: AgentConfig) -> list[str]:
        """The built-in tools of an agent."""
        return effective_tools(config, self.config.tool_profile)

    def fingerprint(self, config: AgentConfig) -> str:
        """A digest of all that shapes a reply besides the prompt."""
        schema = None if config.output_schema is None else config.output_schema.model_json_schema()
        parts = [self.model(config), self._prompt_digest, self.tools(config), schema, config.max_turns]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def key(self, config: AgentConfig, label: str) -> str:
        """Calls with equal keys can use the same client; those that write have one per path, in its folder."""
        place = label if WRITING_TOOLS & set(self.tools(config)) else ""
        return "/".join((config.agent_type.value, config.variant or "", place, self.fingerprint(config)))

    def options(self, config: AgentConfig, site: CallSite, cap_usd: float | None) -> ClaudeAgentOptions:
        """The SDK's options for a client of one agent that may spend `cap_usd` per session."""
        from claude_agent_sdk import ClaudeAgentOptions

        agent, tools = config.agent_type.value, self.tools(config)
        server = self.tool_server if takes_our_tools(tools) else None
        work_dir = self._folder(site.label) if WRITING_TOOLS & set(tools) else self.work_dir
        guard = Guard(work_dir, readable=[Path(self.task.data_dir)], blocked=self.config.blocked_commands)
        return ClaudeAgentOptions(
            agents=build_definitions(config, self.system_prompt, self.config.tool_profile, mcp=server is not None),
            extra_args={"agent": agent},
            model=self.model(config),
            tools=list(tools),
            mcp_servers={} if server is None else {MCP_SERVER: server},
            strict_mcp_config=True,
            setting_sources=[],
            verbatim_prompts=not self.reuse,
            include_partial_messages=True,  # the usage of a reply is told at its end, long before the call's result
            output_format=None if config.output_schema is None else config.to_output_format(),
            max_turns=config.max_turns,
            max_budget_usd=cap_usd,
            cwd=work_dir,
            cli_path=self._cli_apart(),
            env=self._environment(config),
            hooks=build_hooks(site, self.state, guard),
            can_use_tool=self.can_use_tool,
            max_buffer_size=MAX_REPLY_BYTES,
            stderr=lambda line: logger.debug("%s: %s", agent, line),
            **self._permissions([*tools, *(MCP_TOOLS if server is not None else ())]),
        )

    def _cli_apart(self) -> Path | None:
        """The CLI in a session of its own: Ctrl-C in a terminal is meant for the run, which still needs its clients.

        None, where that cannot be had, leaves it to the SDK to find the CLI.
        """
        import claude_agent_sdk

        cli, setsid = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude", shutil.which("setsid")
        if setsid is None or not cli.is_file():
            return None
        script = self.home / "claude"
        if not script.exists():
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(setsid)} {shlex.quote(str(cli))} "$@"\n', encoding="utf-8")
            script.chmod(0o700)
        return script if os.access(script, os.X_OK) else None  # not on a file system that forbids it

    def _folder(self, label: str) -> Path:
        folder = self.work_dir if label == "main" else self.work_dir / label
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _environment(self, config: AgentConfig) -> dict[str, str]:
        agent, variant = config.agent_type.value, config.variant
        home = self.home / (agent if variant is None else f"{agent}-{variant}")
        for folder in (home, self.home / "t"):
            folder.mkdir(parents=True, exist_ok=True)
        return client_environment(
            home,
            agent=agent,
            variant=variant,
            marker=f"{self.marker}.{next(self._serial)}",
            base_url=self.base_url,
            retries=self.cli_retries,
        )

    def _permissions(self, tools: list[str]) -> dict[str, Any]:
        """Mode, tools allowed without asking, and the sandbox for a shell."""
        mode: PermissionMode = self.config.permission_mode
        if mode == "bypassPermissions" and is_root() and os.environ.get("IS_SANDBOX") != "1":
            mode = "dontAsk"
            if tools:
                self.say_once("as root the CLI refuses bypassPermissions: agents run in mode dontAsk, tools allowed")
        allowed = list(tools)
        if mode not in ("dontAsk", "bypassPermissions"):
            # what is allowed beforehand is never put before the callback
            allowed = [tool for tool in allowed if tool in _READING_TOOLS and self.can_use_tool is None]
        settings: dict[str, Any] = {"permission_mode": mode, "allowed_tools": allowed}
        if "Bash" in tools:
            if sandbox_available():
                settings["sandbox"] = {
                    "enabled": True,
                    "autoAllowBashIfSandboxed": True,
                    "allowUnsandboxedCommands": False,
                }
            else:
                self.say_once("bubblewrap and socat were not found: the agents' shell runs without a sandbox")
        return settings

    def say_once(self, message: str) -> None:
        """Warn of something that holds for the whole run."""
        if message not in self._said:
            self._said.add(message)
            logger.warning(message)
            self.notify(message)
