"""Answers of several scripts: blended by weights, without training anything, and how far two sets of them agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from mle_star.data.formulas import spearman
from mle_star.data.tables import Form, with_point
from mle_star.holdout.answers import Answers, Ungradable, label_of
from mle_star.holdout.scorer import Scorer

MOST_STEPS = 20


def can_blend(scorer: Scorer) -> bool:
    """Can answers be averaged: numbers or probabilities?"""
    return scorer.metric.needs in ("numbers", "probabilities")


def find_weights(scorer: Scorer, predictions: Mapping[str, Answers], rows: Sequence[int]) -> dict[str, float]:
    """Weights by name (Caruana): the member that helps most is added again and again, repeats included.

    Only members that answer all of `rows` take part; the weights add up to one.
    """
    members = {name: a for name, a in predictions.items() if all(row in a.hidden for row in rows)}
    if not members:
        return {}
    pairs = {name: scorer.pair(a.hidden, rows) for name, a in members.items()}
    truth = next(iter(pairs.values()))[0]
    sign = 1 if scorer.metric.higher_is_better else -1
    chosen, best, total = list[str](), float("-inf"), 0.0
    for step in range(1, MOST_STEPS + 1):
        figures: dict[str, float] = {}
        for name, (_, said) in pairs.items():
            with suppress(ValueError):
                figures[name] = sign * scorer.metric.compute(truth, (total + said) / step)
        name = max(figures, key=lambda one: figures[one], default="")  # the first of equals
        if not name or figures[name] <= best:
            break
        best, total = figures[name], total + pairs[name][1]
        chosen.append(name)
    return {name: count / len(chosen) for name, count in Counter(chosen).items()}


def blended(predictions: Mapping[str, Answers], weights: Mapping[str, float]) -> Answers:
    """The weighted mean of the members' answers."""
    members = [(weight, predictions[name]) for name, weight in weights.items()]

    def mean(cells: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        try:
            rows = [[weight * _number(cell) for cell in row] for (weight, _), row in zip(members, cells, strict=True)]
        except ValueError as error:
            raise Ungradable(f"an answer is no number: {error}") from None
        return tuple(repr(sum(column)) for column in zip(*rows, strict=True))

    shared = set.intersection(*(set(answers.hidden) for _, answers in members))
    hidden = {row: mean([answers.hidden[row] for _, answers in members]) for row in shared}
    return Answers(hidden, tuple(map(mean, zip(*(answers.real for _, answers in members), strict=False))))


def _number(text: str) -> float:
    """A number, with a decimal point or a decimal comma."""
    return float(with_point(text) if "," in text else text)


def agreement(scorer: Scorer, first: Sequence[tuple[str, ...]], second: Sequence[tuple[str, ...]]) -> float:
    """1: wholly. Answers are read as the metric reads them.

    Probabilities and values are compared as such, the order where only that counts, else labels.
    """
    metric, needs = scorer.metric, scorer.metric.needs
    if needs not in ("numbers", "probabilities"):
        pairs = [pair for rows in zip(first, second, strict=True) for pair in zip(*rows, strict=True)]
        return float(np.mean([label_of(one) == label_of(other) for one, other in pairs]))
    a, b = scorer.numbers(first), scorer.numbers(second)
    if metric.likeliest:
        likely = [np.argsort(-chances, axis=1)[:, : metric.likeliest] for chances in (a, b)]
        return float(np.mean([np.isin(*pair).mean() for pair in zip(*likely, strict=True)]))
    if metric.proper:
        return _concordance(a, b)
    by_order = needs == "probabilities" or metric.by_order
    columns = [i for i in range(a.shape[1]) if len(np.unique(a[:, i])) > 1]
    agree = [spearman(a[:, i], b[:, i]) if by_order else _concordance(a[:, [i]], b[:, [i]]) for i in columns]
    return float(np.mean(agree)) if columns else float(np.array_equal(a, b))


def _concordance(a: Any, b: Any) -> float:
    """One less the squared distance of two sets of rows, by that of rows which have nothing to do with each other."""
    by_chance = (a.var(axis=0) + b.var(axis=0) + (a.mean(axis=0) - b.mean(axis=0)) ** 2).sum()
    return float(1 - ((a - b) ** 2).sum(axis=1).mean() / by_chance) if by_chance else float(np.array_equal(a, b))


# --- the program of a blend --------------------------------------------------------------------------------

_SCRIPT = '''"""Run the scripts of `solution/` in turn and blend their answers by weights found on hidden rows."""

import csv
import subprocess
import sys
from pathlib import Path

WEIGHTS = {weights}
KEY, ANSWERS = {key!r}, {answers!r}
SEPARATOR, DECIMAL = {separator!r}, {decimal!r}
SUBMISSION = Path("final/submission.csv")


def read():
    """The rows that a member submitted; it may have written commas where others are asked for."""
    first = SUBMISSION.read_text(encoding="utf-8-sig").partition("\\n")[0]
    separator = SEPARATOR if set(ANSWERS) <= set(next(csv.reader([first], delimiter=SEPARATOR))) else ","
    with SUBMISSION.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream, delimiter=separator))


def named(rows, keyed):
    """The same rows by key, else by place."""
    return {{row[KEY].strip().removesuffix(".0") if keyed else place: row for place, row in enumerate(rows)}}


def number(text):
    return float(text.replace(".", "").replace(",", ".") if "," in text else text)


members = []
for place in range(1, len(WEIGHTS) + 1):
    subprocess.run([sys.executable, f"solution/member_{{place}}.py"], check=True)
    members.append(read())
keyed = all(KEY in row for rows in members for row in rows)
keyed = keyed and all(len({{row[KEY] for row in rows}}) == len(rows) for rows in members)
members = [named(rows, keyed) for rows in members]
for key, row in members[0].items():
    answers = {{name: sum(w * number(rows[key][name]) for w, rows in zip(WEIGHTS, members)) for name in ANSWERS}}
    row.update((name, repr(value).replace(".", DECIMAL)) for name, value in answers.items())
with SUBMISSION.open("w", encoding="utf-8", newline="") as stream:
    writer = csv.DictWriter(stream, list(row), delimiter=SEPARATOR, lineterminator="\\n")
    writer.writeheader()
    writer.writerows(members[0].values())
'''


def blend_script(weights: list[float], scorer: Scorer) -> str:
    """The program for these weights, with all that tells its rows and its numbers apart."""
    layout = scorer.data.layout
    sample = layout.sample
    form = sample.form if sample is not None and sample.form.kind == "csv" else Form()
    return _SCRIPT.format(
        weights=[round(weight, 6) for weight in weights],
        key=layout.key if scorer.data.asked_keys or not scorer.data.asked else None,
        answers=list(scorer.names),
        separator=form.separator,
        decimal=form.decimal,
    )
