"""Which tests prove which requirement, and where we depart from its letter: written to docs/traceability.md.

Tests are found by their `req` marks, departures by the headings of docs/deviations.md.

python tools/trace.py            print every requirement with the tests that name it, and the count per spec
python tools/trace.py --write    the same, and write docs/traceability.md
python tools/trace.py --check    exit code 1 when the file is not current or a requirement has no test
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "tools" / "requirements.tsv"
DEVIATIONS = ROOT / "docs" / "deviations.md"
TABLE = ROOT / "docs" / "traceability.md"
SPECS = {
    "DM": "01 Data models",
    "EX": "02 Execution harness",
    "SF": "03 Safety",
    "P1": "04 Phase 1",
    "P2O": "05 Phase 2, outer loop",
    "P2I": "06 Phase 2, inner loop",
    "P3": "07 Phase 3",
    "FN": "08 Finalization",
    "OR": "09 Orchestrator",
}
Proofs = dict[str, dict[str, list[str]]]  # requirement, test file, names of tests
Departures = dict[str, list[str]]  # requirement, headings of the entries about it


def requirements() -> dict[str, str]:
    """Every requirement of the specification with its title."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t", 1) for line in lines if line)


def collect(folder: Path) -> Proofs:
    """The requirements that the tests below `folder` name; the files are read, not run."""
    proofs: Proofs = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.rglob("test_*.py")):
        for identifier, test in sorted(set(_marks(ast.parse(path.read_text(encoding="utf-8"))))):
            proofs[identifier][path.relative_to(folder.parent).as_posix()].append(test)
    return proofs


def _marks(module: ast.Module) -> Iterator[tuple[str, str]]:
    """(requirement, test) for marks on tests, their classes, their parameters and the whole module."""
    known: dict[str, ast.expr] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            known[node.target.id] = node.value
    everywhere = set(_identifiers(known["pytestmark"], known)) if "pytestmark" in known else set()
    yield from _marks_in(module.body, everywhere, known)


def _marks_in(body: list[ast.stmt], outer: set[str], known: dict[str, ast.expr]) -> Iterator[tuple[str, str]]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        named = outer | {identifier for mark in node.decorator_list for identifier in _identifiers(mark, known)}
        if isinstance(node, ast.ClassDef):
            yield from _marks_in(node.body, named, known)
        elif node.name.startswith("test"):
            yield from ((identifier, node.name) for identifier in named)


def _identifiers(expression: ast.expr, known: dict[str, ast.expr]) -> Iterator[str]:
    """The ids of every `pytest.mark.req(...)` in an expression; names stand for what the module assigned to them."""
    rest = dict(known)
    queue: list[ast.AST] = [expression]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "req":
            yield from _texts(node.args, known)
        elif isinstance(node, ast.Name) and node.id in rest:
            queue.append(rest.pop(node.id))
        else:
            queue.extend(ast.iter_child_nodes(node))


def _texts(arguments: list[ast.expr], known: dict[str, ast.expr]) -> Iterator[str]:
    for argument in arguments:
        value = argument.value if isinstance(argument, ast.Starred) else argument
        value = known.get(value.id, value) if isinstance(value, ast.Name) else value
        for node in ast.walk(value):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from re.findall(r"REQ-\w+-\w+", node.value)


def departures(text: str) -> Departures:
    """The requirements that the headings of docs/deviations.md name, each with the entries about it."""
    found: Departures = defaultdict(list)
    for heading in re.findall(r"^### (.+)$", text, re.MULTILINE):
        for identifier in re.findall(r"REQ-\w+-\w+", heading.partition(":")[0]) or [heading]:
            found[identifier].append(heading)
    return found


def anchor(heading: str) -> str:
    """The anchor that Markdown gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _link(heading: str) -> str:
    """A link to an entry of docs/deviations.md, named by what comes after its requirements."""
    return f"[{heading.partition(': ')[2]}]({DEVIATIONS.name}#{anchor(heading)})"


def problems(proofs: Proofs, departed: Departures) -> list[str]:
    """Requirements without a test, and ids that no spec has."""
    known = requirements()
    missing = [f"{identifier} has no test: {title}" for identifier, title in known.items() if identifier not in proofs]
    named = {identifier: ", ".join(files) for identifier, files in proofs.items()}
    named |= dict.fromkeys(departed, DEVIATIONS.name)
    strange = [
        f"{identifier} is no requirement: named in {named[identifier]}" for identifier in set(named) - set(known)
    ]
    return missing + sorted(strange)


def table(proofs: Proofs, departed: Departures) -> str:
    """The whole of docs/traceability.md."""
    known = requirements()
    total = sum(identifier in proofs for identifier in known)
    lines = [
        "# Traceability",
        "",
        "Every requirement of the specification with the tests that name it, and a link to docs/deviations.md where we",
        "depart from its letter. Written by `make trace`; do not edit.",
        "",
        f"**{total} of {len(known)}** requirements are named by a test; "
        f"**{sum(identifier in departed for identifier in known)}** have a deviation.",
        "",
    ]
    for key, title in SPECS.items():
        own = [identifier for identifier in known if identifier.split("-")[1] == key]
        lines += [f"## {title}: {sum(identifier in proofs for identifier in own)} of {len(own)}", ""]
        lines += ["| requirement | | deviation | tests |", "| --- | --- | --- | --- |"]
        for identifier in own:
            links = "; ".join(map(_link, departed.get(identifier, [])))
            tests = "<br>".join(
                f"`{file}`: {', '.join(f'`{test}`' for test in names)}"
                for file, names in sorted(proofs.get(identifier, {}).items())
            )
            lines.append(f"| {identifier} | {known[identifier]} | {links} | {tests or 'no test'} |")
        lines.append("")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Print the table, and do what the options say."""
    proofs, departed = collect(ROOT / "tests"), departures(DEVIATIONS.read_text(encoding="utf-8"))
    text = table(proofs, departed)
    wrong = problems(proofs, departed)
    if "--check" in arguments:
        current = TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""
        wrong += [] if current == text else [f"{TABLE.relative_to(ROOT)} is not current: run `make trace`"]
    else:
        print(text)
    if "--write" in arguments:
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(text, encoding="utf-8")
    print("\n".join(wrong) or "Every requirement is named by a test.", file=sys.stderr)
    return 1 if wrong and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
