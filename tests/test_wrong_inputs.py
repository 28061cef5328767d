"""A hundred ways to get it wrong: each is one clear line, exit code 1, and nothing is made or lost."""

import re
import sys
import zipfile
from pathlib import Path

import pytest

from mle_star.cli.app import main
from mle_star.data.place import MARK
from tests.conftest import Captured, Patch, write_texts
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
    "constant/train.csv": "a,y\n" + "1,5\n2,5\n" * 20,
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
WRONG: list[tuple[str, str]] = [
    # calling it
    ("--colour", "No such option: --colour"),
    ("init", "Missing argument 'DATA_FOLDER'"),
    ("init numbers --colour red", "No such option: --colour"),
    ("init numbers --metric", "requires an argument"),
    ("demo nonsense", "no example is called 'nonsense'"),
    ("watch good --port 70000", "--port"),
    # data
    ("init nowhere", "nowhere: no such folder"),
    ("init classes/train.csv", "`mle-star run classes/train.csv` takes one file"),
    ("init empty", "empty"),
    ("init header", "a header and no rows"),
    ("init constant", "holds '5' in every row"),
    ("init blank", "is empty in every row"),
    ("init same", "the same rows as train.csv"),
    ("init numbers --target price", "no column 'price'"),
    ("init numbers --target yy", "did you mean y?"),
    ("init numbers --metric gini-ish", "unknown metric 'gini-ish': did you mean gini"),
    ("init classes --metric rmse", "holds words such as 'yes' and 'no'"),
    ("init numbers --metric accuracy", "accuracy scores classes"),
    ("init numbers --metric rmse --maximize", "rmse is to minimize"),
    ("init numbers --metric score.py:profit", "score.py"),
    ("init numbers --output /proc/none/task.yaml", "cannot be written"),
    # task files
    ("run task-typo --model offline", "no column 'yy' in the training table"),
    ("run task-field --model offline", "unknown field 'metrik'"),
    ("run task-type --model offline", "did you mean classification?"),
    ("run task-metric --model offline", "accuracy"),
    ("run task-way --model offline", "maximize"),
    ("run task-place --model offline", "elsewhere"),
    ("run task-image --model offline", "knows tables and texts, nothing of image data"),
    # settings
    ("run classes --model ofline", "did you mean offline?"),
    ("run classes --model gpt-5", "'gpt-5' is no Claude model"),
    ("run classes", "no credential for the model 'sonnet'"),
    ("run classes --model offline --time-limit soon", "90m"),
    ("run classes --model offline --max-budget -1", "max_budget_usd"),
    ("run classes --model offline --preset bst", "must be one of quick, good, best, letter or none"),
    ("run classes --model offline -K many", "-K"),
    ("run classes --model offline -T 0", "outer_loop_steps must be a whole number of at least 1"),
    ("run classes --model offline --executor slurm", "there are local, ray, ray://HOST:PORT"),
    ("run classes --model offline --set outer_loop_steps", "write NAME=VALUE"),
    ("run classes --model offline --config settings-typo.yaml", "did you mean outer_loop_steps"),
    ("run classes --model offline --display plian", "did you mean plain?"),
    ("run classes --model offline --output classes", "is not empty"),
    ("run classes --model offline --output good", "holds a run already"),
    ("run classes --model offline --reference nowhere.txt", "nowhere.txt"),
    ("run classes --from good", "--from takes the task of the other run"),
    ("run", "name a task folder"),
    # one file as the task
    ("run nowhere.csv --model offline", "nowhere.csv: no such folder or file"),
    ("run prose.txt --model offline", "prose, not a table"),
    ("run picture.png --model offline", "neither data nor a task file"),
    ("run broken.zip --model offline", "no archive that can be read"),
    ("run climbs.zip --model offline", "outside of the archive"),
    ("run damaged.zip --model offline", "damaged.zip: cannot be unpacked"),
    ("run broken.xlsx --model offline", "broken.xlsx: cannot be read"),
    ("run header/train.csv --model offline", "a header and no rows"),
    ("run classes/train.csv --target yy --model offline", "did you mean y?"),
    ("run classes/train.csv --target y", "no credential for the model 'sonnet'"),
    # other tools
    *((words, f"pip install 'mle-star[{missing[0]}]'") for words, missing in ABSENT.items()),
    *((f"mlflow good {uri}", uri) for uri in ("foo://x", "./mlruns", "http://127.0.0.1:9")),
    # runs
    ("runs nowhere", "nowhere is no folder"),
    ("runs numbers", "there is no run in numbers"),
    *((f"{command} nowhere", "nowhere: no such run") for command in ("run --from", "resume", "compare good")),
    ("resume numbers", "numbers holds no run"),
    ("resume damaged", "line 1"),
    ("show god", "god: no such run"),
    ("show go phase9", "has no step 'phase9'"),
    ("show begun", "begun has no steps yet"),
    ("score good --answers damaged.zip", "damaged.zip: not a table; save the labels as .csv"),
    ("score good --answers nowhere.csv", "nowhere.csv: cannot be read"),
    ("leaderboard nowhere", "nowhere: no such run"),
    ("leaderboard good --top 0", "--top"),
    ("leaderboard good run-1 damaged", "line 1"),
    ("leaderboard good cars", "these runs are about"),
    ("sweep", "name task folders"),
    ("sweep nowhere --model offline", "nowhere: no such folder"),
    ("sweep header --model offline", "a header and no rows"),
    ("sweep --resume numbers", "holds no campaign"),
    ("sweep --resume numbers --seeds 5", "takes tasks, seeds and folder of the campaign"),
    ("compare good", "Missing argument 'OTHER'"),
    *((words, "run-1 has no result yet") for words in ("promote run-1 phase9", "export run-1 out")),
    ("predict good", "Missing argument 'NEW'"),
    ("predict run-1 classes/train.csv", "run-1 has no result yet"),
    ("predict run-1 classes/train.csv --output nowhere/out.csv", "there is no folder"),
    ("predict run-1 classes/train.csv --output out.sav", "written as .csv, .tsv, .parquet, .xlsx"),
]


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


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[words for words, _ in WRONG])
def test_errors_are_one_clear_line(place: Path, monkeypatch: Patch, capfd: Captured, words: str, message: str) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(place))  # no login of the machine's owner
    monkeypatch.delitem(sys.modules, "mle_star.integrations.cluster", raising=False)
    for name in ABSENT.get(words, []):
        monkeypatch.setitem(sys.modules, name, None)
    before = _files(place)
    code = main(words.split())
    out, err = capfd.readouterr()
    complaints = [line for line in err.splitlines() if not re.match(r"(note|task|time|data): ", line)]
    assert (code, out, len(complaints)) == (1, "", 1), err
    assert complaints[0].startswith("mle-star: error: ") and message in complaints[0]
    assert "Traceback" not in err and len(complaints[0]) < 700
    assert _files(place) == before
