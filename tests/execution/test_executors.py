"""Which executor a run gets, by name, by address or from a plugin."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from mle_star import run_pipeline
from mle_star.errors import ConfigError
from mle_star.execution import LocalExecutor
from mle_star.execution.executors import find_opener, opened_executor
from mle_star.models import MetricDirection, PipelineConfig, TaskDescription, TaskType


async def test_scripts_run_here_unless_the_settings_say_otherwise() -> None:
    async with opened_executor(PipelineConfig()) as executor:
        assert isinstance(executor, LocalExecutor)
    mine = LocalExecutor()
    async with opened_executor(PipelineConfig(executor="ray"), mine) as executor:
        assert executor is mine


@pytest.mark.parametrize("name", ["slurm", "slurm://here:1", "", "local:1"])
async def test_an_executor_that_is_not_there_is_refused_before_anything_is_made(name: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text("a,b\n1,2\n")
    task = TaskDescription(
        competition_id="t", task_type=TaskType.classification, data_modality="tabular", evaluation_metric="accuracy",
        metric_direction=MetricDirection.maximize, description="d", data_dir=str(tmp_path / "data"),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="executor="):
        await run_pipeline(task, PipelineConfig(executor=name, model="offline"), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


async def test_a_plugin_brings_an_executor_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere.py").write_text(
        textwrap.dedent("""
        from contextlib import asynccontextmanager
        @asynccontextmanager
        async def opened(config, address):
            yield address or "bare"
        """)
    )
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mle_star.executors]\nelsewhere = elsewhere:opened\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for setting, seen in (("elsewhere", "bare"), ("elsewhere://there:9", "elsewhere://there:9")):
        async with opened_executor(PipelineConfig(executor=setting)) as executor:
            assert str(executor) == seen
    with pytest.raises(ConfigError, match="there are local, ray, ray://HOST:PORT, elsewhere"):
        find_opener(PipelineConfig(executor="nowhere"))
