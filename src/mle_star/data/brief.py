"""The data brief: what an agent should know of the data before it writes a line, made from what scripts see."""

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from mle_star.data.columns import Column, comes_later, describe, is_missing, is_number, likely_label, moments_of
from mle_star.data.layout import Layout, Survey, labels_of, layout_of, survey
from mle_star.data.tables import Table
from mle_star.errors import ConfigError
from mle_star.models.texts import figure, printable, some_of

MAX_CHARACTERS = 6000
MAX_VALUE = 40
MAX_COLUMNS = 60
"""So many columns of a table get a line of their own; the others are named together."""
LISTED = 6
SAMPLED_PICTURES = 20
HEAD_ROWS = 3
FAMILY = 4
"""So many numbered columns of one name share a line."""


def data_brief(folder: Path, description: str = "", most: int = MAX_CHARACTERS) -> str:
    """The brief on the data in `folder`, the same for the same files; empty when they cannot be read."""
    try:
        found = survey(folder)
    except ConfigError:
        return ""
    with suppress(ConfigError):
        found = layout_of(found, description)
    wide = MAX_COLUMNS
    while True:
        text = "\n\n".join(part for part in _parts(found, wide) if part)
        if len(text) <= most or wide == 0:
            return text if len(text) <= most else text[: most - 4] + "\n..."
        wide = wide * 2 // 3


def _parts(found: Survey, wide: int) -> Iterator[str]:
    """The brief, piece by piece, the telling ones first: what is cut is cut at the end."""
    if isinstance(found, Layout):
        yield _target(found)
    if found.train is not None:
        yield _table(found.train, "training rows", wide)
    if isinstance(found, Layout):
        yield _differences(found)
    elif found.test is not None:
        yield _table(found.test, "test rows", wide // 2)
    if found.sample is not None:
        yield _head(found.sample)
    yield _pictures(found)
    for table in (found.labels, *found.others):
        if table is not None:
            yield _table(table, "rows", wide // 4)
    if found.audio:
        yield f"{found.audio} sound files."


# --- tables ------------------------------------------------------------------------------------------------------


def _table(table: Table, rows: str, wide: int) -> str:
    about = "" if table.whole else "about "
    first = f"{_name(table.name)}: {about}{table.rows:,} {rows}, {len(table.columns)} columns{_form(table)}"
    families = _families(table)
    lines, rest = [], [name for family in families[wide:] for name in family]
    for family in families[:wide]:
        columns = list(map(table.column, family))
        column, share = columns[0], max(one.missing for one in columns)
        missing = f", {'up to ' if len(family) > 1 else ''}{_percent(share)} missing" if share else ""
        if len(family) == 1:
            lines.append(f"- {_name(column.name)}: {_content(column, table.sample[column.name])}{missing}")
            continue
        low, high = min(one.low for one in columns), max(one.high for one in columns)
        what = "whole numbers" if all(one.whole for one in columns) else "numbers"
        span = f"- {_name(family[0])} to {_name(family[-1])} ({len(family)} columns)"
        lines.append(f"{span}: {what} {figure(low)} to {figure(high)}{missing}")
    if rest:
        kinds = Counter(table.column(name).kind for name in rest)
        by_kind = ", ".join(f"{number} of kind {kind}" for kind, number in kinds.most_common())
        names = ", ".join(_name(name) for name in (*rest[:LISTED], *(rest[-1:] if len(rest) > LISTED else ())))
        lines.append(f"- {len(rest)} {'more' if wide else 'columns'} ({by_kind}): {names}")
    return "\n".join([first, *lines])


def _families(table: Table) -> list[list[str]]:
    """The columns in their order; numbers that follow each other under one name and a number are together."""

    def family(name: str) -> tuple[str, bool]:
        stem = name.rstrip("0123456789")
        is_numbered = stem not in ("", name) and table.column(name).kind == "number"
        return (stem if is_numbered else name), is_numbered

    families = (list(names) for _, names in groupby(table.columns, family))
    return [part for one in families for part in ([one] if len(one) >= FAMILY else [[name] for name in one])]


def _form(table: Table) -> str:
    """How a file is written, where that is not the usual way."""
    form = table.form
    odd = {
        form.kind: form.kind != "csv",
        f"separated by {form.separator!r}": form.separator != ",",
        f"decimal {form.decimal!r}": form.decimal != ".",
        form.encoding: form.encoding not in ("utf-8", "utf-8-sig"),
        "no header line": not form.has_header,
        "gaps written as " + ", ".join(map(repr, form.odd_missing[:3])): bool(form.odd_missing),
    }
    words = [word for word, is_odd in odd.items() if is_odd]
    return f" ({', '.join(words)})" if words else ""


def _content(column: Column, cells: Sequence[Any]) -> str:
    if column.kind == "list":
        filled = [cell for cell in cells if isinstance(cell, (list, dict))]
        return f"lists, about {sum(map(len, filled)) / max(len(filled), 1):.0f} entries each"
    if column.kind == "constant":
        return f"constant {_value(column.shares[0][0])}" if column.shares else "empty"
    if column.kind == "date":
        dates = sorted((moment, text) for text, moment in moments_of(column, cells).items())
        return f"dates {column.date_format}, {_value(dates[0][1])} to {_value(dates[-1][1])}"
    if column.kind == "text":
        return f"text, about {column.words:.0f} words and {column.characters:.0f} characters"
    if column.kind == "messy number":
        return f"numbers with other signs among them, such as {_examples(column)}"
    if column.kind == "category" or (column.whole and column.distinct <= LISTED):
        return f"{column.distinct} values: {_examples(column)}"
    what = "whole numbers" if column.whole else "numbers"
    unique = ", all different" if column.unique_share == 1 and column.count > 1 else f", {column.distinct:,} different"
    zeros = f", {_percent(column.zeros)} zeros" if column.zeros > 0.2 else ""
    skew = ", skewed" if abs(column.skew) > 2 else ""
    return f"{what} {figure(column.low)} to {figure(column.high)}{unique}{zeros}{skew}"


def _examples(column: Column) -> str:
    if column.shares and column.shares[0][1] < 0.02:
        shown = [_value(value) for value, _ in column.shares[: LISTED // 2]]
    else:
        shown = [f"{_value(value)} {_percent(share)}" for value, share in column.shares[:LISTED]]
    return ", ".join(shown) + (", ..." if column.distinct > LISTED else "")


def _head(table: Table) -> str:
    """The first lines of the sample submission: its form counts, whatever the description says."""
    columns = table.columns[:12]
    rows = islice(zip(*(table.sample[name] for name in columns), strict=True), HEAD_ROWS)
    more = f" (the first {len(columns)} of {len(table.columns)} columns)" if len(columns) < len(table.columns) else ""
    lines = [",".join(_short(str(cell)) for cell in row) for row in (columns, *rows)]
    first = f"{_name(table.name)} has {table.rows:,} rows{more}; submit in this form, whatever the description says:"
    return "\n".join([first, *(f"    {line}" for line in lines)])


# --- the target --------------------------------------------------------------------------------------------------


def _target(layout: Layout) -> str:
    target = layout.target
    if target.table is None:
        return f"The target: {printable(target.reason)}"
    lines = []
    for name in target.names:
        known = labels_of(target.table.sample[name])
        lines.append(f"The target {_name(name)}: {_spread(describe(name, known, labels_of), known)}")
        if len(target.names) == 1 and target.class_prefix is None and len(classes := set(known)) == 2:
            lines[-1] += f"; a single probability is that of {_value(likely_label(classes))}"
    key = f"Rows are named by {_name(layout.key)}." if layout.key else "Rows have no key: their order counts."
    return "\n".join([*lines, key])


def _spread(column: Column, known: list[str]) -> str:
    if column.holds_classes:
        return f"{column.distinct} classes: {_examples(column)}"
    if not (numbers := sorted(float(value) for value in known if is_number(value))):
        return f"{column.kind}, {column.distinct} values"
    shares = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    at = [numbers[min(int(share * len(numbers)), len(numbers) - 1)] for share in shares]
    figures = ", ".join(f"{value:g}" for value in at)
    skew = "; strongly skewed, think of its logarithm" if column.skew > 2 and at[0] >= 0 else ""
    return f"numbers; minimum, 5 %, 25 %, median, 75 %, 95 %, maximum: {figures}{skew}"


def _differences(layout: Layout) -> str:
    """What is only in train or only in test: columns, and values of categories."""
    train, test = layout.train, layout.test
    if test is None:
        return "There is no test table."
    lines = [f"{_name(test.name)}: {'' if test.whole else 'about '}{test.rows:,} rows to predict"]
    for words, one, other in (("training", train, test), ("test", test, train)):
        if columns := [_name(name) for name in one.columns if name not in other.columns]:
            lines.append(f"- only in {words}: {some_of(columns, LISTED)}")
    for name in train.columns:
        if name in test.columns and name != layout.key and (words := _shift(name, train, test)):
            lines.append(f"- {_name(name)}: {words}")
        if len(lines) > 12:
            break
    return "\n".join(lines)


def _shift(name: str, train: Table, test: Table) -> str:
    """How test values of a column differ from those of training, where that matters."""
    ours, theirs = train.column(name), test.column(name)
    if ours.kind == "category" and not ours.names_rows and ours.unique_share < 0.5:
        seen = {str(cell) for cell in train.sample[name]}
        filled = [str(cell) for cell in test.sample[name] if not is_missing(cell)]
        unseen = sum(cell not in seen for cell in filled)
        if filled and unseen > 0.05 * len(filled):
            return f"{_percent(unseen / len(filled))} of the test rows have a value that training lacks"
    is_apart = theirs.low > ours.high or theirs.high < ours.low
    if ours.kind == "number" == theirs.kind and not ours.counts_up and is_apart:
        return f"test lies outside of training ({theirs.low:g} to {theirs.high:g})"
    if ours.kind == "date" == theirs.kind and comes_later(ours, train.sample[name], test.sample[name]):
        return "test comes after training: validate by time"
    if abs(theirs.missing - ours.missing) > 0.2:
        return f"missing in {_percent(theirs.missing)} of test, {_percent(ours.missing)} of training"
    return ""


# --- pictures ----------------------------------------------------------------------------------------------------


def _pictures(found: Survey) -> str:
    lines = []
    for folder in sorted(found.images)[: 2 * LISTED]:
        names = sorted(found.images[folder])
        sizes = [size for name in names[:SAMPLED_PICTURES] if (size := picture_size(found.folder / folder / name))]
        spans = [(min(side), max(side)) for side in zip(*sizes, strict=True)]
        sides = " x ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in spans)
        pixels = f", {sides} pixels" if sides else ""
        lines.append(f"- {_name(folder)}: {len(names):,} pictures{pixels}, such as {_name(names[0])}")
    if len(found.images) > len(lines):
        lines.append(f"- and {len(found.images) - len(lines)} more folders of pictures")
    return "\n".join(["Pictures:", *lines]) if lines else ""


def picture_size(path: Path) -> tuple[int, ...] | None:
    """Width and height as the first bytes of a PNG, GIF or JPEG say; None for others."""
    with suppress(OSError, struct.error), path.open("rb") as file:
        head = file.read(1 << 16)
        for mark, form, place in ((b"\x89PNG", ">II", 16), (b"GIF8", "<HH", 6)):
            if head.startswith(mark):
                return struct.unpack_from(form, head, place)
        return _jpeg_size(head) if head.startswith(b"\xff\xd8") else None
    return None


def _jpeg_size(head: bytes) -> tuple[int, ...] | None:
    place = 2
    while place + 9 < len(head) and head[place] == 0xFF:
        mark, length = head[place + 1], int.from_bytes(head[place + 2 : place + 4], "big")
        if 0xC0 <= mark <= 0xCF and mark not in (0xC4, 0xC8, 0xCC):
            return struct.unpack(">HH", head[place + 5 : place + 9])[::-1]
        place += 2 + length
    return None


# --- words -------------------------------------------------------------------------------------------------------


def _name(text: str) -> str:
    """A name comes from outside: it stays on its line, in its quotes, and short."""
    return f"`{_short(text).replace('`', chr(39))}`"


def _value(text: str) -> str:
    return repr(_short(str(text)))


def _short(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= MAX_VALUE else f"{plain[:MAX_VALUE]}..."


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %") if share >= 0.01 or share == 0 else "under 1 %"
