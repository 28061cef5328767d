"""One page with all runs of a folder: live ones on top, searchable, each opening its report, two of them compared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import Receive, Scope, Send

from mle_star.errors import ConfigError, JournalError
from mle_star.run.folder import RunFolder
from mle_star.run.journal import read_journal
from mle_star.serving.guarded import GuardedServer
from mle_star.views.comparison import Comparison
from mle_star.views.live import RunPages
from mle_star.views.page import content_policy, render, static, styles
from mle_star.views.shelf import Glance, find_runs, glance
from mle_star.views.story import RunStory

LIVE = "running"


class IndexServer(GuardedServer):
    """Serves the list of the runs in `folder`, and below it the live page of each."""

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        self.folder = folder.absolute()
        self._pages: dict[str, RunPages] = {}
        self._glances: dict[str, tuple[tuple[float, int], Glance]] = {}
        super().__init__(port=port)

    def routes(self) -> Sequence[BaseRoute]:
        """The list, its rows alone, two runs compared, and the pages of every run."""
        return [
            Route("/", self._index),
            Route("/rows", self._rows),
            Route("/compare", self._compare),
            Mount("/runs/{name}", app=self._run),
        ]

    def stop(self) -> None:
        """Tell the open pages how things stand, then end."""
        for pages in self._pages.values():
            pages.close()
        super().stop()

    # --- what there is ---

    def glances(self) -> list[Glance]:
        """Every run at a glance: live ones first, then the latest."""
        found = [self._glance(run_dir) for run_dir in self._runs().values()]
        found.sort(key=lambda one: one.begun, reverse=True)
        return sorted(found, key=lambda one: one.state != LIVE)

    def _glance(self, run_dir: Path) -> Glance:
        """What is known of a run, as long as its journal has not grown; one that is going may end without a word."""
        facts = RunFolder(run_dir).journal.stat()
        stamp = (facts.st_mtime, facts.st_size)
        known = self._glances.get(run_dir.name)
        if known is None or known[0] != stamp or known[1].state == LIVE:
            known = self._glances[run_dir.name] = (stamp, glance(run_dir))
        return known[1]

    def _runs(self) -> dict[str, Path]:
        try:
            return {run_dir.name: run_dir for run_dir in find_runs(self.folder)}
        except ConfigError:
            return {}  # there may be one soon

    # --- pages ---

    async def _index(self, request: Request) -> Response:
        rows = await asyncio.to_thread(self._row_html)
        return self._html("index.html.j2", "index.js", rows=Markup(rows), folder=self.folder, title="All runs")

    async def _rows(self, request: Request) -> Response:
        return HTMLResponse(await asyncio.to_thread(self._row_html))

    def _row_html(self) -> str:
        return render("rows.html.j2", runs=self.glances(), link=self._link)

    async def _compare(self, request: Request) -> Response:
        names = (request.query_params.get("a", ""), request.query_params.get("b", ""))
        runs = self._runs()
        if not all(name in runs for name in names):
            return PlainTextResponse("there is no such run", status_code=404)
        try:
            stories = [await asyncio.to_thread(_story, runs[name]) for name in names]
        except (JournalError, OSError) as error:
            return PlainTextResponse(str(error), status_code=422)
        both = Comparison.of(stories[0], stories[1], names)
        return self._html("compare.html.j2", "index.js", both=both, names=names, link=self._link, title="Two runs")

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The pages of one run; only runs that are in the folder have any."""
        name = scope["path_params"]["name"]
        run_dir = self._runs().get(name)
        if run_dir is None:
            await PlainTextResponse("there is no such run", status_code=404)(scope, receive, send)
            return
        if name not in self._pages:
            self._pages[name] = RunPages(run_dir, self.token, home=f"../../?token={self.token}")
        await Router(routes=list(self._pages[name].routes()))(scope, receive, send)

    def _link(self, name: str) -> str:
        return f"runs/{quote(name)}/?token={self.token}"

    def _html(self, template: str, script: str, **values: object) -> Response:
        code = static(script)
        page = render(
            template,
            styles=styles(),
            script=Markup(code),
            token=self.token,
            policy=content_policy([code], live=True),
            **values,
        )
        return HTMLResponse(page)


def _story(run_dir: Path) -> RunStory:
    return RunStory.from_events(read_journal(RunFolder(run_dir).journal))
