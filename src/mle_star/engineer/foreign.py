"""Answers about scripts that somebody else wrote: general, and never wrong."""

from __future__ import annotations

import ast

from mle_star.engineer.design import parsed


def study(code: str) -> str:
    """The script itself as a study that only prints its baseline: its parts are not known."""
    return code + '\nprint("Ablation baseline: see the score above")\n'


def block(code: str, previous: list[str]) -> tuple[str, str]:
    """The longest statement that was not chosen before, and a careful plan."""
    lines = code.splitlines()
    tree = parsed(code)
    nodes = tree.body if tree is not None else []
    pieces = [
        "\n".join(lines[node.lineno - 1 : node.end_lineno])
        for node in nodes
        if not isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    fresh = [piece for piece in pieces if piece not in previous] or pieces or [code]
    return max(fresh, key=len), "Leave the block as it is: its parts are not known to the embedded engineer."
