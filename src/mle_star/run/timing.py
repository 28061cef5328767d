"""The one model of time. Three things are known at any moment of a run, and all that is said of seconds rests on them:

- the clock (`Budget`): how much has passed, until when the running phase and the turn of a path last, what is kept for
  finalization;
- what was measured (`Ledger`): a call, and the current solution (`solution_seconds`);
- the plan (`critical_steps`): the calls and scripts of each phase that come one after another.

From them follow, in this order: what the plan takes, how long a script may take, what still fits, what is kept.
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
"""A script may take two minutes, however quick the solution is, if its phase has the time."""
TIMES_MEASURED = 10.0
"""A new script may take ten times as long as the solution it starts from."""
SHARE_OF_LEFT, SHARE_WHERE_USED = 0.5, 0.125
"""No script may take more than half of what is left of its phase, no refinement more than an eighth where every minute
is used ..."""
ALWAYS_ENOUGH = 2.0
"""... but twice what the solution takes, as long as the phase lasts."""
SHARE_OF_FIRST = 0.75
"""Before anything was measured a script may take three quarters of what is left ..."""
FIRST_SHARE_OF_LEFT, FIRST_LIMIT = 0.2, 1800.0
"""... but no more than its even share or a fifth of what is left, up to half an hour."""
ABLATION_RUNS = 4
"""A study runs the solution and up to three variants of it."""
ABLATION_SECONDS = 600.0
"""A study may take ten minutes in a long run, however quick the solution is."""
FIRST_SECONDS, FIRST_SHARE = 3.0, 0.02
"""What the first candidate should take for an answer, or this share of the run's time: better ones follow."""
RERUN = 1.25
"""A scored script runs once more where so many times what it took is left: it learns from a quarter more rows."""
KEPT, KEPT_FOR_MODEL = 1.5, 2 * RERUN
"""So many times what a script took is kept for that: the final selection comes before it. Without a test nothing but a
fitted model answers new rows: a blend of two has the time, or a script after a long selection."""
GROWTH = 2.0
"""A refined script may take so many times as long as a candidate; where every minute is used, `fits` looks."""
LEAST_SHARE, LEAST_SECONDS = 0.05, 10.0
"""A script is told this share of the run's time at least, up to so many seconds: in less it would mostly start up.
An ensemble, which trains all models of several scripts, has twice that."""
STUDY_RUNS, STUDY_CALLS, STUDY_SHARE = 3.0, 2.0, 0.2
"""A study takes about so many runs of the solution, and calls; all of a path this share of the time of Phase 2, the
less where paths wait for each other's scripts; half of it where one script runs at a time."""
ATTEMPT_CALLS, LONG_CALLS = 2.0, 4.0
"""An attempt is planned and written; a call takes long where so many of them take as long as a run of the solution."""
ENSEMBLE_TIMES = 1.2
"""Phase 3 takes no more of its share than so many times what the rounds should take that fit into it ..."""
LAST_CALLS, LEAST_CALLS = 6.0, 4.0
"""... and finalization no more than what is kept for a solution, or for one of each path together, and so many calls;
no less than one run."""
FEWER_PATHS, LEAST_ATTEMPTS = "fewer-paths", 3
"""The decision to do with one path less; so many attempts on each block remain in any case."""
LAST_SECONDS = 240.0
"""Where scripts take the time that they are told, the last one has as much as may be kept for it, up to this ..."""
LAST_TIMES = 2.0
"""... and so many times what the slowest took where rows are few, as more time makes nothing better, or where there is
no test: views of the best come before it, as an expected score is all that is known of new rows ..."""
LAST_SHARE = 0.8
"""... and of its limit it is told so much."""
VIEWS_SHARE = 0.1
"""Views that no script has run on have up to this share of the time, for the best one in the end; not with
`more_steps`, where the search has whatever the submission does not need."""
SHARE = "MLE_STAR_SHARE"
"""The variable that tells it."""


# --- the plan ----------------------------------------------------------------------------------------------


def critical_steps(config: PipelineConfig) -> dict[str, tuple[float, float]]:
    """By phase, the calls and script runs that come one after another; what runs side by side counts once."""
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
    """The seconds of what comes one after another, by those of a call and of a script.

    `left` is the share of each phase that is still to come; what is scored runs on so many `views` of the rows.
    """
    total = 0.0
    for phase, (calls, scripts) in critical_steps(config).items():
        seconds = calls * call + scripts * script * (1 if phase == "finalization" else views)
        total += seconds if left is None else seconds * left.get(phase, 0.0)
    return total


def seconds_for(run: RunContext, *, calls: float = 0.0, scripts: float = 0.0, studies: float = 0.0) -> float:
    """What so many calls and scripts like the current solution take one after another, as measured so far.

    A script is scored on as many views as the solution; what runs in `studies` runs on one.
    """
    once = run.solution_seconds or 0.0
    return calls * run.ledger.call_seconds + scripts * once * run.views_in_turn + studies * once


# --- how long a script may take, and what it is told -------------------------------------------------------


def script_limit(
    *, left: float, measured: float | None = None, even_share: float = 0.0, explicit: float | None = None
) -> float:
    """Seconds that a script may take when its phase has `left` of them, by what the current solution was `measured` at.

    `even_share` is what the script would have if all that is planned for its phase took equally long; an `explicit`
    limit wins over everything but the end of the phase.
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
    """Seconds that an ablation study may take: its variants at the solution's `measured` pace, with time to spare.

    A solution that is quick, or was not measured, has what the specification says: half of an even share per step, ten
    minutes at most. To the letter every solution has that, as far as the time goes.
    """
    specified = min(config.time_limit_seconds / (config.outer_loop_steps * 2), ABLATION_SECONDS)
    known = specified if config.letter else explicit
    if known is not None:
        return min(known, left)
    return min(max(specified, ALWAYS_ENOUGH * ABLATION_RUNS * (measured or 0.0)), left * SHARE_OF_LEFT)


def limit_in_run(run: RunContext, purpose: ScriptPurpose = "solution", explicit: float | None = None) -> float:
    """Seconds that a script might take if it began now; `explicit` goes before the setting.

    What was stopped at its limit has as long again once it is repaired, if its phase has the time.
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
    """Seconds that a script should take, so that all that is planned for its phase has its turn: told, not enforced."""
    return min(limit, _even_share(run) or limit / 2) / max(views, 1)


def affordable_views(run: RunContext, seconds: float) -> int:
    """On how many views a script may run that takes so long on each: as many as its share of the time has room for.

    With `more_steps` further ones take no longer than a call, or a few seconds: whatever is better later runs on as
    many as the first script did.
    """
    seconds = max(seconds, 0.1)
    views, room = int(share_in_run(run, limit_in_run(run)) / seconds), run.ledger.call_seconds
    return min(views, 1 + int(max(room, LEAST_SECONDS) / seconds)) if run.config.more_steps else views


def _even_share(run: RunContext) -> float:
    """What each script planned for the running phase would have; before anything is measured these are candidates."""
    scripts = critical_steps(run.config).get(run.phase, (0.0, 1.0))[1]
    if run.solution_seconds is None:
        scripts -= run.config.num_retrieved_models - 1
    return run.budget.even_share(scripts)


def suggested_seconds(run: RunContext, limit: float, views: int = 1) -> float:
    """The share that a script is told: less for the first candidate, so that the run is not long without any answer."""
    share, whole = share_in_run(run, limit, views), run.config.time_limit_seconds
    if run.phase == "finalization":  # what is submitted has as long as what was scored, and all that is left
        return min(limit, max([LAST_SHARE * limit / run.shared.last_scripts, *run.ledger.best_seconds()]))
    if "candidate-0" in run.parts:
        return min(share, max(FIRST_SECONDS, FIRST_SHARE * whole))
    least = min(LEAST_SHARE * whole, LEAST_SECONDS) * (2 if run.phase == "phase3" else 1)
    return max(share, min(least, limit / 2))


# --- what still fits ---------------------------------------------------------------------------------------


def fits(run: RunContext, *, calls: float = 0.0, scripts: float = 1.0, studies: float = 0.0) -> bool:
    """Can the script that so many calls make still be scored in the time of its phase? To the letter it may try.

    Where every minute is used, solutions may have become slower since Phase 2 began: one more run of it is kept.
    """
    needed, left = seconds_for(run, calls=calls, scripts=scripts, studies=studies), run.seconds_left
    if run.phase == "phase2" and run.config.more_steps:
        last = KEPT * (run.ledger.seconds(run.label, cold=True) or 0.0)
        left = min(left, run.budget.time_limit - run.budget.elapsed() - last)
    return run.config.letter or needed <= left


def calls_take_long(run: RunContext) -> bool:
    """Does waiting for calls cost so much that the next plan is better made before the last score is known?"""
    return LONG_CALLS * run.ledger.call_seconds >= seconds_for(run, scripts=1) and fits(run, calls=3, scripts=2)


def stops_before(run: RunContext, *, calls: float) -> bool:
    """Should a loop end before an iteration of so many calls and a run? Asked only where there is more to do."""
    if run.decide("go-on", lambda: not run.budget.finalize_now and fits(run, calls=calls), reopen=True):
        return False
    run.shared.wound_down = True
    return True


@contextmanager
def in_phase_time(run: RunContext) -> Iterator[None]:
    """Leave an iteration of a loop where calls took so long that its script does not fit any more."""
    try:
        yield
    except PhaseTimeExceeded:
        if run.config.letter or run.seconds_left <= 0:
            raise
        run.shared.wound_down = True


def repair_fits(run: RunContext, purpose: ScriptPurpose) -> bool:
    """Could a script run once it is repaired? What is submitted is repaired in any case: there is nothing else."""
    if purpose == "ablation":
        return run.config.letter or limit_in_run(run, "ablation") >= (run.solution_seconds or 0.0)
    return purpose == "submission" or fits(run, calls=1)


def study_fits(run: RunContext) -> bool:
    """Is there time for a study and a refinement after it, within the share that the studies of a path have?"""
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
    """Why a script scored by hidden rows has no time to run once more for as long as it ran, or an empty text.

    A script that watches the clock would submit something worse than what was scored, and say nothing.
    """
    took, left = run.ledger.took(script), run.seconds_left
    if run.decide("run-again", lambda: RERUN * took <= left, reopen=True):
        return ""
    return f"{left:.0f} s are left, and the scored solution ran for {took:.0f} s"


def fitting_sizes(run: RunContext) -> dict[str, int]:
    """How many of the paths and of the attempts on a block the run has a use for, where it goes on while time lasts.

    A path waits for calls while another's script runs. Paths beyond those that fill the lanes of scripts would only
    wait for each other: fewer of them get further. The last one counts where half of it is needed. Where the time of
    Phase 2 has no room for K attempts on each of T blocks, there are fewer on each, three at least, so that all T are
    refined.
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
    """Before a phase begins: what later phases need of the time, so that the search has the rest.

    Where scores come from hidden rows, what is submitted learns from all rows in the end: time is kept for it. Phase 3
    has no time where no ensemble could be scored in it, or there is one path only.
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
