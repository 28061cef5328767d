"""The folders show the architecture: few modules at the top level, and every fact in one place."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

import pytest

import mle_star
from mle_star.models import AgentType, PhaseTimeBudget
from mle_star.models.phases import PHASES, kind_of_script

ROOT = Path(mle_star.__file__).parent
PLACED = """
__init__ __main__ api config errors finalization orchestrator phase1 phase2_inner phase2_outer phase3 safety seccomp
"""
"""The last one filters system calls of scripts and of the agents' shell, two rooms that do not know each other."""


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Every module, parsed, by its path in the package."""
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_bytes()) for path in ROOT.rglob("*.py")}


def test_every_module_but_the_api_and_those_that_the_specification_places_is_in_a_room() -> None:
    assert sorted(path.stem for path in ROOT.glob("*.py")) == PLACED.split()
    rooms = {name.partition("/")[0] for name in trees() if "/" in name}
    assert [room for room in rooms if not (ROOT / room / "__init__.py").exists()] == []


def test_one_module_knows_what_the_model_offline_means() -> None:
    spelt = [
        path
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value == "offline"
    ]
    assert spelt == ["models/enums.py"]


def test_no_two_classes_have_the_same_name() -> None:
    names = Counter(node.name for tree in trees().values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []


def tables_of(names: set[str]) -> set[str]:
    """The modules with a literal table or list that has three of these names or more, as texts or as members."""
    found = set()
    for path, tree in trees().items():
        for node in ast.walk(tree):
            inside = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
            parts = [part for one in inside if one for part in (one, *getattr(one, "elts", [])[:1])]
            texts = {str(getattr(part, "value", "")) for part in parts if isinstance(part, ast.Constant)}
            members = {part.attr for part in parts if isinstance(part, ast.Attribute)}
            if len((texts | members) & names) >= 3:
                found.add(path)
    return found


def test_agents_and_phases_are_declared_once() -> None:
    # The engineer is reached over HTTP and has an answer for each agent.
    assert tables_of({agent.value for agent in AgentType}) == {"engineer/brain.py"}
    # Formulas of a forecast, words of a verdict, the lineage by phase, and how often leaks are looked for.
    kept = {"run/timing.py", "views/verdict.py", "search/final_result.py", "agents/leakage/__init__.py"}
    assert tables_of({phase.name for phase in PHASES}) == {"models/phases.py", *kept}
    assert set(PhaseTimeBudget.model_fields) == {phase.name for phase in PHASES}


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ("phase1/candidate-0/script", "init"), ("phase1/merge-1/script", "merged"), ("phase1", "merged"),
        ("phase2/path-0/t-1", "refined"), ("phase3/r-0", "ensemble"), ("finalization", "final"), ("probe", "final"),
    ],
)  # fmt: skip
def test_a_script_is_what_its_step_makes(step: str, kind: str) -> None:
    assert kind_of_script(step).value == kind
