"""Texts: their digests, what of them can be kept, shown and counted."""

import difflib
import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

TRACEBACK_HEADER = "Traceback (most recent call last):"


def digest_of(*parts: str) -> str:
    """A digest of texts, each told apart from the next."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        hasher.update(f"{len(data)}:".encode() + data)
    return hasher.hexdigest()


QUOTED = 80


def quoted(text: str) -> str:
    """A text as a message quotes it: of a long one the beginning, and how long it is."""
    return repr(text) if len(text) <= QUOTED else f"{text[:QUOTED]!r}... ({len(text)} characters)"


def shorten(text: str, most: int) -> str:
    """Head and tail of a long text, with a mark where the middle was."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def plural(count: int, noun: str) -> str:
    """`3 rows`, `1 row`, `2 classes`, `1,000 scripts`."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def score(value: float | None) -> str:
    """A score with four digits, the same number wherever it is shown."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 9_999.5:
        return f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.4g}"
    return "0" if value == 0 else f"{value:#.4g}".rstrip(".")


def within(figure: float, low: float, high: float) -> tuple[str, str, str]:
    """A figure and the ends of its interval, all with the digits that the interval carries: two of its width."""
    width = high - low
    if not math.isfinite(width) or width <= 0 or not math.isfinite(figure):
        return score(figure), score(low), score(high)
    places = 1 - math.floor(math.log10(width))
    one, lower, upper = (f"{round(value, places) + 0.0:,.{max(places, 0)}f}" for value in (figure, low, high))
    return one, lower, upper


def storable(value: Any) -> Any:
    """The same where it can be written as UTF-8; half a pair of surrogates, which cannot, as a script would spell it.

    Of JSON data, every text in it.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [storable(one) for one in value]
    return {storable(name): storable(one) for name, one in value.items()} if isinstance(value, dict) else value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, else all of them."""
    names = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return f"did you mean {names[near[0]]}?" if near else f"known are: {', '.join(names.values())}"


def printable(text: str, *, keep: str = "") -> str:
    """Plain text that does nothing: line breaks, escape codes and what else cannot be printed are spelled out."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def duration(seconds: float | None) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{max(seconds, 0):.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def figure(value: float) -> str:
    """A number as prompts show it: four significant digits, and never less than its whole part."""
    return f"{value:.4g}" if abs(value) < 9_999.5 or abs(value) >= 1e15 else f"{value:.0f}"
