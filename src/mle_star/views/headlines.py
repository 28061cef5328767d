"""Events in one line each, for people who watch a run."""

from datetime import datetime
from typing import Literal, NamedTuple

from mle_star.method.scores import BASELINE
from mle_star.models.texts import plural, some_of
from mle_star.run import events
from mle_star.views import text
from mle_star.views.facts import PHASE_TITLES, SHORT_TITLES, name_of, place_of

Level = Literal["info", "good", "warning", "error"]
Line = tuple[Level, str]
_WIDTH = 160


class Headline(NamedTuple):
    """When, how serious, where and what; plain text throughout. A `minor` one is only for lists with room."""

    at: datetime
    level: Level
    place: str
    words: str
    minor: bool = False


def headline(event: events.AnyEvent) -> Headline | None:
    """The event in one line, or None when it is not worth one."""
    line = _line(event)
    if line is None:
        return None
    place = place_of(event.step) or SHORT_TITLES.get(event.step.partition("/")[0], "run")
    return Headline(event.at, line[0], place, text.one_line(line[1], _WIDTH), isinstance(event, events.Forecast))


def _title(plan: str) -> str:
    """The first sentence of a plan, which names it; the others say why."""
    return plan.partition(". ")[0]


def unseen(event: events.HoldOutPrepared) -> str:
    """The files that no script was shown."""
    return f"{some_of(event.not_shown)}: not shown to scripts, as labels may be in it"


def _line(event: events.AnyEvent) -> Line | None:
    """How serious an event is, and the words."""
    match event:
        # what concerns the run as a whole
        case events.RunStarted():
            return "info", f"starts on {event.task.competition_id}, model {event.model}"
        case events.RunResumed():
            spent = f"{text.duration(event.spent_seconds)} and {text.money(event.spent_cost_usd)}"
            return "info", f"continues; {spent} were spent before, and what is recorded is not done again"
        case events.RunFinished() if event.state == "completed":
            early = "ended early, " if event.result is None or event.result.stopped_by else ""
            return "good", f"{early + event.message if event.message else 'completed'}, score {text.score(event.score)}"
        case events.RunFinished():
            return "error", f"{event.state}: {event.message}"
        case events.PhaseStarted() if event.path is None:
            return "info", f"{PHASE_TITLES[event.phase].partition(': ')[2]} begins"
        case events.PhaseFinished():
            # the line after that of finalization says its score
            score = "" if event.phase == "finalization" or event.score is None else f", score {text.score(event.score)}"
            detail = f": {event.detail}" if event.detail and event.outcome != "completed" else ""
            level: Level = "warning" if event.outcome in ("failed", "cancelled") else "info"
            return level, f"{event.outcome}{score}{detail}"
        case events.Forecast() if event.cost_usd or event.seconds is not None:
            money = f" and {text.money(event.cost_usd)}" if event.cost_usd else ""
            return "info", f"the whole plan would take {text.duration(event.seconds)}{money} ({event.basis})"
        case events.BudgetWarning():
            show = text.duration if event.limit == "time" else text.money
            return "warning", f"80 % of the {event.limit} limit is used: {show(event.used)} of {show(event.allowed)}"
        case events.FinishRequested():
            what = "stop at once" if event.now else "finish with the best so far"
            return "warning", f"asked to {what} ({event.source})"
        case events.Notice():
            return event.level, event.message
        # what candidates, merges and ensembles came to, and how they are scored
        case events.HoldOutPrepared() if event.why_not:
            return "warning", f"scores are what scripts print (self-reported): {event.why_not}"
        case events.HoldOutPrepared():
            rounds = f" in {event.views} rounds" if event.views > 1 else ""
            later = f"; {event.select_rows:,} more for the expected score" if event.select_rows else ""
            hidden = f"scripts are scored on {plural(event.search_rows, 'hidden row')}{rounds} ({event.rule}){later}"
            return ("warning", f"{hidden}; {unseen(event)}") if event.not_shown else ("info", hidden)
        case events.ShortlistScored():
            chosen = place_of(event.chosen) or event.chosen
            return "info", f"final selection out of {plural(len(event.shortlist), 'solution')}: {chosen}"
        case events.ModelsRetrieved():
            return "info", f"{plural(len(event.names), 'model')} found: {', '.join(event.names)}"
        case events.CandidateEvaluated():
            if event.score is None:
                how = "left out" if event.error == events.OUT_OF_TIME else "failed"
                return "warning", f"{event.model_name} {how}: {event.error}"
            return "info", f"{event.model_name} scores {text.score(event.score)}"
        case events.Decided(name="in-time", value=False) if "/candidate-" not in event.step:
            unit = event.step.split("/")[1].replace("-", " ")
            return "warning", f"{unit} left out: the phase ended before it was done"
        case events.MergeTried() if event.accepted:
            return "good", f"{event.reference_model} merged in: {text.score(event.score)}"
        case events.MergeTried():
            return "info", f"{event.reference_model} not merged in: {event.reason or text.score(event.score)}"
        case events.DataUsageChecked() if event.changed:
            return "info", f"data that was not used yet is used: {text.score(event.score)}"
        case events.EnsembleTried():
            if event.score is None:
                return "warning", f"ensemble failed: {event.plan}"
            words = f"ensemble scores {text.score(event.score)}: {_title(event.plan)}"
            return "good" if event.best else "info", words
        # what was tried on a block, what failed, and what was fixed
        case events.AblationFinished() if event.skipped:
            return "info", "no time for an ablation study: the block is chosen without it"
        case events.AblationFinished() if event.failed:
            return "warning", "the ablation study failed"
        case events.AblationFinished():
            parts = sum(name.lower() != BASELINE for name in event.scores)
            what = f" of {plural(parts, 'part')}" if parts else ""
            return "info", f"ablation study{what}: {text.sentences(text.prose(event.summary), _WIDTH - 30)}"
        case events.BlockChosen() if event.block:
            return "info", f"refining {plural(event.block.count(chr(10)) + 1, 'line')}: {_title(event.plan)}"
        case events.BlockChosen():
            return "warning", "no block to refine, step skipped"
        case events.RefinementTried():
            if event.score is None:
                return "warning", f"attempt failed: {event.plan}"
            tried = f"{text.score(event.score)}: {_title(event.plan)}"
            return ("good", f"best of its path so far, {tried}") if event.accepted else ("info", f"not better, {tried}")
        case events.AgentFailed():
            return "error", f"{name_of(event.agent)} gave no answer ({event.reason}): {event.message}"
        case events.ScriptFinished() if event.result.is_error:
            result = event.result
            why = "time limit reached" if result.timed_out else text.last_line(result.error_traceback or result.stderr)
            return "warning", f"script failed: {why or f'exit code {result.exit_code}'}"
        case events.LeakageChecked() if event.found:
            return "warning", f"data leakage found in {plural(event.found, 'place')}, {event.fixed} fixed"
        case events.DebugAttempted() if event.accepted:
            return "info", f"repaired: {event.error}"
        case events.DebugAttempted():
            return "warning", f"repair refused ({event.reason}): {event.error}"
    return None
