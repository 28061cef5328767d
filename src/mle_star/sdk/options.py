"""How a client of the SDK is started for one agent: its options, its environment, its permissions."""

import asyncio
import itertools
import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mle_star.models import AgentConfig, PipelineConfig, TaskDescription
from mle_star.models.agents import section
from mle_star.models.texts import digest_of
from mle_star.sdk.credentials import MARKER, agent_headers, bundled_cli, client_environment, secret_names
from mle_star.sdk.definitions import MCP_SERVER, MCP_TOOLS, WRITING_TOOLS, build_definitions, effective_tools
from mle_star.sdk.hooks import CallSite, Guard, Hooks, HookState
from mle_star.seccomp import shell_filter

if TYPE_CHECKING:
    from claude_agent_sdk import CanUseTool, ClaudeAgentOptions, McpSdkServerConfig, PermissionMode
    from claude_agent_sdk.types import ThinkingConfig

    from mle_star.sdk.proxy import CredentialProxy

logger = logging.getLogger(__name__)

MAX_REPLY_BYTES = 64 * 2**20
_SANDBOX_PROGRAMS = {"bwrap": "bubblewrap", "socat": "socat"}
_SANDBOX_TRIAL = "--new-session --die-with-parent --unshare-user --unshare-pid --unshare-net --ro-bind / /"
_SANDBOX_TRIAL += " --dev /dev --proc /proc true"  # as the CLI starts bubblewrap for a shell
_READING_TOOLS = frozenset({"Read", "WebSearch", "WebFetch", *MCP_TOOLS})


async def prepare_shell(folder: Path) -> str:
    """Make `folder/bwrap`, which confines an agent's shell, and try it; what keeps it from that, or an empty text."""
    if sys.platform == "darwin":
        return ""
    if not sys.platform.startswith("linux"):
        return "the CLI has no sandbox for this system"
    absent = [package for program, package in _SANDBOX_PROGRAMS.items() if shutil.which(program) is None]
    if absent:
        names = " and ".join(absent)
        return f"{names} {'are' if len(absent) > 1 else 'is'} not installed (apt, dnf or pacman install {names})"
    shim, program = folder / "bwrap", folder / "calls.bpf"
    try:
        program.write_bytes(shell_filter())
    except OSError as error:
        return f"set-uid programs cannot be forbidden ({error})"
    script = Path(__file__).with_name("bwrap.sh").read_text(encoding="utf-8")
    words = [shlex.quote(word) for word in (str(shutil.which("bwrap")), str(program))]
    shim.write_text(script.format(*words), encoding="utf-8")
    shim.chmod(0o700)
    for package, command in (("bubblewrap", f"{shlex.quote(str(shim))} {_SANDBOX_TRIAL}"), ("socat", "socat -V")):
        nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_shell(command, stdin=nothing, stdout=nothing, stderr=pipe)
        _, stderr = await process.communicate()
        if process.returncode != 0:
            lines = stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {process.returncode}"]
            return f"{package} does not work here ({lines[-1]})"
    return ""


Replies = Literal["tools", "text", "plain"]
"""How structured replies come: by a tool; in the text, of a model that overlooks that tool; without any tool."""
_LEARNT = {
    "text": "the model gives structured replies as text: they are asked for in the prompt",
    "plain": "the model's server knows no tools: structured replies are asked for as text, the web is not searched",
}


def _thinking(chosen: int | str | None) -> "ThinkingConfig | None":
    """Whether an agent thinks before it answers, as the SDK says it; None leaves it to the model."""
    if isinstance(chosen, int):
        return {"type": "enabled", "budget_tokens": chosen}
    return {"type": "adaptive"} if chosen == "adaptive" else {"type": "disabled"} if chosen == "disabled" else None


@dataclass
class Launcher:
    """Everything that the clients of one run have in common."""

    task: TaskDescription
    config: PipelineConfig
    system_prompt: str
    essence: str  # of the system prompt: what of it shapes a reply
    work_dir: Path
    home: Path
    marker: str
    state: HookState
    proxy: "CredentialProxy | None" = None
    cli_retries: int = 4
    tool_server: "McpSdkServerConfig | None" = None
    can_use_tool: "CanUseTool | None" = None
    hidden: tuple[str, ...] = ()  # what no shell may read: the labels, and the records of runs
    warn: Callable[[str], None] = logger.warning  # once of each thing that holds for the whole run
    replies: Replies = "tools"
    _serial: Iterator[int] = field(default_factory=itertools.count)

    @property
    def reuse(self) -> bool:
        """Is a client used again after `/clear`?"""
        chosen = self.config.client_reuse
        return self.config.traits.is_embedded if chosen == "auto" else chosen == "clear"

    @property
    def shares_client(self) -> bool:
        """Does one client serve all agents? The embedded engineer replies in less time than a client takes to start.

        It is sent no tools, so that all its clients would be alike; whose call it is says the proxy.
        """
        return self.config.traits.is_embedded and self.reuse

    def model(self, config: AgentConfig) -> str:
        """The model name that requests of an agent carry."""
        if self.config.traits.is_embedded:
            return self.config.traits.wire_name
        chosen = self.config.role(config.agent_type).model or self.config.model
        return config.model if config.model not in (None, "inherit") else chosen

    def tools(self, config: AgentConfig) -> list[str]:
        """The built-in tools of an agent."""
        return [] if self.replies == "plain" else effective_tools(config, self.config.tool_profile)

    def sends_tools(self, config: AgentConfig) -> bool:
        """Do an agent's requests carry tools, the one for structured replies among them?"""
        return bool(self.tools(config)) or self.sends_schema(config)

    def sends_schema(self, config: AgentConfig) -> bool:
        """Does a tool take an agent's structured reply?"""
        return config.output_schema is not None and self.replies == "tools"

    def prompt(self, config: AgentConfig, prompt: str) -> str:
        """The prompt as it is sent: where no tool takes a structured reply, the text asks for it.

        Only what is answered in one turn keeps its mark: more turns bring marks of the CLI's own, and four are allowed.
        """
        if self.reuse or self.sends_tools(config):
            prompt = str(prompt)
        if config.output_schema is None or self.sends_schema(config):
            return prompt
        return f"{prompt}\n\n{section('json_reply', schema=json.dumps(config.output_schema.model_json_schema()))}"

    def fingerprint(self, config: AgentConfig) -> str:
        """A digest of all that shapes a reply besides the prompt."""
        schema = None if config.output_schema is None else config.output_schema.model_json_schema()
        tools = effective_tools(config, self.config.tool_profile)  # not what was found out on the way
        role = self.config.role(config.agent_type)
        parts = [self.model(config), self.essence, tools, schema, config.max_turns, role.effort, role.thinking]
        return digest_of(json.dumps([*parts, self.config.tool_use]))

    def key(self, config: AgentConfig, label: str) -> str:
        """Calls with equal keys can use the same client; those that write have one per path, in its folder."""
        if self.shares_client:
            return self.config.model
        place = label if WRITING_TOOLS & set(self.tools(config)) else ""
        return "/".join((config.agent_type.value, config.variant or "", place, self.replies, self.fingerprint(config)))

    def options(self, config: AgentConfig, site: CallSite, cap_usd: float | None) -> "ClaudeAgentOptions":
        """The SDK's options for a client of one agent that may spend `cap_usd` per session."""
        from claude_agent_sdk import ClaudeAgentOptions

        plain, profile = self.replies == "plain", self.config.tool_profile
        agent, tools, role = config.agent_type.value, self.tools(config), self.config.role(config.agent_type)
        if not self.sends_schema(config):
            config = config.model_copy(update={"output_schema": None})
        server = self.tool_server if tools else None
        work_dir = self.work_dir
        if WRITING_TOOLS & set(tools) and site.label != "main":  # apart from the scripts of its path
            work_dir = self.work_dir / "agents" / site.label
            work_dir.mkdir(parents=True, exist_ok=True)
        guard = Guard(work_dir, readable=[Path(self.task.data_dir)], blocked=self.config.blocked_commands)
        env = self._environment(config)
        return ClaudeAgentOptions(
            agents=build_definitions(config, self.system_prompt, profile, server, plain),
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
            effort=role.effort,
            thinking=_thinking(role.thinking),
            max_budget_usd=cap_usd,
            cwd=work_dir,
            cli_path=self._cli_apart(env),
            env=env,
            hooks=Hooks(site, self.state, guard).by_event(),
            can_use_tool=self.can_use_tool,
            max_buffer_size=MAX_REPLY_BYTES,
            sandbox=self._sandbox() if "Bash" in tools else None,
            stderr=lambda line: logger.debug("%s: %s", agent, line),
            **self._permissions([*tools, *(MCP_TOOLS if server is not None else ())]),
        )

    def _cli_apart(self, env: Mapping[str, str]) -> Path | None:
        """The CLI with our environment only, in a session of its own.

        The SDK hands on every variable of ours; blanks in `env` hide their values, this their names. And Ctrl-C in a
        terminal is meant for the run, which still needs its clients. None, where that cannot be had, leaves it to the
        SDK to find the CLI.
        """
        (cli, _), setsid = bundled_cli(), shutil.which("setsid")
        if setsid is None or cli is None:
            return None
        script = self.home / "claude"
        if not script.exists():
            foreign = [f"-u{name}" for name, value in env.items() if not value]
            words = shlex.join(["/usr/bin/env", *foreign, setsid, str(cli)])
            script.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
            script.chmod(0o700)
        return script if os.access(script, os.X_OK) else None  # not on a file system that forbids it

    def _environment(self, config: AgentConfig) -> dict[str, str]:
        agent, variant = config.agent_type.value, config.variant
        home = self.home / (agent if variant is None else f"{agent}-{variant}")
        for folder in (home, self.home / "t"):
            folder.mkdir(parents=True, exist_ok=True)
        proxied = None if self.proxy is None else self.proxy.environment(agent, variant)
        return {
            **client_environment(home, agent_headers(agent, variant), proxied),
            MARKER: f"{self.marker}.{next(self._serial)}",
            "CLAUDE_CODE_MAX_RETRIES": str(self.cli_retries),
            "PATH": f"{self.programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}",  # first the shell's sandbox
        }

    @property
    def programs(self) -> Path:
        """Where our own programs lie that the CLI finds."""
        return self.home / "bin"

    def _permissions(self, tools: list[str]) -> dict[str, Any]:
        """The mode, and the tools allowed without asking."""
        mode: PermissionMode = self.config.permission_mode
        is_root = getattr(os, "geteuid", os.getpid)() == 0  # Windows has none
        if mode == "bypassPermissions" and is_root and os.environ.get("IS_SANDBOX") != "1":
            mode = "dontAsk"
            if tools:
                self.warn("as root the CLI refuses bypassPermissions: agents run in mode dontAsk, tools allowed")
        allowed = list(tools)
        if mode not in ("dontAsk", "bypassPermissions"):
            # what is allowed beforehand is never put before the callback
            allowed = [tool for tool in allowed if tool in _READING_TOOLS and self.can_use_tool is None]
        return {"permission_mode": mode, "allowed_tools": allowed}

    def _sandbox(self) -> Any:
        """For an agent's shell: no way out of it, nothing of the user's home, no secret in its environment."""
        program = Path(shutil.which(self.config.python or sys.executable) or sys.executable)
        installed = (sys.prefix, sys.base_prefix, str(program.parents[1]), str(program.resolve().parents[1]))
        needed = (str(self.work_dir), self.task.data_dir, str(self.home), *installed)
        return {
            "enabled": True,
            "failIfUnavailable": True,
            "autoAllowBashIfSandboxed": True,
            "allowUnsandboxedCommands": False,
            "filesystem": {
                "denyRead": [str(Path.home()), *self.hidden],
                "allowRead": [str(Path(path).resolve()) for path in needed],
            },
            "credentials": {"envVars": [{"name": name, "mode": "deny"} for name in secret_names()]},
        }

    def expect(self, replies: Replies) -> None:
        """Ask for structured replies in another way from now on."""
        self.replies = replies
        self.warn(_LEARNT[replies])
