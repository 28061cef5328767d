"""The program that does again what a blend did: its members lie beside it in `solution/`."""

from __future__ import annotations

from mle_star.data.files import Dialect
from mle_star.holdout.scorer import Scorer

_SCRIPT = '''"""Run the scripts of `solution/` in turn and blend their answers by weights found on hidden rows."""

import csv
import subprocess
import sys
from pathlib import Path

WEIGHTS = {weights}
KEY, ANSWERS = {key!r}, {answers!r}
SEPARATOR, DECIMAL = {separator!r}, {decimal!r}
SUBMISSION = Path("final/submission.csv")


def read():
    """The rows that a member submitted; it may have written commas where others are asked for."""
    first = SUBMISSION.read_text(encoding="utf-8-sig").partition("\\n")[0]
    separator = SEPARATOR if set(ANSWERS) <= set(next(csv.reader([first], delimiter=SEPARATOR))) else ","
    with SUBMISSION.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream, delimiter=separator))


def named(rows, keyed):
    """The same rows by key, else by place."""
    return {{row[KEY].strip().removesuffix(".0") if keyed else place: row for place, row in enumerate(rows)}}


def number(text):
    return float(text.replace(".", "").replace(",", ".") if "," in text else text)


members = []
for place in range(1, len(WEIGHTS) + 1):
    subprocess.run([sys.executable, f"solution/member_{{place}}.py"], check=True)
    members.append(read())
keyed = all(KEY in row for rows in members for row in rows)
keyed = keyed and all(len({{row[KEY] for row in rows}}) == len(rows) for rows in members)
members = [named(rows, keyed) for rows in members]
for key, row in members[0].items():
    answers = {{name: sum(w * number(rows[key][name]) for w, rows in zip(WEIGHTS, members)) for name in ANSWERS}}
    row.update((name, repr(value).replace(".", DECIMAL)) for name, value in answers.items())
with SUBMISSION.open("w", encoding="utf-8", newline="") as stream:
    writer = csv.DictWriter(stream, list(row), delimiter=SEPARATOR, lineterminator="\\n")
    writer.writeheader()
    writer.writerows(members[0].values())
'''


def blend_script(weights: list[float], scorer: Scorer) -> str:
    """The program for these weights, with all that tells its rows and its numbers apart."""
    layout = scorer.data.layout
    sample = layout.sample
    dialect = sample.form.dialect if sample is not None and sample.form.kind == "csv" else Dialect()
    return _SCRIPT.format(
        weights=[round(weight, 6) for weight in weights],
        key=layout.key if scorer.data.asked_keys or not scorer.data.asked else None,
        answers=list(scorer.names),
        separator=dialect.separator,
        decimal=dialect.decimal,
    )
