"""The embedded engineer: an expert system that plays all fourteen agents for tabular and text tasks.

It knows nothing of the pipeline. It sees the system prompt, the prompt it is sent and, through the data folder named
there, the files. Each agent is a function below; scripts are assembled from `mle_star.engineer.parts`.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mle_star.data.layout import find_layout
from mle_star.engineer import checks, foreign, moves, planning, repairs, studies
from mle_star.engineer.catalogue import fitting_families
from mle_star.engineer.design import assemble, recover
from mle_star.engineer.profile import Profile, look, refuse
from mle_star.engineer.reading import Question, fenced
from mle_star.engineer.server import MessagesServer
from mle_star.engineer.sources import definition_of
from mle_star.engineer.wire import BrainReply, BrainRequest
from mle_star.errors import ConfigError

ALL_USED = "All the provided information is used."
NO_SUBSAMPLING = "There is no subsampling."
ROWS = 30_000


class Served:
    """The model `offline`: a Messages API on loopback with the engineer behind it."""

    def __call__(self) -> MessagesServer:
        return MessagesServer(EngineerBrain())

    def refusal(self, metric: str, folder: Path, description: str) -> str:
        """Why it cannot work on a task, in one line, before anything runs; an empty text when it can."""
        why = refuse(metric, folder, description)
        return f"the embedded engineer works on tables and texts: {why}" if why else ""

    def look_ahead(self, folder: Path, description: str) -> None:
        """Read the tables while the first client starts; whatever stands in the way is said by who is asked first."""
        with suppress(ConfigError, OSError):
            train = find_layout(folder, description).train
            for name in train.columns:
                train.column(name)


serve = Served()


@dataclass
class _Memory:
    """What is remembered of a question: how often it was asked, and which sections were chosen for it."""

    asked: int = 0
    chosen: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Known:
    """What is known of the script that a block comes from: its score, and the models that it trains."""

    baseline: float | None = None
    models: tuple[str, ...] = ()


class EngineerBrain:
    """Answers by rule. Asked twice, it gives another answer where there is one, so that parallel paths differ."""

    def __init__(self) -> None:
        self._memories: defaultdict[str, _Memory] = defaultdict(_Memory)
        self._blocks: dict[str, _Known] = {}
        self._answering = threading.Lock()

    async def reply(self, request: BrainRequest) -> BrainReply:
        """The answer of the agent that is asked."""
        question = Question.of(request.agent, request.variant, request.system, request.prompt, 0)
        core = {
            "ablation": ("Python solution",),
            "extractor": ("Python solution",),
            "debugger": ("Script", "Error"),
        }.get(request.agent, ())
        same = "\0".join(question.block(heading) for heading in core) or request.prompt  # times told beside it differ
        memory = self._memories[hashlib.sha256(f"{request.agent}/{request.variant}/{same}".encode()).hexdigest()]
        desk = _Desk(question, memory, self._blocks, memory.asked)
        memory.asked += 1
        answer = await asyncio.to_thread(self._answer_alone, desk)
        return BrainReply(text=answer) if isinstance(answer, str) else BrainReply(structured=answer)

    def _answer_alone(self, desk: _Desk) -> str | dict[str, Any]:
        """One answer at a time: tables are looked at once, paths are not told the same, and `ast.parse` is never run
        by two threads, which some versions of Python end with a SystemError (gh-106905)."""
        with self._answering:
            if desk.asked.agent not in AGENTS:
                return f"There is no agent called {desk.asked.agent!r}."
            try:
                return AGENTS[desk.asked.agent](desk)
            except ConfigError as error:
                return f"The embedded engineer works on tables and texts: {error}."


@dataclass
class _Desk:
    """A question with what belongs to it."""

    asked: Question
    memory: _Memory
    blocks: dict[str, _Known]
    turn: int

    @property
    def profile(self) -> Profile:
        """What the data looks like."""
        return look(self.asked.metric, self.asked.folder, self.asked.description, self.asked.packages)


# --- Phase 1 ---------------------------------------------------------------------------------------------


def _retrieve(desk: _Desk) -> dict[str, Any]:
    chosen = fitting_families(desk.profile)[: int(desk.asked.facts.get("count") or 4)]
    return {"models": [{"model_name": f.name, "example_code": definition_of(f.fit).source} for f in chosen]}


def _init(desk: _Desk) -> str:
    name = str(desk.asked.facts.get("model") or desk.asked.block("Model"))
    rows = int(desk.asked.facts.get("rows") or ROWS)
    profile = desk.profile
    return fenced(assemble(planning.first_design(profile, planning.family_named(name, profile), rows)))


def _merge(desk: _Desk) -> str:
    base, reference = desk.asked.block("Base"), desk.asked.block("Reference")
    mine, other = recover(base), recover(reference)
    if mine is None or other is None:
        return fenced(base)
    return fenced(assemble(planning.united([mine, other], "careful" if len(mine.models) > 1 else "mean")))


# --- Phase 2 ---------------------------------------------------------------------------------------------


def _ablate(desk: _Desk) -> str:
    code = desk.asked.block("Python solution")
    design = recover(code)
    if design is None or not studies.parts_of(design):
        return fenced(foreign.study(code))
    previous = "\n".join(desk.asked.blocks("Study"))
    return fenced(assemble(studies.study(design, previous, desk.turn)))


def _summarize(desk: _Desk) -> str:
    higher = desk.asked.facts.get("direction", "maximize") == "maximize"
    return studies.summarize(desk.asked.block("Printed output"), higher=higher, metric=desk.asked.metric)


def _extract(desk: _Desk) -> dict[str, Any]:
    code, summary = desk.asked.block("Python solution"), desk.asked.block("Ablation summary")
    previous = desk.asked.blocks("Block ")
    chosen = planning.choose_blocks(code, summary, previous, desk.profile, desk.memory.chosen, desk.asked.before)
    design = recover(code)
    known = _Known(studies.findings_in(summary)[0], () if design is None else tuple(design.models))
    desk.blocks.update({block: known for block, _ in chosen})
    chosen = chosen or [foreign.block(code, previous)]
    return {"plans": [{"code_block": block, "plan": plan} for block, plan in chosen]}


def _plan(desk: _Desk) -> str:
    asked, block = desk.asked, desk.asked.block("Code block")
    known = desk.blocks.get(block, _Known())
    return planning.next_plan(block, asked.tried, desk.profile, known.baseline, asked.before, known.models)


def _code(desk: _Desk) -> str:
    return fenced(moves.apply(desk.asked.block("Plan"), desk.asked.block("Code block"), desk.profile))


# --- Phase 3 ---------------------------------------------------------------------------------------------


def _plan_ensemble(desk: _Desk) -> str:
    return planning.next_ensemble_plan(desk.asked.tried, desk.profile)


def _ensemble(desk: _Desk) -> str:
    solutions = desk.asked.blocks("Python Solution")
    return fenced(planning.ensemble(solutions, desk.asked.block("Ensemble plan"), desk.profile))


# --- safety and finalization -----------------------------------------------------------------------------


def _debug(desk: _Desk) -> str:
    return fenced(repairs.repair(desk.asked.block("Script"), desk.asked.block("Error"), desk.profile, desk.turn))


def _check_leakage(desk: _Desk) -> str | dict[str, Any]:
    code = desk.asked.block("Script")
    if desk.asked.variant == "correction":
        return fenced(desk.asked.block("Flagged block", "Leaking block") or code)
    if desk.asked.variant == "rewrite":
        return fenced(code)
    found = checks.leaks(code)
    if not found:
        return {"answers": [{"leakage_status": "No Data Leakage", "code_block": checks.preparation(code)}]}
    return {"answers": [{"leakage_status": "Yes Data Leakage", "code_block": block} for block in found]}


def _check_data_use(desk: _Desk) -> str:
    """Scripts of ours read every table that shares a key; of others' nothing is known."""
    return ALL_USED


def _test(desk: _Desk) -> str | dict[str, Any]:
    code, variant = desk.asked.block("Python solution"), desk.asked.variant
    if variant == "subsampling_extract":
        cap = checks.capped_rows(code)
        return fenced(cap) if cap else NO_SUBSAMPLING
    if variant == "subsampling_remove":
        return fenced("ROWS = None")
    if variant == "contamination":
        return {"verdict": checks.verdict(desk.asked.block("Reference"), code)}
    design = recover(code)
    return fenced(code if design is None else assemble(planning.final(design)))


AGENTS: dict[str, Callable[[_Desk], str | dict[str, Any]]] = {
    "retriever": _retrieve,
    "init": _init,
    "merger": _merge,
    "ablation": _ablate,
    "summarize": _summarize,
    "extractor": _extract,
    "planner": _plan,
    "coder": _code,
    "ens_planner": _plan_ensemble,
    "ensembler": _ensemble,
    "debugger": _debug,
    "leakage": _check_leakage,
    "data": _check_data_use,
    "test": _test,
}
