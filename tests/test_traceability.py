"""Every requirement is named by a test, and docs/traceability.md says which."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from tools import trace

from mle_star.models import PRESETS, PipelineConfig

MARKED = """
import pytest
pytestmark = pytest.mark.req("REQ-DM-001")
IDS = ["REQ-DM-002", "REQ-DM-003"]
CASES = [pytest.param(1, marks=pytest.mark.req("REQ-DM-004"))]
own = pytest.mark.req("REQ-DM-005", "REQ-DM-006")

@pytest.mark.req(*IDS)
@pytest.mark.parametrize("n", CASES)
async def test_one(n): ...

@own
class TestTwo:
    @pytest.mark.req("REQ-DM-007")
    def test_three(self): ...
    def helper(self): ...

@pytest.mark.req("REQ-DM-008")
def helper(): "REQ-DM-009"
"""


def test_marks_are_found_wherever_pytest_finds_them(tmp_path: Path) -> None:
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    (tmp_path / "tests" / "deep" / "test_x.py").write_text(MARKED)
    found = trace.collect(tmp_path / "tests")
    one, three = {"tests/deep/test_x.py": ["test_one"]}, {"tests/deep/test_x.py": ["test_three"]}
    assert {identifier: dict(files) for identifier, files in found.items()} == {
        "REQ-DM-001": {"tests/deep/test_x.py": ["test_one", "test_three"]},
        "REQ-DM-002": one, "REQ-DM-003": one, "REQ-DM-004": one,
        "REQ-DM-005": three, "REQ-DM-006": three, "REQ-DM-007": three,
    }  # fmt: skip


def test_every_requirement_is_named_by_a_test_and_no_other_id_is_and_the_table_in_the_docs_is_current() -> None:
    counts = {"DM": 50, "EX": 47, "SF": 46, "P1": 45, "P2O": 44, "P2I": 50, "P3": 49, "FN": 48, "OR": 57}
    expected = [f"REQ-{key}-{number:03}" for key, count in counts.items() for number in range(1, count + 1)]
    assert list(trace.requirements()) == expected and len(expected) == 436
    departed = trace.departures(trace.DEVIATIONS.read_text(encoding="utf-8"))
    proofs = trace.collect(trace.ROOT / "tests")
    assert trace.problems(proofs, departed) == []
    assert trace.TABLE.read_text(encoding="utf-8") == trace.table(proofs, departed), "run `make trace`"
    beyond = f"REQ-DM-{51:03}"  # put together, so that nobody counts it among those that tests name
    assert trace.problems({}, {beyond: [f"{beyond}: one too many"]})[-1].startswith(f"{beyond} is no requirement")


DEPARTURES = """# Deviations
REQ-DM-001
## Restored
### REQ-DM-002, REQ-P3-018: no `None`, ever
REQ-DM-003
### REQ-DM-002: of REQ-DM-004
"""


def test_each_requirement_that_a_deviation_names_is_marked_with_a_link_to_the_entry() -> None:
    lines = trace.table({}, trace.departures(DEPARTURES)).splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| REQ")]
    both = "[no `None`, ever](deviations.md#req-dm-002-req-p3-018-no-none-ever)"
    own = "[of REQ-DM-004](deviations.md#req-dm-002-of-req-dm-004)"
    assert {row[0][2:]: row[2] for row in rows if row[2]} == {"REQ-DM-002": f"{both}; {own}", "REQ-P3-018": both}
    assert len(rows) == 436


REASONS = {"SDK", "machine", "safety"}
ABOUT_THE_SOURCE = {"REQ-DM-045", "REQ-EX-040", "REQ-OR-055"}
"""No setting says how the code is divided into files."""
MOST_THAT_REMAIN = 30


def test_every_deviation_is_restored_by_the_preset_letter_or_says_what_forbids_it() -> None:
    text = trace.DEVIATIONS.read_text(encoding="utf-8")
    departed, preset, remaining = trace.departures(text), PipelineConfig(preset="letter"), set()
    assert not re.search(r"^## .*REQ-", text, re.MULTILINE), "entries are headings of the third level"
    entries = {trace.anchor(heading): heading for heading in re.findall(r"^### (.+)$", text, re.MULTILINE)}
    rows = re.findall(r"^\| \[(.+?)\]\(#(\S+)\) \| (.+) \|$", text, re.MULTILINE)
    assert [link for _, link, _ in rows] == list(entries), "a row for each entry, in their order"
    for title, link, cell in rows:
        names, _, about = entries[link].partition(": ")
        identifiers = set(names.split(", "))
        assert title == about and identifiers <= set(trace.requirements()) & set(departed)
        settings = [yaml.safe_load(pair) for pair in re.findall(r"`(.+?)`", cell)]
        reason, _, why = cell.partition(": ")
        if not settings:
            assert why and reason in (REASONS | {"source"} if identifiers <= ABOUT_THE_SOURCE else REASONS), cell
            remaining |= identifiers
        for name, value in (item for pair in settings for item in pair.items()):
            wanted = "off" if value is False and name == "sample_first" else value  # what YAML makes of it
            assert getattr(preset, name) == getattr(PipelineConfig(**{name: wanted}), name), cell
    assert len(remaining) <= MOST_THAT_REMAIN
    restored = {name for _, _, cell in rows for name in re.findall(r"`(\w+):", cell)}
    assert restored == set(PRESETS["letter"]) - {"agents"}, "the preset sets nothing without a deviation that needs it"
