"""Python with syntax colours, in light and dark."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers.python import PythonLexer

MAX_COLOURED = 150_000
LIGHT, DARK = "xcode", "github-dark"


def coloured(code: str) -> Markup:
    """The code as HTML; beyond a size at which colours would only slow the page, plain."""
    if len(code) > MAX_COLOURED:
        return escape(code)
    html = highlight(code, PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True))
    return Markup(html if code.endswith("\n") else html.removesuffix("\n"))


def style_sheet() -> str:
    """The colours: light by default, dark where the reader's system is."""
    return f"{_colours(LIGHT)}\n@media (prefers-color-scheme: dark) {{\n{_colours(DARK)}\n}}"


def _colours(style: str) -> str:
    """The rules for tokens, without those for backgrounds and line numbers."""
    formatter: Any = HtmlFormatter(style=style)
    rules: str = formatter.get_style_defs(".code")
    kept = [line for line in rules.splitlines() if line.startswith(".code .")]
    return "\n".join(line.split(" /*")[0] for line in kept if ".hll" not in line)
