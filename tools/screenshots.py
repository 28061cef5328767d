"""The pictures of the guides, made from a real run: docs/images/report.png and docs/images/terminal.svg.

python tools/screenshots.py RUN [SHARE]    SHARE of the run's events have happened on the terminal (0.6 if not given)
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console

from mle_star.run.journal import read_journal
from mle_star.views import RunStory, write_report
from mle_star.views.display import screen

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"


def terminal(run_dir: Path, share: float) -> None:
    """The screen as it looked when that share of the run had happened."""
    events = list(read_journal(run_dir / "journal.jsonl"))
    some = events[: int(len(events) * share)]
    console = Console(width=100, height=30, record=True, file=io.StringIO(), force_terminal=True)
    console.print(screen(RunStory.from_events(some), console.size, now=some[-1].at))
    drawing = console.export_svg(title="mle-star run")
    # The picture must ask nothing of the network: no font from elsewhere.
    drawing = re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL)
    drawing = drawing.replace("Fira Code", "ui-monospace, SFMono-Regular, Menlo, Consolas")
    (IMAGES / "terminal.svg").write_text(drawing, encoding="utf-8")


def report(run_dir: Path) -> None:
    """The upper part of the report, in light."""
    page_file = write_report(run_dir)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(viewport={"width": 1100, "height": 1020}, color_scheme="light").new_page()
        page.goto(page_file.as_uri())
        page.screenshot(path=str(IMAGES / "report.png"))
        browser.close()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    terminal(folder, float(sys.argv[2]) if len(sys.argv) > 2 else 0.6)
    report(folder)
