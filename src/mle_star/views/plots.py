"""Charts of the result itself: the scores beside it, how far off and how sure of itself it is, what it grew out of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from mle_star.models.texts import plural
from mle_star.views import text
from mle_star.views.charts import (
    Bar,
    axis_below,
    axis_left,
    bars,
    dot,
    figure,
    label,
    line,
    mark,
    nice_ticks,
    row_name,
    with_air,
)
from mle_star.views.facts import Attempt
from mle_star.views.lineage import lineage_of
from mle_star.views.story import RunStory
from mle_star.views.verdict import ScaleMark

STRIP_ROW = 40
SQUARE = 260
MOST_COLUMNS = 12
LANE = 66
HANGING = 20
MOST_MARKS = 160
"""With more attempts than these, those that were not accepted are only counted."""


def strip(rows: Sequence[ScaleMark], unit: str) -> Markup:
    """Scores on one scale, one below the other: a dot each, and a bar where an interval is known."""
    values = [value for row in rows for value in (row.score, row.low, row.high) if value is not None]
    x, ticks = _scale(*with_air(min(values), max(values), 0.06))
    height = STRIP_ROW * len(rows) + 4
    parts = [*axis_below(ticks, x, height, unit, None)]
    words = []
    for index, row in enumerate(rows):
        top, shown = index * STRIP_ROW, text.score(row.score)
        track = top + 27
        parts.append(line("track", 0, track, 100, track))
        if row.low is not None and row.high is not None:
            shown += f" ({text.score(row.low)} to {text.score(row.high)})"
            parts.append(line(f"span {row.kind}", x(row.low), track, x(row.high), track))
        words.append(f"{row.name}: {shown}")
        parts += [row_name(row.name, top), label(shown, "row-value", "100%", top + 15, "end")]
        parts.append(dot(f"dot {row.kind}", x(row.score), track, 6, words[-1]))
    title = "The score beside what it can be compared with"
    return figure("scale", title, f"{'; '.join(words)}.", parts, height, kind="bars")


def calibration(bins: Sequence[tuple[float, float, int]]) -> Markup:
    """How often what was given some chance was so: on the diagonal, chances are what they say."""
    most = max(count for _, _, count in bins)
    dots = [
        (chance, found, 3 + 5 * (count / most) ** 0.5, f"said {chance:.0%}, found {found:.0%}, {plural(count, 'row')}")
        for chance, found, count in bins
    ]
    words = "; ".join(hint for *_, hint in dots)
    return _square("calibration", "Calibration", words, dots, (0.0, 1.0), ("chance that was said", "share that was so"))


def residuals(points: Sequence[tuple[float, float]]) -> Markup:
    """The answer of some rows against the truth; the closer to the diagonal, the better."""
    values = [value for pair in points for value in pair]
    dots = [(x, y, 2.5, f"truth {text.score(x)}, answer {text.score(y)}") for x, y in points]
    off = sorted(abs(y - x) for x, y in points)
    words = f"{plural(len(points), 'row')}; half of the answers are off by less than {text.score(off[len(off) // 2])}."
    reach = with_air(min(values), max(values), 0.04)
    return _square("residuals", "Answers beside the truth", words, dots, reach, ("truth", "answer"))


def importance(columns: Sequence[tuple[str, float]], metric: str) -> Markup:
    """How much worse the score is with the values of each column mixed up: the columns that matter most, first."""
    rows = [Bar(name, max(worse, 0.0), text.signed(worse)) for name, worse in columns[:MOST_COLUMNS]]
    return bars("importance", "Importance of columns", rows, f"{text.one_line(metric, 40)}, worse by")


def _square(
    key: str,
    title: str,
    words: str,
    dots: Sequence[tuple[float, float, float, str]],
    reach: tuple[float, float],
    names: tuple[str, str],
) -> Markup:
    """Dots on two axes of the same scale, with the diagonal."""
    x, ticks = _scale(*reach)

    def y(value: float) -> float:
        return (1 - x(value) / 100) * SQUARE

    parts = [*axis_below(ticks, x, SQUARE, f"{names[0]} →", None), *axis_left(ticks, y, f"{names[1]} ↑")]
    parts.append(line("diagonal", 0, SQUARE, 100, 0))
    parts += [dot("dot result", x(across), y(up), radius, hint) for across, up, radius, hint in dots]
    return figure(key, title, words, parts, SQUARE)


def _scale(low: float, high: float) -> tuple[Callable[[float], float], list[float]]:
    """Where a value lies, in percent of the plot, and the round values to name."""
    return lambda value: (value - low) / (high - low) * 100, nice_ticks(low, high, 4)


# --- the solution tree -----------------------------------------------------------------------------------


class TreeNode(NamedTuple):
    """An attempt, and the places of those that it grew out of."""

    attempt: Attempt
    parents: tuple[int, ...]

    @property
    def lane(self) -> int:
        """Where it is drawn: 0, or 1 on for a path."""
        return 0 if self.attempt.path is None else 1 + self.attempt.path


def nodes_of(story: RunStory) -> list[TreeNode]:
    """Every attempt in the order of time, each with the places of its parents in this list."""
    place = {one.step: index for index, one in enumerate(story.attempts)}
    nodes = {node.step: node for node in story.nodes}
    found = []
    for one in story.attempts:
        origins = [story.ledger.node_of(digest) for digest in nodes[one.step].parents]
        steps = {node.step for node in origins if node is not None and node.step != one.step}
        found.append(TreeNode(one, tuple(sorted(place[step] for step in steps if step in place))))
    return found


def tree(story: RunStory) -> Markup:
    """Every attempt and what it grew out of, a lane for each path; the line to the result is drawn strongly."""
    nodes = nodes_of(story)
    ancestors = {node.step for node in lineage_of(story).nodes}
    won = {index for index, node in enumerate(nodes) if node.attempt.step in ancestors}
    shown = [i for i, node in enumerate(nodes) if len(nodes) <= MOST_MARKS or node.attempt.accepted or i in won]
    lanes = sorted({nodes[index].lane for index in shown})
    top = {lane: 26 + number * LANE for number, lane in enumerate(lanes)}
    x = {index: (number + 0.5) / len(shown) * 100 for number, index in enumerate(shown)}
    y = {index: top[nodes[index].lane] + (0 if nodes[index].attempt.accepted else HANGING) for index in shown}
    parts = [
        label(f"path {lane - 1}" if lane else "candidates, merges, ensembles", "band-name", "0", top[lane] - 12)
        for lane in lanes
    ]
    for index in shown:
        one = nodes[index].attempt
        for parent in nodes[index].parents:
            if parent in x:
                kind = "won" if {index, parent} <= won else "kept" if one.accepted else "left"
                parts.append(line(f"edge {kind} {one.colour}", x[parent], y[parent], x[index], y[index]))
    for index in shown:
        one, first = nodes[index].attempt, index == shown[0]
        if one.score is None:
            parts.append(mark(index + 1, one, x[index], y[index] + 5, "cross", first=first, glyph="×"))
            continue
        kind, size = ("yes" if one.accepted else "no") + (" won" if index in won else ""), 6 if index in won else 4
        parts.append(mark(index + 1, one, x[index], y[index], kind, first=first, radius=size))
    words = f"{plural(len(nodes), 'attempt')}; {len(won)} of them on the line to the result."
    hidden = len(nodes) - len(shown)
    words += f" {hidden} that were not accepted are left out." if hidden else ""
    return figure("tree", "Solution tree", words, parts, max(top.values()) + HANGING + 14, kind="tree")
