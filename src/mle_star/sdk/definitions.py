"""The fourteen agents as the SDK knows them: system prompt, tools and definition of each."""

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from rich.filesize import decimal

from mle_star.data.place import DataFolder
from mle_star.method.scores import parse_score
from mle_star.models import AgentConfig, TaskDescription, ToolProfile, build_default_agent_configs
from mle_star.models.agents import section
from mle_star.models.texts import plural, printable, some_of

if TYPE_CHECKING:
    from claude_agent_sdk import AgentDefinition, McpSdkServerConfig

logger = logging.getLogger(__name__)

PERSONA = section("grandmaster")
STRUCTURED_TOOL = "StructuredOutput"
MCP_SERVER = "mle_star"
MCP_TOOLS = (f"mcp__{MCP_SERVER}__parse_score", f"mcp__{MCP_SERVER}__list_data_files")
WRITING_TOOLS = frozenset({"Bash", "Edit", "Write"})
MAX_LISTED = 200
MAX_FILES = 500
MAX_WEIGHTS = 40


@cache
def _noise() -> re.Pattern[str]:
    """What no solution imports: the tools of packagers, testers and writers, this project and what only it needs."""
    return re.compile("|".join((Path(__file__).parent / "noise.txt").read_text(encoding="utf-8").split()))


CACHE = (
    "- New files in `./cache` (make it if it is missing) stay for later scripts on the same rows and are never "
    "replaced: save what is slow to compute (counts, embeddings, predictions of folds), named by the data and "
    "parameters that it depends on. It may be empty at any time, and is for the last script; answers must be the same "
    "without it."
)


@dataclass(frozen=True)
class ScriptShare:
    """What one script has of the machine, and which weights it finds without a network."""

    cores: int
    memory_gb: float
    network: bool
    weights: tuple[str, ...] = ()
    keeps_work: bool = False

    def lines(self) -> list[str]:
        """As the section on the hardware says it."""
        found = [
            f"- One script has {plural(self.cores, 'core')} and {self.memory_gb:.1f} GB of memory",
            f"- Network for scripts: {'yes' if self.network else 'none, so nothing can be downloaded or installed'}",
            *([CACHE] if self.keeps_work else ()),
        ]
        if not self.weights:
            without = "" if self.network else ": `pretrained=True` and `from_pretrained` of a hub's model fail"
            return [*found, f"- Pretrained weights at hand: none{without}"]
        names = some_of([f"`{name}`" for name in self.weights], MAX_WEIGHTS)
        return [*found, f"- Pretrained weights at hand, and no others: {names}"]


@dataclass(frozen=True)
class EnvironmentFacts:
    """What generated code will find: `gpu` as `detect_gpu` gives it, Python and its packages as it says itself."""

    gpu: Mapping[str, Any] = field(default_factory=dict)
    python_version: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    cpu_cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    memory_gb: float = field(default_factory=lambda: psutil.virtual_memory().total / 2**30)
    scored_by_answers: bool = False
    brief: str = ""
    knowledge: str = ""
    share: ScriptShare | None = None

    @property
    def script_packages(self) -> list[tuple[str, str]]:
        """The packages worth telling an agent about, by name: all but the noise."""
        chosen = [item for item in self.packages.items() if not _noise().fullmatch(plain_name(item[0]))]
        return sorted(chosen, key=lambda item: plain_name(item[0]))


def plain_name(package: str) -> str:
    """A package's name as the index compares it: `Scikit_Learn` is `scikit-learn`."""
    return re.sub(r"[-_.]+", "-", package).lower()


def build_system_prompt(task: TaskDescription, facts: EnvironmentFacts, *, essence: bool = False) -> str:
    """What every agent knows before it is asked: who it is, the task, its data, the machine, the packages.

    Its `essence` is what a reply is held to: neither where the data lie nor what the machine has. So a run may be
    moved, resumed elsewhere, get more memory or be forked, and pays for nothing again.
    """
    sections = {
        "Scoring": section("scoring") if facts.scored_by_answers else "",
        "Knowledge": facts.knowledge,
        "Task": task.description,
        "Metric": f"`{task.evaluation_metric}`, `{task.metric_direction.value}`",
        "Data": _data(Path(task.data_dir), Path("data") if essence else Path(task.data_dir).resolve()),
        "Data brief": facts.brief,
        "Hardware": "" if essence else _hardware(facts),
        "Python": _python(facts),
    }
    return "\n\n".join([PERSONA, *(f"# {title}\n\n{text}" for title, text in sections.items() if text)])


def effective_tools(config: AgentConfig, profile: ToolProfile) -> list[str]:
    """The built-in tools an agent really gets: none of those that act, unless the profile is `full`."""
    return [tool for tool in config.tools or [] if profile == "full" or tool not in WRITING_TOOLS]


def build_definitions(
    running: AgentConfig,
    system_prompt: str,
    profile: ToolProfile,
    server: "McpSdkServerConfig | None" = None,
    plain: bool = False,
) -> "dict[str, AgentDefinition]":
    """All fourteen agents; `running` has the whole system prompt, the others, which nobody calls, their duty.

    Agents that have tools have those of `server`, too; `plain`: none has a tool.
    """
    from claude_agent_sdk import AgentDefinition

    definitions = {}
    for agent, config in {**build_default_agent_configs(profile), running.agent_type: running}.items():
        prompt = system_prompt if agent is running.agent_type else f"{PERSONA}\n\n{config.description}"
        entry = config.model_copy(update={"system_prompt": prompt}).to_agent_definition()
        tools = effective_tools(config, profile)
        more = [*(MCP_TOOLS if server and tools else ()), *([STRUCTURED_TOOL] if config.output_schema else ())]
        # An SDK definition without a tool list inherits every tool: no tools must be said.
        entry["tools"] = [] if plain else [*tools, *more]
        definitions[agent.value] = AgentDefinition(**entry)
    return definitions


def build_tool_server(data_dir: Path) -> "McpSdkServerConfig | None":
    """The in-process MCP server; None, with a warning, when the SDK cannot make one."""
    try:
        from claude_agent_sdk import create_sdk_mcp_server, tool

        @tool("parse_score", "Read the validation score out of a script's output.", {"output": str})
        async def parse(arguments: dict[str, Any]) -> dict[str, Any]:
            return _answer({"score": parse_score(str(arguments.get("output", "")))})

        @tool("list_data_files", "List the files of the data folder with their sizes in bytes.", {})
        async def list_files(arguments: dict[str, Any]) -> dict[str, Any]:
            return _answer(list_data_files(data_dir))

        return create_sdk_mcp_server(MCP_SERVER, tools=[parse, list_files])
    except Exception as error:  # agents can do without: a warning is all that a failure here may be
        logger.warning("the agents go without their own tools: %s: %s", type(error).__name__, error)
        return None


def list_data_files(data_dir: Path) -> dict[str, Any]:
    """The files below a folder, relative to it, largest number `MAX_FILES`."""
    files = islice(DataFolder(data_dir).files(), MAX_FILES + 1)
    found = [{"path": name, "bytes": status.st_size} for name, status in files]
    return {"files": found[:MAX_FILES], "truncated": len(found) > MAX_FILES}


def _answer(value: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(value)}]}


def _data(folder: Path, place: Path) -> str:
    first = f"The data folder is `{printable(str(place))}`; scripts see it as `./input`."
    try:
        data = DataFolder(folder)
        names = sorted(path.name for path in folder.iterdir() if not data.leaves_out(path))
    except OSError:
        return first
    lines = [_data_line(folder / name) for name in names[:MAX_LISTED]]
    more = [f"- and {len(names) - MAX_LISTED} more"] if len(names) > MAX_LISTED else []
    return "\n".join([first, "", *lines, *more])


def _data_line(path: Path) -> str:
    """A name comes from outside: none may begin a line of its own, and with it a heading."""
    size = path.stat().st_size if path.exists() else 0
    return f"- `{printable(path.name)}/`" if path.is_dir() else f"- `{printable(path.name)}` ({decimal(size)})"


def _hardware(facts: EnvironmentFacts) -> str:
    names = [str(name) for name in facts.gpu.get("gpu_names") or []]
    count = int(facts.gpu.get("gpu_count") or 0)
    gpus = f"{count} ({', '.join(names)}), CUDA available" if facts.gpu.get("cuda_available") and count else "none"
    lines = [f"- CPU cores: {facts.cpu_cores}", f"- Memory: {facts.memory_gb:.0f} GB", f"- GPUs: {gpus}"]
    if facts.share is not None:
        memory = [str(size) for size in facts.gpu.get("gpu_memory") or []]
        lines += [f"- GPU memory: {', '.join(memory)}"] if memory else []
        lines += facts.share.lines()
    return "\n".join(lines)


def _python(facts: EnvironmentFacts) -> str:
    version = f"Python {facts.python_version}" if facts.python_version else "Python 3"
    packages = [f"{name}=={number}" for name, number in facts.script_packages]
    if not packages:
        return f"{version}. Only the standard library is certain to be there."
    head = f"{version}. Scripts may import these packages and the standard library, and cannot install others:"
    return "\n".join([head, "", *packages])
