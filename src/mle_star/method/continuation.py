"""A reply that was cut at the model's limit of tokens and resumed: two pieces made one text again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mle_star.method.codeblocks import FENCE_LINE, compiles

MAX_REPEATED_LINES = 200


@dataclass(frozen=True)
class _Fence:
    start: int  # of its line
    end: int  # of its line, the line break included
    indent: int
    marks: str
    tag: str


def joined(before: str, after: str) -> str:
    """Both pieces as one reply: what was cut inside a code block goes on in that block.

    A model may go on in the middle of a line, open the fence again, or repeat what it had begun. Of several readings
    the first one whose block is a Python program is taken, else the first.
    """
    open_ones = _open_fences(before)
    if not open_ones:
        begins_block = next(_fences(after.partition("\n")[0]), None) is not None
        return f"{before}\n{after}" if begins_block and not before.endswith("\n") else before + after
    opened, again = open_ones[0], _opened_again(after, open_ones)
    readings = [before + after, f"{before}\n{after}"]
    if again is not None:
        begun, code = before[opened.end :], after[again.end :]
        readings = [before[: len(before) - _repeated(begun, code)] + code, before + code, f"{before}\n{code}"]
        if _first_line(begun) == _first_line(code):
            readings.insert(0, before[: opened.end] + code)  # the whole block once more
    return next((text for text in readings if compiles(_block(text, opened))), readings[0])


def _opened_again(after: str, open_ones: list[_Fence]) -> _Fence | None:
    """The line that opens the block a second time, if the piece does not just go on with the code."""
    opened, depth = open_ones[0], len(open_ones)
    first = next((fence for fence in _fences(after) if fence.marks == opened.marks), None)
    if first is None or first.indent != opened.indent:
        return None
    if first.tag:
        return first if first.tag == opened.tag or not after[: first.start].strip() else None
    for fence in _fences(after):
        depth += 1 if fence.tag or not depth else -1
    return first if depth else None  # a bare fence closes the block, unless a later one has to


def _open_fences(text: str) -> list[_Fence]:
    """The fences that are still open at the end: inside a block a tagged fence nests, and a bare one closes."""
    opened: list[_Fence] = []
    for fence in _fences(text):
        if not opened or (fence.tag and fence.marks.startswith(opened[0].marks)):
            opened.append(fence)
        elif fence.marks.startswith(opened[0].marks):
            opened.pop()
    return opened


def _block(text: str, opened: _Fence) -> str:
    """What stands in the block of this fence; all that follows, if nothing closes it."""
    depth = 1
    for fence in _fences(text[opened.end :]):
        if fence.marks.startswith(opened.marks):
            depth += 1 if fence.tag else -1
        if depth == 0:
            return text[opened.end : opened.end + fence.start]
    return text[opened.end :]


def _fences(text: str) -> Iterator[_Fence]:
    start = 0
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        found = FENCE_LINE.match(bare)
        if found is not None:
            yield _Fence(start, start + len(line), line.index(bare), found[1], found[2])
        start += len(line)


def _first_line(code: str) -> str:
    return next((line.strip() for line in code.splitlines() if line.strip()), "")


def _repeated(begun: str, code: str) -> int:
    """How many characters at the end of `begun`, from the beginning of a line on, `code` begins with."""
    lines = begun.splitlines(keepends=True)[-MAX_REPEATED_LINES:]
    for number in range(len(lines)):
        end = "".join(lines[number:])
        if code.startswith(end):
            return len(end)
    return 0
