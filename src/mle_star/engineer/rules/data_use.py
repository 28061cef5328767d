"""Finds supplied data that a script ignores, tables and columns, and works it in."""

from __future__ import annotations

import ast
import keyword
import re

from mle_star.data.columns import Column, describe
from mle_star.engineer.rules.features import FIRST_STEPS, written_for
from mle_star.engineer.rules.literals import name_list, quoted
from mle_star.engineer.rules.profile import Profile
from mle_star.engineer.rules.sections import Script, parse
from mle_star.engineer.rules.tables import Table

TAKEN = {"train", "test", "frame", "folds", "os", "json", "np", "pd", "warnings"}
"""Variables of the script that a table must not take the place of."""
MOST_JOINED = 3
"""Further tables that are worked in at a time: each costs rows and columns."""


def complete(code: str, profile: Profile) -> str | None:
    """The script with what it ignores, or None when it uses all there is, as far as can be told."""
    script = parse(code)
    if script is None:
        return _with_columns(code, profile)
    changed = script
    for table in [t for t in profile.extras if quoted(t.name)[1:-1] not in code][:MOST_JOINED]:
        changed = _joined(changed, table, profile) or changed
    return None if changed is script else changed.render()


# --- tables ----------------------------------------------------------------------------------------------


def key_of(table: Table, profile: Profile) -> str | None:
    """The column by which a table belongs to the rows: one that all have, the one that matches most rows."""
    if profile.test is None:
        return None
    shared = [c for c in table.columns if c in profile.train.columns and c in profile.test.columns]
    best, best_share = None, 0.3
    for column in shared:
        known = {str(cell) for cell in table.sample[column]}
        cells = profile.train.sample[column]
        share = sum(str(cell) in known for cell in cells) / max(len(cells), 1)
        if share > best_share:
            best, best_share = column, share
    return best


def _joined(script: Script, table: Table, profile: Profile) -> Script | None:
    """The script with the table's columns beside its own: joined by key, or summed up where a key repeats."""
    key = key_of(table, profile)
    if key is None or "load" not in script.sections or "features" not in script.sections:
        return None
    name = _variable(table)
    taken = set(profile.train.columns)
    columns = [describe(c, table.sample[c]) for c in table.columns if c != key and c not in taken]
    columns = [c for c in columns if c.kind in ("number", "category")]
    repeats = len(set(map(str, table.sample[key]))) < len(table.sample[key])
    numbers = [c.name for c in columns if c.kind == "number"]
    lines = [f"{name} = {table.reader}"]
    if repeats:
        made = [f"{name} {n}" for n in numbers] + [f"{name} rows"]
        parts = [f'{quoted(f"{name} {n}")}: ({quoted(n)}, "mean")' for n in numbers]
        parts.append(f'"{name} rows": ({quoted(key)}, "size")')
        lines.append(f"{name} = {name}.groupby({quoted(key)}).agg(**{{{', '.join(parts)}}}).reset_index()")
        new_numbers, new_categories = made, list[Column]()
    else:
        lines.append(f"{name} = {name}[{name_list([key, *(c.name for c in columns)])}].drop_duplicates({quoted(key)})")
        new_numbers, new_categories = numbers, [c for c in columns if c.kind == "category"]
    if not new_numbers and not new_categories:
        return None
    lines.append(f'train, test = (frame.merge({name}, on={quoted(key)}, how="left") for frame in (train, test))')
    load = _after_reading(script.sections["load"], lines)
    features = _with_names(script.sections["features"], new_numbers, [c.name for c in new_categories], profile)
    return script.with_section("load", load).with_section("features", features)


def _variable(table: Table) -> str:
    """What a script calls a table: its file's name, if that can be a variable and no other is called so."""
    name = re.sub(r"\W+", "_", table.name.rsplit("/", 1)[-1].split(".")[0]).lower()
    usable = name.isidentifier() and not keyword.iskeyword(name)
    return name if usable and name not in TAKEN else f"table_{name}"


def _after_reading(load: str, lines: list[str]) -> str:
    """The load section with further lines below the one that reads the test table."""
    rows = load.splitlines()
    place = next((n for n, row in enumerate(rows) if row.startswith("test = ")), 0) + 1
    return "\n".join([*rows[:place], *lines, *rows[place:]])


def _with_names(features: str, numbers: list[str], categories: list[str], profile: Profile) -> str:
    """The features section that knows the new columns, too."""
    top, start, rest = features.partition("\n\n\ndef build_features(")
    for constant, names in (("NUMBERS", numbers), ("CATEGORIES", categories)):
        if not names:
            continue
        if re.search(rf"^{constant} = ", top, re.MULTILINE):
            top += f"\n{constant} += {name_list(names)}"
        else:
            top += f"\n{constant} = {name_list(names)}"
            step = next(step for step in FIRST_STEPS if step.key == "categories")
            rest = rest.replace("    return built", f"{written_for(step, profile)}\n\n    return built", 1)
    rest = (
        rest.replace("pd.DataFrame(index=frame.index) for", "frame[NUMBERS].astype(float) for", 1) if numbers else rest
    )
    return f"{top}{start}{rest}"


# --- columns ---------------------------------------------------------------------------------------------


def _with_columns(code: str, profile: Profile) -> str | None:
    """A script of another hand: columns of numbers that its list of features leaves out."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    known = {c.name for c in profile.columns}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.List):
            continue
        names = [e.value for e in node.value.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        if len(names) < 2 or len(names) != len(node.value.elts) or not set(names) <= known:
            continue
        missing = [c.name for c in profile.of("number") if c.name not in code]
        source = ast.get_source_segment(code, node.value)
        if missing and source is not None:
            return code.replace(source, name_list([*names, *missing]), 1)
    return None
