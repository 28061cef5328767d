"""One look at every byte of a file of separated values: where its records begin, and how plainly it is written."""

from __future__ import annotations

from typing import Any, NamedTuple

from mle_star.data.files import BLOCK_BYTES, in_blocks

SCANNED_BYTES = 1 << 20
"""Looked through at a time: what fits into the cache of a processor is scanned several times as fast."""
_NEWLINE, _RETURN, _QUOTE = 10, 13, 34


class Scan(NamedTuple):
    """Where records begin, with the end of the file, and how they are written."""

    starts: Any
    is_quoted: bool
    is_plain: bool  # no quotes, and returns nowhere or at the end of every line
    separators: int


class _Block(NamedTuple):
    """What a stretch of the file tells: where its lines end, and whether behind an odd number of its own quotes."""

    ends: list[Any]
    behind: list[Any]
    quotes: int
    returns: int
    separators: int


def scan(content: Any, separator: str, block: int = BLOCK_BYTES, chunk: int = SCANNED_BYTES) -> Scan:
    """Find the records of a file. Its bytes are held nowhere: memory is needed for the places of its lines."""
    import numpy as np

    data, mark = np.frombuffer(content, np.uint8), ord(separator)
    blocks = in_blocks(len(data), lambda begin, end: _look(data, begin, end, mark, chunk), block)
    ends = np.concatenate([np.zeros(0, np.int64), *(places for block in blocks for places in block.ends)])
    quotes, returns = sum(block.quotes for block in blocks), sum(block.returns for block in blocks)
    is_plain = not quotes and (not returns or (returns == len(ends) and bool((data[ends - 2] == _RETURN).all())))
    if quotes:  # a line end behind an odd number of quotes lies inside of a field
        before = np.cumsum([0, *(block.quotes for block in blocks)])
        odd = [inside ^ (first & 1) for block, first in zip(blocks, before, strict=False) for inside in block.behind]
        ends = ends[np.concatenate(odd) == 0]
    if len(data) and (not len(ends) or ends[-1] != len(data)):
        ends = np.append(ends, len(data))
    starts = np.concatenate([np.zeros(1, np.int64), ends])
    return Scan(starts, quotes > 0, is_plain, sum(block.separators for block in blocks))


def _look(data: Any, begin: int, end: int, mark: int, size: int) -> _Block:
    import numpy as np

    ends, behind = list[Any](), list[Any]()
    quotes = returns = separators = 0
    for first in range(begin, end, size):
        chunk = data[first : min(first + size, end)]
        places = np.flatnonzero(chunk == _NEWLINE)
        is_quote = chunk == _QUOTE
        if quotes or is_quote.any():
            inside = np.flatnonzero(is_quote)
            behind.append((np.searchsorted(inside, places) + quotes & 1).astype(np.int8))
            quotes += len(inside)
        else:
            behind.append(np.zeros(len(places), np.int8))
            returns += np.count_nonzero(chunk == _RETURN)
            separators += np.count_nonzero(chunk == mark)
        places += first + 1
        ends.append(places)
    return _Block(ends, behind, quotes, returns, separators)
