"""What comes before the first phase: the model that brings its API along, secrets, folders."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mle_star.errors import ConfigError, CredentialError
from mle_star.models import AgentType, Isolation, PipelineConfig, TaskDescription, agent_config
from mle_star.run.events import HoldOutPrepared, Interpreter, Notice, RunStarted
from mle_star.run.folder import new_run_folder, place_copy, request_finish, take_request, write_whole
from mle_star.run.journal import Journal
from mle_star.sdk import AgentClient
from mle_star.sdk.definitions import build_system_prompt
from mle_star.search.setup import (
    check_credentials,
    connected,
    first_event,
    gather_facts,
    open_budget,
    prepare_holdout,
    read_references,
    secret_values,
    served_model,
)


async def test_the_embedded_model_brings_its_api_along_and_needs_no_credential() -> None:
    check_credentials(PipelineConfig(model="offline"), None)
    check_credentials(PipelineConfig(), "http://127.0.0.1:1")
    with pytest.raises(CredentialError):
        check_credentials(PipelineConfig(), None)
    serve = served_model("offline")
    assert serve is not None and served_model("sonnet") is None
    async with serve() as server:
        assert server.base_url.startswith("http://127.0.0.1:")
    environ = {"ANTHROPIC_API_KEY": "sk-0123456789", "DB_PASSWORD": "password", "PATH": "/usr/local/bin/and/more"}
    assert secret_values(environ) == ["sk-0123456789"], "words are not taken for credentials"


HERE: dict[str, Any] = {"cuda_available": False, "gpu_count": 0, "gpu_names": []}
THERE = {
    "cuda_available": True, "gpu_count": 1, "gpu_names": ["T4"], "gpu_memory": ["15360 MiB"], "cpu_cores": 96,
    "memory_gb": 700.4, "script_cores": 24, "script_memory_gb": 157.5,
}  # fmt: skip


async def test_agents_are_told_of_the_machine_and_replies_count_on_any(task: TaskDescription, tmp_path: Path) -> None:
    prompt = build_system_prompt(task, gather_facts(task, PipelineConfig(), THERE))
    for line in ("CPU cores: 96", "Memory: 700 GB", "GPU memory: 15360 MiB", "24 cores and 157.5 GB of memory"):
        assert line in prompt
    rich, bare = (gather_facts(task, PipelineConfig(**parts), THERE) for parts in ({}, {"briefing": ()}))
    assert "size" in rich.brief and rich.knowledge and rich.share is not None
    assert (bare.brief, bare.knowledge, bare.share) == ("", "", None), "each part can be switched off"
    prompts, asked = set[str](), set[str]()
    for found, memory, resume in ((THERE, 16, False), (HERE, 16, True), (HERE, 32, True)):
        config = PipelineConfig(script_memory_gb=memory)
        with Journal(tmp_path / "journal.jsonl") as journal:
            budget, _ = open_budget(journal, first_event(task, config, found, Isolation()), resume=resume)
            surroundings = found, "http://127.0.0.1:9", None, task.data_dir, False
            async with connected(task, config, journal, budget, *surroundings) as agents:
                assert isinstance(agents, AgentClient)
                prompts.add(agents.system_prompt)
                asked.add(agents.fingerprint(agent_config(AgentType.coder)))
    assert (len(prompts), len(asked)) == (3, 1)


def _begun(task: TaskDescription, config: PipelineConfig, version: str, **packages: str) -> RunStarted:
    first = first_event(task, config, HERE, Isolation())
    interpreter = Interpreter(version="3.11.2", packages=packages)
    return first.model_copy(update={"interpreter": interpreter, "versions": {"mle-star": version}})


async def test_a_resumed_run_keeps_its_packages_and_says_what_has_changed(
    task: TaskDescription, tmp_path: Path
) -> None:
    config, path = PipelineConfig(), tmp_path / "journal.jsonl"

    def opened(first: RunStarted, *, resume: bool) -> tuple[Interpreter | None, list[str]]:
        with Journal(path) as journal:
            open_budget(journal, first, resume=resume)
            return journal.interpreter, [event.message for event in journal.events if isinstance(event, Notice)]

    begun = _begun(task, config, "1.0", numpy="1.26", pandas="2.2", xgboost="2.1")
    assert opened(begun, resume=False) == (begun.interpreter, [])
    assert opened(begun, resume=True) == (begun.interpreter, [])

    kept, said = opened(_begun(task, config, "1.1", numpy="2.0", pandas="2.2", Torch="2.9"), resume=True)
    assert kept == begun.interpreter
    assert "begun by mle-star 1.0, this is 1.1: steps that it asks for in other words are done" in said[0]
    assert "(numpy 2.0 instead of 1.26, Torch 2.9 is new, xgboost is gone)" in said[1] and len(said) == 2

    elsewhere = _begun(task, config, "1.0", **{f"package{number}": "1" for number in range(7)})
    few = "(numpy is gone, package0 1 is new, package1 1 is new and 7 more): what is recorded counts"
    assert few in opened(elsewhere, resume=True)[1][2]

    other = elsewhere.model_copy(update={"config": config.model_copy(update={"python": "/usr/bin/other"})})
    for _ in range(2):
        kept, said = opened(other, resume=True)
        assert kept == other.interpreter and len(said) == 3, "another interpreter was asked for: nothing has changed"


def test_a_file_that_breaks_in_the_middle_ends_nothing(task: TaskDescription, tmp_path: Path) -> None:
    """Scores are then those that scripts print, and the reason is said."""
    folder = tmp_path / "lines"
    folder.mkdir()
    lines = [json.dumps({"id": i, "size": i * 7 % 50, "label": i % 2}) for i in range(400)]
    lines[350] = lines[350][:12]
    (folder / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "test.jsonl").write_text("".join(f'{{"id": {i}, "size": 3}}\n' for i in range(400, 440)))
    (folder / "sample_submission.csv").write_text("id,label\n" + "".join(f"{i},0\n" for i in range(400, 440)))
    odd = task.model_copy(update={"data_dir": str(folder)})
    with Journal(tmp_path / "journal.jsonl") as journal:
        assert prepare_holdout(odd, PipelineConfig(), tmp_path / "run", journal) is None
        (said,) = [event for event in journal.events if isinstance(event, HoldOutPrepared)]
    assert "train.jsonl" in said.why_not and "cannot be read" in said.why_not


def test_a_run_has_its_own_folder_whose_files_are_written_whole_and_requests_heard_once(tmp_path: Path) -> None:
    now = datetime(2026, 1, 31, 14, 5, 9)
    first = new_run_folder(tmp_path, "../Titanic: the ship", now)
    assert first == tmp_path / "Titanic--the-ship-20260131-140509"
    first.mkdir()
    assert new_run_folder(tmp_path, "../Titanic: the ship", now).name.endswith("-140509-2")
    assert new_run_folder(tmp_path, "???", now).name == "run-20260131-140509"
    contents: list[str | bytes | Iterable[str]] = ["text é", "text é".encode(), (piece for piece in ("text", " é"))]
    for content in contents:
        write_whole(tmp_path / "new" / "file", content)
        assert (tmp_path / "new" / "file").read_text(encoding="utf-8") == "text é"
        assert len(list((tmp_path / "new").iterdir())) == 1
    copy = tmp_path / "final" / "copy"
    for _ in range(2):  # a copy replaces what was there, and one that fails leaves it
        place_copy(tmp_path / "new" / "file", copy)
        assert not copy.samefile(tmp_path / "new" / "file") and list(copy.parent.iterdir()) == [copy]
    with pytest.raises(OSError):
        place_copy(tmp_path / "none", copy)
    assert copy.read_text(encoding="utf-8") == "text é" and list(copy.parent.iterdir()) == [copy]
    write_whole(first / "journal.jsonl", "")
    assert take_request(first) is None
    request_finish(first)
    assert (take_request(first), take_request(first)) == ("finish", None)
    request_finish(first, now=True)
    assert take_request(first) == "stop"
    (first / "control").write_bytes(b"\xff nonsense")
    assert take_request(first) is None


@pytest.mark.req("REQ-FN-030")
def test_references_are_read_and_a_missing_one_is_refused_before_anything_is_paid(tmp_path: Path) -> None:
    (tmp_path / "talk.md").write_text("use a forest", encoding="utf-8")
    config = PipelineConfig(reference_files=(str(tmp_path / "talk.md"),))
    assert read_references(config) == ["use a forest"] and read_references(PipelineConfig()) == []
    with pytest.raises(ConfigError, match=r"reference_files: .*gone\.md cannot be read"):
        read_references(PipelineConfig(reference_files=(str(tmp_path / "gone.md"),)))
