"""Small ways to change a script, from which most mends are made."""

from __future__ import annotations

import re
from collections.abc import Callable

from mle_star.engineer.rules.broken import Broken

Change = Callable[[Broken], str | None]


def sub(pattern: str, new: str) -> Change:
    """Replace a pattern in the failing statement."""

    def change(broken: Broken) -> str | None:
        text = re.sub(pattern, new, broken.text)
        return broken.with_text(text) if text != broken.text else None

    return change


def everywhere(pattern: str, new: str) -> Change:
    """Replace a pattern in the whole script."""

    def change(broken: Broken) -> str | None:
        code = re.sub(pattern, new, broken.code)
        return code if code != broken.code else None

    return change


def first_of(*changes: Change) -> Change:
    """The first of several changes that does something."""

    def change(broken: Broken) -> str | None:
        return next((new for c in changes if (new := c(broken)) is not None and new != broken.code), None)

    return change
