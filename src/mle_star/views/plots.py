"""Charts of the result itself: the scores that it stands beside, on one scale."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from mle_star.views import text
from mle_star.views.charts import figure, label, nice_ticks, row_name, ticks_below
from mle_star.views.reasons import Yardstick

STRIP_ROW = 40


def strip(rows: Sequence[Yardstick], unit: str) -> Markup:
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


def _shown(row: Yardstick) -> str:
    if row.low is None or row.high is None:
        return text.score(row.score)
    return f"{text.score(row.score)} ({text.score(row.low)} to {text.score(row.high)})"
