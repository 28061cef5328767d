"""The parts on arrays: every model, step, blend, decision and metric does what it says."""

import ast
import contextlib
import inspect
import io
import itertools
import re
import runpy
import time
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

from mle_star.data import formulas
from mle_star.data import metrics as known_metrics
from mle_star.data.tables import Table
from mle_star.data.tables import read_table as table_of
from mle_star.engineer import parts, planning
from mle_star.engineer.design import Design, all_blends, assemble, families, fitting_steps, steps
from mle_star.engineer.moves import ANCHOR, changed
from mle_star.engineer.parts import deciding, trees
from mle_star.engineer.parts.core import Clock, Job, Pace, Rows, Settings, few_rows, grow, inner_split
from mle_star.engineer.parts.deciding import RECIPES
from mle_star.engineer.parts.encoding import as_table, build_features, encode
from mle_star.engineer.parts.matrices import fit_kernel
from mle_star.engineer.parts.reading import read_table
from mle_star.engineer.parts.texts import count_words
from mle_star.engineer.parts.validation import (
    Course,
    cross_validate,
    make_folds,
    rounds_of,
    rows_in_time,
    spread,
    with_found,
)
from mle_star.engineer.parts.validation import search_settings as search
from mle_star.engineer.planning import metric_settings
from mle_star.engineer.profile import table_settings
from tests.conftest import as_kept
from tests.engineer.conftest import profile_of, quick
from tests.engineer.small_tasks import TASKS

DICE = np.random.default_rng(5)
COLUMNS = {
    **{key: ["when", "then"] for key in ("dates", "calendar", "spans")},
    **{key: ["kind"] for key in ("counts", "target_means", "deviations", "code_parts")},
    **{key: ["text"] for key in ("text_sizes", "style")},
    **{key: ["when"] for key in ("lags", "neighbours_in_time")},
}
HURRIES = [(50_000, 3000, 0.05, 1.0, 0.0, 0.0), (5000, 300, 0.05, 20.0, 0.0, 0.3), (5000, 50, 0.1, 1.0, 30.0, 0.0),
           (3000, 3000, 0.05, 1e-3, 0.0, 0.0), (5000, 3000, 0.3, 1.0, 2.0, 1.0)]  # fmt: skip
SHORT = (20, 5, False, 0), (20, 5, True, 0), (6, 5, False, 20), (3, 3, True, 9), (9, 1, False, 9), (2, 1, False, 40)
"""Seconds, folds, whether the first models are cut off, and how many tenths of a second each takes."""
WORDS = {"words": 2, "pieces": 3, "bits": 12, "longest": 500}
WHOLE = (
    "with_extra_table", "forecast", "rankings", "label_sets", "log_loss_wide", "two_labels", "quadratic_kappa", "no_id",
    "mean_absolute", "shop", "grouped", "unlabelled_rows", "one_file", "odd_dates", "spelt_labels", "many_rows_a_key",
)  # fmt: skip


@pytest.fixture(autouse=True)
def same_dice() -> None:
    """Each test throws the same, whichever came before."""
    DICE.bit_generator.state = np.random.default_rng(5).bit_generator.state


def table(count: int = 260) -> tuple[pd.DataFrame, np.ndarray]:
    """Numbers with gaps, a category, a text, a date; and a signal."""
    x, kind = DICE.normal(size=(count, 3)), DICE.choice(["a", "b", "c"], count)
    signal = x[:, 0] + (kind == "b") * 1.5 - 0.5 * x[:, 1]
    text = [" ".join(DICE.choice(["good", "fine"] if s > 0 else ["bad", "poor"], 6)) for s in signal]
    frame = pd.DataFrame({"n0": x[:, 0], "n1": x[:, 1], "lat": x[:, 2] + 45, "kind": kind, "text": text})
    frame["when"] = pd.Timestamp("2021-01-01") + pd.to_timedelta(np.arange(count) * 7, unit="h")
    frame["then"] = frame["when"] + pd.Timedelta("3D")
    frame.loc[::9, "n1"] = np.nan
    return frame, signal


def job(kind: str, seconds: float = 20.0, most: float = 0.0) -> Job:
    return Job(kind, "squared", 3, 1, seconds, most)


def usual(key: str) -> Settings:
    """The usual settings of a family."""
    return {name: setting.usual for name, setting in families()[key].settings.items()}


def course(frame: pd.DataFrame, y: np.ndarray, test: pd.DataFrame, folds: Settings, fit: Any, **more: Any) -> Course:
    """What a model is cross-validated on; its settings are of no account here."""
    model = (fit, {"patience": 50, "rate": 0.1, "rounds": 90}, True)
    columns = {"numbers": list(frame.select_dtypes("number")), "categories": ["page"] if "page" in frame else []}
    data, pairs = (Rows(frame), y, Rows(test)), make_folds(frame, y, folds, 1)
    values = {"steps": {}, "features": {}, **more}
    return Course(*data, pairs, {"model": model}, columns=columns, job=job("regression"), clock=Clock(20.0), **values)


def truths(signal: np.ndarray) -> dict[str, Any]:
    """What is to be learned, by the kind of the task."""
    return {"regression": signal, "binary": (signal > 0) * 1, "multiclass": np.digitize(signal, [-0.5, 0.8])}


@pytest.mark.parametrize(
    ("key", "kind"),
    [(key, kind) for key in families() for kind in truths(np.zeros(1)) if (key, kind) != ("nbsvm", "regression")],
)
def test_every_family_learns_what_there_is_to_learn(key: str, kind: str) -> None:
    family = families()[key]
    frame, signal = table()
    y, rows = truths(signal)[kind], Rows(frame, count_words(frame, ["text"], WORDS) if family.reads else None)
    columns = {"numbers": ["n0", "n1"], "categories": ["kind"]}
    fit, held = np.arange(200), np.arange(200, 260)
    (given, others), _ = build_features(rows.take(fit), y[fit], [rows.take(held)], columns, {}, {}, job(kind))
    settings = {**usual(key), **family.cheap, "search": {}, "only": []}  # scripts use the last two themselves
    (p,) = family.fit(given, y[fit], [others], settings, job(kind, 300.0))
    as_kept_in_short(f"families/{key}-{kind}", p)
    if kind == "regression":
        assert np.mean((p - y[held]) ** 2) < 0.8 * np.var(y[held])
    else:
        assert p.shape == (60, y.max() + 1) and np.allclose(p.sum(axis=1), 1, atol=1e-4)
        assert np.mean(p.argmax(axis=1) == y[held]) > (0.45 if kind == "multiclass" else 0.6)


def bent(count: int) -> tuple[Rows, np.ndarray]:
    """Numbers with an interaction and a column of long tails, which a line cannot follow."""
    x = np.random.default_rng(7).normal(size=(count, 5))
    frame = pd.DataFrame(x, columns=[f"n{number}" for number in range(5)])
    frame["long"] = np.sinh(4 * x[:, 4]) * np.exp(np.random.default_rng(8).normal(size=count) * 3)
    return Rows(frame), np.where(x[:, 0] > 0, x[:, 1], -x[:, 1]) + np.abs(x[:, 2]) + np.sign(x[:, 4])


@pytest.mark.parametrize("key", ["lightgbm", "xgboost", "catboost", "hist_boosting", "extra_trees"])
def test_a_model_in_a_hurry_is_not_far_below_an_untuned_one_and_learns_from_fewer_rows(key: str) -> None:
    family, plain = families()[key], usual(key)
    untuned = 0.12  # the squared error of scikit-learn's histogram boosting as it comes
    late, none = job("regression", 0.01, 600.0), job("regression", 1e-4)
    tries = [(1000, plain, late, 0.3), (1000, {**plain, **family.cheap}, late, 0.3)]
    tries += [(8000, plain, none, 0.45)] if "patience" in plain else []
    for count, settings, hurry, share in tries:
        rows, y = bent(count + 300)
        fit, held = np.arange(count), np.arange(count, count + 300)
        (p,) = family.fit(rows.take(fit), y[fit], [rows.take(held)], settings, hurry)
        # it goes by the clock: 0.1 on a free machine
        assert np.mean((p - y[held]) ** 2) < untuned + share * np.var(y[held])


def test_a_family_tells_all_about_itself_in_one_place() -> None:
    folder = Path(inspect.getfile(parts)).parent
    engineer = [path for path in folder.parent.glob("*.py") if path.name not in ("profile.py", "checks.py")]
    for key, family in families().items():
        assert family.settings and family.cheap and family.ablations and family.moves
        for setting in family.settings.values():
            assert setting.low <= setting.usual <= setting.high and setting.meaning
            assert setting.small is None or setting.low <= setting.small <= setting.high
        tuned = {name for move in family.moves for name in move.changes}
        ablated = {name for part in family.ablations.values() for name in part}
        assert tuned | ablated | {*family.cheap, *family.search} <= set(family.settings)
        for move in family.moves:
            assert changed(usual(key), move.changes, family) != usual(key)
        named = [path.name for path in engineer if f'"{key}"' in path.read_text() or f"fit_{key}" in path.read_text()]
        assert named == [], "no other file knows a family by name"


def test_words_phrases_and_pieces_are_counted_as_the_usual_readers_count_them() -> None:
    from sklearn.feature_extraction.text import CountVectorizer

    frame = pd.DataFrame({"text": ["It's GOOD, good & bad!", "", "é ø good  bad", "a", "good bad\ngood bad"]})
    phrases = CountVectorizer(ngram_range=(1, 3), token_pattern=r"(?u)\b\w+\b|[^\w\s]")
    pieces = CountVectorizer(analyzer="char_wb", ngram_range=(2, 3))
    counted = count_words(frame, ["text"], {"words": 3, "pieces": 3, "bits": 16, "longest": 500})
    for reader, part in ((phrases, counted[:, : 2**16]), (pieces, counted[:, 2**16 :])):
        wanted, found = reader.fit_transform(frame["text"]).toarray(), part.toarray()
        assert sorted(map(tuple, wanted.T)) == sorted(map(tuple, found[:, found.any(axis=0)].T))


def as_kept_in_short(name: str, *made: Any) -> None:
    """Are these columns as those kept, by mean, mean distance from it, first and last value, whatever their signs?"""
    lines = list[str]()
    for frame in (as_table(one, "") for one in made):
        for column in frame:
            values = np.abs(frame[column].to_numpy("float64"))
            numbers = np.nanmean(values), np.nanstd(values), values[0], values[-1]
            lines.append(f"{column}: " + " ".join(f"{number:.3g}" for number in numbers))
    as_kept(f"engineer/{name}.txt", "\n".join(lines))


@pytest.mark.parametrize("key", steps())
def test_every_step_adds_numbers_and_learns_from_the_first_rows_alone(key: str) -> None:
    step = steps()[key]
    assert ". " in step.choice.plan and ". " not in step.choice.title, "its docstring names it and says why"
    frame, signal = table(160)
    frame = frame.fillna({"n1": 0.0}).replace({"text": {frame["text"][0]: "!"}})
    rows = Rows(frame, count_words(frame, ["text"], WORDS))
    settings: dict[str, Any] = {
        "columns": COLUMNS.get(key, ["n0", "n1"]),
        "pairs": 2, "numbers": ["n0"], "count": 2, "alpha": 1.0, "group": "kind",
        "horizon": 7,
    }  # fmt: skip
    if not step.learns:
        added = step.function(frame, settings)
        assert len(added) == len(frame) and added.shape[1] and all(kind.kind == "f" for kind in added.dtypes)
        as_kept_in_short(f"steps/{key}", added)
        pd.testing.assert_frame_equal(added.iloc[:50], step.function(frame.iloc[:50], settings))
        return
    fit = np.arange(100)
    tables = [[rows.take(fit), rows.take(np.arange(100, end))] for end in (160, 120)]
    (one, many), (two, few) = (step.function(given, signal[fit], settings, job("regression")) for given in tables)
    assert list(as_table(one, key).columns) == list(as_table(many, key).columns) and len(as_table(many, key)) == 60
    as_kept_in_short(f"steps/{key}", one, many)
    pd.testing.assert_frame_equal(as_table(one, key), as_table(two, key))
    pd.testing.assert_frame_equal(as_table(many, key).iloc[:20], as_table(few, key))
    if key == "components":  # which it learns from the first 20000 rows
        long = [Rows(pd.concat([frame] * 126))]
        assert len(step.function(long, np.tile(signal, 126), settings, job("regression"))[0]) == 20_160


def test_no_training_row_sees_its_own_target_in_a_mean() -> None:
    frame, noise = pd.DataFrame({"kind": [f"k{n // 2}" for n in range(300)]}), DICE.normal(size=300)
    made = steps()["target_means"].function([Rows(frame)], noise, {"columns": ["kind"], "pairs": 0}, job("regression"))
    assert abs(np.corrcoef(made[0][:, 0], noise)[0, 1]) < 0.3


def test_a_change_against_what_was_before_follows_a_trend_that_trees_cannot() -> None:
    days = pd.date_range("2020", periods=300)
    frame = pd.DataFrame({"when": np.repeat(days, 4), "page": np.tile(list("abcd"), 300)})
    y = np.repeat(np.arange(300.0), 4) + np.tile([0.0, 200, 400, 600], 300)
    later = pd.DataFrame({"when": np.repeat(pd.date_range(days[-1], periods=31)[1:], 4), "page": list("abcd") * 30})
    fit: Any = lambda rows, y, others, settings, job: [np.full(len(part.frame), y.mean()) for part in others]  # noqa: E731
    features = {"lags": {"columns": ["when"], "group": "page", "horizon": 30}}
    folds, lags = {"kind": "time", "count": 1, "column": "when", "share": 0.1}, {"lags": steps()["lags"].function}
    outcomes = [
        cross_validate(course(frame, y, later, folds, fit, steps=lags, features=features, anchor=anchor))
        for anchor in ("", ANCHOR)
    ]
    plain, anchored = (np.abs(one.known["model"][one.scored] - y[one.scored]).mean() for one in outcomes)
    level = cross_validate(course(frame, y * 0 + 7, later, folds, fit))  # all alike, and still numbers
    assert anchored < 0.3 * plain and set(level.known["model"][level.scored]) == {7.0}
    years, own = Rows(pd.DataFrame({"when": pd.date_range("2020", periods=900)})), {"columns": ["when"], "group": None}
    rows = [years.take(np.arange(800)), years.take(np.arange(800, 900))]
    made = steps()["lags"].function(rows, np.sin(np.arange(800) / 50) * 9, {**own, "horizon": 100}, job("regression"))
    as_kept_in_short("steps/lags-of-years", *made)


@pytest.mark.parametrize("key", all_blends())
def test_every_blend_keeps_the_good_and_the_shape(key: str) -> None:
    blend = all_blends()[key]
    assert ". " in blend.choice.plan and ". " not in blend.choice.title
    for kind in ("binary",) if key in ("ranks", "geometric") else ("binary", "regression"):
        y = DICE.integers(0, 2, 300) if kind == "binary" else DICE.normal(size=300)
        known = {name: y + DICE.normal(size=300) * wide for name, wide in (("good", 0.2), ("fair", 0.6), ("bad", 1.5))}
        if kind == "binary":
            chances = {name: 1 / (1 + np.exp(-4 * (value - 0.5))) for name, value in known.items()}
            known = {name: np.column_stack([1 - chance, chance]) for name, chance in chances.items()}
        else:
            known["worse"] = 2 * known["good"] - y  # the truth is the one by twice less the other
        score = formulas.roc_auc if kind == "binary" else formulas.r2
        (blended,) = blend.function(y, known, [known], score)
        as_kept_in_short(f"blends/{key}-{kind}", blended)
        assert blended.shape == known["good"].shape and score(y, blended) > score(y, known["bad"])


def of_script(metric: dict[str, Any], folder: Path, design: Design | None = None) -> tuple[dict[str, Any], Any]:
    """What a script with this metric, or of this design, defines, and its solution."""
    models, path = {"a line": {"family": "linear"}}, folder / "script.py"
    path.write_text(assemble(design or Design("", {}, [], metric, {}, None, 1.0, {}, models)), encoding="utf-8")
    defined = runpy.run_path(str(path))
    made = defined["Solution"]
    return defined, made(**{each.name: defined[each.name.upper()] for each in fields(made)})


@pytest.mark.parametrize("name", RECIPES)
def test_scripts_compute_every_metric_as_the_registry_does(name: str, tmp_path: Path) -> None:
    metric, kind = known_metrics.known_metric(name), RECIPES[name].kind
    defined, solution = of_script(metric_settings(RECIPES[name]), tmp_path)
    for labels in (np.array(["no", "yes"]), np.array(["d", "a", "b", "c"]))[: 1 if name == "gini" else 2]:
        y, chances = DICE.integers(0, len(labels), 200), np.round(DICE.dirichlet(np.ones(len(labels)), 200), 2)
        p, amounts, order = chances.argmax(axis=1), DICE.gamma(2.0, 3.0, 200), DICE.permutation(200)
        near = np.round(amounts + DICE.normal(0, 0.5, 200))
        sets = DICE.random((3, 200)) < 0.3, DICE.random((3, 200)) < 0.4
        ranked = np.array([" ".join(row) for row in labels[np.argsort(-chances, axis=1, kind="stable")]])
        score = defined["for_target"](solution, {"classes": labels.tolist()}).score
        if kind == "set":
            scored = [(truth.astype(int), order, guess[order].astype(int)) for truth, guess in zip(*sets, strict=True)]
            figure, wanted = defined["score_of_sets"](solution, scored), (sets[0].T, sets[1].T)
        else:
            given = {"number": (amounts, near), "chances": (y, chances), "ranking": (y, chances)}.get(kind, (y, p))
            known: dict[str, Any] = {"label": (labels[y], labels[p]), "ranking": (labels[y], ranked)}
            figure, wanted = score(*given), known.get(kind, given) if name != "hamming_loss" else given
        if name == "gini":
            wanted = y.astype(float), chances[:, 1]
            assert score(amounts, near) == pytest.approx(metric.compute(amounts, near))
        assert figure == pytest.approx(metric.compute(*wanted, [labels.tolist()] if kind == "label" else []), rel=1e-9)


def test_rows_of_one_class_fail_no_script_and_show_no_skill(tmp_path: Path) -> None:
    truth, chances = np.array([0] * 9), DICE.dirichlet(np.ones(2), 9)
    for name in ("gini", "average_precision", "roc_auc"):
        defined, solution = of_script(metric_settings(RECIPES[name]), tmp_path)
        assert defined["for_target"](solution, {"classes": ["no", "yes"]}).score(truth, chances) == 0.0
    with pytest.raises(ValueError, match=r"^the answers hold what is no number$"):
        defined["for_target"](solution, {"classes": ["a", "b"]}).score(np.arange(2), np.full((2, 2), np.nan))


def test_decisions_serve_the_metric_better_than_the_most_probable_class() -> None:
    y = (DICE.random(600) < 0.1).astype(int)
    chance = np.clip(0.1 + 0.25 * y + DICE.normal(size=600) * 0.08, 0.01, 0.99)
    p, f1 = np.column_stack([1 - chance, chance]), partial(formulas.f_score, positive=1)
    plain, cut = (decide(y, p, [p], f1)[0] for decide in (deciding.decide_most_probable, deciding.decide_best_cut))
    assert f1(y, cut) > f1(y, plain)
    grades = np.digitize(DICE.normal(size=400), [-1, 0, 1])
    guesses, kappa = grades * 0.5 + 0.9 + DICE.normal(size=400) * 0.1, formulas.quadratic_weighted_kappa
    (cuts,) = deciding.decide_cut_points(grades, guesses, [guesses], kappa)
    assert kappa(grades, cuts) > kappa(grades, np.clip(np.round(guesses), 0, 3).astype(int))
    three, likely = DICE.integers(0, 3, 600), DICE.dirichlet(np.ones(3), 600)
    likely = (likely + np.eye(3)[three] * [0.1, 0.3, 0.5]) / 1.3
    made = [np.array([plain, cut]).T, np.array([guesses - 1.5, cuts]).T]
    for decide in (deciding.decide_best_cut, deciding.decide_by_share, deciding.decide_label_cut):
        made.append(np.array([decide(*given, f1)[0] for given in ((y, p, [p]), (y, p, [p[::-1]]))]).T)
    for score in (formulas.accuracy, formulas.f_score):
        made.append(deciding.decide_class_factors(three, likely, [likely], score)[0][:, None])
    made += [deciding.decide_best_cut(three, likely, [likely], formulas.f_score)[0][:, None]]
    made += [deciding.decide_not_negative(y, p, [guesses - 1.5], f1)[0][:, None]]
    recipes = [f"{name}: {one.kind} {one.decide.__name__} {one.log} {one.loss}" for name, one in RECIPES.items()]
    as_kept("engineer/recipes.txt", "\n".join(recipes))
    as_kept_in_short("decided", *made)


def test_folds_follow_time_groups_and_classes() -> None:
    frame = pd.DataFrame({"when": pd.date_range("2020", periods=100), "who": np.arange(100) // 10})
    y: Any = np.arange(100) % 2
    ((fit, held),) = make_folds(frame, y, {"kind": "time", "count": 1, "column": "when"}, 1)
    assert fit.max() < held.min()
    odd: Any = np.arange(100) ** 2 % 7
    for kind, theirs in {"plain": KFold, "groups": GroupKFold, "classes": StratifiedKFold}.items():
        pairs = theirs(5, shuffle=True, random_state=1).split(frame, odd, frame["who"] if kind == "groups" else None)
        assert repr(make_folds(frame, odd, {"kind": kind, "count": 5, "column": "who"}, 1)) == repr([*pairs]), kind
    assert len(make_folds(frame, y, {"kind": "classes", "count": 5, "repeats": 2}, 1)) == 10
    ((_, held),) = make_folds(frame, y, {"kind": "classes", "count": 1}, 1)
    assert len(held) == 20 and y[held].mean() == 0.5


@pytest.fixture
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for the time has used a tenth of a second more."""
    ticks = itertools.count(0, 0.1)
    monkeypatch.setattr("time.monotonic", lambda: next(ticks))


@pytest.mark.usefixtures("even")
def test_by_a_clock_that_goes_evenly_each_has_the_time_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list[str]()
    for rows, rounds, rate, seconds, most, answering in HURRIES:
        pace = Pace({"rounds": rounds, "rate": rate}, job("regression", seconds, most), rows, answering)
        ends = [(pace.tick(), pace.late, pace.over) for _ in range(60)]
        known = [(*end, len(list(same))) for end, same in itertools.groupby(ends)]
        lines.append(f"pace: {known} {pace.rate:.4g} {pace.seconds:.4g} {pace.enough} {pace.spent:.4g}")
    for limit, share in (("", ""), ("100", ""), ("1000", "7"), ("1", "")):
        monkeypatch.setenv("MLE_STAR_SECONDS", limit)
        monkeypatch.setenv("MLE_STAR_SHARE", share)
        clock = Clock(90.0)
        figures = [clock.left(), clock.room(), clock.part(3).seconds, clock.part(2).most]
        lines.append(f"clock: {limit} {share} {' '.join(f'{figure:.4g}' for figure in figures)}")
    frame, signal = table(300)
    for kind, y in truths(signal).items():
        tries = list[str]()

        def fit(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
            tries.append(f"{len(y)} {job.seconds:.3g} {settings['gain']:.3g} {settings['size']}")  # noqa: B023
            near = [part.frame["n0"].to_numpy() * settings["gain"] for part in others]
            wide = 1 / (1 + np.exp(-settings["size"] * near[0]))
            return near if job.numeric else [np.column_stack([1 - wide, wide, wide])]

        for loss in ("squared", "absolute"):
            own = {"gain": 0.2, "size": 8, "search": {"gain": [0.1, 3.0], "size": [2, 9]}}
            best = search(fit, Rows(frame), y, own, replace(job(kind, 4.0), loss=loss))
            lines.append(f"search: {kind} {loss} {best['gain']:.3g} {best['size']} | {' | '.join(tries)}")
    for kind, y in truths(np.tile(signal, 20)).items():
        for seconds, most in ((1.0, 0.0), (0.15, 0.0), (0.01, 0.2), (1e-3, 0.0)):
            seen = list[int]()
            note: Any = lambda rows, y, others, settings, job: seen.extend([len(y), len(others[0].frame)])  # noqa: E731, B023
            part = course(pd.concat([frame] * 20), y, frame, {"kind": "plain", "count": 2}, note)
            few = rows_in_time(part, "model", part.rows, y, [part.rows], job(kind, seconds, most))
            lines.append(f"rows: {kind} {seconds} {most} {seen} {len(few)} {few[:5]} {part.paces['model']:.4g}")
    given: Any = frame[["n0"]], signal, {"rate": 0.1, "rounds": 90, "trees": 90}, job("regression", 0.0, 0.437)
    lines += [f"trees: {grow_them(*given)}" for grow_them in (trees.grow_hist_boosting, trees.grow_extra_trees)]
    as_kept("engineer/clock.txt", "\n".join(lines))


@pytest.mark.usefixtures("even")
@pytest.mark.parametrize("kind", ["regression", "multiclass"])
def test_folds_are_left_out_and_time_is_shared_as_it_was(kind: str) -> None:
    frame, signal = table(600)
    y, lines = truths(signal)[kind], list[str]()
    for number, (seconds, count, late, lasts) in enumerate(SHORT):
        calls = list[str]()

        def fit(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
            for _ in range(lasts):  # noqa: B023
                time.monotonic()
            calls.append(f"{len(y)} {[len(one.frame) for one in others]} {job.seed} {job.seconds:.3g} {job.most:.3g}")  # noqa: B023
            job.found.update(rounds=30, rate=0.1, late=late)  # noqa: B023
            many = len(np.unique(y)) if not job.numeric else 0
            made = [part.frame["n0"].fillna(0).to_numpy() * len(y) / 600 for part in others]
            return [np.column_stack([one] * many) if many else one for one in made]

        folds = {"kind": "classes" if kind == "multiclass" else "plain", "count": count}
        known = course(frame, y, frame.head(40), folds, fit, classes=3 if kind == "multiclass" else 0)
        known = replace(
            known, job=job(kind), clock=Clock(seconds), models={**known.models, "other": known.models["model"]}
        )
        outcome = cross_validate(known)
        ends = [float(np.abs(one).mean()) for one in (outcome.known["model"], outcome.test["other"])]
        lines.append(f"{number}: {len(outcome.scored)} {ends[0]:.4g} {ends[1]:.4g} | {' | '.join(calls)}")
    as_kept(f"engineer/rounds-{kind}.txt", "\n".join(lines))


@pytest.mark.usefixtures("even")
def test_what_models_are_shown_and_what_is_made_of_their_answers(tmp_path: Path, monkeypatch: Any) -> None:
    """Whole scripts; their models note what they are given and answer by the first number."""
    lines = list[str]()

    def fit(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
        frames, is_first = [one.frame for one in (rows, *others)], lines[-1].startswith("---")
        lines.append(
            f"{settings} {[*map(len, frames)]} {y.mean():.3g} {job.kind} {job.loss} {job.seed} {job.seconds:.3g}"
        )
        for column in frames[0] if is_first else ():
            cells = [one[column].cat.codes if one[column].dtype == "category" else one[column] for one in frames]
            lines.append(
                f"{column}: " + " ".join(f"{one.isna().sum()} {round(one.mean(), 3) + 0:.3g}" for one in cells)
            )
        x = [one.select_dtypes("number").iloc[:, 0].fillna(0).rank(pct=True) ** settings["gain"] for one in frames[1:]]
        chances = [np.column_stack([one**k for k in range(1 + int(y.max()))]) for one in map(np.array, x)]
        return [y.mean() + y.std() * one for one in x] if job.numeric else [p / p.sum(axis=1)[:, None] for p in chances]

    for name, course in (*((one, "solve") for one in WHOLE), *((one, "study") for one in WHOLE[:2])):
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / name)
        seen = profile_of(TASKS[name](Path("input")))
        features = {step.key: step.settings(seen) for step in fitting_steps(seen)}
        design = quick(seen, "linear", "extra_trees").changed(features=features, rows=120)
        models = {"a": (fit, {"gain": 1, "only": [*features][::2]}, True), "b": (fit, {"gain": 3}, False)}
        lines.append(f"--- {course} {name}")
        defined, solution = of_script({}, Path(), planning.study(design, "", 0) if course == "study" else design)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            defined[course](replace(solution, models=models), *([defined["VARIANTS"]] if course == "study" else []))
        lines += [printed.getvalue(), Path("final/submission.csv").read_text()[:300]]
    as_kept("engineer/whole.txt", re.sub(r"(\.\d{3})\d+", r"\1", "\n".join(lines)))


def test_no_class_is_lost_to_the_rows_that_stop_or_where_rows_are_few() -> None:
    y: Any = np.array([0, 1] * 150 + list(range(2, 60)))
    fit, stop = inner_split(y, 50, job("multiclass"))
    assert set(y[fit]) == set(y) and len(fit) + len(stop) == len(y)
    some, many = few_rows(y, 20, job("multiclass")), inner_split(np.zeros(300_000), 50, job("regression"))[1]
    assert set(y[some]) == set(y) and len(some) <= 80 and len(many) == 20_000


def test_later_folds_learn_for_as_long_as_the_first_ones_did_and_from_all_rows_once_each_is_scored() -> None:
    settings = {"rounds": 600, "rate": 0.05, "patience": 50, "leaves": 31}
    found = [{"rounds": 90, "rate": 0.1, "late": False}, {"rounds": 110, "rate": 0.1, "late": False}]
    assert with_found(settings, found[:1], 2) == settings
    assert with_found(settings, found, 2) == {"rounds": 110, "rate": 0.1, "patience": 0, "leaves": 31}
    cut = {"rounds": 20, "rate": 0.2, "late": True}
    assert with_found(settings, [*found[:1], cut], 2) == settings, "one that was cut off found nothing"
    for patience, wanted in ((50, {"rounds": 40, "rate": 0.05, "late": False}), (0, {})):
        work, own = job("regression"), {**settings, "patience": patience}
        grow(pd.DataFrame({"x": range(300)}), np.zeros(300), lambda *_: ("a model", 40, False), own, work)
        assert work.found == wanted, "and one that had no rows to stop by"
    folds = make_folds(pd.DataFrame({"n0": range(60)}), np.zeros(60), {"kind": "plain", "count": 2, "repeats": 2}, 1)
    rounds, once = rounds_of(folds, 60, False)
    assert ([len(fit) for fit, _ in rounds], once) == ([30, 30, 60, 30, 30], 2) and rounds[2][1] is None


def test_settings_seed_threads_and_loss_reach_the_libraries_and_trees_without_any_time_are_still_some() -> None:
    frame, y = pd.DataFrame(DICE.normal(size=(300, 2)), columns=["a", "b"]), DICE.normal(size=300)
    ours, lines = {"rounds": 30, "rate": 0.2, "patience": 0, "absolute": 1, "trees": 25}, list[str]()
    for key in ("lightgbm", "xgboost", "catboost", "hist_boosting", "extra_trees"):
        for seconds in (60.0, 1e-9):
            work = Job("regression", "absolute", 3, 1, seconds)
            train: Any = getattr(trees, f"train_{key}", None)
            fit = partial(grow, train=train) if train else getattr(trees, f"grow_{key}")
            model = fit(frame, y, settings={**usual(key), **ours}, job=work)
            if seconds > 1 or not train:
                usually = type(model)().get_params()
                own = {name: one for name, one in model.get_params().items() if repr(usually.get(name)) != repr(one)}
                lines.append(f"{key} {seconds}: {dict(sorted(own.items()))}")
            elif key == "catboost":
                assert 20 <= model.tree_count_ < 30
    as_kept("engineer/libraries.txt", "\n".join(lines))


def test_a_class_of_one_row_has_chances_none_is_certain_and_a_category_needs_no_level_that_comes_twice() -> None:
    frame, y = pd.DataFrame({"x": [0.0, 0.1, 0.2, 0.3, 5.0]}), np.array([0, 0, 0, 0, 1])
    (chances,) = fit_kernel(Rows(frame), y, [Rows(frame)], {"strength": 10.0}, job("binary"))
    assert chances.sum(axis=1) == pytest.approx(np.ones(5)) and list(chances.argmax(axis=1)) == list(y)
    written = spread(np.array([[1.0, 0.0], [0.25, 0.75]]), np.zeros(2), np.array([0, 2]), 3, "plain", job("multiclass"))
    assert written.tolist() == [[1 - 1e-6, 1e-6, 1e-6], [0.25, 1e-6, 0.75]]
    frame = pd.DataFrame({"plate": [f"B-{i}" for i in range(30)], "x": np.arange(30.0)})
    fit, other = encode([frame, frame.iloc[:3]], ["x"], ["plate"])
    assert list(fit.columns) == list(other.columns) == ["x", "plate"]
    assert len(fit["plate"].cat.categories) == 1 and fit["plate"].isna().all()


def test_a_part_imports_only_numpy_pandas_and_the_standard_library_at_its_top() -> None:
    folder, seen = Path(inspect.getfile(parts)).parent, dict[str, str]()
    for path in (*folder.rglob("*.py"), Path(formulas.__file__)):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                source = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                assert (source or "").split(".")[0] not in ("sklearn", "scipy", "lightgbm", "xgboost", "catboost")
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                assert node.name not in seen, (path, seen[node.name], "a script has one name for one thing")
                seen[node.name] = path.name


def test_ids_that_are_digits_in_a_book_keep_their_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("input").mkdir()
    pd.DataFrame({"id": ["007", "008"], "y": [1, 2]}).to_excel("input/train.xlsx", index=False)
    table = table_of(Path("input/train.xlsx"))
    settings = table_settings(table, ["id", "y"]) if isinstance(table, Table) else {}
    assert [list(column) for _, column in read_table(settings).items()] == [["007", "008"], [1, 2]]
