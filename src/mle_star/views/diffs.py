"""Two texts side by side: which lines stayed, went and came."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from mle_star.views.text import clean

MAX_LINES = 2000
Opcode = tuple[str, int, int, int, int]


def opcodes(before: str, after: str) -> list[Opcode]:
    """How the lines of one text become those of the other; very long texts are compared as a whole."""
    old, new = before.split("\n"), after.split("\n")
    if before == after:
        return [("equal", 0, len(old), 0, len(new))]
    if max(len(old), len(new)) > MAX_LINES:
        return [("replace", 0, len(old), 0, len(new))]
    return list(difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes())


def unified(before: str, after: str, old_name: str, new_name: str) -> Iterator[str]:
    """The lines of a unified diff, without line ends. The whole texts are compared; only what is shown is cut."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), old_name, new_name, lineterm="")
    return map(clean, lines)
