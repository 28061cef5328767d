"""The report, opened from disk in a real browser."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from mle_star.errors import ConfigError
from mle_star.models import MetricDirection
from mle_star.run.events import AblationFinished, RefinementTried
from mle_star.views import RunStory, text, write_report
from mle_star.views.live import LiveServer
from mle_star.views.page import SECTIONS
from tests.views.conftest import Watch, served
from tests.views.journals import Invented, write_journal

pytestmark = [pytest.mark.browser, pytest.mark.long]

NASTY = {
    "markup": "</pre></script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>{{ 7 * 7 }}",
    "attribute": "\" onmouseover='window.pwned = 1' x=\"&amp;&lt;b&gt;",
    "terminal": "\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b[2J\x9b31m bell\x07 back\x08space",
    "bidi": "access\u202e\u2066 // admins only\u2069 \u200f\u200b done \u05e9\u05dc\u05d5\u05dd",
    "endless": "x" * 100_000,
    "data": '<!-- <script> ]]> \\u003c/script> \\"} \u2028 \x00 \ud83d',
}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its report."""
    folder = tmp_path_factory.mktemp("views") / "run"
    Invented(seed=11, T=2).write(folder, synced=False)
    write_report(folder)
    return folder


def words(page: Page, place: str) -> str:
    """What a reader sees there."""
    return page.locator(place).inner_text()


def test_a_report_works_wherever_it_is_sent_with_the_verdict_first_and_every_section(
    run_dir: Path, tmp_path: Path, watch: Watch
) -> None:
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
    for said in (
        "better than the best single model", "An ensemble of 2 refined paths won", "self-reported", "bubblewrap",
        "Completed", text.score(story.first_score), text.money(story.totals.cost_usd),
        str(run_dir / "final" / "submission.csv"),
    ):  # fmt: skip
        assert said in verdict
    for place in ("h1", ".gain", ".submit", ".tiles"):  # all of it without scrolling
        box = page.locator(place).first.bounding_box()
        assert box is not None and box["y"] + box["height"] <= 700
    assert page.locator(".submit a").get_attribute("href") == "final/submission.csv"
    page.emulate_media(media="print")  # without what only a screen needs
    assert not page.locator("nav").is_visible() and page.locator("button:visible").count() == 0
    assert page.locator("#final-script").evaluate("one => getComputedStyle(one).maxHeight") == "none"
    assert len(page.pdf(format="A4")) > 20_000


@pytest.mark.parametrize("direction", MetricDirection)
def test_the_charts_have_one_mark_for_everything_in_the_journal_and_can_be_read_without_being_seen(
    direction: MetricDirection, tmp_path: Path, watch: Watch
) -> None:
    events = Invented(seed=5, L=3, T=2, direction=direction).write(tmp_path / "run", synced=False)
    page = watch().open(write_report(tmp_path / "run"))
    story = RunStory.from_events(events)
    chart = page.locator("#scores .chart > svg")
    assert chart.locator(".mark").count() == len(story.attempts)
    assert chart.locator(".mark.cross").count() == sum(one.score is None for one in story.attempts)
    shown = chart.locator("circle.mark.yes").count() + chart.locator(".mark.off").count()
    assert shown >= sum(one.accepted for one in story.attempts)
    for path in range(3):
        tried = sum(isinstance(event, RefinementTried) and event.path == path for event in events)
        assert chart.locator(f".mark.c{path}").count() == tried == 6
    for study in (event for event in events if isinstance(event, AblationFinished)):
        bars = page.locator(f"#step-{study.path}-{study.t}-body svg .bar")
        assert bars.count() == len(study.scores) - 1
    assert f"{direction.better_word} is better" in str(chart.locator(".axis-title").first.text_content())
    agents = {call.agent for call in story.calls.values()}
    assert page.locator("#costs .chart > svg").count() == 4
    assert page.locator("#costs svg[aria-labelledby^='cost-by-agent'] .bar").count() == len(agents)
    assert page.locator("#scores details table tbody tr").count() == len(story.attempts)
    charts = page.locator(".chart > svg").all()
    assert len(charts) > 8
    for one in charts:
        assert one.get_attribute("role") == ("group" if one.locator(".mark").count() else "img")
        title, description = one.locator("> title"), one.locator("> desc")
        assert title.text_content() and any(letter.isdigit() for letter in str(description.text_content()))
        ids = f"{title.get_attribute('id')} {description.get_attribute('id')}"
        assert one.get_attribute("aria-labelledby") == ids


def test_an_attempt_opens_to_its_plan_and_a_side_by_side_difference(run_dir: Path, watch: Watch) -> None:
    story = RunStory.of(run_dir)
    one = next(event for event in story.refinements if (event.path, event.t, event.k) == (1, 0, 1))
    page = watch(timezone_id="Asia/Tokyo").open(run_dir / "report.html")
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
    narrow = watch(width=390).open(run_dir / "report.html").locator("#phase2-path-1-t-0-k-1")
    narrow.locator("summary").click()
    expect(narrow.locator("table.diff")).to_be_visible()
    assert narrow.locator("table.diff tr").first.locator("td").count() == 2
    first = page.locator("#repairs time").first
    at = str(first.get_attribute("datetime"))
    assert first.inner_text() == f"{(int(at[11:13]) + 9) % 24:02}{at[13:19]}", "by the reader's clock"


def test_marks_lead_to_their_attempts_folds_fold_and_the_script_is_copied(run_dir: Path, watch: Watch) -> None:
    page = watch(permissions=["clipboard-read", "clipboard-write"]).open(run_dir / "report.html")
    page.locator('#scores .mark[data-go="phase2-path-0-t-1-k-1"]').click()
    expect(page.locator("#phase2-path-0-t-1-k-1 table.diff")).to_be_visible()
    page.locator("button[data-fold=close]").click()
    assert page.locator("details.step[open]").count() == 0
    page.locator("button[data-fold=open]").click()
    assert page.locator("details.step[open]").count() == page.locator("details.step").count() == 4
    page.locator("#only-accepted").check()
    assert page.locator("details.try:visible").count() == page.locator("details.try.accepted").count() > 0
    failure = page.locator("details.failure").first
    assert not failure.locator("pre").is_visible()
    failure.locator("summary").click()
    assert "Traceback" in failure.locator("pre").inner_text()
    script = RunStory.of(run_dir).final_script
    assert page.locator("#final-script").text_content() == script
    assert page.locator("#final-script .k, #final-script .kn").count() > 2, "in colours"
    page.locator("button[data-copy-from]").click()
    page.locator("button[data-copy-from]", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").strip() == script.strip()


@pytest.mark.parametrize("kind", NASTY)
def test_hostile_content_is_shown_as_text(kind: str, tmp_path: Path, watch: Watch) -> None:
    if kind == "data":  # a lone surrogate cannot be written to a journal; an event may still hold one
        assert text.clean("\ud83d") == "\ufffd"
    nasty = NASTY[kind].replace("\ud83d", "")
    Invented(seed=2, T=1, K=2, R=1, words=nasty).write(tmp_path / "run", synced=False)
    report = write_report(tmp_path / "run")
    assert report.stat().st_size < 5_000_000
    seen = watch()
    page = seen.open(report)
    for fold in page.locator("details").all():
        fold.evaluate("one => { one.open = true }")
    page.wait_for_timeout(100)
    assert page.evaluate("window.pwned") is None
    assert (seen.complaints, len(seen.requests)) == ([], 1)
    assert page.locator("script:not([type])").count() == 1
    assert page.locator("main img, main iframe, main [onmouseover], main [onerror]").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    body = page.locator("main").inner_text()
    expected = {
        "markup": "<script>window.pwned = 1</script>",
        "attribute": "onmouseover='window.pwned = 1'",
        "terminal": "red bell",
        "bidi": "access[U+202E][U+2066] // admins only[U+2069]",
        "endless": "more characters]",
        "data": "<!-- <script> ]]>",
    }
    assert expected[kind] in body.replace("\u2407", "").replace("  ", " ")
    assert not set(body) & set("\x1b\x9b\x07\x08\x00\u202e\u2066\u200b\u2028")
    assert max(len(line) for line in body.split("\n")) < 3000
    if kind == "markup":  # pieces of the live page come another way
        with served(LiveServer(tmp_path / "run")) as server:
            live = watch()
            page = live.open(server.address)
            page.wait_for_selector("body[data-state=completed]")
            assert page.evaluate("window.pwned") is None and live.complaints == []
            assert expected[kind] in page.locator("main").inner_text()


def test_a_thousand_attempts_stay_small_and_quick_and_long_texts_are_cut(tmp_path: Path, watch: Watch) -> None:
    Invented(seed=3, L=4, T=25, K=10, R=5, block_lines=60).write(tmp_path / "run", synced=False)
    report = write_report(tmp_path / "run")
    assert report.stat().st_size < 5_000_000
    page = watch().open(report)
    paint = page.wait_for_function("performance.getEntriesByName('first-contentful-paint')[0]?.startTime").json_value()
    assert paint < 60_000  # a fifth of a second on a quiet machine; this one may be busy
    assert page.locator("#scores .mark").count() == 1000 + 4 + 2 + 5
    page.locator('#scores .mark[data-go="phase2-path-3-t-24-k-9"]').dispatch_event("click")
    expect(page.locator("#phase2-path-3-t-24-k-9 table.diff")).to_be_visible()
    Invented(seed=3, L=2, T=15, K=10, R=1, block_lines=400).write(tmp_path / "long", synced=False)
    report = write_report(tmp_path / "long")
    assert report.stat().st_size < 5_000_000 and "characters left out" in report.read_text(encoding="utf-8")


def test_a_run_that_is_not_over_or_failed_has_a_report_too(tmp_path: Path, watch: Watch) -> None:
    events = list(Invented(seed=11, T=1).events())
    for count in (1, 40, len(events) // 2):
        write_journal(tmp_path / "run", events[:count])
        with (tmp_path / "run" / "journal.jsonl").open("a") as journal:
            journal.write('{"kind": "torn')
        seen = watch()
        page = seen.open(write_report(tmp_path / "run"))
        assert "Stopped without an end" in words(page, ".verdict") and "mle-star resume" in words(page, ".verdict")
        assert seen.complaints == []
    best = RunStory.from_events(events[: len(events) // 2])
    assert text.score(best.score) in words(page, "h1") and "best_submission.csv" in words(page, ".submit")
    Invented(seed=11, T=1, outcome="failed").write(tmp_path / "failed", synced=False)
    verdict = words(watch().open(write_report(tmp_path / "failed")), ".verdict")
    assert "Failed" in verdict and "PipelineError: no solution" in verdict
    with pytest.raises(ConfigError, match="holds no run"):
        write_report(tmp_path)
