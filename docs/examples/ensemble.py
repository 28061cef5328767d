"""Predict "y" with LightGBM and Regularised linear model, scored by roc_auc (higher is better).

Whatever is learned from data is learned inside each fold, from its training rows alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# --- settings -------------------------------------------------------------------------------------
DATA = {
    "train": {"file": "train.csv"},
    "test": {"file": "test.csv"},
    "sample": {"file": "sample_submission.csv"},
    "id": "id",
    "targets": ["y"],
    "unlabelled": [],
    "answers": [{"column": "y", "target": "y"}],
    "numbers": ["n0", "n1", "n2", "n3"],
    "amounts": [],
    "categories": ["kind"],
    "texts": [],
    "lists": [],
    "dates": {},
    "ignored": [],
}
FOLDS = {"kind": "classes", "count": 5, "repeats": 2}
ROWS = None
SECONDS = 90.0


# --- target ---------------------------------------------------------------------------------------
TARGETS = [{"name": "y", "kind": "classes", "classes": ["0", "1"]}]


# --- rows and time --------------------------------------------------------------------------------
Settings = dict[str, Any]
Score = Callable[[np.ndarray, np.ndarray], float]


class Memory:
    """What is fitted, one thing after another, a file each in a folder below `./model/`.

    It is kept where `./model/` is, and recalled where the same script has kept it of the same training data, scored by
    the same `folds`.
    """

    def __init__(self, data: Settings | None = None, folds: Settings | None = None) -> None:
        place = Path("./model")
        self.open = data is not None and place.is_dir()
        self.folder = place / fingerprint(data, folds) if data is not None and self.open else place
        self.draft = self.folder.with_suffix(".draft")
        self.full = self.open and self.folder.is_dir()
        self.count, self.room = 0, min(2**29, shutil.disk_usage(".").free // 8)
        if self.open:
            shutil.rmtree(self.draft, ignore_errors=True)  # of a script that was stopped

    def hold(self, make: Callable[..., Any], *given: Any) -> Any:
        """What `make` makes of what is given, or has made before; what is held on the way is a part of it."""
        if not self.open:
            return make(*given)
        self.count += 1
        if self.full:
            return pickle.loads((self.folder / f"{self.count}.pickle").read_bytes())
        self.open = False
        made = make(*given)
        self.open = self.write(made)
        return made

    def write(self, made: Any) -> bool:
        """Keep one thing; where that fails or there is no room for it, the script goes on and keeps nothing at all."""
        try:
            kept = pickle.dumps(made)
            self.room -= len(kept)
            if self.room < 0:
                raise OSError("it is too large")
            self.draft.mkdir(exist_ok=True)
            (self.draft / f"{self.count}.pickle").write_bytes(kept)
        except Exception as reason:
            print(f"What is fitted is not kept: {reason}")
            shutil.rmtree(self.draft, ignore_errors=True)
            return False
        return True

    def close(self) -> None:
        """All is fitted: what was kept of it is complete."""
        if self.open and not self.full and self.count:
            self.draft.replace(self.folder)

    def forget(self) -> None:
        """Begin again."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.full, self.count = False, 0


def fingerprint(data: Settings, folds: Settings | None) -> str:
    """This script, its folds and the tables that it learns from, as one number."""
    tables = [data["train"], *(other["table"] for other in (data.get("labels"), *data.get("lookups", [])) if other)]
    digest = hashlib.sha256(repr(folds).encode())
    for path in (Path(__file__), *(Path("./input") / table["file"] for table in tables)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Rows:
    """A table of features; `words` are counts of words and of list entries, a sparse matrix of the same rows."""

    frame: pd.DataFrame
    words: Any = None

    def take(self, index: np.ndarray) -> Rows:
        """Some of the rows."""
        return Rows(self.frame.iloc[index], None if self.words is None else self.words[index])


@dataclass(frozen=True)
class Job:
    """What a model is to do: `kind` is binary, multiclass or regression.

    `seconds` is the time it should take, `most` what it may take where less would not do; what it finds out about its
    own settings it leaves in `found`, and what it fits it holds in `memory`.
    """

    kind: str
    loss: str
    seed: int
    threads: int
    seconds: float
    most: float = 0.0
    found: Settings = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    @property
    def numeric(self) -> bool:
        """Are numbers to be predicted, rather than the probabilities of classes?"""
        return self.kind == "regression"


class Clock:
    """The time of a script. The harness says how long the script may take, and what its even share would be."""

    def __init__(self, wanted: float) -> None:
        self.started = time.monotonic()
        limit = float(os.environ.get("MLE_STAR_SECONDS") or 600.0)
        share = float(os.environ.get("MLE_STAR_SHARE") or wanted)
        self.seconds = max(2.0, min(wanted, share, 0.8 * limit))
        self.most = max(self.seconds, 0.35 * limit)

    def left(self) -> float:
        """Seconds left of what the script should take."""
        return self.started + self.seconds - time.monotonic()

    def room(self) -> float:
        """Seconds left of what it may take where its share is too short for a sound answer."""
        return self.started + self.most - time.monotonic()

    def part(self, count: int) -> Clock:
        """A clock for the next of so many equal parts of what is left."""
        clock = Clock(self.seconds)
        clock.seconds, clock.most = max(1.0, self.left() / count), max(1.0, self.room() / count)
        return clock


class Pace:
    """The pace of a model that learns in rounds: after a few of them it is known what the time allows.

    Where there is time for few rounds only, their steps are larger; where there is time for too few, it takes longer
    than it should; and where even that would not do, it begins again with fewer rows (`enough`).
    `answering`: the seconds that each round adds to the time in which the model answers.
    """

    def __init__(self, settings: Settings, job: Job, rows: int, answering: float = 0.0) -> None:
        self.settings, self.job, self.rows, self.enough, self.answering = settings, job, rows, rows, answering
        self.times: list[float] = []
        self.seconds, self.rate = max(job.seconds, job.most), settings["rate"]

    def tick(self) -> bool:
        """A round is done; is it the one after which the pace is known?"""
        self.times.append(time.monotonic())
        if len(self.times) != 6:
            return False
        fewest, each = min(100, self.settings["rounds"]), max(self.spent / 5, 1e-5)
        self.seconds = max(self.job.seconds, min(self.job.most, fewest * each))
        wanted = min(30.0, self.settings["rounds"] * self.settings["rate"])
        self.rate = float(min(0.2, max(self.settings["rate"], wanted * each / self.seconds)))
        able = self.seconds / each / fewest
        if able < 0.5 and self.rows > 4000:
            self.enough = max(2000, int(able * self.rows))
        return True

    @property
    def spent(self) -> float:
        """Seconds that the rounds so far take, for learning and for answering."""
        return self.times[-1] - self.times[0] + (len(self.times) - 1) * self.answering

    @property
    def late(self) -> bool:
        """Is its time over? A few rounds it has in any case."""
        return len(self.times) >= 20 and self.spent > self.seconds

    @property
    def over(self) -> bool:
        """Must the model end now?"""
        return self.late or self.enough < self.rows

    def after_iteration(self, info: Any) -> bool:
        """Does CatBoost go on after a round?"""
        self.tick()
        return not self.late


def few_rows(y: np.ndarray, count: int, job: Job) -> np.ndarray:
    """Some rows at random, one of every class among them."""
    some = np.random.default_rng(job.seed).permutation(len(y))[:count]
    lone = np.zeros(0, dtype=int) if job.numeric else np.unique(y, return_index=True)[1]
    chosen: np.ndarray = np.unique(np.append(some, lone))
    return chosen


def inner_split(y: np.ndarray, patience: float, job: Job) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from and rows to stop by, a tenth at most; a class that would be lost from the first stays."""
    order = np.random.default_rng(job.seed).permutation(len(y))
    if patience <= 0 or len(y) < 200:
        return np.sort(order), order[:0]
    size = min(len(y) // 10, 20000)
    stop, fit = order[:size], order[size:]
    if not job.numeric:
        lone = ~np.isin(y[stop], y[fit])
        fit, stop = np.append(fit, stop[lone]), stop[~lone]
    return np.sort(fit), np.sort(stop)


def grow(
    x: pd.DataFrame, y: np.ndarray, train: Callable[..., Any], settings: Settings, job: Job, wait: float = 0.0
) -> Any:
    """Trees, as many as the time allows, that stop by a part of the rows where `patience` is set.

    `train` gives the model, its rounds, and whether it was cut off. Each round adds `wait` seconds to the answers.
    """
    pace = Pace(settings, job, len(y), wait)
    fit, stop = inner_split(y, settings["patience"], job)
    held = [(x.iloc[stop], y[stop])] if len(stop) else []
    model, rounds, late = train(x.iloc[fit], y[fit], held, settings, pace, job)
    if pace.enough < len(y):
        some = few_rows(y, pace.enough, job)
        return grow(x.iloc[some], y[some], train, settings, job, wait)
    if held:
        job.found.update(rounds=max(10, rounds), rate=pace.rate, late=late)
    return model


def rounds_in_time(model: Any, x: Any, y: np.ndarray, few: int, job: Job) -> float:
    """For how many rounds there is time, by a `few` that the model is fitted with first."""
    started = time.monotonic()
    model.fit(x, y)
    each = max((time.monotonic() - started) / few, 1e-4)
    return max(job.seconds, min(job.most, 100 * each)) / each


def options_in(settings: Settings) -> Settings:
    """The settings of trees that are parameters of their library."""
    ours = ("rounds", "rate", "patience", "absolute", "trees", "search", "only")
    return {name: value for name, value in settings.items() if name not in ours}


def fit_predict(fit: Callable[..., Any], tables: list[Any], y: np.ndarray, job: Job, *more: Any) -> list[np.ndarray]:
    """Numbers, or chances of classes, for all tables but the first, by the model that `fit` makes of that one."""
    first, *others = tables
    model = job.memory.hold(fit, first, y, *more)
    return [model.predict(other) if job.numeric else model.predict_proba(other) for other in others]


# --- reading --------------------------------------------------------------------------------------
def read_table(table: Settings) -> pd.DataFrame:
    """One file of `./input`. Columns under `spelt` are read letter by letter, as ids and labels must be."""
    path, options, form = Path("./input") / table["file"], table.get("options", {}), table.get("form", "csv")
    if form in ("lines", "records"):
        text = path.read_text(encoding="utf-8-sig")
        lines = [json.loads(line) for line in text.split("\n") if line.strip()] if form == "lines" else json.loads(text)
        return pd.json_normalize(lines[table["key"]] if "key" in table else lines)
    if form == "columns":
        return pd.read_json(path, encoding="utf-8-sig")
    letters = table.get("spelt", [])
    if form in ("parquet", "excel"):
        return pd.read_parquet(path) if form == "parquet" else pd.read_excel(path, dtype=dict.fromkeys(letters, str))
    frame = pd.read_csv(path, low_memory=False, **options)
    if spelt := [name for name in letters if name in frame]:
        plain = {name: value for name, value in options.items() if name != "na_values"}
        frame[spelt] = pd.read_csv(path, usecols=spelt, dtype=str, na_filter=False, **plain)[spelt]
    return frame


def read_data(data: Settings, most: int | None, folds: Settings, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows to learn from, `most` of them, and the rows to answer, with what other tables know about them."""
    train = read_table(data["train"])
    if data.get("labels"):
        train = train.merge(read_table(data["labels"]["table"]), on=data["labels"]["on"])
    truth = train[data["targets"]]
    known = ~(truth.isna() | truth.isin(data["unlabelled"])).any(axis=1)
    test = read_table(data["test"]) if data["test"] else train if known.all() else train[~known]
    train, test = train[known].reset_index(drop=True), test.reset_index(drop=True).copy()
    if folds["kind"] != "time":  # early, as every further step copies what there is
        train = sample_rows(train, most, folds, seed)
    for lookup in data.get("lookups", []):
        train, test = (look_up(frame, lookup) for frame in (train, test))
    return sample_rows(with_types(train, data), most, folds, seed), with_types(test, data)


def sample_rows(frame: pd.DataFrame, most: int | None, settings: Settings, seed: int) -> pd.DataFrame:
    """At most so many rows: the latest where the test rows come later, else at random."""
    if most is None or len(frame) <= most:
        return frame
    if settings["kind"] == "time":
        return frame.sort_values(settings["column"], kind="stable").tail(most).reset_index(drop=True)
    return frame.sample(n=most, random_state=seed).reset_index(drop=True)


def look_up(frame: pd.DataFrame, lookup: Settings) -> pd.DataFrame:
    """The frame with the columns of another table; where that has many rows for a key, with their statistics."""
    other, key = read_table(lookup["table"]), lookup["on"]
    other[key], keys = as_names(other[key]), as_names(frame[key])
    label = Path(lookup["table"]["file"]).stem
    if lookup.get("many"):
        groups = other.groupby(key)
        numbers = other.drop(columns=key).select_dtypes("number").columns
        parts = [groups.size().rename(f"{label} rows")]
        parts += [groups[name].mean().rename(f"{label} {name} mean") for name in numbers]
        parts += [groups[name].max().rename(f"{label} {name} most") for name in numbers]
        words = [name for name in other.drop(columns=key).columns if name not in numbers]
        parts += [groups[name].agg(lambda cells: cells.mode().iat[0] if len(cells.mode()) else None) for name in words]
        other = pd.concat(parts, axis=1)
    else:
        other = other.drop_duplicates(key).set_index(key)
    other = other.rename(columns={name: f"{label} {name}" for name in other.columns if name in frame})
    return pd.concat([frame, other.reindex(keys).set_axis(frame.index)], axis=1)


def as_names(cells: pd.Series) -> pd.Series:
    """Whole numbers as they are written: one gap in the column makes 7 a 7.0."""
    return cells.astype(str).str.replace(r"\.0$", "", regex=True)


def with_types(frame: pd.DataFrame, data: Settings) -> pd.DataFrame:
    """Dates as moments, amounts in words as numbers, lists and texts as texts; what is missing is left missing."""
    changed: dict[str, Any] = {}
    for name, form in data["dates"].items():
        cells = pd.to_numeric(frame[name], errors="coerce") if form == "seconds" else frame[name]
        cells = as_names(cells) if form == "%Y%m%d" else cells
        read: Settings = {"unit": "s"} if form == "seconds" else {"format": form or None, "utc": form == "mixed"}
        changed[name] = pd.to_datetime(cells, errors="coerce", **read).dt.tz_localize(None)
    for name in data["amounts"]:
        amount = frame[name].astype(str).str.replace(",", "").str.extract(r"([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)")[0]
        changed[name] = pd.to_numeric(amount, errors="coerce")
    for name in data["lists"]:
        changed[name] = frame[name].map(as_tokens)
    for name in data["texts"]:
        changed[name] = frame[name].fillna("").astype(str)
    for name in data["categories"]:
        changed[name] = frame[name].astype(str).where(frame[name].notna(), None)
    numbers = number_columns(frame, data)
    figures = frame[numbers].select_dtypes(["number"]).astype("float64").copy()  # one block, for wide tables
    for name in [name for name in numbers if name not in figures]:
        cells = frame[name].replace({"True": 1, "False": 0, True: 1, False: 0})
        figures[name] = pd.to_numeric(cells, errors="coerce").astype("float64")
    figures = figures[numbers].where(np.isfinite(figures)).clip(-1e15, 1e15)
    others = frame.drop(columns=[*numbers, *changed])
    return pd.concat([others, pd.DataFrame(changed, index=frame.index), figures], axis=1)


def number_columns(frame: pd.DataFrame, data: Settings) -> list[str]:
    """The columns of numbers: those named, or, where there are too many to name, all that are nothing else."""
    if data["numbers"] is not None:
        return [name for name in data["numbers"] if name in frame]
    others = {data["id"], *data["targets"], *data["ignored"], *data["dates"]}
    others |= {*data["amounts"], *data["lists"], *data["texts"], *data["categories"]}
    return [name for name in frame.columns if name not in others]


def as_tokens(cell: Any) -> str:
    """A list as a text of tokens: each entry as one word, then its words; a record by its keys and values."""
    if isinstance(cell, dict):
        cell = [f"{key}={value}" for key, value in cell.items()]
    if not isinstance(cell, (list, tuple, set, np.ndarray)):
        return "" if cell is None or cell != cell else str(cell)
    entries = [json.dumps(entry) if isinstance(entry, (dict, list)) else str(entry) for entry in cell]
    whole = ["_".join(entry.split()) for entry in entries]
    return " ".join([*whole, *(entry for entry, token in zip(entries, whole, strict=True) if entry != token)])


def as_classes(cells: pd.Series, classes: list[str]) -> np.ndarray:
    """Labels as numbers of their classes; numbers are compared as numbers, so that 1 and 1.0 are one."""
    plain = {label_key(label): number for number, label in enumerate(classes)}
    numbers: np.ndarray = np.array([plain.get(label_key(cell), 0) for cell in cells], dtype=int)
    return numbers


def label_key(label: Any) -> str:
    """A label as it is compared."""
    text = str(label).strip()
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else repr(number)


# --- encoding -------------------------------------------------------------------------------------
def encode(frames: list[pd.DataFrame], numbers: list[str], categories: list[str]) -> list[pd.DataFrame]:
    """Numbers and categories; levels that are rare in the first frame, or new, count as missing."""
    kept = list(frames[0][numbers].dropna(axis=1, how="all"))
    small = len(kept) > 300 or len(kept) * len(frames[0]) > 20_000_000
    built = [frame[kept].astype("float32" if small else "float64") for frame in frames]
    for name in categories:
        counts = frames[0][name].value_counts()
        levels = list(counts[counts >= 2].index[:250]) or ["none"]  # some models refuse a category without any
        for number, frame in enumerate(frames):
            known = frame[name].where(frame[name].isin(levels))
            built[number] = built[number].assign(**{name: pd.Categorical(known, categories=levels)})
    return built


def build_features(
    fit: Rows, y: np.ndarray, others: list[Rows], columns: Settings, steps: Settings, settings: Settings, job: Job
) -> tuple[list[Rows], dict[str, list[str]]]:
    """The features of `fit` and of `others`, learned from `fit` alone; and which columns came from which step."""
    rows = [fit, *others]
    made = [encode([part.frame for part in rows], columns["numbers"], columns["categories"])]
    origin: dict[str, list[str]] = dict(columns.get("steps", {}))
    for name, step in steps.items():
        made.append([as_table(table, name) for table in step(rows, y, settings[name], job)])
        origin[name] = [str(column) for column in made[-1][0].columns]
    built = []
    for part, *pieces in zip(rows, *made, strict=True):
        frame = pd.concat([piece.set_axis(part.frame.index) for piece in pieces], axis=1)
        built.append(Rows(frame, part.words))
    return built, origin


def as_table(made: Any, name: str) -> pd.DataFrame:
    """What a step has made as a table: columns of an array are numbered."""
    table = pd.DataFrame(made)
    return table.add_prefix(f"{name} ") if isinstance(made, np.ndarray) else table


def cross_fitted(model: Any, tables: list[Any], truth: np.ndarray, folds: int, job: Job) -> list[np.ndarray]:
    """Predictions for each table by a model of the first: for that one's own rows by models that have not seen them."""
    from sklearn.model_selection import KFold

    first, *others = tables
    own = np.zeros(truth.shape)
    for fit, held in KFold(folds, shuffle=True, random_state=job.seed).split(first):
        own[held] = job.memory.hold(model.fit, first[fit], truth[fit]).predict(first[held])
    model = job.memory.hold(model.fit, first, truth)
    return [own, *(model.predict(table) for table in others)]


def without(rows: Rows, names: list[str]) -> Rows:
    """The rows without some of their columns."""
    return Rows(rows.frame.drop(columns=[name for name in names if name in rows.frame]), rows.words) if names else rows


def as_codes(frame: pd.DataFrame) -> pd.DataFrame:
    """Categories as numbers, a missing one as -1; column names that every library takes."""
    codes = {name: frame[name].cat.codes.astype("float32") for name in frame.select_dtypes("category")}
    return with_plain_names(frame.assign(**codes))


def as_ranks(frames: list[pd.DataFrame]) -> list[np.ndarray]:
    """Every number as its place among those of the first frame, 0 to 1, so that a cut at random is one among the rows
    however long a tail is; a missing one lies below."""
    made: list[np.ndarray] = [np.full(frame.shape, -0.1, dtype="float32") for frame in frames]
    for place, name in enumerate(frames[0].columns):
        known = np.sort(frames[0][name].dropna().to_numpy())
        known = known[np.linspace(0, len(known) - 1, min(len(known), 1000)).astype(int)]
        for ranks, frame in zip(made, frames, strict=True):
            cells = frame[name].to_numpy()
            given = ~np.isnan(cells)
            ranks[given, place] = np.searchsorted(known, cells[given]) / max(len(known), 1)
    return made


def with_short_tails(frames: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Numbers with a long tail on a scale that is linear in the middle and logarithmic beyond."""
    numbers = frames[0].select_dtypes("number")
    if not numbers.shape[1]:
        return frames
    low, middle, high = (numbers.quantile(share) for share in (0.25, 0.5, 0.75))
    width, reach = high - low, (numbers - middle).abs().max()
    long = [name for name in numbers if 0 < 20 * width[name] < reach[name]]
    return [frame.assign(**np.arcsinh((frame[long] - middle[long]) / width[long])) for frame in frames]


def with_plain_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Numbered column names, for libraries that refuse some characters."""
    return frame.set_axis([f"c{number}" for number in range(frame.shape[1])], axis=1)


def as_matrix(fit: Rows, others: list[Rows], *, bins: int = 0, words: bool = True) -> list[Any]:
    """A matrix for linear models: scaled numbers, their bins, a column for each level, and the weighted words."""
    from scipy import sparse
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, StandardScaler

    frames = with_short_tails([part.frame for part in (fit, *others)])
    numbers, levels = list(fit.frame.select_dtypes("number")), list(fit.frame.select_dtypes("category"))
    filled = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    parts: list[Any] = [("numbers", make_pipeline(filled, StandardScaler()), numbers)]
    if levels:
        parts.append(("levels", OneHotEncoder(handle_unknown="ignore", min_frequency=3), levels))
    many = [name for name in numbers if frames[0][name].nunique() > bins]
    if bins and many:
        cut = KBinsDiscretizer(bins, encode="onehot", strategy="quantile", quantile_method="averaged_inverted_cdf")
        parts.append(("bins", make_pipeline(SimpleImputer(strategy="median"), cut), many))
    matrices: list[Any] = [None] * (1 + len(others))
    if numbers or levels:
        shaped = ColumnTransformer(parts, sparse_threshold=0.3).fit(frames[0])
        matrices = [shaped.transform(frame) for frame in frames]
        matrices = [np.clip(matrix, -8, 8) if isinstance(matrix, np.ndarray) else matrix for matrix in matrices]
    if words and fit.words is not None:
        weighted = weigh_words(fit.words, [part.words for part in others])
        if numbers or levels:
            pairs = zip(matrices, weighted, strict=True)
            # of about the size of the words, without which solvers take many times as long
            matrices = [sparse.hstack([0.2 * sparse.csr_matrix(a), b]).tocsr() for a, b in pairs]
        else:
            matrices = weighted
    return matrices


def fit_logistic(tables: list[Any], y: np.ndarray, strength: float, rounds: int, job: Job) -> list[np.ndarray]:
    """Chances by logistic regression; on sparse matrices each class against the rest, which is much quicker."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    count = int(y.max()) + 1
    if not sparse.issparse(tables[0]) or count > 60:
        return fit_predict(LogisticRegression(C=strength, max_iter=rounds, tol=1e-3).fit, tables, y, job)
    return fit_each_class(y, lambda label: tables, strength, rounds, job)


def fit_scaled(fit: Any, tables: list[Any], y: np.ndarray, job: Job, *more: Any) -> list[np.ndarray]:
    """Numbers by a model that learns them around 0 and with a spread of 1."""
    middle, spread = float(np.mean(y)), float(np.std(y)) or 1.0
    return [p * spread + middle for p in fit_predict(fit, tables, (y - middle) / spread, job, *more)]


def fit_each_class(y: np.ndarray, parts_for: Any, strength: float, rounds: int, job: Job) -> list[np.ndarray]:
    """Chances by a logistic regression for each class against the rest, on sparse matrices that may differ by class."""
    from sklearn.linear_model import LogisticRegression

    count, chances = int(y.max()) + 1, list[np.ndarray]()
    for label in [1] if count == 2 else range(count):
        matrix, *others = parts_for(label)
        chances = chances or [np.zeros((part.shape[0], count)) for part in others]
        model = LogisticRegression(C=strength, solver="liblinear", dual=True, max_iter=rounds, tol=0.01, random_state=0)
        model = job.memory.hold(model.fit, matrix, y == label)
        for chance, part in zip(chances, others, strict=True):
            chance[:, label] = model.predict_proba(part)[:, 1]
            if count == 2:
                chance[:, 0] = 1 - chance[:, 1]
    return [chance / np.maximum(chance.sum(axis=1, keepdims=True), 1e-9) for chance in chances]


def weigh_words(fit: Any, others: list[Any]) -> list[Any]:
    """Counts of words as TF-IDF: dampened, rarer words heavier, rows of length one; words seen once are left out."""
    from scipy import sparse
    from sklearn.preprocessing import normalize

    seen = np.bincount(fit.indices, minlength=fit.shape[1])
    kept = np.flatnonzero(seen >= 2)
    weight = np.log((1 + fit.shape[0]) / (1 + seen[kept])) + 1
    weighted = []
    for counts in (fit, *others):
        matrix = counts[:, kept].astype("float32")
        matrix.data = 1 + np.log(matrix.data)
        weighted.append(normalize(matrix @ sparse.diags(weight.astype("float32"))).tocsr())
    return weighted


# --- words ----------------------------------------------------------------------------------------
WORDS = {}


def count_words(frame: pd.DataFrame, columns: list[str], settings: Settings) -> Any:
    """A sparse matrix of counts: `words` longest phrase in words, `pieces` longest piece in characters (0: none)."""
    from scipy import sparse

    counted, size = [], 2 ** settings["bits"]
    for name in columns:
        texts = list(frame[name].str.slice(0, settings["longest"]).str.lower())
        counted.append(count_phrases(texts, settings["words"], size))
        counted += [count_pieces(texts, settings["pieces"], size)] if settings["pieces"] else []
    return sparse.hstack(counted).tocsr()


def count_phrases(texts: list[str], longest: int, size: int) -> Any:
    """Counts of words, of signs, and of phrases of up to so many of them."""
    row, word, distinct = words_in(texts, re.compile(r"\b\w+\b|[^\w\s]").findall)
    single = np.array([zlib.crc32(text.encode()) for text in distinct], dtype="uint64")[word]
    keys, rows, phrase = [single], [row], single
    for more in range(1, longest):
        phrase = phrase[:-1] * np.uint64(0x9E3779B1) + single[more:]
        whole = row[more:] == row[: len(row) - more]
        keys.append(phrase[whole])
        rows.append(row[more:][whole])
    return counts_of(np.concatenate(rows), np.concatenate(keys), len(texts), size)


def count_pieces(texts: list[str], longest: int, size: int) -> Any:
    """Counts of the pieces that words consist of, two to so many characters: each word is taken apart once."""
    from scipy import sparse

    row, word, distinct = words_in(texts, str.split)
    padded = [f" {text} " for text in distinct]
    places = [[(k, k + n) for n in range(2, longest + 1) for k in range(len(text) - n + 1)] for text in padded]
    keys = [zlib.crc32(text[a:b].encode()) for text, spans in zip(padded, places, strict=True) for a, b in spans]
    inside: np.ndarray = np.repeat(np.arange(len(distinct)), [len(spans) for spans in places])
    held = sparse.csr_matrix((np.ones(len(word), dtype="float32"), (row, word)), (len(texts), len(distinct)))
    return held @ counts_of(inside, np.array(keys, dtype="uint64"), len(distinct), size)


def words_in(texts: list[str], split: Callable[[str], list[str]]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """All words of the texts in order: the text that each stands in, its number, and the word of each number."""
    found = [split(text) for text in texts]
    row: np.ndarray = np.repeat(np.arange(len(found)), [len(words) for words in found])
    number, distinct = pd.factorize(np.array([word for words in found for word in words], dtype=object))
    return row, number, list(distinct)


def counts_of(rows: np.ndarray, keys: np.ndarray, height: int, size: int) -> Any:
    """How often each key, hashed to one of `size` columns, occurs in each row."""
    from scipy import sparse

    columns = ((keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) % np.uint64(size)
    ones: np.ndarray = np.ones(len(rows), dtype="float32")
    return sparse.csr_matrix((ones, (rows, columns.astype("int64"))), (height, size))


# --- metric ---------------------------------------------------------------------------------------
METRIC = {"name": "roc_auc", "higher": True, "answers": "chances", "loss": "squared"}


def decide_as_predicted(y: np.ndarray, known: np.ndarray, others: list[np.ndarray], score: Score) -> list[np.ndarray]:
    """The prediction itself is the answer."""
    return others


def one_against_rest(truth: np.ndarray, answer: np.ndarray, figure: Callable[[np.ndarray, np.ndarray], float]) -> float:
    """A figure of two classes; of more, the mean over the classes that occur and do not stand alone."""
    if not np.isfinite(answer).all():
        raise ValueError("the answers hold what is no number")
    present = [1] if answer.shape[1] == 2 else [label for label in np.unique(truth) if (truth != label).any()]
    if not present:
        raise ValueError("the rows hold one class only")
    return float(np.mean([figure(truth == label, answer[:, label]) for label in present]))


def pair_share(is_it: np.ndarray, chance: np.ndarray) -> float:
    """Of all pairs of a row that is and one that is not, the share in which the first has more; ties are half."""
    _, place, counts = np.unique(chance, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    are = int(is_it.sum())
    if are in (0, len(is_it)):
        raise ValueError("the rows hold one class only")
    return float((ranks[is_it].sum() - are * (are + 1) / 2) / (are * (len(is_it) - are)))


roc_auc = partial(one_against_rest, figure=pair_share)
SCORE, DECIDE = roc_auc, decide_as_predicted


# --- features -------------------------------------------------------------------------------------
FEATURES = {"counts": {"columns": ["kind"]}}


def learn_counts(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[Any]:
    """Add how often each category occurs. How common a level is often says as much as the level itself."""
    counts = {name: rows[0].frame[name].value_counts() for name in settings["columns"]}
    seen = [{name: part.frame[name].map(often).astype(float) for name, often in counts.items()} for part in rows]
    return [{f"{name} count": np.log1p(often.fillna(0)) for name, often in table.items()} for table in seen]


ROW_STEPS = {}
FOLD_STEPS = {"counts": learn_counts}


# --- models ---------------------------------------------------------------------------------------
MODELS = {}


# --- model: LightGBM ------------------------------------------------------------------------------
LIGHTGBM = {
    "rounds": 150,
    "rate": 0.04,
    "num_leaves": 8,
    "min_child_samples": 10,
    "subsample": 0.8,
    "colsample_bytree": 0.6,
    "reg_lambda": 3.0,
    "patience": 0,
}


def fit_lightgbm(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """Boosted trees, grown leaf by leaf; each takes 0.4 microseconds for each of the answers asked of it."""
    tables = [with_plain_names(part.frame) for part in (rows, *others)]
    answers = sum(map(len, tables[1:])) * (len(np.unique(y)) if job.kind == "multiclass" else 1)
    return fit_predict(grow, tables, y, job, train_lightgbm, settings, job, 4e-7 * answers / job.threads)


def train_lightgbm(x: pd.DataFrame, y: np.ndarray, held: list[Any], settings: Settings, pace: Pace, job: Job) -> Any:
    """The trees; they stop by the rows that are held out, or in time."""
    import lightgbm

    def in_time(state: Any) -> None:
        if pace.tick():
            state.model.reset_parameter({"learning_rate": pace.rate})
        if pace.over:
            raise lightgbm.callback.EarlyStopException(state.iteration, state.evaluation_result_list or [])

    kind = lightgbm.LGBMRegressor if job.numeric else lightgbm.LGBMClassifier
    loss = "regression_l1" if job.loss == "absolute" else None
    steps = {"n_estimators": settings["rounds"], "learning_rate": settings["rate"], "objective": loss}
    more = {"random_state": job.seed, "n_jobs": job.threads, "subsample_freq": 1, "verbose": -1}
    model = kind(**options_in(settings), **steps, **more)
    patient = [lightgbm.early_stopping(settings["patience"], verbose=False)] if held else []
    model.fit(x, y, eval_set=held or None, callbacks=[in_time, *patient])
    return model, model.best_iteration_, pace.late


MODELS["LightGBM"] = (fit_lightgbm, LIGHTGBM, True)


# --- model: Regularised linear model --------------------------------------------------------------
REGULARISED_LINEAR_MODEL = {"strength": 0.5, "bins": 0, "rounds": 120, "only": []}


def fit_linear(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """A linear model with a penalty: scaled numbers, their bins, a column for each level, and the weighted words."""
    from scipy import sparse
    from sklearn.linear_model import Ridge

    tables = as_matrix(rows, others, bins=settings["bins"])
    if job.numeric:
        solver = "sparse_cg" if sparse.issparse(tables[0]) else "auto"
        line = Ridge(alpha=1 / settings["strength"], solver=solver, tol=1e-3, max_iter=200)
        return [np.clip(p, y.min(), y.max()) for p in fit_scaled(line.fit, tables, y, job)]
    return fit_logistic(tables, y, settings["strength"], settings["rounds"], job)


MODELS["Regularised linear model"] = (fit_linear, REGULARISED_LINEAR_MODEL, False)


# --- blend ----------------------------------------------------------------------------------------
BLEND = "weights"
Predictions = dict[str, np.ndarray]


def combine_weights(y: np.ndarray, known: Predictions, others: list[Predictions], scorer: Score) -> list[np.ndarray]:
    """Weigh the models by their out-of-fold predictions. A plain mean treats the strong and the weak alike; weights
    found on held-out rows do not.

    Again and again the model is added that helps the blend most on (at most 6000 of) `known`.
    """
    rows = np.random.default_rng(0).permutation(len(y))[:6000]
    times, total = dict.fromkeys(known, 0), np.zeros_like(next(iter(known.values()))[rows])
    for size in range(1, 16):
        best = max(known, key=lambda name: scorer(y[rows], (total + known[name][rows]) / size))
        total = total + known[best][rows]
        times[best] += 1
    return [np.sum([times[name] * other[name] for name in times], axis=0) / 15 for other in others]


COMBINE = combine_weights


# --- cross-validation -----------------------------------------------------------------------------
Folds = list[tuple[np.ndarray, np.ndarray]]
Rounds = list[tuple[np.ndarray, Any]]
Fit = Callable[..., list[np.ndarray]]
Model = tuple[Fit, Settings, bool]


def make_folds(frame: pd.DataFrame, y: np.ndarray, settings: Settings, seed: int) -> Folds:
    """Pairs of rows to learn from and rows to score by: by time, by groups, alike in the classes, or at random."""
    kind, count = settings["kind"], settings["count"]
    if kind == "time":
        order = np.argsort(frame[settings["column"]].to_numpy(), kind="stable")
        cut = int(len(order) * (1 - settings.get("share", 0.2)))
        return [(np.sort(order[:cut]), np.sort(order[cut:]))]
    if kind == "groups":
        names, group = np.unique(frame[settings["column"]].astype(str).to_numpy(), return_inverse=True)
        pairs = drawn(None, len(names), min(count, len(names)), seed)
        return [(np.flatnonzero(np.isin(group, fit)), np.flatnonzero(np.isin(group, held))) for fit, held in pairs]
    rows = y if kind == "classes" else None, len(y), count if count > 1 else 5
    pairs = [pair for number in range(settings.get("repeats", 1)) for pair in drawn(*rows, seed + number)]
    return pairs if count > 1 else pairs[:1]


def drawn(classes: np.ndarray | None, size: int, count: int, seed: int) -> Folds:
    """The folds of scikit-learn, at random or with every class in each, without the seconds that importing it takes."""
    dice = np.random.RandomState(seed)
    place: np.ndarray = np.zeros(size, dtype=int)
    if classes is None:
        place[dice.permutation(size)] = np.repeat(np.arange(count), [len(p) for p in np.array_split(place, count)])
    else:
        codes = pd.factorize(classes)[0]
        shares = np.array([np.bincount(np.sort(codes)[n::count], minlength=codes.max() + 1) for n in range(count)])
        for kind, counts in enumerate(shares.T):
            place[codes == kind] = dice.permutation(np.repeat(np.arange(count), counts))
    return [(np.flatnonzero(place != number), np.flatnonzero(place == number)) for number in range(count)]


def rounds_of(folds: Folds, size: int, refit: bool) -> tuple[Rounds, int]:
    """The folds and a round of all rows, with none held out: at the end, or without `refit` once every row is scored.

    And after how many rounds all rows that can be scored are: what follows has the time that is left over.
    """
    everything = (np.arange(size), None)
    scored = np.cumsum([len(held) for _, held in folds])
    once = min(int(np.searchsorted(scored, size)) + 1, len(folds) + refit)
    place = len(folds) if refit else once
    return [*folds[:place], everything, *folds[place:]], once


@dataclass
class Outcome:
    """What each model predicts, out of fold for the rows that were `scored`, and for the rows to answer."""

    known: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    scored: np.ndarray


@dataclass
class Course:
    """What models are cross-validated on, and what is known by now: their settings, rounds, and pace on 1000 rows."""

    rows: Rows
    y: np.ndarray
    test: Rows
    folds: Folds
    models: dict[str, Model]
    steps: dict[str, Any]
    features: Settings
    columns: dict[str, Any]
    job: Job
    clock: Clock
    scale: str = "plain"
    anchor: str = ""
    classes: int = 0
    found: dict[str, list[Settings]] = field(default_factory=dict)
    paces: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chosen = {name: own for name, (_, own, _) in self.models.items()}
        self.seconds = self.clock.left()


def cross_validate(course: Course) -> Outcome:
    """Fit every model in every fold, as many as the time allows; with one fold only models of all rows answer."""
    job, clock, y, folds = course.job, course.clock, course.y, course.folds
    shape = () if job.numeric else (course.classes,)
    known = {name: np.zeros((len(y), *shape)) for name in course.models}
    test = {name: np.zeros((len(course.test.frame), *shape)) for name in course.models}
    refit = len(folds) == 1
    rounds, once = rounds_of(folds, len(y), refit)
    times, bagged, pace = np.zeros(len(y)), 0, 0.0
    for number, (fit, held) in enumerate(rounds):
        begun = time.monotonic()
        answering = held is None or not refit
        needed = 0.0 if number == 0 or (held is None and not bagged) else 0.7 if answering else 1.4
        if job.memory.hold(bool, needed > 0 and clock.left() < needed * pace):
            continue
        weight = once if held is None and not refit else 1  # all rows count as much as all folds
        others = [*([] if held is None else [course.rows.take(held)]), *([course.test] if answering else [])]
        left = (once if number < once else len(rounds)) - number
        for name, answers in learn_round(course, number, fit, others, left, answering).items():
            if held is not None:
                known[name][held] += answers[0]
            if answering:
                test[name] += weight * answers[-1]
        if held is not None:
            times[held] += 1
        bagged += weight if answering else 0
        pace = time.monotonic() - begun
        late = number == 0 < len(folds) - 1 and any(each[0].get("late") for each in course.found.values())
        if job.memory.hold(bool, late and not refit):
            # too little time for many folds: after one, or two where they are small, learn from all rows
            once, refit, bagged = 2 if len(folds[0][1]) >= 500 else 3, True, 0
            rounds[1:] = [*folds[1 : once - 1], *[(np.arange(len(y)), None)] * 3]
            found = course.found
            course.chosen = {name: with_found(own, found.get(name, []), 1) for name, own in course.chosen.items()}
            test = {name: np.zeros_like(p) for name, p in test.items()}
    for name in course.models:
        known[name] /= np.maximum(times, 1).reshape(-1, *[1] * len(shape))
        test[name] /= max(bagged, 1)
    return Outcome(known, test, np.flatnonzero(times))


def learn_round(
    course: Course, number: int, fit: np.ndarray, others: list[Rows], left: int, answering: bool
) -> dict[str, list[np.ndarray]]:
    """What each model, fitted on the rows `fit`, predicts for the `others`; `left` rounds share the time left."""
    job, clock, count = replace(course.job, seed=course.job.seed + number), course.clock, len(course.models)
    seen, places = np.unique(course.y[fit], return_inverse=True)
    truth = scaled(course.y[fit], course.scale) if job.numeric else places
    part = course.rows.take(fit)
    built, origin = build_features(part, truth, others, course.columns, course.steps, course.features, job)
    base = [anchor_of(each, course.anchor, truth) for each in built]
    goal = truth - base[0] if job.numeric else truth
    predicted = {}
    for place, name in enumerate(course.models):
        seconds = max(0.3, min(clock.left(), course.seconds) * 0.9 / max(1.0, left * count - place))
        most = 0.8 * clock.room() / (count - place) / (1 if answering else 2)
        only = course.chosen[name].get("only")
        dropped = [c for step, names in origin.items() if only is not None and step not in only for c in names]
        given, *wanted = [without(each, dropped) for each in built]
        if len(seen) == 1 and not job.numeric:
            learned = [np.ones((len(each.frame), 1)) for each in wanted]
        else:
            learned = learn_model(course, name, given, goal, wanted, replace(job, seconds=seconds, most=most, found={}))
        pairs = zip(learned, base[1:], strict=True)
        predicted[name] = [spread(p, at, seen, course.classes, course.scale, job) for p, at in pairs]
    return predicted


def learn_model(course: Course, name: str, rows: Rows, y: np.ndarray, others: list[Rows], job: Job) -> list[np.ndarray]:
    """Fit one model; one that does not watch the clock gets as many rows as it has time for."""
    learn, _, timed = course.models[name]
    if "search" in course.chosen[name]:
        less = replace(job, seconds=job.seconds * 1.5, most=0.0)
        course.chosen[name] = job.memory.hold(search_settings, learn, rows, y, course.chosen[name], less)
    if not timed and len(y) > 3000:
        few = job.memory.hold(rows_in_time, course, name, rows, y, others, job)
        rows, y = rows.take(few), y[few]
    learned = learn(rows, y, others, course.chosen[name], job)
    course.found.setdefault(name, []).append(job.found)
    course.chosen[name] = with_found(course.chosen[name], course.found[name], min(2, len(course.folds)))
    return learned


def rows_in_time(course: Course, name: str, rows: Rows, y: np.ndarray, others: list[Rows], job: Job) -> np.ndarray:
    """The rows that there is time to learn from: a model is tried on 1000 first."""
    if name not in course.paces:
        few = few_rows(y, 1000, job)
        begun = time.monotonic()
        within = y[few] if job.numeric else np.unique(y[few], return_inverse=True)[1]
        some = [part.take(np.arange(min(1000, len(part.frame)))) for part in others]
        course.models[name][0](rows.take(few), within, some, course.chosen[name], job)
        course.paces[name] = time.monotonic() - begun
    wanted = int(1000 * (max(job.seconds, job.most) / max(course.paces[name], 1e-3)) ** 0.85)
    return np.arange(len(y)) if wanted >= len(y) else few_rows(y, max(wanted, 1500), job)


def with_found(settings: Settings, found: list[Settings], enough: int) -> Settings:
    """The settings with the rounds that models of the first folds stopped after: the others need no rows to stop by."""
    stopped = [each for each in found if each and not each["late"]]
    if len(stopped) < enough or not settings.get("patience"):
        return settings
    mean = {key: float(np.mean([each[key] for each in stopped])) for key in ("rounds", "rate")}
    return {**settings, "rounds": round(1.1 * mean["rounds"]), "rate": mean["rate"], "patience": 0}


def anchor_of(rows: Rows, anchor: str, truth: np.ndarray) -> Any:
    """The column against which the change is learned, filled where it is missing; nothing where there is none."""
    base = rows.frame.get(anchor, pd.Series(0.0, index=rows.frame.index))
    return base.fillna(float(truth.mean())).to_numpy(dtype=float)


def scaled(y: np.ndarray, scale: str) -> np.ndarray:
    """Numbers on the scale that models learn."""
    return np.log1p(y) if scale == "log" else np.sqrt(y) if scale == "root" else y


def unscaled(p: np.ndarray, scale: str) -> np.ndarray:
    """Predictions on the scale of the task."""
    return np.expm1(np.clip(p, -1, 60)) if scale == "log" else np.clip(p, 0, None) ** 2 if scale == "root" else p


def spread(p: np.ndarray, base: np.ndarray, seen: np.ndarray, classes: int, scale: str, job: Job) -> np.ndarray:
    """A model's predictions on the scale, or for all the classes, of the task.

    No chance is certain: log loss never forgives a certain answer that is wrong.
    """
    if job.numeric:
        numbers: np.ndarray = np.nan_to_num(unscaled(np.asarray(p, dtype=float).ravel() + base, scale))
        return numbers
    full: np.ndarray = np.full((len(p), classes), 1e-6)
    full[:, seen] = np.clip(np.nan_to_num(p), 1e-6, 1 - 1e-6)
    return full


def search_settings(fit: Fit, rows: Rows, y: np.ndarray, settings: Settings, job: Job) -> Settings:
    """The best settings found in `job.seconds`: a step in a random direction, else its opposite, else smaller steps."""
    settings, ends = dict(settings), time.monotonic() + job.seconds
    ranges = settings.pop("search")
    dice = np.random.default_rng(job.seed)
    some = dice.permutation(len(y))[:6000]
    learn, held = np.split(some, [int(0.75 * len(some))])
    seen, places = np.unique(y[learn], return_inverse=True)
    held = held[job.numeric | np.isin(y[held], seen)]
    truth = y[learn] if job.numeric else places

    def loss(tried: Settings, seconds: float) -> float:
        (p,) = fit(rows.take(learn), truth, [rows.take(held)], tried, replace(job, seconds=seconds))
        if job.numeric:
            return float(np.mean(np.abs(y[held] - p) ** (1 if job.loss == "absolute" else 2)))
        place = np.searchsorted(seen, y[held])
        return float(-np.mean(np.log(np.clip(p[np.arange(len(held)), place], 1e-6, 1))))

    begun = time.monotonic()
    best, lowest = settings, loss(settings, job.seconds)
    pace, size, failures = time.monotonic() - begun, 0.8, 0
    while time.monotonic() + pace < ends:
        step = dice.normal(size=len(ranges))
        for sign in (1, -1):
            if time.monotonic() + pace > ends:
                break
            tried = dict(best)
            for (name, (low, high)), move in zip(ranges.items(), step / np.linalg.norm(step), strict=True):
                value = min(high, max(low, best[name] * float(np.exp(sign * move * size * 1.6))))
                tried[name] = round(value) if isinstance(settings[name], int) else value
            if (found := loss(tried, 3 * pace)) < lowest:
                best, lowest, failures = tried, found, 0
                break
        else:
            failures += 1
            size = max(0.15, size * 0.8)
    return best


# --- course ---------------------------------------------------------------------------------------
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


# --- start ----------------------------------------------------------------------------------------
if __name__ == "__main__":
    solution = Solution(
        data=DATA,
        targets=TARGETS,
        folds=FOLDS,
        metric=METRIC,
        score=SCORE,
        decide=DECIDE,
        features=FEATURES,
        row_steps=ROW_STEPS,
        fold_steps=FOLD_STEPS,
        models=MODELS,
        combine=COMBINE,
        rows=ROWS,
        seconds=SECONDS,
        words=WORDS,
    )
    solve(solution)
