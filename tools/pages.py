"""A hook of mkdocs: pages are written as GitHub reads them, with lists and tables right below a paragraph."""

import re
from typing import Any

FENCE = re.compile(r"\s*(`{3,})")
ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with a blank line around each block and before each list and table, as Python-Markdown wants it."""
    lines, fence, last = list[str](), "", "blank"
    for line in markdown.split("\n"):
        found = FENCE.match(line)
        if found and not fence:
            fence, kind = found[1], "code"
            if last not in ("blank", "item"):  # a block within an item stays there
                lines.append("")
        elif fence:
            kind = "code"
            if found and found[1].startswith(fence):
                fence, kind = "", "end"
        else:
            kind = (
                "item" if ITEM.match(line) else "row" if line.startswith("|") else "text" if line.strip() else "blank"
            )
            if (kind in ("item", "row") and last not in ("blank", kind)) or (kind == "text" and last == "end"):
                lines.append("")
            kind = "item" if kind == "text" and last == "item" else kind  # a list goes on until a blank line
        lines.append(line)
        last = kind
    return "\n".join(lines)
