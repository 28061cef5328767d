"""What the specification fixes for every phase alike: agents, signatures, preconditions, and how replies are read."""

import ast
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mle_star import finalization, phase1, phase2_inner, phase2_outer, phase3, safety
from mle_star import models as m
from mle_star.finalization import generate_test_submission
from mle_star.phase1 import generate_candidate, merge_solutions, parse_retriever_output
from mle_star.phase2_inner import invoke_coder, invoke_planner
from mle_star.phase2_outer import invoke_ablation, invoke_extractor, invoke_summarize
from mle_star.phase3 import invoke_ens_planner, invoke_ensembler, run_phase3
from mle_star.safety import debug_solution
from tests.conftest import as_kept, signature_of

from .conftest import ScriptedRun
from .replies import BLOCK, BOTH, GARBAGE, INPUTS, base_solution, broken_script, fenced, models, script
from .replies import solution as scripted

MODEL = m.RetrievedModel(model_name="TabPFN v2", example_code="alpha({'depth': 3})")
MODULES = {module.__name__.rpartition(".")[2]: module for module in
           (phase1, phase2_outer, phase2_inner, phase3, safety, finalization)}  # fmt: skip
SPECIFIED = """
phase1: run_phase1 retrieve_models generate_candidate merge_solutions parse_retriever_output
phase2_outer: run_phase2_outer_loop validate_code_block invoke_ablation invoke_summarize invoke_extractor
phase2_inner: run_phase2_inner_loop invoke_coder invoke_planner
phase3: run_phase3 invoke_ens_planner invoke_ensembler
safety: debug_solution check_and_fix_leakage check_data_usage parse_data_agent_response make_debug_callback
finalization: run_finalization remove_subsampling generate_test_submission check_contamination
"""
"""Functions by their modules, as far as they are laid down."""


@pytest.mark.req("REQ-P1-007", "REQ-P1-012", "REQ-P1-017", "REQ-P1-018", "REQ-P1-040", "REQ-P2O-039", "REQ-P2I-045")
@pytest.mark.req("REQ-P3-041", "REQ-SF-034", "REQ-SF-043", "REQ-FN-009", "REQ-FN-019", "REQ-FN-033", "REQ-FN-034")
@pytest.mark.req("REQ-FN-044")
def test_every_function_has_its_module_and_its_signature() -> None:
    lines = []
    for module, names in (row.split(": ") for row in SPECIFIED.strip().splitlines()):
        for function in (getattr(MODULES[module], name) for name in names.split()):
            assert function.__module__ == f"mle_star.{module}"
            shown = re.sub(r", \*, .*\) ->", ") ->", signature_of(function))
            lines.append(f"{module}.{function.__name__}{shown}")
    as_kept("method/signatures.txt", "\n".join(lines))


FORBIDDEN = {
    "requests", "httpx", "aiohttp", "urllib", "http", "socket", "anthropic", "claude_agent_sdk", "subprocess",
}  # fmt: skip


@pytest.mark.req("REQ-SF-042", "REQ-P1-039", "REQ-P2O-038", "REQ-P2I-044", "REQ-P3-040", "REQ-FN-043", "REQ-P1-036")
@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_a_phase_knows_neither_the_sdk_nor_processes_nor_the_network(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name.split(".")[0] for name in imported} & FORBIDDEN
    assert not {name for name in imported if name.startswith("mle_star.sdk")}, "only through the run context"
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert max((node.end_lineno or 0) - node.lineno + 1 for node in functions) <= 60
    merging = [node for function in functions if "merge" in function.name for node in ast.walk(function)]
    called = {getattr(node, "attr", getattr(node, "id", "")) for node in merging}
    assert not called & {"gather", "create_task", "ensure_future", "wait"}, "merges run one after another"


SOME, NONE, BLANK = base_solution(), base_solution().model_copy(update={"is_executable": False}), scripted(" \n")
REFUSED: list[tuple[Callable[..., Awaitable[Any]], tuple[Any, ...]]] = [
    *((invoke_ablation, (one, [])) for one in (BLANK, NONE)), (invoke_summarize, (" ", "x")), (run_phase3, ([],)),
    *((invoke_extractor, (*given, [])) for given in ((" ", SOME), ("summary", BLANK))),
    *((invoke_coder, given) for given in (("", "a plan"), (BLOCK, " \n"))),
    *((invoke_planner, (BLOCK, *given)) for given in (([], []), (["a"], [0.1, 0.2]), (["a", "b"], [0.1]))),
    (invoke_planner, (" ", ["a"], [0.1])), (invoke_ens_planner, (INPUTS[:1], [], [])),
    *((invoke_ens_planner, (INPUTS, ["a"], scores)) for scores in ([], [0.1] * 2)),
    *((invoke_ensembler, given) for given in ((" ", INPUTS), ("average", INPUTS[:1]))),
    (debug_solution, (scripted(broken_script()), "")),
]  # fmt: skip


@BOTH
@pytest.mark.req("REQ-P2O-003", "REQ-P2O-010", "REQ-P2O-016", "REQ-P2I-003", "REQ-P2I-011", "REQ-P2I-013", "REQ-P3-003")
@pytest.mark.req("REQ-P3-009", "REQ-P3-012", "REQ-P3-016", "REQ-SF-003")
async def test_an_agent_is_not_asked_without_what_it_needs(quick_run: ScriptedRun) -> None:
    lines = []
    for ask, given in REFUSED:
        more = (quick_run.task, quick_run.config) if ask in (run_phase3, debug_solution) else ()
        with pytest.raises(ValueError, match=r".") as refused:
            await ask(*given, *more)
        lines.append(f"{ask.__name__}: {refused.value}")
    assert quick_run.agents.log == []
    as_kept("method/refused.txt", "\n".join(lines))


TEXT = "\n  Use `x`.\n```python\nx = 1\n```  \n"
TWO = f"{fenced('a = 1')}\nand\n{fenced(script(0.5))}"
INDENTED = "Sure!\n```\n    level = 0.9\n```\nDone."
CODE = {TWO: script(0.5), script(0.6): script(0.6), INDENTED: "    level = 0.9", GARBAGE: None, "```python\n```": None}
PLAN = {TEXT: TEXT.strip(), " \n\t": None}
NAMED = [one.model_copy(update={"source_model": "Ridge", "is_executable": False}) for one in INPUTS]
Reading = tuple[Callable[[ScriptedRun], Awaitable[Any]], dict[str, Any], m.SolutionPhase | None, str | None]
READ: dict[str, Reading] = {
    "init": (lambda run: generate_candidate(run.task, MODEL, run.config), CODE, m.SolutionPhase.init, MODEL.model_name),
    "merger": (lambda run: merge_solutions(NAMED[0], NAMED[1], run.config), CODE, m.SolutionPhase.merged, None),
    "ablation": (lambda run: invoke_ablation(base_solution(), []), CODE, m.SolutionPhase.refined, None),
    "ensembler": (lambda run: invoke_ensembler("average", NAMED), CODE, m.SolutionPhase.ensemble, None),
    "test": (lambda run: generate_test_submission(run.task, NAMED[0]), CODE, m.SolutionPhase.final, "Ridge"),
    "coder": (lambda run: invoke_coder(BLOCK, "raise the level"), CODE, None, None),
    "planner": (lambda run: invoke_planner(BLOCK, ["a"], [0.1]), PLAN, None, None),
    "ens_planner": (lambda run: invoke_ens_planner(INPUTS, [], []), PLAN, None, None),
    "summarize": (lambda run: invoke_summarize("print()", "output"), {TEXT: TEXT}, None, None),  # nothing stripped
}


@BOTH
@pytest.mark.req("REQ-P1-010", "REQ-P1-011", "REQ-P1-012", "REQ-P1-015", "REQ-P1-016", "REQ-P1-017", "REQ-P2O-004")
@pytest.mark.req("REQ-P2I-004", "REQ-P2I-005", "REQ-P2I-012", "REQ-P2I-013", "REQ-P3-006", "REQ-P3-009", "REQ-P3-013")
@pytest.mark.req("REQ-P2O-011", "REQ-P3-016", "REQ-FN-013")
@pytest.mark.parametrize("name", READ)
async def test_of_a_reply_the_code_counts_and_a_script_has_its_phase(name: str, quick_run: ScriptedRun) -> None:
    ask, replies, phase, source = READ[name]
    for reply, expected in (replies if name == "summarize" else {**replies, "": None}).items():
        quick_run.agents.reply(name, reply)
        answer = await ask(quick_run)
        if isinstance(answer, m.SolutionScript):
            assert (answer.phase, answer.score, answer.source_model) == (phase, None, source)
            assert answer.is_executable == (expected is not None or name == "test"), "that one is repaired in any case"
            answer = answer.content or None
        assert answer == expected


@pytest.mark.req("REQ-P1-003", "REQ-P1-004", "REQ-DM-015")
@pytest.mark.parametrize(
    ("notes", "text"),
    [
        ("a post", "a post"), (None, ""), (["a post", "a paper"], "a post\na paper"),
        ({"post": ["ratios"]}, '{"post": ["ratios"]}'), (7, "7"),
    ],
)  # fmt: skip
def test_notes_of_any_form_refuse_no_models(notes: object, text: str) -> None:
    answer = parse_retriever_output(json.dumps({**models("alpha"), "notes": notes}))
    assert (answer.notes, answer.models[0].model_name) == (text, "alpha")
    assert parse_retriever_output(json.dumps(models("alpha")["models"])).models[0].example_code == "alpha()"


@pytest.mark.req("REQ-P1-004")
@pytest.mark.parametrize("reply", ["{broken" + "x" * 2000, '{"models": [{"model_name": 1}]}', '{"models": []}', ""])
def test_a_retrievers_reply_that_cannot_be_read_is_quoted(reply: str) -> None:
    with pytest.raises(ValueError, match="cannot be used") as caught:
        parse_retriever_output(reply)
    message = str(caught.value)
    assert message.endswith(reply[:500]) and len(message) < 700
