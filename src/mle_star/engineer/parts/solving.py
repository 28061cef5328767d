"""The course of a script: read, learn, score, answer; or a study of what its parts are worth."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Clock, Job, Memory, Rows, Settings
from mle_star.engineer.parts.reading import as_classes, number_columns, read_data, read_table
from mle_star.engineer.parts.texts import count_words
from mle_star.engineer.parts.validation import Course, Model, Outcome, cross_validate, make_folds

Prepared = tuple[Rows, Rows, Settings]


@dataclass(frozen=True)
class Solution:
    """All that a script consists of."""

    data: Settings
    targets: list[Settings]
    folds: Settings
    metric: Settings
    score: Callable[..., float]
    decide: Callable[..., list[np.ndarray]]
    features: Settings
    row_steps: dict[str, Callable[..., pd.DataFrame]]
    fold_steps: dict[str, Callable[..., list[pd.DataFrame]]]
    models: dict[str, Model]
    combine: Callable[..., list[np.ndarray]]
    rows: int | None
    seconds: float
    words: Settings

    @property
    def seed(self) -> int:
        """The seed that the harness gives."""
        return int(os.environ.get("MLE_STAR_SEED", "42"))


def prepare(solution: Solution, train: pd.DataFrame, test: pd.DataFrame) -> Prepared:
    """The rows with all that can be said of a row by itself, and the columns to learn from."""
    data, prepared = solution.data, list[Rows]()
    numbers = number_columns(train, data) + [name for name in data["amounts"] if name in train]
    reading = data["texts"] + data["lists"]
    for frame in (train, test):
        made = {name: step(frame, solution.features[name]) for name, step in solution.row_steps.items()}
        words = count_words(frame, reading, solution.words) if reading else None
        prepared.append(Rows(pd.concat([frame, *made.values()], axis=1), words))
    steps = {name: [str(column) for column in table.columns] for name, table in made.items()}
    columns = {"numbers": numbers + [c for made in steps.values() for c in made], "categories": data["categories"]}
    return prepared[0], prepared[1], {**columns, "steps": steps}


def learn_target(
    solution: Solution, target: Settings, frame: pd.DataFrame, prepared: Prepared, clock: Clock, memory: Memory
) -> tuple[np.ndarray, Outcome]:
    """The truth of one target, and what the models predict of it."""
    rows, test, columns = prepared
    classes = target.get("classes", [])
    if target["kind"] == "number":
        y = pd.to_numeric(frame[target["name"]], errors="coerce").fillna(0).to_numpy(dtype=float)
    else:
        y = as_classes(frame[target["name"]], classes)
    numeric = target["kind"] in ("number", "grade")
    kind = "regression" if numeric else "binary" if len(classes) == 2 else "multiclass"
    threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    job = Job(kind, solution.metric["loss"], solution.seed, threads, solution.seconds, memory=memory)
    folds = {**solution.folds, "kind": "plain"} if numeric and solution.folds["kind"] == "classes" else solution.folds
    pairs, parts = make_folds(frame, y, folds, solution.seed), (solution.models, solution.fold_steps, solution.features)
    goal = (target.get("scale", "plain"), target.get("anchor", ""), len(classes))
    return y, cross_validate(Course(rows, y, test, pairs, *parts, columns, job, clock, *goal))


def for_target(solution: Solution, target: Settings) -> Solution:
    """The solution with the metric of one target: of two classes F1 and its like look at the second."""
    options = {"positive": 1} if "positive" in solution.metric and len(target.get("classes", [])) == 2 else {}

    def score(y: np.ndarray, p: np.ndarray) -> float:
        try:
            return solution.score(y, p, **options)
        except ValueError:
            if y.min() < y.max():
                raise
            return 0.0  # rows of one class tell nothing apart

    return replace(solution, score=score)


def answers_of(solution: Solution, y: np.ndarray, known: Any, others: list[Any]) -> list[np.ndarray]:
    """Blended and decided predictions for `others`; weights and cuts are learned from `known` and its truth."""
    sign = 1 if solution.metric["higher"] else -1

    def by_metric(truth: np.ndarray, p: np.ndarray) -> float:
        return sign * solution.score(truth, p)

    def by_chances(truth: np.ndarray, p: np.ndarray) -> float:
        if solution.metric["answers"] in ("label", "set"):
            return float(np.mean(np.log(np.clip(p[np.arange(len(truth)), truth], 1e-6, 1))))
        return -float(np.mean((truth - p) ** 2)) if solution.metric["answers"] == "grade" else by_metric(truth, p)

    if len(known) == 1 or len(y) < 10:
        blends = [next(iter(other.values())) for other in (known, *others)]
    else:
        blends = solution.combine(y, known, [known, *others], by_chances)
    return solution.decide(y, blends[0], blends[1:], by_metric)


def honest_answers(solution: Solution, y: np.ndarray, outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """The rows that were scored, and for each an answer that was learned from other rows."""
    order, given = np.random.default_rng(solution.seed).permutation(outcome.scored), []
    for part in np.array_split(order, 5 if len(order) >= 50 else 1):
        others = np.setdiff1d(order, part) if len(part) < len(order) else part
        known, held = ({name: p[rows] for name, p in outcome.known.items()} for rows in (others, part))
        given.append(answers_of(solution, y[others], known, [held])[0])
    return order, np.concatenate(given)


def score_of_sets(solution: Solution, scored: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> float:
    """The metric over all labels: of each the truth, the rows that were scored, and the answers for these."""
    truth: np.ndarray = np.zeros((len(scored[0][0]), len(scored)), dtype=bool)
    given = truth.copy()
    for place, (y, rows, answers) in enumerate(scored):
        truth[rows, place], given[rows, place] = y[rows] == 1, answers == 1
    seen = np.unique(np.concatenate([rows for _, rows, _ in scored]))
    return solution.score(truth[seen], given[seen])


def solve(solution: Solution) -> None:
    """Learn, print the score, and write the answers to `./final/submission.csv`."""
    warnings.simplefilter("ignore")  # notices of libraries about their own future
    clock = Clock(solution.seconds)
    train, test = read_data(solution.data, solution.rows, solution.folds, solution.seed)
    solution = as_far_ahead(solution, train, test)
    memory = Memory(solution.data, solution.folds)
    if memory.full:
        try:
            score, answers = learn_all(solution, train, test, clock, memory)
            print(f"The models were fitted before: {memory.folder}")
        except Exception as error:
            print(f"What was kept in {memory.folder} does not serve, all is fitted again: {error!r}")
            memory.forget()
    if not memory.full:
        score, answers = learn_all(solution, train, test, clock, memory)
        memory.close()
    print(f"Final Validation Performance: {score}")
    write_submission(solution, test, answers)


def as_far_ahead(solution: Solution, train: pd.DataFrame, test: pd.DataFrame) -> Solution:
    """The solution for so many days ahead as it was made for, or as the rows to answer lie if that is further.

    What it learns is for all of these days: it is scored by as many, and rows that lie nearer change nothing of it.
    """
    if solution.folds["kind"] != "time":
        return solution
    folds, (first, last) = solution.folds, train[solution.folds["column"]].agg(["min", "max"])
    days = (test[folds["column"]].max().normalize() - last.normalize()).days
    ahead = int(max(folds.get("ahead", 1), 1, days if days == days else 1))
    latest = float((train[folds["column"]] > last - pd.Timedelta(days=ahead)).mean())
    folds = {**folds, "ahead": ahead, "share": min(0.2, max(0.05, latest, 300 / len(train)))}
    horizon = {"horizon": max(1, min(ahead, (last - first).days // 2))}
    features = {key: {**own, **horizon} if "horizon" in own else own for key, own in solution.features.items()}
    return replace(solution, folds=folds, features=features)


def learn_all(
    solution: Solution, train: pd.DataFrame, test: pd.DataFrame, clock: Clock, memory: Memory
) -> tuple[float, dict[str, np.ndarray]]:
    """The score, and the answers for the test rows by target."""
    prepared = prepare(solution, train, test)
    scored, scores, answers = [], [], {}
    sets = solution.metric["answers"] == "set"
    for number, target in enumerate(solution.targets):
        own, part = for_target(solution, target), clock.part(len(solution.targets) - number)
        y, outcome = learn_target(own, target, train, prepared, part, memory)
        order, given = honest_answers(own, y, outcome)
        scored.append((y, order, given))
        scores.append(0.0 if sets else own.score(y[order], given))
        known = {name: p[outcome.scored] for name, p in outcome.known.items()}
        answers[target["name"]] = answers_of(own, y[outcome.scored], known, [outcome.test])[0]
    return score_of_sets(solution, scored) if sets else float(np.mean(scores)), answers


def study(solution: Solution, variants: dict[str, Settings]) -> None:
    """Print the score of the solution and of each variant: it drops steps or models, or changes settings."""
    warnings.simplefilter("ignore")
    train, _ = read_data(solution.data, solution.rows, solution.folds, solution.seed)
    solution, scores = as_far_ahead(solution, train, train.head(2)), dict[str, float]()
    for name, variant in {"baseline": {}, **variants}.items():
        clock = Clock(solution.seconds)
        clock.most /= 2  # there are several variants
        scores[name], _ = learn_all(varied(solution, variant), train, train.head(2), clock, Memory())
        print(f"Ablation {name}: {scores[name]}")
    parts = [name for name in scores if name != "baseline"]
    worst = min if solution.metric["higher"] else max
    print(f"The part that contributes most is {worst(parts, key=lambda name: scores[name])}.")


def varied(solution: Solution, variant: Settings) -> Solution:
    """The solution without some steps or models, with other settings, or on the target's own scale."""
    drop, change = variant.get("drop", []), variant.get("change", {})
    models = {name: model for name, model in solution.models.items() if name not in drop}
    return replace(
        solution,
        row_steps={name: step for name, step in solution.row_steps.items() if name not in drop},
        fold_steps={name: step for name, step in solution.fold_steps.items() if name not in drop},
        models={name: (fit, {**own, **change.get(name, {})}, timed) for name, (fit, own, timed) in models.items()},
        targets=[{**target, **variant.get("target", {})} for target in solution.targets],
    )


def write_submission(solution: Solution, test: pd.DataFrame, answers: dict[str, np.ndarray]) -> None:
    """The answers in the form of the sample, row by row, or by id where both name their rows."""
    data, given = solution.data, pd.DataFrame(index=test.index)
    for answer in data["answers"]:
        target = next(target for target in solution.targets if target["name"] == answer["target"])
        given[answer["column"]] = cells_of(answers[target["name"]], target, answer, solution.metric)
    key, sample = data["id"], read_table(data["sample"]) if data["sample"] else None
    if sample is not None and key in sample and key in test and test[key].is_unique:
        ours, wanted = test[key].map(str), sample[key].map(str)
        given = given.set_index(ours).loc[wanted] if set(ours) == set(wanted) else given
    if sample is None:
        table = pd.concat([test[[key]], given], axis=1) if key in test else given
    elif len(sample) == len(given):
        table = sample.assign(**{name: given[name].to_numpy() for name in given})
    else:
        rows = read_table(data["test"]) if data["test"] else test
        table = pd.DataFrame({name: given[name] if name in given else rows.get(name) for name in sample})
    options = data["sample"].get("options", {}) if sample is not None else {}
    form = {name: value for name, value in options.items() if name in ("sep", "decimal")}
    Path("./final").mkdir(exist_ok=True)
    table.to_csv("./final/submission.csv", index=False, **form)


def cells_of(p: np.ndarray, target: Settings, answer: Settings, metric: Settings) -> Any:
    """What is written for each row: a number, a label, the chance of a class, or the best labels in order."""
    labels = np.array(target.get("classes", []), dtype=object)
    if target["kind"] == "number":
        return p
    if metric["answers"] == "ranking":
        return [" ".join(map(str, row)) for row in labels[np.argsort(-p, axis=1)[:, : metric["most"]]]]
    if p.ndim == 1:
        return labels[p.astype(int)]
    if "class" in answer:
        return p[:, labels == answer["class"]].sum(axis=1)
    return p[:, 1] if p.shape[1] == 2 else labels[p.argmax(axis=1)]
