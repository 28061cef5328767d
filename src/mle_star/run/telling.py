"""What agents are told beyond the specification: sections of their own, made from what the run knows now.

None of it counts for whether a recorded reply answers a question: times, and what other paths have tried meanwhile,
differ when a run is taken up again. `briefing` and `diversity` switch each part off; with none of them a prompt is the
specification's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mle_star.basics.texts import digest_of, plural, shorten
from mle_star.method.scores import ANALYSIS, parse_analysis
from mle_star.models import AgentType, PipelineConfig
from mle_star.prompts import fenced
from mle_star.run.budget import ABLATION_RUNS, PHASES
from mle_star.run.context import RunContext
from mle_star.run.limits import limit_in_run, share_in_run
from mle_star.run.memory import steps_without_gain, tried, tried_table
from mle_star.templates import told_piece

MAX_SCRIPT = 12_000
MAX_ANALYSIS = 1500
MAX_PRINTED = 800
MAX_NOTES = 2000
MAX_REPAIRS = 8
BORROW_AFTER = 2
"""So many steps of a path without a gain, and it is shown the best of another."""

MARK = "# >>> here stands the code block that is shown above <<<"
EMPHASIS = (
    "what the rows hold: features, encodings, gaps, texts and dates",
    "the model: its family, its objective and its settings",
    "training and validation: folds, seeds, weights, loss, stopping and blending",
)

_WRITERS = {
    AgentType.init, AgentType.merger, AgentType.ablation, AgentType.coder, AgentType.ensembler, AgentType.debugger,
    AgentType.data, AgentType.test,
}  # fmt: skip
_PLANNERS = {AgentType.planner, AgentType.extractor, AgentType.ens_planner}

Values = Mapping[str, Any]


def told(run: RunContext, agent: AgentType, variant: str | None, values: Values) -> str:
    """The sections for one call, in order; empty when there is nothing to add."""
    parts: dict[str, Callable[[RunContext, AgentType, str | None, Values], Iterator[str]]] = {
        "best": _best,
        "errors": _errors,
        "memory": _memory,
        "research": _research,
        "limits": _limits,
        "refit": _refit,
        "model": _model,
    }
    wanted = [part for name, part in parts.items() if name in run.config.briefing]
    found = [text for part in wanted for text in part(run, agent, variant, values)]
    return "\n\n".join([*found, *_diversity(run, agent, values)])


def whole_script(run: RunContext, agent: AgentType, values: Values) -> str:
    """Where the block of coder and planner stands: the same in all tries of a step, so it precedes what changes."""
    script = values.get("around")
    if "script" not in run.config.briefing or agent not in (AgentType.coder, AgentType.planner) or not script:
        return ""
    shown = shorten(around(str(script), str(values.get("code_block", ""))), MAX_SCRIPT)
    return told_piece("script", script=fenced(shown))


def rows_to_learn_from(run: RunContext, cap: int) -> int:
    """The cap on training rows: the usual one, or more where the table has more and the time allows them.

    The candidates of Phase 1 keep to the usual one, so their times say how long that many rows take.
    """
    sample = run.shared.scripts.sample
    usual = PipelineConfig.model_fields["subsample_limit"].default
    if sample is None or run.phase == "phase1" or cap != usual:
        return cap
    entries = [entry for entry in tried(run.ledger) if entry.where == "candidate" and entry.score is not None]
    taken = sorted(entry.seconds for entry in entries if entry.seconds)
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


def _best(run: RunContext, agent: AgentType, variant: str | None, values: Values) -> Iterator[str]:
    """The best block, script or ensemble so far, with its score, to build on; the scores of what is ensembled."""
    scores = values.get("input_scores")
    if scores:
        lines = [f"- solution {number}: {_score(score)}" for number, score in enumerate(scores, 1)]
        yield told_piece("input_scores", lines="\n".join(lines))
    best = values.get("best")
    if best is not None:
        what = "best_ensemble" if agent in (AgentType.ens_planner, AgentType.ensembler) else "best_block"
        use = "The plan may build on it." if agent in _PLANNERS else "Take over from it what the plan builds on."
        yield told_piece(what, score=_score(best[1]), use=use, code=fenced(shorten(str(best[0]), MAX_SCRIPT)))
    if agent not in (AgentType.extractor, AgentType.planner, AgentType.test) or variant:
        return
    names = ("solution_script", "final_solution", "around")
    solution = next((str(values[name]) for name in names if values.get(name)), "")
    known = run.ledger.latest_run(digest_of(solution))
    if known is not None and not known.is_error:
        tail = known.printed.strip()[-MAX_PRINTED:]
        printed = f" Its last words:\n\n{fenced(tail, 'text')}" if tail else ""
        yield told_piece("solution", score=_score(known.score), seconds=words_of(known.seconds), printed=printed)


# --- what was found out ----------------------------------------------------------------------------------


def _errors(run: RunContext, agent: AgentType, variant: str | None, values: Values) -> Iterator[str]:
    """The study prints where the errors are; summary, extractor and planner look at that."""
    if agent is AgentType.ablation:
        yield told_piece("ask_for_analysis", mark=ANALYSIS)
    elif agent is AgentType.summarize and parse_analysis(str(values.get("raw_result", ""))):
        yield told_piece("keep_analysis", mark=ANALYSIS)
    elif agent in (AgentType.extractor, AgentType.planner):
        lines = run.shared.search.analyses.get(run.label, "")
        if lines:
            yield told_piece("analysis", lines=fenced(shorten(lines, MAX_ANALYSIS), "text"))


def _memory(run: RunContext, agent: AgentType, variant: str | None, values: Values) -> Iterator[str]:
    """What the run has tried, for those who plan; what was repaired here before, for the debugger."""
    if agent in _PLANNERS:
        table = tried_table(run.ledger, path=run.path, t=_outer_step(run))
        if table:
            yield told_piece("memory", table=table)
    elif agent is AgentType.debugger:
        errors = run.ledger.repairs("/".join(run.parts))[-MAX_REPAIRS:]
        if errors:
            lines = [f"{number}. {error}" for number, error in enumerate(errors, 1)]
            yield told_piece("repairs", lines="\n".join(lines))


def _research(run: RunContext, agent: AgentType, variant: str | None, values: Values) -> Iterator[str]:
    notes = run.shared.search.research
    if agent is AgentType.retriever:
        yield told_piece("ask_for_notes")
    elif notes and agent in (AgentType.planner, AgentType.ens_planner):
        yield told_piece("notes", notes=fenced(shorten(notes, MAX_NOTES), "text"))


# --- limits ----------------------------------------------------------------------------------------------


def _limits(run: RunContext, agent: AgentType, variant: str | None, values: Values) -> Iterator[str]:
    """How long a script may run, how long the current one takes, what is left of the time."""
    if agent not in _WRITERS | _PLANNERS or variant in ("subsampling_extract", "subsampling_remove", "contamination"):
        return
    study = agent is AgentType.ablation or variant == "ablation"
    limit, takes = limit_in_run(run, "ablation" if study else "solution"), run.solution_seconds
    if run.phase == "finalization":  # a final script has all the time, and is no longer what was measured
        limit, takes = limit_in_run(run, "submission", run.config.time_limit_seconds), None
    what = "The whole study, with all its runs," if study else "A script"
    lines = [f"- {what} is stopped after {words_of(limit)}."]
    if takes is not None:
        whose = "The solutions above together take" if run.phase == "phase3" else "The current solution takes"
        lines.append(f"- {whose} {words_of(takes)}.")
    if takes is not None and study:
        room = int(limit / max(1.3 * takes, 0.1)) - 1
        count = max(1, min(ABLATION_RUNS - 1, room))
        lines.append(f"- So there is time for the baseline and {plural(count, 'variant')}.")
        if room < 1:
            lines.append("- Use fewer rounds, folds or rows, the same in every run of the study.")
    sample = run.shared.scripts.sample
    if sample is not None and not study and agent not in _PLANNERS and run.phase != "finalization":
        rows = f"{sample.rows} of the {sample.of} training rows"
        lines.append(
            f"- A new script may first run on a sample of {rows}, and must work there; all rows give its score."
        )
    left, whole = run.budget.remaining_seconds(), run.budget.time_limit - run.budget.elapsed()
    lines.append(f"- {words_of(left)} of this phase are left, {words_of(whole)} of the run.")
    if not study and (agent is not AgentType.debugger or run.phase == "finalization"):
        lines.append(told_piece(run.phase if run.phase in PHASES else "phase2"))
    if agent is AgentType.debugger and "TimeoutError" in str(values.get("bug", "")):
        lines.append(told_piece("too_slow"))
    yield told_piece("limits", lines="\n".join(lines))


def _refit(run: RunContext, agent: AgentType, variant: str | None, values: Values) -> Iterator[str]:
    if agent in (AgentType.init, AgentType.merger, AgentType.ensembler, AgentType.data):
        yield told_piece("refit")


def _model(run: RunContext, agent: AgentType, variant: str | None, values: Values) -> Iterator[str]:
    if agent is AgentType.test and variant is None:
        yield told_piece("model")


# --- diversity -------------------------------------------------------------------------------------------


def _diversity(run: RunContext, agent: AgentType, values: Values) -> Iterator[str]:
    chosen, paths = run.config.diversity, run.config.num_parallel_solutions
    if "families" in chosen and agent is AgentType.retriever:
        yield told_piece("families")
    others = values.get("other_models")
    if "families" in chosen and agent is AgentType.init and others:
        yield told_piece("candidates", lines="\n".join(f"- {line}" for line in others))
    if agent not in (AgentType.extractor, AgentType.planner) or run.path is None or paths == 1:
        return
    if "emphasis" in chosen:
        emphasis = EMPHASIS[run.path % len(EMPHASIS)]
        yield told_piece("emphasis", number=str(run.path + 1), count=str(paths), emphasis=emphasis)
    if "borrowing" in chosen and agent is AgentType.extractor:
        other = _other_best(run)
        if other is not None and steps_without_gain(run.ledger, run.path) >= BORROW_AFTER:
            yield told_piece("borrow", score=_score(other[0]), code=fenced(shorten(other[1], MAX_SCRIPT)))


def _other_best(run: RunContext) -> tuple[float, str] | None:
    """The best clean script of the first other path that has one."""
    for label in (f"path-{index}" for index in range(run.config.num_parallel_solutions) if index != run.path):
        best = run.ledger.best(f"phase2/{label}/")
        if best is not None and best.score is not None and not run.ledger.leaks(best.script):
            return best.score, run.ledger.text(best.script)
    return None


# --- words -----------------------------------------------------------------------------------------------


def _outer_step(run: RunContext) -> int | None:
    return next((int(part[2:]) for part in run.parts if part.startswith("t-")), None)


def _score(score: float | None) -> str:
    return "nothing yet" if score is None else f"{score:.6g}"


def words_of(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`."""
    seconds = max(seconds, 0.0)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
