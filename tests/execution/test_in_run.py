"""Evaluation on the way that the pipeline takes it: inside a run, as recorded steps."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import mle_star.execution
from mle_star.execution import debug_text, evaluate_batch, evaluate_solution, evaluate_with_retry, exception_line
from mle_star.execution.outcome import HEADER
from mle_star.models import ExecutionRawResult, PipelineConfig, SolutionScript
from mle_star.run.context import ScriptRequest
from tests.execution.conftest import FixedExecutor, OpenRun, finished, scored, script
from tests.ledgers import best_score

CONFIG = PipelineConfig(time_limit_seconds=600, num_parallel_solutions=2, max_debug_attempts=2)
TRACE = f'{HEADER}\n  File "/w/solution.py", line 1, in <module>\n    boom()\nValueError: boom'
HANDLED = "import logging\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.exception('went on')\n"


class Repairs:
    """A debugger that hands out scripts in turn and remembers what it was given."""

    def __init__(self, *answers: SolutionScript) -> None:
        self.answers, self.given, self.told = list(answers), list[SolutionScript](), list[str]()

    async def __call__(self, solution: SolutionScript, text: str) -> SolutionScript:
        self.given.append(solution)
        self.told.append(text)
        return self.answers.pop(0)


class Turns(FixedExecutor):
    """Gives one raw result after the other."""

    def __init__(self, *raws: dict[str, Any]) -> None:
        super().__init__()
        self.raws = [FixedExecutor(**raw).raw for raw in raws]

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        self.requests.append(request)
        return self.raws[len(self.requests) - 1]


# --- what a run is scored by --------------------------------------------------------------------------------


@pytest.mark.req("REQ-EX-016")
@pytest.mark.parametrize("fields", [{}, {"exit_code": 1, "stderr": TRACE}, {"exit_code": -1, "timed_out": True}])
@pytest.mark.parametrize("known", [{"score": 0.25, "is_executable": True}, {"score": None, "is_executable": False}])
async def test_the_given_script_is_left_as_it_is(
    fields: dict[str, Any], known: dict[str, Any], open_run: OpenRun
) -> None:
    given = scored(0.5).model_copy(update=known)
    before, works = given.model_copy(deep=True), not fields
    with open_run(CONFIG, FixedExecutor(**fields)) as run:
        result = await evaluate_solution(given, run.task, CONFIG)
        await evaluate_batch([given], run.task, CONFIG)
        returned, _ = await evaluate_with_retry(given, run.task, CONFIG, Repairs(), 0)
    assert (result.score, result.is_error, given) == (0.5, not works, before)
    assert returned is not given and (returned.score, returned.is_executable) == (0.5 if works else None, works)


@pytest.mark.req("REQ-EX-021")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Final Validation Performance: 85%", "the line says 85%: print a plain number"),
        ("Final Validation Performance: 0,85", "the line says 0,85: print a plain number"),
        ("Final Validation Performance: 1,234.56", "the line says 1,234.56: print a plain number"),
        ("Final Validation Performance:", "the line holds no number: print it on the same line"),
        ("Final Validation Performance:\n100", "the line holds no number: print it on the same line"),
        ("Final Validation Performance: 85", "the line says 85, but accuracy is at least 0 and at most 1"),
        ("Final Validation Performance: 1e308", "the line says 1e308, but accuracy is at least 0 and at most 1"),
        ("done", "without printing its score line"),
    ],
)
async def test_a_score_line_that_cannot_be_used_goes_to_the_debugger_with_the_reason(
    line: str, said: str, open_run: OpenRun
) -> None:
    # the reason must survive the journal, which keeps only the ends of a long output
    far = "x" * 100_000
    executor = Turns({"stdout": f"{far}\n{line}\n{far}\n"}, {})
    repairs = Repairs(scored(0.5))
    with open_run(CONFIG, executor) as run:
        fixed, _ = await evaluate_with_retry(script("first"), run.task, CONFIG, repairs)
        assert fixed.score == 0.5 and best_score(run) == 0.5
        assert finished(run)[0].result.score is None
    assert said in exception_line(repairs.told[0])
    assert len(repairs.told) == 1


# --- what the debugger is told ------------------------------------------------------------------------------


@pytest.mark.req("REQ-EX-021", "REQ-SF-003")
async def test_after_a_handled_exception_the_debugger_is_told_what_really_ended_the_script(open_run: OpenRun) -> None:
    with open_run(CONFIG) as run:
        repairs = Repairs(scored(0.5))
        aborts = script(f"{HANDLED}import os, signal\nos.kill(os.getpid(), signal.SIGABRT)")
        fixed, _ = await evaluate_with_retry(aborts, run.task, CONFIG, repairs)
        quits = await evaluate_solution(script(f"{HANDLED}raise SystemExit(3)"), run.task, CONFIG)
        for seconds in (3, 100):  # the second where three are too few to log anything in
            slow = script(f"{HANDLED}import time\ntime.sleep(600)")
            late = await evaluate_solution(slow, run.task, CONFIG, seconds)
            if late.stderr:
                break
    assert fixed.score == 0.5
    repairs.told.append(debug_text(late))
    killed, stopped = map(exception_line, repairs.told)
    assert killed.startswith("RuntimeError: the script was killed by SIGABRT")
    assert stopped.startswith(f"TimeoutError: the script was stopped at the time limit of {seconds} seconds")
    assert "exit code 3" in exception_line(debug_text(quits))
    assert all("ZeroDivisionError" in told for told in repairs.told), "as context it may stay"


@pytest.mark.req("REQ-EX-009")
@pytest.mark.parametrize(
    ("end", "said"),
    [("os.kill(os.getpid(), signal.SIGHUP)", "killed by SIGHUP"), ("raise SystemExit(137)", "exit code 137")],
)
async def test_a_hangup_is_no_time_limit_and_137_not_lack_of_memory_alone(
    end: str, said: str, open_run: OpenRun
) -> None:
    with open_run(CONFIG) as run:
        result = await evaluate_solution(script(f"import os, signal\n{end}"), run.task, CONFIG)
        assert (result.is_error, result.timed_out, finished(run)[0].result.timed_out) == (True, False, False)
    assert said in exception_line(debug_text(result)) and "time limit" not in debug_text(result)


@pytest.mark.req("REQ-EX-021")
async def test_a_message_of_many_lines_reaches_the_debugger_whole_but_bounded(open_run: OpenRun) -> None:
    message = "first line\\n\\nsecond paragraph, and its advice: use dropna()"
    with open_run(CONFIG) as run:
        short = await evaluate_solution(script(f'raise ValueError("{message}")'), run.task, CONFIG)
        many = await evaluate_solution(script("raise ValueError('\\n'.join(map(str, range(9999))))"), run.task, CONFIG)
    told = debug_text(short)
    assert told.endswith("ValueError: first line\n\nsecond paragraph, and its advice: use dropna()")
    assert exception_line(told) == "ValueError: first line"
    assert len(debug_text(many)) < 6000 and "\n9998" in debug_text(many)


# --- what stays the same ------------------------------------------------------------------------------------


@pytest.mark.req("REQ-EX-042")
async def test_nothing_is_remembered_when_the_cache_is_off(open_run: OpenRun) -> None:
    config = CONFIG.model_copy(update={"use_cache": False})
    executor = Turns(*({"stdout": f"Final Validation Performance: {score}\n"} for score in (0.1, 0.2, 0.3)))
    with open_run(config, executor) as run:
        results = await evaluate_batch([scored(0.5)] * 3, run.task, config)
    assert [result.score for result in results] == [0.1, 0.2, 0.3]


@pytest.mark.req("REQ-EX-015")
async def test_chosen_gpus_are_the_ones_that_the_script_sees(open_run: OpenRun, tmp_path: Path) -> None:
    executor = FixedExecutor()
    with open_run(CONFIG, executor) as run:
        await evaluate_solution(scored(0.5), run.task, CONFIG, gpu_indices=[3, 1])
        assert executor.requests[0].env["CUDA_VISIBLE_DEVICES"] == "3,1"
        seen = script("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])")
        result = await evaluate_solution(seen, run.task, CONFIG, working_dir=str(tmp_path / "own"), gpu_indices=[2, 0])
        assert result.stdout == "2,0\n", result.stderr


@pytest.mark.req("REQ-EX-022")
def test_no_score_is_compared_by_hand() -> None:
    """Only `is_improvement` knows which way is better; any other comparison is wrong for half of the metrics."""
    ordering = (ast.Lt, ast.Gt, ast.LtE, ast.GtE)
    names = {"score", "scores", "first", "second", "kept", "best", "old_score", "new_score"}
    folder = Path(mle_star.execution.__file__).parent
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and any(isinstance(op, ordering) for op in node.ops):
                operands = [node.left, *node.comparators]
                assert not any(_last_name(operand) in names for operand in operands), (path.name, ast.unparse(node))
            if isinstance(node, ast.Call) and _last_name(node.func) in ("sorted", "min", "max", "sort"):
                text = ast.unparse(node)
                assert "score" not in text, (path.name, text)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
