"""`mle-star doctor`: is everything here that a run needs, and what to do where it is not."""

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
from typer import Option

from mle_star import seccomp
from mle_star.cli import EXIT_WRONG_INPUT
from mle_star.cli.options import NO_SETTINGS, Given
from mle_star.data.guess import guess_task
from mle_star.errors import AgentError, AgentFailure, ConfigError, CredentialError, MleStarError
from mle_star.execution import detect_gpu, inspect_interpreter, sandbox
from mle_star.models import AgentType, PipelineConfig, agent_config
from mle_star.prompts import render
from mle_star.sdk import AgentClient, CallPolicy, EnvironmentFacts, require_credentials
from mle_star.sdk.credentials import MINIMUM_VERSION, bundled_cli, find_credentials, installed_sdk_version, require_sdk
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


def doctor(
    call: Annotated[bool, Option("--call", help="Make one real call of each kind; say what works.")] = False,
    given: Annotated[Given, "python", "model", "base_url"] = NO_SETTINGS,
) -> None:
    """Check what a run needs: SDK, credentials, interpreter, GPUs, sandbox, disk; say how to fix each problem.

    The exit code is 1 when a run could not work. Credentials are named, never shown.

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
    gpu, on_the_cpu = detect_gpu(), "scripts will train on the CPU; nothing to do for tables"
    none = "" if gpu["gpu_count"] else "none found by nvidia-smi"
    yield _unless(none, "GPUs", f"{gpu['gpu_count']}: {', '.join(gpu['gpu_names'])}", on_the_cpu, "note")
    found = sandbox.find_sandbox()
    remedy = f"{seccomp.INSTALL_HINT if found.kind else sandbox.INSTALL_HINT}, or run mle-star in a container"
    missing = f"{found.name}: scripts run {found.missing}" if found.missing else ""
    yield _unless(missing, "script sandbox", found.name, remedy, "problem" if config.require_sandbox else "note")
    if config.tool_profile == "full":
        remedy = "install it, or leave tool_profile at minimal: a run is refused as it is"
        with tempfile.TemporaryDirectory() as folder:
            missing = asyncio.run(prepare_shell(Path(folder)))
        yield _unless(missing, "agents' shell", "confined by the CLI's sandbox", remedy)
    yield _disk(Path(config.work_dir).absolute())
    if call:
        yield from asyncio.run(_calls(config))


def _unless(wrong: str, topic: str, fine: str, remedy: str, state: State = "problem") -> Finding:
    """What is `fine`, unless something is `wrong`."""
    return Finding(topic, state, wrong, remedy) if wrong else Finding(topic, "ok", fine)


def _sdk() -> Iterator[Finding]:
    version = installed_sdk_version()
    try:
        require_sdk()
        yield Finding("Claude Agent SDK", "ok", f"{version} ({MINIMUM_VERSION} or later is needed)")
    except ImportError as error:
        yield Finding("Claude Agent SDK", "problem", version or "not installed", str(error).rsplit(": ", 1)[-1])
        return
    path, number = bundled_cli()
    other = shutil.which("claude")
    if path is None and other is not None:
        yield Finding("its CLI", "note", f"{other}, not the one of the SDK", "its version must be 2.1.248 or later")
    else:
        remedy, missing = "install a wheel of claude-agent-sdk for this platform", "not found" if path is None else ""
        yield _unless(missing, "its CLI", f"{number or 'version unknown'}, {path}", remedy)


def _credentials(config: PipelineConfig) -> Finding:
    found = ", ".join(f"{one.description} ({one.source})" for one in find_credentials())
    try:
        require_credentials(config)
    except CredentialError as error:
        return Finding("credentials", "problem", f"none for the model {config.model}", str(error).split(": ", 1)[-1])
    free = f"not needed for the model {config.model}; found: {found or 'none'}"
    return Finding("credentials", "ok", free if config.traits.is_embedded else found)


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
    install = f"{shlex.quote(info.path)} -m pip install {' '.join(missing)}"
    remedy = f"{install}, or choose an interpreter that has them with --python PATH"
    yield _unless(f"{text}; missing: {', '.join(missing)}" if missing else "", "ML packages", text, remedy)


def _disk(folder: Path) -> Finding:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free / 2**30
    text, low = f"{free:.1f} GB free below {existing}", free < LOW_DISK_GB
    remedy = "make room, or set work_dir to another disk: each path keeps its own copy of what its scripts write"
    return _unless(text if low else "", "disk", text, remedy, "problem" if free < NO_DISK_GB else "note")


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
                try:
                    reply = await agents.ask(agent_config(agent), prompt, label="doctor", max_cost_usd=None)
                except AgentError as error:
                    return [*findings, Finding(topic, "problem", str(error), _REMEDIES[error.reason])]
                tokens = f"{reply.input_tokens} + {reply.output_tokens} tokens, ${reply.cost_usd:.4f}"
                findings.append(Finding(topic, "ok", f"{config.model} answered in {reply.seconds:.1f} s: {tokens}"))
            return [*findings, _tools(agents)]
    except MleStarError as error:
        return [Finding("agent call", "problem", str(error), "see the findings above")]


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
