"""What lies in the folder a user happens to stand in never becomes code of ours."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from mle_star.cli.app import main
from mle_star.execution import LocalExecutor, detect_gpu, inspect_interpreter
from mle_star.execution.programs import find_program
from tests.pipeline.conftest import QuickRun

NAMES = ("json", "site", "sitecustomize", "usercustomize", "importlib", "encodings")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder, the current one, full of modules and programs under names that the probes ask for."""
    folder = tmp_path / "planted"
    folder.mkdir()
    (folder / "train.csv").write_text("id,x,target\n" + "".join(f"{n},{n % 7},{n % 2}\n" for n in range(60)))
    (folder / "test.csv").write_text("id,x\n" + "".join(f"{n},{n % 7}\n" for n in range(60, 90)))
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + chr(10))\n")
    for program in ("nvidia-smi", "bwrap", "python3", "gcc", "cc", "ld"):
        (folder / program).write_text(f"#!/bin/sh\necho {program} >> {tmp_path / 'ran'}\n")
        (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join(["", ".", os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-planted")
    monkeypatch.chdir(folder)
    return folder


def test_no_command_runs_what_is_planted_in_the_current_folder(
    planted: Path, tmp_path: Path, quick: QuickRun, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", "--model", "offline"])
    assert main(["init", "."]) == 0
    LocalExecutor().probe()
    asyncio.run(quick())
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert "script Python" in capsys.readouterr().out


def test_a_program_is_looked_for_in_absolute_places_only(planted: Path) -> None:
    assert find_program("nvidia-smi") != str(planted / "nvidia-smi")
    assert find_program("./nvidia-smi") == str(planted / "nvidia-smi")
    assert detect_gpu()["gpu_names"] != ["nvidia-smi"]


def test_libraries_are_looked_for_by_no_program_of_the_current_folder(planted: Path, tmp_path: Path) -> None:
    """Where the loader has no list of them, Python asks a compiler."""
    code = "try:\n    import mle_star.execution.seccomp as s\n    print(len(s.filter_program(False)))\n"
    code += "except OSError as error:\n    print(error)"
    hide = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount --bind /dev/null /etc/ld.so.cache && exec "$@"']
    words = [*hide, "sh", sys.executable, "-I", "-c", code]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    assert said.stdout.strip().isdigit() or "apt install libseccomp2" in said.stdout
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_the_probes_see_no_credential_and_an_empty_folder_but_the_users_own_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    python = sys._base_executable  # type: ignore[attr-defined]  # of a virtual environment these packages are no part
    own = Path(sysconfig.get_path("purelib", "posix_user", {"userbase": str(tmp_path / ".local")}))
    (own / "mine-1.5.dist-info").mkdir(parents=True)
    (own / "mine-1.5.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.5\n\n")
    curious = tmp_path / "python"
    curious.write_text(
        f"#!/bin/sh\nenv > {tmp_path}/env\npwd > {tmp_path}/pwd\nls -A > {tmp_path}/ls\necho $1 > {tmp_path}/first\n"
        f'HOME={tmp_path} exec {python} "$@"\n'
    )
    curious.chmod(0o755)
    seen = inspect_interpreter(str(curious))
    assert "sk-ant-secret" not in (tmp_path / "env").read_text()
    assert (tmp_path / "ls").read_text() == ""
    assert (tmp_path / "pwd").read_text().strip() != str(Path.cwd())
    assert (tmp_path / "first").read_text() == "-I\n"
    assert (seen.packages["mine"], seen.user_base) == ("1.5", str(tmp_path / ".local")) and str(own) in seen.roots
