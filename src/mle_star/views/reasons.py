"""Why the result is what it is: what won, which change brought how much, and how sure that is, in sentences."""

from __future__ import annotations

from typing import NamedTuple

from mle_star.models import Measure, is_improvement
from mle_star.run.events import HoldOutPrepared
from mle_star.views import text
from mle_star.views.headlines import unseen
from mle_star.views.lineage import BLEND, Lineage, handed_over, lineage_of
from mle_star.views.story import RunStory


class Gain(NamedTuple):
    """What one change on the way to the solution brought: above 0 is better, whichever way the metric goes."""

    what: str
    amount: float
    link: str


class ScaleMark(NamedTuple):
    """A score on the one scale: what it is, and between which values it lies for sure enough."""

    name: str
    score: float
    kind: str
    low: float | None = None
    high: float | None = None


def why(story: RunStory) -> str:
    """What won, what brought most and what brought nothing; empty while there is no score."""
    line = lineage_of(story)
    if line.candidate is None or story.score is None:
        return ""
    if line.promoted:
        return f"The script of {text.one_line(line.promoted.rpartition('/')[0], 80)} was promoted by hand."
    if line.other:
        place = text.one_line(line.other.rpartition("/")[0], 80)
        ahead = "on all hidden rows it is ahead of what the search went on with."
        return f"The script of {place} won the final selection: {ahead}"
    gains = gains_of(story, line)
    said = [_winner(story, line)]
    best = max(gains, key=lambda gain: gain.amount, default=None)
    if best is not None and best.amount > 0:
        others = f", more than any other of {text.plural(len(gains), 'change')}" if len(gains) > 2 else ""
        said.append(f"Most was gained by {best.what}: {text.signed(best.amount)[1:]}{others}.")
    nothing = _in_vain(story)
    return " ".join([*said, *([nothing] if nothing else [])])


def how_sure(story: RunStory) -> str:
    """On what the score was measured, between which values it lies, what a dummy gets; or that nobody checked it."""
    holdout, expected = story.holdout, expected_of(story)
    if holdout is None or holdout.why_not:
        because = f" ({text.one_line(holdout.why_not, 160)})" if holdout is not None else ""
        worse = "lower" if story.direction.value == "maximize" else "larger"
        metric = text.one_line(story.metric, 40)
        return f"The script measured itself, nobody checked it{because}: expect a {worse} {metric} on new rows."
    known = "Estimated from" if expected is not None and expected.estimated else "Measured on"
    measured = f"{known} {text.plural(measured_rows(story, holdout), 'row')} that no script saw the answers of"
    if expected is not None and expected.low is not None and expected.high is not None:
        measured += f": on new rows expect {text.score(expected.low)} to {text.score(expected.high)} (95 %)"
    return f"{measured}."


def measured_rows(story: RunStory, holdout: HoldOutPrepared) -> int:
    """The hidden rows behind the score: those of the expected score, else those that the best so far was scored by."""
    expected = expected_of(story)
    best = story.bests[-1].rows if story.bests else None
    return (None if expected is None else expected.rows) or best or holdout.search_rows


def expected_of(story: RunStory) -> Measure | None:
    """What the result should score on new rows, where the harness measured it."""
    result = story.finished.result if story.finished else None
    expected = None if result is None else result.expected
    return expected if expected is not None and expected.measured == "harness" else None


def single_model(story: RunStory) -> tuple[str, float] | None:
    """The best candidate's name and score: on the rows of the expected score where that is known."""
    result = story.finished.result if story.finished else None
    if result is not None and result.single_model is not None:
        return text.one_line(result.single_model.name, 30), result.single_model.measure.score
    single = story.chosen_candidate
    return None if single is None or single.score is None else (text.one_line(single.model_name, 30), single.score)


def is_single_model(story: RunStory) -> bool:
    """Is the result a candidate as it was, so that there is nothing to compare it with?"""
    line = lineage_of(story)
    return not line.promoted and handed_over(story, line).startswith("phase1/candidate-")


def yardsticks(story: RunStory) -> list[ScaleMark]:
    """What the score can be compared with, all on one scale: a dummy, the best single model, the result."""
    found: list[ScaleMark] = []
    if story.holdout is not None and story.holdout.baseline is not None:
        found.append(ScaleMark("dummy", story.holdout.baseline.score, "dummy"))
    if (single := single_model(story)) is not None and not is_single_model(story):
        name, score = single
        found.append(ScaleMark(f"best single model ({name})", score, "single"))
    if story.score is not None and len(found):
        expected = expected_of(story)
        name = "result" if story.state == "completed" else "best so far"
        low, high = (None, None) if expected is None else (expected.low, expected.high)
        found.append(ScaleMark(name, story.score, "result", low, high))
    return found if len(found) > 1 else []


def split_in_words(story: RunStory) -> str:
    """How the hidden rows were chosen."""
    holdout = story.holdout
    if holdout is None or holdout.why_not:
        return ""
    kind, _, reason = holdout.rule.partition(": ")
    how = {
        "time": "the latest rows",
        "groups": "whole groups",
        "classes": "rows drawn at random, every class in its share",
        "quantiles": "rows drawn at random, small and large values in their share",
    }.get(kind, "rows drawn at random")
    because = f" (because {reason})" if kind in ("time", "groups") else ""
    views = f" in {holdout.views} rounds, each hiding others" if holdout.views > 1 else ""
    later = f"; {holdout.select_rows:,} more were kept for the final selection alone" if holdout.select_rows else ""
    unshown = f" {unseen(holdout)}." if holdout.not_shown else ""
    return f"Hidden: {how}{because}, {holdout.search_rows:,} in all{views}{later}.{unshown}"


def gains_of(story: RunStory, line: Lineage) -> list[Gain]:
    """What each change on the line to the solution brought, in order."""
    sign = 1 if story.direction.value == "maximize" else -1
    found: list[Gain] = []
    for merge in line.merges:
        if merge.score is not None:
            amount = sign * (merge.score - merge.base_score)
            found.append(Gain(f"merging in {text.one_line(merge.reference_model, 60)}", amount, f"merge-{merge.index}"))
    for path in line.paths:
        for one in path.gains:
            study = story.paths[path.index].steps[one.t].ablation
            if study is None or one.score is None:
                continue
            amount = sign * (one.score - study.solution_score)
            what = f"refining on path {one.path} (“{text.one_line(_first_sentence(one.plan), 90)}”)"
            found.append(Gain(what, amount, f"try-{one.path}-{one.t}-{one.k}"))
    if line.ensemble is not None and line.ensemble.score is not None:
        reached = [path.score for path in line.paths if path.score is not None]
        if reached:
            before = max(reached) if sign > 0 else min(reached)
            amount = sign * (line.ensemble.score - before)
            found.append(Gain("combining the paths", amount, f"round-{line.ensemble.r}"))
    return found


def _winner(story: RunStory, line: Lineage) -> str:
    assert line.candidate is not None
    base = text.one_line(line.candidate.model_name, 60)
    others = [text.one_line(merge.reference_model, 40) for merge in line.merges]
    start = f"{base} with {_listed(others)} merged in" if others else base
    lead = "won" if story.finished is not None else "leads"
    if line.source == BLEND and story.shortlist is not None:
        chosen = next((one for one in story.shortlist.shortlist if one["name"] == BLEND), {})
        return f"A blend of {chosen.get('members', 'several')} scripts {lead}, its weights found on hidden rows."
    if line.source == "ensemble":
        models = [story.paths[path.index].model for path in line.paths]
        starts = list(dict.fromkeys(text.one_line(model, 40) if model else start for model in models)) or [start]
        return (
            f"An ensemble of {text.plural(len(line.paths), 'refined path')} {lead}; all began from {_listed(starts)}."
        )
    if line.source == "path" and line.paths:
        steps = text.plural(len(line.paths[0].gains), "accepted change")
        return f"{start} {lead}, refined on path {line.paths[0].index} by {steps}."
    return f"{start} {lead}{' unchanged' if story.paths else ''}."


def _in_vain(story: RunStory) -> str:
    """What was tried and brought nothing, so that no number flatters."""
    tried = story.refinements
    if tried and not any(one.accepted for one in tried):
        return f"Refinement brought nothing: none of {text.plural(len(tried), 'attempt')} was better."
    best, reached = story.best_ensemble, [path.best_score for path in story.paths.values()]
    known = [score for score in reached if score is not None]
    if best is None or best.score is None or not known:
        return ""
    before = max(known) if story.direction.value == "maximize" else min(known)
    worse = not is_improvement(best.score, before, story.direction)
    return "No ensemble was better than the best path." if worse else ""


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _first_sentence(plan: str) -> str:
    head, dot, _ = plan.partition(". ")
    return head if dot else plan.rstrip(".")
