"""Where the final solution came from, step by step back to the model that was retrieved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mle_star.models import is_improvement_or_equal
from mle_star.run.events import CandidateEvaluated, EnsembleTried, MergeTried, RefinementTried
from mle_star.views import text
from mle_star.views.story import RunStory

Source = Literal["promoted", "blend", "ensemble", "path", "initial", "other", "none"]
BLEND: Source = "blend"
"""What the final selection calls several scripts that answer together."""


@dataclass(frozen=True)
class PathLine:
    """What one path added: of each outer step, the attempt that it went on from."""

    index: int
    gains: list[RefinementTried]
    score: float | None


@dataclass(frozen=True)
class Lineage:
    """The ancestors of the final solution, oldest first. `source` says what went into finalization.

    `promoted` is the step of a script that somebody promoted by hand, whatever its run had chosen; `other` that of
    one that the search had not gone on with and the final selection found to be the best. `last` says how the
    submission was made: a last training on all rows may take longer than what was scored.
    """

    candidate: CandidateEvaluated | None
    merges: list[MergeTried]
    data_changed: bool
    leaks_fixed: int
    paths: list[PathLine] = field(default_factory=list)
    ensemble: EnsembleTried | None = None
    source: Source = "none"
    promoted: str = ""
    other: str = ""
    last: str = ""


def lineage_of(story: RunStory) -> Lineage:
    """The lineage as far as the run has come."""
    lines = [_path_line(story, index) for index in sorted(story.paths)]
    source, picked = _source(story, lines), "" if story.shortlist is None else story.shortlist.chosen
    if source == "path":
        chosen = next((line for line in lines if picked == f"path {line.index}"), _best(story, lines))
        lines = [line for line in lines if line is chosen]
    elif source in ("initial", "promoted", "other", BLEND):  # the journal does not tell the members of a blend
        lines = []
    ensembles = {f"ensemble {r}": one for r, one in story.ensembles.items()}
    start = path_start(story, lines[0].index) if source == "path" and lines else None
    is_built_on = start is None and source not in (BLEND, "promoted", "other")  # is the initial solution part of it?
    return Lineage(
        candidate=start or story.chosen_candidate,
        merges=[merge for _, merge in sorted(story.merges.items()) if merge.accepted and is_built_on],
        data_changed=story.data_worked_in and is_built_on,
        leaks_fixed=sum(leak.fixed for step, leak in story.leaks.items() if step.startswith("phase1/leakage")),
        paths=lines,
        ensemble=ensembles.get(picked, story.best_ensemble) if source == "ensemble" else None,
        source=source,
        promoted=_promoted(story),
        other=picked if source == "other" else "",
        last=_last(story),
    )


def handed_over(story: RunStory, line: Lineage) -> str:
    """The step of the attempt that the result is; empty while there is none, and for a blend of several."""
    if story.finished is None or line.source in (BLEND, "none"):
        return ""
    if named := line.promoted or line.other:
        return "" if " " in named else named.rpartition("/")[0]  # with a digest: another script stands there now
    if line.ensemble is not None:
        return line.ensemble.step
    if line.paths and line.paths[0].gains:
        return line.paths[0].gains[-1].step
    if line.data_changed and story.data_use is not None:
        return story.data_use.step
    if line.merges:
        return line.merges[-1].step
    return "" if line.candidate is None else line.candidate.step


def steps_of(story: RunStory, line: Lineage) -> set[str]:
    """The steps whose attempts are part of the final solution."""
    if line.source in (BLEND, "promoted", "other"):
        return {handed_over(story, line)}
    found = {merge.step for merge in line.merges} | {gain.step for path in line.paths for gain in path.gains}
    ends = (line.candidate, line.ensemble, story.data_use if line.data_changed else None)
    return found | {one.step for one in ends if one is not None}


def path_start(story: RunStory, path: int) -> CandidateEvaluated | None:
    """The candidate that a path began with, where that was not the one that became the initial solution."""
    model = story.paths[path].model
    return next((one for one in story.candidates.values() if model and one.model_name == model), None)


def _path_line(story: RunStory, index: int) -> PathLine:
    path = story.paths[index]
    gains = [step.kept for _, step in sorted(path.steps.items()) if step.kept is not None]
    return PathLine(index, gains, path.score if path.score is not None else gains[-1].score if gains else None)


def _source(story: RunStory, lines: list[PathLine]) -> Source:
    """What the final selection or the result says; before there is one, the latest stage that has a score."""
    if _promoted(story):
        return "promoted"
    if story.shortlist is not None:
        kind = story.shortlist.chosen.partition(" ")[0]
        picked: dict[str, Source] = {BLEND: BLEND, "ensemble": "ensemble", "path": "path", "initial": "initial"}
        return picked.get(kind, "other")
    result = story.finished.result if story.finished else None
    said = result.lineage.get("finalization", {}).get("from_phase") if result is not None else None
    if said is not None:
        known: dict[str, Source] = {BLEND: BLEND, "ensemble": "ensemble", "refined": "path"}
        return known.get(str(said), "initial")
    if story.best_ensemble is not None:
        return "ensemble"
    if any(line.gains for line in lines):
        return "path"
    return "initial" if story.chosen_candidate is not None else "none"


def _promoted(story: RunStory) -> str:
    result = story.finished.result if story.finished else None
    return "" if result is None else str(result.lineage.get("promoted", ""))


def _last(story: RunStory) -> str:
    result = story.finished.result if story.finished else None
    if _promoted(story):
        return ""
    if result is not None and result.lineage.get("finalization", {}).get("fallback"):
        return "as it was in the search"
    done = [run for run in story.scripts.values() if run.purpose == "submission" and not run.result.is_error]
    return f"trained on all rows for {text.duration(sum(run.seconds for run in done))}" if done else ""


def _best(story: RunStory, lines: list[PathLine]) -> PathLine | None:
    """The path with the best score; a later one on ties, as in the pipeline."""
    best: PathLine | None = None
    for line in lines:
        if line.score is None:
            continue
        if best is None or best.score is None or is_improvement_or_equal(line.score, best.score, story.direction):
            best = line
    return best
