"""Charts as inline SVG: fluid in width, crisp in print, coloured by style sheet, and told in words, too.

Horizontal places are percentages of the plot, vertical ones pixels; so a chart fits a phone without shrinking its text.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from mle_star.models import MetricDirection, is_improvement
from mle_star.views import text
from mle_star.views.facts import SHORT_TITLES, Attempt

PLOT_HEIGHT = 260
ROW_HEIGHT = 37
PATH_COLOURS = 8
FENCE = 3.0
"""Scores further out than this many quartile ranges are drawn at the edge: one mishap must not flatten the rest."""


class Bar(NamedTuple):
    """One row of a bar chart; `shown` is its value in words."""

    label: str
    value: float
    shown: str
    kind: str = "plain"
    hint: str = ""


# --- scales ----------------------------------------------------------------------------------------------


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between `low` and `high`, about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    size = next((power * step for step in (1, 2, 2.5, 5, 10) if power * step >= rough), power * 10)
    first = math.ceil(low / size - 1e-9)
    return [round(number * size, 12) for number in range(first, math.floor(high / size + 1e-9) + 1)]


def time_ticks(high: float, count: int = 4) -> list[float]:
    """Round times from 0 to `high` seconds: people count minutes and hours, not hundreds of seconds."""
    sizes = [1, 2, 5, 10, 15, 30, *(60 * n for n in (1, 2, 5, 10, 15, 30)), *(3600 * n for n in (1, 2, 3, 6, 12, 24))]
    if high < 2:
        return nice_ticks(0, high, count)
    size = next((size for size in sizes if high / size <= count), 86400 * math.ceil(high / 86400 / count))
    return [float(size * number) for number in range(int(high // size) + 1)]


def score_range(values: Sequence[float]) -> tuple[float, float]:
    """The part of the scale worth showing, with some air around it."""
    low, high = min(values), max(values)
    if len(values) >= 4:
        first, _, third = statistics.quantiles(values, n=4, method="inclusive")
        reach = FENCE * (third - first)
        if reach > 0:
            low, high = max(low, first - reach), min(high, third + reach)
    air = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    return low - air, high + air


# --- score trajectory ------------------------------------------------------------------------------------


class _Scale:
    """Where the n-th attempt and a score are drawn."""

    def __init__(self, attempts: Sequence[Attempt], scores: Sequence[float]) -> None:
        self.count = len(attempts)
        self.low, self.high = score_range(scores)

    def x(self, number: float) -> float:
        return (number + 0.5) / self.count * 100

    def y(self, score: float) -> float:
        share = (score - self.low) / (self.high - self.low)
        return (1 - min(max(share, 0.0), 1.0)) * PLOT_HEIGHT

    def shows(self, score: float) -> bool:
        return self.low <= score <= self.high


def trajectory(
    attempts: Sequence[Attempt], metric: str, direction: MetricDirection, links: Sequence[str], chosen: str = ""
) -> Markup:
    """Every attempt in order, accepted ones filled, one colour per path, and the best score so far as a line.

    `chosen` is the step of the attempt that was submitted: it gets a ring.
    """
    scores = [one.score for one in attempts if one.score is not None and math.isfinite(one.score)]
    if not attempts:
        return Markup('<p class="empty">Nothing has been scored yet.</p>')
    scale = _Scale(attempts, scores or [0.0, 1.0])
    parts = [*_bands(attempts, scale), *_score_axis(scale), *_attempt_axis(scale)]
    parts += _best_line(attempts, scale, direction)
    parts += [_ring(i, one, scale) for i, one in enumerate(attempts) if one.step == chosen]
    parts += [_mark(i, one, scale, link) for i, (one, link) in enumerate(zip(attempts, links, strict=True))]
    title = f"{text.one_line(metric, 60)} of every attempt"
    words = f"{text.one_line(metric, 40)} ({direction.better_word} is better {_arrow(direction)})"
    parts.append(label(words, 'x="-52" y="-12"', "axis-title"))
    parts.append(
        label("attempts, in order of time →", f'x="100%" y="{PLOT_HEIGHT + 38}" text-anchor="end"', "axis-title")
    )
    return figure("trajectory", title, describe(attempts, metric, direction), parts, PLOT_HEIGHT, role="group")


def describe(attempts: Sequence[Attempt], metric: str, direction: MetricDirection) -> str:
    """The trajectory in words."""
    scored = [one.score for one in attempts if one.score is not None and math.isfinite(one.score)]
    accepted, failed = sum(one.accepted for one in attempts), sum(one.score is None for one in attempts)
    said = f"{text.plural(len(attempts), 'attempt')}: {accepted} accepted, {failed} failed."
    if not scored:
        return said
    best = max(scored) if direction is MetricDirection.maximize else min(scored)
    name = text.one_line(metric, 60)
    values = f"The first {name} is {text.score(scored[0])}, the best is {text.score(best)}"
    return f"{said} {values}; {direction.better_word} is better."


def _bands(attempts: Sequence[Attempt], scale: _Scale) -> list[Markup]:
    """One background per phase, with its name where there is room."""
    parts: list[Markup] = []
    start = 0
    for index in range(1, len(attempts) + 1):
        if index < len(attempts) and attempts[index].phase == attempts[start].phase:
            continue
        phase, share = attempts[start].phase, (index - start) / len(attempts)
        left = start / len(attempts) * 100
        parts.append(
            Markup('<rect class="band {}" x="{:.3f}%" y="0" width="{:.3f}%" height="{}"/>').format(
                phase, left, share * 100, PLOT_HEIGHT
            )
        )
        name = SHORT_TITLES[phase] if share > 0.2 else SHORT_TITLES[phase][-1] if share > 0.04 else ""
        parts.append(label(name, f'x="{left + share * 50:.3f}%" y="14" text-anchor="middle"', "band-name"))
        start = index
    return parts


def _score_axis(scale: _Scale) -> list[Markup]:
    parts = []
    ticks = nice_ticks(scale.low, scale.high)
    for tick, name in zip(ticks, text.ticks(ticks), strict=True):
        y = f"{scale.y(tick):.1f}"
        parts.append(Markup('<line class="grid" x1="0" x2="100%" y1="{0}" y2="{0}"/>').format(y))
        parts.append(label(name, f'x="-8" y="{y}" dy="4" text-anchor="end"', "tick"))
    return parts


def _attempt_axis(scale: _Scale) -> list[Markup]:
    parts = [Markup('<line class="axis" x1="0" x2="100%" y1="{0}" y2="{0}"/>').format(PLOT_HEIGHT)]
    ticks = [1.0] if scale.count == 1 else [tick for tick in nice_ticks(1, scale.count, 6) if tick == int(tick)]
    for tick in ticks:
        place = f'x="{scale.x(tick - 1):.3f}%" y="{PLOT_HEIGHT + 20}" text-anchor="middle"'
        parts.append(label(f"{tick:.0f}", place, "tick"))
    return parts


def _best_line(attempts: Sequence[Attempt], scale: _Scale, direction: MetricDirection) -> list[Markup]:
    parts: list[Markup] = []
    best: float | None = None
    since = 0.0
    for index, one in enumerate(attempts):
        if one.score is None or not math.isfinite(one.score):
            continue
        if best is not None and not is_improvement(one.score, best, direction):
            continue
        here = scale.x(index)
        if best is not None:
            parts.append(_best_piece(since, here, scale.y(best), scale.y(best)))
            parts.append(_best_piece(here, here, scale.y(best), scale.y(one.score)))
        best, since = one.score, here
    if best is not None:
        parts.append(_best_piece(since, 100, scale.y(best), scale.y(best)))
    return parts


def _best_piece(x1: float, x2: float, y1: float, y2: float) -> Markup:
    shape = '<line class="best" x1="{:.3f}%" x2="{:.3f}%" y1="{:.1f}" y2="{:.1f}"/>'
    return Markup(shape).format(x1, x2, y1, y2)


def _ring(index: int, one: Attempt, scale: _Scale) -> Markup:
    """Around the attempt that was submitted; its name where there is room for it."""
    if one.score is None or not math.isfinite(one.score):
        return Markup("")
    x, y = scale.x(index), scale.y(one.score)
    side = "end" if x > 50 else "start"
    place = f'x="{x:.3f}%" dx="{-14 if x > 50 else 14}" y="{y + (18 if y < 30 else -8):.1f}" text-anchor="{side}"'
    shape = Markup('<circle class="ring" cx="{:.3f}%" cy="{:.1f}" r="9"/>').format(x, y)
    return shape + label("submitted", place, "ring-name")


def _mark(index: int, one: Attempt, scale: _Scale, link: str) -> Markup:
    """A circle; a cross at the foot for a failure; an arrow at the edge for a score beyond the scale."""
    score = one.score if one.score is not None and math.isfinite(one.score) else None
    x = f"{scale.x(index):.3f}%"
    about = link_to(link, hint(index, one), first=index == 0)
    if score is None:
        shape = '<text class="mark cross {}" x="{}" y="{}" {}>×<title>{}</title></text>'
        return Markup(shape).format(colour(one), x, PLOT_HEIGHT - 3, about, hint(index, one))
    if not scale.shows(score):
        up = score > scale.high
        shape = '<text class="mark off {}" x="{}" y="{}" {}>{}<title>{} (beyond the scale)</title></text>'
        y = 26 if up else PLOT_HEIGHT - 4
        return Markup(shape).format(colour(one), x, y, about, "▲" if up else "▼", hint(index, one))
    radius = 5 if scale.count <= 80 else 4 if scale.count <= 300 else 3
    kind = "yes" if one.accepted else "no"
    shape = '<circle class="mark {} {}" cx="{}" cy="{:.1f}" r="{}" {}><title>{}</title></circle>'
    return Markup(shape).format(kind, colour(one), x, scale.y(score), radius, about, hint(index, one))


def colour(one: Attempt) -> str:
    """The class that colours an attempt: by its path."""
    return "c-main" if one.path is None else f"c{one.path % PATH_COLOURS}"


def hint(index: int, one: Attempt) -> str:
    """An attempt in one line."""
    failed = one.score is None or not math.isfinite(one.score)
    said = "failed" if failed else f"{text.score(one.score)}, {'accepted' if one.accepted else 'not accepted'}"
    return f"{index + 1}. {text.one_line(one.label, 80)}: {said}"


def link_to(link: str, words: str, *, first: bool) -> Markup:
    """What makes a mark lead to its attempt, by mouse and by keyboard: the first can be tabbed to, arrows go on."""
    return Markup('data-go="{}" role="link" tabindex="{}" aria-label="{}"').format(link, 0 if first else -1, words)


# --- bars ------------------------------------------------------------------------------------------------


def bars(
    key: str, title: str, rows: Sequence[Bar], *, unit: str, origin: float = 0.0, origin_name: str = "", show: str = ""
) -> Markup:
    """Horizontal bars from `origin`; `show` names how the axis is written: `score`, `money` or `duration`."""
    values = [row.value for row in rows if math.isfinite(row.value)]
    low, high = min([origin, *values]), max([origin, *values])
    air = (high - low) * 0.04
    if origin_name or low < origin:
        low -= air
    high = high + air if high > low else low + 1.0
    height = ROW_HEIGHT * len(rows) + 6

    def x(value: float) -> float:
        return min(max((value - low) / (high - low), 0.0), 1.0) * 100

    write = {"money": text.money, "duration": text.duration}.get(show)
    ticks = time_ticks(high) if show == "duration" else nice_ticks(low, high, 4)
    parts = [*ticks_below(ticks, text.ticks(ticks) if write is None else list(map(write, ticks)), x, height)]
    for index, row in enumerate(rows):
        if origin_name:  # beside the bars alone: through the names it would be hard to read
            top = index * ROW_HEIGHT + 18
            shape = '<line class="origin" x1="{0:.3f}%" x2="{0:.3f}%" y1="{1}" y2="{2}"/>'
            parts.append(Markup(shape).format(x(origin), top, top + 17))
        parts.append(_bar(row, index * ROW_HEIGHT, x(origin), x(row.value)))
    parts.append(label(unit, f'x="100%" y="{height + 34}" text-anchor="end"', "axis-title"))
    said = "; ".join(f"{text.one_line(row.label, 80)}: {row.shown}" for row in rows)
    head = f"The {origin_name} is {text.score(origin)}. " if origin_name else ""
    return figure(key, title, f"{head}{said}.", parts, height, kind="bars")


def ticks_below(
    ticks: Sequence[float], names: Sequence[str], x: Callable[[float], float], height: int
) -> Iterator[Markup]:
    """Grid lines of a horizontal axis, each with its number below."""
    for tick, name in zip(ticks, names, strict=True):
        yield Markup('<line class="grid" x1="{0:.3f}%" x2="{0:.3f}%" y1="0" y2="{1}"/>').format(x(tick), height)
        yield label(name, f'x="{x(tick):.3f}%" y="{height + 16}" text-anchor="middle"', "tick")


def row_name(words: str, top: int) -> Markup:
    """The name of a row, cut where the value begins, however narrow the page is."""
    shape = '<svg x="0" y="{}" width="62%" height="{}" style="overflow: hidden">{}</svg>'
    return Markup(shape).format(top, 21, label(text.one_line(words, 80), 'x="0" y="15"', "row-name"))


def _bar(row: Bar, top: int, start: float, end: float) -> Markup:
    about = f"{text.one_line(row.label, 300)}: {row.shown}{row.hint and '. ' + row.hint}"
    shown = label(row.shown, f'x="100%" y="{top + 15}" text-anchor="end"', "row-value")
    shape = '<rect class="bar {}" x="{:.3f}%" y="{}" width="{:.3f}%" height="11" rx="2"><title>{}</title></rect>'
    left, width = min(start, end), max(abs(end - start), 0.25)
    return row_name(row.label, top) + shown + Markup(shape).format(row.kind, left, top + 21, width, about)


# --- pieces ----------------------------------------------------------------------------------------------


def figure(
    key: str, title: str, words: str, parts: Sequence[Markup], height: int, kind: str = "plot", role: str = "img"
) -> Markup:
    """A chart that screen readers announce by title and description; with marks to go to, its `role` is `group`."""
    shape = (
        '<div class="chart {kind}"><svg width="100%" height="{height}" role="{role}" aria-labelledby="{key}-t {key}-d">'
        '<title id="{key}-t">{title}</title><desc id="{key}-d">{words}</desc>{inside}</svg></div>'
    )
    inside = Markup("").join(parts)
    return Markup(shape).format(key=key, title=title, words=words, height=height, inside=inside, kind=kind, role=role)


def label(words: str, place: str, kind: str) -> Markup:
    """A text at a place that we made ourselves; the words are escaped."""
    return Markup('<text class="{}" {}>{}</text>').format(kind, Markup(place), words)


def _arrow(direction: MetricDirection) -> str:
    return "↑" if direction is MetricDirection.maximize else "↓"
