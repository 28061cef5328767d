"""Rows of one table that are no separate observations: they follow each other in time, belong to one patient or shop,
or are copies of each other. Only what goes beyond chance counts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Literal

import numpy as np

from mle_star.data.columns import EPOCH, Column, describe, is_number, moments_of
from mle_star.data.layout import Layout
from mle_star.data.rows import TableRows

MOST_CELLS = 3_000_000
"""Of a larger table only dates, ids and the target are looked at."""
LOOKED_AT = 20_000
FEWEST_MOMENTS, FEWEST_GROUPS = 30, 10
SURE = 5.0
"""So many standard deviations from chance is no chance."""
ALIKE = 0.05
"""Rows are alike where belonging together explains so much of what they differ by."""
COPIED, FEWEST_COPIES = 0.01, 6
"""From such a share and number of rows on, copies are no accident."""
CLOSE = 0.005
_PLAIN_TIME = re.compile(
    r"(?i)^(t|time|day|week|month|quarter|period|hour|minute|step|tick)([_\W]?(no|nr|index|idx|number))?$"
)
_ENTITY = re.compile(
    r"(?i)(^|[_\W])(patient|subject|subj|person|user|customer|client|member|player|student|pupil|employee|worker|driver|"
    r"donor|participant|respondent|household|family|account|author|speaker|writer|animal|device|machine|engine|sensor|"
    r"station|site|shop|store|branch|hotel|hospital|clinic|school|company|firm|vendor|seller|session|batch|group|plot|"
    r"vehicle|vessel|host|pid|uid|mrn)([_\W]?(id|no|nr|num|number|code|name|key))?$|(^|[_\W])(id|uuid|guid)$|^id[_\W]"
)
_ID_IN_CAPITALS = re.compile(r"[a-z]I[dD]$")
_KIND_OF_THING = re.compile(
    r"(?i)(categor|type|class|kind|genre|brand|city|country|region|state|district|zip|postal|area|depart|status|language|"
    r"currency|colou?r|product|model|plan|level|grade|month|day|hour|year|job|occupation|industry|sector)"
)
"""Ids of kinds of things: new rows are of the same kinds."""
_CODE = re.compile(r"[A-Za-z]{1,12}[-_ ]?\d{1,9}")


SplitKind = Literal["time", "groups", "copies", "classes", "quantiles", "random"]


@dataclass(frozen=True)
class Rule:
    """How rows are chosen. `column` is the one that tells: a date, a group, or the target.

    `sets` tell for each row which others it is a copy of. `unsure` are what else may relate the rows. Not `sure`: what
    relates them is too little to go by.
    """

    kind: SplitKind
    column: str
    reason: str
    sets: Sequence[str] = field(default=(), repr=False)
    unsure: "tuple[Rule, ...]" = field(default=(), repr=False)
    sure: bool = field(default=True, repr=False)

    @property
    def is_grouped(self) -> bool:
        """Do rows belong together, to a moment or a group?"""
        return self.kind in ("time", "groups", "copies")

    @property
    def hints(self) -> list[str]:
        """What else may relate the rows, and the option for it."""
        return [f"{rule.reason}: rows are hidden at random, {rule.option} if that is wrong" for rule in self.unsure]

    @property
    def setting(self) -> str:
        """The setting that asks for this split by the column."""
        return "time_column" if self.kind == "time" else "group"

    @property
    def option(self) -> str:
        """The same on the command line."""
        return f"`--{self.setting.replace('_', '-')} {self.column}`"


@dataclass(frozen=True)
class Known:
    """The training rows as far as they are looked at, and the test rows that may be copies of them."""

    layout: Layout
    train: TableRows
    test: TableRows | None = None

    @cached_property
    def features(self) -> list[str]:
        """The columns beside target and key, where all cells can be looked at."""
        return _features(self.layout) if _is_small(self.layout) else []

    def codes(self, name: str) -> Any:
        """Each cell by the number of its value."""
        import pandas

        return pandas.factorize(np.array(self.train.column(name), dtype=object))[0]

    @cached_property
    def target(self) -> Any:
        """The targets in figures: ranks of numbers, a column of ones and zeros for each class."""
        names = [name for name in self.layout.target.names if name in self.layout.train.columns]
        return np.column_stack([_figures(self.train.column(name)) for name in names[:5]]) if names else None


def _is_small(layout: Layout) -> bool:
    """Can all cells of the training table be looked at?"""
    return layout.train.rows * len(layout.train.columns) <= MOST_CELLS


def wanted_columns(layout: Layout) -> list[str]:
    """The columns that tell how rows are related."""
    return _features(layout) if _is_small(layout) else _candidates(layout) if layout.test is None else []


def _features(layout: Layout) -> list[str]:
    return [name for name in layout.train.columns if name not in (*layout.target.names, layout.key)]


def _candidates(layout: Layout) -> list[str]:
    """Those that may be dates or name what rows belong to."""
    names = [*_features(layout), *(name for name in layout.train.columns if name == layout.key)]
    return [column.name for column in map(layout.train.column, names) if may_be_time(column) or may_be_entity(column)]


def moments_in(name: str, *cells: Sequence[str]) -> dict[str, datetime]:
    """The moment of each value of a column; plain numbers count from the first on."""
    texts = [text for some in cells for text in some]
    if found := moments_of(describe(name, list(texts)), texts):
        return found
    numbers = {text: float(text) for text in set(texts) if is_number(text)}
    place = {value: number for number, value in enumerate(sorted(set(numbers.values())))}
    return {text: EPOCH + timedelta(seconds=place[value]) for text, value in numbers.items()}


# --- time ----------------------------------------------------------------------------------------------------------


def order_in_time(rows: Known) -> Rule | None:
    """A column of dates in whose order the target drifts; sure where the table is a series, or lies in that order."""
    hint = None
    for name in _candidates(rows.layout):
        if rows.target is None or not may_be_time(rows.layout.train.column(name)):
            continue
        known = moments_in(name, rows.train.column(name))
        cells = [known.get(cell) for cell in rows.train.column(name)]
        there = np.array([cell is not None for cell in cells])
        if there.mean() < 0.95 or len(set(known.values())) < FEWEST_MOMENTS:
            continue
        when = np.array([cell.timestamp() for cell in cells if cell is not None])
        panel = _panel(rows, [c for c in rows.features if c != name], when, there)
        if not _drifts(rows.target[there], when, panel):
            continue
        if _in_order(when, 0 * panel) or (_is_series(when, panel) and (_in_order(when, panel) or _is_regular(when))):
            words = f"rows follow each other in {name}, so the latest are hidden; `--time-column none` to change"
            return Rule("time", name, words)
        hint = hint or Rule("time", name, f"rows near each other in {name} are alike, and lie in no order", sure=False)
    return hint


def _panel(rows: Known, names: Sequence[str], when: Any, there: Any) -> Any:
    """Where moments repeat: the series of each row, by the column with the fewest values that tells them apart."""
    repeats = len(when) >= 1.5 * len(np.unique(when))
    for _, name in sorted((rows.layout.train.column(name).distinct, name) for name in names if repeats):
        codes = rows.codes(name)[there]
        if len(np.unique(codes)) * 5 > len(codes):
            break
        if len(np.unique(np.column_stack([codes, when]), axis=0)) > 0.95 * len(when):
            return codes
    return np.zeros(len(when), np.int64)


def _in_order(when: Any, panel: Any) -> bool:
    """Do the rows of each series lie in the file as their moments follow each other?"""
    order = np.argsort(panel, kind="stable")
    steps = np.diff(when[order])[np.diff(panel[order]) == 0]
    return len(steps) > 0 and max((steps >= 0).mean(), (steps <= 0).mean()) > 0.98


def _is_series(when: Any, panel: Any) -> bool:
    """Is there about one row for each moment of each series?"""
    cells = len(np.unique(when)) * len(np.unique(panel))
    return 0.5 * cells < len(when) < 1.1 * cells


def _is_regular(when: Any) -> bool:
    """Is no moment left out? Rows that were drawn at random from a series leave holes, which others may fill."""
    steps = np.diff(np.unique(when))
    return bool((np.abs(steps / np.median(steps) - 1) < 0.15).mean() > 0.9)


def _drifts(target: Any, when: Any, panel: Any) -> bool:
    """Are rows that follow each other alike, each within its series?"""
    target = target - _means(target, panel)
    total = (target**2).mean(axis=0).sum()
    if not total:
        return False
    moments, place, count = np.unique(when, return_inverse=True, return_counts=True)
    each = _sums(target, place) / count[:, None]
    few: Any = np.arange(len(moments)) * min(20, len(moments) // 5) // len(moments)
    if _explained(each, few)[1] > SURE and _explained(target, few[place])[0] > ALIKE / 2:
        return True
    order = np.lexsort((when, panel))
    ahead, behind = order[1:], order[:-1]
    same = (panel[ahead] == panel[behind]) & (when[ahead] != when[behind])
    alike = (target[ahead[same]] * target[behind[same]]).mean(axis=0).sum() / total if same.any() else 0.0
    return bool(alike > 2 * ALIKE and alike * np.sqrt(same.sum()) > SURE)


# --- entities --------------------------------------------------------------------------------------------------------


def entities(rows: Known) -> Rule | None:
    """The column of ids that repeat and whose rows resemble each other; not sure where they do not."""
    found: list[tuple[float, Rule]] = []
    for name in _candidates(rows.layout):
        about = rows.layout.train.column(name)
        if rows.target is None or not may_be_entity(about):
            continue
        sizes = np.bincount(codes := rows.codes(name))
        if len(sizes) < FEWEST_GROUPS or sizes[sizes > 1].sum() < 0.5 * len(codes) or sizes.max() > 0.5 * len(codes):
            continue
        share, sure = _explained(rows.target, codes)
        alike = share > ALIKE and sure > SURE
        others = _alike_features(rows, name, codes)
        is_named = _is_entity_name(name)
        if (alike or others > 2 * ALIKE) if is_named else (share > 4 * ALIKE and alike and others > 4 * ALIKE):
            words = f"rows of one {name} are alike, so they stay together; `--group none` to change"
            found.append((share + others, Rule("groups", name, words)))
        elif is_named:
            found.append((-1.0, Rule("groups", name, f"{name} repeats, and its rows are not alike", sure=False)))
    return max(found, key=lambda one: one[0])[1] if found else None


def _alike_features(rows: Known, name: str, codes: Any) -> float:
    """How much of what rows differ by in other columns is explained by what they belong to: the mean over columns."""
    others = [c for c in rows.features if c != name][:60]
    found = [_explained(_figures(rows.train.column(other)), codes) for other in others]
    return float(np.mean([share if sure > SURE else 0.0 for share, sure in found])) if found else 0.0


def may_be_time(column: Column) -> bool:
    """Does a column hold dates, or by its name the numbers of days, weeks or steps?"""
    if column.kind == "date" or moments_of(column, [value for value, _ in column.shares]):
        return True
    counts = column.numeric and column.whole and column.distinct >= FEWEST_MOMENTS
    return counts and _PLAIN_TIME.search(column.name) is not None


def may_be_entity(column: Column) -> bool:
    """May a column name patients, shops or the like, by its own name or by the form of its values?"""
    if column.kind not in ("category", "number") or (column.numeric and not column.whole) or column.missing > 0.2:
        return False
    if _is_entity_name(column.name):
        return True
    return column.kind == "category" and all(_CODE.fullmatch(value) for value, _ in column.shares)


def _is_entity_name(name: str) -> bool:
    return bool(_ENTITY.search(name) or _ID_IN_CAPITALS.search(name)) and not _KIND_OF_THING.search(name)


# --- copies ----------------------------------------------------------------------------------------------------------


def copies(rows: Known) -> Rule | None:
    """Rows that are the same in every feature, or nearly so in numbers, more than their values make likely.

    None where the test rows are copies of training rows as well: what is hidden at random is like them.
    """
    names = [name for name in rows.features if not rows.layout.train.column(name).names_rows]
    if len(names) < 2 or rows.train.count < 2:
        return None
    codes = np.column_stack([rows.codes(name) for name in names])
    if (sets := _equal(codes)) is None and (sets := _close(rows, names, codes)) is None:
        return None
    together = (np.bincount(sets)[sets] > 1).mean()
    if rows.test is not None:
        shared = [name for name in names if name in rows.test.table.columns]
        known = set(zip(*map(rows.train.column, shared), strict=True))
        new = list(zip(*map(rows.test.column, shared), strict=True))
        if sum(row in known for row in new) > 0.3 * together * len(new):
            return None
    words = f"{100 * together:.0f} % of the rows are copies, which stay together; `--split random` to change"
    return Rule("copies", "", words, tuple(map(str, sets)))


def _equal(codes: Any) -> Any:
    """The set of equal rows that each belongs to; None where such are rare, or no rarer than all but equal ones."""
    dice = np.random.default_rng(0)
    marks = np.column_stack([dice.integers(1, 2**62, column.max() + 2)[column] for column in codes.T]).astype(np.uint64)
    whole = marks.sum(axis=1, dtype=np.uint64)
    sets, same = _sets(whole)
    if _too_few((np.bincount(sets)[sets] > 1).sum(), codes):
        return None
    return sets if same > sum(_sets(whole - mark)[1] - same for mark in marks.T) else None


def _too_few(copied: int, rows: Any) -> bool:
    return copied < max(COPIED * len(rows), FEWEST_COPIES)


def _sets(marks: Any) -> tuple[Any, int]:
    """The number of each row's set, and how many pairs of rows are in one."""
    _, sets, sizes = np.unique(marks, return_inverse=True, return_counts=True)
    return sets, int((sizes * (sizes - 1) // 2).sum())


def _close(rows: Known, names: Sequence[str], codes: Any) -> Any:
    """The set of nearly equal rows that each belongs to: as many lie very close to another one as lie close."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    numbers, words = list[Any](), list[Any]()
    for name, column in zip(names, codes.T, strict=True):
        about = describe(name, list(rows.train.column(name)))
        if about.numeric and about.missing == 0 and about.distinct > 0.2 * about.count:
            values = np.array([float(cell) for cell in rows.train.column(name)])
            numbers.append(values / (values.std() or 1.0))
        elif about.kind != "constant":
            words.append(column)
    if len(numbers) < 2 or len(codes) > LOOKED_AT:
        return None
    points, same = np.column_stack(numbers), np.column_stack(words) if words else np.zeros((len(codes), 1), int)
    cells = np.floor(points[:, :6] / (4 * CLOSE)).astype(np.int64)
    if len(np.unique(cells, axis=0)) <= 0.2 * len(cells):  # the pairs would be too many to be listed
        return None
    pairs = cKDTree(points).query_pairs(4 * CLOSE, p=np.inf, output_type="ndarray")
    pairs = pairs[(same[pairs[:, 0]] == same[pairs[:, 1]]).all(axis=1)]
    closest = pairs[(np.abs(points[pairs[:, 0]] - points[pairs[:, 1]]) <= CLOSE).all(axis=1)]
    if _too_few(len(np.unique(closest)), codes) or len(closest) < 0.8 * len(pairs):
        return None
    ends = np.ones(len(closest)), (closest[:, 0], closest[:, 1])
    return connected_components(coo_array(ends, (len(codes), len(codes))))[1]


# --- figures ---------------------------------------------------------------------------------------------------------


def _figures(cells: Sequence[str]) -> Any:
    """Ranks of numbers, else a column of ones and zeros for each of the commonest values; all of mean zero."""
    import pandas

    series = pandas.Series(cells, dtype=object)
    numbers = pandas.to_numeric(series.where(series != ""), errors="coerce")
    if numbers.nunique() > 10 and numbers.notna().mean() > 0.9 * (series != "").mean():
        values = numbers.rank().fillna(len(series) / 2).to_numpy()[:, None] / len(series)
    else:
        values = np.column_stack([(series == value).to_numpy(float) for value in series.value_counts().index[:10]])
    return values - values.mean(axis=0)


def _sums(values: Any, groups: Any) -> Any:
    return np.column_stack([np.bincount(groups, column) for column in values.T])


def _means(values: Any, groups: Any) -> Any:
    return (_sums(values, groups) / np.maximum(np.bincount(groups), 1)[:, None])[groups]


def _explained(values: Any, groups: Any) -> tuple[float, float]:
    """The share of the variance that groups explain beyond chance, and how many standard deviations that is from it."""
    count, sizes = len(values), np.bincount(groups)
    number = int((sizes > 0).sum())
    if number < 2 or number >= count or not values.any():
        return 0.0, 0.0
    centred = values - values.mean(axis=0)
    share = float((_means(centred, groups) ** 2).sum() / (centred**2).sum())
    expected = (number - 1) / (count - 1)
    spread = np.sqrt(2 * (number - 1) * (count - number) / ((count - 1) ** 2 * (count + 1)))
    return 1 - (1 - share) * (count - 1) / (count - number), float((share - expected) / spread)
