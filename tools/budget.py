"""Lines of code by room, against the table in docs/architecture.md: no room grows beyond what the table allows.

    python tools/budget.py           # fails where a room is over
    python tools/budget.py --write   # lowers what the table allows to what the rooms have now

A line counts when it holds code, imports included: no blank line, no comment, no docstring.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TABLE = ROOT / "src" / "mle_star", ROOT / "docs" / "architecture.md"
_ROW = re.compile(r"^\| `(?P<room>\w+)` \| (?P<allowed>[\d,]+) \| (?P<aim>[\d,]+) \|", re.MULTILINE)
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(path: Path) -> int:
    """How many lines of a file are code."""
    text = path.read_text(encoding="utf-8")
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                docs.update(range(child.lineno, (child.end_lineno or child.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = [range(token.start[0], token.end[0] + 1) for token in tokens if token.type not in _NO_CODE]
    return len({line for lines in code for line in lines} - docs)


def rooms() -> Counter[str]:
    """The lines of each room and of each module outside of one."""
    found: Counter[str] = Counter()
    for path in sorted(SOURCE.rglob("*.py")):
        found[path.relative_to(SOURCE).parts[0].removesuffix(".py")] += code_lines(path)
    return found


def main(arguments: list[str]) -> int:
    """Compare, or write; 1 where a room is over or not in the table."""
    text, lines = TABLE.read_text(encoding="utf-8"), rooms()
    allowed = {row["room"]: int(row["allowed"].replace(",", "")) for row in _ROW.finditer(text)}
    if arguments == ["--write"]:

        def lowered(row: re.Match[str]) -> str:
            now = min(lines[row["room"]], allowed[row["room"]])
            return row[0].replace(f"| {row['allowed']} |", f"| {now:,} |", 1)

        TABLE.write_text(_ROW.sub(lowered, text), encoding="utf-8")
        return 0
    over = {room: count for room, count in lines.items() if count > allowed.get(room, 0)}
    for room, count in over.items():
        print(f"{room}: {count:,} lines of code, {allowed.get(room, 0):,} are allowed (docs/architecture.md)")
    print(f"{sum(lines.values()):,} lines of code, {sum(allowed.values()):,} allowed")
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
