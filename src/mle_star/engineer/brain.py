"""The embedded engineer: an expert system that plays all fourteen agents for tabular and text tasks.

It knows nothing of the pipeline. It sees the system prompt, the prompt it is sent and, through the data folder named
there, the files. Each agent is a function below; scripts are assembled from `mle_star.engineer.parts`.
"""

import asyncio
import json
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mle_star.data.layout import find_layout
from mle_star.engineer import checks, moves, planning
from mle_star.engineer.design import assemble, definition_of, fitting_families, recover, sections_of, settings_in
from mle_star.engineer.profile import LIBRARIES, Profile, look, refuse
from mle_star.engineer.server import BrainReply, BrainRequest, MessagesServer
from mle_star.errors import ConfigError

ALL_USED = "All the provided information is used."
NO_SUBSAMPLING = "There is no subsampling."
FOREIGN_PLAN = "Leave the block as it is: its parts are not known to the built-in rules."
ROWS = 30_000
_CORE = {"ablation": ("Python solution",), "extractor": ("Python solution",), "debugger": ("Script", "Error")}
"""What makes two questions of an agent the same, whatever times are named beside it."""
_HEADING = re.compile(r"^(#{1,4})[ \t]+(.+?)[ \t]*$")
_FENCE = re.compile(r"^(`{3,}|~{3,})[ \t]*([\w+-]*)[ \t]*$")
Known = tuple[float | None, tuple[str, ...]]
"""What is known of the script that a block comes from: its score, and the models that it trains."""
Answer = str | dict[str, Any]


class Served:
    """The model `offline`: a Messages API on loopback with the engineer behind it."""

    def __call__(self) -> MessagesServer:
        return MessagesServer(EngineerBrain())

    def refusal(self, metric: str, folder: Path, description: str) -> str:
        """Why it cannot work on a task, in one line, before anything runs; an empty text when it can."""
        why = refuse(metric, folder, description)
        return f"the built-in rules cannot do this task: {why}" if why else ""

    def look_ahead(self, folder: Path, description: str) -> None:
        """Read the tables while the first client starts; whatever stands in the way is said by who is asked first."""
        with suppress(ConfigError, OSError):
            train = find_layout(folder, description).train
            for name in train.columns:
                train.column(name)


serve = Served()


# --- reading: the headed parts of a prompt, its fenced blocks, its facts, the system prompt --------------


class Part(NamedTuple):
    """What stands under one heading: its text without fenced blocks, and those blocks."""

    heading: str
    text: str
    blocks: tuple[str, ...]


def parts_of(prompt: str) -> list[Part]:
    """The parts of a prompt in order; headings inside fenced blocks do not count. Text above the first has none."""
    parts: list[tuple[str, list[str], list[str]]] = [("", [], [])]
    lines = iter(prompt.splitlines())
    for line in lines:
        if fence := _FENCE.match(line):
            inside = []
            while (inner := next(lines, fence[1])).strip() != fence[1]:
                inside.append(inner)
            parts[-1][2].append("\n".join(inside))
        elif title := _HEADING.match(line):
            parts.append((title[2], [], []))
        else:
            parts[-1][1].append(line)
    return [Part(heading, "\n".join(text).strip(), tuple(blocks)) for heading, text, blocks in parts]


class Question:
    """A request taken apart, with how often it was asked before, and which sections were chosen for it then.

    `before`: how the plans begin that earlier steps of the path have tried.
    """

    def __init__(self, request: BrainRequest) -> None:
        self.agent, self.variant, self.system = request.agent, request.variant, request.system
        self.parts = parts_of(request.prompt)
        facts = [block for part in self.parts if part.heading == "Facts" for block in part.blocks]
        self.facts: dict[str, Any] = json.loads(facts[-1]) if facts else {}
        self.metric = str(self.facts.get("metric") or self._section("Metric").partition("`")[2].partition("`")[0])
        self.folder = Path(self.system.rpartition("The data folder is `")[2].partition("`")[0])
        # what the task's author wrote may hold headings: it ends at the last one of its kind
        self.description = f"\n{self.system}".partition("\n# Task\n")[2].rpartition("\n# Metric\n")[0].strip()
        self.packages = self._packages()
        self.before = [str(plan) for plan in self.facts.get("tried") or ()]
        self.turn, self.chosen = 0, Counter[str]()

    def block(self, heading: str) -> str:
        """The first fenced block, or else the text, under the first heading that begins so."""
        part = next((part for part in self.parts if part.heading.startswith(heading)), None)
        return "" if part is None else part.blocks[0] if part.blocks else part.text

    def blocks(self, ending: str) -> list[str]:
        """Every block under headings that end so, or begin so."""
        wanted = (part for part in self.parts if part.heading.endswith(ending) or part.heading.startswith(ending))
        return [block for part in wanted for block in part.blocks]

    @property
    def tried(self) -> list[tuple[str, float | None]]:
        """The plans that were tried, with their scores; None for one that did not run."""
        found = (part for part in self.parts if part.heading.startswith("Plan:"))
        plans = [f"{part.heading.removeprefix('Plan:')}\n{part.text}" for part in found]
        scores = self.facts.get("scores") or [None] * len(plans)
        return list(zip(plans[-len(scores) :], scores, strict=False))

    @property
    def profile(self) -> Profile:
        """What the data looks like."""
        return look(self.metric, self.folder, self.description, self.packages)

    def _section(self, title: str) -> str:
        """The last section of the system prompt with this title."""
        return f"\n{self.system}".rpartition(f"\n# {title}\n")[2].partition("\n# ")[0]

    def _packages(self) -> tuple[str, ...]:
        """What scripts may import, by the names that they import."""
        lines = [line for line in self._section("Python").splitlines() if "==" in line]
        names = [line.partition("==")[0].strip("- ").lower() for line in lines]
        return tuple(sorted({LIBRARIES.get(name, name.replace("-", "_")) for name in names}))


def fenced(code: str) -> str:
    """Code as the one block of a reply, in a fence that nothing inside can close."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    return f"{fence}python\n{code.rstrip()}\n{fence}"


# --- the agents ------------------------------------------------------------------------------------------


class EngineerBrain:
    """Answers by rule. A question asked twice gets another answer where there is one, so that parallel paths differ.

    The method `_as_NAME` answers for the agent of that name.
    """

    def __init__(self) -> None:
        self._turns: Counter[int] = Counter()
        self._chosen: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._known: dict[str, Known] = {}
        self._answering = threading.Lock()

    async def reply(self, request: BrainRequest) -> BrainReply:
        """The answer of the agent that is asked."""
        question = Question(request)
        same = "\0".join(map(question.block, _CORE.get(request.agent, ()))) or request.prompt
        key = hash((request.agent, request.variant, same))
        question.turn, question.chosen = self._turns[key], self._chosen[key]
        self._turns[key] += 1
        answer = await asyncio.to_thread(self._answer_alone, question)
        return BrainReply(text=answer) if isinstance(answer, str) else BrainReply(structured=answer)

    def _answer_alone(self, question: Question) -> Answer:
        """One answer at a time: tables are looked at once, paths are not told the same, and `ast.parse` is never run
        by two threads, which some versions of Python end with a SystemError (gh-106905)."""
        answer: Callable[[Question], Answer] | None = getattr(self, f"_as_{question.agent}", None)
        with self._answering:
            try:
                return answer(question) if answer else f"There is no agent called {question.agent!r}."
            except ConfigError as error:
                return f"The built-in rules cannot do this task: {error}."

    # --- Phase 1 -----------------------------------------------------------------------------------------

    def _as_retriever(self, question: Question) -> Answer:
        chosen = fitting_families(question.profile)[: int(question.facts.get("count") or 4)]
        return {"models": [{"model_name": f.name, "example_code": definition_of(f.fit).source} for f in chosen]}

    def _as_init(self, question: Question) -> Answer:
        name, rows = question.facts.get("model") or question.block("Model"), question.facts.get("rows") or ROWS
        family = planning.family_named(name, question.profile)
        return fenced(assemble(planning.first_design(question.profile, family, rows)))

    def _as_merger(self, question: Question) -> Answer:
        base = question.block("Base")
        mine, other = recover(base), recover(question.block("Reference"))
        if mine is None or other is None:
            return fenced(base)
        return fenced(assemble(planning.united([mine, other], "careful" if len(mine.models) > 1 else "mean")))

    # --- Phase 2 -----------------------------------------------------------------------------------------

    def _as_ablation(self, question: Question) -> Answer:
        code = question.block("Python solution")
        design = recover(code)
        if design is None or not planning.variants_of(design):
            return fenced(f'{code}\nprint("Ablation baseline: see the score above")\n')  # its parts are not known
        return fenced(assemble(planning.study(design, "\n".join(question.blocks("Study")), question.turn)))

    def _as_summarize(self, question: Question) -> Answer:
        higher = question.facts.get("direction", "maximize") == "maximize"
        return planning.summarize(question.block("Printed output"), higher=higher, metric=question.metric)

    def _as_extractor(self, question: Question) -> Answer:
        code, summary = question.block("Python solution"), question.block("Ablation summary")
        previous, before = question.blocks("Block "), question.before
        chosen = planning.choose_blocks(code, summary, previous, question.profile, question.chosen, before)
        known = planning.findings_in(summary)[0], tuple(settings_in(code).get("models", ()))
        self._known.update({block: known for block, _ in chosen})
        chosen = chosen or [(code, FOREIGN_PLAN)]
        return {"plans": [{"code_block": block, "plan": plan} for block, plan in chosen]}

    def _as_planner(self, question: Question) -> Answer:
        block = question.block("Code block")
        baseline, models = self._known.get(block, (None, ()))
        return planning.next_plan(block, question.tried, question.profile, baseline, question.before, models)

    def _as_coder(self, question: Question) -> Answer:
        return fenced(moves.apply(question.block("Plan"), question.block("Code block"), question.profile))

    # --- Phase 3 -----------------------------------------------------------------------------------------

    def _as_ens_planner(self, question: Question) -> Answer:
        return planning.next_ensemble_plan(question.tried, question.profile)

    def _as_ensembler(self, question: Question) -> Answer:
        solutions = question.blocks("Python Solution")
        return fenced(planning.ensemble(solutions, question.block("Ensemble plan"), question.profile))

    # --- safety and finalization -------------------------------------------------------------------------

    def _as_debugger(self, question: Question) -> Answer:
        script, error = question.block("Script"), question.block("Error")
        return fenced(checks.repair(script, error, question.profile, question.turn))

    def _as_leakage(self, question: Question) -> Answer:
        code = question.block("Script")
        if question.variant in ("correction", "rewrite"):
            return fenced((question.block("Flagged block") if question.variant == "correction" else "") or code)
        # our scripts learn inside the folds by their making; what others are worth the harness finds out
        prepared = sections_of(code).get("features") or "\n".join(code.splitlines()[:20])
        return {"answers": [{"leakage_status": "No Data Leakage", "code_block": prepared}]}

    def _as_test(self, question: Question) -> Answer:
        code, variant = question.block("Python solution"), question.variant
        if variant == "subsampling_extract":
            cap = re.search(r"^ROWS = \d.*$", code, re.MULTILINE)  # as it stands in a script of ours
            return fenced(cap[0]) if cap else NO_SUBSAMPLING
        if variant == "subsampling_remove":
            return fenced("ROWS = None")
        if variant == "contamination":
            return {"verdict": checks.verdict(question.block("Reference"), code)}
        design = recover(code)
        return fenced(code if design is None else assemble(planning.final(design)))

    def _as_data(self, question: Question) -> Answer:
        return ALL_USED  # our scripts read every table that shares a key; of others' nothing is known
