"""The tables of a task as scripts read them: the expression that loads one, and what else stands beside its columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mle_star.data import tables as files
from mle_star.data.values import PANDAS_GAPS
from mle_star.engineer.rules.literals import quoted


@dataclass(frozen=True)
class Table:
    """A file and how scripts read it.

    `spelt`: columns that scripts read letter by letter, without gaps. `joined`: tables whose columns are beside those
    of the file, each with the column that both share.
    """

    file: files.Table
    spelt: tuple[str, ...] = ()
    joined: tuple[tuple[Table, str], ...] = ()

    @property
    def name(self) -> str:
        """The file, relative to the data folder."""
        return self.file.name

    @property
    def form(self) -> files.FormKind:
        """How the file is written."""
        return self.file.form.kind

    @property
    def rows(self) -> int:
        """How many rows the file has."""
        return self.file.rows

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(self.sample)

    @property
    def sample(self) -> dict[str, list[Any]]:
        """The sampled cells by column, those of joined tables in the order of these rows."""
        cells = dict(self.file.sample)
        for other, column in self.joined:
            rows = dict(zip(map(str, other.sample[column]), zip(*other.sample.values(), strict=True), strict=True))
            blank = tuple("" for _ in other.columns)
            found = [rows.get(str(cell), blank) for cell in cells[column]]
            for index, name in enumerate(other.columns):
                cells.setdefault(name, [row[index] for row in found])
        return cells

    @property
    def gap_words(self) -> set[str]:
        """What scripts take for a gap in this table."""
        return PANDAS_GAPS.union(self.file.form.odd_gaps, *(other.gap_words for other, _ in self.joined))

    def as_spelt(self, name: str) -> Table:
        """This table with a column that scripts read letter by letter."""
        joined = tuple((other.as_spelt(name), column) for other, column in self.joined)
        elsewhere = any(name in other.columns and name != column for other, column in joined)
        own = name in self.file.columns and self.file.form.kind == "csv" and not elsewhere
        return replace(self, spelt=(*self.spelt, name) if own else self.spelt, joined=joined)

    def join(self, other: Table, column: str) -> Table:
        """This table with the columns of another one that shares a column, row by row."""
        return replace(self, joined=(*self.joined, (other, column)))

    @property
    def reader(self) -> str:
        """The expression with which a script reads this table."""
        joined = (f".merge({other.reader}, on={quoted(column)})" for other, column in self.joined)
        return "".join([self._own_reader, *joined])

    @property
    def _own_reader(self) -> str:
        path, form = quoted(f"./input/{self.name}"), self.file.form
        text = f'Path({path}).read_text(encoding="utf-8")'
        if form.kind == "lines":
            return f"pd.json_normalize([json.loads(line) for line in {text}.splitlines() if line])"
        if form.kind == "records":
            key = f"[{quoted(form.key)}]" if form.key else ""
            return f"pd.json_normalize(json.loads({text}){key})"
        if form.kind != "csv":
            function = {"columns": "read_json", "parquet": "read_parquet", "excel": "read_excel"}[form.kind]
            return f"pd.{function}({path})"
        options = [path, *_options(form)]
        if not form.has_header:
            options.append(f"names=[{', '.join(map(quoted, self.file.columns))}]")
        reader = f"pd.read_csv({', '.join(options)})"
        if not self.spelt:
            return reader
        options = [option for option in options if not option.startswith("na_values=")]
        options += [f"usecols=[{', '.join(map(quoted, self.spelt))}]", "dtype=str", "na_filter=False"]
        return f"{reader}.assign(**pd.read_csv({', '.join(options)}))"


def _options(form: files.Form) -> list[str]:
    """What pandas must be told of a file of separated values."""
    dialect, options = form.dialect, []
    if dialect.separator != ",":
        options.append(f'sep="{repr(dialect.separator)[1:-1]}"')
    if dialect.decimal != ".":
        options.append(f'decimal="{dialect.decimal}"')
    if dialect.thousands:
        options.append(f'thousands="{dialect.thousands}"')
    if dialect.blanks:
        options.append("skipinitialspace=True")
    if form.encoding != "utf-8":
        options.append(f'encoding="{form.encoding}"')
    if form.odd_gaps:
        options.append("na_values=[" + ", ".join(map(quoted, form.odd_gaps)) + "]")
    return options
