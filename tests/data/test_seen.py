"""What is made of every small task before a run, and of a folder of odd things, word for word: `make snapshots`."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mle_star import ConfigError, PipelineConfig
from mle_star.data.brief import data_brief
from mle_star.data.columns import describe, is_apart, moments_of
from mle_star.data.guess import guess_task
from mle_star.data.layout import find_layout
from mle_star.holdout.keys import label_files
from mle_star.holdout.split import find_rule
from tests.conftest import as_kept, write_texts
from tests.engineer.small_tasks import TASKS

N = range(100)
ODD: dict[str, list[Any]] = {
    "zeros": [0, 0, 0, *range(97)], "skewed": [2.0 ** (n % 30) for n in N], "one": ["same"] * 100, "up": [*N],
    "nothing": [""] * 100, "price": [f"${n},000.50" for n in N], "share": [f"{n} %" for n in N],
    "nearly": ["unknown x", *range(99)], "gappy": ["?" if n % 3 else n for n in N],
    "long `name` of a column that goes on and on and on": [f"a{n % 7}" * 30 for n in N],
    "review": [f"it was {'very ' * (n % 5)}good on day {n}, and I would come again" for n in N],
    "title": [f"The {n % 40}th of Many" for n in N], "flag": ["True", "False"] * 50, "two": [n % 2 for n in N],
    "grade": [n % 20 for n in N], "code": [n % 21 for n in N], "when": [f"{1 + n % 28}.{1 + n % 12}.2021" for n in N],
    "stamp": [1_600_000_000 + 86_400 * n for n in N], "year": [1990 + n % 30 for n in N], "list": [[n, n] for n in N],
    "day": [20210101 + n % 28 for n in N], "spoken": [f"March {n % 29}, 2021" for n in N],
    "edge": [*range(98), "x y", "z"], "amounts": [*(f"{n}%" for n in range(98)), "dear", "cheap"],
    "row_id": [n % 95 for n in N], "lot": [20210101 + n % 28 for n in N],
    "threes": [f"a b {n % 51}" for n in N], "halves": [f"a b {n % 50}" for n in N],
    "time_ms": [1_600_000_000_000 + 86_400_000 * n for n in N], "huge": [1e28 * n for n in N],
}  # fmt: skip


def pictures(folder: Path) -> Path:
    """A folder of odd files: pictures of three kinds by class, a sound, what may hold labels, notes."""
    jpeg = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08" + struct.pack(">HH", 30, 40) + bytes(20)
    png, gif = b"\x89PNG" + bytes(12) + struct.pack(">II", 10, 20), b"GIF89a" + struct.pack("<HH", 5, 6)
    kinds = {"png": png, "gif": gif, "jpg": jpeg}
    for number in range(36):
        path = folder / "train" / ("cats" if number % 2 else "dogs") / f"{number}.{[*kinds][number % 3]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(kinds[path.suffix[1:]].replace(b"\xc0", (b"\xc0", b"\xcf")[number % 2]) + bytes(number % 4))
    (folder / "train" / "cats" / "broken.png").write_bytes(b"\x89PNG broken")
    (folder / "train" / "cows").symlink_to(write_texts(folder.parent / "cows", {"1.png": ""}))
    for name in ("a.wav", "labels_old.npy", "train.csv.bak", "notes.txt", ".hidden.csv"):
        (folder / name).write_text("The metric is root mean squared error (RMSE).")
    return folder


def seen(folder: Path) -> Iterator[str]:
    """All that is guessed and told of a folder."""
    try:
        guess = guess_task(folder)
        words = guess.task.description
        yield from map(json.dumps, (guess.task.model_dump(mode="json"), guess.targets, guess.reasons, guess.notes))
        yield data_brief(folder, words)
        layout = find_layout(folder, words)
        roles = [table and table.name for table in (layout.train, layout.test, layout.sample, layout.labels)]
        yield f"{roles} {layout.key} {layout.labels_key} {layout.answers} {layout.target.names} {layout.target.reason}"
        yield f"{layout.target.class_prefix} {find_rule(layout, PipelineConfig())} {sorted(label_files(layout))}"
    except ConfigError as error:
        yield str(error)


def test_all_that_is_seen_of_a_task_before_a_run(tmp_path: Path) -> None:
    for name, make in TASKS.items():
        make(tmp_path / name)
    for name, rows in (("train", range(80)), ("test", range(80, 100))):
        (tmp_path / "odd").mkdir(exist_ok=True)
        text = "".join(json.dumps({column: cells[row] for column, cells in ODD.items()}) + "\n" for row in rows)
        (tmp_path / "odd" / f"{name}.jsonl").write_text(text)
    pictures(tmp_path / "pets/Input")
    lines = [line for name in (*TASKS, "odd", "pets/Input") for line in (f"=== {name}", *seen(tmp_path / name))]
    for name, cells in ODD.items():
        column = describe(name, cells if name == "list" else list(map(str, cells)))
        facts = {key: round(one, 6) if isinstance(one, float) else one for key, one in vars(column).items()}
        facts |= {"shares": column.shares[:3], "classes": column.holds_classes, "rows": column.names_rows}
        moments = moments_of(column, cells)
        lines.append(f"{facts} {len(moments)} {min(moments.values(), default='')}")
    groups = ("aabbccddee xy", "aabbccdde xy", "aabbccdd xy", "aabbccddee x", "aabbccddee ax")
    lines += [f"{one} {is_apart(describe('g', [*one.split()[0]]), *map(list, one.split()))}" for one in groups]
    as_kept("data/seen.txt", "\n".join(lines).replace(str(tmp_path), "…"))
