"""Charts of the result itself: the scores beside it, what it confuses, how far off and how sure of itself it is."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from mle_star.views import text
from mle_star.views.charts import Bar, bars, figure, label, nice_ticks, row_name, ticks_below
from mle_star.views.reasons import ScaleMark

STRIP_ROW = 40
SQUARE = 260
MOST_COLUMNS = 12


def strip(rows: Sequence[ScaleMark], unit: str) -> Markup:
    """Scores on one scale, one below the other: a dot each, and a bar where an interval is known."""
    values = [value for row in rows for value in (row.score, row.low, row.high) if value is not None]
    low, high = min(values), max(values)
    air = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    low, high = low - air, high + air
    height = STRIP_ROW * len(rows) + 4

    def x(value: float) -> float:
        return (value - low) / (high - low) * 100

    ticks = nice_ticks(low, high, 4)
    parts = [*ticks_below(ticks, text.ticks(ticks), x, height)]
    for index, row in enumerate(rows):
        top = index * STRIP_ROW
        parts.append(row_name(row.name, top))
        parts.append(label(_shown(row), f'x="100%" y="{top + 15}" text-anchor="end"', "row-value"))
        parts.append(Markup('<line class="track" x1="0" x2="100%" y1="{0}" y2="{0}"/>').format(top + 27))
        if row.low is not None and row.high is not None:
            shape = '<line class="span {}" x1="{:.3f}%" x2="{:.3f}%" y1="{y}" y2="{y}"/>'
            parts.append(Markup(shape).format(row.kind, x(row.low), x(row.high), y=top + 27))
        shape = '<circle class="dot {}" cx="{:.3f}%" cy="{}" r="6"><title>{}</title></circle>'
        parts.append(Markup(shape).format(row.kind, x(row.score), top + 27, f"{row.name}: {_shown(row)}"))
    parts.append(label(unit, f'x="100%" y="{height + 34}" text-anchor="end"', "axis-title"))
    said = "; ".join(f"{row.name}: {_shown(row)}" for row in rows)
    return figure("scale", "The score beside what it can be compared with", f"{said}.", parts, height, kind="bars")


def _shown(row: ScaleMark) -> str:
    if row.low is None or row.high is None:
        return text.score(row.score)
    return f"{text.score(row.score)} ({text.score(row.low)} to {text.score(row.high)})"


def confusion(classes: Sequence[str], table: Sequence[Sequence[int]]) -> Markup:
    """A table of true classes by said ones, each row shaded by its shares."""
    head = Markup("").join(Markup('<th scope="col">{}</th>').format(text.one_line(name, 16)) for name in classes)
    rows = []
    for name, counts in zip(classes, table, strict=True):
        whole = sum(counts) or 1
        cells = Markup("").join(
            Markup('<td class="{}" style="--share: {:.0f}%" title="{:.1f} % of this class">{:,}</td>').format(
                "right" if other == name else "wrong", 100 * count / whole, 100 * count / whole, count
            )
            for other, count in zip(classes, counts, strict=True)
        )
        rows.append(Markup('<tr><th scope="row">{}</th>{}</tr>').format(text.one_line(name, 24), cells))
    shape = (
        '<div class="scroll" tabindex="0"><table class="confusion"><caption class="hint">'
        "Rows: the truth. Columns: what was said.</caption>"
        "<thead><tr><td></td>{}</tr></thead><tbody>{}</tbody></table></div>"
    )
    return Markup(shape).format(head, Markup("").join(rows))


def calibration(bins: Sequence[tuple[float, float, int]]) -> Markup:
    """How often what was given some chance was so: on the diagonal, chances are what they say."""
    most = max(count for _, _, count in bins)
    dots = [
        (said, found, 3 + 5 * (count / most) ** 0.5, f"said {said:.0%}, found {found:.0%}, {text.plural(count, 'row')}")
        for said, found, count in bins
    ]
    words = "; ".join(hint for *_, hint in dots)
    names = ("chance that was said", "share that was so")
    return _square("calibration", "Calibration", words, dots, (0.0, 1.0), names)


def importance(columns: Sequence[tuple[str, float]], metric: str) -> Markup:
    """How much worse the score is with the values of each column mixed up: the columns that matter most, first."""
    rows = [Bar(name, max(worse, 0.0), text.signed(worse)) for name, worse in columns[:MOST_COLUMNS]]
    unit = f"{text.one_line(metric, 40)}, worse by"
    return bars("importance", "Columns that the solution leans on", rows, unit=unit)


def residuals(points: Sequence[tuple[float, float]]) -> Markup:
    """The answer of some rows against the truth; the closer to the diagonal, the better."""
    values = [value for pair in points for value in pair]
    low, high = min(values), max(values)
    air = (high - low) * 0.04 or abs(high) * 0.05 or 1.0
    dots = [(x, y, 2.5, f"truth {text.score(x)}, answer {text.score(y)}") for x, y in points]
    off = sorted(abs(y - x) for x, y in points)
    words = (
        f"{text.plural(len(points), 'row')}; half of the answers are off by less than {text.score(off[len(off) // 2])}."
    )
    return _square("residuals", "Answers beside the truth", words, dots, (low - air, high + air), ("truth", "answer"))


def _square(
    key: str,
    title: str,
    words: str,
    dots: Sequence[tuple[float, float, float, str]],
    reach: tuple[float, float],
    names: tuple[str, str],
) -> Markup:
    """Dots on two axes of the same scale, with the diagonal."""
    low, high = reach

    def x(value: float) -> float:
        return (value - low) / (high - low) * 100

    def y(value: float) -> float:
        return (1 - (value - low) / (high - low)) * SQUARE

    ticks = nice_ticks(low, high, 4)
    parts = [*ticks_below(ticks, text.ticks(ticks), x, SQUARE)]
    for tick, name in zip(ticks, text.ticks(ticks), strict=True):
        parts.append(Markup('<line class="grid" x1="0" x2="100%" y1="{0:.1f}" y2="{0:.1f}"/>').format(y(tick)))
        parts.append(label(name, f'x="-8" y="{y(tick):.1f}" dy="4" text-anchor="end"', "tick"))
    parts.append(Markup('<line class="diagonal" x1="0" y1="{}" x2="100%" y2="0"/>').format(SQUARE))
    shape = '<circle class="dot result" cx="{:.3f}%" cy="{:.1f}" r="{:.1f}"><title>{}</title></circle>'
    parts += [Markup(shape).format(x(across), y(up), radius, hint) for across, up, radius, hint in dots]
    parts.append(label(f"{names[0]} →", f'x="100%" y="{SQUARE + 38}" text-anchor="end"', "axis-title"))
    parts.append(label(f"{names[1]} ↑", 'x="-52" y="-12"', "axis-title"))
    return figure(key, title, words, parts, SQUARE)
