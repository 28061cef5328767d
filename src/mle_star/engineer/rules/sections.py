"""Scripts as sections: taken apart at their `# --- name` lines, put together again, their imports in order."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from dataclasses import dataclass, field, replace

from mle_star.engineer.rules.literals import docstring

WIDTH = 100
_HEADER = re.compile(r"^# --- (.+?) -*$")
_FROM = re.compile(r"^from (\S+) import (.+)$")


def header(name: str) -> str:
    """The line that opens a section."""
    return f"# --- {name} ".ljust(WIDTH, "-")


@dataclass(frozen=True)
class Script:
    """A script taken apart: docstring, imports, settings above the first section, and the sections by name."""

    doc: str
    imports: tuple[str, ...]
    settings: str
    sections: dict[str, str] = field(default_factory=dict)

    def names(self, prefix: str = "") -> list[str]:
        """The names of the sections that begin so, in order."""
        return [name for name in self.sections if name.startswith(prefix)]

    def block(self, name: str) -> str:
        """A section as it stands in the text, header included."""
        return f"{header(name)}\n{self.sections[name]}"

    def changed(self, **fields: object) -> Script:
        """A copy with other fields."""
        return replace(self, **fields)  # type: ignore[arg-type]

    def with_section(self, name: str, body: str, *, before: str | None = None) -> Script:
        """A copy in which a section is new, or has another body."""
        if name in self.sections or before is None:
            return replace(self, sections={**self.sections, name: body})
        items: dict[str, str] = {}
        for key, text in self.sections.items():
            if key == before:
                items[name] = body
            items[key] = text
        return replace(self, sections=items)

    def render(self) -> str:
        """The text of the script; imports that stand in sections are moved to the top, unused ones are dropped."""
        hoisted = list(self.imports)
        bodies: dict[str, str] = {}
        for name, body in self.sections.items():
            lines, body = split_imports(body)
            hoisted += lines
            bodies[name] = body
        code = "\n\n\n".join(f"{header(name)}\n{body}" for name, body in bodies.items())
        used = used_imports(merged_imports(hoisted), f"{self.settings}\n{code}")
        parts = [docstring(self.doc), ordered_imports(used), self.settings.strip("\n")]
        return "\n\n".join(part for part in parts if part) + f"\n\n\n{code}\n"


def parse(text: str) -> Script | None:
    """The script behind a text, or None when it has no sections of ours or is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    lines = text.splitlines()
    starts = [(number, found[1]) for number, line in enumerate(lines) if (found := _HEADER.match(line))]
    if not starts:
        return None
    doc = ast.get_docstring(tree, clean=False) or ""
    top = "\n".join(lines[: starts[0][0]])
    if doc and isinstance(tree.body[0], ast.Expr):
        top = "\n".join(lines[tree.body[0].end_lineno or 0 : starts[0][0]])
    imports, settings = split_imports(top)
    ends = [number for number, _ in starts[1:]] + [len(lines)]
    sections = {
        name: "\n".join(lines[start + 1 : end]).strip("\n") for (start, name), end in zip(starts, ends, strict=True)
    }
    return Script(doc, tuple(imports), settings.strip("\n"), sections)


def split_imports(body: str) -> tuple[list[str], str]:
    """The import lines at the left margin, and the text without them."""
    imports, rest = [], []
    lines = body.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        if re.match(r"^(import|from) [\w.]+", line):
            if "(" in line:
                while ")" not in line:
                    number += 1
                    line += " " + lines[number].strip()
                line = line.replace("(", "").replace(")", "").replace(",  ", ", ").rstrip(", ")
            imports.append(re.sub(r"\s+", " ", line))
        else:
            rest.append(line)
        number += 1
    return imports, "\n".join(rest).strip("\n")


def merged_imports(lines: list[str]) -> list[str]:
    """One line per module, names in order, nothing twice."""
    plain: dict[str, None] = {}
    names: dict[str, set[str]] = {}
    for line in lines:
        found = _FROM.match(line)
        if found:
            names.setdefault(found[1], set()).update(name.strip() for name in found[2].split(",") if name.strip())
        else:
            plain[line] = None

    def key(name: str) -> tuple[bool, bool, str]:
        return not name.isupper(), not name[:1].isupper(), name  # constants, classes, functions

    return [*plain, *(f"from {module} import {', '.join(sorted(found, key=key))}" for module, found in names.items())]


def used_imports(lines: list[str], code: str) -> list[str]:
    """The imports without the names that the code does not mention."""
    kept = []
    for line in lines:
        found = _FROM.match(line)
        names = (found[2] if found else line.removeprefix("import ")).split(",")
        used = [name.strip() for name in names if _mentions(code, name.split(" as ")[-1].strip().split(".")[0])]
        if used:
            kept.append(f"from {found[1]} import {', '.join(used)}" if found else line)
    return kept


def _mentions(code: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", code) is not None


def ordered_imports(lines: list[str]) -> str:
    """Imports as people order them: the standard library first, plain imports before `from` imports."""

    def key(line: str) -> tuple[bool, str]:
        return line.startswith("from"), line.split()[1].lower()

    is_standard = {line: line.split()[1].split(".")[0] in sys.stdlib_module_names for line in lines}
    standard = sorted((line for line in lines if is_standard[line]), key=key)
    others = sorted((line for line in lines if not is_standard[line]), key=key)
    return "\n\n".join("\n".join(group) for group in (standard, others) if group)


def defined_names(code: str) -> list[str]:
    """The functions and constants that a piece of code defines at its left margin."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return []
    names = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return names


def renamed(code: str, names: dict[str, str]) -> str:
    """The code with these names changed wherever they stand as names, strings and comments excepted."""
    if not names:
        return code
    lines = code.splitlines(keepends=True)
    edits: list[tuple[int, int, int, str]] = []
    previous = ""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.NAME and token.string in names and previous != ".":
            edits.append((token.start[0] - 1, token.start[1], token.end[1], names[token.string]))
        previous = token.string
    for row, start, end, name in reversed(edits):
        lines[row] = lines[row][:start] + name + lines[row][end:]
    return "".join(lines)
