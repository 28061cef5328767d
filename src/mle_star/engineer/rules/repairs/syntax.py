"""Scripts that do not parse: fences, tabs, colons, brackets, indentation."""

from __future__ import annotations

import ast
import re

from mle_star.engineer.rules.broken import Broken


def mend_syntax(broken: Broken) -> str | None:
    """Fences left in the code, tabs, a missing colon or bracket, a block without a body, a wrong indentation."""
    code = re.sub(r"^\s*(```|~~~).*$\n?", "", broken.code, flags=re.MULTILINE).replace("\t", "    ")
    for _ in range(6):
        try:
            ast.parse(code)
            return code
        except SyntaxError as error:
            changed = _mend_line(code, error)
        if changed is None or changed == code:
            return None
        code = changed
    return None


def _mend_line(code: str, error: SyntaxError) -> str | None:
    lines = code.splitlines()
    number = min(max((error.lineno or 1) - 1, 0), len(lines) - 1)
    line, message = lines[number], str(error.msg)
    indent = line[: len(line) - len(line.lstrip())]
    if "expected ':'" in message or (
        re.match(r"\s*(if|for|while|def|class|else|elif|with|try|except|finally)\b", line)
        and not line.rstrip().endswith(":")
    ):
        lines[number] = re.sub(r"\s*(#.*)?$", lambda m: ":" + ("  " + m[1] if m[1] else ""), line.rstrip(), count=1)
    elif "was never closed" in message or "unexpected EOF" in message:
        opened = _open_brackets(line)
        lines[number] = line.split("  #")[0].rstrip().rstrip(",") + opened
    elif "unmatched" in message or "does not match" in message:
        place = (error.offset or 1) - 1
        lines[number] = line[:place] + line[place + 1 :]
    elif "expected an indented block" in message:
        lines.insert(
            number, " " * (len(indent) + 4) + "pass" if line.strip() == "" else f"{_outer(lines, number)}    pass"
        )
    elif "unexpected indent" in message or "unindent does not match" in message:
        lines[number] = _outer(lines, number) + line.lstrip()
    elif "unterminated string" in message:
        quote = '"' if line.count('"') % 2 else "'"
        closed = re.sub(r"(\)*)$", lambda m: quote + m[1], line.rstrip(), count=1)
        lines[number] = closed
    elif re.match(r"\s*print\s+[^(=]", line):
        lines[number] = re.sub(r"print\s+(.*)$", r"print(\1)", line)
    elif "forgot a comma" in message or "invalid syntax" in message:
        if re.search(r"=\s*$", line) or re.match(r"\s*[A-Z][a-z]+ .*[a-z]\.?$", line):
            lines[number] = f"{indent}# {line.strip()}"
        else:
            return None
    else:
        return None
    return "\n".join(lines) + "\n"


def _outer(lines: list[str], number: int) -> str:
    """The indentation of the last line above that says something."""
    above = next((text for text in reversed(lines[:number]) if text.strip()), "")
    return above[: len(above) - len(above.lstrip())]


def _open_brackets(line: str) -> str:
    closing = {"(": ")", "[": "]", "{": "}"}
    stack: list[str] = []
    for character in re.sub(r"(\"[^\"]*\"|'[^']*')", "", line):
        if character in closing:
            stack.append(closing[character])
        elif stack and character == stack[-1]:
            stack.pop()
    return "".join(reversed(stack))
