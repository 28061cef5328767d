"""Texts and numbers for people. Whatever a model or a script wrote is made harmless here before it is shown."""

import re
from collections.abc import Sequence
from datetime import datetime

from mle_star.models import ScoreChange
from mle_star.models.texts import duration as duration
from mle_star.models.texts import plural, shorten, within
from mle_star.models.texts import score as score

MAX_LINE = 2000
MAX_TEXT = 40_000
SPREAD = 1.96
"""Standard errors to each side of a difference that make its 95 % interval."""

# Terminal sequences: CSI, OSC and other strings up to their end, two-character escapes; 8-bit forms, too.
_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# Control characters, halves of surrogate pairs, and marks that reorder or hide what stands around them: a reader must
# see that they are there.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)
_LONG_NUMBER = re.compile(r"(?<![\w.])\d+\.\d{7,}(?![\w.])")


# --- texts -----------------------------------------------------------------------------------------------


def clean(text: str, *, max_line: int = MAX_LINE, max_text: int = MAX_TEXT) -> str:
    """A text that shows all it holds and does nothing: no terminal codes, no hidden marks, no endless lines."""
    text = _ANSI.sub("", shorten(text, max_text)).replace("\r\n", "\n").replace("\r", "\n")
    text = _HIDDEN.sub(_spelt_out, text)
    if len(text) > max_line:
        text = re.sub(rf"(?m)^(.{{{max_line}}})(.+)$", lambda m: f"{m[1]}[… {len(m[2]):,} more characters]", text)
    return text


def _spelt_out(match: re.Match[str]) -> str:
    """A control character as its picture, such as ␀ for NUL; others by their number."""
    code = ord(match[0])
    if 0xD800 <= code < 0xE000:
        return "\ufffd"
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else f"[U+{code:04X}]"


def one_line(text: str, width: int = 160) -> str:
    """A text as one line of at most `width` characters, its numbers with no more digits than a score has."""
    words = " ".join(_LONG_NUMBER.sub(lambda number: score(float(number[0])), clean(text[: width * 8])).split())
    return words if len(words) <= width else words[: width - 1].rstrip() + "…"


def sentences(text: str, width: int) -> str:
    """As many whole sentences from the end of a text as fit: the last one says what follows."""
    parts = re.split(r"(?<=[.!?])\s+", one_line(text, MAX_TEXT))
    fitting = [part for at in range(len(parts)) if len(part := " ".join(parts[at:])) <= width]
    return fitting[0] if fitting else parts[-1]


def prose(text: str) -> str:
    """A text without its lines of JSON, which are for programs."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("{"))


def last_line(error: str, otherwise: str = "") -> str:
    """The line of an error that says what it was."""
    return next((line.strip() for line in reversed(error.splitlines()) if line.strip()), otherwise)


# --- numbers ---------------------------------------------------------------------------------------------


def ticks(values: Sequence[float]) -> list[str]:
    """Round numbers for an axis, all with as many decimals as one of them needs."""
    short = [f"{value:.5g}" for value in values]
    if any("e" in one for one in short) or any(abs(value) >= 10_000 for value in values):
        return [score(value) for value in values]
    decimals = max((len(one.partition(".")[2]) for one in short), default=0)
    return [f"{value:.{decimals}f}" for value in values]


def signed(value: float) -> str:
    """A difference of scores, always with its sign."""
    size = f"{abs(value):#.3g}".rstrip(".") if abs(value) < 1000 else score(abs(value))
    return "±0" if value == 0 else f"{'+' if value > 0 else '−'}{size}"


def changed(change: ScoreChange) -> str:
    """`better by 0.0040 (95 % interval 0.0001 to 0.0079) on the same 180 rows`."""
    if not change.difference:
        return change.words
    size, reach = abs(change.difference), SPREAD * change.error
    amount, low, high = within(size, size - reach, size + reach)
    way = "better" if change.difference > 0 else "worse"
    return f"{way} by {amount} (95 % interval {low} to {high}) on the same {plural(change.rows, 'row')}"


def between(value: float, error: float) -> str:
    """The 95 % interval of a difference, by its standard error."""
    return f"{signed(value - SPREAD * error)} to {signed(value + SPREAD * error)}"


def money(usd: float | None) -> str:
    """Dollars, finer when they are few."""
    if usd is None:
        return "unknown"
    return f"${usd:,.2f}" if usd >= 0.1 else f"${usd:.4f}" if usd else "$0"


def clock(seconds: float) -> str:
    """`0:07`, `12:34`, `1:02:03`, for what is counting."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def tokens(count: int) -> str:
    """`812`, `3.4k`, `1.2M`."""
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.1f}k" if count >= 1e3 else str(count)


def moment(at: datetime) -> str:
    """A point in time, to the minute, with its zone."""
    return f"{at:%Y-%m-%d %H:%M} {at.tzname() or ''}".rstrip()
