"""A hundred ways to get it wrong: each is one clear line, exit code 1, and nothing is made or lost."""

import re
import sys
import zipfile
from pathlib import Path

import pytest

from mle_star.cli.app import main
from mle_star.data.place import MARK
from tests.conftest import Captured, Patch, as_kept, write_texts
from tests.views.journals import Invented

NUMBERS = "a,b,y\n" + "".join(f"{i},{i % 7},{i * 3.5 + i % 5}\n" for i in range(60))
CLASSES = "a,b,y\n" + "".join(f"{i},{i % 7},{'yes' if i % 3 else 'no'}\n" for i in range(60))
TASK = (
    "competition_id: t\ntask_type: classification\ndata_modality: tabular\nevaluation_metric: accuracy\n"
    "metric_direction: maximize\ndescription: Predict `y`.\n"
)
TASKS = {
    "typo": TASK + "target: yy\n",
    "field": TASK + "metrik: f1\n",
    "type": TASK.replace("task_type: classification", "task_type: classify"),
    "metric": TASK.replace("accuracy", "acuracy"),
    "way": TASK.replace("maximize", "minimize"),
    "place": TASK + "data_dir: elsewhere\n",
    "image": TASK.replace("tabular", "image"),
}
FILES = {
    **{f"task-{name}/train.csv": CLASSES for name in TASKS},
    **{f"task-{name}/task.yaml": content for name, content in TASKS.items()},
    "numbers/train.csv": NUMBERS,
    "classes/train.csv": CLASSES,
    "header/train.csv": "a,b,y\n",
    "uneven/train.csv": "a,b,y\n1,2,3,4\n1,2,3,4\n",
    "constant/train.csv": "a,y\n" + "1,5\n2,5\n" * 20,
    "huge/train.csv": NUMBERS + "61,1,1e300\n",
    "task-huge/train.csv": NUMBERS + "61,1,-inf\n",
    "task-huge/task.yaml": TASK.replace("accuracy", "rmse").replace("maximize", "minimize"),
    "blank/train.csv": "a,y\n" + "1,\n2,\n" * 20,
    "same/train.csv": CLASSES,
    "same/test.csv": CLASSES,
    "empty/train.csv": "",
    "settings-typo.yaml": "outer_lop_steps: 1\n",
    "prose.txt": "A sentence without a table.\n",
    "picture.png": "no picture\n",
    "runs/damaged/journal.jsonl": '{"kind": "nonsense"}\n{"kind": "more"}\n',
}
ABSENT = {
    "run classes/train.csv --target y --model offline --executor ray": ["ray"],
    "sweep classes/train.csv --model offline --executor ray://head:10001": ["ray"],
    "run classes/train.csv --target y --model offline --mlflow http://127.0.0.1:9": ["mlflow"],
    "kaggle get houses": ["kaggle", "kaggle.api.kaggle_api_extended"],
}
"""What cannot be done without an extra, and the modules of it that are missing then."""
WRONG = Path(__file__).with_name("wrong_inputs.txt").read_text(encoding="utf-8")
"""Calls, data, task files, settings, one file as the task, other tools, and runs."""
OF_OTHERS = (
    r"(?<=log in with `)[^`]*|(?<=-)\d{8}-\d{6}|(?<=database: )[^\n]*|(?<=MlflowException: )[^\n]*|"
    r"(?<=damaged \()[^\n]*|(?<=unpacked \()[^\n]*|(?<=Input )[^(\n]*"
)
"""What is said by other programs, and differs from place to place."""
COMMANDS = [*ABSENT, *WRONG.replace("OFFLINE", "--model offline").splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that can be wrong, and some runs."""
    folder = write_texts(tmp_path_factory.mktemp("wrong"), FILES)
    for name in ("good", "run-1", "run-2"):
        Invented(seed=5, M=1, T=1, K=1, L=1).write(folder / "runs" / name)
    Invented(seed=5, M=1, T=1, K=1, L=1, name="cars").write(folder / "runs" / "cars")
    (folder / "runs" / "good" / MARK).touch()
    (folder / "good").symlink_to(folder / "runs" / "good")
    for name, other in (("climbs.zip", "../out.csv"), ("damaged.zip", "test.csv")):
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("train.csv", CLASSES)
            archive.writestr(other, CLASSES)
    packed = bytearray((folder / "damaged.zip").read_bytes())
    packed[60:120] = b"\xff" * 60
    (folder / "damaged.zip").write_bytes(packed)
    (folder / "runs" / "begun").mkdir()
    first = (folder / "runs" / "good" / "journal.jsonl").read_bytes().splitlines(keepends=True)[0]
    (folder / "runs" / "begun" / "journal.jsonl").write_bytes(first)
    for name in ("broken.zip", "broken.xlsx"):
        (folder / name).write_bytes(b"PK\x03\x04 no archive")
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_errors_are_one_clear_line(place: Path, monkeypatch: Patch, capfd: Captured) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(place))  # no login of the machine's owner
    before, lines = _files(place), list[str]()
    for words in COMMANDS:
        with monkeypatch.context() as absent:
            absent.delitem(sys.modules, "mle_star.integrations.cluster", raising=False)
            for name in ABSENT.get(words, []):
                absent.setitem(sys.modules, name, None)
            code = main(words.split())
        out, err = capfd.readouterr()
        complaints = [line for line in err.splitlines() if not re.match(r"(note|task|time|data): ", line)]
        assert (code, out, len(complaints)) == (1, "", 1), f"{words}: {err}"
        assert complaints[0].startswith("mle-star: error: ") and "Traceback" not in err and len(complaints[0]) < 700
        lines.append(f"$ {words}\n{complaints[0].removeprefix('mle-star: error: ')}")
        assert _files(place) == before, words
    as_kept("wrong_inputs.txt", re.sub(OF_OTHERS, "…", "\n".join(lines).replace(str(place), "…")))
