"""The embedded engineer: an expert system that plays all fourteen agents for tabular and text tasks.

It knows nothing of the pipeline. It sees the system prompt, the prompt it is sent and, through the data folder named
there, the files. Each agent is a method below; what they know stands in `mle_star.engineer.rules`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mle_star.engineer.rules import (
    ablation,
    corrections,
    data_use,
    debug,
    ensemble,
    foreign,
    leakage,
    merging,
    models,
    moves,
    planning,
    sections,
    submission,
)
from mle_star.engineer.rules.profile import Profile, look
from mle_star.engineer.rules.reading import (
    Part,
    block_under,
    blocks_of,
    find,
    parts_of,
    read_setting,
    row_limit,
    tried_plans,
)
from mle_star.engineer.rules.script import first_script
from mle_star.engineer.server import MessagesServer
from mle_star.engineer.wire import BrainReply, BrainRequest
from mle_star.errors import ConfigError

logger = logging.getLogger("mle_star.engineer")

ALL_USED = "All the provided information is used."
NO_SUBSAMPLING = "There is no subsampling."


def serve() -> MessagesServer:
    """The model `offline`: a Messages API on loopback with the engineer behind it."""
    return MessagesServer(EngineerBrain())


class EngineerBrain:
    """Answers by rule. The same question asked twice gets another answer where there is one, lest paths be twins."""

    def __init__(self) -> None:
        self._memories: defaultdict[str, _Memory] = defaultdict(_Memory)
        self._answering = threading.Lock()

    async def reply(self, request: BrainRequest) -> BrainReply:
        """The answer of the agent that is asked."""
        key = hashlib.sha256(f"{request.agent}/{request.variant}/{_core(request)}".encode()).hexdigest()
        memory = self._memories[key]
        question = _Question(request, memory.asked, memory)
        memory.asked += 1
        answer = await asyncio.to_thread(self._answer_alone, question)
        return BrainReply(text=answer) if isinstance(answer, str) else BrainReply(structured=answer)

    def _answer_alone(self, question: _Question) -> str | dict[str, Any]:
        """One answer at a time: tables are looked at once, paths are not told the same, and `ast.parse` is never run
        by two threads, which some versions of Python end with a SystemError (gh-106905)."""
        with self._answering:
            return _answer(question)


def _answer(q: _Question) -> str | dict[str, Any]:
    """The answer as text, or as the value of a structured reply."""
    agents: dict[str, Callable[[_Question], str | dict[str, Any]]] = {
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
    if q.request.agent not in agents:
        return f"There is no agent called {q.request.agent!r}."
    try:
        return agents[q.request.agent](q)
    except ConfigError as error:
        return f"The embedded engineer works on tables and texts: {error}."


def _core(request: BrainRequest) -> str:
    """What makes two questions the same: for those who look at a script, the script, whatever else is said."""
    if request.agent in ("ablation", "extractor"):
        return block_under(parts_of(request.prompt), "^Python solution")
    return request.prompt


@dataclass
class _Memory:
    """What is remembered of a question: how often it was asked, and which blocks were chosen for it."""

    asked: int = 0
    chosen: Counter[str] = field(default_factory=Counter)


class _Question:
    """A request taken apart. `turn` counts how often the same was asked before."""

    def __init__(self, request: BrainRequest, turn: int, memory: _Memory) -> None:
        self.request, self.turn, self.memory = request, turn, memory
        self.prompt, self.variant = request.prompt, request.variant or ""
        self.parts: list[Part] = parts_of(request.prompt)

    @property
    def profile(self) -> Profile:
        """What the data looks like."""
        return look(read_setting(self.request.system))

    @property
    def higher(self) -> bool:
        """Is a higher score better?"""
        return read_setting(self.request.system).direction == "maximize"

    def block(self, heading: str) -> str:
        """The code or text under a heading."""
        return block_under(self.parts, heading)

    def all_blocks(self, heading: str) -> list[str]:
        """Every block under headings that match, in order."""
        return [block for part in self.parts if re.search(heading, part.heading) for block in part.blocks]


def fenced(code: str) -> str:
    """Code as the one block of a reply, in a fence that nothing inside can close."""
    longest = max((len(run) for run in re.findall("`{3,}", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{code.rstrip()}\n{fence}"


# --- Phase 1 ---------------------------------------------------------------------------------------------


def _retrieve(q: _Question) -> dict[str, Any]:
    wanted = re.search(r"\blist (\d+) of them|with (\d+) entries", q.prompt)
    count = int(next(filter(None, wanted.groups()))) if wanted else 4
    chosen = models.catalogue(q.profile)[:count]
    return {"models": [{"model_name": m.name, "example_code": models.example(m, q.profile)} for m in chosen]}


def _init(q: _Question) -> str:
    part = find(q.parts, "^Model$")
    name = part.text if part else ""
    model = models.named(name, q.profile) or planning.fallback_model(q.profile)
    return fenced(first_script(q.profile, model, row_limit(q.prompt)).render())


def _merge(q: _Question) -> str:
    base, reference = q.block("^Base"), q.block("^Reference")
    mine, other = sections.parse(base), sections.parse(reference)
    if mine is None or other is None:
        return fenced(base)
    return fenced(merging.merge(mine, other).render())


# --- Phase 2 ---------------------------------------------------------------------------------------------


def _ablate(q: _Question) -> str:
    code = q.block("^Python solution")
    script = sections.parse(code)
    previous = "\n".join(q.all_blocks(r"^Study \d"))
    if script is None or not ablation.parts_of(script):
        return fenced(foreign.study(code))
    return fenced(ablation.study(script, previous, q.profile, turn=q.turn).render())


def _summarize(q: _Question) -> str:
    metric = read_setting(q.request.system).metric
    return ablation.summarize(q.block("output"), higher=q.higher, metric=metric)


def _extract(q: _Question) -> dict[str, Any]:
    code, summary = q.block("^Python solution"), q.block("^Ablation summary")
    script = sections.parse(code)
    chosen: list[tuple[str, str]] = []
    if script is not None:
        previous, profile = q.all_blocks(r"^Block \d"), q.profile
        chosen = planning.choose_blocks(script, summary, previous, profile, q.memory.chosen)
    if not chosen:
        chosen = [foreign.block(code, q.all_blocks(r"^Block \d"))]
    return {"plans": [{"code_block": block, "plan": plan} for block, plan in chosen]}


def _plan(q: _Question) -> str:
    return planning.next_plan(q.block("^Code block"), tried_plans(q.prompt), q.profile, higher=q.higher)


def _code(q: _Question) -> str:
    block, plan = q.block("^Code block"), q.block("^Plan")
    return fenced(moves.apply(moves.moves_in(plan), block, q.profile))


# --- Phase 3 ---------------------------------------------------------------------------------------------


def _plan_ensemble(q: _Question) -> str:
    return ensemble.next_plan(tried_plans(q.prompt), q.profile)


def _ensemble(q: _Question) -> str:
    solutions = q.all_blocks(r"Python Solution$")
    scripts = [script for script in map(sections.parse, solutions) if script is not None]
    if len(scripts) < 2:
        return fenced(solutions[0] if solutions else "")
    plan = ensemble.plan_in(q.block("^Ensemble plan"), q.profile)
    return fenced(ensemble.assemble(scripts, plan, q.profile).render())


# --- safety and finalization -----------------------------------------------------------------------------


def _debug(q: _Question) -> str:
    return fenced(debug.repair(q.block("^Script"), q.block("^Error"), q.profile, turn=q.turn))


def _check_leakage(q: _Question) -> str | dict[str, Any]:
    code = q.block("^Script")
    if q.variant == "correction":
        flagged = q.block("^(Flagged|Leaking) block")
        return fenced(corrections.corrected(code, flagged))
    leaks = leakage.find_leaks(code)
    if not leaks:
        return {"answers": [{"leakage_status": "No Data Leakage", "code_block": leakage.preprocessing(code)}]}
    return {"answers": [{"leakage_status": "Yes Data Leakage", "code_block": leak.block} for leak in leaks]}


def _check_data_use(q: _Question) -> str:
    code = q.block("^Python solution")
    revised = data_use.complete(code, q.profile)
    return ALL_USED if revised is None else fenced(revised)


def _test(q: _Question) -> str | dict[str, Any]:
    if q.variant == "subsampling_extract":
        cap = submission.find_cap(q.block("^Python solution"))
        return fenced(cap) if cap else NO_SUBSAMPLING
    if q.variant == "subsampling_remove":
        return fenced(submission.without_cap(q.block("^Code block")))
    code = q.block("^Python solution")
    if q.variant == "contamination":
        return {"verdict": corrections.verdict(q.block("^Reference"), code)}
    script = sections.parse(code)
    if script is None or "split" not in script.sections:
        return fenced(code or "\n".join(blocks_of(q.parts)))
    return fenced(submission.final_script(script, q.profile).render())
