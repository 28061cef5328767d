"""Which rows of one table are related, and leaks in the data: what is planted is found, nothing that only looks so."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mle_star import ConfigError, PipelineConfig, fit
from mle_star.cli.app import main
from mle_star.data.columns import describe
from mle_star.data.layout import find_layout
from mle_star.data.leaks import leaks_in
from mle_star.data.metrics import known_metric
from mle_star.data.tables import Unsupported
from mle_star.holdout import related
from mle_star.holdout.answers import Answers
from mle_star.holdout.holdout import HoldOut
from mle_star.holdout.related import Rule, moments_in
from mle_star.holdout.split import split_rows, wanted_rule
from mle_star.holdout.views import Data
from mle_star.models.settings import SIZES
from mle_star.run.events import HoldOutPrepared, Notice
from mle_star.run.journal import read_journal
from mle_star.views.display import make_display
from tests.conftest import Captured, Patch, as_kept
from tests.method.conftest import make_task
from tests.pipeline.mind import Mind, MindAgents, fenced

Dice = np.random.Generator
Columns = Any
COUNT = 360


def noise(dice: Dice, count: int = COUNT) -> Columns:
    return {"a": dice.normal(size=count).round(3), "b": dice.normal(size=count).round(3)}


def walk(dice: Dice, count: int = COUNT) -> Any:
    return np.cumsum(dice.normal(size=count))


def days(count: int = COUNT, first: str = "2024-01-01") -> Any:
    return pd.date_range(first, periods=count).strftime("%d/%m/%Y")


def series(dice: Dice) -> Columns:
    return {"day": days(), **noise(dice), "y": walk(dice)}


def panel(dice: Dice) -> Columns:
    shops = [pd.DataFrame({"week": range(40, 100), "shop": f"s{i}", "y": walk(dice, 60) + 5 * i}) for i in range(6)]
    return pd.concat(shops).to_dict("list")


def persons(dice: Dice, name: str = "patient_id") -> Columns:
    who = dice.integers(0, 45, COUNT)
    return {name: who + 100, "p": dice.normal(size=45)[who], "y": dice.integers(0, 2, 45)[who], **noise(dice)}


def visits(dice: Dice) -> Columns:
    table = pd.DataFrame(persons(dice)).sort_values("patient_id")
    start = pd.Timestamp("2024-01-01") + pd.to_timedelta(dice.integers(0, 300, 45)[table["patient_id"] - 100], unit="D")
    seen = start + pd.to_timedelta(table.groupby("patient_id").cumcount() * 9, unit="D")
    return table.assign(seen=seen.dt.strftime("%Y-%m-%d")).to_dict("list")


def thrice(dice: Dice) -> Columns:
    return pd.concat([pd.DataFrame({**noise(dice, 120), "y": dice.normal(size=120)})] * 3).to_dict("list")


def jittered(dice: Dice) -> Columns:
    table = pd.DataFrame(thrice(dice))
    table[["a", "b"]] += dice.normal(size=(COUNT, 2)) * 1e-4
    return table.to_dict("list")


def shuffled(make: Callable[[Dice], Columns], share: float = 1.0) -> Callable[[Dice], Columns]:
    return lambda dice: pd.DataFrame(make(dice)).sample(frac=share, random_state=1).to_dict("list")


def few_values(dice: Dice) -> Columns:
    columns = {name: dice.integers(0, 3, COUNT) for name in "abcd"}
    return {**columns, "y": columns["a"] + dice.normal(size=COUNT)}


def on_a_line(dice: Dice) -> Columns:
    x = dice.normal(size=COUNT)
    return {"a": x, "b": 2 * x + 1, "y": x + dice.normal(size=COUNT)}


def kinds(name: str, shift: int = 0) -> Callable[[Dice], Columns]:
    def make(dice: Dice) -> Columns:
        kind = dice.integers(0, 30, COUNT)
        cells = kind + shift if shift else np.array([f"town {chr(97 + k)}" for k in kind])
        return {name: cells, **noise(dice), "y": dice.normal(size=30)[kind] * 3 + dice.normal(size=COUNT)}

    return make


CASES: dict[str, tuple[Callable[[Dice], Columns], str, str]] = {
    "a series": (series, "time", "day"),
    "a series, shuffled": (shuffled(series), "time", "day"),
    "a series with a gap of years, shuffled": (shuffled(
        lambda dice: {**series(dice), "day": [*days(COUNT - 90), *days(90, "2031-01-01")]}), "time", "day"),
    "several series, by numbered weeks": (panel, "time", "week"),
    "patients": (persons, "groups", "patient_id"),
    "persons": (lambda dice: persons(dice, "person"), "groups", "person"),
    "patients alike in the target alone": (lambda dice: {**persons(dice), "p": dice.random(COUNT)},
                                           "groups", "patient_id"),
    "patients in the order of their visits": (visits, "groups", "patient_id"),
    "rows three times": (thrice, "copies", ""),
    "rows three times, with a number each": (lambda dice: {"id": range(COUNT), **thrice(dice),
                                              "line_id": range(7, 7 + COUNT)}, "copies", ""),
    "rows three times, a little changed": (shuffled(jittered), "copies", ""),
    "some of a series, shuffled": (shuffled(series, 0.6), "quantiles", "day is alike"),
    "a date that says nothing": (lambda dice: {"day": days(), **noise(dice), "y": dice.random(COUNT)}, "quantiles", ""),
    "ids whose rows are not alike": (lambda dice: {"user_id": dice.integers(0, 45, COUNT), **noise(dice),
                                     "y": dice.normal(size=COUNT)}, "quantiles", "user_id"),
    "rows of few values": (few_values, "quantiles", ""),
    "numbers on a line": (on_a_line, "quantiles", ""),
    "towns": (kinds("town"), "quantiles", ""),
    "areas": (kinds("zip", 10_000), "quantiles", ""),
    "kinds of things": (kinds("category_id", 1), "quantiles", ""),
    "numbers of rooms": (kinds("rooms", 1), "quantiles", ""),
}  # fmt: skip


def opened(folder: Path, columns: Columns, **settings: Any) -> Data:
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(columns).to_csv(folder / "train.csv", index=False)
    return Data.read(find_layout(folder, "Predict `y`."), PipelineConfig(**settings))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_what_relates_the_rows_of_one_table_decides_which_are_hidden(tmp_path: Path, name: str, seed: int) -> None:
    make, kind, column = CASES[name]
    data = opened(tmp_path, make(np.random.default_rng(seed)))
    rule, split = data.rule, data.split(seed=seed)
    assert rule.kind == kind
    if kind == "quantiles":
        assert len(rule.hints) == bool(column) and all(column.split()[0] in hint for hint in rule.hints)
        return
    assert rule.column == column and rule.reason.count(" to change") == 1
    units = data.units
    assert units is not None
    for view in split.views:
        hidden, shown = ({units[row] for row in rows} for rows in (view, data.stays(view)))
        assert min(hidden) > max(shown) if kind == "time" else not hidden & shown
        assert 0.05 * COUNT < len(view) < 0.4 * COUNT


NAMED = """patient_id userId PATIENT_NO id uuid id_old Id paid video store_number shop.name customers group_key host
category_id product_id zip day_id day t time_idx week_no weeks step ticks period-number tickets number"""


def test_figures_and_words_about_related_rows_are_what_they_were(tmp_path: Path) -> None:
    def short(*figures: Any) -> str:
        return " ".join(f"{float(one):.3g}" for one in figures)

    def digest(rows: Any) -> str:
        return f"{len(rows)} rows from {min(rows, default=-1)} to {max(rows, default=-1)} of sum {sum(rows)}"

    lines = list[str]()
    for name, (make, *_) in CASES.items():
        data = opened(tmp_path / name, make(np.random.default_rng(7)))
        rows, rule = related.Known(data.layout, data.train), data.rule
        lines.append(f"--- {name}: {rule.kind} {rule.column} | {rule.reason} | {' | '.join(rule.hints)}")
        for column in rows.features:
            about, codes = data.layout.train.column(column), rows.codes(column)
            share, others = related._explained(rows.target, codes), related._alike_features(rows, column, codes)
            figures = short(*share, others, related.may_be_time(about), related.may_be_entity(about))
            known = moments_in(column, data.train.column(column))
            if related.may_be_time(about):
                when = np.array([known[cell].timestamp() for cell in data.train.column(column)])
                panel = related._panel(rows, [c for c in rows.features if c != column], when, np.isfinite(when))
                own = related._in_order(when, panel), related._is_series(when, panel), related._is_regular(when)
                figures += f" | {short(*own, related._drifts(rows.target, when, panel), panel.sum())}"
            lines.append(f"{column}: {figures} {sorted(known.items())[:2]}")
        metric = known_metric("rmse" if data.layout.target.columns[0].numeric and name != "patients" else "accuracy")
        task = make_task(tmp_path / name, description="Predict `y`.", evaluation_metric=metric.name,
                         metric_direction=metric.direction)  # fmt: skip
        holdout = HoldOut.prepare(task, PipelineConfig(seed=7), tmp_path / f"{name} run", write=0)
        truth, places = list(zip(*holdout.scorer.data.truth, strict=True)), holdout.hidden_rows
        late = dict(zip(places, (truth[row] for row in [*places[9:], *places[:9]]), strict=True))
        right = {row: truth[row] if row % 3 else late[row] for row in places}
        measures = [holdout.measure(Answers(late, ()), rows, ahead=ahead) for rows in (None, holdout.select_rows)
                    for ahead in (False, True)]  # fmt: skip
        lines += [f"{short(one.score, one.low, one.high)} on {one.rows} rows of {one.views} views" for one in measures]
        change, dummy = holdout.compare(Answers(right, ()), Answers(late, ()), places), holdout.baseline()
        assert change is not None and dummy is not None
        better = short(change.difference, change.error, change.wins)
        lines.append(f"{better} | {short(dummy.score, dummy.low, dummy.high)}")
        shown = *holdout.split.views, holdout.split.select, *next(holdout.select_halves()), holdout.compared_rows(1)
        lines += [*map(digest, shown), f"{holdout.search_views} {holdout.digest} {holdout.horizon}"]
    for name in NAMED.split():
        columns = [describe(name, list(map(str, cells))) for cells in (range(50), ["A-1", "B 22"] * 9, ["a", "7", ""])]
        lines.append(f"{name}: {[(related.may_be_time(one), related.may_be_entity(one)) for one in columns]}")
    kinds: Any = ("classes", "quantiles", "groups", "copies", "random")
    for kind, count, folds in itertools.product(kinds, (60, 1499, 1500, 4999, 5000, 12_000), (None, 1, 2)):
        split = split_rows(Rule(kind, "c", ""), [str(i * 7919 % 613 % 250) for i in range(count)], seed=3, folds=folds)
        lines.append(f"{kind} {count} {folds}: {' | '.join(map(digest, (*split.views, split.select)))}")
    for span, each, ahead in itertools.product((5, 40, 400), (1, 3, 40), (0, 1, 7, 60)):
        cells = [str(100 + i % span) for i in range(span * each)] + ["?"] * 3
        later = [str(100 + span + i) for i in range(ahead)]
        for folds in (None, 1):
            split = split_rows(Rule("time", "c", ""), cells, seed=3, ahead=later, folds=folds)
            lines.append(f"{span} {each} {ahead} {folds}: {' | '.join(map(digest, (*split.views, split.select)))}")
    tied = [*range(400), *[400] * 300, *range(401, 701)]  # a moment of many rows lies in the middle
    split = split_rows(Rule("time", "c", ""), list(map(str, tied)), seed=3, ahead=["2000"])
    lines.append(f"tied: {' | '.join(map(digest, (*split.views, split.select)))}")
    as_kept("holdout/related.txt", "\n".join(lines).replace(str(tmp_path), "…"))


@pytest.mark.parametrize(
    ("make", "chosen", "kind", "column"),
    [
        (persons, {"split": "random"}, "classes", "y"), (persons, {"group": "none"}, "classes", "y"),
        (persons, {"time_column": "a"}, "time", "a"), (persons, {"split": "group"}, "groups", "patient_id"),
        (series, {"time_column": "none"}, "quantiles", "y"), (series, {"split": "time"}, "time", "day"),
        (lambda dice: {**(known := panel(dice)), "week": [None, *known["week"][1:]]}, {}, "time", "week"),
        (panel, {"group": "shop"}, "groups", "shop"), (thrice, {"split": "random"}, "quantiles", "y"),
    ],
)  # fmt: skip
def test_settings_go_before_what_the_data_show(
    tmp_path: Path, make: Callable[[Dice], Columns], chosen: dict[str, Any], kind: str, column: str
) -> None:
    rule = opened(tmp_path, make(np.random.default_rng(1)), **chosen).rule
    assert (rule.kind, rule.column) == (kind, column)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"group": "patientid"}, "group: 'patientid' is no column of train.csv; did you mean patient_id?"),
        ({"group": "y"}, "group: 'y' is the target"), ({"time_column": "note"}, "note holds neither dates nor numbers"),
        ({"group": "one"}, "all rows have the same one"), ({"group": "own"}, "every row has its own own"),
        ({"split": "time"}, "no column of train.csv looks like dates; name it with --time-column"),
        ({"group": "p", "time_column": "a"}, "in one way"), ({"group": "p", "split": "random"}, "in one way"),
        ({"group": "p", "scoring": "self_reported"}, "hides none"),
        ({"split": "time", "preset": "letter"}, "hides none"),
    ],
)  # fmt: skip
def test_a_split_that_cannot_be_is_refused_in_words(tmp_path: Path, chosen: dict[str, Any], words: str) -> None:
    columns = {**persons(np.random.default_rng(1)), "note": "w", "one": 1, "own": range(COUNT)}
    pd.DataFrame(columns).assign(note=[f"n{'ab'[i % 2]}" for i in range(COUNT)]).to_csv(tmp_path / "train.csv")
    with pytest.raises((ConfigError, ValueError)) as error:
        wanted_rule(find_layout(tmp_path, "Predict `y`."), PipelineConfig(**chosen))
    assert words in str(error.value)


def test_copies_stay_together_unless_the_test_has_copies_of_training_rows_too(tmp_path: Path) -> None:
    table = pd.DataFrame(thrice(np.random.default_rng(1))).sample(frac=1, random_state=1, ignore_index=True)
    table[60:][["a", "b"]].to_csv(tmp_path / "test.csv", index=False)
    assert opened(tmp_path, table[:60].to_dict("list")).rule.kind == "quantiles"
    (table[:60][["a", "b"]] + 50).to_csv(tmp_path / "test.csv", index=False)
    assert opened(tmp_path, table.assign(late=table["a"]).to_dict("list")).rule.kind == "copies"
    keyed = table.assign(id=range(len(table)))
    (keyed[["a", "b", "id"]][:60] + 1000).to_csv(tmp_path / "test.csv", index=False)
    keyed[["id", "y"]].to_csv(tmp_path / "train_labels.csv", index=False)
    assert opened(tmp_path, keyed.drop(columns="y").to_dict("list")).rule.kind == "copies", "wherever their labels are"


@pytest.mark.parametrize(
    ("rare", "metric", "words"),
    [
        (2, "roc_auc", "one class only"), (2, "f1", "some class is too rare"), (2, "accuracy", ""), (6, "f1", ""),
        (6, "roc_auc", ""), (20, "roc_auc", ""),
    ],
)  # fmt: skip
def test_scripts_run_first_where_the_metric_says_something(tmp_path: Path, rare: int, metric: str, words: str) -> None:
    for seed in range(4):
        folder = tmp_path / str(seed)
        (folder / "in").mkdir(parents=True)
        table = pd.DataFrame({**noise(np.random.default_rng(seed), 100), "y": [int(i < rare) for i in range(100)]})
        table.to_csv(folder / "in" / "train.csv", index=False)
        task = make_task(folder / "in", description="Predict `y`.", evaluation_metric=metric)
        try:
            holdout = HoldOut.prepare(task, PipelineConfig(seed=seed), folder / "run", write=0)
        except Unsupported as error:
            assert words and words in str(error)
            continue
        for part in (holdout.compared_rows(1), [row for row in holdout.select_rows if row in holdout.split.views[0]]):
            assert not words and (metric == "accuracy" or len({row < rare for row in part}) == 2)


LEAKY = 300
DICE = np.random.default_rng(5)
PRICE, NOISE = DICE.lognormal(9, 1, LEAKY), DICE.normal(size=LEAKY)
SORT = DICE.choice(["red", "green", "blue"], LEAKY)
PLAIN = {"a": NOISE.round(3), "b": DICE.integers(0, 9, LEAKY)}


@pytest.mark.parametrize(
    ("columns", "target", "words"),
    [
        ({"net": PRICE * 0.9 + NOISE * 50}, PRICE, "`net` alone tells `y` almost exactly"),
        ({"order": np.where(PRICE < 4000, np.nan, -np.log(PRICE))}, PRICE, "`order` alone tells"),
        ({"code": [len(s) for s in SORT]}, SORT, "`code` alone tells"),
        ({"text": [f"a {s}" for s in SORT], "code": [len(s) for s in SORT]}, SORT, "`text`, `code` alone each tell"),
        ({"id": range(LEAKY)}, np.sort(PRICE), "`id` orders `y`"),
        ({"near": PRICE * np.exp(NOISE * 0.4)}, PRICE, ""),  # a good feature
        ({"near": [s if n < 0.8 else "red" for s, n in zip(SORT, NOISE, strict=True)]}, SORT, ""),
        ({"id": range(LEAKY)}, PRICE, ""), ({"a": 1, "b": PRICE}, PRICE, ""),
        ({"name": [f"n{i}" for i in range(LEAKY)]}, SORT, ""),
        ({"rare": [int(i < 2) for i in range(LEAKY)]}, [int(i < 2) for i in range(LEAKY)], ""),  # too few to be sure
    ],
)  # fmt: skip
def test_a_column_that_tells_the_target_is_named(tmp_path: Path, columns: Any, target: Any, words: str) -> None:
    pd.DataFrame({**PLAIN, **columns, "y": target}).to_csv(tmp_path / "train.csv", index=False)
    found = leaks_in(tmp_path, "Predict `y`.")
    assert len(found) == bool(words) and all(words in one for one in found)


def test_rows_of_the_test_among_the_training_rows_and_columns_that_it_lacks_are_named(tmp_path: Path) -> None:
    table = pd.DataFrame({"id": range(LEAKY), **PLAIN, "after": PRICE, "y": PRICE})
    table.to_csv(tmp_path / "train.csv", index=False)
    table[200:].assign(a=lambda some: some["a"] + (some["id"] % 2) / 9)[["id", "a", "b"]].to_csv(tmp_path / "test.csv")
    again, late = leaks_in(tmp_path, "The target is `y`.")
    assert again == "50 % of the rows of test.csv are in train.csv, too"
    assert late == "`after`: in train.csv only, of no use for predictions"


ANSWERS = """import csv
test, header = csv.DictReader(open("input/test.csv")), next(csv.reader(open("input/sample_submission.csv")))
answers = [[row.get(name, len(row["a"]) % 2) for name in header] for row in test]
csv.writer(open("final/submission.csv", "w")).writerows([header, *answers])
print("Final Validation Performance: 0.5")"""


def test_patients_stay_together_and_a_leak_is_named_or_not(tmp_path: Path, monkeypatch: Patch, capfd: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    who = DICE.integers(0, 45, LEAKY)
    ill = DICE.integers(0, 2, 45)[who]
    persons = {"patient_id": who, "p": DICE.normal(size=45)[who], **PLAIN, "billed": ill * 7 + 1, "ill": ill}
    pd.DataFrame(persons).to_csv("patients.csv", index=False)
    words = ["run", "patients.csv", "--target", "ill", "--model", "offline", "--dry-run"]
    for more, problem in ((["--drop", "biled"], "--drop biled: there is no such column; did you mean billed?"),
                          (["--group", "patient"], "group: 'patient' is no column of patients.csv")):  # fmt: skip
        assert main([*words, *more]) == 1 and problem in capfd.readouterr().err
    assert main([*words, "--drop", "billed", "--split", "random"]) == 0 and "5 columns" in capfd.readouterr().err
    plan: dict[str, Any] = {**dict.fromkeys(SIZES, 1), "score_views": 1}
    agents = MindAgents(Mind(overrides=dict.fromkeys(("init", "ablation", "coder", "test"), fenced(ANSWERS))))
    with make_display("plain") as display:
        fit("patients.csv", "ill", run_dir="one", settings=plan, agents=agents, listeners=[display])
        fit("patients.csv", "ill", run_dir="two", settings={**plan, "split": "random"}, drop=["billed"], agents=agents)
    shown = "".join(capfd.readouterr())
    assert "rows of one patient_id are alike, so they stay together; `--group none` to change" in shown
    events = list(read_journal(Path("one/journal.jsonl")))
    (prepared,) = [event for event in events if isinstance(event, HoldOutPrepared)]
    notices = [event.message for event in events if isinstance(event, Notice)]
    assert prepared.rule.startswith("groups: ") and any("`billed` alone tells `ill`" in one for one in notices)
    assert "`billed` alone tells" in Path("one/report.html").read_text(encoding="utf-8")
    view = Path("one/views/view-0")
    known, hidden = (set(pd.read_csv(view / name)["patient_id"]) for name in ("train.csv", "test.csv"))
    assert hidden and not known & hidden
    assert main(["score", "one"]) == 0, "the rows can be drawn again"
    assert "billed" not in pd.read_csv("two/data/train.csv")
    assert "`billed` alone" not in Path("two/journal.jsonl").read_text(encoding="utf-8")
    assert main(["predict", "two", "patients.csv", "--output", "out.csv"]) == 0 and len(pd.read_csv("out.csv")) == LEAKY
