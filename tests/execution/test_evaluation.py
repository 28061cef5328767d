"""Evaluating scripts outside a run: once, with repairs, in turn, through other doors."""

import ast
import asyncio
import builtins
import inspect
import itertools
import logging
import os
import sys
import time
import typing
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mle_star import execution as ex
from mle_star import models as m
from mle_star.errors import AgentError, ExecutionError
from mle_star.execution.environment import script_environment
from mle_star.execution.harness import SDK_BASH_MAX_MS
from tests.conftest import Logs, Patch, as_kept, signature_of
from tests.execution.conftest import Kind, Repairs, request_for, scored, script, write_files

QUICK = m.PipelineConfig(time_limit_seconds=240, max_debug_attempts=3)
BROKEN = script("import json\njson.loads('{')")


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Where scripts work when nobody says where; the current directory is a folder of the user's."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here / "evaluation"


@pytest.mark.req("REQ-EX-007", "REQ-EX-008", "REQ-EX-042")
async def test_a_script_has_its_directory_streams_and_code(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FROM_THE_PARENT", "yes")
    path = tmp_path / "some script.py"
    path.write_text(
        "import os, sys\nprint(os.getcwd(), os.environ.get('FROM_THE_PARENT'))\nprint('oh', file=sys.stderr)\n"
        "raise SystemExit(3)"
    )
    before, raw = Path.cwd(), await ex.execute_script(str(path), str(tmp_path), 120)
    assert (raw.stdout, raw.stderr, raw.exit_code, raw.timed_out) == (f"{tmp_path} yes\n", "oh\n", 3, False)
    assert isinstance(raw.duration_seconds, float)
    with pytest.raises(ValidationError, match="frozen"):
        raw.exit_code = 1  # type: ignore[misc]
    assert (await ex.execute_script(str(path), str(tmp_path), 120, {"PATH": ""})).stdout == f"{tmp_path} None\n"
    assert Path.cwd() == before


@pytest.mark.req("REQ-EX-009")
async def test_a_sleeper_with_five_seconds_is_told_to_end_and_killed_after_five_more(tmp_path: Path) -> None:
    """A busy machine may be late now and then: one of a few attempts keeps the times."""
    (tmp_path / "s.py").write_text(
        "import signal, time\n"
        "def save(*_):\n    told = time.monotonic()\n"
        "    while True:\n        print(time.monotonic() - told, flush=True)\n        time.sleep(0.05)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('begun', flush=True)\ntime.sleep(600)"
    )
    for _ in range(5):
        started, raw = time.monotonic(), await ex.execute_script(str(tmp_path / "s.py"), str(tmp_path), 5)
        total = time.monotonic() - started
        assert (raw.timed_out, raw.exit_code) == (True, -1)
        first, *spans = raw.stdout.split() or [""]
        if total < 15 and spans and 4.5 < float(spans[-1]) < 5.5:
            break
    assert first == "begun" and 4.5 < float(spans[-1]) < 5.5 and total < 15


@pytest.mark.req("REQ-EX-010", "REQ-EX-015", "REQ-EX-043")
async def test_an_evaluation_is_clean(task: m.TaskDescription, work: Path, monkeypatch: Patch) -> None:
    for name in ("DB_PASSWORD", "NVIDIA_API_KEY"):
        monkeypatch.setenv(name, "hush")
    before, here = dict(os.environ), Path.cwd()
    code = (
        "import builtins, os, sys\nassert not hasattr(builtins, 'leaked') and 'LEAKED' not in os.environ\n"
        "assert sorted(os.listdir()) == ['final', 'input', 'solution.py'] and not os.listdir('final')\n"
        "assert open('input/train.csv').read()\n"
        "assert 'hush' not in os.environ.values() and os.environ['PYTHONHASHSEED'] == '0'\n"
        "open('final/submission.csv', 'w').write('new')\nopen('left', 'w').close()\n"
        "builtins.leaked = 1\nos.environ['LEAKED'] = '1'\nos.chdir('/')\n"
        "print('größer 😀', flush=True)\nsys.stdout.buffer.write(b'\\xff\\n')\nsys.stdout.flush()"
    )
    for _ in range(2):
        result = await ex.evaluate_solution(scored(0.75, code), task, QUICK)
        assert (result.score, result.is_error) == (0.75, False), result.stderr
        assert result.stdout.startswith("größer 😀\n\ufffd\n")
    assert (work / "solution.py").read_text() == scored(0.75, code).content and ex.verify_submission(str(work))
    assert not hasattr(builtins, "leaked") and (Path.cwd(), dict(os.environ)) == (here, before)
    refused = await ex.evaluate_solution(script("exit()"), task, QUICK)
    assert (refused.is_error, refused.exit_code, refused.score) == (True, -1, None)
    assert "exit()" in refused.stderr and refused.error_traceback == refused.stderr


@pytest.mark.req("REQ-EX-015")
async def test_nothing_of_the_user_s_is_touched_by_chance(task: m.TaskDescription, work: Path, tmp_path: Path) -> None:
    data, own = Path(task.data_dir), tmp_path / "own"
    for folder in (data, work.parent, own):
        write_files(folder, "input/submission.csv", "final/submission.csv", "solution.py", text="the user's own")
    write_files(work, "notes.txt", text="the user's own")

    def files() -> dict[Path, bytes]:
        found = [*data.rglob("*"), *work.parent.rglob("*")]
        return {path: path.read_bytes() for path in found if path.is_file() and path.suffix != ".lock"}

    before = files()
    with pytest.raises(ExecutionError, match="pass `working_dir`"):
        await ex.evaluate_solution(scored(0.5), task, QUICK)
    code = "import os\nassert not os.listdir('final') and os.listdir('input') == ['submission.csv']"
    result = await ex.evaluate_solution(scored(0.5, code), task, QUICK, working_dir=str(own))
    assert result.score == 0.5, result.stderr
    assert "Performance: 0.5" in (own / "solution.py").read_text() and not ex.verify_submission(str(own))
    assert files() == before
    (work / "notes.txt").unlink()
    (result,) = await ex.evaluate_batch([scored(0.5)], task, QUICK)
    assert result.score == ex.make_score_function(QUICK)(scored(0.5), task).score == 0.5, "also inside a loop"
    assert files().items() >= {path: text for path, text in before.items() if work not in path.parents}.items()


@pytest.mark.req("REQ-EX-005", "REQ-EX-015", "REQ-EX-032")
async def test_evaluations_at_once_have_a_directory_each(task: m.TaskDescription, work: Path) -> None:
    """They run side by side for a second, and each finds its own script, data and submission then."""
    meet = (
        "import os, time\nopen('final/submission.csv', 'w').write('{0}')\n"
        "time.sleep(1)\nassert open('input/train.csv').read()\n"
        "assert ': {0}' in open('solution.py').read() and open('final/submission.csv').read() == '{0}'"
    )
    scripts = [scored(score, meet.format(score)) for score in (0.1, 0.9, 0.5)]
    results = await asyncio.gather(*(ex.evaluate_solution(one, task, QUICK) for one in scripts))
    assert [(result.score, result.error_traceback) for result in results] == [(0.1, None), (0.9, None), (0.5, None)]
    assert (work / "final" / "submission.csv").read_text() == "0.1"
    assert [path.name for path in work.parent.iterdir() if path.is_dir()] == ["evaluation"], "the others are gone"
    function = ex.make_score_function(QUICK, timeout_override=250)
    assert isinstance(function, m.ScoreFunction)
    results = await asyncio.gather(*(asyncio.to_thread(function, one, task) for one in scripts[:2]))
    assert [(result.score, result.timeout_seconds) for result in results] == [(0.1, 250), (0.9, 250)]
    with pytest.raises(TypeError):
        ex.make_score_function(QUICK, nonsense=1)(scripts[0], task)


@pytest.mark.req("REQ-EX-035")
async def test_a_call_costs_little_beyond_the_script(task: m.TaskDescription) -> None:
    code = "import time\nt = time.perf_counter()\ntime.sleep(0.2)\nprint('took', time.perf_counter() - t)"
    for _ in range(8):  # what counts is the call, not what else the machine does: one of a few is left alone
        started, result = time.perf_counter(), await ex.evaluate_solution(scored(0.5, code), task, QUICK)
        total = time.perf_counter() - started
        if (beyond := total - float(result.stdout.split()[1])) < 2:
            break
    assert beyond < 2


@pytest.mark.req("REQ-EX-021")
@pytest.mark.parametrize(
    "answers",
    [[scored(0.5)], [None, AgentError("gone", agent="debugger"), scored(0.5)], [BROKEN.model_copy(), scored(0.5)]],
    ids=["at once", "no answer uses up a try", "nor is what comes back unchanged run again"],
)
async def test_one_repair_works(answers: list[Any], task: m.TaskDescription, caplog: Logs) -> None:
    caplog.set_level(logging.INFO, "mle_star.execution")
    repairs, calls = Repairs(*answers), len(answers)
    fixed, result = await ex.evaluate_with_retry(BROKEN, task, QUICK, repairs)
    assert (fixed.content, fixed.score, fixed.is_executable) == (scored(0.5).content, 0.5, True)
    assert (result.score, result.is_error, len(repairs.errors)) == (0.5, False, calls)
    assert repairs.errors[0].startswith("Traceback (most recent call last):")
    assert 'File "solution.py", line 2' in repairs.errors[0] and "JSONDecodeError" in repairs.errors[0]
    assert 'File "json/decoder.py"' in repairs.errors[0] and sys.base_prefix not in repairs.errors[0]
    assert caplog.text.count("run starts") == 2 and f"retry {calls} of 3" in caplog.text


@pytest.mark.req("REQ-EX-021")
@pytest.mark.parametrize(("retries", "calls"), [(None, 3), (1, 1), (0, 0)])
async def test_an_error_that_stays_is_not_raised(retries: int | None, calls: int, task: m.TaskDescription) -> None:
    repairs = Repairs(*(script(f"raise ValueError('{number}')") for number in range(1, 4)))
    last, result = await ex.evaluate_with_retry(BROKEN, task, QUICK, repairs, retries)
    errors = [ex.exception_line(text).rpartition("decoder.")[2] for text in repairs.errors]
    assert errors == ["JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
                    "ValueError: 1", "ValueError: 2"][:calls]  # fmt: skip
    assert result.is_error and (last.score, last.is_executable) == (None, False)
    given = [BROKEN.content, *(f"raise ValueError('{number}')" for number in (1, 2, 3))]
    assert [one.content for one in repairs.given] == given[:calls] and last.content == given[calls]


@pytest.mark.req("REQ-EX-021")
async def test_a_clean_run_without_a_score_and_a_cancellation_are_not_debugged(task: m.TaskDescription) -> None:
    repairs = Repairs(scored(0.5))
    last, result = await ex.evaluate_with_retry(script("print('done')"), task, QUICK, repairs)
    assert (repairs.errors, result.score, result.is_error) == ([], None, False)
    last, result = await ex.evaluate_with_retry(script("print('done')"), task, QUICK, repairs, require_score=True)
    assert last.score == 0.5 and "without printing its score line" in repairs.errors[0]
    with pytest.raises(asyncio.CancelledError):
        await ex.evaluate_with_retry(BROKEN, task, QUICK, Repairs(asyncio.CancelledError()))


@pytest.mark.req("REQ-EX-026")
async def test_a_batch_runs_one_after_the_other_and_a_failure_does_not_stop_it(task: m.TaskDescription) -> None:
    stamp = "import time\nprint('from', time.time())\ntime.sleep(0.1)\n{}\nprint('to', time.time())"
    scripts = [scored(0.1, stamp.format("")), script(stamp.format("1 / 0")), scored(0.3, stamp.format(""))]
    results = await ex.evaluate_batch(scripts, task, QUICK)
    assert [(result.score, result.is_error) for result in results] == [(0.1, False), (None, True), (0.3, False)]
    words = [result.stdout.split() for result in results]
    assert float(words[0][3]) <= float(words[1][1]) and float(words[1][1]) + 0.1 <= float(words[2][1])
    assert await ex.evaluate_batch([], task, QUICK) == []


class BashTool:
    """The tool's contract, answered by a fixed text."""

    def __init__(self, output: str, exit_code: int = 0) -> None:
        self.answer, self.calls = {"output": output, "exitCode": exit_code}, list[dict[str, Any]]()

    async def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(arguments)
        return self.answer


@pytest.mark.req("REQ-EX-033")
async def test_the_bash_tool_gets_one_command_and_its_output_is_split_at_the_traceback() -> None:
    tool = BashTool("begun\nTraceback (most recent call last):\nValueError: x", 1)
    raw = await ex.execute_script_via_sdk("/w/solution.py", "/w", 700_000, bash_tool=tool)
    assert tool.calls == [{"command": "cd /w && python /w/solution.py", "timeout": 600_000}]
    assert raw.stdout.startswith("begun") and raw.stderr == "Traceback (most recent call last):\nValueError: x"
    assert (raw.exit_code, raw.timed_out) == (1, False)
    await ex.execute_script_via_sdk("/a b/s.py", "/a b", 1000, bash_tool=tool)
    assert tool.calls[1] == {"command": "cd '/a b' && python '/a b/s.py'", "timeout": 1000}
    assert (await ex.execute_script_via_sdk("s", "w", 1, bash_tool=BashTool("fine"))).stderr == ""
    with pytest.raises(RuntimeError, match="bash_tool"):
        await ex.execute_script_via_sdk("s", "w", 1)


@pytest.mark.req("REQ-EX-015", "REQ-EX-034", "REQ-EX-046", "REQ-EX-047")
@pytest.mark.parametrize(
    ("settings", "override", "strategy", "limit", "through_the_tool"),
    [
        ({}, None, None, 86400, False),
        ({"time_limit_seconds": 300}, None, "subprocess", 300, False),
        ({"script_timeout_seconds": 200}, None, None, 200, False),
        ({"time_limit_seconds": 5}, 4000, None, 4000, False),
        ({}, 600, "sdk_bash", 600, True),
        ({}, 601, "sdk_bash", 601, False),
    ],
)
async def test_the_limit_comes_from_the_configuration_unless_overridden_and_the_strategy_counts_within_the_tool_s(
    settings: dict[str, int], override: int | None, strategy: str | None, limit: int, through_the_tool: bool,
    task: m.TaskDescription, caplog: Logs,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO, "mle_star.execution")
    tool = BashTool("Final Validation Performance: 0.25")
    options: dict[str, Any] = {} if strategy is None else {"strategy": ex.ExecutorStrategy(strategy)}
    config = m.PipelineConfig(**settings)
    result = await ex.evaluate_solution(scored(0.5), task, config, override, bash_tool=tool, **options)
    assert (result.score, result.timeout_seconds) == (0.25 if through_the_tool else 0.5, limit)
    assert len(tool.calls) == int(through_the_tool) and f"at most {limit} s" in caplog.text
    assert ("more than the Bash tool allows" in caplog.text) is (limit == 601)
    assert [entry.value for entry in ex.ExecutorStrategy] == ["subprocess", "sdk_bash"] and SDK_BASH_MAX_MS == 600_000


@pytest.mark.req("REQ-EX-028", "REQ-EX-029", "REQ-EX-030", "REQ-EX-031", "REQ-EX-040", "REQ-EX-046")
def test_all_of_it_is_found_in_one_place_with_types_of_its_own_and_no_function_has_a_time_limit() -> None:
    functions = {name: thing for name, thing in vars(ex).items() if inspect.isfunction(thing)}
    lines = []
    for name, function in sorted(functions.items()):
        assert "return" in typing.get_type_hints(function)
        lines.append(f"{name}{signature_of(function)}")
    as_kept("execution/functions.txt", "\n".join(lines))
    assert {"SUBSAMPLE_INSTRUCTION", "ExecutorStrategy", "ExecutionRawResult"} <= set(vars(ex))
    homes = {name: function.__module__ for name, function in functions.items()}
    pure = {"parse_score", "rank_solutions", "is_better_solution"}  # of text and values
    assert {name for name, home in homes.items() if not home.startswith("mle_star.execution")} == pure


@pytest.mark.req("REQ-EX-022", "REQ-EX-041", "REQ-EX-042")
def test_scripts_never_run_inside_this_process_nothing_is_remembered_and_no_score_is_compared_by_hand() -> None:
    """Only `is_improvement` knows which way is better; any other comparison is wrong for half of the metrics."""
    scores = {"score", "scores", "first", "second", "kept", "best", "old_score", "new_score"}
    for path in Path(ex.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.unparse(node) if isinstance(node, (ast.Call, ast.Compare, ast.Import, ast.ImportFrom)) else ""
            if isinstance(node, ast.Call):
                name = _last_name(node.func)
                assert name not in ("import_module", "exec_module"), path
                plain = isinstance(node.func, ast.Name)
                assert not plain or name not in ("exec", "eval", "compile", "__import__"), path
                assert name != "chdir" or path.parent.name == "child", path  # a process of its own
                assert name not in ("sorted", "min", "max", "sort") or "score" not in text, (path.name, text)
            ordering = (ast.Lt, ast.Gt, ast.LtE, ast.GtE)
            if isinstance(node, ast.Compare) and any(isinstance(op, ordering) for op in node.ops):
                operands = [node.left, *node.comparators]
                assert not any(_last_name(operand) in scores for operand in operands), (path.name, text)
            assert not isinstance(node, ast.Global), path
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert "importlib" not in text.replace("importlib.metadata", ""), path


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


SAMPLING = "limit = {'rows': 30000}  # ```\ntrain = train.sample(limit['rows'])"


@pytest.mark.req("REQ-EX-017", "REQ-EX-018", "REQ-EX-019", "REQ-EX-020")
def test_subsampling_is_asked_for_as_specified_and_its_prompts_hold_script_and_wishes() -> None:
    sentence = "If there are more than {limit} training samples, you must subsample to {limit} for a faster run."
    assert sentence == ex.SUBSAMPLE_INSTRUCTION
    for limit, settings in (("30000", {}), ("1234567", {"subsample_limit": 1234567})):
        assert ex.get_subsample_instruction(m.PipelineConfig(**settings)) == sentence.replace("{limit}", limit)
    for request_of, *words in (
        (ex.request_subsample_removal, "remove", "whole changed script"),
        (ex.request_subsample_extraction, "block", "single markdown code block"),
    ):
        prompt = request_of(script(SAMPLING))
        wishes = prompt.replace(SAMPLING, "").lower()
        assert SAMPLING in prompt and [word for word in ("subsampl", *words) if word not in wishes] == []


HANDLERS = (
    "except:\n    raise|except Exception:\n    pass|except BaseException as e:\n    ...|except ValueError:\n    pass|"
    "except (ValueError, Exception):\n    pass|except Exception as e:\n    log(e)|except Exception as e:\n    pass\n|"
    "except:\n    g()\ntry:\n    h()\nexcept Exception:\n    pass|except:\n    pass\n"
)


@pytest.mark.req("REQ-EX-045")
def test_handlers_that_hide_errors_are_named_with_their_lines() -> None:
    """Also where a parser finds no program, or runs out of memory."""
    before, lines = ("", "def broken(:\n", "(\n", f"x = {'-' * 20_000}1\n", f"x = {'(' * 20_000}1\n"), list[str]()
    for begin, handler in itertools.product(before, HANDLERS.split("|")):
        found = ex.detect_error_masking(f"{begin}try:\n    f()\n{handler}")
        lines.append(f"{begin[:12]!r} {handler!r}: {found}")
    assert ex.detect_error_masking("# except: pass") == []
    as_kept("execution/handlers.txt", "\n".join(lines))


@pytest.mark.parametrize("kind", ["auto", "namespaces", "none"])
async def test_the_debugger_sees_where_a_script_was_when_it_was_stopped_or_crashed(tmp_path: Path, kind: Kind) -> None:
    executor, texts = ex.LocalExecutor(sandbox=kind), {}
    for letter in (False, True):
        env = script_environment(m.PipelineConfig(letter=letter))
        for name, last in {"slow": "re.match('(a+)+b', 'a' * 99)", "crash": "os.kill(os.getpid(), 11)"}.items():
            code = f"import os, re\ndef fit():\n    {last}\n\nprint('fold 1', flush=True)\nfit()"
            request = request_for(tmp_path / f"{name}{letter}", code, env=env, timeout_seconds=2)
            result = ex.build_evaluation_result(await executor.run(request), timeout_seconds=2)
            assert result.is_error and result.timed_out == (name == "slow"), result.stderr
            texts[name, letter] = ex.debug_text(result)
    for name, place in {"slow": 'File "re', "crash": 'File "solution.py", line 3 in fit'}.items():
        cause, _, where = texts[name, False].partition("\n\nIt was here, the innermost call first:\n")
        assert place in where.splitlines()[0] and str(tmp_path) not in where and "Extension" not in where
        assert '  File "solution.py", line 3 in fit\n  File "solution.py", line 6 in <module>' in where
        assert "Fatal" not in cause and "It was here" not in texts[name, True]
