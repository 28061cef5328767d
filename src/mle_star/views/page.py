"""The report: one story rendered into one page, piece by piece, so that a live page can renew only what changed."""

import base64
import difflib
import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers.python import PythonLexer

from mle_star.run import events
from mle_star.run.folder import RunFolder, is_running, write_whole
from mle_star.views import charts, tables, text
from mle_star.views.facts import PHASE_TITLES, StepStory, place_of
from mle_star.views.headlines import headline
from mle_star.views.lineage import lineage_of
from mle_star.views.story import RunStory
from mle_star.views.verdict import Verdict

HERE = Path(__file__).parent
SHORT = {"trust": "Trust", "candidates": "Candidates", "repairs": "Repairs", "costs": "Cost", "about": "About"}
"""Names for the navigation, where the section's own is long."""
SECTIONS = {
    "now": "At work now",
    "scores": "Scores",
    "trust": "Can it be trusted",
    "lineage": "Lineage",
    "candidates": "Candidates and merges",
    "refinement": "Refinement",
    "ensemble": "Ensemble",
    "repairs": "Repairs and leakage",
    "costs": "Cost and time",
    "script": "Script",
    "failures": "Failures",
    "about": "About this run",
}
TEXT_BUDGET = 2_600_000
"""Characters of plans, blocks and errors that a page may hold in all, as written to the file."""
TEXT_CAPS = (40_000, 20_000, 10_000, 5_000, 2_500, 1_200, 600, 300)
OPEN_STEPS = 6
"""With more steps than this, all are folded at first."""
COMPARED_LINES = 2000
"""Longer texts are compared as a whole."""
MAX_COLOURED = 150_000
"""Characters of a script; beyond, colours would only slow the page."""


def write_report(run_dir: Path) -> Path:
    """Write `report.html` of a run, finished or not, from its journal alone; where it is."""
    folder, story = RunFolder(Path(run_dir)), RunStory.of(Path(run_dir))
    html = Page(folder.root.absolute()).html(story, alive=is_running(folder.root))
    write_whole(folder.report, html.encode("utf-8", "replace"))
    return folder.report


class Page:
    """Renders the story of one run. With a `token` the page is served, is kept up to date and has two buttons."""

    def __init__(self, run_dir: Path, *, token: str = "", home: str = "") -> None:
        self.run_dir, self.token, self.home = run_dir, token, home
        self._sent: dict[str, str] = {}
        self._attempt_texts = lru_cache(maxsize=10_000)(_attempt_texts)  # a live page asks again with every event

    def html(self, story: RunStory, *, alive: bool = True) -> str:
        """The whole page."""
        pieces: dict[str, list[tuple[str, Markup]]] = {}
        for section, name, piece in self._pieces(story, alive):
            pieces.setdefault(section, []).append((name, Markup(piece)))
        return render_page(
            "page.html.j2",
            ["report.js", "live.js"] if self.token else ["report.js"],
            token=self.token,
            pieces=pieces,
            sections=SECTIONS,
            short=SHORT,
            title=page_title(story, alive),
            home=self.home,
            written=text.moment(story.spent.last[""]) if story.spent.last else "",
        )

    def changes(self, story: RunStory, *, alive: bool = True) -> dict[str, Any]:
        """What differs from the last time: pieces by name, and the order of all of them."""
        order: dict[str, list[str]] = {}
        renewed: dict[str, str] = {}
        for section, name, piece in self._pieces(story, alive):
            order.setdefault(section, []).append(name)
            if self._sent.get(name) != piece:
                renewed[name] = self._sent[name] = piece
        return {"title": page_title(story, alive), "order": order, "pieces": renewed}

    def _pieces(self, story: RunStory, alive: bool) -> Iterator[tuple[str, str, str]]:
        """Every piece of the page in order: its section, its name, its HTML."""
        cap = text_cap(story)
        values = {
            "story": story,
            "verdict": Verdict(story, self.run_dir, alive=alive),
            "line": lineage_of(story),
            "working": alive and story.finished is None,
            "cap": cap,
            "run_dir": self.run_dir,
            "link": self._link,
        }
        for section in ("verdict", *SECTIONS):
            if section != "refinement" or not story.steps:
                yield section, section, render(f"{section}.html.j2", **values)
                continue
            for step in story.steps:
                more = {"step": step, "folded": len(story.steps) > OPEN_STEPS, "texts": self._step_texts(step, cap)}
                yield section, f"step-{step.path}-{step.t}", render("step.html.j2", **values, **more)

    def _step_texts(self, step: StepStory, cap: int) -> dict[str, Any]:
        """The texts of a step's attempts, for the page to draw when one is opened."""
        tries = sorted(step.tries.items())
        attempts = {str(k): self._attempt_texts(one.plan, one.before, one.after, cap) for k, one in tries}
        block = tries[0][1].before if tries else step.block.block if step.block is not None else ""
        return {"before": text.clean(block, max_text=cap), "tries": attempts}

    def _link(self, path: str) -> str:
        """Where a file of the run is: beside a report on disk, behind the token on a served page."""
        return f"files/{quote(path)}?token={self.token}" if self.token else quote(path)


# --- values ----------------------------------------------------------------------------------------------


def page_title(story: RunStory, alive: bool = True) -> str:
    """What the browser's tab says: state, score, task."""
    verdict = Verdict(story, alive=alive)
    return f"{text.score(story.score)} · {verdict.task} · {verdict.state_title.lower()}"


def _attempt_texts(plan: str, before: str, after: str, cap: int) -> dict[str, Any]:
    """What an attempt says, and how the lines of its block became others."""
    shown = {"plan": text.clean(plan, max_text=cap), "after": text.clean(after, max_text=cap)}
    old, new = text.clean(before, max_text=cap).split("\n"), shown["after"].split("\n")
    whole: Any = [("replace", 0, len(old), 0, len(new))] if max(len(old), len(new)) > COMPARED_LINES else []
    ops = whole if whole and old != new else difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return {**shown, "ops": ops if after else []}


def text_cap(story: RunStory) -> int:
    """How long a single text may be so that all of them together stay within the page's budget."""
    texts = [run.error for run in story.scripts.values()]
    for step in story.steps:
        tries = list(step.tries.values())
        texts += [step.ablation.summary if step.ablation else "", *(one.before for one in tries[:1])]
        texts += [part for one in tries for part in (one.plan, one.after)]
    fits = (cap for cap in TEXT_CAPS if sum(min(len(part), cap) for part in texts) <= TEXT_BUDGET)
    return next(fits, TEXT_CAPS[-1])


# --- the template's surroundings ---------------------------------------------------------------------------


def render(template: str, **values: Any) -> str:
    """A template with its values."""
    return _environment().get_template(template).render(**values)


def render_page(template: str, scripts: list[str], *, token: str = "", **values: Any) -> str:
    """A whole page: its styles, its scripts by the names of their files, and what it may do. With a token it is served.

    It may run its own scripts and use its own styles, nothing else; a served page may ask its server for news.
    """
    code = [static(name) for name in scripts]
    hashes = (base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in code)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src '{'self' if token else 'none'}'; base-uri 'none'; form-action 'none'"
    )
    scripts_here = [Markup(one) for one in code]
    return render(template, styles=styles(), scripts=scripts_here, policy=policy, token=token, **values)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({name: one for name, one in vars(text).items() if callable(one)})
    environment.filters.update(headline=headline, coloured=coloured, place_of=place_of)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    environment.globals.update(phase_titles=PHASE_TITLES, charts=charts, tables=tables, events=events)
    return environment


def coloured(code: str) -> Markup:
    """Python as HTML in colours."""
    if len(code) > MAX_COLOURED:
        return escape(code)
    html = highlight(code, PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True))
    return Markup(html if code.endswith("\n") else html.removesuffix("\n"))


def _colours(style: str) -> str:
    """The rules for tokens, without those for backgrounds and line numbers."""
    formatter: Any = HtmlFormatter(style=style)
    rules: str = formatter.get_style_defs(".code")
    return "\n".join(rule for rule in rules.splitlines() if rule.startswith(".code .") and ".hll" not in rule)


@lru_cache(maxsize=8)
def static(name: str) -> str:
    """A file of `static/`."""
    return (HERE / "static" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def styles() -> Markup:
    """The style sheet of every page; the colours of code are dark where the reader's system is."""
    dark = f"@media (prefers-color-scheme: dark) {{\n{_colours('github-dark')}\n}}"
    return Markup(f"{static('report.css')}\n{_colours('xcode')}\n{dark}")
