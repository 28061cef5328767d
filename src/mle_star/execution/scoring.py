"""What the scripts of a run see (all data or, where they take long, a sample first), and how their answers score."""

import asyncio
import logging
import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from typing import cast

from mle_star.data.layout import find_layout
from mle_star.data.place import DataFolder, Sample
from mle_star.data.tables import Unsupported
from mle_star.errors import ConfigError
from mle_star.execution.environment import inspect_interpreter
from mle_star.execution.outcome import failed
from mle_star.holdout.answers import Answers, Ungradable, read_answers
from mle_star.holdout.holdout import HoldOut
from mle_star.method.codeblocks import shape_of
from mle_star.method.scores import best_first, best_of
from mle_star.models import EvaluationResult, Measure, ScoreChange, SolutionScript, is_improvement
from mle_star.models.texts import digest_of
from mle_star.run.context import RunContext, current_run
from mle_star.run.ledger import ScriptRun
from mle_star.run.timing import limit_in_run

logger = logging.getLogger("mle_star.execution")

LARGE_ROWS = 50_000
"""From so many rows on, scripts are taken to be slow before any was measured."""
QUICK_SECONDS, SLOW_SECONDS = 20.0, 60.0
"""What a solution takes where a sample cannot pay, and where it pays for any table that is not small."""
START_SECONDS = 3.0
"""About what a script takes before it looks at a row."""
FAR_TOO_SLOW = 2.0
SAMPLE_SHARE, FEWEST_SAMPLED = 0.1, 5000
"""Tables with fewer rows are never sampled."""
SMALL_FILE, MOST_FILES, MOST_COPIED = 2**19, 5000, 2**30
MOST_CLASSES, EACH_CLASS = 200, 10
"""So many rows of each class are in the sample, or all there are: a split by class must work as it does on all rows."""


def holdout_of(run: RunContext) -> HoldOut | None:
    """How the scripts of a run are scored by hidden rows; None: by what they print."""
    return cast("HoldOut | None", run.shared.holdout)


def data_of(run: RunContext) -> DataFolder:
    """The data of a run, which may lie around the run's own folder."""
    return DataFolder(run.task.data_dir, ours=run.run_dir)


def final_data_of(run: RunContext) -> DataFolder:
    """The data of its final scripts: where rows are hidden in the search, these see all of them."""
    return whole_data(run) if run.shared.example is None else DataFolder(run.shared.example, ours=run.run_dir)


def whole_data(run: RunContext) -> DataFolder:
    """The data of the user, by which what is fitted is known again."""
    holdout = holdout_of(run)
    folder = run.shared.whole or run.task.data_dir if holdout is None else holdout.scorer.data.layout.folder
    return DataFolder(folder, ours=run.run_dir)


async def surroundings_digest(run: RunContext) -> str:
    """A digest of data, rows hidden in them, interpreter, packages and seed, taken once per run."""
    scripts, holdout = run.shared.scripts, holdout_of(run)
    async with scripts.locks["surroundings"]:
        if not scripts.surroundings:
            data = await asyncio.to_thread((data_of if holdout is None else whole_data)(run).digest)
            python = run.journal.interpreter
            if python is None:
                python = await asyncio.to_thread(inspect_interpreter, run.config.python)
            packages = python.model_dump_json(include={"version", "packages"})
            hidden = "" if holdout is None else holdout.digest
            scripts.surroundings = digest_of(data, packages, str(run.config.seed), hidden)
    return scripts.surroundings


# --- the smoke test ------------------------------------------------------------------------------------------


async def sample_for(run: RunContext, script: str) -> Sample | None:
    """The sample, where a new `script` should run on it first; made once a run.

    Scripts of the embedded engineer watch the clock and fail seldom: with them the first whole answer comes first.
    """
    if run.config.sample_first == "off" or run.config.traits.is_embedded:
        return None
    scripts = run.shared.scripts
    async with scripts.locks["sample"]:
        if not scripts.sampled:
            scripts.sampled = True
            try:
                known = data_of(run), run.run_dir / "views", run.task.description, run.config.seed
                scripts.sample = await asyncio.to_thread(write_sample, *known)
            except (Unsupported, ConfigError, OSError, ValueError) as error:
                logger.info("no sample of the rows can be made: %s", error)
    sample = scripts.sample
    return sample if sample is not None and run.decide("sample", partial(_pays, run, sample, script)) else None


def _pays(run: RunContext, sample: Sample, script: str) -> bool:
    """By what the current solution takes; for candidates, which run side by side, by the table alone.

    Where scripts are stopped early in any case, the first whole answer comes first. A script that differs from one that
    worked in numbers alone will work.
    """
    if limit_in_run(run) < SLOW_SECONDS:
        return False
    first = run.phase == "phase1" and any(part.startswith("candidate-") for part in run.parts)
    seconds = None if first else run.solution_seconds
    if seconds is None:
        return sample.of >= LARGE_ROWS
    if seconds < (QUICK_SECONDS if sample.of >= LARGE_ROWS else SLOW_SECONDS):
        return False
    return shape_of(script) not in {shape_of(run.ledger.text(one.script_id)) for one in run.ledger.solutions()}


def on_sample(run: RunContext, result: EvaluationResult) -> EvaluationResult:
    """What a run on the sample says of a script: whether it works. It says nothing of its score.

    No score line, where scripts score themselves, and a time that would exceed the limit by far count as failures.
    """
    sample, problem = run.shared.scripts.sample, ""
    if sample is not None and not result.is_error:
        limit, took = limit_in_run(run), result.duration_seconds
        more = min(sample.of, max(run.config.subsample_limit, sample.rows)) / sample.rows  # rows it may learn from
        whole = max(took, START_SECONDS + (took - START_SECONDS) * more)
        logger.info("%.1f s on %d of %d rows: about %.0f s on all", took, sample.rows, sample.of, whole)
        if result.score is None and run.shared.holdout is None:
            missing = "no line `Final Validation Performance: <score>` was printed"
            problem = f"ValueError: {result.score_problem or missing}"
        elif whole > FAR_TOO_SLOW * limit:
            problem = (
                f"TimeoutError: the script takes {took:.0f} s on {sample.rows} of {sample.of} rows, "
                f"so about {whole:.0f} s on all of them; it is stopped after {limit:.0f} s"
            )
    result = failed(result, problem) if problem else result
    return result.model_copy(update={"score": None, "score_problem": ""})


def write_sample(data: DataFolder, target: Path, description: str, seed: int) -> Sample | None:
    """Write the sample below `target`, the same for the same data and seed; None where the table is small.

    `Unsupported` and `ConfigError` say what else stands in the way.
    """
    files = list(islice(data.files(), MOST_FILES + 1))
    if len(files) > MOST_FILES or max((status.st_size for _, status in files), default=0) < SMALL_FILE:
        return None
    layout = find_layout(data.root, description)
    if layout.train.rows < FEWEST_SAMPLED:
        return None
    from mle_star.data.rows import read_rows
    from mle_star.holdout.views import link_rest

    if not data.is_whole:
        raise Unsupported("other things lie among the data")
    if layout.labels is not None:
        raise Unsupported("the labels lie in a table of their own")
    target.mkdir(parents=True, exist_ok=True)
    others = sum(status.st_size for name, status in files if name != layout.train.name)
    if others > MOST_COPIED and target.stat().st_dev != data.root.stat().st_dev:
        raise Unsupported("the other files lie on another disk and are too large to be copied")
    train = read_rows(layout.train, data.root, layout.target.names)
    places = _choose([train.column(name) for name in layout.target.names], train.count, seed)
    folder = target / f"sample-{len(places)}"
    link_rest(data.root, folder, {layout.train.name})
    train.write(folder / layout.train.name, places)
    return Sample(folder, len(places), train.count)


def _choose(targets: Sequence[Sequence[str]], count: int, seed: int) -> list[int]:
    """A tenth of the rows by chance, in their order, with some of every class."""
    chosen = set(random.Random(seed).sample(range(count), max(1, int(SAMPLE_SHARE * count))))
    for values in targets:
        if len(set(values)) > MOST_CLASSES:
            continue
        have = Counter(values[place] for place in chosen)
        for place, value in enumerate(values):
            if have[value] < EACH_CLASS and place not in chosen:
                chosen.add(place)
                have[value] += 1
    return sorted(chosen)


# --- predictions: what scripts said about hidden and test rows, read back from the run's folder ----------------


def scored_here(run: RunContext) -> list[ScriptRun]:
    """The solutions of this run whose answers were scored, on the data and with the packages of now."""
    return run.ledger.scored(run.shared.scripts.surroundings)


def answered_here(run: RunContext) -> list[ScriptRun]:
    """The same, with what they answered on further views once the search was over."""
    return run.ledger.answered(run.shared.scripts.surroundings)


def answers_of(holdout: HoldOut, run_dir: Path, event: ScriptRun) -> Answers | None:
    """What a script said on all of its views; None where that is gone."""
    with suppress(OSError, Ungradable):
        return _read(holdout, run_dir, event.result.answers)
    return None


def _read(holdout: HoldOut, run_dir: Path, paths: Iterable[str]) -> Answers:
    return holdout.read([run_dir / path for path in paths], holdout.views)


def read_predictions(run: RunContext, holdout: HoldOut, only: Collection[str] | None = None) -> dict[str, Answers]:
    """The answers by the script that gave them, as far as they can be scored; of all scripts, or of a few only."""
    predictions: dict[str, Answers] = {}
    for one in answered_here(run):
        script = run.ledger.text(one.script_id)
        wanted = script not in predictions and (only is None or script in only)
        if wanted and (answers := answers_of(holdout, run.run_dir, one)) is not None:
            predictions[script] = answers
    return predictions


def blend_answers(run: RunContext, script: str) -> Path:
    """Where the answers of a blend to the real test lie, by the script that does again what it did."""
    return run.run_dir / "answers" / f"blend-{digest_of(script)[:12]}.real.csv"


def searched_submission(run: RunContext, scored: SolutionScript) -> Path | None:
    """What a scored script, or the blend, said of the real test in the search; None where scripts score themselves."""
    if run.shared.holdout is None:
        return None
    digest = digest_of(scored.content)
    made = [one for one in scored_here(run) if one.script_id == digest]
    kept = [run.run_dir / one.result.submission for one in made if one.result.submission is not None]
    found = next(iter(kept if made else [blend_answers(run, scored.content)]), None)
    return found if found is not None and found.is_file() else None


def disagreement(run: RunContext, scored: SolutionScript, submission: Path) -> str:
    """Why a submission does not hold the answers of the script that was scored, or an empty text."""
    holdout = holdout_of(run)
    predictions = {} if holdout is None else read_predictions(run, holdout, {scored.content})
    if holdout is None or scored.content not in predictions:
        return ""
    try:
        answers = read_answers(holdout.scorer.data, submission, holdout.scorer.data.real_view())
        agreed = holdout.scorer.agreement(answers.real, predictions[scored.content].real)
    except (OSError, Ungradable) as error:
        return str(error)
    if agreed >= run.config.equivalence_bound:
        return ""
    return f"its answers agree with those of the scored script by {agreed:.2f} only"


# --- comparison ----------------------------------------------------------------------------------------------


def incumbent(holdout: HoldOut, scored: Iterable[ScriptRun], views: int) -> ScriptRun | None:
    """The best script that ran on at least so many views."""
    able = [event for event in scored if len(event.result.answers) >= views]
    return best_of(able, lambda event: event.score, holdout.scorer.metric.direction)


def compared(
    holdout: HoldOut,
    run_dir: Path,
    scored: Sequence[ScriptRun],
    paths: Sequence[str],
    printed: float | None = None,
    leaking: Collection[str] = (),
) -> Measure:
    """The score of the answers in these files on the rows of the first `scored` script, as all scores of a search.

    What answers to fewer views is compared with the others on the rows that both have. What answers to more has the
    others for the final selection.
    """
    answers = _read(holdout, run_dir, paths)
    common = len(scored[0].result.answers) if scored else len(paths)
    measure = holdout.measure(answers, holdout.compared_rows(common), printed=printed)
    if len(paths) >= common:
        return measure
    clean = [one for one in scored if one.script_id not in leaking and len(one.result.answers) >= len(paths)]
    return _ranked(holdout, run_dir, clean, answers, measure, common)


def _ranked(
    holdout: HoldOut, run_dir: Path, rivals: Sequence[ScriptRun], answers: Answers, measure: Measure, common: int
) -> Measure:
    """The measure of answers to too few rows, with a number that ranks them among the scores of others.

    It is as far behind the score of the incumbent as the answers are on the rows that both have. It is always worse
    than that, and worse than the score of whatever they do not beat on these rows.
    """
    metric = holdout.scorer.metric
    best, worse = incumbent(holdout, rivals, common), -math.inf if metric.higher_is_better else math.inf
    reference = None if best is None else answers_of(holdout, run_dir, best)
    if best is None or best.score is None or reference is None:
        return measure.model_copy(update={"estimated": True})
    rows = [row for row in holdout.search_rows if row in answers.hidden and row in reference.hidden]
    ours = holdout.figure(answers, rows)
    shifted = best.score + ours - holdout.figure(reference, rows)
    number = min(max(shifted, metric.low), metric.high)
    for rival in best_first(rivals, lambda one: one.score, metric.direction):
        assert rival.score is not None
        if is_improvement(rival.score, number, metric.direction):
            continue
        theirs = None if rival is best else answers_of(holdout, run_dir, rival)
        if theirs is None or not is_improvement(ours, holdout.figure(theirs, rows), metric.direction):
            number = math.nextafter(rival.score, worse)
    ends = (None if end is None else end + number - measure.score for end in (measure.low, measure.high))
    low, high = (None if end is None else min(max(end, metric.low), metric.high) for end in ends)
    return measure.model_copy(update={"score": number, "low": low, "high": high, "estimated": True})


async def against(new: SolutionScript | None, old: SolutionScript | None) -> ScoreChange | None:
    """A script against the one that it is to beat, where the harness has scored both."""
    holdout = holdout_of(current_run())
    if new is None or old is None or new.score is None or holdout is None:
        return None
    known = await asyncio.to_thread(read_predictions, current_run(), holdout, (new.content, old.content))
    ours, theirs = known.get(new.content), known.get(old.content)
    if ours is None or theirs is None:
        return None
    return await asyncio.to_thread(holdout.compare, ours, theirs, holdout.search_rows)


async def overlaps(scripts: Sequence[str]) -> list[tuple[int, int, str]]:
    """By the places of two scripts, how far they err alike on hidden rows; of those that the harness has scored."""
    run = current_run()
    holdout = holdout_of(run) if "best" in run.config.briefing else None
    return [] if holdout is None else await asyncio.to_thread(_overlaps, run, holdout, scripts)


def _overlaps(run: RunContext, holdout: HoldOut, scripts: Sequence[str]) -> list[tuple[int, int, str]]:
    from mle_star.holdout.explain import overlap

    answers, found = read_predictions(run, holdout, scripts), list[tuple[int, int, str]]()
    for (a, one), (b, other) in combinations(enumerate(scripts), 2):
        if one != other and one in answers and other in answers:
            with suppress(Ungradable):
                words = overlap(holdout.scorer, answers[one], answers[other], holdout.search_rows)
                found += [(a, b, words)] if words else []
    return found


def views_to_catch_up(run: RunContext, holdout: HoldOut, answers: Sequence[str]) -> range:
    """The views that a script still has to run on before it may be the best, if it is ahead on the rows that it has."""
    scored = scored_here(run)
    missing = range(len(answers), len(scored[0].result.answers) if scored else 0)
    clean = [one for one in scored if one.script_id not in run.ledger.leaking]
    rival = incumbent(holdout, clean, missing.stop) if missing else None
    if rival is None:
        return range(0)
    with suppress(OSError, Ungradable):
        known = (_read(holdout, run.run_dir, paths) for paths in (answers, rival.result.answers))
        ours, best = (holdout.figure(one, holdout.compared_rows(len(answers))) for one in known)
        if is_improvement(ours, best, holdout.scorer.metric.direction):
            return missing
    return range(0)
