"""Everything before the first phase: inputs are checked, the ledger opened, the model found, the client connected."""

import asyncio
import difflib
import importlib.metadata
import logging
import platform
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mle_star.data.brief import data_brief
from mle_star.data.layout import find_layout
from mle_star.data.leaks import leaks_in
from mle_star.data.metrics import is_own_metric, known_metric
from mle_star.data.place import RUNS, DataFolder
from mle_star.data.tables import Unsupported, table_form
from mle_star.errors import ConfigError, JournalError
from mle_star.execution import Limits, inspect_interpreter, link_input_data, prepare_path_directory
from mle_star.execution.environment import threads_per_script, weights_at_hand
from mle_star.execution.workspace import hidden_from
from mle_star.holdout.answers import Ungradable
from mle_star.holdout.holdout import HoldOut
from mle_star.knowledge import knowledge_for
from mle_star.models import Isolation, PipelineConfig, TaskDescription
from mle_star.models.texts import some_of
from mle_star.run.budget import Budget
from mle_star.run.context import Agents, RunShared
from mle_star.run.events import HoldOutPrepared, Interpreter, Notice, RunResumed, RunStarted
from mle_star.run.folder import RunFolder, new_run_folder, spent_by
from mle_star.run.journal import Journal
from mle_star.sdk import AgentClient, EnvironmentFacts, require_credentials
from mle_star.sdk.credentials import SECRET_NAME
from mle_star.sdk.definitions import ScriptShare, plain_name

if TYPE_CHECKING:
    from mle_star.sdk import CanUseTool

logger = logging.getLogger(__name__)

MODEL_GROUP = "mle_star.models"
"""Entry points that bring their own API: name = model, value = a function that gives an async context manager."""
_SHORTEST_SECRET = 12
_TEXTS = (".md", ".txt", ".yaml", ".yml")
"""Files beside the tables of a task that hold no rows."""


def check_inputs(task: TaskDescription, config: PipelineConfig) -> None:
    """Refuse what cannot work, before anything is made or paid for."""
    for given, kind in ((task, TaskDescription), (config, PipelineConfig)):
        if not isinstance(given, kind):
            raise ConfigError(f"expected a {kind.__name__}, not {type(given).__name__}")
    if not task.competition_id.strip():
        raise ConfigError("competition_id: the task needs a name")
    if not is_own_metric(task.evaluation_metric):
        known_metric(task.evaluation_metric, direction=task.metric_direction)
    if task.data_modality in config.traits.unknown_data:
        raise ConfigError(
            f"the built-in rules know tables and texts, nothing of {task.data_modality.value} data: choose a "
            "language model (--model sonnet)"
        )
    data = Path(task.data_dir)
    if not data.is_dir():
        raise ConfigError(f"data_dir: {task.data_dir} is not a directory")
    folder = DataFolder(data)
    folder.check(allow_outside_links=config.allow_outside_links)
    if next(folder.files(), None) is None:
        raise ConfigError(f"data_dir: no files in {task.data_dir}")
    read_references(config)
    if {config.split, config.time_column, config.group} != {"auto"}:
        from mle_star.holdout.split import wanted_rule

        wanted_rule(find_layout(data, task.description), config)
    if config.knowledge is not None:
        knowledge_for(task, (), config.knowledge)  # a folder that cannot be read is said now


def read_references(config: PipelineConfig) -> list[str]:
    """The texts that the final script is compared with (REQ-FN-030)."""
    texts = []
    for name in config.reference_files:
        try:
            texts.append(Path(name).read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise ConfigError(f"reference_files: {name} cannot be read: {error.strerror}") from error
    return texts


def secret_values(environ: Mapping[str, str]) -> list[str]:
    """The values of credentials in the environment; short ones could be ordinary words."""
    return [value for name, value in environ.items() if SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET]


# --- folder and ledger -------------------------------------------------------------------------------------


def choose_folder(task: TaskDescription, config: PipelineConfig, run_dir: Path | str | None) -> RunFolder:
    """The folder of the run: the given one, or a new one below `work_dir`."""
    if run_dir is not None:
        return RunFolder(Path(run_dir).absolute())
    return RunFolder(new_run_folder(Path(config.work_dir).absolute() / RUNS, task.competition_id))


def first_event(
    task: TaskDescription, config: PipelineConfig, hardware: dict[str, Any], isolation: Isolation
) -> RunStarted:
    """What every journal begins with; the data folder as it can be found from anywhere."""
    task = task.model_copy(update={"data_dir": str(Path(task.data_dir).resolve())})
    versions = {"python": platform.python_version(), "system": platform.platform()}
    for name in ("mle-star", "claude-agent-sdk"):
        with suppress(importlib.metadata.PackageNotFoundError):  # a checkout need not be installed
            versions[name] = importlib.metadata.version(name)
    python = inspect_interpreter(config.python)
    return RunStarted(
        run_id=uuid.uuid4().hex[:12],
        task=task,
        config=config,
        model=config.model,
        versions=versions,
        interpreter=Interpreter(version=python.version, packages=python.packages),
        isolation=isolation,
        hardware=hardware,
    )


def open_budget(journal: Journal, first: RunStarted, *, resume: bool) -> Budget:
    """The budget, with everything charged that the journal holds; records that the run begins, or continues."""
    if journal.started is None and (any(journal.events) or resume):
        raise JournalError(f"{journal.path}, line 1: a run's first event is missing; start the run again")
    spent, before = spent_by(journal.events), journal.config
    if journal.started is None:
        journal.record(first)
    elif resume:
        python = first.interpreter if first.config.python != before.python else None
        changes: dict[str, Any] = {"config": first.config if first.config != before else None, "interpreter": python}
        journal.record(RunResumed(spent_cost_usd=spent.usd, spent_seconds=spent.seconds, **changes))
        for message in _changed_since(journal, first):
            journal.record(Notice(level="warning", message=message))
    if journal.failure is not None:  # a run whose first line cannot be written does not begin
        raise journal.failure
    return Budget(first.config, spent=spent, clock=asyncio.get_running_loop().time)  # phases are waited for by it


def _changed_since(journal: Journal, now: RunStarted) -> Iterator[str]:
    """What the owner of a resumed run should know of the program and the packages that it began with."""
    begun, ours = ("" if one is None else one.versions.get("mle-star", "") for one in (journal.started, now))
    if begun and ours and begun != ours:
        yield (
            f"this run was begun by mle-star {begun}, this is {ours}: steps that it asks for in other words are done, "
            "and paid for, again"
        )
    changes = _changes(journal.interpreter, now.interpreter)
    if changes:
        yield (
            f"the Python of the scripts has changed since the run began ({some_of(changes)}): what is recorded counts, "
            "and agents are told of what there was; `mle-star run --from` with this run does it again"
        )


def _changes(before: Interpreter | None, now: Interpreter | None) -> list[str]:
    """What of a Python, and of what it can import, is different now."""
    if before is None or now is None:
        return []
    old, new = ({"Python": one.version, **one.packages} for one in (before, now))
    names = sorted({*old, *new}, key=lambda name: (name != "Python", name.lower()))
    return [f"{name} {_change(old.get(name), new.get(name))}" for name in names if old.get(name) != new.get(name)]


def _change(old: str | None, new: str | None) -> str:
    return "is gone" if new is None else f"{new} is new" if old is None else f"{new} instead of {old}"


def prepare_holdout(task: TaskDescription, config: PipelineConfig, run_dir: Path, journal: Journal) -> HoldOut | None:
    """The holdout that scripts are scored by, or None: then they score themselves, and the journal says why."""
    if config.scoring == "self_reported":
        return None
    is_new, holdout = not any(isinstance(event, HoldOutPrepared) for event in journal.events), None
    try:
        made = HoldOut.prepare(task, config, run_dir)
        prepared, holdout = _prepared(made), made
    except (Unsupported, Ungradable, OSError, UnicodeError) as error:
        prepared = HoldOutPrepared(step="run", why_not=str(error))
    except Exception as error:  # files come in more shapes than anybody knows: none of them ends a run
        logger.exception("no rows can be hidden")
        prepared = HoldOutPrepared(step="run", why_not=f"{type(error).__name__}: {error}")
    journal.record(prepared)
    if is_new:
        hints = () if holdout is None else holdout.scorer.data.rule.hints
        folder = Path(task.data_dir) if holdout is None else holdout.seen
        for message in (*hints, *leaks_in(folder, task.description)):
            journal.record(Notice(step="run", level="warning", message=message))
    return holdout


def example_data(task: TaskDescription, run_dir: Path, holdout: HoldOut | None) -> Path | None:
    """All data of a task without a test, with a few rows to predict; None where there is a test, or nobody can tell."""
    folder, target = Path(task.data_dir).resolve(), run_dir / "views" / "example"
    try:
        if holdout is None:
            layout = find_layout(folder, task.description)
            others = [Path(name) for name, _ in DataFolder(folder, ours=run_dir).files()]
            if layout.test or layout.sample or any(not table_form(one) and one.suffix not in _TEXTS for one in others):
                return None
        from mle_star.holdout.views import Data

        data = Data.read(layout, check=False) if holdout is None else holdout.scorer.data
        if data.test_rows:
            return None
        data.write_example(target)
    except (ConfigError, Unsupported, OSError, UnicodeError) as error:
        logger.info("no rows are shown as an example: %s", error)
        return None
    return target


def _prepared(holdout: HoldOut) -> HoldOutPrepared:
    """What the journal says of a hold-out."""
    rule, split = holdout.scorer.data.rule, holdout.split
    ahead = f"; scores are for {holdout.horizon}" if rule.kind == "time" and holdout.horizon else ""
    return HoldOutPrepared(
        step="run",
        rule=f"{rule.kind}: {rule.reason}{ahead}",
        views=holdout.search_views,
        digest=holdout.digest,
        search_rows=len(holdout.search_rows),
        select_rows=len({*split.select}.intersection(chain(*split.views[: holdout.search_views]))),
        baseline=holdout.baseline(),
        train_rows=holdout.scorer.data.train.count,
        not_shown=sorted(holdout.scorer.data.label_files),
    )


def work_dir(run_dir: Path, task: TaskDescription, label: str) -> Path:
    """The working directory of `label`, with the data in its `input/`: never the run folder, whose files are ours."""
    path = Path(prepare_path_directory(run_dir / "work", label))
    link_input_data(task.data_dir, str(path), ours=run_dir)
    return path


# --- the model ---------------------------------------------------------------------------------------------


def served_model(name: str) -> Callable[[], AbstractAsyncContextManager[Any]] | None:
    """Who brings the API of a model along: the embedded engineer does, and a plugin may."""
    served = importlib.metadata.entry_points(group=MODEL_GROUP)
    return served[name].load() if name in served.names else None


def check_credentials(config: PipelineConfig, base_url: str | None) -> None:
    """Raise `CredentialError` when no call could be authenticated; a model that brings its own API needs nothing."""
    served = importlib.metadata.entry_points(group=MODEL_GROUP).names
    if base_url is not None or config.model in served:
        return
    near = difflib.get_close_matches(config.model.lower(), served, n=1, cutoff=0.8)
    if near:
        raise ConfigError(f"there is no model {config.model!r}; did you mean {near[0]}?")
    require_credentials(config)


def gather_facts(
    task: TaskDescription,
    config: PipelineConfig,
    hardware: dict[str, Any],
    python: Interpreter | None = None,
    scored_by_answers: bool = False,
) -> EnvironmentFacts:
    """All that every agent is told of data, machine and packages; made once, the same for every call of a run.

    Where scripts run elsewhere, `hardware` says what they find there; else it is what this machine has. `python` is
    theirs as it was when the run began.
    """
    python, parts = python or inspect_interpreter(config.python), config.briefing
    packages = {plain_name(name) for name in python.packages}
    shows_data = "data" in parts and not config.traits.is_embedded
    share = ScriptShare(
        cores=hardware.get("script_cores") or threads_per_script(config),
        memory_gb=hardware.get("script_memory_gb") or Limits.of(config).memory_bytes / 1e9,
        network=config.allow_network,
        weights=tuple(weights_at_hand(config)),
        keeps_work=config.keep_work and config.executor == "local",
    )
    return EnvironmentFacts(
        gpu=hardware,
        **{name: hardware[name] for name in ("cpu_cores", "memory_gb") if name in hardware},
        python_version=python.version,
        packages=python.packages,
        scored_by_answers=scored_by_answers,
        brief=_brief(task, config) if shows_data else "",
        knowledge=knowledge_for(task, packages, config.knowledge) if "knowledge" in parts else "",
        share=share if "limits" in parts else None,
    )


def _brief(task: TaskDescription, config: PipelineConfig) -> str:
    """What agents are told of the data, and of what in them may tell the target."""
    folder = Path(task.data_dir)
    leaks = leaks_in(folder, task.description) if config.scoring == "auto" else []
    return "\n".join([data_brief(folder, task.description), *(f"Careful: {words}." for words in leaks)])


def check_model(task: TaskDescription, config: PipelineConfig, base_url: str | None) -> None:
    """Let a model that brings its own API say what it cannot do, before anything runs."""
    refusal = getattr(served_model(config.model), "refusal", None) if base_url is None else None
    if refusal is not None and (why := refusal(task.evaluation_metric, Path(task.data_dir), task.description)):
        raise ConfigError(why)


@asynccontextmanager
async def connected(
    task: TaskDescription,
    config: PipelineConfig,
    journal: Journal,
    budget: Budget,
    hardware: dict[str, Any],
    base_url: str | None,
    can_use_tool: "CanUseTool | None",
    shared: RunShared,
) -> AsyncIterator[Agents]:
    """The agents of a run, for as long as it lasts: the SDK client on the model's API.

    They are told of the machine that there is now, and of the packages with which the run began: a reply that was paid
    for counts. No shell of theirs can read records, nor the whole data where they are shown a part.
    """
    async with AsyncExitStack() as stack:
        serve = served_model(config.model) if base_url is None else None
        if serve is not None:
            base_url = (await stack.enter_async_context(serve())).base_url
        scored = shared.holdout is not None
        facts = await asyncio.to_thread(gather_facts, task, config, hardware, journal.interpreter, scored)
        run_dir = journal.path.parent
        client = AgentClient(
            task,
            config,
            facts,
            work_dir=run_dir / "work",
            base_url=base_url,
            budget=budget,
            notify=lambda message: journal.record(Notice(level="warning", message=message)),
            can_use_tool=can_use_tool,
            hidden=hidden_from(run_dir, shared.whole, DataFolder(task.data_dir)),
        )
        await stack.enter_async_context(client)
        if (look_ahead := getattr(serve, "look_ahead", None)) is not None:  # while the first process of the CLI starts
            asyncio.get_running_loop().run_in_executor(None, look_ahead, Path(task.data_dir), task.description)
        yield client
