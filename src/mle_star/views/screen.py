"""The screen of a running run: where it is, who is at work, what it has, what it spent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mle_star.basics.traits import traits_of
from mle_star.models import MetricDirection, is_improvement
from mle_star.run.events import RunStarted
from mle_star.views import text
from mle_star.views.facts import PHASE_TITLES, PathStory, Work, place_of
from mle_star.views.headlines import Headline
from mle_star.views.story import RunStory
from mle_star.views.verdict import Verdict

BLOCKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 24
NEWS_LINES = 8
COLOURS = {"good": "green", "warning": "yellow", "error": "red", "info": ""}


def screen(story: RunStory, size: ConsoleDimensions, now: datetime | None = None) -> Panel:
    """The whole picture, in `size`; made of texts only, so nothing in a plan or name can style it."""
    now = now or datetime.now(timezone.utc)
    workers = _workers(story, now, size.width)
    room = size.height - 9 - workers.row_count
    airy = room >= NEWS_LINES + 3
    news = _news(story, max(1, min(NEWS_LINES, room)), size.width)
    parts: list[RenderableType] = [_progress(story, size.width - 4), _facts(story, now)]
    parts += [workers] if workers.row_count else []
    parts.append(news)
    body = Group(*(piece for part in parts for piece in ((part, "") if airy and part is not news else (part,))))
    hint = "Ctrl-C: finish with the best so far · twice: stop"
    return Panel(body, title=_title(story), subtitle=hint, title_align="left", subtitle_align="left", padding=(0, 1))


def sparkline(scores: list[float], direction: MetricDirection, width: int = SPARK_WIDTH) -> str:
    """The best score so far, attempt by attempt; up is better, whichever way the metric goes."""
    best: list[float] = []
    for value in scores:
        better = not best or is_improvement(value, best[-1], direction)
        best.append(value if better else best[-1])
    if not best:
        return ""
    if len(best) > width:
        best = [best[round(index * (len(best) - 1) / (width - 1))] for index in range(width)]
    low, high = min(best), max(best)
    if high == low:
        return BLOCKS[0] * len(best)
    sign = 1 if direction is MetricDirection.maximize else -1
    worst = low if sign > 0 else high
    return "".join(BLOCKS[round(sign * (value - worst) / (high - low) * (len(BLOCKS) - 1))] for value in best)


# --- parts -----------------------------------------------------------------------------------------------------


def _title(story: RunStory) -> Text:
    if story.started is None:
        return Text("mle-star")
    name = text.one_line(story.started.task.competition_id, 34)
    return Text(f"{name} · {_model(story.started)}", style="bold")


def _model(started: RunStarted) -> str:
    return text.one_line(traits_of(started.model).title, 28)


def _progress(story: RunStory, width: int) -> Text:
    """Phase, bar and count on one line."""
    done, planned = story.progress
    title, count = PHASE_TITLES.get(story.phase, "starting"), f"{done}/{planned} steps"
    room = max(width - len(title) - len(count) - 4, 0)
    filled = round(room * done / planned) if planned else 0
    line = Text(f"{title}  ", style="bold", no_wrap=True, overflow="ellipsis")
    line.append("━" * filled, style="not bold magenta").append("─" * (room - filled), style="not bold bright_black")
    return line.append(f"  {count}", style="not bold")


def _facts(story: RunStory, now: datetime) -> Text:
    """Best score, money and time, each with what it is measured against."""
    verdict = Verdict.of(story)
    style = {"good": "green", "bad": "yellow"}.get(verdict.gain_level, "")
    arrow = "↑" if story.direction is MetricDirection.maximize else "↓"
    line = sparkline([one.score for one in story.attempts if one.score is not None], story.direction)
    facts = Text(no_wrap=True, overflow="ellipsis")
    facts.append("best   ", style="dim").append(text.score(story.score), style="bold").append(
        f"  {verdict.gain}\n", style
    )
    facts.append("       ").append(f"{line}  " if line else "", style="cyan")
    facts.append(f"{text.one_line(story.metric, 30)} {arrow}\n")
    facts.append("money  ", style="dim").append_text(_spent(text.money(story.totals.cost_usd), *_money_limits(story)))
    facts.append("\ntime   ", style="dim")
    facts.append_text(_spent(text.clock(_elapsed(story, now)), *_time_limits(story)))
    return facts.append(_end(story, now))


def _end(story: RunStory, now: datetime) -> str:
    """When it will be over, by the forecast."""
    whole = story.forecast.seconds if story.forecast else None
    if whole is None or story.finished is not None:
        return ""
    left = max(min(whole, story.config.time_limit_seconds) - _elapsed(story, now), 0.0)
    return f" · ends about {(now + timedelta(seconds=left)).astimezone():%H:%M}"


def _elapsed(story: RunStory, now: datetime) -> float:
    since = (now - story.clock.last).total_seconds() if story.clock.last is not None and not story.finished else 0.0
    return story.clock.seconds + max(since, 0.0)


def _money_limits(story: RunStory) -> tuple[str, str]:
    limit, forecast = story.config.max_budget_usd, story.forecast.cost_usd if story.forecast else None
    return (
        "no limit" if limit is None else f"of {text.money(limit)}",
        "" if forecast is None else text.money(forecast),
    )


def _time_limits(story: RunStory) -> tuple[str, str]:
    forecast = story.forecast.seconds if story.forecast else None
    limit = f"of {text.clock(story.config.time_limit_seconds)}"
    return limit, "" if forecast is None else text.clock(forecast)


def _spent(spent: str, limit: str, forecast: str) -> Text:
    return Text().append(spent, style="bold").append(f" {limit}" + (f" · forecast {forecast}" if forecast else ""))


def _workers(story: RunStory, now: datetime, width: int) -> Table:
    """Per path, and for all that is on none, who is at work and for how long."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(20, width - 44))
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, justify="right", style="dim")
    for work in story.work_of(None):
        grid.add_row(*map(Text, (_place(work), work.what, _since(work, now))))
    if story.phase == "phase2":
        for _, path in sorted(story.paths.items()):
            for cells in _path_rows(story, path, now):
                grid.add_row(*map(Text, cells))
    return grid


def _path_rows(story: RunStory, path: PathStory, now: datetime) -> Iterator[tuple[str, str, str, str]]:
    score = text.score(path.best_score)
    works = story.work_of(path.index)
    if path.outcome:
        yield f"path {path.index}", path.outcome, "", score
    for work in works:
        place, limit = _place(work), "" if work.limit_seconds is None else f" of {text.clock(work.limit_seconds)}"
        yield place, work.what, _since(work, now) + limit, score
    if not works and not path.outcome:
        yield f"path {path.index}", "waiting", "", score


def _place(work: Work) -> str:
    """`path 0 step 1 try 2`, as far as the step says it."""
    return place_of(work.step, "try", " ")


def _since(work: Work, now: datetime) -> str:
    return text.clock((now - work.since).total_seconds())


def _news(story: RunStory, lines: int, width: int) -> Text:
    last: list[Headline] = [news for news in story.news if not news.minor][-lines:]
    shown = Text(no_wrap=True, overflow="ellipsis")
    for index, news in enumerate(last):
        line = text.one_line(f"{news.at.astimezone():%H:%M:%S} {news.place}: {news.words}", max(width - 6, 20))
        shown.append(("\n" if index else "") + line, style=COLOURS[news.level])
    return shown
