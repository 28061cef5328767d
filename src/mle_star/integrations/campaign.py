"""Many runs as one piece of work: each a normal run folder, so many at once, within one budget, resumed as a whole."""

import asyncio
import json
import logging
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pandas as pd
from filelock import FileLock, Timeout

from mle_star.data.folder import MEDALS, Medal, Medals
from mle_star.errors import ConfigError, JournalError, MleStarError
from mle_star.execution.executors import find_opener, opened_executor
from mle_star.models import FinalResult, Frozen, MetricDirection, PipelineConfig, TaskDescription
from mle_star.run.folder import RunFolder, file_name, spent_by, write_whole
from mle_star.run.journal import read_journal
from mle_star.views import write_report
from mle_star.views.page import render_page

logger = logging.getLogger(__name__)

PLAN, TABLE, PAGE, SENT = "campaign.json", "results.csv", "results.html", "submission.jsonl"
Start = Callable[..., Awaitable[FinalResult]]
State = Literal["waiting", "running", "finished", "failed", "left out"]


class Entry(Frozen):
    """One run of a campaign: what it is, and what became of it."""

    task: str
    seed: int
    folder: str
    state: State = "waiting"
    score: float | None = None
    expected: float | None = None
    low: float | None = None
    high: float | None = None
    medal: Medal | None = None
    cost_usd: float | None = None
    seconds: float | None = None
    submission: str = ""
    message: str = ""


class Plan(Frozen):
    """What a campaign is made of, as its folder keeps it."""

    tasks: tuple[TaskDescription, ...]
    seeds: tuple[int, ...]
    config: PipelineConfig
    medals: dict[str, Medals] = {}  # by task, where thresholds are known
    at_once: int = 1
    max_budget_usd: float | None = None


class Campaign:
    """Tasks times seeds, in a folder."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        names = [file_name(task.competition_id) for task in plan.tasks]
        if len(set(names)) < len(names):
            why = "two tasks of the campaign have the same name as a folder"
            raise ConfigError(f"{why}: give them competition_ids of their own")
        self.entries = [
            Entry(task=task.competition_id, seed=seed, folder=f"{name}-seed-{seed}")
            for task, name in zip(plan.tasks, names, strict=True)
            for seed in plan.seeds
        ]

    @classmethod
    def create(
        cls, folder: Path, tasks: Iterable[TaskDescription], seeds: int, config: PipelineConfig, **more: Any
    ) -> "Campaign":
        """A new campaign, with more of a plan; seeds count up from the one that the settings name."""
        cls.refuse_begun(folder)
        found = tuple(task.model_copy(update={"data_dir": str(Path(task.data_dir).resolve())}) for task in tasks)
        counted = tuple(config.seed + number for number in range(seeds))
        campaign = cls(folder, Plan(tasks=found, seeds=counted, config=config, **more))
        campaign._keep_plan()
        return campaign

    @staticmethod
    def refuse_begun(folder: Path) -> None:
        """A campaign is begun once, and writes over nobody's files."""
        if any((folder / name).exists() for name in (PLAN, TABLE, PAGE, SENT)):
            raise ConfigError(f"{folder} holds files of a campaign already: --resume continues it, -o names another")

    @classmethod
    def open(cls, folder: Path) -> "Campaign":
        """A campaign that was begun."""
        try:
            plan = Plan.model_validate_json((folder / PLAN).read_text("utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{folder} holds no campaign: there is no {PLAN}") from None
        except ValueError as error:
            raise ConfigError(f"{folder / PLAN} cannot be read: {error}") from None
        return cls(folder, plan)

    def change(self, **changes: Any) -> None:
        """Continue with other settings or limits; what is finished stays as it is, and so do the seeds."""
        self.plan = self.plan.model_copy(update=changes)
        self._keep_plan()

    def _keep_plan(self) -> None:
        find_opener(self.plan.config)  # an executor that is not there is refused before anything is kept
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / PLAN, self.plan.model_dump_json(indent=1))

    async def run(
        self, start: Start, *, seconds: float | None = None, tell: Callable[[Entry], None] = lambda entry: None
    ) -> list[Entry]:
        """Run or resume whatever is not finished, by `start`: `run_pipeline`, or what stands in for it.

        Money left is shared evenly among the runs that are still to come. After `seconds` no further run begins.
        Scripts of all runs share the same machines.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        gate, money_in_all = asyncio.Semaphore(self.plan.at_once), self.plan.max_budget_usd
        self.entries = [self._known(entry) for entry in self.entries]
        spent = sum(entry.cost_usd or 0.0 for entry in self.entries)  # before anything is shared out
        waiting = sum(entry.state != "finished" for entry in self.entries)

        async def one(number: int) -> None:
            nonlocal spent, waiting
            async with gate:
                entry = self.entries[number]
                if entry.state != "finished":
                    late = deadline is not None and time.monotonic() >= deadline
                    money = None if money_in_all is None else (money_in_all - spent) / waiting
                    if late or (money is not None and money <= 0):
                        reason = "the campaign's time is over" if late else "the campaign's money is spent"
                        entry = entry.model_copy(update={"state": "left out", "message": reason})
                    else:
                        self.entries[number] = entry.model_copy(update={"state": "running"})
                        self._write()
                        entry = await self._one(entry, money, start, executor)
                    waiting -= 1
                    spent += entry.cost_usd or 0.0
                await asyncio.to_thread(self._report, entry)
                self.entries[number] = entry
                self._write()
                tell(entry)

        try:  # two processes would take each other's runs for failed ones, and each other's tables away
            alone = FileLock(self.folder / f"{PLAN}.lock").acquire(timeout=0)
        except Timeout:
            raise ConfigError(f"another process works on the campaign in {self.folder}") from None
        with alone:
            async with opened_executor(self.plan.config) as executor, self._placed(start, executor) as start:
                runs = [asyncio.create_task(one(number)) for number in range(len(self.entries))]
                try:
                    await asyncio.gather(*runs)
                finally:
                    for run in runs:
                        run.cancel()
                    await asyncio.gather(*runs, return_exceptions=True)
                    for number, entry in enumerate(self.entries):
                        if entry.state == "running":  # cut off: it waits to be resumed
                            self.entries[number] = entry.model_copy(update={"state": "waiting"})
                    self._write()
        return self.entries

    def _placed(self, start: Start, executor: Any) -> AbstractAsyncContextManager[Start]:
        """What starts a run: an actor of a Ray cluster, where its machines can have runs; else this process."""
        if self.plan.config.executor.partition(":")[0] != "ray":
            return nullcontext(start)
        from mle_star.integrations.hosts import hosted

        return hosted(start, executor, self.plan.config, self.folder, [task.data_dir for task in self.plan.tasks])

    def _known(self, entry: Entry) -> Entry:
        """What an earlier process has left of a run."""
        folder = RunFolder(self.folder / entry.folder)
        with suppress(OSError, ValueError):
            return self._outcome(entry, FinalResult.model_validate_json(folder.result.read_text("utf-8")))
        return entry

    async def _one(self, entry: Entry, money: float | None, start: Start, executor: Any) -> Entry:
        task = next(task for task in self.plan.tasks if task.competition_id == entry.task)
        limits = [amount for amount in (money, self.plan.config.max_budget_usd) if amount is not None]
        config = self.plan.config.model_copy(update={"seed": entry.seed, "max_budget_usd": min(limits, default=None)})
        folder = RunFolder(self.folder / entry.folder)
        resume = folder.journal.is_file() and folder.journal.stat().st_size > 0
        try:
            result = await start(task, config, run_dir=folder.root, resume=resume, executor=executor, console=False)
        except Exception as error:  # whatever is wrong with one run, the others continue
            meant = isinstance(error, MleStarError)
            why = str(error) if meant else f"{type(error).__name__}: {error}"
            logger.warning("%s: %s", entry.folder, why, exc_info=not meant)
            spent = await asyncio.to_thread(_spent, folder)  # a run without a result was paid for nevertheless
            return entry.model_copy(update={"state": "failed", "message": why, **spent})
        return self._outcome(entry, result)

    def _outcome(self, entry: Entry, result: FinalResult) -> Entry:
        expected, score = result.expected, result.final_solution.score
        medals, reached = self.plan.medals.get(entry.task), expected.score if expected else score
        bounds = {"expected": expected.score, "low": expected.low, "high": expected.high} if expected else {}
        found = {
            "state": "finished",
            "score": score,
            "cost_usd": result.total_cost_usd,
            "seconds": result.total_duration_seconds,
            "submission": result.submission_path,
            "message": result.stopped_by or "",
            "medal": medals.won(reached, result.task.metric_direction) if medals else None,
        }
        return entry.model_copy(update={**found, **bounds})

    # --- what people see --------------------------------------------------------------------------------------

    def _report(self, entry: Entry) -> None:
        """The page of one run, unless it is there; a run is worth more than its report."""
        folder = RunFolder(self.folder / entry.folder)
        written, changed = (path.stat().st_mtime if path.is_file() else 0.0 for path in (folder.report, folder.journal))
        if not changed or (entry.state == "finished" and written >= changed):
            return
        try:
            write_report(folder.root)
        except Exception as error:
            logger.warning("%s: the report could not be written: %s", entry.folder, error)

    def _write(self) -> None:
        """The table, for people and programs, the page, and the list of submissions that graders take."""
        table = pd.DataFrame([entry.model_dump() for entry in self.entries])
        write_whole(self.folder / TABLE, table.to_csv(index=False, lineterminator="\r\n"))
        write_whole(self.folder / PAGE, campaign_html(self))
        sent = (entry for entry in self.entries if entry.submission)
        lines = [{"competition_id": entry.task, "submission_path": entry.submission} for entry in sent]
        write_whole(self.folder / SENT, "".join(f"{json.dumps(line)}\n" for line in lines))


def _spent(folder: RunFolder) -> dict[str, float]:
    """Money and time of a run without a result, by its journal."""
    with suppress(JournalError, OSError):
        spent = spent_by(read_journal(folder.journal))
        return {"cost_usd": spent.usd, "seconds": spent.seconds}
    return {}


# --- the page: what a campaign came to, task by task and run by run, in the style of the report --------------


def campaign_html(campaign: Campaign) -> str:
    """The whole page; links lead to the reports that are there."""
    return render_page(
        "campaign.html.j2",
        ["report.js"],
        title=campaign.folder.resolve().name,
        plan=campaign.plan,
        entries=campaign.entries,
        states=Counter(one.state for one in campaign.entries),
        over_seeds=_over_seeds,
        medals=_medals,
        link_to=partial(_link, campaign.folder),
    )


def _over_seeds(task: TaskDescription, entries: list[Entry]) -> tuple[float | None, float | None, float | None]:
    """Of the scores of a task the best, the mean and the standard deviation."""
    known = (one.score if one.expected is None else one.expected for one in entries)
    scores = [score for score in known if score is not None]
    best = max if task.metric_direction is MetricDirection.maximize else min
    spread = statistics.stdev(scores) if len(scores) > 1 else None
    return best(scores, default=None), statistics.fmean(scores) if scores else None, spread


def _medals(entries: list[Entry]) -> str:
    won = Counter(one.medal for one in entries)
    return ", ".join(f"{won[medal]} {medal}" for medal in MEDALS if won[medal])


def _link(folder: Path, entry: Entry) -> str:
    return f"{quote(entry.folder)}/report.html" if RunFolder(folder / entry.folder).report.is_file() else ""
