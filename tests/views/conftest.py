"""A real browser, and pages that tell on themselves: every console error and every request is kept."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from mle_star.serving import GuardedServer
from mle_star.views import write_report
from tests.views.journals import Invented

PATIENCE_MS = 120_000
expect.set_options(timeout=PATIENCE_MS)
Server = TypeVar("Server", bound=GuardedServer)


@dataclass
class Watched:
    """A page with what it complained about and what it asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        bad = ("error", "warning")
        self.page.on("console", lambda one: self.complaints.extend([one.text] if one.type in bad else []))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, target: Path | str) -> Page:
        """Go there."""
        self.page.goto(target.as_uri() if isinstance(target, Path) else target)
        return self.page


Watch = Callable[..., Watched]


@contextmanager
def served(server: Server) -> Iterator[Server]:
    """A server, stopped in any case."""
    server.start()
    try:
        yield server
    finally:
        server.stop()
        assert not server._thread.is_alive(), "all that was asked has been answered"


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its report; nobody changes it."""
    folder = tmp_path_factory.mktemp("views") / "run"
    Invented(seed=11).write(folder)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's chromium, started once a module: while it is there, no test of this process can have an event loop."""
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        chromium = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags, timeout=PATIENCE_MS)
        yield chromium
        chromium.close()


@pytest.fixture
def watch(browser: Browser) -> Iterator[Watch]:
    """Pages of their own contexts: `watch(width=390, color_scheme="dark")`."""
    contexts = []

    def make(width: int = 1280, height: int = 900, **options: Any) -> Watched:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        return Watched(context.new_page())

    yield make
    for context in contexts:
        context.close()
