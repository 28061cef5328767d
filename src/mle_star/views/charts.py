"""Charts as inline SVG: fluid in width, crisp in print, coloured by style sheet, and told in words, too.

Horizontal places are percentages of the plot, vertical ones pixels; so a chart fits a phone without shrinking its text.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from markupsafe import Markup

from mle_star.models import MetricDirection
from mle_star.models.enums import phase_of
from mle_star.models.texts import plural, within
from mle_star.run.ledger import best_score
from mle_star.views import text
from mle_star.views.facts import SHORT_TITLES, ScoredAttempt
from mle_star.views.lineage import lineage_of
from mle_star.views.story import RunStory
from mle_star.views.verdict import ScaleMark

PLOT_HEIGHT = 260
ROW_HEIGHT = 37
STRIP_ROW = 40
LANE, HANGING = 66, 20
MOST_COLUMNS = 12
MOST_MARKS = 160
"""With more attempts than these, those that were not accepted are only counted in the tree."""
FENCE = 3.0
"""Scores further out than this many quartile ranges are drawn at the edge: one mishap must not flatten the rest."""
TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Seconds between two marks of an axis: people count minutes and hours, not hundreds of seconds."""
Scale = Callable[[float], float]
Write = Callable[[float], str]


class Bar(NamedTuple):
    """One row of a bar chart; `shown` is its value in words."""

    label: str
    value: float
    shown: str
    kind: str = "plain"
    hint: str = ""


# --- pieces ----------------------------------------------------------------------------------------------


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    """A line from place to place."""
    return Markup('<line class="{}" x1="{:.3f}%" y1="{:.1f}" x2="{:.3f}%" y2="{:.1f}"/>').format(kind, x1, y1, x2, y2)


def label(words: str, kind: str, x: float | str, y: float, anchor: str = "start", dx: int = 0) -> Markup:
    """A text; a place that is no percentage is written out, such as `-8`."""
    shape = '<text class="{}" x="{}" y="{:.1f}" dx="{}" text-anchor="{}">{}</text>'
    return Markup(shape).format(kind, x if isinstance(x, str) else f"{x:.3f}%", y, dx, anchor, words)


def dot(kind: str, x: float, y: float, radius: float, hint: str, more: Markup | str = "") -> Markup:
    """A circle that says what it is."""
    shape = '<circle class="{}" cx="{:.3f}%" cy="{:.1f}" r="{:.1f}" {}><title>{}</title></circle>'
    return Markup(shape).format(kind, x, y, radius, more, hint)


def mark(number: int, one: ScoredAttempt, x: float, y: float, radius: float, kind: str, glyph: str = "") -> Markup:
    """An attempt: a dot or a glyph, a cross if it failed, that leads to more about it, by mouse and by keyboard.

    The first can be tabbed to, arrow keys lead on.
    """
    kind, glyph = ("cross", "×") if one.score is None else (kind, glyph)
    score = "" if one.score is None else f"{text.score(one.score)}, "
    hint = f"{number}. {text.one_line(one.label, 80)}: {score}{one.outcome}"
    tab = 0 if number == 1 else -1
    about = Markup('data-go="{}" role="link" tabindex="{}" aria-label="{}"').format(one.link, tab, hint)
    if not glyph:
        return dot(f"mark {kind} {one.colour}", x, y, radius, hint, about)
    shape = '<text class="mark {} {}" x="{:.3f}%" y="{:.1f}" {}>{}<title>{}</title></text>'
    return Markup(shape).format(kind, one.colour, x, y, about, glyph, hint)


def figure(key: str, title: str, words: str, parts: Sequence[Markup], height: float, kind: str = "plot") -> Markup:
    """A chart that screen readers announce by title and description; one with marks to go to is a group."""
    inside = Markup("").join(parts)
    shape = (
        '<div class="chart {kind}"><svg width="100%" height="{height}" role="{role}" aria-labelledby="{key}-t {key}-d">'
        '<title id="{key}-t">{title}</title><desc id="{key}-d">{words}</desc>{inside}</svg></div>'
    )
    role = "group" if "data-go" in inside else "img"
    return Markup(shape).format(key=key, title=title, words=words, height=height, inside=inside, kind=kind, role=role)


def row_head(name: str, shown: str, top: float) -> list[Markup]:
    """The name of a row, cut where its value begins, however narrow the page is; and the value."""
    shape = '<svg x="0" y="{}" width="62%" height="21" style="overflow: hidden">{}</svg>'
    words = label(text.one_line(name, 80), "row-name", "0", 15)
    return [Markup(shape).format(top, words), label(shown, "row-value", "100%", top + 15, "end")]


# --- scales ----------------------------------------------------------------------------------------------


def scale(low: float, high: float, length: float = 100.0) -> Scale:
    """Where a value lies between `low` and `high`, at the edge if beyond."""
    return lambda value: min(max((value - low) / (high - low), 0.0), 1.0) * length


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between `low` and `high`, about `count` of them."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    size = next((power * step for step in (1, 2, 2.5, 5, 10) if power * step >= rough), power * 10)
    first = math.ceil(low / size - 1e-9)
    return [round(number * size, 12) for number in range(first, math.floor(high / size + 1e-9) + 1)]


def time_ticks(high: float, count: int = 4) -> list[float]:
    """Round times from 0 to `high` seconds."""
    if high < 2:
        return nice_ticks(0, high, count)
    size = next((size for size in TIMES if high / size <= count), 86400 * math.ceil(high / 86400 / count))
    return [float(size * number) for number in range(int(high // size) + 1)]


def score_range(values: Sequence[float]) -> tuple[float, float]:
    """The part of the scale worth showing, with some air around it."""
    low, high = min(values), max(values)
    if len(values) >= 4:
        first, _, third = statistics.quantiles(values, n=4, method="inclusive")
        reach = FENCE * (third - first)
        if reach > 0:
            low, high = max(low, first - reach), min(high, third + reach)
    return with_air(low, high, 0.08)


def with_air(low: float, high: float, share: float) -> tuple[float, float]:
    """A range with some room on both sides."""
    air = (high - low) * share or abs(high) * 0.05 or 1.0
    return low - air, high + air


def axis_below(
    ticks: Sequence[float], x: Scale, height: float, unit: str, write: Write | None = None
) -> Iterator[Markup]:
    """Grid lines of a horizontal axis, each with its number below, and what they count."""
    for tick, name in zip(ticks, text.ticks(ticks) if write is None else map(write, ticks), strict=True):
        yield line("grid", x(tick), 0, x(tick), height)
        yield label(name, "tick", x(tick), height + 16, "middle")
    yield label(unit, "axis-title", "100%", height + 34, "end")


def axis_left(ticks: Sequence[float], y: Scale, unit: str) -> Iterator[Markup]:
    """Grid lines of a vertical axis, each with its number beside it, and what they count."""
    for tick, name in zip(ticks, text.ticks(ticks), strict=True):
        yield line("grid", 0, y(tick), 100, y(tick))
        yield label(name, "tick", "-8", y(tick) + 4, "end")
    yield label(unit, "axis-title", "-52", -12)


# --- score trajectory ------------------------------------------------------------------------------------


def trajectory(story: RunStory, chosen: str = "") -> Markup:
    """Every attempt in order, accepted ones filled, one colour per path, and the best score so far as a line.

    `chosen` is the step of the attempt that was submitted: it gets a ring.
    """
    attempts, count = story.attempts, len(story.attempts)
    if not attempts:
        return Markup('<p class="empty">Nothing has been scored yet.</p>')
    low, high = score_range([one.score for one in attempts if one.score is not None] or [0.0, 1.0])
    x, y = scale(-0.5, count - 0.5), scale(high, low, PLOT_HEIGHT)
    arrow = "↑" if story.direction is MetricDirection.maximize else "↓"
    unit = f"{text.one_line(story.metric, 40)} ({story.direction.better_word} is better {arrow})"
    parts = [*_bands(attempts), *axis_left(nice_ticks(low, high), y, unit)]
    parts.append(line("axis", 0, PLOT_HEIGHT, 100, PLOT_HEIGHT))
    numbers = [1.0] if count == 1 else [tick for tick in nice_ticks(1, count, 6) if tick == int(tick)]
    parts += [label(f"{one:.0f}", "tick", x(one - 1), PLOT_HEIGHT + 20, "middle") for one in numbers]
    parts.append(label("attempts, in order of time →", "axis-title", "100%", PLOT_HEIGHT + 38, "end"))
    parts += _best_line(story, x, y)
    radius = 5 if count <= 80 else 4 if count <= 300 else 3
    for index, one in enumerate(attempts):
        kind, glyph, place = "yes" if one.accepted else "no", "", PLOT_HEIGHT - 3.0
        if one.score is not None:
            place = y(one.score)
            parts += _ring(x(index), place) if one.step == chosen else []
            if not low <= one.score <= high:  # beyond the scale
                place, kind, glyph = (26.0, "off", "▲") if one.score > high else (PLOT_HEIGHT - 4.0, "off", "▼")
        parts.append(mark(index + 1, one, x(index), place, radius, kind, glyph))
    title = f"{text.one_line(story.metric, 60)} of every attempt"
    return figure("trajectory", title, describe(story), parts, PLOT_HEIGHT)


def describe(story: RunStory) -> str:
    """The trajectory in words."""
    scores = [one.score for one in story.attempts]
    accepted, failed = sum(one.accepted for one in story.attempts), scores.count(None)
    words = f"{plural(len(scores), 'attempt')}: {accepted} accepted, {failed} failed."
    if story.first_score is None:
        return words
    values = f"is {text.score(story.first_score)}, the best is {text.score(best_score(scores, story.direction))}"
    return f"{words} The first {text.one_line(story.metric, 60)} {values}; {story.direction.better_word} is better."


def _bands(attempts: Sequence[ScoredAttempt]) -> Iterator[Markup]:
    """One background per phase, with its name where there is room."""
    start = 0
    for phase, group in groupby(attempts, lambda one: phase_of(one.step)):
        count = len(list(group))
        left, share = start / len(attempts) * 100, count / len(attempts) * 100
        shape = '<rect class="band {}" x="{:.3f}%" y="0" width="{:.3f}%" height="{}"/>'
        yield Markup(shape).format(phase, left, share, PLOT_HEIGHT)
        name = SHORT_TITLES[phase] if share > 20 else SHORT_TITLES[phase][-1] if share > 4 else ""
        yield label(name, "band-name", left + share / 2, 14, "middle")
        start += count


def _best_line(story: RunStory, x: Scale, y: Scale) -> Iterator[Markup]:
    """Steps from best to best, on to the right edge."""
    steps = enumerate(pairwise([None, *story.best_so_far]))
    corners = [(x(index), y(best)) for index, (before, best) in steps if best is not None and best != before]
    for (x1, y1), (x2, y2) in pairwise([*corners, (100.0, corners[-1][1])] if corners else []):
        yield line("best", x1, y1, x2, y1)
        yield line("best", x2, y1, x2, y2)


def _ring(x: float, y: float) -> Iterator[Markup]:
    """Around the attempt that was submitted; its name where there is room for it."""
    yield dot("ring", x, y, 9, "submitted")
    anchor, dx = ("end", -14) if x > 50 else ("start", 14)
    yield label("submitted", "ring-name", x, y + (18 if y < 30 else -8), anchor, dx)


def tree(story: RunStory) -> Markup:
    """Every attempt and what it grew out of, a lane for each path; the line to the result is drawn strongly."""
    numbered = {one.step: (number, one) for number, one in enumerate(story.attempts, 1)}
    won = {node.step for node in lineage_of(story).nodes} & set(numbered)
    few = len(numbered) <= MOST_MARKS
    shown = {step: one for step, (n, one) in numbered.items() if few or n == 1 or one.accepted or step in won}
    lanes = sorted({one.path for one in shown.values()}, key=lambda path: -1 if path is None else path)
    top = {lane: 26 + number * LANE for number, lane in enumerate(lanes)}
    names = {lane: "candidates, merges, ensembles" if lane is None else f"path {lane}" for lane in lanes}
    parts = [label(names[lane], "band-name", "0", top[lane] - 12) for lane in lanes]
    x = scale(-0.5, len(shown) - 0.5)
    place = {
        step: (x(number), top[one.path] + (0 if one.accepted else HANGING))
        for number, (step, one) in enumerate(shown.items())
    }
    for step, one in shown.items():
        for parent in one.parents:
            if parent in place:
                kind = "won" if {step, parent} <= won else "kept" if one.accepted else "left"
                parts.append(line(f"edge {kind} {one.colour}", *place[parent], *place[step]))
    for step, one in shown.items():
        (left, down), kind = place[step], ("yes" if one.accepted else "no") + (" won" if step in won else "")
        down += 5 if one.score is None else 0
        parts.append(mark(numbered[step][0], one, left, down, 6 if step in won else 4, kind))
    words = f"{plural(len(numbered), 'attempt')}; {len(won)} of them on the line to the result."
    hidden = len(numbered) - len(shown)
    words += f" {hidden} that were not accepted are left out." if hidden else ""
    return figure("tree", "Solution tree", words, parts, max(top.values()) + HANGING + 14, kind="tree")


# --- bars and dots of the result --------------------------------------------------------------------------


def bars(
    key: str, title: str, rows: Sequence[Bar], unit: str, *, baseline: float | None = None, write: Write | None = None
) -> Markup:
    """Horizontal bars from 0, or from a `baseline`; `write` is how the numbers of the axis are written."""
    origin = baseline or 0.0
    values = [origin, *(row.value for row in rows)]
    low, high = min(values), max(values)
    air = (high - low) * 0.04
    if baseline is not None or low < origin:
        low -= air
    high = high + air if high > low else low + 1.0
    x, height = scale(low, high), ROW_HEIGHT * len(rows) + 6
    ticks = time_ticks(high) if write is text.duration else nice_ticks(low, high, 4)
    parts = [*axis_below(ticks, x, height, unit, write)]
    for index, row in enumerate(rows):
        top = index * ROW_HEIGHT
        if baseline is not None:  # beside the bars alone: through the names it would be hard to read
            parts.append(line("origin", x(origin), top + 18, x(origin), top + 35))
        hint = f"{text.one_line(row.label, 300)}: {row.shown}{row.hint and '. ' + row.hint}"
        left, width = min(x(origin), x(row.value)), max(abs(x(row.value) - x(origin)), 0.25)
        shape = '<rect class="bar {}" x="{:.3f}%" y="{}" width="{:.3f}%" height="11" rx="2"><title>{}</title></rect>'
        parts += [*row_head(row.label, row.shown, top), Markup(shape).format(row.kind, left, top + 21, width, hint)]
    words = "; ".join(f"{text.one_line(row.label, 80)}: {row.shown}" for row in rows)
    head = "" if baseline is None else f"The baseline is {text.score(baseline)}. "
    return figure(key, title, f"{head}{words}.", parts, height, kind="bars")


def importance(columns: Sequence[tuple[str, float]], metric: str) -> Markup:
    """How much worse the score is with the values of each column mixed up: the columns that matter most, first."""
    rows = [Bar(name, max(worse, 0.0), text.signed(worse)) for name, worse in columns[:MOST_COLUMNS]]
    return bars("importance", "Importance of columns", rows, f"{text.one_line(metric, 40)}, worse by")


def strip(rows: Sequence[ScaleMark], unit: str) -> Markup:
    """Scores on one scale, one below the other: a dot each, and a bar where an interval is known."""
    values = [value for row in rows for value in (row.score, row.low, row.high) if value is not None]
    low, high = with_air(min(values), max(values), 0.06)
    x, height = scale(low, high), STRIP_ROW * len(rows) + 4
    parts, words = [*axis_below(nice_ticks(low, high, 4), x, height, unit)], []
    for index, row in enumerate(rows):
        top, shown = index * STRIP_ROW, text.score(row.score)
        track = top + 27
        parts.append(line("track", 0, track, 100, track))
        if row.low is not None and row.high is not None:
            shown = "{} (95 % interval {} to {})".format(*within(row.score, row.low, row.high))
            parts.append(line(f"span {row.kind}", x(row.low), track, x(row.high), track))
        words.append(f"{row.name}: {shown}")
        parts += [*row_head(row.name, shown, top), dot(f"dot {row.kind}", x(row.score), track, 6, words[-1])]
    title = "The score beside what it can be compared with"
    return figure("scale", title, f"{'; '.join(words)}.", parts, height, kind="bars")
