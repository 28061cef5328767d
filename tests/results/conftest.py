"""Finished runs that the tests of their use share: one on a single table, one on a competition's folder."""

from pathlib import Path

import pytest

from mle_star import Run, fit, run_pipeline_sync
from mle_star.results.source import make_task
from tests.conftest import write_split
from tests.pipeline.conftest import settings
from tests.pipeline.mind import LevelExecutor, Mind, MindAgents, fenced

KINDS = {"small": 10.0, "large": 50.0, "huge": 200.0}
SOLUTION = """
import csv, json
from pathlib import Path
level = 0.5000
with open("input/train.csv", newline="") as stream:
    train = list(csv.DictReader(stream))
with open("input/test.csv", newline="") as stream:
    test = list(csv.DictReader(stream))
keys, target, state = [name for name in train[0] if name == "id"], list(train[0])[-1], Path("model/means.json")
if state.exists():
    means = json.loads(state.read_text())
    print("loaded")
else:
    by_kind = {}
    for row in train:
        by_kind.setdefault(row.get("kind", ""), []).append(float(row[target]))
    means = {kind: sum(prices) / len(prices) for kind, prices in by_kind.items()}
    print("fitted")
    if state.parent.exists():
        state.write_text(json.dumps(means))
usual = sum(means.values()) / len(means)
Path("final").mkdir(exist_ok=True)
with open("final/submission.csv", "w", newline="") as stream:
    answers = ([*(row[key] for key in keys), means.get(row.get("kind"), usual)] for row in test[:: -1 if keys else 1])
    csv.writer(stream).writerows([[*keys, target], *answers])
print(f"Final Validation Performance: {level}")
"""


def houses() -> str:
    """A table of prices that depend on the kind of house and little else."""
    rows = [(i % 7, list(KINDS)[i % 3], KINDS[list(KINDS)[i % 3]] + i % 5 / 2) for i in range(90)]
    return "rooms,kind,price\n" + "".join(f"{rooms},{kind},{price}\n" for rooms, kind, price in rows)


def house_mind(solution: str = SOLUTION) -> Mind:
    """A mind that knows one script for them."""
    return Mind(overrides={name: lambda prompt: fenced(solution) for name in ("init", "debugger")})


def fit_houses(table: Path, work_dir: Path, solution: str = SOLUTION, **more: int) -> Run:
    """A run on a table of houses, in milliseconds but for its scripts."""
    letters = settings(M=1, T=1, K=1, L=1, scoring="auto", **more).model_dump(exclude_unset=True)
    return fit(
        table, "price", metric="mae", settings={**letters, "work_dir": str(work_dir)}, quiet=True,
        agents=MindAgents(house_mind(solution)),
    )  # fmt: skip


@pytest.fixture(scope="session")
def house_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`fit` on one CSV, with scripts that really run; rows are held back by the harness."""
    folder = tmp_path_factory.mktemp("houses")
    (folder / "houses.csv").write_text(houses(), encoding="utf-8")
    return fit_houses(folder / "houses.csv", folder)


@pytest.fixture(scope="session")
def label_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A competition's folder with test file and sample, searched in milliseconds; its scripts are real programs."""
    folder = tmp_path_factory.mktemp("labels")
    data = write_split(folder / "data", "id,size,label", [(i, i * 7 % 50, i % 2) for i in range(70)], 60)
    task = make_task(data, None, name="labels", target="label", metric="accuracy").task
    run_dir = folder / "runs" / "labels-1"
    config = settings(M=2, T=1, K=2, L=2, R=1, scoring="self_reported", diversity=())
    run_pipeline_sync(task, config, run_dir=run_dir, agents=MindAgents(), executor=LevelExecutor(), console=False)
    return Run(run_dir)
