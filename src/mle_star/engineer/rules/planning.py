"""Chooses what to refine and how: the extractor's block and first plan, the planner's next one.

A plan is prose, but it names its moves by their titles and ends with the facts that the next planner needs, who sees
nothing of the script but one block: the score to beat and the models that the script trains.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mle_star.engineer.rules import models
from mle_star.engineer.rules.ablation import Finding, findings_in
from mle_star.engineer.rules.moves import BY_TITLE, Move, Option, holds, moves_in, options
from mle_star.engineer.rules.profile import Profile
from mle_star.engineer.rules.sections import Script

MAX_COST = 4.5
"""How much slower than its block a plan may make things, by the moves' own estimates."""
CHANCE = 0.12
"""How much luck may add to a move's worth."""
_SCORE = re.compile(r"The script scores ([-+\d.eE]+) now")
_TRAINS = re.compile(r"It trains ([^.]+)\.")


class Luck:
    """Chance that the same question always draws alike."""

    def __init__(self, question: str) -> None:
        self._seed = hashlib.sha256(question.encode()).hexdigest()

    def ordered(self, found: Iterable[Option]) -> list[Option]:
        """Options by worth, each a little better or worse than it is."""
        return sorted(found, key=lambda o: -(o.worth + CHANCE * self._draw(o.move.title)))

    def _draw(self, title: str) -> float:
        return int(hashlib.sha256(f"{self._seed}{title}".encode()).hexdigest()[:8], 16) / 0xFFFFFFFF


# --- the extractor ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A section that could be refined, with what can be done to it and how much the study says it matters."""

    name: str
    block: str
    options: list[Option]
    impact: float
    refined: bool

    @property
    def heading(self) -> str:
        """The line that opens the section: its name, whatever stands below it."""
        return self.block.splitlines()[0]

    @property
    def promise(self) -> float:
        """How much is to be expected from refining this section now."""
        room = self.options[0].worth if self.options else 0.0
        return room * (0.5 + 0.5 * self.impact) * (0.35 if self.refined else 1.0)


def choose_blocks(
    script: Script, summary: str, previous: list[str], profile: Profile, given: Counter[str]
) -> list[tuple[str, str]]:
    """Blocks with their plans, best first; those come first that were `given` least often for the same script.

    Worths are guesses, and paths that begin with the same script would otherwise be twins. What is put first is
    counted in `given`, by the block's first line.
    """
    luck = Luck(script.render() + summary + "".join(previous))
    findings = findings_in(summary)
    facts = facts_of(baseline_in(summary), trained_models(script))
    candidates = [
        _candidate(script, name, findings, previous, profile, luck)
        for name in script.sections
        if _can_be_refined(name, script)
    ]
    ranked = sorted((c for c in candidates if c.options), key=lambda c: (given[c.heading], -c.promise))
    chosen = [(c.block, _first_plan(c, facts, given[c.heading])) for c in ranked[:3]]
    given.update(c.heading for c in ranked[:1])
    return chosen


def _can_be_refined(name: str, script: Script) -> bool:
    kind = name.split(":")[0].split(" ")[0]
    if kind == "combine":
        return len(script.names("model")) > 1
    return kind in ("features", "model", "target", "metric")


def _candidate(
    script: Script, name: str, findings: list[Finding], previous: list[str], profile: Profile, luck: Luck
) -> Candidate:
    block = script.block(name)
    trained = trained_models(script)
    found = luck.ordered(o for o in options(block, profile) if _possible(o.move, trained))
    if name.startswith("model: "):
        hurting = [f for f in findings if f.part == name and f.loss < 0]
        if hurting and len(trained) > 1:
            found.insert(0, Option(BY_TITLE[f"Leave {name.removeprefix('model: ')} out"], 0.9))
    top = max((abs(f.loss) for f in findings), default=0.0)
    mine = max((abs(f.loss) for f in findings if f.part.split(" / ")[0] == name), default=0.3 * top)
    refined = any(block.splitlines()[0] in old for old in previous)
    return Candidate(name, block, found, mine / top if top else 0.5, refined)


def _possible(move: Move, trained: Iterable[str]) -> bool:
    """Is it not the addition of a model that the script trains already?"""
    added = re.fullmatch(r"Train (.+) beside the others", move.title)
    return added is None or added[1] not in trained


def _first_plan(candidate: Candidate, facts: str, times: int) -> str:
    return write_plan([candidate.options[min(times, len(candidate.options) - 1)].move], facts)


def trained_models(script: Script) -> list[str]:
    """The names of the models that a script trains."""
    text = "\n".join(script.sections.values())
    return list(dict.fromkeys(re.findall(r'^MODELS\w*\["([^"]+)"\]', text, re.MULTILINE)))


def baseline_in(summary: str) -> float | None:
    """The score of the unchanged script, as a summary tells it."""
    found = re.search(r"baseline (?:scores|score is|is|of) ([-+\d.eE]*\d)", summary)
    return float(found[1]) if found else None


# --- plans -----------------------------------------------------------------------------------------------


def write_plan(moves: list[Move], facts: str) -> str:
    """Three to five sentences that name the moves and why, then the facts."""
    first, *rest = moves
    sentences = [f"{first.title}. {first.why}"]
    sentences += [f"Then, on top of that: {move.title}. {move.why}" for move in rest[-1:]]
    if len(rest) > 1:
        kept = "; ".join(move.title for move in rest[:-1])
        sentences.insert(1, f"Keep what helped before: {kept}.")
    sentences.append("Everything else stays as it is, and whatever is learned is learned from the training rows alone.")
    return " ".join([*sentences, facts]).strip()


def facts_of(score: float | None, trained: list[str]) -> str:
    """What a planner must know about a script that it does not see."""
    facts = [] if score is None else [f"The script scores {score:.10g} now."]
    if trained:
        facts.append(f"It trains {', '.join(trained)}.")
    return " ".join(facts)


def facts_in(plans: list[str]) -> tuple[float | None, list[str]]:
    """Score and models of the facts that a history of plans carries."""
    text = " ".join(plans)
    score, trains = _SCORE.search(text), _TRAINS.search(text)
    return (float(score[1]) if score else None), (trains[1].split(", ") if trains else [])


# --- the planner -----------------------------------------------------------------------------------------


def next_plan(block: str, history: list[tuple[str, float | None]], profile: Profile, *, higher: bool) -> str:
    """The best set of moves so far and the most promising one that was not tried; every attempt starts from `block`."""
    plans = [plan for plan, _ in history]
    baseline, trained = facts_in(plans)
    facts = facts_of(baseline, trained)
    tried = {move.title for plan in plans for move in moves_in(plan)}
    kept = _best_moves(history, baseline, higher)
    luck = Luck(block + "".join(plans))
    untried = luck.ordered(
        o for o in options(block, profile) if o.move.title not in tried and _possible(o.move, trained)
    )
    for option in untried:
        cost = option.move.cost
        for move in kept:
            cost *= move.cost
        if cost <= MAX_COST and not _clash(option.move, kept):
            return write_plan([*kept, option.move], facts)
    if untried:
        return write_plan([untried[0].move], facts)
    return write_plan(kept or [BY_TITLE["Take the plain mean of the predictions"]], facts)


def _best_moves(history: list[tuple[str, float | None]], baseline: float | None, higher: bool) -> list[Move]:
    """The moves of the best plan so far, if it beat the script as it was."""
    scored = [(score if higher else -score, plan) for plan, score in history if score is not None]
    if not scored:
        return []
    best, plan = max(scored, key=lambda pair: pair[0])
    if baseline is not None and best <= (baseline if higher else -baseline):
        return []
    return moves_in(plan)


def _clash(move: Move, kept: list[Move]) -> bool:
    """Do two moves set the same thing, so that the second would undo the first?"""
    pairs = [("Give LightGBM", "Give LightGBM"), ("Give XGBoost", "Give XGBoost"), ("Give CatBoost", "Give CatBoost"),
             ("Learn the", "Learn the"), ("Read single", "Read longer phrases"), ("Loosen", "Tighten"),
             ("Take the", "Take the"), ("Leave", "")]  # fmt: skip
    blends = ("Weigh the models", "Stack the models", "Average the ranks", "Take the")
    for other in kept:
        if move.title.startswith(blends) and other.title.startswith(blends):
            return True
        for a, b in pairs:
            if (move.title.startswith(a) and other.title.startswith(b)) or (
                move.title.startswith(b) and other.title.startswith(a) and b
            ):
                return True
    return False


def is_ours(block: str) -> bool:
    """Is this a block of a script that the engineer wrote?"""
    return any(holds(block, name) for name in ("build_features", "combine", "to_model", "decide", "score")) or bool(
        re.search(r"^def fit_\w+\(", block, re.MULTILINE)
    )


def fallback_model(profile: Profile) -> models.Model:
    """The most promising model of all."""
    return models.catalogue(profile)[0]
