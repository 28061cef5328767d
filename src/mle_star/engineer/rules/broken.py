"""A script that stopped with an error, and what its traceback says about the place."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property

from mle_star.engineer.rules.profile import Profile

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LAST = re.compile(
    r"^([A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit|Iteration)|TimeoutError|Killed)\b:?\s?(.*)", re.DOTALL
)
_LIBRARY = re.compile(
    r"site-packages|/lib/python|^<|\.pyx$|\.pxi$|^[\w.-]+[/\\]"
)  # a script has a bare name, or a whole path


@dataclass(frozen=True)
class Broken:
    """A script and what stopped it. `line` counts from 1 and is 0 when the traceback names none of the script."""

    code: str
    kind: str
    message: str
    line: int
    profile: Profile
    limit: int

    @cached_property
    def tree(self) -> ast.Module | None:
        """The syntax tree, or None when there is none."""
        try:
            return ast.parse(self.code)
        except (SyntaxError, ValueError):
            return None

    @cached_property
    def statement(self) -> ast.stmt | None:
        """The innermost statement that the failing line belongs to."""
        found: ast.stmt | None = None
        for node in ast.walk(self.tree) if self.tree else []:
            if not isinstance(node, ast.stmt) or not node.lineno <= self.line <= (node.end_lineno or node.lineno):
                continue
            if found is None or (node.end_lineno or 0) - node.lineno <= (found.end_lineno or 0) - found.lineno:
                found = node
        return found

    @property
    def text(self) -> str:
        """The failing statement as it stands, or the failing line."""
        lines = self.code.splitlines()
        if self.statement is not None:
            return "\n".join(lines[self.statement.lineno - 1 : self.statement.end_lineno])
        return lines[self.line - 1] if 0 < self.line <= len(lines) else ""

    @property
    def indent(self) -> str:
        """The indentation of the failing statement."""
        first = self.text.split("\n", 1)[0]
        return first[: len(first) - len(first.lstrip())]

    def with_text(self, new: str) -> str:
        """The code with another text in the place of the failing statement."""
        lines = self.code.splitlines()
        start, end = (
            (self.statement.lineno - 1, self.statement.end_lineno or self.statement.lineno)
            if self.statement is not None
            else (self.line - 1, self.line)
        )
        return "\n".join([*lines[:start], *([new] if new else []), *lines[end:]]) + "\n"

    def before(self, new: str) -> str:
        """The code with further lines above the failing statement."""
        lines = "\n".join(self.indent + line if line else line for line in new.splitlines())
        return self.with_text(f"{lines}\n{self.text}")

    def with_import(self, line: str, code: str | None = None) -> str:
        """The code with one more import at its top."""
        code = self.code if code is None else code
        if re.search(rf"^{re.escape(line)}$", code, re.MULTILINE):
            return code
        lines = code.splitlines()
        place = next((n for n, text in enumerate(lines) if re.match(r"(import|from) (?!__future__)", text)), 0)
        return "\n".join([*lines[:place], line, *lines[place:]]) + "\n"


def read_error(code: str, error: str, profile: Profile, limit: int) -> Broken:
    """What a traceback says about a script."""
    lines = [line for line in error.strip().splitlines() if line.strip()]
    start = next((n for n in range(len(lines) - 1, -1, -1) if _LAST.match(lines[n])), len(lines) - 1)
    found = _LAST.match("\n".join(lines[start:])) if lines else None
    kind, message = (found[1].rsplit(".", 1)[-1], found[2].strip()) if found else ("", error.strip())
    frames = [(file, int(number)) for file, number in _FRAME.findall(error)]
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    line = own[-1][1] if own else 0
    if line > len(code.splitlines()):
        line = 0
    return Broken(code, kind, message, line, profile, limit)


def is_python(code: str) -> bool:
    """Does the code parse?"""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return False
    return True
