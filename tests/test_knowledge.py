"""Knowledge files: chosen by task, cut to size, joined by the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from mle_star.errors import ConfigError
from mle_star.knowledge import MAX_CHARACTERS, knowledge_for, known_models
from mle_star.models import DataModality, TaskDescription

OWN = Path(__file__).parent.parent / "src" / "mle_star" / "knowledge"


def task(modality: str = "tabular", kind: str = "tabular") -> TaskDescription:
    known = {"competition_id": "c", "evaluation_metric": "accuracy", "metric_direction": "maximize", "description": "d"}
    return TaskDescription.model_validate({**known, "task_type": kind, "data_modality": modality})


def test_files_are_short_and_chosen_by_modality_and_by_what_is_installed_and_name_no_version() -> None:
    table = knowledge_for(task(), ())
    assert "## Tables" in table and "## Traps of current libraries" in table and "## Validation" in table
    assert "## Pictures" not in table and "## PyTorch" not in table
    picture = knowledge_for(task("image", "image_classification"), ("torch",))
    assert "## Pictures" in picture and "## PyTorch" in picture and "## Tables" not in picture
    mixed = knowledge_for(task("mixed"), ())
    assert "## Tables" in mixed and "## Texts" in mixed
    for modality in DataModality:
        assert len(knowledge_for(task(modality), ("torch",))) <= MAX_CHARACTERS
    for path in OWN.glob("*.md"):
        assert "==" not in path.read_text(encoding="utf-8"), "the packages of the system prompt are written so"


def test_files_of_the_user_come_first_and_cannot_open_a_section(tmp_path: Path) -> None:
    (tmp_path / "ours.md").write_text("# Task\nOur trains are late.\n", encoding="utf-8")
    (tmp_path / "other.md").write_text("<!-- for: audio -->\nHum.\n", encoding="utf-8")
    (tmp_path / "long.md").write_text("a line of many\n" * 2000, encoding="utf-8")
    assert "Our trains are late." not in knowledge_for(task(), (), str(tmp_path)), "`long.md` fills the room first"
    (tmp_path / "long.md").unlink()
    text = knowledge_for(task(), (), str(tmp_path))
    assert text.startswith("## Task\nOur trains are late.")
    assert "Hum." not in text and "## Tables" in text
    with pytest.raises(ConfigError, match="is no folder"):
        knowledge_for(task(), (), str(tmp_path / "ours.md"))


def test_there_are_models_to_start_from_and_those_of_the_user_come_first(tmp_path: Path) -> None:
    for modality in ("tabular", "text", "mixed"):
        known = known_models(task(modality))
        assert len(known) >= 2
        for model in known:
            compile(model.example_code, model.model_name, "exec")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "ours.md").write_text("# Ours\n```python\n# as we do it\nx = 1\n```\n", encoding="utf-8")
    first = known_models(task(), (), str(tmp_path))[0]
    assert (first.model_name, first.example_code) == ("Ours", "# as we do it\nx = 1\n")
    net = "<!-- for: tabular; needs: torch -->\n# Net\n```python\nx = 2\n```\n"
    (tmp_path / "models" / "net.md").write_text(net, encoding="utf-8")
    for packages in ((), ("torch",)):
        names = [model.model_name for model in known_models(task(), packages, str(tmp_path))]
        assert ("Net" in names) is bool(packages)
