"""The sentences about subsampling, and hints on errors that a script hides."""

from __future__ import annotations

import ast
import re

from mle_star.method.codeblocks import parsed
from mle_star.models import AgentType, PipelineConfig, SolutionScript
from mle_star.prompts import fenced, render

SUBSAMPLE_INSTRUCTION = (
    "If there are more than {limit} training samples, you must subsample to {limit} for a faster run."
)


def get_subsample_instruction(config: PipelineConfig) -> str:
    """The sentence with the configured limit in it."""
    return SUBSAMPLE_INSTRUCTION.replace("{limit}", str(config.subsample_limit))


def request_subsample_removal(solution: SolutionScript) -> str:
    """The prompt that asks for the whole script without its subsampling."""
    return (
        "The script below limits its training data for the sake of speed. It is to train on all of them now.\n\n"
        "1. Find every place where subsampling happens.\n"
        "2. Remove the subsampling and leave the rest working as before.\n"
        "3. Answer with the whole changed script in one fenced Python block, and nothing else.\n\n"
        f"# Script\n\n{fenced(solution.content)}\n"
    )


def request_subsample_extraction(solution: SolutionScript) -> str:
    """The prompt that asks for the block of the script that subsamples."""
    return render(AgentType.test, "subsampling_extract", final_solution=solution.content)


def detect_error_masking(content: str) -> list[str]:
    """One warning for each handler that would hide an error: a bare `except:`, or a broad one that only passes."""
    tree = parsed(content)
    if tree is None:
        return _scan_text(content)
    warnings = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            warnings.append((node.lineno, "a bare `except:` hides every error"))
        elif (name := _broad_name(node.type)) and all(map(_does_nothing, node.body)):
            warnings.append((node.lineno, f"`except {name}:` that only passes hides every error"))
    return [f"line {line}: {text}" for line, text in sorted(warnings)]


def _broad_name(node: ast.expr) -> str | None:
    names = [
        entry.id for entry in (node.elts if isinstance(node, ast.Tuple) else [node]) if isinstance(entry, ast.Name)
    ]
    return next((name for name in names if name in ("Exception", "BaseException")), None)


def _does_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is Ellipsis
    )


_BROAD = re.compile(
    r"""^[ \t]*except(?:
        [ \t]*:
      | [ \t]+\(?(?P<name>Exception|BaseException)\)?(?:[ \t]+as[ \t]+\w+)?[ \t]*:\s*(?:pass|\.\.\.)[ \t]*$
    )""",
    re.MULTILINE | re.VERBOSE,
)


def _scan_text(content: str) -> list[str]:
    warnings = []
    for found in _BROAD.finditer(content):
        line = content.count("\n", 0, found.start()) + 1
        what = f"`except {found['name']}:` that only passes" if found["name"] else "a bare `except:`"
        warnings.append(f"line {line}: {what} hides every error")
    return warnings
