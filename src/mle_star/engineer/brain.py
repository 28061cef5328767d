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
from mle_star.engineer import checks, moves, planning, studies
from mle_star.engineer.catalogue import definition_of, fitting_families
from mle_star.engineer.design import assemble, recover
from mle_star.engineer.profile import Profile, look, refuse
from mle_star.engineer.reading import Question, fenced
from mle_star.engineer.server import BrainReply, BrainRequest, MessagesServer
from mle_star.errors import ConfigError

ALL_USED = "All the provided information is used."
NO_SUBSAMPLING = "There is no subsampling."
ROWS = 30_000
_CORE = {"ablation": ("Python solution",), "extractor": ("Python solution",), "debugger": ("Script", "Error")}
"""What makes two questions of an agent the same, whatever times are named beside it."""


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
    """Answers by rule. A question asked twice gets another answer where there is one, so that parallel paths differ."""

    def __init__(self) -> None:
        self._memories: defaultdict[str, _Memory] = defaultdict(_Memory)
        self._blocks: dict[str, _Known] = {}
        self._answering = threading.Lock()

    async def reply(self, request: BrainRequest) -> BrainReply:
        """The answer of the agent that is asked."""
        question = Question.of(request.agent, request.variant, request.system, request.prompt)
        same = "\0".join(map(question.block, _CORE.get(request.agent, ()))) or request.prompt
        memory = self._memories[hashlib.sha256(f"{request.agent}/{request.variant}/{same}".encode()).hexdigest()]
        desk = _Desk(question, memory, self._blocks, memory.asked)
        memory.asked += 1
        answer = await asyncio.to_thread(self._answer_alone, desk)
        return BrainReply(text=answer) if isinstance(answer, str) else BrainReply(structured=answer)

    def _answer_alone(self, desk: _Desk) -> str | dict[str, Any]:
        """One answer at a time: tables are looked at once, paths are not told the same, and `ast.parse` is never run
        by two threads, which some versions of Python end with a SystemError (gh-106905)."""
        with self._answering:
            if desk.question.agent not in AGENTS:
                return f"There is no agent called {desk.question.agent!r}."
            try:
                return AGENTS[desk.question.agent](desk)
            except ConfigError as error:
                return f"The embedded engineer works on tables and texts: {error}."


@dataclass
class _Desk:
    """A question with what belongs to it."""

    question: Question
    memory: _Memory
    blocks: dict[str, _Known]
    turn: int

    @property
    def profile(self) -> Profile:
        """What the data looks like."""
        return look(self.question.metric, self.question.folder, self.question.description, self.question.packages)


# --- Phase 1 ---------------------------------------------------------------------------------------------


def _retrieve(desk: _Desk) -> dict[str, Any]:
    chosen = fitting_families(desk.profile)[: int(desk.question.facts.get("count") or 4)]
    return {"models": [{"model_name": f.name, "example_code": definition_of(f.fit).source} for f in chosen]}


def _init(desk: _Desk) -> str:
    name = str(desk.question.facts.get("model") or desk.question.block("Model"))
    rows = int(desk.question.facts.get("rows") or ROWS)
    profile = desk.profile
    return fenced(assemble(planning.first_design(profile, planning.family_named(name, profile), rows)))


def _merge(desk: _Desk) -> str:
    base, reference = desk.question.block("Base"), desk.question.block("Reference")
    mine, other = recover(base), recover(reference)
    if mine is None or other is None:
        return fenced(base)
    return fenced(assemble(planning.united([mine, other], "careful" if len(mine.models) > 1 else "mean")))


# --- Phase 2 ---------------------------------------------------------------------------------------------


def _ablate(desk: _Desk) -> str:
    code = desk.question.block("Python solution")
    design = recover(code)
    if design is None or not studies.parts_of(design):
        return fenced(checks.foreign_study(code))
    previous = "\n".join(desk.question.blocks("Study"))
    return fenced(assemble(studies.study(design, previous, desk.turn)))


def _summarize(desk: _Desk) -> str:
    higher = desk.question.facts.get("direction", "maximize") == "maximize"
    return studies.summarize(desk.question.block("Printed output"), higher=higher, metric=desk.question.metric)


def _extract(desk: _Desk) -> dict[str, Any]:
    code, summary = desk.question.block("Python solution"), desk.question.block("Ablation summary")
    previous = desk.question.blocks("Block ")
    chosen = planning.choose_blocks(code, summary, previous, desk.profile, desk.memory.chosen, desk.question.before)
    design = recover(code)
    known = _Known(studies.findings_in(summary)[0], () if design is None else tuple(design.models))
    desk.blocks.update({block: known for block, _ in chosen})
    chosen = chosen or [checks.foreign_block(code, previous)]
    return {"plans": [{"code_block": block, "plan": plan} for block, plan in chosen]}


def _plan(desk: _Desk) -> str:
    question, block = desk.question, desk.question.block("Code block")
    known = desk.blocks.get(block, _Known())
    return planning.next_plan(block, question.tried, desk.profile, known.baseline, question.before, known.models)


def _code(desk: _Desk) -> str:
    return fenced(moves.apply(desk.question.block("Plan"), desk.question.block("Code block"), desk.profile))


# --- Phase 3 ---------------------------------------------------------------------------------------------


def _ensemble(desk: _Desk) -> str:
    solutions = desk.question.blocks("Python Solution")
    return fenced(planning.ensemble(solutions, desk.question.block("Ensemble plan"), desk.profile))


# --- safety and finalization -----------------------------------------------------------------------------


def _debug(desk: _Desk) -> str:
    return fenced(checks.repair(desk.question.block("Script"), desk.question.block("Error"), desk.profile, desk.turn))


def _check_leakage(desk: _Desk) -> str | dict[str, Any]:
    code = desk.question.block("Script")
    if desk.question.variant == "correction":
        return fenced(desk.question.block("Flagged block", "Leaking block") or code)
    if desk.question.variant == "rewrite":
        return fenced(code)
    found = checks.leaks(code)
    if not found:
        return {"answers": [{"leakage_status": "No Data Leakage", "code_block": checks.preparation(code)}]}
    return {"answers": [{"leakage_status": "Yes Data Leakage", "code_block": block} for block in found]}


def _test(desk: _Desk) -> str | dict[str, Any]:
    code, variant = desk.question.block("Python solution"), desk.question.variant
    if variant == "subsampling_extract":
        cap = checks.capped_rows(code)
        return fenced(cap) if cap else NO_SUBSAMPLING
    if variant == "subsampling_remove":
        return fenced("ROWS = None")
    if variant == "contamination":
        return {"verdict": checks.verdict(desk.question.block("Reference"), code)}
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
    "ens_planner": lambda desk: planning.next_ensemble_plan(desk.question.tried, desk.profile),
    "ensembler": _ensemble,
    "debugger": _debug,
    "leakage": _check_leakage,
    "data": lambda desk: ALL_USED,  # scripts of ours read every table that shares a key; of others' nothing is known
    "test": _test,
}
