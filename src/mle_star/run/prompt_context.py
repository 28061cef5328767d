"""What agents are told beyond the specification: sections of their own, made from what the run knows now.

None of it counts for whether a recorded reply answers a question: times, and what other paths have tried meanwhile,
differ when a run is resumed. `briefing` and `diversity` switch each part off; with none of them a prompt is the
specification's.
"""

from collections.abc import Callable, Mapping
from difflib import unified_diff
from typing import Any, NamedTuple

from mle_star.agents import Agent, Request
from mle_star.method.excerpts import excerpt, new_lines
from mle_star.method.scores import ANALYSIS, parse_analysis
from mle_star.models import AgentType, PipelineConfig
from mle_star.models.agents import AGENTS, section
from mle_star.models.enums import phase_of
from mle_star.models.texts import digest_of, duration, figure, plural, shorten
from mle_star.prompts import fenced
from mle_star.run import events
from mle_star.run.context import RunContext
from mle_star.run.timing import ABLATION_RUNS, limit_in_run, share_in_run
from mle_star.run.tried import MAX_ERROR, MAX_PLAN, one_line, steps_without_gain, tried_table

MAX_SCRIPT = 12_000
MAX_ANALYSIS = 1500
MAX_PRINTED = 800
MAX_REPAIRS = 8
MAX_DIFFS, MAX_DIFF = 2, 1200
MAX_TRICK, MAX_NOTES = 4000, 2000
BOLDER_AFTER = 2
"""So many steps of a path without a gain, and a bolder plan is asked for."""

MARK = "# >>> here stands the code block that is shown above <<<"
EMPHASIS = (
    "what the rows hold: features, encodings, gaps, texts and dates",
    "the model: its family, its objective and its settings",
    "training and validation: folds, seeds, weights, loss, stopping and blending",
)


Values = Mapping[str, Any]
Slots = dict[str, str] | None
"""What fills a section; None where there is nothing to say."""


class _Call(NamedTuple):
    """A call that is to be made: what is known of it when its prompt is written."""

    run: RunContext
    agent: Agent
    request: Request
    values: Values


def prompt_context(run: RunContext, agent: AgentType, variant: str | None, values: Values) -> str:
    """The sections for one call, in order; empty when there is nothing to add."""
    on, request = {*run.config.briefing, *run.config.diversity}, AGENTS[agent].request(variant)
    call = _Call(run, AGENTS[agent], request, values)
    found = ((name, make(call)) for name, (part, make) in _SECTIONS.items() if part in on and name in request.context)
    return "\n\n".join(section(name, **slots) for name, slots in found if slots is not None)


def whole_script(run: RunContext, agent: AgentType, variant: str | None, values: Values) -> str:
    """Where the block of coder and planner stands: the same in all tries of a step, so it precedes what changes.

    Both begin alike, so that one cache serves both.
    """
    script, block = str(values.get("around") or ""), str(values.get("code_block", ""))
    if "script" not in run.config.briefing or "script" not in AGENTS[agent].request(variant).context or not script:
        return ""
    if block.strip() and block in script:
        first = script[: script.index(block)].count("\n") + 1
        script = excerpt(script, range(first, first + len(block.splitlines())))
    return section("script", script=fenced(shorten(around(script, block), MAX_SCRIPT)))


def rows_to_learn_from(run: RunContext, cap: int) -> int:
    """The cap on training rows: the usual one, or more where the table has more and the time allows them.

    The candidates of Phase 1 keep to the usual one, so their times say how long that many rows take.
    """
    sample = run.shared.scripts.sample
    if sample is None or run.phase == "phase1" or cap != PipelineConfig.model_fields["subsample_limit"].default:
        return cap
    taken = sorted(one.seconds for one in run.ledger.solutions("phase1/candidate-") if one.seconds)
    if not taken:
        return cap
    room = int(share_in_run(run, limit_in_run(run)) / (2 * taken[len(taken) // 2]))
    return min(sample.of, max(room, 1) * cap)


def around(script: str, block: str) -> str:
    """The script with a mark in the place of the block, which is shown elsewhere; as it is where the block is not."""
    start = script.find(block) if block.strip() else -1
    if start < 0:
        return script
    before, after = script[:start], script[start + len(block) :]
    indent = block[: len(block) - len(block.lstrip())].rpartition("\n")[2]
    end = "\n" if block.endswith("\n") or not after.startswith("\n") else ""
    return f"{before}{indent}{MARK}{end}{after}"


# --- code ------------------------------------------------------------------------------------------------


def _input_scores(call: _Call) -> Slots:
    """What is merged or ensembled: each score and time, and how far each two err alike."""
    values, took = call.values, call.run.ledger.took
    scores = values.get("input_scores") or ()
    two = {"base solution": values.get("base_code"), "reference solution": values.get("reference_code")}
    known = two if "base_code" in values else {f"solution {n}": s for n, s in enumerate(values.get("solutions", ()), 1)}
    names = list(known)
    seconds = [f", {words_of(took(str(script)))}" if took(str(script)) else "" for script in known.values()]
    lines = [f"- {name}: {_score(score)}{time}" for name, score, time in zip(names, scores, seconds, strict=False)]
    lines += [f"- {names[a]} and {names[b]}: {words}" for a, b, words in values.get("overlap", ())]
    return {"lines": "\n".join(lines)} if lines else None


def _best(call: _Call) -> Slots:
    """The best block or ensemble so far, with its score, to build on; without what the prompt holds anyway."""
    best = call.values.get("best")
    if best is None:
        return None
    code = new_lines(str(best[0]), call.values.get("solutions", ()))
    use = "The plan may build on it." if call.agent.plans else "Take over from it what the plan builds on."
    return {"score": _score(best[1]), "use": use, "code": fenced(shorten(code, MAX_SCRIPT))}


def _solution(call: _Call) -> Slots:
    """What the solution scores, how long it takes, what it printed last."""
    names = ("solution_script", "final_solution", "around")
    solution = next((str(call.values[name]) for name in names if call.values.get(name)), "")
    known = call.run.ledger.latest_run(digest_of(solution))
    if known is None or known.result.is_error:
        return None
    tail = known.result.stdout.strip()[-MAX_PRINTED:]
    printed = f" Its last words:\n\n{fenced(tail, 'text')}" if tail else ""
    return {"score": _score(known.score), "seconds": words_of(known.seconds), "printed": printed}


# --- what was found out ----------------------------------------------------------------------------------


def _keep_analysis(call: _Call) -> Slots:
    return {"mark": ANALYSIS} if parse_analysis(str(call.values.get("raw_result", ""))) else None


def _analysis(call: _Call) -> Slots:
    """Where the errors are, as the last study of this path printed it."""
    lines = call.run.reached.analysis(call.run.path)
    return {"lines": fenced(_first_lines(lines, MAX_ANALYSIS), "text")} if lines else None


def _first_lines(text: str, most: int) -> str:
    """As many whole lines as have room: no number is cut in two. Of a first line that is too long, its words."""
    if len(text) <= most:
        return text
    cut = max(text.rfind("\n", 0, most), 0) or max(text.rfind(" ", 0, most), 0) or most
    return text[:cut].rstrip()


def _memory(call: _Call) -> Slots:
    """What the run has tried."""
    t = next((int(part[2:]) for part in call.run.parts if part.startswith("t-")), None)
    table = tried_table(call.run.ledger, path=call.run.path, t=t, above=call.values.get("plans", ()))
    return {"table": table} if table else None


def _repairs(call: _Call) -> Slots:
    """What was repaired here before."""
    errors = call.run.ledger.repairs("/".join(call.run.parts))[-MAX_REPAIRS:]
    return {"lines": "\n".join(f"{number}. {error}" for number, error in enumerate(errors, 1))} if errors else None


def _changed_by_repairs(call: _Call) -> Slots:
    """What the last repairs changed in scripts of this step."""
    ledger, place, found = call.run.ledger, "/".join((*call.run.parts[:-1], "")), list[str]()
    for step, one in reversed(ledger.repaired.items()):
        before, after = (ledger.text(digest).splitlines() for digest in (one.parent, one.digest))
        if step.startswith(place) and before and after and len(found) < MAX_DIFFS:
            lines = [*unified_diff(before, after, n=0, lineterm="")][2:]
            error = one_line((one.error.strip() or "no error").splitlines()[-1], MAX_ERROR)
            changes = fenced(shorten("\n".join(lines), MAX_DIFF), "diff")
            found.append(f"After `{error}`:\n\n{changes}")
    return {"diffs": "\n\n".join(reversed(found))} if found else None


def _notes(call: _Call) -> Slots:
    found = call.run.ledger.retrieved
    notes = "" if found is None else found.notes
    return {"notes": fenced(shorten(notes, MAX_NOTES), "text")} if notes else None


# --- limits ----------------------------------------------------------------------------------------------


def _limits(call: _Call) -> Slots:
    """How long a script may run, how long the current one takes, what is left of the time."""
    run, study, repair = call.run, call.request.study, "repairs" in call.request.context
    limit, takes = limit_in_run(run, "ablation" if study else "solution"), run.solution_seconds
    if run.phase == "finalization":  # a final script has all the time, and is no longer what was measured
        limit, takes = limit_in_run(run, "submission", run.config.time_limit_seconds), None
    what = "The whole study, with all its runs," if study else "A script"
    lines = [f"- {what} is stopped after {words_of(limit)}."]
    if takes is not None:
        whose = "The solutions above together take" if run.phase == "phase3" else "The best solution so far takes"
        times = run.views_in_turn
        views = f" on each of {times} views of the rows, one after another: {words_of(times * takes)} for a score"
        lines.append(f"- {whose} {words_of(takes)}{views * (times > 1 and not study)}.")
    if takes is not None and study:
        room = int(limit / max(1.3 * takes, 0.1)) - 1
        variants = "1 variant, of one part" if room < 2 else plural(min(ABLATION_RUNS - 1, room), "variant")
        lines.append(f"- So there is time for the baseline and {variants}.")
        if room < 1:
            lines.append("- Use fewer rounds, folds or rows, the same in every run of the study.")
    sample = run.shared.scripts.sample
    if sample is not None and not study and not call.agent.plans and run.phase != "finalization":
        first = f"- A new script may first run on a sample of {sample.rows} of the {sample.of} training rows"
        lines.append(f"{first}, and must work there; all rows give its score.")
    left, whole = run.seconds_left, run.budget.time_limit - run.budget.elapsed()
    lines.append(f"- {words_of(left)} of this phase are left, {words_of(whole)} of the run.")
    if not study and (not repair or run.phase == "finalization"):
        lines.append(section(run.phase if phase_of(run.phase) else "phase2"))
    if repair and "TimeoutError" in str(call.values.get("bug", "")):
        lines.append(section("too_slow"))
    return {"lines": "\n".join(lines)}


# --- diversity -------------------------------------------------------------------------------------------


def _candidates(call: _Call) -> Slots:
    others = call.values.get("other_models")
    return {"lines": "\n".join(f"- {line}" for line in others)} if others else None


def _emphasis(call: _Call) -> Slots:
    path, paths = call.run.path, call.run.config.num_parallel_solutions
    if path is None or paths == 1:
        return None
    return {"number": str(path + 1), "count": str(paths), "emphasis": EMPHASIS[path % len(EMPHASIS)]}


def _bolder(call: _Call) -> Slots:
    """For a path that has gained nothing for a while."""
    path = call.run.path
    return {} if path is not None and steps_without_gain(call.run.ledger, path) >= BOLDER_AFTER else None


def _elsewhere(call: _Call) -> Slots:
    """The change that made the best solution of the run, if another path made it."""
    best = call.run.ledger.best()
    node = None if best is None or call.run.path is None else call.run.ledger.node_of(best.script_id)
    event = None if node is None else node.event
    if not isinstance(event, events.RefinementTried) or event.path == call.run.path:
        return None
    code = fenced(shorten(event.after, MAX_TRICK))
    return {"score": _score(event.score), "plan": one_line(event.plan, MAX_PLAN), "code": code}


_SECTIONS: dict[str, tuple[str, Callable[[_Call], Slots]]] = {
    "input_scores": ("best", _input_scores),
    "best_block": ("best", _best),
    "best_ensemble": ("best", _best),
    "solution": ("best", _solution),
    "ask_for_analysis": ("errors", lambda call: {"mark": ANALYSIS}),
    "keep_analysis": ("errors", _keep_analysis),
    "analysis": ("errors", _analysis),
    "memory": ("memory", _memory),
    "repairs": ("memory", _repairs),
    "ask_for_notes": ("research", lambda call: {}),
    "changed_by_repairs": ("memory", _changed_by_repairs),
    "notes": ("research", _notes),
    "limits": ("limits", _limits),
    "refit": ("refit", lambda call: {}),
    "model": ("model", lambda call: {}),
    "families": ("families", lambda call: {}),
    "candidates": ("families", _candidates),
    "emphasis": ("emphasis", _emphasis),
    "bolder": ("memory", _bolder),
    "elsewhere": ("borrowing", _elsewhere),
}
"""The sections in their order: the part of `briefing` or `diversity` that switches each, and what fills it."""


# --- words -----------------------------------------------------------------------------------------------


def _score(score: float | None) -> str:
    return "nothing yet" if score is None else figure(score)


def words_of(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 30 min`: above two minutes no seconds, of which a resumed run would have others."""
    return duration(seconds if seconds < 120 else 60 * round(seconds / 60))
