"""The report: one story rendered into one page, piece by piece, so that a live page can renew only what changed."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mle_star.run.folder import RunFolder, is_running, write_whole
from mle_star.run.journal import read_journal
from mle_star.views import charts, plots, text, tree
from mle_star.views.diffs import opcodes
from mle_star.views.facts import PHASE_TITLES, StepStory
from mle_star.views.lineage import handed_over, lineage_of
from mle_star.views.reasons import split_in_words, yardsticks
from mle_star.views.story import RunStory
from mle_star.views.syntax import coloured, style_sheet
from mle_star.views.tables import (
    ablation_chart,
    agent_chart,
    agent_rows,
    attempt_rows,
    baseline_of,
    failures,
    interventions,
    phase_chart,
    phase_rows,
    settings_rows,
    time_chart,
    waiting_chart,
)
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


class Fragment(NamedTuple):
    """A piece of the page. `stamp` changes whenever the piece would look different."""

    section: str
    name: str
    stamp: Hashable
    render: Callable[[], str]


# --- writing ---------------------------------------------------------------------------------------------


def write_report(run_dir: Path) -> Path:
    """Write `report.html` of a run, finished or not, from its journal alone; where it is."""
    folder = RunFolder(Path(run_dir)).open()
    story = RunStory.from_events(read_journal(folder.journal))
    html = Page(folder.root.absolute()).html(story, alive=is_running(folder.root))
    write_whole(folder.report, html.encode("utf-8", "replace"))
    return folder.report


class Page:
    """Renders the story of one run. With a `token` the page is served, is kept up to date and has two buttons."""

    def __init__(self, run_dir: Path, *, token: str = "", home: str = "") -> None:
        self.run_dir, self.token, self.home = run_dir, token, home
        self._rendered: dict[str, tuple[Hashable, str]] = {}

    def html(self, story: RunStory, *, alive: bool = True) -> str:
        """The whole page."""
        pieces: dict[str, list[tuple[str, Markup]]] = {}
        for fragment in self.fragments(story, alive=alive):
            pieces.setdefault(fragment.section, []).append((fragment.name, Markup(self._html_of(fragment))))
        scripts = [static("report.js")] + ([static("live.js")] if self.token else [])
        return render(
            "page.html.j2",
            pieces=pieces,
            sections=SECTIONS,
            short=SHORT,
            title=page_title(story, alive),
            styles=styles(),
            scripts=[Markup(script) for script in scripts],
            token=self.token,
            home=self.home,
            policy=content_policy(scripts, live=bool(self.token)),
            written=text.moment(story.clock.last) if story.clock.last else "",
        )

    def changes(self, story: RunStory, *, alive: bool = True) -> dict[str, Any]:
        """What differs from what was rendered last: pieces by name, and the order of all of them."""
        order: dict[str, list[str]] = {}
        renewed: dict[str, str] = {}
        for fragment in self.fragments(story, alive=alive):
            order.setdefault(fragment.section, []).append(fragment.name)
            before = self._rendered.get(fragment.name)
            html = self._html_of(fragment)
            if before is None or before[1] != html:
                renewed[fragment.name] = html
        return {"title": page_title(story, alive), "order": order, "pieces": renewed}

    def _html_of(self, fragment: Fragment) -> str:
        known = self._rendered.get(fragment.name)
        if known is not None and known[0] == fragment.stamp:
            return known[1]
        html = fragment.render()
        self._rendered[fragment.name] = (fragment.stamp, html)
        return html

    # --- pieces ---

    def fragments(self, story: RunStory, *, alive: bool = True) -> Iterator[Fragment]:
        """Every piece, in the order of the page; rendering is left for later."""
        cap, here = text_cap(story), self._piece
        verdict = Verdict.of(story, self.run_dir, alive=alive)
        working = alive and story.finished is None
        scored = tuple((one.step, one.score, one.accepted) for one in story.attempts)  # a leak may take a score back
        ran = len(story.calls), len(story.scripts)
        fixed = (len(story.repairs), tuple(check.at for check in story.leaks.values()))
        told = (story.holdout, story.shortlist, story.examined, story.finished)
        every = (story.heard, alive)
        yield here("verdict", every, lambda: {"story": story, "verdict": verdict, **_scale_of(story), **self._places()})
        yield here("now", every, lambda: {"story": story, "working": working})
        ended = story.finished and story.finished.at  # also when another script was promoted by hand
        yield here("scores", (scored, ended), lambda: {"story": story, **_score_values(story)})
        yield here("trust", tuple(one and one.at for one in told), lambda: _trust_values(story))
        yield here("lineage", (scored, fixed, ended), lambda: _lineage_values(story))
        yield here("candidates", (scored, len(story.models)), lambda: {"story": story})
        if not story.steps:
            yield here("refinement", 0, dict)
        folded = len(story.steps) > OPEN_STEPS
        for step in story.steps:
            yield self._step(story, step, cap, folded)
        yield here("ensemble", every, lambda: {"story": story, "cap": cap})
        yield here("repairs", fixed, lambda: {"story": story, "rows": interventions(story), "cap": cap})
        yield here("costs", ran, lambda: _cost_values(story))
        yield here(
            "script",
            (story.state, story.final_script),
            lambda: {"story": story, "code": _code_of(story), **self._places()},
        )
        yield here("failures", every, lambda: {"rows": failures(story), "cap": cap})
        yield here("about", every, lambda: {"story": story, "rows": settings_rows(story)})

    def _piece(self, section: str, stamp: Hashable, values: Callable[[], dict[str, Any]]) -> Fragment:
        return Fragment(section, section, stamp, lambda: render(f"{section}.html.j2", **values()))

    def _places(self) -> dict[str, Any]:
        """Where the run's files are: beside a report on disk, behind the token on a served page."""

        def link(path: str) -> str:
            return f"files/{quote(path)}?token={self.token}" if self.token else quote(path)

        return {"run_dir": self.run_dir, "link": link}

    def _step(self, story: RunStory, step: StepStory, cap: int, folded: bool) -> Fragment:
        stamp = (
            step.ablation and step.ablation.at,
            step.block and step.block.at,
            cap,
            folded,
            tuple((k, one.at, one.score, one.accepted) for k, one in sorted(step.tries.items())),
        )

        def draw() -> str:
            chart = ablation_chart(story, step) if step.ablation is not None else None
            return render(
                "step.html.j2",
                story=story,
                step=step,
                cap=cap,
                folded=folded,
                chart=chart,
                texts=step_texts(step, cap),
                teasers=text.teasers([one.plan for _, one in sorted(step.tries.items())]),
                baseline=baseline_of(step),
            )

        return Fragment("refinement", f"step-{step.path}-{step.t}", stamp, draw)


# --- values ----------------------------------------------------------------------------------------------


def page_title(story: RunStory, alive: bool = True) -> str:
    """What the browser's tab says: state, score, task."""
    name = text.one_line(story.task.competition_id, 60) if story.task else "run"
    state = Verdict.of(story, alive=alive).state_title.lower()
    return f"{text.score(story.score)} · {name} · {state}"


def step_texts(step: StepStory, cap: int) -> dict[str, Any]:
    """The texts of a step's attempts, for the page to draw when one is opened."""
    attempts = {}
    for k, one in sorted(step.tries.items()):
        before, after = text.clean(one.before, max_text=cap), text.clean(one.after, max_text=cap)
        attempts[str(k)] = {
            "plan": text.clean(one.plan, max_text=cap),
            "after": after,
            "ops": opcodes(before, after) if one.after else [],
        }
    first = next(iter(step.tries.values()), None)
    block = first.before if first is not None else step.block.block if step.block is not None else ""
    return {"before": text.clean(block, max_text=cap), "tries": attempts}


def text_cap(story: RunStory) -> int:
    """How long a single text may be so that all of them together stay within the page's budget."""
    lengths = [len(run.error) for run in story.scripts.values() if run.error]
    for step in story.steps:
        lengths += [len(step.ablation.summary)] if step.ablation else []
        for one in step.tries.values():
            lengths += [len(one.plan), len(one.after)]
        lengths += [len(next(iter(step.tries.values())).before)] if step.tries else []
    fits = (cap for cap in TEXT_CAPS if sum(min(length, cap) for length in lengths) <= TEXT_BUDGET)
    return next(fits, TEXT_CAPS[-1])


def _scale_of(story: RunStory) -> dict[str, Any]:
    rows, unit = yardsticks(story), f"{text.one_line(story.metric, 40)} ({story.direction.better_word} is better)"
    return {"scale": plots.strip(rows, unit) if rows else None}


def _score_values(story: RunStory) -> dict[str, Any]:
    attempts, rows = story.attempts, attempt_rows(story)
    chosen = handed_over(story, lineage_of(story))
    return {
        "promoted": bool(lineage_of(story).promoted),
        "chart": charts.trajectory(attempts, story.metric, story.direction, [row.link for row in rows], chosen),
        "rows": rows,
        "chosen": chosen,
        "words": charts.describe(attempts, story.metric, story.direction),
        "paths": sorted({one.path for one in attempts if one.path is not None}),
    }


def _trust_values(story: RunStory) -> dict[str, Any]:
    examined = None if lineage_of(story).promoted else story.examined  # it is about what the run itself had chosen
    values: dict[str, Any] = {"confusion": None, "calibration": None, "residuals": None, "importance": None}
    if examined is not None and examined.classes:
        values["confusion"] = plots.confusion(examined.classes, examined.confusion)
    if examined is not None and examined.calibration:
        values["calibration"] = plots.calibration(examined.calibration)
    if examined is not None and examined.points:
        values["residuals"] = plots.residuals(examined.points)
    if examined is not None and examined.importance:
        values["importance"] = plots.importance(examined.importance, story.metric)
    split = split_in_words(story)
    promoted = bool(lineage_of(story).promoted)
    told = {"story": story, "split": split, "self_reported": not split, "promoted": promoted}
    return {**told, "examined": examined, **values}


def _lineage_values(story: RunStory) -> dict[str, Any]:
    return {"story": story, "line": lineage_of(story), "tree": tree.chart(story)}


def _cost_values(story: RunStory) -> dict[str, Any]:
    return {
        "phases": phase_rows(story),
        "agents": agent_rows(story),
        "totals": story.totals,
        "clock": story.clock,
        "phase_chart": phase_chart(story),
        "agent_chart": agent_chart(story),
        "time_chart": time_chart(story),
        "waiting_chart": waiting_chart(story),
    }


def _code_of(story: RunStory) -> Markup:
    return coloured(text.clean(story.final_script, max_text=400_000))


# --- the template's surroundings ---------------------------------------------------------------------------


def render(template: str, **values: Any) -> str:
    """A template with its values."""
    return _environment().get_template(template).render(**values)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        score=text.score,
        signed=text.signed,
        money=text.money,
        duration=text.duration,
        clean=text.clean,
        prose=text.prose,
        one_line=text.one_line,
        moment=text.moment,
        plural=text.plural,
        tokens=text.tokens,
        json=_json,
    )
    environment.globals.update(phase_titles=PHASE_TITLES)
    return environment


def _json(value: Any) -> Markup:
    """JSON that can stand in a `<script>` element: nothing in it can end the element or begin another."""
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(written.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


@lru_cache(maxsize=8)
def static(name: str) -> str:
    """A file of `static/`."""
    return (HERE / "static" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def styles() -> Markup:
    """The style sheet of every page."""
    return Markup(f"{static('report.css')}\n{style_sheet()}")


def content_policy(scripts: list[str], *, live: bool) -> str:
    """What the page may do: its own scripts, its own styles, nothing else, no request to anywhere."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'"
    )
