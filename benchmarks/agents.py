"""What a call of `AgentClient` costs over the bare SDK, in time and in bytes. Real CLI, Messages API on loopback.

    python benchmarks/agents.py [--rounds N]

All ways are measured in turn within each round, so that a busy machine slows them alike; the medians are compared.
Exit code 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, query

from mle_star.engineer.server import MessagesServer
from mle_star.models import (
    AgentConfig,
    AgentType,
    DataModality,
    MetricDirection,
    PipelineConfig,
    TaskDescription,
    TaskType,
    build_default_agent_configs,
)
from mle_star.orchestrator import run_pipeline
from mle_star.prompts import Prompt
from mle_star.sdk import AgentClient, EnvironmentFacts
from mle_star.sdk.credentials import Upstream
from mle_star.sdk.definitions import build_system_prompt, effective_tools
from mle_star.sdk.hooks import CallSite
from mle_star.sdk.proxy import CredentialProxy
from mle_star.search.setup import gather_facts
from mle_star.testing import ScriptedBrain

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.pipeline.mind import LevelExecutor, Mind, MindAgents, fenced, script  # noqa: E402

MODEL = "sonnet"
PROMPT = "Improve the block below.\n\n" + "model.fit(X, y)\n" * 40
STRUCTURED: dict[str, Any] = {
    "retriever": {"models": [{"model_name": "m", "example_code": "c"}]},
    "extractor": {"plans": [{"code_block": "b", "plan": "p"}]},
    "leakage": {"answers": [{"leakage_status": "No Data Leakage", "code_block": "b"}]},
}
TEXT_ONLY_BYTES, WITH_TOOLS_BYTES = 4.5 * 1024, 7 * 1024
MAX_OVERHEAD, MAX_OF_COLD = 1.5, 0.25
MAX_PROXY_MS = 3.0
MAX_CHANGING, MIN_CACHED = 7 * 1024, 0.65
FILLER = "".join(
    f"""

def feature_{number}(table, weight):
    groups = table.groupby(table.columns[{number}])
    table["mean_{number}"] = groups["measure_{number}"].transform("mean") * weight
    table["rank_{number}"] = groups["measure_{number}"].rank(pct=True).fillna(0.5)
    table["gap_{number}"] = table["measure_{number}"].isna().astype(float)
    return table


train_{number} = feature_{number}(train, {"level" if number % 2 else 1})
"""
    for number in range(18)
)
"""Of the code of a script about half has to do with its block, as in scripts by strong models (0.3 to 0.7)."""
ROW = 5


class Bench:
    """Everything that is measured, on one server."""

    def __init__(self, folder: Path, brain: ScriptedBrain, server: MessagesServer) -> None:
        self.brain, self.server, self.folder = brain, server, folder
        (folder / "data").mkdir()
        (folder / "data" / "train.csv").write_text("id,label\n1,0\n", encoding="utf-8")
        self.task = TaskDescription(
            competition_id="bench",
            task_type=TaskType.tabular,
            data_modality=DataModality.tabular,
            evaluation_metric="accuracy",
            metric_direction=MetricDirection.maximize,
            description="Predict label.",
            data_dir=str(folder / "data"),
        )

    def client(self, reuse: str) -> AgentClient:
        """An `AgentClient` that connects nothing by itself."""
        return AgentClient(
            self.task,
            PipelineConfig(model=MODEL, client_reuse=reuse, work_dir=str(self.folder / "work")),
            EnvironmentFacts(python_version="3.11.0", packages={"numpy": "2.0.0", "pandas": "2.2.0"}),
            base_url=self.server.base_url,
        )


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Seconds that `work` took."""
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


async def turn(client: ClaudeSDKClient, text: str = PROMPT, *, verbatim: bool = True) -> None:
    """One turn of a bare client, sent as ours are."""

    async def message() -> AsyncIterator[dict[str, Any]]:
        body = {"role": "user", "content": text}
        yield {"type": "user", "message": body, "parent_tool_use_id": None, "client_composed": verbatim}

    await client.query(message())
    async for _ in client.receive_response():
        pass


async def measure_time(bench: Bench, rounds: int) -> bool:
    """The table of times; True when the limits hold."""
    config = build_default_agent_configs()[AgentType.coder]
    times: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        fresh = await stack.enter_async_context(bench.client("fresh"))
        clear = await stack.enter_async_context(bench.client("clear"))

        def options(**changes: Any) -> ClaudeAgentOptions:
            made = fresh._launcher.options(config, CallSite("coder"), None)
            for name, value in {"hooks": None, "verbatim_prompts": False, **changes}.items():
                setattr(made, name, value)
            return made

        bare = await stack.enter_async_context(ClaudeSDKClient(options()))

        async def bare_cleared() -> None:
            await turn(bare)
            await turn(bare, "/clear", verbatim=False)

        async def cold() -> None:
            async for _ in query(prompt=PROMPT, options=options()):
                pass

        async def ask(agents: AgentClient) -> None:
            await agents.ask(config, PROMPT, label="main", max_cost_usd=None)

        async def cleared_row() -> None:
            for _ in range(ROW):
                await ask(clear)  # every call but the first has to wait for the /clear after the one before
            for worker in clear._pool._idle if clear._pool else ():
                await worker.ready()  # and this for the last /clear: as many as the yardstick has

        await bare_cleared()
        await ask(clear)
        for _ in range(rounds):
            times.setdefault("query(), cold", []).append(await timed(cold))
            async with ClaudeSDKClient(options()) as once:
                await asyncio.sleep(0.3)  # what a client does right after connecting is not the turn
                times.setdefault("bare client, first turn", []).append(await timed(lambda: turn(once)))
                times.setdefault("bare client, later turn", []).append(await timed(lambda: turn(once)))
            times.setdefault("AgentClient, fresh", []).append(await timed(lambda: ask(fresh)))
            await asyncio.sleep(0.3)
            times.setdefault("bare client, turn and /clear", []).append(await timed(bare_cleared))
            row = await timed(cleared_row)
            times.setdefault("AgentClient, clear, in a row", []).append(row / ROW)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"{'median of ' + str(rounds):36} {'ms':>8}")
    for name, value in medians.items():
        print(f"{name:36} {value * 1000:8.1f}")
    print()
    cold_time = medians["query(), cold"]
    fresh_time, in_a_row = medians["AgentClient, fresh"], medians["AgentClient, clear, in a row"]
    print(f"{'ratio':44} {'measured':>9} {'limit':>7}")
    bare_clear = medians["bare client, turn and /clear"]
    found = [
        _ratio("fresh / cold query()", fresh_time / cold_time, MAX_OVERHEAD),
        _ratio("clear, in a row / bare turn and /clear", in_a_row / bare_clear, MAX_OVERHEAD),
        _ratio("clear, in a row / cold query()", in_a_row / cold_time, MAX_OF_COLD),
    ]
    return all(found)


def _ratio(title: str, value: float, limit: float) -> bool:
    print(f"{title:44} {value:9.2f} {limit:7.2f}  {'ok' if value <= limit else 'MISSED'}")
    return value <= limit


async def measure_proxy(bench: Bench, rounds: int) -> bool:
    """What the credential proxy adds to a request; True when the limit holds."""
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": PROMPT}]}
    times: dict[str, list[float]] = {"direct": [], "by the proxy": []}
    async with CredentialProxy(Upstream(bench.server.base_url)) as proxy, httpx2.AsyncClient(trust_env=False) as client:
        ways = {"direct": (bench.server.base_url, "x"), "by the proxy": (proxy.base_url, proxy.key("coder"))}
        for _ in range(rounds * 20):
            for name, (url, key) in ways.items():
                headers = {"x-api-key": key, "x-mle-star-agent": "coder"}
                work = functools.partial(client.post, f"{url}/v1/messages", json=body, headers=headers)
                times[name].append(await timed(work))
    direct, proxied = (1000 * statistics.quantiles(times[name], n=10)[0] for name in times)  # without the others' noise
    fine = proxied - direct <= MAX_PROXY_MS
    mark = "ok" if fine else "MISSED"
    print(
        f"\na request: {direct:.1f} ms direct, {proxied:.1f} ms by the proxy; at most {MAX_PROXY_MS:g} ms more: {mark}"
    )
    return fine


async def measure_bytes(bench: Bench) -> bool:
    """The table of request sizes; True when the limits hold."""
    fine = True
    async with bench.client("fresh") as agents:
        default = await default_bytes(bench, agents)
        print(f"\nrequest bytes beyond prompt and system prompt ({len(PROMPT)} and {len(agents.system_prompt)} bytes)")
        print(f"{'agent':14} {'tools':22} {'schema':>7} {'ours':>7} {'limit':>7} {'SDK default':>12}")
        for agent, config in build_default_agent_configs().items():
            ours = await request_bytes(bench, agents, config)
            tools = effective_tools(config, "minimal")
            limit = WITH_TOOLS_BYTES if tools else TEXT_ONLY_BYTES
            fine &= ours <= limit
            schema = "yes" if config.output_schema else "no"
            mark = "" if ours <= limit else "  MISSED"
            print(f"{agent.value:14} {', '.join(tools) or '-':22} {schema:>7} {ours:7} {limit:7.0f} {default:12}{mark}")
    return fine


class Wordy(Mind):
    """Writes scripts of some six kilobytes."""

    def script(self, level: float, note: str) -> str:
        """A script in a fence, with filler."""
        return fenced(script(level, note=note) + FILLER)


class Listening(MindAgents):
    """Keeps every prompt with the agent that it was for."""

    def __init__(self) -> None:
        super().__init__(Wordy())
        self.heard: list[tuple[AgentConfig, str]] = []

    async def ask(self, config: AgentConfig, prompt: str, **more: Any) -> Any:
        """Answer, and remember what was sent."""
        self.heard.append((config, prompt))
        return await super().ask(config, prompt, **more)


def write_table(folder: Path) -> TaskDescription:
    """A task as they come: sixty columns, two thousand rows, a page of description."""
    folder.mkdir()
    names = [f"measure_{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(58)]  # no family
    for name, last in (("train", ",label"), ("test", "")):
        rows = [
            ",".join([str(row), *(f"{(row * 31 + n * 17) % 997 / 7:.3f}" for n in range(58))])
            + (f",{row % 2}" if last else "")
            for row in range(2000 if last else 500)
        ]
        (folder / f"{name}.csv").write_text(",".join(["id", *names]) + last + "\n" + "\n".join(rows) + "\n")
    (folder / "sample_submission.csv").write_text("id,label\n" + "".join(f"{row},0\n" for row in range(500)))
    return TaskDescription(
        competition_id="bench-parts", task_type=TaskType.classification, data_modality=DataModality.tabular,
        evaluation_metric="accuracy", metric_direction=MetricDirection.maximize, data_dir=str(folder),
        description="Predict `label` of each row of test.csv. " + "A sentence on where the measures come from. " * 50,
    )  # fmt: skip


class Frame(NamedTuple):
    """What the CLI puts around a prompt: before it (tools, system prompt), where a cache can keep it, and after it."""

    before: str
    after: int
    blocks: bool  # is a prompt sent in two blocks, of which the first can be kept?


async def frame_of(bench: Bench, agents: AgentClient, config: AgentConfig, system: str) -> Frame:
    """The frame of an agent's requests in a run with this system prompt, as one real request shows it."""
    await agents.ask(config, PROMPT, label="main", max_cost_usd=None)
    request = bench.brain.calls(config.agent_type.value)[-1]
    body = json.loads(request.body)
    first = [block["text"] for block in body["system"] if block["text"] != request.system]
    before = json.dumps([body.get("tools"), first], ensure_ascii=False) + system
    after = len(json.dumps(body["messages"], ensure_ascii=False).encode()) - _json_bytes(request.prompt)
    return Frame(before, after, not agents._launcher.sends_tools(config))


async def measure_parts(bench: Bench) -> bool:
    """Bytes per call by part in a default run: what comes first and stays, and what changes.

    A cache keeps what begins alike: tools and system prompt, which some agents have in common, and the first block of a
    prompt for those who answer in one turn. What only some calls of an agent share counts as changing, too.
    """
    task, listening = write_table(bench.folder / "parts"), Listening()
    config = PipelineConfig(time_limit_seconds=3600, scoring="self_reported")  # its scripts answer nothing
    await run_pipeline(
        task, config, run_dir=bench.folder / "parts-run", agents=listening, executor=LevelExecutor(), console=False
    )
    facts = gather_facts(task, config, {})
    systems = {len(build_system_prompt(task, gather_facts(task, config, {})).encode()) for _ in range(2)}
    same = len(systems) == 1 and build_system_prompt(task, facts) == build_system_prompt(task, facts)
    system, kept, total, served = build_system_prompt(task, facts), set[str](), 0, 0
    frames: dict[str, Frame] = {}
    parts: dict[str, list[tuple[int, int]]] = {}  # by agent: bytes that change, bytes that a cache served
    async with bench.client("fresh") as agents:
        for agent, prompt in listening.heard:
            name = agent.agent_type.value + ("" if agent.variant is None else f"-{agent.variant}")
            if name not in frames:
                frames[name] = await frame_of(bench, agents, agent, system)
            before, after, blocks = frames[name]
            first = prompt[: prompt.steady] if blocks and isinstance(prompt, Prompt) else ""
            hit = sum(
                len(part.encode()) for part, start in ((before, before), (first, before + first)) if start in kept
            )
            kept |= {before, before + first}
            changing = len(prompt.encode()) + after
            parts.setdefault(name, []).append((changing, hit))
            total, served = total + len(before.encode()) + changing, served + hit
    print(f"\nbytes per call in a default run ({len(listening.heard)} calls), by part")
    print(f"{'agent':22} {'calls':>6} {'stable':>8} {'changing, median':>17} {'largest':>8} {'served, median':>15}")
    for name, found in sorted(parts.items()):
        sizes, hits = zip(*found, strict=True)
        print(
            f"{name:22} {len(found):6} {len(frames[name].before.encode()):8} {statistics.median(sizes):17.0f}"
            f" {max(sizes):8} {statistics.median(hits):15.0f}"
        )
    median, share = statistics.median(size for found in parts.values() for size, _ in found), served / total
    rows = [
        ("the stable part is the same in all calls of an agent", float(same), "1", same),
        ("changing part, median of all calls", median, f"<= {MAX_CHANGING}", median <= MAX_CHANGING),
        ("share of the input that a prefix cache can serve", share, f">= {MIN_CACHED}", share >= MIN_CACHED),
    ]
    for title, value, limit, fine in rows:
        print(f"{title:56} {value:10.3f} {limit:>9}  {'ok' if fine else 'MISSED'}")
    return all(fine for *_, fine in rows)


async def request_bytes(bench: Bench, agents: AgentClient, config: AgentConfig) -> int:
    """The size of a request without what we put in."""
    await agents.ask(config, PROMPT, label="main", max_cost_usd=None)
    request = bench.brain.calls(config.agent_type.value)[-1]
    return len(request.body) - _json_bytes(request.prompt) - _json_bytes(request.system)


async def default_bytes(bench: Bench, agents: AgentClient) -> int:
    """The same for the SDK as it comes: its own system prompt and every tool."""
    env = agents._launcher.options(build_default_agent_configs()[AgentType.coder], CallSite("coder"), None).env
    preset: Any = {"type": "preset", "preset": "claude_code"}
    options = ClaudeAgentOptions(model=MODEL, env=env, system_prompt=preset, setting_sources=[], cwd=bench.folder)
    async for _ in query(prompt=PROMPT, options=options):
        pass
    return len(bench.brain.calls("coder")[-1].body) - _json_bytes(PROMPT)


def _json_bytes(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2


async def main(rounds: int) -> int:
    """Run everything; the exit code."""
    brain = ScriptedBrain("fine")
    for agent, value in STRUCTURED.items():
        brain.always(agent, value)
    with tempfile.TemporaryDirectory() as folder:
        async with MessagesServer(brain) as server:
            bench = Bench(Path(folder), brain, server)
            in_time = await measure_time(bench, rounds)
            by_proxy = await measure_proxy(bench, rounds)
            in_size = await measure_bytes(bench)
            in_parts = await measure_parts(bench)
    return 0 if in_time and by_proxy and in_size and in_parts else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    sys.exit(asyncio.run(main(parser.parse_args().rounds)))
