"""Columns of millions of short texts: cut out of the bytes of a file, and held without an object for each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, overload

from mle_star.data.files import in_blocks

WORD = 8
"""Bytes are looked at by so many at a time, as one number of 64 bits whose lowest byte comes first."""
MOST_WORDS = 8
"""A cell is looked for within so many words."""
ROWS_AT_ONCE = 1 << 16
SAMPLED, FEW = 10_000, 1_000
"""A column whose sampled rows hold fewer different texts than this is held as numbers of these."""
MOST_DIGITS = 18
"""Numbers of so many digits fit into 64 bits."""
_DIGITS = ((8, 10, 0x000F000F000F000F), (16, 100, 0x000000FF000000FF), (32, 10_000, 0xFFFF))
_ONES, _LOW_BITS = 0x0101010101010101, 0x7F7F7F7F7F7F7F7F


class Texts(Sequence[str]):
    """A column of texts that are made when they are asked for."""

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        return self.taken(place) if isinstance(place, slice) else self.one(place)

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), ROWS_AT_ONCE):
            yield from self.taken(slice(first, first + ROWS_AT_ONCE))

    def one(self, place: int) -> str:
        """The text at one place."""
        raise NotImplementedError

    def taken(self, places: Any) -> list[str]:
        """The texts at some places."""
        raise NotImplementedError


class Packed(Texts):
    """Texts of ASCII without blanks, each a row of words that is filled up with zeros."""

    def __init__(self, words: Any, lengths: Any) -> None:
        self.words, self.lengths = words, lengths
        self._bytes = words.view(f"S{WORD * words.shape[1]}")[:, 0]

    def __len__(self) -> int:
        return len(self.words)

    def one(self, place: int) -> str:
        """The text at one place."""
        text: str = self._bytes[place].decode("ascii")
        return text

    def taken(self, places: Any) -> list[str]:
        """The texts at some places."""
        return [text.decode("ascii") for text in self._bytes[places].tolist()]


class Coded(Texts):
    """Texts of which few are different: each is held once, the column as numbers of these."""

    def __init__(self, different: list[str], codes: Any) -> None:
        self.different, self.codes = different, codes

    def __len__(self) -> int:
        return len(self.codes)

    def one(self, place: int) -> str:
        """The text at one place."""
        return self.different[int(self.codes[place])]

    def taken(self, places: Any) -> list[str]:
        """The texts at some places."""
        return list(map(self.different.__getitem__, self.codes[places].tolist()))

    @cached_property
    def counts(self) -> list[int]:
        """How often each of the different texts occurs."""
        import numpy as np

        counts: list[int] = np.bincount(self.codes, minlength=len(self.different)).tolist()
        return counts


def taken(column: Sequence[str], places: Sequence[int]) -> list[str]:
    """The texts of a column at some places."""
    return column.taken(list(places)) if isinstance(column, Texts) else [column[place] for place in places]


def counted(column: Sequence[str]) -> Counter[str]:
    """How often each text occurs in a column."""
    if isinstance(column, Coded):
        return Counter(dict(zip(column.different, column.counts, strict=True)))
    return Counter(column)


def codes_of(column: Sequence[str]) -> Any:
    """A column as numbers, the same for the same text."""
    import numpy as np

    if isinstance(column, Coded):
        return column.codes
    place = {value: number for number, value in enumerate(dict.fromkeys(column))}
    return np.fromiter(map(place.__getitem__, column), np.int64, len(column))


def whole_numbers(column: Packed, before: str) -> tuple[Any, bool] | None:
    """The numbers behind the same text in every row, and whether some are filled up with zeros in front.

    None where a row holds something else, or digits beyond what fits.
    """
    import numpy as np

    letters, lengths = column.words.view(np.uint8), column.lengths - len(before)
    most = int(lengths.max())
    if int(lengths.min()) < 1 or most > MOST_DIGITS:
        return None
    if before and not (letters[:, : len(before)] == np.frombuffer(before.encode(), np.uint8)).all():
        return None
    values: Any = np.zeros(len(column), np.int64)
    flat = letters.reshape(-1)
    powers: Any = 10 ** np.arange(WORD + 1)

    def convert(first: int, last: int) -> bool:
        """Fill a stretch of the values; does it hold nothing but digits?"""
        words = column.words[first:last]
        if before:
            words = _packed(flat, np.arange(first, last) * letters.shape[1] + len(before), lengths[first:last])
        wrong = 0
        for number in range(words.shape[1]):
            size = np.clip(lengths[first:last] - WORD * number, 0, WORD)
            bits = np.uint64(8) * (WORD - size).astype(np.uint64)
            word = words[:, number] << (bits & np.uint64(63))  # no more than 63: a word without digits is zero anyhow
            inside = word.view(np.uint8)
            wrong += np.count_nonzero(inside) - np.count_nonzero(inside - 48 < 10)
            for shift, ten, mask in _DIGITS:  # pairs of digits, then pairs of these, and so on
                word = (word & mask) * ten + (word >> shift & mask)
            values[first:last] = values[first:last] * powers[size] + word.astype(np.int64)
        return wrong == 0

    if not all(in_blocks(len(column), convert, ROWS_AT_ONCE)):
        return None
    return values, bool(((letters[:, len(before)] == 48) & (lengths > 1)).any())


# --- cutting cells out of records -----------------------------------------------------------------------------------


def cut_column(
    data: Any, begins: Any, ends: Any, mark: int, steps: int, *, from_left: bool, encoding: str
) -> Sequence[str] | None:
    """The cells that lie so many separators inside of their rows, seen from one side; without blanks around them.

    None where one lies further inside than is looked.
    """
    import numpy as np

    def cut(first: int, last: int) -> _Cut | None:
        some = slice(first, last)
        found = _bounds(data, begins[some], ends[some], mark, steps, from_left)
        if found is None:
            return None
        firsts, lengths, words = found
        letters = words.view(np.uint8)
        visible = np.count_nonzero(letters - 33 < 94)  # beyond both ends: blanks, zeros, other alphabets
        return _Cut(firsts, lengths, words, bool(visible == lengths.sum()))

    found = in_blocks(len(begins), cut, ROWS_AT_ONCE)
    pieces = [piece for piece in found if piece is not None]
    if len(pieces) < len(found):
        return None
    lengths = np.concatenate([piece.lengths for piece in pieces])
    if all(piece.is_visible for piece in pieces):
        words: Any = np.zeros((len(lengths), max(piece.words.shape[1] for piece in pieces)), np.uint64)
        for number, piece in enumerate(pieces):
            first = number * ROWS_AT_ONCE
            words[first : first + len(piece.words), : piece.words.shape[1]] = piece.words
        packed = Packed(words, lengths)
        return _coded(packed) or packed
    whole, firsts = memoryview(data), np.concatenate([piece.firsts for piece in pieces])
    bounded = zip(firsts.tolist(), (firsts + lengths).tolist(), strict=True)
    return [bytes(whole[first:last]).decode(encoding, "replace").strip() for first, last in bounded]


class _Cut(NamedTuple):
    """The cells of some rows: where they begin, how long they are, their bytes; are these all visible ASCII?"""

    firsts: Any
    lengths: Any
    words: Any
    is_visible: bool


def _bounds(data: Any, begins: Any, ends: Any, mark: int, steps: int, from_left: bool) -> tuple[Any, Any, Any] | None:
    """Where each cell begins, how long it is, and its bytes."""
    import numpy as np

    way = 1 if from_left else -1
    place, border = (begins, ends) if from_left else (ends, begins)
    for step in range(steps + 1):
        near = _words(data, place if from_left else place - WORD)
        length = _length(data, near, place, mark, forward=from_left)
        if length is None or (way * (border - place) <= length).any():
            return None
        place = place if step == steps else place + way * (length + 1)
    first = place if from_left else place - length
    if int(length.max()) >= WORD:
        return first, length, _packed(data, first, length)
    outside = (8 * (WORD - 1 - length)).astype(np.uint64)  # bits, less those of one byte: 64 would be too many
    eight = np.uint64(8)
    return first, length, ((near << outside << eight if from_left else near) >> outside >> eight)[:, None]


def _length(data: Any, near: Any, places: Any, mark: int, *, forward: bool) -> Any:
    """How many bytes lie between each place and the next separator in that direction; None where one is too far.

    `near` are the words next to the places.
    """
    import numpy as np

    lengths: Any = np.zeros(len(places), np.int64)
    open_rows: Any = slice(None)
    for number in range(MOST_WORDS):
        here, word = places[open_rows], near
        if number:
            word = _words(data, here + WORD * number if forward else here - WORD * (number + 1))
        other = (word if forward else word.byteswap()) ^ np.uint64(mark * _ONES)  # a zero where the separator is
        low = np.uint64(_LOW_BITS)
        hits = ~(((other & low) + low) | other | low)  # the highest bit of each byte that is zero
        nearest = hits & (~hits + np.uint64(1))
        # its place: a power of two is its own exponent
        bits = (nearest.astype(np.float64).view(np.int64) >> 52) - 1023
        found = hits != 0
        lengths[open_rows] += np.where(found, bits >> 3, WORD)
        if found.all():
            return lengths
        rows = np.arange(len(places))[open_rows]
        open_rows = rows[~found]
    return None


def _packed(data: Any, firsts: Any, lengths: Any) -> Any:
    """The bytes of each cell as words, filled up with zeros."""
    import numpy as np

    count = max(1, -(-int(lengths.max()) // WORD))
    masks = np.array([(1 << (8 * size)) - 1 for size in range(WORD + 1)], np.uint64)
    words: Any = np.empty((len(firsts), count), np.uint64)
    for number in range(count):
        size = np.clip(lengths - WORD * number, 0, WORD)
        words[:, number] = _words(data, firsts + WORD * number) & masks[size]
    return words


def _words(data: Any, places: Any) -> Any:
    """The eight bytes from each place on as a number, with zeros beyond both ends of the file."""
    import numpy as np

    count = len(data) // WORD
    number, bits = places >> 3, ((places & (WORD - 1)) << 3).astype(np.uint64)
    if int(number.min()) >= 0 and int(number.max()) < count - 1:  # numpy is slow at words that lie across two
        words = data[: WORD * count].view("<u8")
        return words[number] >> bits | words[number + 1] << np.uint64(1) << np.uint64(63) - bits
    inside = places[:, None] + np.arange(WORD)
    known = (inside >= 0) & (inside < len(data))
    return np.where(known, data[np.clip(inside, 0, len(data) - 1)], 0).astype(np.uint8).view("<u8")[:, 0]


def _coded(column: Packed) -> Coded | None:
    """The column as numbers of its different texts; None where these are many."""
    import numpy as np

    keys = column.words[:, 0]
    for number in range(1, column.words.shape[1]):  # a number for the whole text: nearly always another for another
        keys = keys * np.uint64(0x9E3779B97F4A7C15) ^ column.words[:, number]
    known = np.unique(keys[:: max(1, len(keys) // SAMPLED)])

    def look_up(first: int, last: int) -> tuple[Any, Any]:
        """The codes of a stretch, and its keys that are not known yet."""
        some = keys[first:last]
        found = np.minimum(np.searchsorted(known, some), len(known) - 1)
        return found, some[known[found] != some]

    while len(known) < FEW:
        found, others = zip(*in_blocks(len(keys), look_up, ROWS_AT_ONCE), strict=True)
        if not any(map(len, others)):
            break
        known = np.union1d(known, np.concatenate(others)[: SAMPLED * 10])
    else:
        return None
    codes = np.concatenate(found)
    places: Any = np.empty(len(known), np.int64)
    places[codes] = np.arange(len(codes))
    if column.words.shape[1] > 1 and not (column.words[places][codes] == column.words).all():
        return None
    return Coded(column.taken(places), codes)
