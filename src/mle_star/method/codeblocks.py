"""Code in replies and blocks in scripts: taking it out, joining pieces, finding it, putting it back.

Pure functions of text.
"""

import ast
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple, TypeVar

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, fence
from markdown_it.token import Token

from mle_star.models.texts import digest_of

FENCE_LINE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*?)[ \t]*$")
_INDENTED_FENCE = re.compile(r"^([ \t]+)(?:`{3,}[^`]*|~{3,}.*)$")
_PYTHON_TAG = re.compile(r"(?:(?:i?python|py|pycon)[\d.]*(?:\W.*)?)?|\S+\.py\b.*", re.IGNORECASE)
_INSTALL = re.compile(r"\s*[$!%]?\s*(?:sudo\s+)?(?:python3?\s+-m\s+)?[\w-]+\s+install\s")
_WORDS = (ast.Expr, ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal)
"""Statements that a word or a sentence of prose may look like."""
_T = TypeVar("_T")


class _Block(NamedTuple):
    text: str
    tag: str

    @property
    def is_python(self) -> bool:
        lines = [line for line in self.text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
        installs = bool(lines) and all(map(_INSTALL.match, lines))  # commands for a shell, whatever the tag says
        return not installs and _PYTHON_TAG.fullmatch(self.tag.strip("{}. ")) is not None


def extract_code_block(response: str, *, by_line: bool = False) -> str:
    """The code of a reply: its longest fenced block, Python or untagged before others, else the whole reply, stripped.

    Only blank lines at the borders of a fenced block are cut, so that the indentation of its first line survives.
    `by_line` is REQ-SF-005 as written: every line of three backticks or tildes is a fence, and the longest block wins.
    """
    if not (blocks := _fenced_blocks(response, by_line=by_line)):
        return response.strip()
    return max(blocks, key=lambda block: (not by_line and bool(block.text) and block.is_python, len(block.text))).text


def has_code_fence(response: str) -> bool:
    """Is there a fenced block of Python, be it an empty one?"""
    return any(block.is_python for block in _fenced_blocks(response))


def has_extractable_code(response: str, *, by_line: bool = False) -> bool:
    """Does the reply hold code: a fenced block of Python that is not blank, or plain text that is a Python program?"""
    if blocks := _fenced_blocks(response, by_line=by_line):
        return any((by_line or block.is_python) and block.text for block in blocks)
    tree = parsed(response.strip())
    nodes = [] if tree is None else ast.walk(tree)
    return any(isinstance(node, (ast.stmt, ast.Call)) and not isinstance(node, _WORDS) for node in nodes)


def parsed(code: str) -> ast.Module | None:
    """The syntax tree, or None: what Python cannot read, and be it for its depth, is a value like any other."""
    return _quietly(lambda: ast.parse(code))


@lru_cache(maxsize=512)
def shape_of(code: str) -> str:
    """What two scripts have in common that differ in numbers and comments alone; what is no Python has its own."""
    tree = parsed(code)
    for node in [] if tree is None else ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            node.value = 0
    return digest_of((None if tree is None else _quietly(lambda: ast.dump(tree))) or code)


def compiles(code: str) -> bool:
    """Would Python accept this as a program?"""
    return _quietly(lambda: compile(code, "<script>", "exec", dont_inherit=True)) is not None


def _quietly(read: Callable[[], _T]) -> _T | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes in generated code are not our reader's business
        try:
            return read()
        except SystemError:  # not of the text: Python 3.11 counts wrongly where another reading falls into this one
            return _quietly(read)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # all that the parser throws at text
            return None


def locate_block(block: str, script: str) -> str | None:
    """The slice of `script` that `block` means, or None: exact first, else with trailing blanks of lines ignored.

    The slice is the script's own text, so that it can be replaced. Fences around `block` and blank lines at its borders
    do not count; whole lines come before parts of lines, and no word or number is cut in two.
    """
    if block not in script and has_code_fence(block):
        block = extract_code_block(block)
    wanted = _cut_blank_borders(block.replace("\r\n", "\n"))
    if not wanted.strip():
        return None
    if _place(script, wanted) is not None:
        return wanted
    lines = r"[^\S\n]*\n".join(re.escape(line.rstrip()) for line in wanted.split("\n"))
    return next((found for found in re.findall(lines, script) if _place(script, found) is not None), None)


def replacement(script: str, old: str, new: str, *, first: bool = False) -> tuple[str, str]:
    """What to hand to `SolutionScript.replace_block` so that the block `old` becomes `new`.

    Whole lines come before parts of lines; where the wanted place is not the first one, both texts begin further up.
    `new` is indented like `old` when it lost its indentation on the way: the first variant that compiles is taken, and
    when none does, `new` as it is. With `first`, the first hit is replaced, and `new` as it is comes first.
    """
    found = script.find(old) if first else _place(script, old) if old.strip() else None
    start = None if found == -1 or not old else found
    if start is None:
        raise ValueError(f"block not found in the script: {old[:80]!r}")
    before, after = script[:start], script[start + len(old) :]
    line_start = script.rfind("\n", 0, start) + 1
    indent = _leading_blanks(script[line_start:])
    shifted = _shift(new, indent, is_before=bool(indent) and start >= line_start + len(indent))
    # Text that lost its indentation may compile and yet leave the branch it belongs to: the shifted one goes first.
    variants = [shifted, new] if not first and len(_leading_blanks(new)) < len(indent) else [new, shifted]
    if old.endswith("\n") and not new.endswith("\n"):
        variants += [f"{variant}\n" for variant in variants]  # the line end belonged to the block
    chosen = next((variant for variant in variants if compiles(before + variant + after)), new)
    lead = "" if script.index(old) == start else before
    return lead + old, lead + chosen


def block_in(script: str, start: str, block: str) -> str:
    """What stands in `script` in the place that `block` has in `start`, be the rest as it was or changed as well.

    Empty where there is nothing, or where `start` does not hold the block.
    """
    block = block.removesuffix("\n")
    place = _place(start, block) if block.strip() else None
    if place is None:
        return ""
    before, after = start[:place], start[place + len(block) :]
    if len(script) >= len(before) + len(after) and script.startswith(before) and script.endswith(after):
        return script[len(before) : len(script) - len(after)]
    head, tail = before.rpartition("\n")[2], after.partition("\n")[0]
    old, new = start.split("\n"), script.split("\n")
    first, last = before.count("\n"), (before + block).count("\n")
    low, high = 0, len(new)
    for match in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        if match.a < first:
            low = match.b + min(match.size, first - match.a)
        if match.a + match.size > last + 1 and high == len(new):
            high = match.b + max(last + 1 - match.a, 0)
    return "\n".join(new[low:high]).removeprefix(head).removesuffix(tail)


def _place(script: str, block: str) -> int | None:
    """Where `block` begins in `script`: on whole lines if anywhere, else where it cuts no word in two."""
    inside: int | None = None
    start = script.find(block)
    while start >= 0:
        end = start + len(block)
        line_start, line_end = script.rfind("\n", 0, start) + 1, script.find("\n", end)
        rest = "" if block.endswith("\n") else script[end : None if line_end < 0 else line_end]
        if not script[line_start:start].strip() and not rest.strip():
            return start
        if inside is None and not (_joins(script, start) or _joins(script, end)):
            inside = start
        start = script.find(block, start + 1)
    return inside


def _joins(script: str, place: int) -> bool:
    """Would a cut here go through a name or a number?"""
    return re.fullmatch(r"\w\w|[0-9]\.|\.[0-9]", script[max(place - 1, 0) : place + 1]) is not None


# --- fences ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)  # a reply is asked for its code more than once
def _fenced_blocks(text: str, *, by_line: bool = False) -> tuple[_Block, ...]:
    """All fenced blocks, outermost first; a tagged fence inside a block nests, a bare one closes."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if by_line:
        return tuple(_scan_by_line(lines))
    blocks = tuple(_scan(lines))
    indented = None if blocks else next((m for m in map(_INDENTED_FENCE.match, lines) if m), None)
    if indented is not None:  # so far in that Markdown calls it a paragraph or indented code
        blocks = tuple(_scan([re.sub(f"^[ \\t]{{0,{len(indented[1])}}}", "", line) for line in lines]))
    return blocks


def _scan(lines: list[str]) -> Iterator[_Block]:
    for token in _PARSER.parse("\n".join(lines), {"lines": lines}):
        if token.type == "fence":
            yield _Block(_cut_blank_borders(token.content), token.info)


def _nesting_fence(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """The rule of Markdown for fences; it knows no nesting, and takes the end of an inner fence for the outer one's."""
    if not fence(state, first, end, silent):
        return False
    if silent or state.level:
        return True
    token = state.tokens[-1]
    inside = (_same_fence(line, token.markup) for line in token.content.split("\n"))
    if not any(match is not None and match[2] for match in inside):
        return True
    lines: list[str] = state.env["lines"]
    last = _outer_end(lines, first, token.markup)
    token.content = _unbalanced(lines[first + 1 :], token) if last is None else "\n".join(lines[first + 1 : last])
    state.line = end if last is None else last + 1
    return True


# Prose needs no parsing; only what can hold or hide a fence does.
_PARSER = MarkdownIt("zero").enable(["code", "fence", "list", "blockquote"])
_PARSER.block.ruler.at("fence", _nesting_fence, {"alt": ["paragraph", "reference", "blockquote", "list"]})


def _scan_by_line(lines: list[str]) -> Iterator[_Block]:
    """As REQ-SF-005 has it: outside a block any fence opens; inside, a tagged one nests and a bare one closes."""
    number = 0
    while number < len(lines):
        if (opened := FENCE_LINE.match(lines[number])) is not None:
            first, number = number + 1, _outer_end(lines, number, "") or len(lines)
            yield _Block(_cut_blank_borders("\n".join(lines[first:number])), opened[2])
        number += 1


def _same_fence(line: str, markup: str) -> re.Match[str] | None:
    """Is this line a fence that can end or nest in one opened by `markup`?"""
    match = FENCE_LINE.match(line)
    return match if match and match[1].startswith(markup) else None


def _outer_end(lines: list[str], first: int, markup: str) -> int | None:
    """The line that closes the fence opened at line `first`, counting the fences inside."""
    depth = 1
    for number in range(first + 1, len(lines)):
        match = _same_fence(lines[number], markup)
        if match is not None:
            depth += 1 if match[2] else -1
            if depth == 0:
                return number
    return None


def _unbalanced(rest: list[str], token: Token) -> str:
    """The likeliest block when fences do not pair up: a reading that is Python, else all that follows."""
    everything = "\n".join(rest)
    pieces = re.split(rf"^ {{0,3}}{token.markup}.*$", everything, flags=re.MULTILINE)
    readings = [everything, token.content, *sorted(pieces, key=len, reverse=True)]
    return next(filter(compiles, map(_cut_blank_borders, readings)), _cut_blank_borders(everything))


def _cut_blank_borders(text: str) -> str:
    lines = text.split("\n")
    filled = [number for number, line in enumerate(lines) if line.strip()]
    return "\n".join(lines[filled[0] : filled[-1] + 1]) if filled else ""


# --- replies that were cut at the model's limit of tokens and resumed --------------------------------------

MAX_REPEATED_LINES = 200
_ANY_FENCE = re.compile(
    r"^(?P<indent>[^\S\n]*)(?P<marks>`{3,}|~{3,})[ \t]*(?P<tag>[^`\n]*?)[^\S\n]*(?:\n|\Z)", re.MULTILINE
)
"""The line of a fence however far in it stands, the line break included."""


def joined(before: str, after: str) -> str:
    """Both pieces as one reply: what was cut inside a code block goes on in that block.

    A model may go on in the middle of a line, open the fence again, or repeat what it had begun. Of several readings
    the first one whose block is a Python program is taken, else the first.
    """
    open_ones = _open_fences(before)
    if not open_ones:
        begins_block = _ANY_FENCE.match(after) is not None
        return f"{before}\n{after}" if begins_block and not before.endswith("\n") else before + after
    opened, second = open_ones[0], _opened_again(after, open_ones)
    readings = [before + after, f"{before}\n{after}"]
    if second is not None:
        begun, new = before[opened.end() :], after[second.end() :]  # or it was cut inside a fence
        readings = [before[: len(before) - _repeated(begun, new)] + new, before + new, f"{before}\n{new}", *readings]
        if begun.lstrip().partition("\n")[0].rstrip() == new.lstrip().partition("\n")[0].rstrip():
            readings.insert(0, before[: opened.end()] + new)  # the whole block once more
    return next((text for text in readings if compiles(_block(text, opened))), readings[0])


def _opened_again(after: str, open_ones: list[re.Match[str]]) -> re.Match[str] | None:
    """The line that opens the block a second time, if the piece does not just go on with the code."""
    opened, depth = open_ones[0], len(open_ones)
    first = next((found for found in _ANY_FENCE.finditer(after) if found["marks"] == opened["marks"]), None)
    if first is None or first["indent"] != opened["indent"]:
        return None
    if first["tag"]:
        return first if first["tag"] == opened["tag"] or not after[: first.start()].strip() else None
    for found in _ANY_FENCE.finditer(after):
        depth += 1 if found["tag"] or not depth else -1
    return first if depth else None  # a bare fence closes the block, unless a later one has to


def _open_fences(text: str) -> list[re.Match[str]]:
    """The fences that are still open at the end: inside a block a tagged fence nests, and a bare one closes."""
    opened: list[re.Match[str]] = []
    for found in _ANY_FENCE.finditer(text):
        if not opened or (found["tag"] and found["marks"].startswith(opened[0]["marks"])):
            opened.append(found)
        elif found["marks"].startswith(opened[0]["marks"]):
            opened.pop()
    return opened


def _block(text: str, opened: re.Match[str]) -> str:
    """What stands in the block of this fence; all that follows, if nothing closes it."""
    lines = text[opened.end() :].split("\n")
    return "\n".join(lines[: _outer_end([line.strip() for line in lines], -1, opened["marks"])])


def _repeated(begun: str, code: str) -> int:
    """How many characters at the end of `begun`, from the beginning of a line on, `code` begins with."""
    lines = begun.splitlines(keepends=True)[-MAX_REPEATED_LINES:]
    ends = ("".join(lines[number:]) for number in range(len(lines)))
    return next((len(end) for end in ends if code.startswith(end)), 0)


# --- places in scripts -----------------------------------------------------------------------------------


def _leading_blanks(text: str) -> str:
    """The indentation of the first line that is not blank."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    return first[: len(first) - len(first.lstrip())]


def _shift(new: str, indent: str, is_before: bool) -> str:
    """`new` moved to `indent`, which may stand before its place already; the insides of strings stay.

    As it is when it cannot be read as Python.
    """
    code = textwrap.dedent(new) if _leading_blanks(new) else new
    tree = parsed(code)
    if tree is None:
        return new
    inside_strings = {
        number
        for node in ast.walk(tree)
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno is not None
        for number in range(node.lineno + 1, node.end_lineno + 1)
    }
    lines = [
        indent + line if line.strip() and number not in inside_strings else line
        for number, line in enumerate(code.split("\n"), start=1)
    ]
    shifted = "\n".join(lines)
    return shifted.removeprefix(indent) if is_before else shifted


# --- what a script is built on ----------------------------------------------------------------------------

MOST_NAMES = 8
_FAMILIES = {
    "boosting": r"boost|lgbm|lightgbm|xgb|gbm|gbdt",
    "trees": r"forest|extra ?trees|decision ?tree|bagging",
    "neighbours": r"neighbou?r|knn",
    "linear": r"ridge|lasso|linear|logistic|elastic|bayes|tf-?idf",
    "kernels": r"\bsv[mcr]\b|support vector|gaussian process|kernel",
    "networks": r"net|mlp|perceptron|transformer|bert|gpt|cnn|vit\b|lstm|gru|tabpfn|torch|keras|neural",
}
_BUILT = re.compile(r"\b([A-Z][a-z]\w*|[A-Z]{2,}\w*[a-z]\w*|[A-Z]{2,4})\(")


def family_of(name: str, used: Sequence[str] = ()) -> str:
    """The family of a model, by its name, else by the classes that its code makes use of; empty when neither tells."""
    for text in (name, " ".join(used)):
        for family, words in _FAMILIES.items():
            if re.search(words, text, re.IGNORECASE):
                return family
    return ""


def built_in(code: str) -> list[str]:
    """The classes that a script makes objects of (models, encoders, splitters), in order, each once."""
    return list(dict.fromkeys(_BUILT.findall(re.sub(r"#.*", "", code))))[:MOST_NAMES]
