"""What the final script has fitted stays with the run: the first prediction already fits nothing."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pandas
import pytest

from mle_star.api import Run
from mle_star.execution.artifacts import save_fitted
from mle_star.models import ExecutionRawResult, PipelineConfig
from mle_star.orchestrator import run_pipeline_sync
from mle_star.run.context import ScriptRequest
from mle_star.run.folder import RunFolder
from tests.pipeline.conftest import settings
from tests.pipeline.mind import LevelExecutor, Mind, MindAgents, fenced
from tests.results.conftest import SOLUTION

NEW = pandas.DataFrame({"size": [1, 2, 3]})


@dataclass
class Watching(LevelExecutor):
    """Says which scripts found a folder `./model/`, and leaves something there."""

    found: list[bool] = field(default_factory=list)

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """Look, then run."""
        place = Path(request.working_dir, "model")
        self.found.append(place.is_dir())
        if self.found[-1]:
            (place / "fitted").write_text("1", encoding="utf-8")
        return await super().run(request)


@pytest.mark.parametrize("kept", [True, False])
def test_only_the_final_run_has_a_folder_to_fit_in_and_it_is_kept(kept: bool, label_run: Run, tmp_path: Path) -> None:
    mind, ran = MindAgents(), Watching()
    parts = [name for name in PipelineConfig().briefing if kept or name != "model"]
    config = settings(M=1, T=1, K=1, L=1, briefing=parts)
    run_pipeline_sync(label_run.result.task, config, run_dir=tmp_path / "run", agents=mind, executor=ran, console=False)
    assert len(ran.found) > 2 and ran.found == [False] * (len(ran.found) - 1) + [kept]
    assert RunFolder(tmp_path / "run").model.is_dir() == kept


def test_a_prediction_fits_only_what_it_must(label_run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = shutil.copytree(label_run.result.task.data_dir, tmp_path / "data")
    task = label_run.result.task.model_copy(update={"data_dir": str(data)})
    code = {name: lambda prompt: fenced(SOLUTION) for name in ("init", "test")}
    mind = Mind(overrides={**code, "test-subsampling_extract": lambda prompt: "There is none."})
    run_dir = tmp_path / "run"
    run_pipeline_sync(task, settings(M=1, T=1, K=1, L=1), run_dir=run_dir, agents=MindAgents(mind), console=False)
    run = Run(run_dir)
    kept = RunFolder(run_dir).model / "means.json"

    def predicts(mean: float) -> str:
        assert list(run.predict(NEW)["label"]) == pytest.approx([mean] * 3)
        return (run_dir / "logs" / "predict.log").read_text(encoding="utf-8")

    assert "loaded" in predicts(0.5), "the first time, after the final run"
    kept.write_text("no JSON", encoding="utf-8")
    assert "fitted" in predicts(0.5) and "it is run again without" in caplog.text
    assert "loaded" in predicts(0.5)
    rows = data / "train.csv"
    rows.write_text(rows.read_text(encoding="utf-8") + "".join(f"{i},1,1\n" for i in range(900, 960)), encoding="utf-8")
    assert "fitted" in predicts(0.75)
    result = json.loads(RunFolder(run_dir).result.read_text(encoding="utf-8"))
    result["final_solution"]["content"] = SOLUTION.replace("/ len(prices)", "/ len(prices) * 2")
    RunFolder(run_dir).result.write_text(json.dumps(result), encoding="utf-8")
    assert "fitted" in predicts(1.5)


def test_too_much_is_not_kept_and_said_so_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_dir, folder = tmp_path / "run", RunFolder(tmp_path / "run")
    run_dir.mkdir()
    for name in ("one", "two", "huge"):
        (tmp_path / name).mkdir()
        with (tmp_path / name / f"{name}.pickle").open("wb") as stream:
            stream.truncate(3 << 30 if name == "huge" else 5)  # a hole: it takes no room
    (tmp_path / "link").symlink_to(tmp_path / "huge")
    assert not save_fitted(run_dir, tmp_path / "nothing", "digest")
    for name, digest in (("one", ""), ("link", ""), ("two", "digest")):
        assert not folder.model_note.exists()
        assert save_fitted(run_dir, tmp_path / name, digest, beside=name != "one")
    assert {path.name for path in folder.model.iterdir()} == {"one.pickle", "two.pickle"} and folder.model_note.exists()
    with caplog.at_level(logging.WARNING):
        assert not save_fitted(run_dir, tmp_path / "huge", "digest", beside=True)
    assert caplog.messages == ["what the solution has fitted is not kept (3.2 GB are too much): `predict` fits anew"]
    assert not folder.model.exists() and not folder.model_note.exists()
    for name in ("one", "two"):
        assert save_fitted(run_dir, tmp_path / name, "digest")
    assert [path.name for path in folder.model.iterdir()] == ["two.pickle"], "another solution's is gone"
