"""Ablation studies: designs with variants, and what can be read from their output."""

from __future__ import annotations

import itertools
import json
from typing import Any

from mle_star.engineer.catalogue import families
from mle_star.engineer.design import Design

PARTS_A_STUDY = 3


def parts_of(design: Design) -> dict[str, dict[str, Any]]:
    """What can be varied, features and models in turn: by name, as a variant."""
    by_step = {f"features / {key}": {"drop": [key]} for key in design.features}
    by_model: dict[str, Any] = {f"model / {name}": {"drop": [name]} for name in design.models}
    by_model = by_model if len(design.models) > 1 else {}
    for name, own in design.models.items():
        for part, change in families()[own["family"]].ablations.items():
            by_model[f"{name} / {part}"] = {"change": {name: dict(change)}}
    scaled = any(target.get("scale", "plain") != "plain" for target in design.targets)
    other = {"target / scale": {"target": {"scale": "plain"}}} if scaled else {}
    turns = itertools.zip_longest(by_step.items(), by_model.items(), other.items())
    return dict(part for turn in turns for part in turn if part is not None)


def study(design: Design, previous: str, turn: int) -> Design:
    """A study of parts that no earlier summary names; of those that one does when none is left."""
    parts = parts_of(design)
    fresh = [name for name in parts if f"`{name}`" not in previous] or list(parts)
    start = turn % len(fresh) if len(fresh) > PARTS_A_STUDY else 0
    chosen = (fresh[start:] + fresh[:start])[:PARTS_A_STUDY]
    data = {**design.data, "test": None, "sample": None, "answers": []}
    folds = {**design.folds, "count": min(2, design.folds["count"]), "repeats": 1}
    doc = f"Ablation study: {', '.join(chosen)}.\n\nEach variation changes one part; everything else stays as it is.\n"
    return design.changed(
        doc=doc,
        data=data,
        folds=folds,
        variants={name: parts[name] for name in chosen},
        seconds=round(max(3.0, design.seconds / 3), 1),
    )


# --- results ---------------------------------------------------------------------------------------------


def printed_scores(output: str) -> dict[str, float]:
    """The scores that a study printed, by name: `Ablation name: score`, or pairs between commas."""
    scores: dict[str, float] = {}
    for piece in output.replace(",", "\n").splitlines():
        name, found, number = piece.strip().rpartition(":")
        try:
            value = float(number)
        except ValueError:
            continue
        if found:
            scores[name.removeprefix("Ablation ").strip()] = value
    return scores


def summarize(output: str, *, higher: bool, metric: str) -> str:
    """What a study found, in a few sentences, and once more as JSON; most and least important parts by name."""
    scores = printed_scores(output)
    baseline = next((name for name in scores if name.lower() == "baseline"), None)
    if not scores:
        return "The study printed no scores, so nothing can be said about the parts of the solution."
    if baseline is None:
        return "The study printed no baseline. " + " ".join(f"`{n}` scores {v:.10g}." for n, v in scores.items())
    base = scores.pop(baseline)
    if not scores:
        return f"The baseline scores {base:.10g}; no part was varied."
    losses = {name: (base - value) if higher else (value - base) for name, value in scores.items()}
    order = sorted(losses, key=lambda name: -losses[name])
    better = "higher" if higher else "lower"
    sentences = [f"The baseline scores {base:.5g} ({metric or 'score'}, {better} is better)."]
    for name in order:
        change = f"{abs(losses[name]):.3g} {'worse' if losses[name] > 0 else 'better'}" if losses[name] else "no change"
        sentences.append(f"Without `{name}` the score is {scores[name]:.5g}, {change}.")
    most, *others = order
    if losses[most] <= 0:
        sentences.append("No part is worth its place: leaving any of them out costs nothing.")
    else:
        sentences.append(f"`{most}` has the most impact: leaving it out costs most.")
        least = min(others, key=lambda name: abs(losses[name]), default=most)
        if abs(losses[least]) < losses[most]:
            sentences.append(f"`{least}` has the least impact.")
    return " ".join(sentences) + "\n" + json.dumps({"baseline": base, "losses": losses})


def findings_in(summary: str) -> tuple[float | None, dict[str, float]]:
    """The baseline and the losses that a summary of ours tells, from its JSON."""
    for line in reversed(summary.splitlines()):
        if line.startswith("{"):
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if isinstance(told, dict) and isinstance(told.get("losses"), dict):
                return float(told["baseline"]), {str(k): float(v) for k, v in told["losses"].items()}
    return None, {}
