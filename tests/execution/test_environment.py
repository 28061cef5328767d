"""What a script's environment holds, who gets which GPU, and which executor a run gets."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from mle_star import execution as ex
from mle_star import run_pipeline
from mle_star.errors import ConfigError
from mle_star.execution.environment import cache_places, threads_per_script, usable_cores, weights_at_hand
from mle_star.execution.executors import find_opener, gpus_for_slot, opened_executor, script_slots, visible_gpus
from mle_star.models import PipelineConfig, TaskDescription
from tests.conftest import Patch, write_texts
from tests.execution.conftest import write_files

NOTHING = {"cuda_available": False, "gpu_count": 0, "gpu_names": []}


@pytest.mark.req("REQ-EX-003")
@pytest.mark.parametrize(
    ("body", "found"),
    [
        (None, NOTHING),
        ("exit 9", NOTHING),
        ("kill -9 $$", NOTHING),
        (":", NOTHING),
        (f"exec {shutil.which('sleep')} 600", NOTHING),
        ("echo 'NVIDIA H200'", {"cuda_available": True, "gpu_count": 1, "gpu_names": ["NVIDIA H200"]}),
        (
            "echo 'NVIDIA H200, 143771 MiB'\necho 'NVIDIA T4, 15360 MiB'",
            {
                "cuda_available": True, "gpu_count": 2, "gpu_names": ["NVIDIA H200", "NVIDIA T4"],
                "gpu_memory": ["143771 MiB", "15360 MiB"],
            },
        ),
    ],
)  # fmt: skip
def test_the_driver_s_names_are_counted_and_without_one_or_with_one_in_trouble_there_is_no_gpu(
    body: str | None, found: dict[str, object], monkeypatch: Patch, tmp_path: Path
) -> None:
    if body is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for _ in range(4):  # a busy machine is late now and then
        started = time.monotonic()
        assert ex.detect_gpu_info() == found and ex.detect_gpu is ex.detect_gpu_info
        if (waited := time.monotonic() - started) < 7:
            break
    assert waited < 7 and ("sleep" not in str(body) or waited >= 5), "one that hangs is not waited for"


@pytest.mark.req("REQ-EX-004")
def test_the_environment_is_a_copy_with_three_settings(monkeypatch: Patch) -> None:
    given = {"MINE": "kept", "PYTHONHASHSEED": "7", "PYTHONUNBUFFERED": "", "CUDA_VISIBLE_DEVICES": "3"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    env = ex.build_execution_env(gpu_indices=[0, 1])
    assert (env["PYTHONUNBUFFERED"], env["PYTHONHASHSEED"], env["CUDA_VISIBLE_DEVICES"]) == ("1", "0", "0,1")
    assert env["MINE"] == "kept"
    assert ex.build_execution_env()["CUDA_VISIBLE_DEVICES"] == "3"
    assert ex.build_execution_env([])["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert "CUDA_VISIBLE_DEVICES" not in ex.build_execution_env()
    before.pop("CUDA_VISIBLE_DEVICES")
    assert dict(os.environ) == before
    secrets = ["ANTHROPIC_URL", "CLAUDE_CODE_X", "AWS_REGION", "HF_TOKEN", "DB_PASSWORD", "my_secret", "SSH_KEYFILE"]
    assert ex.scrub_credentials(dict.fromkeys(secrets, "x")) == {}
    assert ex.scrub_credentials({"PATH": "p"}) == {"PATH": "p"}


@pytest.mark.parametrize("allowed", [True, False])
def test_only_names_of_the_allow_list_reach_a_script(allowed: bool, monkeypatch: Patch) -> None:
    network = {"HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HF_ENDPOINT"}
    others = {"SSH_AUTH_SOCK", "DOCKER_HOST", "PYTHONPATH", "PYTHONSTARTUP", "HOME"}
    # the names of its makers are on the list
    credentials = {"NVIDIA_API_KEY", "CUDA_ACCESS_TOKEN", "HF_TOKEN", "HF_HUB_TOKEN"}
    for name in (*network, *others, *credentials, "HF_HOME", "LC_NUMERIC"):
        monkeypatch.setenv(name, "x")
    env = ex.script_environment(PipelineConfig(seed=7, num_parallel_solutions=2, allow_network=allowed), ["1"])
    assert not (others | credentials) & set(env)
    assert set(env) & network == (network if allowed else set())
    assert (env["LC_NUMERIC"], env["MLE_STAR_SEED"], env["PYTHONHASHSEED"]) == ("x", "7", "0")
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert env["HF_HOME"] == "x", "weights that are there may be used without a network, too"
    assert threads_per_script(PipelineConfig(max_concurrent_scripts=1)) == usable_cores()
    env = ex.script_environment(PipelineConfig(max_concurrent_scripts=10_000))
    assert env["OMP_NUM_THREADS"] == env["OPENBLAS_NUM_THREADS"] == env["LOKY_MAX_CPU_COUNT"] == "1"


@pytest.mark.parametrize(
    ("gpus", "settings", "slots", "seen"),
    [
        ("0123", {"num_parallel_solutions": 2}, 2, [["0", "2"], ["1", "3"]]),
        ("0", {"num_parallel_solutions": 2}, 1, [None]),
        ("", {"num_parallel_solutions": 2}, 2, [None, None]),
        ("01", {"max_concurrent_scripts": 4, "script_gpus": 1.0}, 2, [["0"], ["1"]]),
        ("01", {"max_concurrent_scripts": 4, "script_gpus": 0.5}, 4, [["0"], ["0"], ["1"], ["1"]]),
        ("01", {"max_concurrent_scripts": 4, "script_gpus": 2.0}, 1, [["0", "1"]]),
        ("01", {"max_concurrent_scripts": 4, "script_gpus": 0.0}, 4, [[], [], [], []]),
    ],
)
def test_gpus_are_divided_as_set(gpus: str, settings: dict[str, Any], slots: int, seen: list[list[str] | None]) -> None:
    config = PipelineConfig(**settings)
    assert script_slots(list(gpus), config) == slots
    assert [gpus_for_slot(list(gpus), slot, config) for slot in range(slots)] == seen


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (None, ["0", "1", "2", "3"]),
        ("2,3", ["2", "3"]),
        ("", []),
        ("1,7,2", ["1"]),
        ("-1", []),
        ("GPU-8932f937, MIG-GPU-8932f937/1/2", ["GPU-8932f937", "MIG-GPU-8932f937/1/2"]),
    ],
)
def test_gpus_are_called_as_we_were_told(given: str | None, seen: list[str], monkeypatch: Patch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible_gpus(4) == seen
    assert visible_gpus(0) == []
    assert ex.script_environment(PipelineConfig(), seen)["CUDA_VISIBLE_DEVICES"] == ",".join(seen)


def test_weights_are_found_as_scripts_ask_for_them_at_once(monkeypatch: Patch, tmp_path: Path) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "TORCH_HOME"):
        monkeypatch.delenv(name, raising=False)
    hub, torch = tmp_path / "hub", tmp_path / "torch"
    write_files(hub, "models--org--name/snapshots/abc/model.safetensors")
    (hub / "models--org--empty" / "snapshots").mkdir(parents=True)
    write_files(torch / "hub" / "checkpoints", "resnet18.pth", "readme.txt")
    config = PipelineConfig(model_caches=(str(hub), str(torch)))
    assert weights_at_hand(config) == [str(torch / "hub" / "checkpoints" / "resnet18.pth"), "org/name"]
    env = ex.script_environment(config)
    assert (env["HF_HUB_CACHE"], env["TORCH_HOME"], env["HF_HUB_OFFLINE"]) == (str(hub), str(torch), "1")
    assert cache_places(config, {"HF_HOME": "/set"})["HF_HOME"] == "/set"
    assert "HF_HUB_CACHE" not in cache_places(config, {"HF_HOME": "/set"})
    online = ex.script_environment(PipelineConfig(allow_network=True))
    assert "HF_HUB_OFFLINE" not in online and "HF_HUB_CACHE" not in online
    assert weights_at_hand(PipelineConfig(), {}) == []


@pytest.mark.parametrize("name", ["slurm", "slurm://here:1", "", "local:1"])
async def test_an_absent_executor_is_refused_before_anything(name: str, task: TaskDescription, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="executor="):
        await run_pipeline(task, PipelineConfig(executor=name, model="offline"), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


async def test_scripts_run_here_unless_settings_say_otherwise(tmp_path: Path, monkeypatch: Patch) -> None:
    async with opened_executor(PipelineConfig()) as executor:
        assert isinstance(executor, ex.LocalExecutor)
    async with opened_executor(PipelineConfig(executor="ray"), executor) as given:
        assert given is executor
    opens = "import contextlib\ndef opened(config, address):\n    return contextlib.nullcontext(address or 'bare')"
    metadata = "Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n"
    entry = {"METADATA": metadata, "entry_points.txt": "[mle_star.executors]\nelsewhere = elsewhere:opened\n"}
    write_texts(tmp_path, {"elsewhere.py": opens, **{f"elsewhere-1.0.dist-info/{name}": entry[name] for name in entry}})
    monkeypatch.syspath_prepend(str(tmp_path))
    for setting, seen in (("elsewhere", "bare"), ("elsewhere://there:9", "elsewhere://there:9")):
        async with opened_executor(PipelineConfig(executor=setting)) as executor:
            assert str(executor) == seen
    with pytest.raises(ConfigError, match="there are local, ray, ray://HOST:PORT, elsewhere"):
        find_opener(PipelineConfig(executor="nowhere"))
