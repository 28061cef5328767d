"""The pages in a real browser: the report from disk, and every page as people see it, on a phone and on a desk."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from mle_star.run.journal import Journal
from mle_star.views import RunStory, text, write_report
from mle_star.views.live import IndexServer, LiveServer
from mle_star.views.page import SECTIONS
from tests.views.conftest import Watch, served
from tests.views.journals import GOOD, Invented, campaign, scored, write_journal

pytestmark = [pytest.mark.browser, pytest.mark.long]

HERE = Path(__file__).parent
LOOKS = (HERE / "looks.js").read_text(encoding="utf-8")
AXE = (HERE / "vendor" / "axe.min.js").read_text(encoding="utf-8")
SCREENS = os.environ.get("SCREENS_TO", "")
"""A folder that pictures go to, for people."""
SIGHTS = [(390, "light"), (1440, "dark")]
if SCREENS or os.environ.get("MLE_STAR_SOAK"):
    SIGHTS += [(390, "dark"), (1440, "light")]
FAILED, LIVE = "failed-20260131-120000", "live-20260131-160000"
NASTY = {
    "</pre></script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>{{ 7 * 7 }}": (
        "<script>window.pwned = 1</script>"
    ),
    "\" onmouseover='window.pwned = 1' x=\"&amp;&lt;b&gt;": "onmouseover='window.pwned = 1'",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b[2J\x9b31m bell\x07 back\x08space": "red bell",
    "access\u202e\u2066 // admins only\u2069 \u200f\u200b done": "access[U+202E][U+2066] // admins only[U+2069]",
    '<!-- <script> ]]> \\u003c/script> \\"} \u2028 \x00': "<!-- <script> ]]>",
}
"""Hostile texts, and what is to be seen of each."""


def words(page: Page, place: str) -> str:
    """What a reader sees there."""
    return page.locator(place).inner_text()


def test_a_report_works_anywhere_with_verdict_and_every_section(run_dir: Path, tmp_path: Path, watch: Watch) -> None:
    story, alone = RunStory.of(run_dir), tmp_path / "mail" / "somewhere.html"
    alone.parent.mkdir()
    shutil.copy(run_dir / "report.html", alone)
    for scheme, width in (("light", 1280), ("dark", 390)):
        seen = watch(width=width, height=700, color_scheme=scheme)
        page = seen.open(alone)
        for section in SECTIONS:
            if section != "now":
                assert page.locator(f"section#{section} h2").is_visible(), section
                assert len(words(page, f"section#{section}")) > 30, section
        assert not page.locator("section#now").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert (seen.complaints, seen.requests) == ([], [alone.as_uri()])
    page = watch(height=700).open(run_dir / "report.html")
    verdict = words(page, ".verdict")
    assert text.score(story.score) in words(page, "h1")
    for phrase in (
        "better than the best single model", "An ensemble of 2 refined paths won", "self-reported", "bubblewrap",
        "Completed", text.score(story.first_score), text.money(story.totals.cost_usd),
        str(run_dir / "final" / "submission.csv"),
    ):  # fmt: skip
        assert phrase in verdict
    for place in ("h1", ".gain", ".submit", ".tiles"):  # all of it without scrolling
        box = page.locator(place).first.bounding_box()
        assert box is not None and box["y"] + box["height"] <= 700
    assert page.locator(".submit a").get_attribute("href") == "final/submission.csv"
    page.emulate_media(media="print")  # without what only a screen needs
    assert not page.locator("nav").is_visible() and page.locator("button:visible").count() == 0
    assert page.locator("#final-script").evaluate("one => getComputedStyle(one).maxHeight") == "none"
    assert len(page.pdf(format="A4")) > 20_000


def test_an_attempt_opens_to_its_plan_and_a_side_by_side_difference(run_dir: Path, watch: Watch) -> None:
    one = next(event for event in RunStory.of(run_dir).refinements if (event.path, event.t, event.k) == (1, 0, 1))
    page = watch().open(run_dir / "report.html")
    attempt = page.locator("#phase2-path-1-t-0-k-1")
    assert page.locator("table.diff").count() == 0  # drawn when wanted
    attempt.locator("summary").click()
    expect(attempt.locator("table.diff")).to_be_visible()
    assert one.plan in attempt.inner_text()
    old, new = set(one.before.split("\n")), set(one.after.split("\n"))
    assert set(attempt.locator("td.went").all_text_contents()) == old - new
    assert set(attempt.locator("td.came").all_text_contents()) == new - old
    assert "unchanged line" in attempt.locator("tr.gap").first.inner_text()
    attempt.locator("summary").first.click()
    expect(attempt.locator("table.diff")).not_to_be_visible()
    page.set_viewport_size({"width": 390, "height": 900})
    page.reload()
    attempt.locator("summary").click()
    expect(attempt.locator("table.diff")).to_be_visible()
    assert attempt.locator("table.diff tr").first.locator("td").count() == 2


def test_marks_lead_to_their_attempts_folds_fold_and_the_script_is_copied(run_dir: Path, watch: Watch) -> None:
    can = ["clipboard-read", "clipboard-write"]
    page = watch(timezone_id="Asia/Tokyo", permissions=can).open(run_dir / "report.html")
    first = page.locator("#repairs time").first
    at = str(first.get_attribute("datetime"))
    assert first.inner_text() == f"{(int(at[11:13]) + 9) % 24:02}{at[13:19]}", "by the reader's clock"
    page.locator('#scores .mark[data-go="phase2-path-0-t-1-k-1"]').click()
    expect(page.locator("#phase2-path-0-t-1-k-1 table.diff")).to_be_visible()
    page.locator("button[data-fold=close]").click()
    assert page.locator("details.step[open]").count() == 0
    page.locator("button[data-fold=open]").click()
    assert page.locator("details.step[open]").count() == page.locator("details.step").count() == 6
    page.locator("#only-accepted").check()
    assert page.locator("details.try:visible").count() == page.locator("details.try.accepted").count() > 0
    failure = page.locator("details.failure").first
    assert not failure.locator("pre").is_visible()
    failure.locator("summary").click()
    assert "Traceback" in failure.locator("pre").inner_text()
    script = str(page.locator("#final-script").text_content())
    assert script == RunStory.of(run_dir).final_script
    assert page.locator("#final-script .k, #final-script .kn").count() > 2, "in colours"
    page.locator("button[data-copy-from]").click()
    page.locator("button[data-copy-from]", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").strip() == script.strip()


@pytest.mark.parametrize(
    ("nasty", "shown"), [("\n".join(NASTY), list(NASTY.values())), ("x" * 100_000, ["more characters]"])]
)
def test_hostile_content_is_shown_as_text(nasty: str, shown: list[str], tmp_path: Path, watch: Watch) -> None:
    assert text.clean("\ud83d") == "\ufffd"  # it cannot be written to a journal; an event may still hold one
    Invented(seed=2, T=1, K=2, R=1, words=nasty).write(tmp_path / "run")
    report = write_report(tmp_path / "run")
    assert report.stat().st_size < 5_000_000
    with served(LiveServer(tmp_path / "run")) as server:
        for address in (report.as_uri(), server.address):  # pieces of a live page come another way
            seen = watch()
            page = seen.open(address)
            if address == server.address:
                page.wait_for_selector("body[data-state=completed]")
            for fold in page.locator("details").all():
                fold.evaluate("one => { one.open = true }")
            page.wait_for_timeout(100)
            assert page.evaluate("window.pwned") is None
            assert seen.complaints == [] and len(seen.requests) == (1 if address == report.as_uri() else 2)
            assert page.locator("main img, main iframe, main [onmouseover], main [onerror]").count() == 0
            assert page.evaluate("document.documentElement.scrollWidth") <= 1280
            body = page.locator("main").inner_text()
            assert all(one in body.replace("\u2407", "").replace("  ", " ") for one in shown)
            assert not set(body) & set("\x1b\x9b\x07\x08\x00\u202e\u2066\u200b\u2028")
            assert max(len(line) for line in body.split("\n")) < 3000
    assert report.read_text(encoding="utf-8").count("<script>") == 1


def test_a_thousand_attempts_stay_small_and_quick_and_long_texts_are_cut(tmp_path: Path, watch: Watch) -> None:
    Invented(seed=3, L=4, T=25, K=10, R=5, block_lines=60).write(tmp_path / "run")
    report = write_report(tmp_path / "run")
    assert report.stat().st_size < 5_000_000
    page = watch().open(report)
    paint = page.wait_for_function("performance.getEntriesByName('first-contentful-paint')[0]?.startTime").json_value()
    assert paint < 60_000  # a fifth of a second on a quiet machine; this one may be busy
    assert page.locator("#scores .mark").count() == 1000 + 4 + 2 + 5
    page.locator('#scores .mark[data-go="phase2-path-3-t-24-k-9"]').dispatch_event("click")
    expect(page.locator("#phase2-path-3-t-24-k-9 table.diff")).to_be_visible()
    Invented(seed=3, L=2, T=15, K=10, R=1, block_lines=400).write(tmp_path / "long")
    report = write_report(tmp_path / "long")
    assert report.stat().st_size < 5_000_000 and "characters left out" in report.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The pages by name, of a finished, a failed and a live run."""
    shelf = tmp_path_factory.mktemp("shelf")
    Invented(seed=11, T=1).write(shelf / GOOD)
    write_journal(shelf / GOOD, scored(Invented(seed=11, T=1, run_dir=shelf / GOOD)))
    Invented(seed=4, T=1, outcome="failed").write(shelf / FAILED)
    with ExitStack() as stack:
        going = stack.enter_context(Journal(shelf / LIVE / "journal.jsonl"))
        for event in Invented(seed=5, T=1).events()[:90]:
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
def test_nothing_overlaps_or_sticks_out_and_all_can_use_it(name: str, places: dict[str, str], watch: Watch) -> None:
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
        assert found == seen.complaints == [], where
        page.context.close()


def test_the_list_is_searched_two_are_compared_and_each_opens_its_report(places: dict[str, str], watch: Watch) -> None:
    seen = watch()
    page = seen.open(places["ui"])
    runs = page.locator(".run")
    assert runs.count() == 3 and "running" in runs.first.inner_text()  # live ones on top
    page.locator("#search").fill("FAILED")
    assert page.locator(".run:visible").count() == 1
    page.locator("#search").fill("")
    assert not page.locator("#compare").is_enabled()
    for name in (GOOD, FAILED):
        page.locator(f".run[data-name='{name}'] input").check()
    assert page.locator(".run input:disabled").count() == 1
    page.locator("#compare").click()
    page.wait_for_url("**/compare?*")
    assert GOOD in page.locator("main").inner_text() and page.locator("td.ahead").count() >= 1
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
