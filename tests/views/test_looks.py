"""The pages as people see them: on a phone and on a desk, light and dark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mle_star.data.folder import Medals
from mle_star.integrations.campaign import PAGE, Campaign, campaign_html
from mle_star.models import Measure, PipelineConfig
from mle_star.run.events import AnyEvent, HoldOutPrepared, ShortlistScored, SolutionExamined
from mle_star.run.journal import Journal
from mle_star.views import write_report
from mle_star.views.live import IndexServer, LiveServer
from tests.views.conftest import Watch, served
from tests.views.journals import Invented, write_journal

pytestmark = [pytest.mark.browser, pytest.mark.long]
HERE = Path(__file__).parent
LOOKS = (HERE / "looks.js").read_text(encoding="utf-8")
AXE = (HERE / "vendor" / "axe.min.js").read_text(encoding="utf-8")
SCREENS = os.environ.get("SCREENS_TO", "")
"""A folder that pictures go to, for people."""
SIGHTS = [(390, "light"), (1440, "dark")]
if SCREENS or os.environ.get("MLE_STAR_SOAK"):
    SIGHTS += [(390, "dark"), (1440, "light")]
GOOD, FAILED, LIVE = "good-20260131-140500", "failed-20260131-120000", "live-20260131-160000"


def scored(invented: Invented) -> list[AnyEvent]:
    """A run with everything that a harness that scores by hidden rows adds."""
    start, *events, last, end = invented.events()
    expected = Measure(score=0.8531, low=0.8402, high=0.8660, rows=1200, measured="harness", printed=0.871)
    holdout = HoldOutPrepared(
        at=start.at, step="run", rule="classes: every class has its share", views=3, search_rows=2400,
        select_rows=1200, baseline=Measure(score=0.52, measured="harness"),
    )  # fmt: skip
    table = [
        {"name": name, **expected.model_dump(), "members": 1, "compared": compared}
        for name, compared in (("path 0", 0.849), ("ensemble 0", 0.851))
    ]
    examined = SolutionExamined(
        at=last.at, step="shortlist", rows=3600, classes=["no", "yes, on the whole", "undecided"],
        confusion=[[1200, 20, 40], [3, 990, 12], [100, 9, 1226]],
        calibration=[(n / 10 + 0.05, n / 10 + 0.03, 40 * n + 10) for n in range(10)],
        importance=[("a column with a rather long name, as tables have them", 0.12), ("age", 0.03), ("fare", -0.001)],
        points=[(n / 7, n / 7 + (n % 5 - 2) / 4) for n in range(60)],
    )  # fmt: skip
    pick = ShortlistScored(at=last.at, step="shortlist", shortlist=table, chosen="ensemble 0")
    return [start, holdout, *events, last, pick, examined, end]


def campaign(shelf: Path) -> Path:
    """The page of a campaign in which everything has happened, beside the runs of the shelf."""
    names = ["good", "a-rather-long-name-of-a-competition-as-they-have-them", "third"]
    tasks = [Invented(name=name).task.model_copy(update={"data_dir": str(shelf)}) for name in names]
    medals = {"good": Medals(gold=0.9, silver=0.85, bronze=0.8)}
    made = Campaign.create(shelf, tasks, 3, PipelineConfig(model="offline"), medals)
    done: dict[str, Any] = {"state": "finished", "score": 0.8712, "cost_usd": 1.25, "seconds": 754.0}
    ends: list[dict[str, Any]] = [
        {**done, "expected": 0.8531, "low": 0.84, "high": 0.866, "medal": "silver", "folder": GOOD},
        {**done, "score": 0.9},
        {"state": "failed", "message": "no candidate of Phase 1 came to a score; the last error was out of memory"},
        {"state": "left out", "message": "the campaign's money is spent"},
        {"state": "running"},
    ]
    made.entries = [one.model_copy(update=end) for one, end in zip(made.entries, [*ends, *ends], strict=False)]
    (shelf / PAGE).write_text(campaign_html(made), encoding="utf-8")
    return shelf / PAGE


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The pages by name, of a finished, a failed and a live run."""
    shelf = tmp_path_factory.mktemp("shelf")
    Invented(seed=11, T=1).write(shelf / GOOD, synced=False)
    write_journal(shelf / GOOD, scored(Invented(seed=11, T=1, run_dir=shelf / GOOD)))
    Invented(seed=4, T=1, outcome="failed").write(shelf / FAILED, synced=False)
    with ExitStack() as stack:
        going = stack.enter_context(Journal(shelf / LIVE / "journal.jsonl"))
        for event in list(Invented(seed=5, T=1).events())[:90]:
            going.record(event)
        live, index = LiveServer(shelf / LIVE), IndexServer(shelf)
        stack.enter_context(served(live))
        stack.enter_context(served(index))
        yield {
            "report": write_report(shelf / GOOD).as_uri(),
            "failed": write_report(shelf / FAILED).as_uri(),
            "live": live.address,
            "ui": index.address,
            "campaign": campaign(shelf).as_uri(),
            "compare": f"http://127.0.0.1:{index.port}/compare?token={index.token}&a={GOOD}&b={FAILED}",
        }


@pytest.mark.parametrize("name", ["report", "failed", "live", "ui", "compare", "campaign"])
def test_nothing_overlaps_or_sticks_out_and_everybody_can_use_it(
    name: str, places: dict[str, str], watch: Watch
) -> None:
    for width, scheme in SIGHTS:
        seen = watch(width=width, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce")
        page = seen.open(places[name])
        page.locator("h1").first.wait_for()
        where = f"{name} at {width}, {scheme}"
        if SCREENS:
            page.screenshot(path=Path(SCREENS, f"{name}-{width}-{scheme}.png"), full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, where
        assert page.evaluate(f"({LOOKS})()") == [], where
        page.evaluate(AXE)
        found = page.evaluate(
            "axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'best-practice']})"
            ".then(r => r.violations.filter(v => ['serious', 'critical'].includes(v.impact))"
            ".map(v => `${v.id}: ${v.nodes.slice(0, 3).map(n => n.html).join(' | ')}`))"
        )
        assert found == [], where
        assert seen.complaints == [], where
        page.context.close()


def test_the_list_is_searched_two_are_compared_and_each_opens_its_report(places: dict[str, str], watch: Watch) -> None:
    seen = watch()
    page = seen.open(places["ui"])
    runs = page.locator(".run")
    assert runs.count() == 3
    assert "running" in runs.first.inner_text()  # live ones on top
    page.locator("#search").fill("FAILED")
    assert page.locator(".run:visible").count() == 1
    page.locator("#search").fill("")
    assert not page.locator("#compare").is_enabled()
    for name in (GOOD, FAILED):
        page.locator(f".run[data-name='{name}'] input").check()
    assert page.locator(".run input:disabled").count() == 1
    page.locator("#compare").click()
    page.wait_for_url("**/compare?*")
    assert GOOD in page.locator("main").inner_text()
    assert page.locator("td.ahead").count() >= 1
    page.locator("thead a").first.click()
    page.wait_for_selector("body[data-state=completed]")
    assert "Completed" in page.locator(".verdict").inner_text()
    with page.expect_download() as download:
        page.locator(".submit a").click()
    assert Path(download.value.path()).read_text(encoding="utf-8") == "id,label\n1,0\n"
    page.locator(".home a").click()
    page.wait_for_selector(".run")
    assert seen.complaints == []


def test_marks_are_reached_by_keyboard_and_columns_sort(places: dict[str, str], watch: Watch) -> None:
    page = watch().open(places["report"])
    assert "that of the result is on rows kept for the end" in page.locator("#scores figcaption").inner_text()
    page.locator("#scores .mark[tabindex='0']").focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator("#phase2-path-0-t-0-k-0 table.diff").wait_for()
    head = page.locator("#all-attempts th", has_text="accuracy")
    for order, flip in (("ascending", 1), ("descending", -1)):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == order
        cells = page.locator("#all-attempts td:nth-child(4)").all_inner_texts()
        scores = [float(cell) for cell in cells if cell != "–"]
        assert scores == sorted(scores, reverse=flip < 0)
        assert set(cells[len(scores) :]) == {"–"}  # what has no score stays below


def test_a_campaign_s_table_sorts_and_opens_the_reports_of_its_runs(places: dict[str, str], watch: Watch) -> None:
    seen = watch()
    page = seen.open(places["campaign"])
    assert "4 of 9 finished" in page.locator(".tiles").inner_text()
    assert "2 silver" in page.locator(".tiles").inner_text()
    runs = page.locator("section", has=page.locator("#h-runs"))
    runs.locator("th button", has_text="Score").click()
    cells = runs.locator("td[data-name=Score]").all_inner_texts()
    scores = [float(cell) for cell in cells if cell != "–"]
    assert len(scores) == 4 and scores == sorted(scores) and set(cells[4:]) == {"–"}
    runs.locator("a", has_text="good").first.click()
    page.wait_for_selector(".verdict.completed")
    assert seen.complaints == []
