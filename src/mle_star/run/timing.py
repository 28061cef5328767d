"""The one model of time: every limit in seconds is computed here, from three things.

- The clock (`Budget`) knows how much time has passed, when the running phase ends, and what is kept for finalization.
- The measurements (`Ledger`) are how long a call takes, and how long the current solution runs (`solution_seconds`).
- The plan (`critical_steps`) is how many calls and scripts of each phase come one after another.

The sections below follow each other: the plan, the limit of a script, what still fits, what is kept for later.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from mle_star.models import PipelineConfig
from mle_star.models.enums import PhaseName
from mle_star.models.texts import plural
from mle_star.run.budget import PhaseTimeExceeded
from mle_star.run.context import RunContext
from mle_star.run.events import Notice, ScriptPurpose

SHORTEST_LIMIT = 120.0
"""Every script may take two minutes, if its phase has the time."""
TIMES_MEASURED = 10.0
"""A new script may take ten times as long as the solution that it starts from."""
SHARE_OF_LEFT, SHARE_WHERE_USED = 0.5, 0.125
"""No script may take more than half of what is left of its phase. With `more_steps`, no refinement may take more than
an eighth of it."""
ALWAYS_ENOUGH = 2.0
"""Twice what the solution takes is allowed in any case, until the phase ends."""
SHARE_OF_FIRST = 0.75
"""Before anything was measured, a script may take three quarters of what is left of its phase at most."""
FIRST_SHARE_OF_LEFT, FIRST_LIMIT = 0.2, 1800.0
"""It has its even share then, or a fifth of what is left, up to half an hour, where that is more."""
ABLATION_RUNS = 4
"""An ablation study runs the solution and up to three variants of it."""
ABLATION_SECONDS = 600.0
"""In a long run, every study may take ten minutes."""
FIRST_SECONDS, FIRST_SHARE = 3.0, 0.02
"""The first candidate should answer within so many seconds, or this share of the run's time. Better ones follow."""
RERUN = 1.25
"""A scored script runs again only where so many times its measured time is left. It then learns from more rows."""
KEPT, KEPT_FOR_MODEL = 1.5, 2 * RERUN
"""For this last run, so many times what the script took is kept. The final selection comes before it, and takes time.
Without a test, more is kept: new rows need a fitted model, and a blend of two scripts takes twice as long."""
GROWTH = 2.0
"""A refined script may take so many times as long as a candidate. With `more_steps`, `fits` checks that instead."""
LEAST_SHARE, LEAST_SECONDS = 0.05, 10.0
"""A script is told to take at least this share of the run's time, up to so many seconds. Less would go into loading
libraries. An ensemble trains the models of several scripts, and is told twice that."""
STUDY_RUNS, STUDY_CALLS, STUDY_SHARE = 3.0, 2.0, 0.2
"""A study takes about so many runs of the solution, and so many calls. All studies of a path may take this share of the
time of Phase 2: less where paths wait for each other's scripts, and half of it where one script runs at a time."""
ATTEMPT_CALLS, LONG_CALLS = 2.0, 4.0
"""An attempt takes two calls. Calls count as slow where four of them take as long as a run of the solution."""
ENSEMBLE_TIMES = 1.2
"""Phase 3 has no more time than so many times what its rounds should take."""
LAST_CALLS, LEAST_CALLS = 6.0, 4.0
"""Finalization is given the time of a last run (of one for each path, where they may be blended) and so many calls. The
second figure is for the calls of one run, the least that is kept."""
FEWER_PATHS, LEAST_ATTEMPTS = "fewer-paths", 3
"""The name of the decision to do with one path less, and the fewest attempts on each block."""
LAST_SECONDS = 240.0
"""Scripts that use all of the time that they are told have up to so many seconds for their last run."""
LAST_TIMES = 2.0
"""That time is no more than so many times what the slowest took, where rows are few or there is no test. With few rows,
more time does not help. Without a test, more views of the best script come first, for the expected score."""
LAST_SHARE = 0.8
"""The last script is told this share of its limit."""
VIEWS_SHARE = 0.1
"""At the end, the best script runs on views that it has not answered. Up to this share of the time is kept for that.
With `more_steps` nothing is kept: the search uses whatever the submission does not need."""
SHARE = "MLE_STAR_SHARE"
"""The environment variable that tells a script how long it should take."""


# --- the plan ----------------------------------------------------------------------------------------------


def critical_steps(config: PipelineConfig) -> dict[str, tuple[float, float]]:
    """By phase, how many calls and script runs come one after another. What runs side by side counts once."""
    m, t, k, paths, rounds = config.sizes
    slots = config.max_concurrent_scripts or paths
    at_once = min(config.max_concurrent_paths or paths, paths)
    waves = math.ceil(paths / at_once)
    critical: dict[str, tuple[float, float]] = {
        "phase1": (3 + 2 * (m - 1) + 2, math.ceil(m / slots) + (m - 1)),
        "phase2": (waves * t * (3 + 3 * k - 1), waves * max(1.0, at_once / slots) * t * (1 + k)),
        "phase3": (3 * rounds, rounds),
        "finalization": (4, 1),
    }
    return {phase: steps for phase, steps in critical.items() if paths > 1 or phase != "phase3"}


def plan_seconds(
    config: PipelineConfig, call: float, script: float, *, left: Mapping[str, float] | None = None, views: int = 1
) -> float:
    """How long the plan takes, if each `call` and each `script` takes so many seconds.

    `left` is the share of each phase that is still to come. Scripts that are scored run on so many `views` of the rows.
    """
    total = 0.0
    for phase, (calls, scripts) in critical_steps(config).items():
        seconds = calls * call + scripts * script * (1 if phase == "finalization" else views)
        total += seconds if left is None else seconds * left.get(phase, 0.0)
    return total


def seconds_for(run: RunContext, *, calls: float = 0.0, scripts: float = 0.0, studies: float = 0.0) -> float:
    """How long so many calls and scripts take one after another, as measured so far.

    Each of the `scripts` takes as long as the current solution, on as many views. Runs in `studies` use one view.
    """
    once = run.solution_seconds or 0.0
    return calls * run.ledger.call_seconds + scripts * once * run.views_in_turn + studies * once


# --- how long a script may take, and what it is told -------------------------------------------------------


def script_limit(
    *, left: float, measured: float | None = None, even_share: float = 0.0, explicit: float | None = None
) -> float:
    """Seconds that a script may take. Its phase has `left` seconds, and the current solution took `measured`.

    `even_share` is the time of the phase divided by the scripts that are planned for it. An `explicit` limit replaces
    all of this, but the phase still ends when it ends.
    """
    if explicit is not None:
        return min(explicit, left)
    if measured is None:
        return min(max(SHORTEST_LIMIT, even_share, min(left * FIRST_SHARE_OF_LEFT, FIRST_LIMIT)), left * SHARE_OF_FIRST)
    wanted = max(SHORTEST_LIMIT, even_share, TIMES_MEASURED * measured)
    return min(wanted, max(left * SHARE_OF_LEFT, ALWAYS_ENOUGH * measured), left)


def ablation_limit(
    config: PipelineConfig, *, left: float, measured: float | None = None, explicit: float | None = None
) -> float:
    """Seconds that an ablation study may take: twice what its variants need, if each takes what was `measured`.

    It has at least what the specification says: half of an even share of each step, up to ten minutes. But it has no
    more than half of what is left. To the letter it has what the specification says; else an `explicit` limit counts.
    """
    specified = min(config.time_limit_seconds / (config.outer_loop_steps * 2), ABLATION_SECONDS)
    known = specified if config.letter else explicit
    if known is not None:
        return min(known, left)
    return min(max(specified, ALWAYS_ENOUGH * ABLATION_RUNS * (measured or 0.0)), left * SHARE_OF_LEFT)


def limit_in_run(run: RunContext, purpose: ScriptPurpose = "solution", explicit: float | None = None) -> float:
    """Seconds that a script may take if it begins now. An `explicit` limit replaces that of the settings.

    After a script was stopped at its limit, the repaired one has at least as long, if its phase has the time.
    """
    left, measured = run.seconds_left, run.solution_seconds
    explicit = explicit or run.config.script_timeout_seconds
    if purpose == "ablation":
        return ablation_limit(run.config, left=left, measured=measured, explicit=explicit)
    limit = script_limit(left=left, measured=measured, even_share=_even_share(run), explicit=explicit)
    if run.config.more_steps and run.phase == "phase2" and not explicit:
        limit = min(limit, max(SHORTEST_LIMIT, ALWAYS_ENOUGH * (measured or left), SHARE_WHERE_USED * left))
    place = "/".join(run.parts)
    before = [one.seconds for one in run.ledger.ran(place) if one.place == place and one.result.timed_out]
    return limit if explicit or not before else min(max(limit, *before), left)


def share_in_run(run: RunContext, limit: float, views: int = 1) -> float:
    """Seconds that a script should take, so that all planned scripts of its phase have a turn: told, not enforced."""
    return min(limit, _even_share(run) or limit / 2) / max(views, 1)


def affordable_views(run: RunContext, seconds: float) -> int:
    """On how many views a script may run that takes so many seconds on each: as many as fit into its share of time.

    With `more_steps`, the further views together take no longer than a call, or a few seconds. Every later script that
    is better must run on as many.
    """
    seconds = max(seconds, 0.1)
    views, room = int(share_in_run(run, limit_in_run(run)) / seconds), run.ledger.call_seconds
    return min(views, 1 + int(max(room, LEAST_SECONDS) / seconds)) if run.config.more_steps else views


def _even_share(run: RunContext) -> float:
    """The time of the running phase, divided by its scripts. Before one was measured, only candidates count."""
    scripts = critical_steps(run.config).get(run.phase, (0.0, 1.0))[1]
    if run.solution_seconds is None:
        scripts -= run.config.num_retrieved_models - 1
    return run.budget.even_share(scripts)


def suggested_seconds(run: RunContext, limit: float, views: int = 1) -> float:
    """Seconds that a script is told to take. The first candidate is told less, so that there is an answer soon."""
    share, whole = share_in_run(run, limit, views), run.config.time_limit_seconds
    if run.phase == "finalization":  # what is submitted has as long as what was scored, and all that is left
        return min(limit, max([LAST_SHARE * limit / run.shared.last_scripts, *run.ledger.best_seconds()]))
    if "candidate-0" in run.parts:
        return min(share, max(FIRST_SECONDS, FIRST_SHARE * whole))
    least = min(LEAST_SHARE * whole, LEAST_SECONDS) * (2 if run.phase == "phase3" else 1)
    return max(share, min(least, limit / 2))


# --- what still fits ---------------------------------------------------------------------------------------


def fits(run: RunContext, *, calls: float = 0.0, scripts: float = 1.0, studies: float = 0.0) -> bool:
    """Is there time in this phase for so many calls and for the script that they make? To the letter it is always so.

    With `more_steps`, time for one more run of the path's best script is kept: it may be slower than in Phase 1.
    """
    needed, left = seconds_for(run, calls=calls, scripts=scripts, studies=studies), run.seconds_left
    if run.phase == "phase2" and run.config.more_steps:
        last = KEPT * (run.ledger.seconds(run.label, cold=True) or 0.0)
        left = min(left, run.budget.time_limit - run.budget.elapsed() - last)
    return run.config.letter or needed <= left


def calls_take_long(run: RunContext) -> bool:
    """Are calls so slow that the next plan should be made before the last score is known?"""
    return LONG_CALLS * run.ledger.call_seconds >= seconds_for(run, scripts=1) and fits(run, calls=3, scripts=2)


def stops_before(run: RunContext, *, calls: float) -> bool:
    """Should a loop end, as so many calls and a run no longer fit? It is asked only where there is more to do."""
    if run.decide("go-on", lambda: not run.budget.finalize_now and fits(run, calls=calls), reopen=True):
        return False
    run.shared.wound_down = True
    return True


@contextmanager
def in_phase_time(run: RunContext) -> Iterator[None]:
    """End an iteration of a loop quietly where its calls took so long that its script no longer fits."""
    try:
        yield
    except PhaseTimeExceeded:
        if run.config.letter or run.seconds_left <= 0:
            raise
        run.shared.wound_down = True


def repair_fits(run: RunContext, purpose: ScriptPurpose) -> bool:
    """Is there time to run a script after its repair? What is submitted is always repaired."""
    if purpose == "ablation":
        return run.config.letter or limit_in_run(run, "ablation") >= (run.solution_seconds or 0.0)
    return purpose == "submission" or fits(run, calls=1)


def study_fits(run: RunContext) -> bool:
    """Is there time for a study and a refinement after it? All studies of a path together have a share of the time."""
    if not repair_fits(run, "ablation"):
        return False
    others = run.reached.ran("/".join((*run.parts[:-1], "")), studies=True)
    spent = sum(one.seconds for one in others) + seconds_for(run, calls=STUDY_CALLS * len(others))
    study = seconds_for(run, calls=STUDY_CALLS, studies=STUDY_RUNS)
    share = STUDY_SHARE * run.budget.shares.phase2 * run.budget.time_limit
    side_by_side = max(run.config.num_parallel_solutions, 1 + run.config.more_steps)
    share *= min((run.shared.scripts.lanes or math.inf) / side_by_side, 1.0)
    return run.config.letter or (spent + study <= share and fits(run, calls=5, studies=STUDY_RUNS))


def too_late_for(run: RunContext, script: str) -> str:
    """Why there is no time to run a scored script again for as long as it ran; empty where there is.

    With less time, a script that watches the clock would submit worse answers than those that were scored.
    """
    took, left = run.ledger.took(script), run.seconds_left
    if run.decide("run-again", lambda: RERUN * took <= left, reopen=True):
        return ""
    return f"{left:.0f} s are left, and the scored solution ran for {took:.0f} s"


def fitting_sizes(run: RunContext) -> dict[str, int]:
    """With `more_steps`: how many paths, and how many attempts on each block, are of use; perhaps fewer than planned.

    While one path waits for a call, the script of another runs. More paths than keep all lanes of scripts busy would
    wait for each other, and fewer paths get further. A path stays where at least half of it is needed. If Phase 2 has
    no time for K attempts on each of T blocks, each block has fewer, but at least three, so that all T are refined.
    """
    config, once, room = run.config, run.solution_seconds or 0.0, run.budget.shares.phase2 * run.budget.time_limit
    lanes, takes = run.shared.scripts.lanes or config.num_parallel_solutions, seconds_for(run, calls=ATTEMPT_CALLS)

    def fewest(unit: str, size: int, are_enough: Callable[[int], bool], why: str, least: int = 1) -> int:
        most, least = size, least if config.more_steps else size
        while most > least and run.decide(f"fewer-{unit}s-{most - 1}-of-{most}", partial(are_enough, most - 1)):
            most -= 1
        if most < size:
            run.record(Notice(message=f"{plural(most, unit)} instead of {size}: {why}"))
        return most

    wanted, why = config.num_parallel_solutions, "more would wait for each other's scripts"
    paths = fewest("path", wanted, lambda n: (n + 0.5) * once > lanes * (takes + once), why)
    blocks = max(takes + once, paths / lanes * once) * config.outer_loop_steps
    wanted, why = config.inner_loop_steps, "the time would not do for more on each block"
    tries = fewest("attempt", wanted, lambda n: n * blocks >= room, why, LEAST_ATTEMPTS)
    return {"num_parallel_solutions": paths, "inner_loop_steps": tries}


# --- what is kept for later --------------------------------------------------------------------------------


def plan_time(run: RunContext, phase: PhaseName) -> None:
    """Before a phase begins, set what is kept for later phases. The search has the rest.

    Where rows are hidden, the final script runs again on all rows, and time is kept for that. Phase 3 has no time where
    no ensemble could be scored in it, or where there is only one path.
    """
    config, budget, call = run.config, run.budget, run.ledger.call_seconds
    solutions, paths = run.ledger.ran(), config.num_parallel_solutions
    slowest = max((run.ledger.cold_seconds(one) for one in solutions if one.score is not None), default=0.0)
    if phase not in ("phase1", "phase2"):  # what is slower than these lost to them
        slowest = max(run.ledger.best_seconds(), default=0.0)
    elif phase == "phase2":
        slowest *= 1.0 if config.more_steps else GROWTH
    if phase == "phase2" and not config.letter:
        takes = seconds_for(run, calls=3, scripts=paths)
        theirs = budget.spare_seconds * budget.shares.phase3 / (budget.shares.phase2 + budget.shares.phase3)
        if not (paths > 1 and run.decide("ensembles", lambda: takes <= theirs, reopen=True)):
            budget.ensemble_limit, paths = 0.0, 1
        elif config.more_steps:
            rounds = min(config.ensemble_rounds, max(theirs // max(takes, 0.1), 1))
            budget.ensemble_limit = ENSEMBLE_TIMES * rounds * takes
    if phase == "phase2" and config.more_steps:
        budget.final_limit = KEPT * paths * slowest + LAST_CALLS * call
    budget.rerun_seconds = slowest + LEAST_CALLS * call if config.more_steps else 0.0
    if run.shared.holdout is not None:
        last = LAST_SECONDS if any(SHARE in run.ledger.text(one.script_id) for one in solutions) else 0.0
        is_enough = run.shared.search_views > 1 or (phase == "finalization" and not run.shared.has_test)
        last = min(last, LAST_TIMES * slowest) if is_enough else last
        kept = KEPT if run.shared.has_test else KEPT_FOR_MODEL
        budget.rerun_seconds = max(kept * slowest, last, budget.rerun_seconds)
        missing = run.shared.views - run.solution_views
        searching = phase != "finalization" and not (config.letter or config.more_steps)
        budget.views_seconds = min(VIEWS_SHARE * budget.time_limit, missing * RERUN * slowest) if searching else 0.0
