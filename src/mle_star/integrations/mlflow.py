"""A run in MLflow: a parent run with settings, expected score and cost, and a nested one for each script.

It is written from the journal, by a thread of its own: a server that is slow or away never holds up the run, and what
it missed is sent when it is back, by this process or, with `mle-star mlflow`, by a later one.
"""

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mle_star.errors import ConfigError
from mle_star.run import events as ev
from mle_star.run.folder import RunFolder, write_whole

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "mle-star"
STATE_FILE = "mlflow.json"
POLL_SECONDS = 0.5
PATIENCE = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between attempts while the server is away; the last one again and again."""
END_SECONDS = 20.0
"""How long a run that has ended waits for what is still to be sent."""
_STATES = {"completed": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_PARAM_LENGTH, _TAG_LENGTH = 500, 5000


@dataclass
class _Sent:
    """How far the journal was sent, kept in the run's folder: nothing is sent twice."""

    run_id: str = ""
    offset: int = 0
    scripts: dict[str, str] = field(default_factory=dict)
    best: int = 0


class MlflowMirror:
    """`with MlflowMirror(run_dir, uri) as mirror:` around a run, or `catch_up()` after it."""

    def __init__(
        self, run_dir: Path, uri: str, *, patience: tuple[float, ...] = PATIENCE, end_seconds: float = END_SECONDS
    ) -> None:
        self._folder, self._uri, self._patience, self._end_seconds = RunFolder(run_dir), uri, patience, end_seconds
        self._client = _client(uri)
        self._sent = _Sent(**self._kept().get(_key(uri), {}))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="mlflow", daemon=True)
        self.problem = ""

    def __enter__(self) -> "MlflowMirror":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(self._end_seconds)

    @property
    def behind(self) -> bool:
        """Is there something in the journal that the server does not know yet?"""
        return self._sent.offset < self._size()

    def catch_up(self, *, also_the_end: bool = True) -> int:
        """Send all that is missing now; how many events that were. An error of the server is raised."""
        sent = 0
        for end, event in self._events():
            if isinstance(event, ev.RunFinished) and not also_the_end and end == self._size():
                break  # its report is still to be written
            self._send(event, f"{end}")
            self._sent.offset = end
            kept = {**self._kept(), _key(self._uri): asdict(self._sent)}
            write_whole(self._folder.root / STATE_FILE, json.dumps(kept))
            sent += 1
        return sent

    # --- the thread ---

    def _follow(self) -> None:
        waits = iter(self._patience)
        while True:
            over = self._over.is_set()
            try:
                self.catch_up(also_the_end=over)
                waits, self.problem = iter(self._patience), ""
                if over:
                    return
                self._over.wait(POLL_SECONDS)
            except Exception as error:  # whatever is wrong with a server, the run continues
                self.problem = f"{type(error).__name__}: {one_line(error)[:200]}"
                time.sleep(next(waits, self._patience[-1]))

    # --- what is sent ---

    def _events(self) -> Iterator[tuple[int, ev.AnyEvent]]:
        """The whole lines of the journal that were not sent yet, each with where it ends."""
        end = self._sent.offset
        with suppress(FileNotFoundError), self._folder.journal.open("rb") as file:
            file.seek(end)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written
                end += len(line)
                with suppress(ValidationError):
                    yield end, ev.EVENT_ADAPTER.validate_json(line)

    def _send(self, event: ev.AnyEvent, key: str) -> None:
        if isinstance(event, ev.RunStarted):
            self._begin(event)
        elif not self._sent.run_id:
            return
        elif isinstance(event, ev.ScriptFinished) and not event.result.cached:
            self._script(event, key)
        elif isinstance(event, ev.BestImproved):
            self._sent.best += 1
            self._client.log_metric(self._sent.run_id, "best_score", event.score, step=self._sent.best)
        elif isinstance(event, (ev.RefinementTried, ev.EnsembleTried)):
            for step in [step for step in self._sent.scripts if step.startswith(event.step)]:
                self._client.set_tag(self._sent.scripts[step], "plan", event.plan[:_TAG_LENGTH])
        elif isinstance(event, ev.RunFinished):
            self._end(event)

    def _begin(self, event: ev.RunStarted) -> None:
        """The parent run; a later process of the same run continues it."""
        if self._sent.run_id:
            return
        found = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
        note = {"mlflow.note.content": event.task.description[:_TAG_LENGTH]}
        run_id = self._run(experiment, event.run_id, event.run_id, note)
        settings = event.config.model_dump(mode="json")
        task = {f"task.{name}": value for name, value in event.task.model_dump(mode="json").items()}
        for name, value in {**settings, **task}.items():
            if name != "task.description":
                self._client.log_param(run_id, name, str(value)[:_PARAM_LENGTH])
        self._sent.run_id = run_id

    def _script(self, event: ev.ScriptFinished, key: str) -> None:
        experiment = self._client.get_run(self._sent.run_id).info.experiment_id
        tags = {"mlflow.parentRunId": self._sent.run_id, "purpose": event.purpose}
        run_id = self._run(experiment, f"{self._sent.run_id}:{key}", event.step, tags)
        result, measure = event.result, event.result.measure
        self._log(run_id, score=result.score, seconds=result.duration_seconds)
        if measure is not None:
            self._log(run_id, score_low=measure.low, score_high=measure.high)
        self._client.log_text(run_id, event.script, "solution.py")
        if result.error_traceback:
            self._client.log_text(run_id, result.error_traceback, "error.txt")
        self._client.set_terminated(run_id, "FAILED" if result.is_error else "FINISHED")
        self._sent.scripts[event.step] = run_id

    def _end(self, event: ev.RunFinished) -> None:
        run_id, expected = self._sent.run_id, event.result.expected if event.result else None
        self._log(run_id, final_score=event.score, cost_usd=event.cost_usd, seconds=event.seconds)
        if expected is not None:
            self._log(run_id, expected=expected.score, expected_low=expected.low, expected_high=expected.high)
        for path in (self._folder.report, self._folder.solution, self._folder.submission):
            if path.is_file():
                self._client.log_artifact(run_id, str(path))
        self._client.set_terminated(run_id, _STATES[event.state])

    def _log(self, run_id: str, **metrics: float | None) -> None:
        for name, value in metrics.items():
            if value is not None:
                self._client.log_metric(run_id, name, value)

    def _run(self, experiment: str, key: str, name: str, tags: dict[str, str]) -> str:
        """A new run, or the one that an earlier attempt made before it could say so."""
        found = self._client.search_runs([experiment], f"tags.`mle_star.key` = '{key}'", max_results=1)
        tags = {"mle_star.key": key, **tags}
        return str((found[0] if found else self._client.create_run(experiment, run_name=name, tags=tags)).info.run_id)

    # --- state ---

    def _size(self) -> int:
        with suppress(OSError):
            return self._folder.journal.stat().st_size
        return 0

    def _kept(self) -> dict[str, Any]:
        """What was sent to which server."""
        with suppress(OSError, ValueError):
            return dict(json.loads((self._folder.root / STATE_FILE).read_text(encoding="utf-8")))
        return {}


def without_password(text: str) -> str:
    """A server's address, or what is said of it, without the name and password that it may hold."""
    return re.sub(r"(?<=://)[^\s/?#]*@", "", text)


def one_line(error: Exception) -> str:
    """The words of an error in one line, fit to be shown."""
    return without_password(" ".join(str(error).split()))


def _key(uri: str) -> str:
    """What stands for a server in the run's folder, which people pass on."""
    return hashlib.sha256(uri.encode()).hexdigest()


def _client(uri: str) -> "MlflowClient":
    # Our thread is patient; without the first two one lost connection would keep it for minutes. The last one keeps
    # the client from printing the server's address, with the password that it may hold.
    for name, value in (("HTTP_REQUEST_MAX_RETRIES", "1"), ("HTTP_REQUEST_TIMEOUT", "30")):
        os.environ.setdefault(f"MLFLOW_{name}", value)
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise ConfigError("MLflow is not installed: pip install 'mle-star[mlflow]'") from None
    try:
        return MlflowClient(tracking_uri=uri)
    except Exception as error:  # of many kinds: an unknown scheme, a folder, a database that is none
        words = f"MLflow cannot use it as a server or database: {one_line(error)[:200]}"
        raise ConfigError(f"{without_password(uri)}: {words}") from None
