"""Plain words, the same ones everywhere: none of the names that things here once had."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXTS = [
    *(path for end in ("*.py", "*.md", "*.j2") for folder in ("src", "docs") for path in (ROOT / folder).rglob(end)),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", "mkdocs.yml")),
]
INSTEAD = {
    r"promise[sd]?": "expected score",
    r"exams?": "hold-out",
    r"judg(?:e[sd]?|ing|e?ments?)": "scorer, scored",
    r"doubts?": "problem",
    r"banks?|bank_name": "predictions, predictions_file",
    r"finalists?": "shortlist",
    r"final picks?": "final selection",
    r"walls?(?![- _]?(?:clock|seconds))": "sandbox",
    r"worlds? of (?:its|their) own": "namespaces and seccomp",
    r"first contact": "smoke test",
    r"leanings?": "importance",
    r"abreast": "concurrently",
    r"errands?": "cancellable task",
    r"somebody's whole life": "home directories",
    r"lest": "so that ... not",
    r"twins?": "parallel paths that differ",
    r"(?:a|the) model (?:that )?stays": "the fitted model",
    r"mend(?:s|ed|ing|able)?": "fix",
    r"puts? aside": "saved",
    r"hand(?:s|ed|ing)? (?:it |them |that )?over": "submitted, or final solution",
}
ALLOWED = {
    ("src/mle_star/agents/", r"promise[sd]?"): "prompts follow the words of the specification",
    ("src/mle_star/agents/", r"judg(?:e[sd]?|ing|e?ments?)"): "prompts follow the words of the specification",
}


def passages() -> Iterator[tuple[str, int, str]]:
    """Every line of the sources and guides with its place."""
    for path in TEXTS:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            yield path.relative_to(ROOT).as_posix(), number, line


def test_old_words_for_things_are_gone() -> None:
    any_of = re.compile("|".join(rf"\b(?:{word})\b" for word in INSTEAD), re.IGNORECASE)
    found = [
        f"{path}:{number}: say `{say}`: {line.strip()[:120]}"
        for path, number, line in passages()
        if any_of.search(line)
        for word, say in INSTEAD.items()
        if re.search(rf"\b(?:{word})\b", line, re.IGNORECASE)
        and not any(path.startswith(folder) and word == allowed for folder, allowed in ALLOWED)
    ]
    assert found == []


VERBS = {"told", "said", "asked"}
"""No names for things: a prompt's context, a script's output, a request."""
LEFT = 60
"""So many are still to be renamed: this number only goes down."""


def names_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that a module gives: variables, parameters, attributes, functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def test_verbs_become_no_names() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, name in names_of(ast.parse(path.read_bytes()))
        if name.strip("_") in VERBS
    ]
    assert len(found) <= LEFT, "\n".join(found)
