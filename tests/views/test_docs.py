"""The guides say only what is so: commands, options, settings, links, and a reference made from the code."""

import inspect
import logging
import re
from pathlib import Path

import mkdocs.commands.build
import mkdocs.config
import pytest
import yaml
from playwright.sync_api import expect
from tools import reference

from mle_star import PipelineConfig, load_config, load_task
from mle_star.cli.app import COMMANDS, load, main
from mle_star.cli.options import with_settings
from mle_star.models import TaskDescription
from mle_star.run.forecast import Forecaster
from tests.views.conftest import Watch

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NO_GUIDES = {"reference", "traceability", "prompts"}
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md") if path.stem not in NO_GUIDES}
FRONT = {path.stem: path.read_text(encoding="utf-8") for path in ROOT.glob("*.md")}
NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
CALLS = re.findall(r"mle-star ([a-z]+)([^`#\n]*)", "\n".join([*TEXTS.values(), *FRONT.values()]))
TAKES_SETTINGS = ("run", "resume", "sweep", "doctor", "mlebench")
OLD_WORDS = r"goes? on|gone on|taken? up again|\banew\b|put aside|hand(s|ed)? over|promis|\bmend|for want of"


def test_the_reference_is_current_and_describes_everything_in_plain_words() -> None:
    assert reference.main(["--check"]) == 0, "python tools/reference.py --write"
    page = reference.reference()
    for name, field in PipelineConfig.model_fields.items():
        assert field.description and f"| `{name}` |" in page, name
    for heading, sentence in re.findall(r"^### ([a-z_]+)\n(.*)$", page.partition("## Events")[2], re.MULTILINE):
        assert sentence.endswith("."), heading
    plain, files = page.replace("promising`", "").split("## Files of a run")
    assert [line for line in plain.splitlines() if re.search(OLD_WORDS, line)] == [] and "| `model.json` |" in files


def test_every_command_explains_itself_as_reference_and_guides_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert {command for command, _ in CALLS} <= set(COMMANDS) and len(CALLS) > 35
    for command in COMMANDS:
        assert main([command, "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"mle-star {command}" in shown and "<bool>" not in shown, "a flag takes no value"
        words = inspect.getdoc(load(command)) or ""
        assert words.partition("\n")[0].endswith(".") and "Examples:" in words
        assert ("--set" in shown and "--config" in shown) == (command in TAKES_SETTINGS)
        assert command != "kaggle" or "mle-star[kaggle]" in shown
        lines = re.findall(r"^│\s+(?:\*\s+)?((?:--?[A-Za-z][\w-]*[\s,/]*)+)", shown, re.MULTILINE)
        offered = {word for line in lines for word in re.findall(r"--?[A-Za-z][\w-]*", line)} - {"--help", "-h"}
        known = {option for one in reference._parameters(with_settings(load(command))) for option in one.options}
        assert known == offered, command
        rest = " ".join(rest for name, rest in CALLS if name == command)
        assert set(re.findall(r"(?<!\S)--?[A-Za-z][\w-]*", rest)) <= {*offered, "--help"}, command


def test_the_front_pages_name_targets_files_and_figures_that_are_so(task: TaskDescription) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for text in FRONT.values():
        assert set(re.findall(r"\bmake ([a-z-]+)", text)) - {"are"} <= targets
        links = re.findall(r"\]\(([^)#:]+)\)", text) + re.findall(r"`(docs/[\w./-]+\.\w+)`", text)
        assert [link for link in links if "NNNN" not in link and not (ROOT / link).exists()] == []
    ahead = Forecaster(task, PipelineConfig()).forecast()
    assert f"{ahead.calls} agent calls and {ahead.scripts} script runs, repairs included" in FRONT["README"]


def test_settings_files_and_python_in_the_guides_are_valid(tmp_path: Path) -> None:
    for name, text in {**TEXTS, **FRONT}.items():
        for setting in re.findall(r"--set ([a-z_]+)=|\| `([a-z]+(?:_[a-z]+)+)` \|", text):
            assert "".join(setting) in PipelineConfig.model_fields, name
        if name != "extending":  # pieces of modules: tests/test_extending.py puts them in their places and runs them
            for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
                compile(block, name, "exec")
    blocks = {name: re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) for name, text in TEXTS.items()}
    (tmp_path / "run.yaml").write_text(blocks["budgets"][0], encoding="utf-8")
    assert load_config({}, tmp_path / "run.yaml", environ={}).outer_loop_steps == 6
    (tmp_path / "input").mkdir()
    (tmp_path / "task.yaml").write_text(blocks["own-data"][0], encoding="utf-8")
    assert load_task(tmp_path).competition_id == "house-prices"
    assert all(yaml.safe_load(block) for found in blocks.values() for block in found)


@pytest.mark.browser
def test_the_pages_build_without_a_warning_need_no_network_and_can_be_searched(tmp_path: Path, watch: Watch) -> None:
    config = mkdocs.config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"))
    links = config.validation.links
    assert config.strict and links.not_found == links.anchors == logging.WARNING
    mkdocs.commands.build.build(config)  # strict: a warning is an error
    listed = {page.rpartition("/")[2] for page in re.findall(r": ([\w-]+\.md)$", NAVIGATION, re.MULTILINE)}
    assert listed == {path.name for path in DOCS.glob("*.md")}
    for page in (tmp_path / "site").glob("*.html"):
        html = page.read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=.?https?:", html), page.name
        paragraphs = re.findall(r"<p>(.*?)</p>", html, re.DOTALL)
        unread = [one for one in paragraphs if re.search(r"\n *(?:[-*]|\d+\.) |\| ---|```", one)]
        assert not unread, f"{page.name}: a list, a table or a block that was read as words"
    shown = watch().open(tmp_path / "site" / "index.html")
    shown.locator(".md-search__input").press_sequentially("resume")
    expect(shown.locator(".md-search-result__item").first).to_contain_text("Resume and fork")
