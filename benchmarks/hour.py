"""How well an hour is spent: a run beside a plain chain of improvements, both driven by the same scripted mind.

    python benchmarks/hour.py [--quick] [--seeds 3] [--limit 3600]

Time is simulated: calls and scripts take known seconds of a clock that moves only while everything waits, so an hour
takes some seconds here and the figures are the same on every machine. Scripts need processor time and share the cores;
plans change the loss by known factors; crashes and scripts that are far too slow are drawn alike for both. The chain
is what the simplest rivals do: a few drafts, then one change of the best script after another, a call for the code and
a call for the review of each. It runs scripts on all rows; the run scores them on rows that they have not seen.

For every cell: solutions that were scored, the loss that was reached (the lower the better), the share of the lanes'
time in scored solutions, selection and refit, the share of script seconds that was cut, and calls for scripts that
nobody scored. All are means over the seeds; the chain, which costs nothing here, has more of them. A cell is behind
where the run scores fewer solutions, or its loss is larger by more than twice the standard error of the difference.
Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import itertools
import math
import random
import re
import statistics
import sys
import tempfile
from collections.abc import Coroutine
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.pipeline.clock import PatientLoop  # noqa: E402
from tests.pipeline.mind import Answer, Mind, MindAgents, fenced, levels, model_of  # noqa: E402

from mle_star.config import load_config  # noqa: E402
from mle_star.errors import PipelineError  # noqa: E402
from mle_star.models import AgentConfig, DataModality, ExecutionRawResult, MetricDirection, TaskDescription, TaskType  # noqa: E402
from mle_star.orchestrator import run_pipeline  # noqa: E402
from mle_star.run.context import ScriptRequest  # noqa: E402
from mle_star.run.events import AgentFinished, AgentReply, ScriptFinished  # noqa: E402
from mle_star.run.journal import read_journal  # noqa: E402

T = TypeVar("T")
ROWS, TEST_ROWS = 500, 100
CRASHES, SLOW, TOO_SLOW = 0.1, 0.02, 6.0
DRAFTS = 3  # of the chain
FLOOR = 0.5  # no script has a lower loss
NOTHING = 2.0  # the loss of a run without a solution
WRITERS = {"init", "merger", "coder", "ensembler"}
SCRIPT_SECONDS, CALL_SECONDS, CORES = (20.0, 120.0, 600.0), (5.0, 40.0), (1, 2, 8)
LEAST_SHARE, MOST_CUT = 0.7, 0.05
CHAIN_SEEDS = 40


@dataclass(frozen=True)
class Cell:
    """The world of one run."""

    script_seconds: float
    call_seconds: float
    cores: int
    seed: int
    limit: int

    def draw(self, *key: object) -> random.Random:
        """Chance that depends on the seed and on what it is drawn for."""
        return random.Random(f"{self.seed}/{key}")


# --- the mind ----------------------------------------------------------------------------------------------


def text_of(level: float, seconds: float, note: str, crashes: bool = False) -> str:
    """A script as far as the simulated machine reads it."""
    crash = "raise RuntimeError('broken')\n" if crashes else ""
    return (
        f"# {note}\nseconds = {seconds:g}\nlevel = {level:.6f}\n{crash}open('final/submission.csv', 'w')\n"
        "print(f'Final Validation Performance: {level}')\n"
    )


def seconds_of(text: str) -> float:
    """How long a script needs one core."""
    return float(re.findall(r"^seconds = ([\d.]+)$", text, re.MULTILINE)[-1])


@dataclass
class HourMind(Mind):
    """Knows drafts and changes of known worth; what it writes now and then crashes, or is far too slow.

    A change starts from the best block that a prompt shows, as a good engineer's does.
    """

    cell: Cell = field(default_factory=lambda: Cell(20, 5, 2, 0, 3600))

    def answer(self, agent: str, variant: str | None, prompt: str) -> Answer:
        """The reply to a prompt."""
        own = getattr(self, f"answer_{agent}", None)
        return super().answer(agent, variant, prompt) if own is None or variant else own(prompt)

    def draft(self, number: int) -> str:
        """A first script of some model."""
        return self.new(self.cell.draw("draft", number).uniform(0.8, 1.2), 1.0, f"model {number}")

    def change(self, level: float, key: object) -> float:
        """The level after a change: every second one helps, by a share of what can be gained at all."""
        draw = self.cell.draw("change", key, level)
        factor = 1 - draw.uniform(0.02, 0.15) if draw.random() < 0.5 else 1 + draw.uniform(0, 0.1)
        return FLOOR + (level - FLOOR) * factor

    def new(self, level: float, size: float, note: str) -> str:
        """A script, as good as it came out."""
        draw = self.cell.draw("script", level, note)
        slow = TOO_SLOW if draw.random() < SLOW else 1.0
        return text_of(level, self.cell.script_seconds * size * slow, note, draw.random() < CRASHES)

    def repair(self, prompt: str) -> str:
        """The script without its crash; one that was stopped at its limit does half of the work, a little worse.

        Where a limit is told it does less: it ends within half of that.
        """
        level, seconds = levels(prompt)[-1], seconds_of(prompt)
        if re.search("^raise ", prompt, re.MULTILINE):
            return text_of(level, seconds, "repaired")
        named = re.findall(r"is stopped after (\d+) (s|min)\.", prompt)
        limit = min((int(number) * (60 if unit == "min" else 1) for number, unit in named), default=seconds)
        return text_of(level * 1.03, min(seconds, limit) / 2, "made smaller")

    def answer_init(self, prompt: str) -> Answer:
        """A draft of the model that the prompt names."""
        return fenced(self.draft(model_of(prompt)))

    def answer_merger(self, prompt: str) -> Answer:
        """A little better than the better one."""
        level = FLOOR + (min(levels(prompt)) - FLOOR) * 0.97
        return fenced(self.new(level, 1.0, f"merged of {len(levels(prompt))}"))

    def answer_debugger(self, prompt: str) -> Answer:
        """A repair."""
        return fenced(self.repair(prompt))

    def answer_ablation(self, prompt: str) -> Answer:
        """A study: three runs of the solution."""
        seconds = 3 * seconds_of(prompt)
        lines = f"# of {levels(prompt)[0]:.6f}\nseconds = {seconds:g}"  # a study of its own for each solution
        return fenced(f"{lines}\nprint('Ablation baseline: 1.0')\nprint('Ablation no level: 2.0')")

    def answer_extractor(self, prompt: str) -> Answer:
        """The one block there is, and an idea for it."""
        block = re.findall(r"^seconds = .*\nlevel = .*$", prompt, re.MULTILINE)[0]
        return {"plans": [{"code_block": block, "plan": self.new_idea(prompt)}]}

    def answer_planner(self, prompt: str) -> Answer:
        """An idea that was not tried yet."""
        return self.new_idea(prompt)

    def new_idea(self, prompt: str) -> str:
        """One that the prompt does not name."""
        known = [int(number) for number in re.findall("idea ([0-9]+)", prompt)]
        return f"lower the level, idea {max(known, default=-1) + 1}"

    def answer_coder(self, prompt: str) -> Answer:
        """The block after a change."""
        key = (
            re.findall(r"^# Plan\n\n```text\n.*idea (\d+)", prompt, re.MULTILINE)[-1],
            re.findall(r"^# asked on (.*)$", prompt, re.MULTILINE),
        )
        lines = self.new(self.change(min(levels(prompt)), key), 1.0, f"idea {key}").splitlines()
        return fenced("\n".join(line for line in lines if re.match("seconds|level|raise", line)))

    def answer_ens_planner(self, prompt: str) -> Answer:
        """A way to blend that was not tried yet."""
        return f"average them, idea {len(set(re.findall('idea [0-9]+', prompt)))}"

    def answer_ensembler(self, prompt: str) -> Answer:
        """Somewhat better than the best of them; it takes as long as all together."""
        idea = re.findall(r"idea (\d+)", prompt)[-1]
        level = FLOOR + (min(levels(prompt)) - FLOOR) * (1 - self.cell.draw("ensemble", idea).uniform(0.0, 0.15))
        return fenced(self.new(level, prompt.count("Python Solution\n"), f"ensemble {idea}"))

    def answer_test(self, prompt: str) -> Answer:
        """The same, for the submission."""
        return fenced(text_of(levels(prompt)[-1], seconds_of(prompt), "for submission"))


class HourAgents(MindAgents):
    """The mind by protocol. What a call takes is its delay, and on every path it has ideas of its own."""

    async def ask(self, config: AgentConfig, prompt: str, *, label: str, **more: Any) -> AgentReply:
        """Answer after the delay."""
        reply = await super().ask(config, f"{prompt}\n# asked on {label}", label=label, **more)
        return reply.model_copy(update={"seconds": self.delay})


# --- the machine -------------------------------------------------------------------------------------------


@dataclass
class Machine:
    """Cores that all scripts share evenly, none with more than one. It knows what every second was spent on."""

    cell: Cell
    running: int = 0
    spent: dict[str, float] = field(default_factory=dict)

    async def work(self, seconds: float, limit: float, kind: str) -> bool:
        """Burn so much processor time within the limit; does it fit? What was cut counts as such."""
        loop = asyncio.get_running_loop()
        end, left = loop.time() + limit, seconds
        self.running += 1
        try:
            while left > 1e-6 and loop.time() < end - 1e-6:
                pace = min(1.0, self.cell.cores / self.running)
                pause = min(left / pace, end - loop.time(), 2.0)
                await asyncio.sleep(pause)
                left -= pause * pace
        finally:
            self.running -= 1
            done = left <= 1e-6
            self.spent[kind if done else "cut"] = self.spent.get(kind if done else "cut", 0.0) + seconds - left
        return done


@dataclass
class HourExecutor:
    """Scripts on the machine: they take their time by the rows that they learn from, and answer by their level."""

    machine: Machine

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """What the script would have done."""
        loop = asyncio.get_running_loop()
        started, folder = loop.time(), Path(request.working_dir)
        text = Path(request.script_path).read_text(encoding="utf-8")
        study, fails = "Ablation" in text, "raise " in text
        with (folder / "input" / "train.csv").open(encoding="utf-8") as stream:
            share = (sum(1 for _ in stream) - 1) / ROWS
        seconds = seconds_of(text) * max(share, 0.1) * (0.3 if fails else 1.0)
        kind = "study" if study else "failed" if fails else "sample" if share < 0.4 else "solution"
        done = await self.machine.work(seconds, request.timeout_seconds, kind)
        out = "".join(f"{line}\n" for line in re.findall(r"^print\('(Ablation .*)'\)$", text, re.MULTILINE))
        error = ""
        if done and fails:
            error = 'Traceback (most recent call last):\n  File "solution.py", line 3\nRuntimeError: broken\n'
        elif done and not study:
            self._answer(folder, levels(text)[-1])
            out += f"Final Validation Performance: {levels(text)[-1]}\n"
        code = -1 if not done else 1 if fails else 0
        took = loop.time() - started
        return ExecutionRawResult(stdout=out, stderr=error, exit_code=code, duration_seconds=took, timed_out=not done)

    def _answer(self, folder: Path, level: float) -> None:
        with (folder / "input" / "test.csv").open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        body = "".join(f"{row['id']},{3 * float(row['a']) + level * float(row['noise']):.6f}\n" for row in rows)
        (folder / "final" / "submission.csv").write_text(f"id,y\n{body}", encoding="utf-8")


def write_data(folder: Path) -> TaskDescription:
    """Rows whose answer follows from them, and how far a script of level 1 is off."""
    folder.mkdir()
    draw, rows = random.Random(7), []
    for number in range(ROWS + TEST_ROWS):
        rows.append((number, draw.uniform(-5, 5), draw.choice((-1, 1)) * draw.uniform(0.5, 1.5)))
    train = "".join(f"{n},{a:.4f},{e:.4f},{3 * a:.4f}\n" for n, a, e in rows[:ROWS])
    test = "".join(f"{n},{a:.4f},{e:.4f}\n" for n, a, e in rows[ROWS:])
    (folder / "train.csv").write_text(f"id,a,noise,y\n{train}", encoding="utf-8")
    (folder / "test.csv").write_text(f"id,a,noise\n{test}", encoding="utf-8")
    sample = "".join(f"{n},0\n" for n, _, _ in rows[ROWS:])
    (folder / "sample_submission.csv").write_text(f"id,y\n{sample}", encoding="utf-8")
    return TaskDescription(
        competition_id="hour", task_type=TaskType.regression, data_modality=DataModality.tabular,
        evaluation_metric="rmse", metric_direction=MetricDirection.minimize, description="Predict `y`.",
        data_dir=str(folder),
    )  # fmt: skip


# --- the two ways to spend an hour -------------------------------------------------------------------------


@dataclass(frozen=True)
class Spent:
    """What came of an hour."""

    scored: int
    level: float
    calls: int
    useful: float  # share of the lanes' time
    cut: float  # share of the scripts' time
    unscored: int  # calls for a script that has no score


async def our_hour(cell: Cell, folder: Path, task: TaskDescription, **settings: Any) -> Spent:
    """A run with the settings as they come."""
    machine, lanes = Machine(cell), min(cell.cores, 2)
    agents = HourAgents(HourMind(cell=cell), delay=cell.call_seconds, paths_alike=True)
    known = {"time_limit_seconds": cell.limit, "seed": cell.seed, "max_concurrent_scripts": lanes}
    config = load_config({**known, **settings}, environ={})
    try:
        result = await run_pipeline(
            task, config, agents=agents, executor=HourExecutor(machine), run_dir=folder, console=False
        )
        level = levels(result.final_solution.content)[-1]
    except PipelineError:
        level = NOTHING
    journal = read_journal(folder / "journal.jsonl")
    scripts = [event for event in journal if isinstance(event, ScriptFinished)]
    scored = {event.digest for event in scripts if event.purpose == "solution" and event.result.score is not None}
    written = [event for event in journal if isinstance(event, AgentFinished) and event.agent.value in WRITERS]
    spent = machine.spent
    return Spent(
        len(scored),
        level,
        len(agents.calls),
        spent.get("solution", 0.0) / (lanes * cell.limit),
        spent.get("cut", 0.0) / max(sum(spent.values()), 1e-9),
        max(len(written) - len(scored), 0),
    )


async def chain(cell: Cell) -> Spent:
    """A few drafts, then one change of the best after another; failures are repaired once."""
    loop, mind, machine = asyncio.get_running_loop(), HourMind(cell=cell), Machine(cell)
    best, level, scored, calls = "", float("inf"), 0, 0
    script, broken = "", False
    for step in itertools.count():
        if broken:
            script = mind.repair(script)
        elif step < DRAFTS or not best:
            script = mind.draft(step)
        else:
            script = mind.new(mind.change(levels(best)[-1], step), 1.0, f"step {step}")
        await asyncio.sleep(cell.call_seconds)
        left = cell.limit - loop.time()
        if left <= 0:
            break
        calls += 2
        fails = "raise " in script
        allowed = min(left, max(4 * cell.script_seconds, cell.limit / 6))
        done = await machine.work(
            seconds_of(script) * (0.3 if fails else 1.0), allowed, "failed" if fails else "solution"
        )
        broken = (fails or not done) and not broken
        if done and not fails:
            scored += 1
            if levels(script)[-1] < level:
                best, level = script, levels(script)[-1]
        await asyncio.sleep(cell.call_seconds)
        if loop.time() >= cell.limit:
            break
    spent = machine.spent
    whole = max(sum(spent.values()), 1e-9)
    return Spent(scored, level, calls, spent.get("solution", 0.0) / cell.limit, spent.get("cut", 0.0) / whole, 0)


class HourLoop(PatientLoop):
    """What would run in a thread runs at once: two threads would end now in one order, now in the other."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """The result is there already."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def in_simulated_time(work: Coroutine[Any, Any, T]) -> T:
    """Run something on a clock of its own."""
    with closing(HourLoop()) as loop:
        return loop.run_until_complete(work)


def mean(spent: list[Spent]) -> tuple[list[float], float]:
    """The means of all figures, and the standard error of the loss; a run without a solution has a large loss."""
    rows = [
        [min(float(value), NOTHING) if name == "level" else float(value) for name, value in vars(one).items()]
        for one in spent
    ]
    columns = list(zip(*rows, strict=True))
    error = statistics.stdev(columns[1]) / len(rows) ** 0.5 if len(rows) > 1 else 0.0
    return [statistics.fmean(column) for column in columns], error


def main() -> int:
    """All cells; a line each, and the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two cores and one seed alone")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cores", type=int, nargs="*", default=CORES)
    parser.add_argument("--limit", type=int, default=3600)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the run")
    options = parser.parse_args()
    settings = {name: yaml.safe_load(value) for name, _, value in (one.partition("=") for one in options.set)}
    cores = (2,) if options.quick else options.cores
    seeds = range(1 if options.quick else options.seeds)
    behind, ratios, shares, cuts = [], [], [], []
    print(
        "cores script  call | ours: scored   loss   +-   calls lanes   cut wasted | chain: scored   loss   +-   lanes"
    )
    with tempfile.TemporaryDirectory(prefix="mle-star-hour-") as name:
        task = write_data(Path(name) / "data")
        for number, (core, script, call) in enumerate(itertools.product(cores, SCRIPT_SECONDS, CALL_SECONDS)):
            cells = [Cell(script, call, core, seed, options.limit) for seed in range(max(CHAIN_SEEDS, len(seeds)))]
            theirs = [in_simulated_time(chain(cell)) for cell in cells]
            ours = [
                in_simulated_time(our_hour(cells[seed], Path(name) / f"run-{number}-{seed}", task, **settings))
                for seed in seeds
            ]
            (mine, error), (other, noise) = mean(ours), mean(theirs)
            print(
                f"{core:5} {script:6.0f} {call:5.0f} | {mine[0]:12.1f} {mine[1]:6.3f} {error:5.3f} {mine[2]:5.0f} "
                f"{mine[3]:5.2f} {mine[4]:5.2f} {mine[5]:6.1f} | "
                f"{other[0]:13.1f} {other[1]:6.3f} {noise:5.3f} {other[3]:5.2f}",
                flush=True,
            )
            ratios.append(mine[1] / other[1])
            shares.append(mine[3])
            cuts.append(mine[4])
            if mine[0] < other[0] or mine[1] - other[1] > 2 * math.hypot(error, noise):
                behind.append((core, script, call))
    print(f"loss against the chain, mean ratio: {statistics.mean(ratios):.3f} (bar: below 1)")
    print(f"cells behind the chain in scored solutions or loss: {len(behind)} of {len(ratios)} (bar: 0)")
    print(f"least share of the lanes' time well spent: {min(shares):.2f} (bar: {LEAST_SHARE:g})")
    print(f"most script time cut: {max(cuts):.2f} (bar: {MOST_CUT:g})")
    return int(bool(behind) or statistics.mean(ratios) >= 1 or min(shares) < LEAST_SHARE or max(cuts) > MOST_CUT)


if __name__ == "__main__":
    sys.exit(main())
