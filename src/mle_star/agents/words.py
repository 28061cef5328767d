"""The words of a shell command: which are options with their values, which operands, and what it would print."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|u[0-9A-Fa-f]{1,4}|U[0-9A-Fa-f]{1,8}|.)", re.DOTALL)
_DIRECTIVE = re.compile(r"%(%|[-+ #0]*\d*(?:\.\d+)?[A-Za-z])")


def read_options(
    words: list[str], valued: str, *, permute: bool = True
) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Options with their values, and operands. `valued` names the options, short and long, that take a value.

    Without `permute` the first operand ends the options, as in commands that run another one.
    """
    names, options, operands, at = valued.split(), list[tuple[str, str | None]](), list[str](), 0
    while at < len(words):
        word, at = words[at], at + 1
        if word == "--":
            return options, [*operands, *words[at:]]
        if not word.startswith("-") or word == "-":
            operands.append(word)
            if not permute:
                return options, words[at - 1 :]
            continue
        found = list(_long(word[2:], names) if word.startswith("--") else _short(word[1:], names))
        if found[-1][1] is None and found[-1][0] in names:
            found[-1] = (found[-1][0], words[at] if at < len(words) else "")
            at += 1
        options += found
    return options, operands


def _long(text: str, names: list[str]) -> Iterable[tuple[str, str | None]]:
    """One long option; its name may be cut short."""
    name, sign, value = text.partition("=")
    if name not in names:
        name = next((one for one in names if len(one) > 1 and one.startswith(name)), name)
    yield name, value if sign else None


def _short(text: str, names: list[str]) -> Iterable[tuple[str, str | None]]:
    """Letters in a row, the last of them with its value where it is attached."""
    for at, letter in enumerate(text, 1):
        if letter in names:
            yield letter, text[at:].removeprefix("=") or None
            return
        yield letter, None


def printed(program: str, arguments: list[str]) -> str | None:
    """What `echo` or `printf` would print; None for every other program.

    Whether an `echo` minds escapes depends on the shell: where that matters, both readings follow each other.
    """
    if program == "echo":
        start = next((at for at, word in enumerate(arguments) if not re.fullmatch("-[neE]+", word)), len(arguments))
        raw = " ".join(arguments[start:])
        read = unescaped(re.sub(r"\\0([0-7]{3})", r"\\\1", raw))
        return raw if read == raw else f"{raw}\n{read}"
    if program == "printf":
        _, operands = read_options(arguments, "v", permute=False)
        return _filled(unescaped(operands[0]), operands[1:]) if operands else ""
    return None


def _filled(pattern: str, values: list[str]) -> str:
    """A format of `printf` with its values, used again until they run out."""
    out, left = [], list(reversed(values))

    def one(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        value = left.pop() if left else ""
        return unescaped(value) if match[1].endswith("b") else value

    while True:
        before = len(left)
        out.append(_DIRECTIVE.sub(one, pattern))
        if not left or len(left) == before:
            return "".join(out)


def unescaped(text: str) -> str:
    """A text with the escapes of `$'..'` and `echo -e` replaced by what they stand for."""

    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "xuU" and len(code) > 1:
            return chr(min(int(code[1:], 16), 0x10FFFF))
        if code[0] in "01234567":
            return chr(int(code, 8))
        return _ANSI.get(code, code)

    return _ESCAPE.sub(one, text)
