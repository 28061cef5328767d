"""A run of the embedded engineer as its owner sees it: `mle-star run --serve`, the live page, the report."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mle_star.run.events import AblationFinished
from mle_star.run.journal import read_journal
from mle_star.views import RunStory, text
from mle_star.views.page import SECTIONS
from tests.views.conftest import Watched

Watch = Callable[..., Watched]


def address_in(said: Path) -> str:
    """The address of the live page, once it was printed."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        found = re.search(r"^live page: (\S+)$", said.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found.group(1)
        time.sleep(0.1)
    raise AssertionError(f"no live page: {said.read_text(encoding='utf-8')}")


def unsure_rows(folder: Path) -> None:
    """A tenth of the labels are wrong, and no script can learn which."""
    dice = random.Random(1)
    rows = [(i, i * 7 % 50, "ab"[i % 2], int((i * 7 % 50 > 25) ^ (dice.random() < 0.1))) for i in range(1000, 1600)]
    lines = ["id,size,kind,label", *(f"{i},{size},{kind},{label}" for i, size, kind, label in rows)]
    (folder / "train.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.browser
@pytest.mark.long
@pytest.mark.usefixtures("as_delivered")
def test_a_run_of_the_embedded_engineer_is_seen_from_beginning_to_end(
    data_dir: Path, tmp_path: Path, watch: Watch
) -> None:
    run_dir = tmp_path / "run"
    unsure_rows(data_dir)
    command = [sys.executable, "-m", "mle_star.cli.app", "run", str(data_dir), "--model", "offline", "--serve"]
    small = ["-M", "1", "-T", "1", "-K", "1", "-L", "1", "--set", "score_views=1", "-o", str(run_dir)]
    said = tmp_path / "stderr.txt"
    with said.open("w", encoding="utf-8") as stderr:
        process = subprocess.Popen(
            [*command, *small], stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=tmp_path
        )  # fmt: skip
    try:
        live = watch()
        page = live.open(address_in(said))
        page.wait_for_selector("#now .working li", timeout=120_000)
        page.wait_for_selector("body[data-state=completed]", timeout=600_000)
        out, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0
    assert live.complaints == []

    story = RunStory.from_events(read_journal(run_dir / "journal.jsonl"))
    expected = story.expected
    assert expected is not None and expected.rows == 60
    assert expected.low is not None and expected.high is not None and expected.low < 0.9 < expected.high
    seen = watch()
    report = seen.open(run_dir / "report.html")
    for place in (page, report):  # the live page has reached what the report says
        assert text.score(story.score) in place.locator("h1").inner_text()
        assert "offline (embedded engineer)" in place.locator(".tiles").inner_text()
        assert str(run_dir / "final" / "submission.csv") in place.locator(".submit").inner_text()
        assert place.locator("#scores .mark").count() == len(story.attempts)
        for section in SECTIONS:
            assert section == "now" or len(place.locator(f"section#{section}").inner_text()) > 20, section
    studies = [step.ablation for step in story.steps if isinstance(step.ablation, AblationFinished)]
    parts = sum(name.lower() != "baseline" for study in studies for name in study.scores)
    assert report.locator("#refinement svg .bar").count() == parts > 0
    assert report.locator("details.try").count() == len(story.refinements) == 1
    assert report.locator("#final-script").text_content() == story.final_script
    assert (seen.complaints, seen.requests) == ([], [(run_dir / "report.html").as_uri()])
    assert re.search(r"submission\s+/", out)  # the summary on standard output
