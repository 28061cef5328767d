"""The answer before the details: how good, compared with what, how sure, for how much, and which file to submit."""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from mle_star.data.metrics import find_metric
from mle_star.models import SURE, MetricDirection, is_improvement
from mle_star.models.enums import traits_of
from mle_star.models.texts import plural
from mle_star.run.events import BudgetWarning, EnsembleTried, MergeTried
from mle_star.run.folder import RunFolder
from mle_star.views import text
from mle_star.views.facts import PHASE_TITLES, SHORT_TITLES
from mle_star.views.headlines import headline, unseen
from mle_star.views.lineage import lineage_of, why
from mle_star.views.story import RunStory

Level = Literal["good", "flat", "bad", "none"]
STATES = {"early": "Ended early", "stopped": "Stopped before its end"}
"""What states are called whose name does not say enough."""
SPLITS = {
    "time": "the latest rows",
    "groups": "whole groups",
    "copies": "rows drawn at random, copies of a row together",
    "classes": "rows drawn at random, every class in its share",
    "quantiles": "rows drawn at random, small and large values in their share",
}
"""How the hidden rows were chosen, by the first word of the rule."""


DUMMIES = {
    "labels": "always guessing the commonest class",
    "grades": "always guessing the commonest class",
    "numbers": "always guessing the median",
    "probabilities": "giving every row the same chances",
}
"""What the dummy does, by what a metric needs."""


class Milestone(NamedTuple):
    """A score on the way. `worse`: than that of the stage before, on the same rows."""

    name: str
    score: float
    what: str
    worse: bool = False


class ScaleMark(NamedTuple):
    """A score on the one scale: what it is, and the ends of its interval."""

    name: str
    score: float
    kind: str
    low: float | None = None
    high: float | None = None


class File(NamedTuple):
    """The file to submit, or why there is none. `level` says how far it can be relied on."""

    path: Path | None
    label: str
    note: str
    level: Literal["ready", "partial", "missing"]


class Verdict:
    """What a reader wants to know within ten seconds. `alive`: a process is at work on the run."""

    def __init__(self, story: RunStory, run_dir: Path | None = None, *, alive: bool = True) -> None:
        self.story, self.run_dir = story, run_dir
        self.state = story.state if story.finished else "running" if alive else "stopped"
        if self.state == "completed" and story.result is not None and story.result.stopped_by:
            self.state = "early"  # a limit or a wish cut it short
        self.state_title = STATES.get(self.state, self.state.capitalize())
        self.task = text.one_line(story.task.competition_id, 60) if story.task else "run"
        self.metric = f"{text.one_line(story.metric, 40)} ({story.direction.better_word} is better)"
        self.score = story.score
        self.score_note = {"running": "so far", "stopped": "so far", "failed": "before it failed"}.get(self.state, "")
        self.checked = story.holdout is not None and not story.holdout.why_not
        ahead, config = story.forecast, story.config
        usd, seconds = (None, None) if ahead is None or story.finished else (ahead.cost_usd, ahead.seconds)
        self.cost, self.time = text.money(story.totals.cost_usd), text.duration(story.spent.seconds)
        self.cost_note = _note(plural(story.totals.calls, "call"), text.money, config.max_budget_usd, usd)
        scripts = plural(story.totals.scripts, "script")
        self.time_note = _note(scripts, text.duration, config.time_limit_seconds, seconds)
        traits = traits_of(story.started.model if story.started else "")
        self.model, self.model_note = text.one_line(traits.title, 60), traits.kind

    @property
    def detail(self) -> str:
        """Where it is, or why it ended."""
        if self.state == "running":
            return PHASE_TITLES.get(self.story.phase, "starting")
        if self.state == "stopped":
            return "the process ended before the run did; `mle-star resume` continues from here"
        if self.story.finished is None:
            return ""
        message = self.story.finished.message
        return text.one_line("; ".join([message, *self._limits(message)]), 400)

    def _limits(self, message: str) -> Iterator[str]:
        """Of a limit that ended the run before its plan was done: what the plan would have taken."""
        config = self.story.config
        limits: dict[str, tuple[str, float | None, str, Callable[[float], str]]] = {
            "--time-limit": ("by the time limit|too little time", config.time_limit_seconds, "seconds", text.duration),
            "--max-budget": ("by the money limit", config.max_budget_usd, "cost_usd", text.money),
        }
        for option, (words, limit, field, show) in limits.items():
            if limit is not None and any(one in message for one in words.split("|")):
                most = max((getattr(plan, field) or 0.0 for plan in self.story.forecasts), default=0.0)
                if most > limit:
                    yield f"the whole plan would have taken about {show(most)}, and {option} was {show(limit)}"

    # --- how good ---

    @cached_property
    def why(self) -> str:
        """What won, and what brought most."""
        return why(self.story)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the score's 95 % interval."""
        expected = self.story.expected
        if expected is None or expected.low is None or expected.high is None:
            return None
        return expected.low, expected.high

    @property
    def sure(self) -> str:
        """On what the score was measured, and between which values it lies; or that nobody checked it."""
        story, holdout, expected = self.story, self.story.holdout, self.story.expected
        if holdout is None or holdout.why_not:
            because = f" ({text.one_line(holdout.why_not, 160)})" if holdout is not None else ""
            worse = "lower" if story.direction is MetricDirection.maximize else "larger"
            metric = text.one_line(story.metric, 40)
            return f"The script measured itself, nobody checked it{because}: expect a {worse} {metric} on new rows."
        best = story.bests[-1].result.measure if story.bests else None
        rows = (expected.rows if expected else None) or (best.rows if best else None) or holdout.search_rows
        between = ""
        if expected is not None and self.interval:
            ahead, shown = expected.ahead or "new rows", self.figure == expected.figure
            between = f" The 95 % interval is for {ahead}." if shown else f" On {ahead} expect {expected.figure}."
        of = f"{rows:,} of " if expected is not None and rows < holdout.select_rows else ""
        kept = plural(holdout.select_rows if of else rows, "row")
        how, leveled = "Measured on", ""
        if expected is not None and story.result is not None and "promoted" not in story.result.lineage:
            how, leveled = "Estimated from", ", corrected for easy or hard rows where possible"
        return f"{how} {of}{kept} whose answers no script saw{leveled}.{between}"

    @property
    def figure(self) -> str:
        """The score as people read it: with its interval, where one is known."""
        expected = self.story.expected
        return expected.figure if expected is not None and self.score == expected.score else text.score(self.score)

    @property
    def split(self) -> str:
        """How the hidden rows were chosen."""
        holdout = self.story.holdout
        if holdout is None or holdout.why_not:
            return ""
        kind, _, reason = holdout.rule.partition(": ")
        because = f" (because {reason})" if kind in ("time", "groups", "copies") else ""
        views = f" in {holdout.views} rounds" if holdout.views > 1 else ""
        later = f"; {holdout.select_rows:,} more were kept for the final selection" if holdout.select_rows else ""
        unshown = f" {unseen(holdout)}." if holdout.not_shown else ""
        how = SPLITS.get(kind, "rows drawn at random")
        return f"Hidden: {how}{because}, {holdout.search_rows:,} in all{views}{later}.{unshown}"

    @cached_property
    def single_model(self) -> tuple[str, float] | None:
        """The best candidate's name and score: on the rows of the expected score where that is known."""
        result, single = self.story.result, self.story.chosen_candidate
        if result is not None and result.single_model is not None:
            return text.one_line(result.single_model.name, 30), result.single_model.measure.score
        return None if single is None or single.score is None else (text.one_line(single.model_name, 30), single.score)

    @property
    def is_single_model(self) -> bool:
        """Is the result a candidate as it was, so that there is nothing to compare it with?"""
        if self.story.finished is None:  # a screen asks every second, and to follow a lineage takes a while
            return False
        line = lineage_of(self.story)
        return line.source != "promoted" and line.submitted.startswith("phase1/candidate-")

    @cached_property
    def yardsticks(self) -> list[ScaleMark]:
        """What the score can be compared with, all on one scale: a dummy, the best single model, the result."""
        story, found = self.story, list[ScaleMark]()
        if story.holdout is not None and story.holdout.baseline is not None:
            found.append(ScaleMark("dummy", story.holdout.baseline.score, "dummy"))
        if self.single_model is not None and not self.is_single_model:
            name, score = self.single_model
            found.append(ScaleMark(f"best single model ({name})", score, "single"))
        if story.score is None or not found:
            return []
        name = "result" if story.state == "completed" else "best so far"
        return [*found, ScaleMark(name, story.score, "result", *(self.interval or (None, None)))]

    @cached_property
    def gain(self) -> tuple[str, Level]:
        """The score against that of the best single model, in words: a weak first candidate flatters every run."""
        single, now, direction = self.single_model, self.score, self.story.direction
        if nothing := self._no_better_than_a_dummy:
            return nothing, "bad"
        if single is None or now is None or self.state == "failed":
            return "", "none"  # a failed run has gained nothing
        name, base = single
        against = f"the best single model ({name}, {text.score(base)})"
        if self.is_single_model:
            return "a single model: no change to it was surely better", "flat"
        known = self.story.result.single_model if self.story.result else None
        if known is not None and (change := known.change) is not None:  # row by row, where both have answered
            amount, _, rows = text.changed(change).partition(" on the same")
            than = f"{amount} than the best single model ({name}), on the same{rows}"
            words = than if change.difference else f"no better than {against}"
            if SURE > change.wins > 1 - SURE or not change.difference:
                return f"{words}, which may be chance", "flat"
            return words, "good" if change.difference > 0 else "bad"
        if now == base:
            return f"no better than {against}", "flat"
        better = is_improvement(now, base, direction)
        percent = abs((now - base) / base * 100) if base else 0.0
        amount = text.signed(now - base) if percent < 0.05 else f"{percent:.1f} %"
        words = f"{amount} {'better' if better else 'worse'} than {against}"
        if self.interval and self.interval[0] <= base <= self.interval[1]:
            return f"{words}, which may be chance", "flat"
        return words, "good" if better else "bad"

    @property
    def _no_better_than_a_dummy(self) -> str:
        """Said where the result does not surely beat what needs no model."""
        yardstick = self.story.result.baseline if self.story.result else None
        if yardstick is None or self.story.expected is None:
            return ""
        dummy, change = yardstick.measure.score, yardstick.change
        metric = find_metric(self.story.metric)
        always = DUMMIES.get(metric.needs if metric else "", "a model that knows nothing")
        if not is_improvement(self.story.expected.score, dummy, self.story.direction):
            return f"no better than {always} ({text.score(dummy)})"
        if change is not None and change.wins < SURE:
            return f"not surely better than {always} ({text.score(dummy)})"
        return ""

    @cached_property
    def stages(self) -> list[Milestone]:
        """The score after each stage that has one."""
        story, found = self.story, list[Milestone]()

        def add(name: str, score: float | None, what: str, *, apart: bool = False) -> None:
            if score is not None:
                worse = bool(found) and not apart and is_improvement(found[-1].score, score, story.direction)
                found.append(Milestone(name, score, what, worse))

        add("First score", story.first_score, "where the run started")
        merged = sum(merge.accepted for merge in story.tried(MergeTried))
        refined = any(one.accepted for one in story.refinements)
        pooled = any(one.score is not None for one in story.tried(EnsembleTried))
        what = {
            "phase1": f"{plural(merged, 'model')} merged in" if merged else "best candidate, nothing merged in",
            "phase2": "best refined path" if refined else "no attempt was better",
            "phase3": "best ensemble" if pooled else "no ensemble was scored",
        }
        for phase, words in what.items():
            event = story.phases.get(phase)
            if getattr(event, "outcome", "") == "completed":
                add(SHORT_TITLES[phase], getattr(event, "score", None), words)
        if story.finished is not None:
            promoted = lineage_of(story).source == "promoted"
            apart = story.expected is not None and not promoted
            words = "of the script promoted by hand" if promoted else "of the final solution"
            add("Result", story.finished.score, "on rows kept for the end" if apart else words, apart=apart)
        return found

    # --- what it took, and what there is to submit ---

    @cached_property
    def file(self) -> File:
        """The file to submit; before the end, or after a failure, the best one that was saved."""
        story, run_dir, result = self.story, self.run_dir, self.story.result
        if story.finished is not None and story.finished.submission_path:
            here = None if run_dir is None else RunFolder(run_dir).submission
            # A run folder may have been moved since: the file beside the journal is the one.
            path = here if here is not None and here.is_file() else Path(story.finished.submission_path)
            note, sound = self._file_note()
            return File(path, "File to submit", note, "ready" if sound else "partial")
        if result is not None and not result.has_test:
            name = "RUN" if run_dir is None else run_dir.name
            return File(None, "Model", f"ready: mle-star predict {name} NEW.csv", "ready")
        if (kept := story.ledger.kept) is not None:
            note = f"{plural(kept.rows, 'row')}, score {text.score(kept.score)}"
            label = "Best file before the run failed" if self.state == "failed" else "Best file so far"
            return File(Path(kept.path) if run_dir is None else run_dir / kept.path, label, note, "partial")
        return File(None, "File to submit", "none yet" if story.finished is None else "none", "missing")

    def _file_note(self) -> tuple[str, bool]:
        """What was found in the file, and whether it is what was wanted."""
        facts = self.story.result.lineage.get("finalization", {}) if self.story.result else {}
        words = [] if facts.get("rows") is None else [plural(facts["rows"], "row")]
        if facts.get("sample"):
            words.append(f"columns match {text.one_line(str(facts['sample']), 60)}")
        if facts.get("fallback"):
            return ", ".join([*words, "kept from the search: the final script failed"]), False
        return ", ".join(words) or "written", not facts.get("problems")

    @property
    def warnings(self) -> list[str]:
        """What the owner of the result should know: its own remarks, and limits that come near while it runs."""
        found = list(self.story.result.warnings) if self.story.result else []
        if self.story.finished is None:
            near = (headline(one) for one in self.story.notices.values() if isinstance(one, BudgetWarning))
            found += [one.words for one in near if one is not None]
        return found

    @cached_property
    def isolation(self) -> tuple[str, str]:
        """What really confined the scripts; the weakest one counts when they differ."""
        counts = self.story.isolations
        if not counts:
            return "–", "no script has run yet"
        weakest = min(counts, key=lambda one: (one.strength, one.network_blocked, len(one.limits)))
        words = ["no network" if weakest.network_blocked else "network open"]
        words += [plural(len(weakest.limits), "limit")] if weakest.limits else []
        some = f"{counts[weakest]} of {sum(counts.values())} scripts, the others more"
        words.append("all scripts" if len(counts) == 1 else some)
        return weakest.sandbox.replace("+", " + "), " · ".join(words)


def _note(count: str, show: Callable[[float], str], limit: float | None, forecast: float | None) -> str:
    """How many there were, what the limit is, and the forecast while it runs."""
    known = (f"{name} {show(one)}" for name, one in (("limit", limit), ("forecast", forecast)) if one is not None)
    return " · ".join([count, *known])
