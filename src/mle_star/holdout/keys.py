"""The names of hidden rows: new ones where the old order could tell their labels, and the files that bear them."""

from __future__ import annotations

import os
import random
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter, lt
from pathlib import Path

from mle_star.data.survey import AUDIO_SUFFIXES, IMAGE_SUFFIXES

_NUMBERED = re.compile(r"(\D*)(\d+)(\D*)")
FILES_SHARE = 0.5
"""So many of the keys must have a file for the files to count as named by key."""


def fresh_keys(
    old: Numbers | None, asked: Sequence[str], hidden: Sequence[int], *, seed: int, nameless: bool = False
) -> dict[int, str]:
    """New keys for the hidden rows, at random, where the test's lie apart from those of the training rows.

    There rows may be numbered in the order of their labels, which says nothing about the real test. None are given
    where both are mixed, or where keys are not numbered. Rows that are `nameless` among the test's need new ones.
    """
    new = numbers_of(asked) if asked else None
    like = new or old
    if like is None or (asked and new is None) or (old is None and not nameless):
        return {}
    if new is not None and old is not None and new.pattern == old.pattern and not old.lies_apart(new) and not nameless:
        return {}
    first = max(like.high, old.high if old is not None and like.pattern == old.pattern else 0) + 1
    numbers = list(range(first, first + len(hidden)))
    random.Random(seed).shuffle(numbers)
    before, behind = like.pattern
    return {
        place: f"{before}{str(number).zfill(like.width)}{behind}" for place, number in zip(hidden, numbers, strict=True)
    }


@dataclass(frozen=True)
class Numbers:
    """Keys that are numbered: what stands around the number, its range, and its digits where they are filled up."""

    pattern: tuple[str, str]
    low: int
    high: int
    width: int
    goes_up: bool  # each is larger than the one before, so that none comes twice
    count: int = 0

    @property
    def counts_rows(self) -> bool:
        """Are they the numbers of rows, one after another?"""
        return self.goes_up and self.high - self.low + 1 == self.count

    def lies_apart(self, other: Numbers) -> bool:
        """Are all of these smaller than all of the others, or larger?"""
        return self.high < other.low or other.high < self.low


def numbers_of(keys: Sequence[str]) -> Numbers | None:
    """How the keys are numbered; None where they are not."""
    first = _NUMBERED.fullmatch(keys[0]) if keys else None
    if first is None:
        return None
    before, _, behind = first.groups()
    digits = keys
    if before or behind:
        if not all(key.startswith(before) and key.endswith(behind) for key in keys):
            return None
        digits = [key[len(before) : len(key) - len(behind)] for key in keys]
    if not all(digits) or not "".join(digits).isdecimal():
        return None
    numbers = list(map(int, digits))
    filled = "0" in {*map(itemgetter(0), digits)} and any(len(text) > 1 and text[0] == "0" for text in digits)
    goes_up = all(map(lt, numbers, islice(numbers, 1, None)))
    width = len(digits[0]) if filled else 0
    return Numbers((before, behind), min(numbers), max(numbers), width, goes_up, len(keys))


@dataclass(frozen=True)
class KeyFiles:
    """The files that are named by the key of a row (`train/17.png`): by key, below the data folder."""

    by_key: Mapping[str, tuple[Path, ...]]
    test_folder: Path | None
    """Where the files of the test rows lie, if not among those of the training rows."""
    suffixes: frozenset[str] = frozenset()
    """The kinds of files that test rows have: others, such as annotations, may tell the label."""

    def of(self, key: str) -> tuple[Path, ...]:
        """The files of one row."""
        return self.by_key.get(key, ())

    def place(self, file: Path, key: str, name: str) -> Path:
        """Where the file of a hidden row goes, under the name that the row has in the view."""
        folder = file.parent if self.test_folder is None else self.test_folder
        return folder / f"{name}{file.name[len(key) :]}"

    def shows(self, file: Path) -> bool:
        """May a test row have this file?"""
        return not self.suffixes or file.suffix.lower() in self.suffixes


def find_key_files(
    folder: Path, train: Sequence[str], asked: Sequence[str], tables: Collection[str]
) -> KeyFiles | None:
    """The files named by the keys of both kinds of rows; None where most keys have none."""
    others = [Path(place, name).relative_to(folder) for place, _, names in os.walk(folder) for name in names]
    others = [file for file in others if file.as_posix() not in tables]
    if len(others) < FILES_SHARE * len(train):
        return None
    wanted = {*train, *asked}
    found: dict[str, list[Path]] = defaultdict(list)
    for file in others:
        stem = file.name if file.name in wanted else file.name.split(".")[0]
        if stem in wanted:
            found[stem].append(file)
    by_key = {key: tuple(files) for key, files in found.items()}
    if sum(key in by_key for key in train) < FILES_SHARE * len(train):
        return None
    ours, theirs = ([file for key in keys for file in by_key.get(key, ())] for keys in (train, asked))
    apart = {file.parent for file in theirs} - {file.parent for file in ours}
    is_apart = len(apart) == 1 and apart == {file.parent for file in theirs}
    kinds = {file.suffix.lower() for file in theirs or ours}
    shown = kinds if theirs else kinds & (IMAGE_SUFFIXES | AUDIO_SUFFIXES) or kinds
    return KeyFiles(by_key, min(apart) if is_apart else None, frozenset(shown))
