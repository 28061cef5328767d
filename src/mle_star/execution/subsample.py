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


_MASKING = re.compile(
    r"""^[ \t]*except(?:
        [ \t]*:
      | [ \t]+\(?(?P<name>Exception|BaseException)\)?(?:[ \t]+as[ \t]+\w+)?[ \t]*:\s*(?:pass|\.\.\.)[ \t]*$
    )""",
    re.MULTILINE | re.VERBOSE,
)


def detect_error_masking(content: str) -> list[str]:
    """One warning for each handler that would hide an error: a bare `except:`, or a broad one that only passes."""
    tree = parsed(content)
    if tree is None:
        found = [(content.count("\n", 0, one.start()) + 1, one["name"] or "") for one in _MASKING.finditer(content)]
    else:
        handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
        found = [(node.lineno, name) for node in handlers if (name := _masking_name(node)) is not None]
    what = {line: f"`except {name}:` that only passes" if name else "a bare `except:`" for line, name in found}
    return [f"line {line}: {text} hides every error" for line, text in sorted(what.items())]


def _masking_name(handler: ast.ExceptHandler) -> str | None:
    """The broad exception that a handler passes over, empty for a bare `except:`; None where it hides nothing."""
    if handler.type is None:
        return ""
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    broad = [node.id for node in types if isinstance(node, ast.Name) and node.id in ("Exception", "BaseException")]
    idle = all(ast.unparse(node) in ("pass", "...") for node in handler.body)
    return broad[0] if broad and idle else None
