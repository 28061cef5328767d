"""`mle-star doctor`: is everything here that a run needs, and what to do where it is not."""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape

from mle_star import seccomp
from mle_star.cli.options import EXIT_WRONG_INPUT, NO_SETTINGS, Given, takes_settings
from mle_star.data.guess import guess_task
from mle_star.errors import AgentError, AgentFailure, ConfigError, CredentialError, MleStarError
from mle_star.execution import detect_gpu, inspect_interpreter, sandbox
from mle_star.models import AgentConfig, AgentType, PipelineConfig, agent_config
from mle_star.prompts import render
from mle_star.sdk import AgentClient, CallPolicy, EnvironmentFacts, find_credentials, require_credentials
from mle_star.sdk.credentials import MINIMUM_VERSION, bundled_cli, installed_sdk_version, require_sdk
from mle_star.sdk.definitions import plain_name
from mle_star.sdk.options import prepare_shell
from mle_star.search.setup import served_model

ESSENTIAL = ("numpy", "pandas", "scikit-learn")
"""Without these no generated script gets far."""
LOW_DISK_GB, NO_DISK_GB = 10.0, 1.0


State = Literal["ok", "note", "problem"]


class Finding(NamedTuple):
    """One line of the diagnosis; `remedy` says what to do unless all is well."""

    topic: str
    state: State
    text: str
    remedy: str = ""


@takes_settings("python", "model", "base_url")
def doctor(
    call: Annotated[bool, typer.Option("--call", help="Make one real call of each kind; say what works.")] = False,
    given: Given = NO_SETTINGS,
) -> None:
    """Check SDK, credentials, interpreter, GPUs, sandbox and disk; say what to do about each problem.

    Ends with exit code 1 when something would keep a run from working. Credentials are named, never shown.

    \b
    Examples:
      mle-star doctor
      mle-star doctor --model offline --call
      mle-star doctor --python /opt/ml/bin/python
      mle-star doctor --base-url http://127.0.0.1:8080 --model qwen --call
      mle-star doctor --config settings.yaml --call
    """
    console = Console(highlight=False, soft_wrap=True)
    logging.getLogger("mle_star").addHandler(logging.NullHandler())  # the findings say it all
    states = set()
    for topic, state, text, remedy in diagnose(given.load(), call=call):
        colour = {"ok": "green", "note": "yellow", "problem": "red"}[state]
        console.print(f"[{colour}]{state:8}[/{colour}]{topic:18} {escape(text)}")
        if remedy:
            console.print(f"{'':26} [dim]→ {escape(remedy)}[/dim]")
        states.add(state)
    if "problem" in states:
        raise typer.Exit(EXIT_WRONG_INPUT)


def diagnose(config: PipelineConfig, *, call: bool = False) -> Iterator[Finding]:
    """Every finding, as soon as it is known."""
    yield from _sdk()
    yield _credentials(config)
    yield from _interpreter(config)
    yield _gpus()
    yield from _sandboxes(config)
    yield _disk(Path(config.work_dir))
    if call:
        yield from asyncio.run(_calls(config))


def _sdk() -> Iterator[Finding]:
    version = installed_sdk_version()
    try:
        require_sdk()
        yield Finding("Claude Agent SDK", "ok", f"{version} ({MINIMUM_VERSION} or later is needed)")
    except ImportError as error:
        yield Finding("Claude Agent SDK", "problem", version or "not installed", str(error).rsplit(": ", 1)[-1])
        return
    path, number = bundled_cli()
    if path is not None:
        yield Finding("its CLI", "ok", f"{number or 'version unknown'}, {path}")
    elif (other := shutil.which("claude")) is not None:
        yield Finding("its CLI", "note", f"{other}, not the one of the SDK", "its version must be 2.1.248 or later")
    else:
        yield Finding("its CLI", "problem", "not found", "install a wheel of claude-agent-sdk for this platform")


def _credentials(config: PipelineConfig) -> Finding:
    found = ", ".join(f"{one.description} ({one.source})" for one in find_credentials())
    try:
        require_credentials(config)
    except CredentialError as error:
        return Finding("credentials", "problem", f"none for the model {config.model}", str(error).split(": ", 1)[-1])
    if config.traits.is_free:
        return Finding("credentials", "ok", f"not needed for the model {config.model}; found: {found or 'none'}")
    return Finding("credentials", "ok", found)


def _interpreter(config: PipelineConfig) -> Iterator[Finding]:
    try:
        info = inspect_interpreter(config.python)
    except ConfigError as error:
        yield Finding("script Python", "problem", str(error), "choose another one with --python PATH")
        return
    yield Finding("script Python", "ok", f"{info.version}, {info.path}")
    packages = EnvironmentFacts(python_version=info.version, packages=info.packages).script_packages
    have = {plain_name(name) for name, _ in packages}
    missing = [name for name in ESSENTIAL if name not in have]
    text = ", ".join(f"{name} {version}" for name, version in packages) or "none"
    if missing:
        install = f"{shlex.quote(info.path)} -m pip install {' '.join(missing)}"
        remedy = f"{install}, or choose an interpreter that has them with --python PATH"
        yield Finding("ML packages", "problem", f"{text}; missing: {', '.join(missing)}", remedy)
    else:
        yield Finding("ML packages", "ok", text)


def _gpus() -> Finding:
    gpu, remedy = detect_gpu(), "scripts will train on the CPU; nothing to do for tables"
    if gpu["gpu_count"]:
        return Finding("GPUs", "ok", f"{gpu['gpu_count']}: {', '.join(gpu['gpu_names'])}")
    return Finding("GPUs", "note", "none found by nvidia-smi", remedy)


def _sandboxes(config: PipelineConfig) -> Iterator[Finding]:
    found = sandbox.find_sandbox()
    if not found.missing:
        yield Finding("script sandbox", "ok", found.name)
    else:
        state: State = "problem" if config.require_sandbox else "note"
        hint = seccomp.INSTALL_HINT if found.kind else sandbox.INSTALL_HINT
        remedy = f"{hint}, or run mle-star in a container"
        yield Finding("script sandbox", state, f"{found.name}: scripts run {found.missing}", remedy)
    if config.tool_profile == "full":
        with tempfile.TemporaryDirectory() as folder:
            missing = asyncio.run(prepare_shell(Path(folder)))
        remedy = "install it, or leave tool_profile at minimal: a run is refused as it is"
        fine = Finding("agents' shell", "ok", "confined by the CLI's sandbox")
        yield Finding("agents' shell", "problem", missing, remedy) if missing else fine


def _disk(folder: Path) -> Finding:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free / 2**30
    text = f"{free:.1f} GB free below {existing}"
    remedy = "make room, or set work_dir to another disk: each path keeps its own copy of what its scripts write"
    state: State = "problem" if free < NO_DISK_GB else "note" if free < LOW_DISK_GB else "ok"
    return Finding("disk", state, text, "" if state == "ok" else remedy)


async def _calls(config: PipelineConfig) -> list[Finding]:
    """A question in plain text and one that wants a form, through everything that a run's calls go through."""
    study = "print('Ablation baseline: 0.9')\nprint('Ablation no_scaling: 0.8')"
    output = "Ablation baseline: 0.9\nAblation no_scaling: 0.8"
    extract = render(AgentType.extractor, solution_script=study, ablation_summary=output, previous_code_blocks=[])
    questions = {
        "agent call": (AgentType.summarize, render(AgentType.summarize, ablation_code=study, raw_result=output)),
        "structured reply": (AgentType.extractor, extract),
    }
    findings: list[Finding] = []
    policy = CallPolicy(retry_delays=(1.0,), busy_delays=(), cli_retries=1)
    try:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            (folder / "train.csv").write_text(_SAMPLE, encoding="utf-8")
            serve = served_model(config.model)
            base_url = None if serve is None else (await stack.enter_async_context(serve())).base_url
            task = guess_task(folder).task
            client = AgentClient(task, config, EnvironmentFacts(), work_dir=folder, base_url=base_url, policy=policy)
            agents = await stack.enter_async_context(client)
            for topic, (agent, prompt) in questions.items():
                findings.append(await _answer(agents, topic, agent_config(agent), prompt, config.model))
                if findings[-1].state == "problem":
                    return findings
            return [*findings, _tools(agents)]
    except MleStarError as error:
        return [Finding("agent call", "problem", str(error), "see the findings above")]


async def _answer(agents: AgentClient, topic: str, agent: AgentConfig, prompt: str, model: str) -> Finding:
    try:
        reply = await agents.ask(agent, prompt, label="doctor", max_cost_usd=None)
    except AgentError as error:
        return Finding(topic, "problem", str(error), _REMEDIES[error.reason])
    tokens = f"{reply.input_tokens} + {reply.output_tokens} tokens"
    return Finding(topic, "ok", f"{model} answered in {reply.seconds:.1f} s: {tokens}, ${reply.cost_usd:.4f}")


def _tools(agents: AgentClient) -> Finding:
    if agents.replies == "text":
        text = "the model overlooks the one for structured replies, which are read from the text; the others are sent"
        return Finding("tools", "note", text, "set tool_use=none if it overlooks the others, too")
    if agents.replies == "tools":
        return Finding("tools", "ok", "structured replies come by a tool; the web is searched where the server can")
    text = "the server knows none: structured replies are read from the text, and the web is not searched"
    return Finding("tools", "note", text, "set tool_use=none to spare each run the attempt")


_SAMPLE = "id,size,label\n" + "".join(f"{row},{row % 7},{row % 2}\n" for row in range(40))
_REMEDIES: dict[AgentFailure, str] = {
    "auth": "the credential was refused: renew it, or see that it belongs to the service in ANTHROPIC_BASE_URL",
    "transport": "the service cannot be reached: check network, proxy (HTTPS_PROXY) and ANTHROPIC_BASE_URL",
    "rate_limit": "the account's limit is used up, or the service is overloaded: wait, or choose another model",
    "timeout": "raise agent_timeout_seconds, or look at the network",
    "refusal": "the model declined a harmless question: choose another one with --model",
    "too_long": "the model may not write more: choose another one with --model, or raise CLAUDE_CODE_MAX_OUTPUT_TOKENS",
    "unparseable": "the model does not keep to the form it is asked for: choose another one with --model",
    "budget": "the call reached its share of the money: raise max_budget_usd, or choose a cheaper model with --model",
    "other": "is the model's name right? choose another one with --model",
}
