"""What every test stands on: no credential, no road out of the machine, and a small task to work with."""

import inspect
import ipaddress
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from mle_star.models import DataModality, EvaluationResult, MetricDirection, PipelineConfig, TaskDescription, TaskType
from mle_star.models.settings import SIZES
from mle_star.models.texts import digest_of
from mle_star.run.context import RunContext
from mle_star.run.events import LeakageChecked, ScriptFinished
from tests.execution.machines import cluster as cluster

Captured = pytest.CaptureFixture[str]
Logs = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch
SECRET = re.compile(
    r"(ANTHROPIC|CLAUDE|AWS|AZURE|GOOGLE|OPENAI|KAGGLE|HF|WANDB|MLE_STAR)_"
    r"|.*_(API_KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS|PROXY)$"
)
OTHERS = ("IS_SANDBOX", "NO_COLOR", "FORCE_COLOR", "PYTHONDONTWRITEBYTECODE")
"""Not secret, but they change what the program does, or how long its hundreds of processes take to start."""
KEPT = ("MLE_STAR_SOAK",)  # asks for the long versions of some tests
SELF_REPORTED = {"MLE_STAR_SCORING": "self_reported"}
MODES = {"delivered": {}, "self_reported": SELF_REPORTED, "letter": {"MLE_STAR_PRESET": "letter"}}
"""What the settings of a test are: as people get them, with scripts that score themselves, or by the specification."""


def _strip_environment() -> None:
    """Take out whatever could let a test act as the person who runs it; children inherit what is left."""
    for name in set(os.environ) - set(KEPT):
        if SECRET.match(name.upper()) or name.upper() in OTHERS:
            del os.environ[name]


def _is_loopback(host: object) -> bool:
    if host is None or host in ("", "localhost", b"localhost"):
        return True
    text = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
    try:
        return ipaddress.ip_address(text.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _refuse_the_outside(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook, because it sees every connection of this process, whichever library makes it."""
    if event in ("socket.connect", "socket.sendto"):
        address = args[1]
        refused = isinstance(address, tuple) and not _is_loopback(address[0])  # AF_UNIX addresses are no tuples
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        refused, address = not _is_loopback(args[0]), args[0]
    else:
        return
    if refused:
        raise PermissionError(f"tests may reach this machine only, not {address!r}")


def _hear_ctrl_c() -> None:
    """Take back that a shell told its background jobs to ignore SIGINT: children would inherit the deafness."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_strip_environment()
os.environ["OMP_NUM_THREADS"] = "1"  # threads of models only wait for each other beside other tests
sys.dont_write_bytecode = False  # else every worker rewrites the asserts of every test anew
_hear_ctrl_c()
sys.addaudithook(_refuse_the_outside)


def pytest_configure() -> None:
    """Examples of hypothesis are the same on every machine, and how quick it is says nothing; the soak has others."""
    from hypothesis import HealthCheck, settings  # not at the start: benchmarks import this module, too

    soak = bool(os.environ.get("MLE_STAR_SOAK"))
    rules: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "derandomize": not soak}
    settings.register_profile("any machine", **rules, max_examples=100 if soak else 40)
    settings.load_profile("any machine")


class ConfigFactory(Protocol):
    """Small settings for tests; the paper's letters M, T, K, L, R are accepted, too."""

    def __call__(self, **settings: Any) -> PipelineConfig: ...


LETTERS = dict(zip("MTKLR", SIZES, strict=True))


@pytest.fixture
def config(tmp_path: Path) -> ConfigFactory:
    """A factory of configurations that do everything once, in `tmp_path`."""

    def make(**settings: Any) -> PipelineConfig:
        small: dict[str, Any] = {**dict.fromkeys(LETTERS.values(), 1), **mode_settings()}
        small.update(max_debug_attempts=1, time_limit_seconds=600, model="offline", work_dir=str(tmp_path))
        small.update({LETTERS.get(name, name): value for name, value in settings.items()})
        return PipelineConfig(**small)

    return make


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests marked `modes("delivered", "letter")` run in both; the mark nearest to a test counts."""
    marker = metafunc.definition.get_closest_marker("modes")
    if marker is not None and len(marker.args) > 1:
        metafunc.parametrize("mode", marker.args, indirect=True)


@pytest.fixture(autouse=True)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of `MODES`, as people get the program unless the test is marked.

    It stands in the environment, where `run_pipeline` and all commands look; what makes settings by itself asks
    `mode_settings`.
    """
    marker = request.node.get_closest_marker("modes")
    name: str = getattr(request, "param", marker.args[0] if marker else "delivered")
    for variable, value in MODES[name].items():
        monkeypatch.setenv(variable, value)
    return name


def mode_settings() -> dict[str, Any]:
    """What the mode of the running test says, for whoever makes settings without the environment."""
    return {name: value for name in ("preset", "scoring") if (value := os.environ.get(f"MLE_STAR_{name.upper()}"))}


def as_kept(name: str, text: str, why: str = "") -> None:
    """Is a text the one that is kept in `snapshots`? `make snapshots` writes them anew."""
    snapshot = Path(__file__).parent / "snapshots" / name
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        snapshot.parent.mkdir(parents=True, exist_ok=True)
        snapshot.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == snapshot.read_text(encoding="utf-8"), why


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A folder with a small binary classification task: train, test and sample submission."""
    return write_small_data(tmp_path / "data")


def write_texts(folder: Path, texts: Mapping[str, str]) -> Path:
    """Files by their names, and the folders that they lie in."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def write_split(folder: Path, header: str, rows: Sequence[tuple[object, ...]], known: int) -> Path:
    """The files of a task whose last column is the label; the first `known` rows are written with theirs."""
    *columns, label = header.split(",")
    tables: dict[str, list[Sequence[object]]] = {
        "train.csv": [(*columns, label), *rows[:known]],
        "test.csv": [columns, *(row[:-1] for row in rows[known:])],
        "sample_submission.csv": [(columns[0], label), *((row[0], 0) for row in rows[known:])],
    }
    texts = {name: "".join(",".join(map(str, line)) + "\n" for line in lines) for name, lines in tables.items()}
    return write_texts(folder, texts)


def write_small_data(folder: Path) -> Path:
    """The files of `small_task`."""
    rows = [(i, (i * 7) % 50, "ab"[i % 2], int((i * 7) % 50 > 25)) for i in range(120)]
    return write_split(folder, "id,size,kind,label", rows, 100)


def small_task(data_dir: Path) -> TaskDescription:
    """A task of two classes in a table."""
    return TaskDescription(
        competition_id="sizes",
        task_type=TaskType.classification,
        data_modality=DataModality.tabular,
        evaluation_metric="accuracy",
        metric_direction=MetricDirection.maximize,
        description="Predict `label` (0 or 1) of the rows of test.csv. Submit `id` and `label`.",
        data_dir=str(data_dir),
    )


@pytest.fixture
def task(data_dir: Path) -> TaskDescription:
    """The task that `data_dir` holds."""
    return small_task(data_dir)


_NUMBERS = itertools.count()
_EVENT = ("at", "step", "digest", "surroundings", "purpose", "script")


def script_finished(seconds: float = 1.0, traceback: str | None = None, **fields: Any) -> ScriptFinished:
    """The end of a script; whatever is no field of the event is one of its result."""
    own = {name: fields.pop(name) for name in _EVENT if name in fields}
    plain: dict[str, Any] = {"stdout": "", "stderr": "", "exit_code": 0, "is_error": False}
    result = EvaluationResult(**{**plain, **fields}, duration_seconds=seconds, error_traceback=traceback)
    return ScriptFinished(**own, result=result)


def best_score(run: RunContext) -> float | None:
    """The best score of a run so far."""
    best = run.ledger.best()
    return None if best is None else best.score


def kept(run: RunContext) -> tuple[float | None, str] | None:
    """Score and file of the submission that is kept."""
    found = run.ledger.kept
    return None if found is None else (found.score, found.source)


def ran(run: RunContext, score: float | None, seconds: float = 1.0, script: str = "", **more: Any) -> None:
    """Record that a script ran at this place."""
    number, around = next(_NUMBERS), run.shared.scripts.surroundings
    more |= {"step": "/".join((*run.parts, f"script-{number}")), "script": script or f"# {number}"}
    run.record(script_finished(seconds, digest=str(number), score=score, surroundings=around, **more))


def leaks(run: RunContext, script: object) -> bool:
    """Is a script, or its text, known to leak?"""
    return run.ledger.leaks(digest_of(str(getattr(script, "content", script))))


def check(run: RunContext, *scripts: str, leaking: bool = False) -> None:
    """Record what a leakage check said of scripts."""
    for script in scripts:
        digest = digest_of(script)
        found = {"found": 1, "leaking": [digest]} if leaking else {}
        run.record(LeakageChecked(step="/".join((*run.parts, f"check-{next(_NUMBERS)}")), digest=digest, **found))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests begin first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def signature_of(function: Callable[..., Any]) -> str:
    """How it is called, types by their names alone."""
    return re.sub(r"'|\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", str(inspect.signature(function)))
