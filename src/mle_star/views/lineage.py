"""Where the solution came from, back to the model that was retrieved; what each change brought, and why it won."""

from typing import Literal, NamedTuple

from mle_star.models import MetricDirection, is_improvement
from mle_star.models.texts import digest_of, plural
from mle_star.run.events import CandidateEvaluated, EnsembleTried, MergeTried, RefinementTried
from mle_star.run.ledger import SearchNode, best_score
from mle_star.views import text
from mle_star.views.facts import ScoredAttempt, place_of
from mle_star.views.story import RunStory

Source = Literal["promoted", "blend", "ensemble", "path", "initial", "other", "none"]
SOURCES: dict[str, Source] = {"refinement": "path", "refined": "path", "ensemble": "ensemble", "blend": "blend"}
"""By the kind of the attempt that the solution is or, where it is none of them, by what finalization calls it."""


class Gain(NamedTuple):
    """An attempt on the way to the solution, and how much better it is than what it was made from."""

    attempt: ScoredAttempt
    amount: float | None

    @property
    def what(self) -> str:
        """The change in a few words."""
        plan = text.one_line(self.attempt.note.partition(". ")[0].rstrip("."), 90)
        plan = f" (“{plan}”)" if self.attempt.kind == "refinement" and plan else ""
        return f"{text.one_line(self.attempt.label, 80)}{plan}"


class Lineage(NamedTuple):
    """What the solution grew out of, oldest first. `source` says what it is, `submitted` is its attempt's step.

    `named` is what was chosen by name: of a `promoted` script the step that was chosen, of an `other` one that of
    a script that the search did not continue from and the final selection found best. A blend of several has no
    attempt and no ancestors. `last` says how the submission was made: training on all rows may take longer.
    """

    source: Source
    named: str
    script: str  # its digest, before finalization
    submitted: str
    nodes: list[SearchNode]
    candidate: CandidateEvaluated | None
    merges: list[MergeTried]
    data_use: SearchNode | None  # what worked in data that was not used before
    paths: dict[int, list[RefinementTried]]  # what each added: of its outer steps, the attempts it continued from
    ensemble: EnsembleTried | None
    leaks_fixed: int
    last: str


def lineage_of(story: RunStory) -> Lineage:
    """The lineage as far as the run has come."""
    return story.once("lineage", lambda: _lineage(story))


def _lineage(story: RunStory) -> Lineage:
    """The result says which script it was made from; before there is one, the best script leads."""
    facts = story.result.lineage if story.result else {}
    promoted, made = str(facts.get("promoted", "")), facts.get("finalization", {})
    leader = made.get("from_script", story.bests[-1].script_id if story.bests else "")
    script = digest_of(story.final_script) if promoted else leader
    end, chosen = story.ledger.node_of(script), story.shortlist.chosen if story.shortlist else ""
    kind = str(made.get("from_phase", "")) if end is None else end.kind
    source: Source = SOURCES.get(kind, "initial" if kind else "none")
    source = "promoted" if promoted else "other" if "/" in chosen else source
    shown = [] if end is None else [end.scored.path] if isinstance(end.scored, RefinementTried) else sorted(story.paths)
    nodes = sorted(story.ledger.ancestors(script), key=lambda node: node.event.at)
    candidates, gains = story.tried(CandidateEvaluated, nodes), story.tried(RefinementTried, nodes)
    return Lineage(
        source=source,
        named=promoted or chosen,
        script=script,
        submitted="" if story.result is None or end is None else end.step,
        nodes=nodes,  # paths may begin with other candidates than the one that was chosen
        candidate=next((one for one in candidates if one == story.chosen_candidate), next(iter(candidates), None)),
        merges=story.tried(MergeTried, nodes),
        data_use=next((node for node in nodes if node.kind == "data"), None),
        ensemble=next(iter(story.tried(EnsembleTried, nodes)), None),
        paths={index: [one for one in gains if one.path == index] for index in shown if source in ("path", "ensemble")},
        leaks_fixed=sum(e.fixed for e in story.ledger.leaks_found.values() if e.step.startswith("phase1/leakage")),
        last="" if source == "promoted" else _last(story),
    )


def _last(story: RunStory) -> str:
    if story.result is not None and story.result.lineage.get("finalization", {}).get("fallback"):
        return "as it was in the search"
    done = [run for run in story.scripts.values() if run.purpose == "submission" and not run.result.is_error]
    return f"trained on all rows for {text.duration(sum(run.seconds for run in done))}" if done else ""


# --- why it won -----------------------------------------------------------------------------------------------


def gains_of(story: RunStory) -> list[Gain]:
    """What each attempt on the line to the solution brought, in order; where a line begins, that is unknown.

    A path may begin from a script that is not the best of Phase 1: what only makes up for that is no gain.
    """
    sign = 1 if story.direction is MetricDirection.maximize else -1
    scores = {one.step: one.score for one in story.attempts}
    begun = getattr(story.phases.get("phase1"), "score", None)
    on_the_line = {node.step for node in lineage_of(story).nodes}
    found: list[Gain] = []
    for attempt in story.attempts:
        if attempt.step in on_the_line and attempt.score is not None:
            known = [*map(scores.get, attempt.parents), begun if attempt.step.startswith("phase2") else None]
            before = best_score(known, story.direction)
            found.append(Gain(attempt, None if before is None else sign * (attempt.score - before)))
    return found


def why(story: RunStory) -> str:
    """What won, what brought most and what brought nothing; empty while there is no score."""
    line = lineage_of(story)
    if story.chosen_candidate is None or story.score is None:
        return ""
    place = place_of(line.named) or text.one_line(line.named, 80)
    if line.source == "promoted":
        return f"The script of {place} was promoted by hand."
    if line.source == "other":
        return f"The script of {place} won the final selection: it is the best on all hidden rows."
    changes = [(gain.amount, gain.what) for gain in gains_of(story) if gain.amount is not None]
    sentences = [_winner(story, line)]
    amount, what = max(changes, default=(0.0, ""))
    if amount > 0:
        among = f" of {plural(len(changes), 'change')}" if len(changes) > 2 else ""
        sentences.append(f"The largest gain{among} is {text.signed(amount)[1:]}: {what}.")
    return " ".join([*sentences, *_in_vain(story)])


def _winner(story: RunStory, line: Lineage) -> str:
    lead = "won" if story.finished is not None else "leads"
    if line.source == "blend":
        known = story.shortlist.shortlist if story.shortlist else []
        members = next((one.get("members") for one in known if one["name"] == "blend"), None)
        return f"A blend of {members or 'several'} scripts {lead}, its weights found on hidden rows."
    base = text.one_line(line.candidate.model_name, 60) if line.candidate else "The initial solution"
    others = [text.one_line(merge.reference_model, 40) for merge in line.merges]
    start = f"{base} with {_listed(others)} merged in" if others else base
    if line.source == "ensemble":
        models = [story.paths[index].model for index in line.paths]
        starts = dict.fromkeys(text.one_line(model, 40) if model else start for model in models)
        paths = plural(len(line.paths), "refined path")
        return f"An ensemble of {paths} {lead}; all began from {_listed(list(starts) or [start])}."
    index, gains = next(iter(line.paths.items()), (0, []))
    if line.source == "path" and gains:
        return f"{start} {lead}, refined on path {index} by {plural(len(gains), 'accepted change')}."
    return f"{start} {lead}{' unchanged' if story.paths else ''}."


def _in_vain(story: RunStory) -> list[str]:
    """What was tried and brought nothing, so that no number flatters."""
    tried = story.refinements
    if tried and not any(one.accepted for one in tried):
        return [f"Refinement brought nothing: none of {plural(len(tried), 'attempt')} was better."]
    best, paths = story.best_ensemble, best_score((path.best_score for path in story.paths.values()), story.direction)
    if best is None or best.score is None or paths is None or is_improvement(best.score, paths, story.direction):
        return []
    return ["No ensemble was better than the best path."]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
