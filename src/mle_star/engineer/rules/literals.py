"""Names and texts of a task as Python source, whatever characters they hold."""

from __future__ import annotations

import json


def quoted(name: str) -> str:
    """A name as a string literal on one line, in double quotes unless it holds what cannot be printed."""
    return json.dumps(name, ensure_ascii=False) if name.isprintable() else repr(name)


def name_list(names: list[str]) -> str:
    """A list of names as source, wrapped when it is long."""
    text = "[" + ", ".join(map(quoted, names)) + "]"
    if len(text) <= 96:
        return text
    lines, line = ["["], "   "
    for name in names:
        piece = f" {quoted(name)},"
        if len(line) + len(piece) > 108:
            lines.append(line)
            line = "   "
        line += piece
    return "\n".join([*lines, line, "]"])


def docstring(text: str) -> str:
    """A text as a docstring."""
    safe = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'"""{safe[:-1]}\\""""' if safe.endswith('"') else f'"""{safe}"""'


def one_line(text: str) -> str:
    """A text for the inside of a sentence: what cannot be printed, line breaks first of all, becomes a blank."""
    return "".join(character if character.isprintable() else " " for character in text)
