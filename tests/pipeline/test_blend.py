"""A blend of scripts that err in different places: its members run on the untouched data, their mean is submitted."""

from __future__ import annotations

import ast
import csv
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mle_star.data.place import DataFolder
from mle_star.execution.fitted import fitted_digest
from mle_star.models import AgentConfig, ExecutionRawResult, FinalResult, MetricDirection, TaskDescription, TaskType
from mle_star.pipeline.rescore import rescore
from mle_star.run.context import ScriptRequest
from mle_star.run.events import FinalistsJudged, ScriptStarted
from mle_star.run.limits import SHARE
from tests.method.conftest import crash
from tests.pipeline.conftest import QuickRun, events, settings
from tests.pipeline.mind import Mind, MindAgents, fenced

LABELLED, ASKED = 400, 40


def size_of(row: int) -> int:
    return row * 7 % 50


def script(factor: int, error: float) -> str:
    """A script whose answers are off by `error`, above or below as `factor` has it."""
    return f"factor = {factor}\nerror = {error}\nlevel = 1.0000\nwrite('submission.csv')\n"


def answer(text: str, row: int, size: int, *, on_all: bool) -> float:
    """What a script says of a row, whose label is its size and a half: trained on all labels, it errs half as much."""
    factor, error = int(re.findall(r"factor = (\d+)", text)[0]), float(re.findall(r"error = ([\d.]+)", text)[0])
    return size + 0.5 + (1 if row * factor % 1009 < 504 else -1) * (error / 2 if on_all else error)


@dataclass
class ErringExecutor:
    """Answers as the script's words say; `trouble` names what happens to a script on all labels, by its factor."""

    trouble: dict[int, str]
    shares: list[float] = field(default_factory=list)

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """What the script would have done."""
        folder, text = Path(request.working_dir), Path(request.script_path).read_text(encoding="utf-8")
        out = "".join(f"{line}\n" for line in re.findall(r"^print\('(Ablation .*)'\)$", text, re.MULTILINE))
        if "submission.csv" in text:
            with (folder / "input" / "test.csv").open(newline="") as stream:
                rows = [(int(row["id"]), int(row["size"])) for row in csv.DictReader(stream)]
            on_all = len(rows) == ASKED
            if on_all:
                self.shares.append(float(request.env[SHARE]))
            trouble = next((how for factor, how in self.trouble.items() if on_all and f"factor = {factor}" in text), "")
            if trouble == "crash":
                return crash("KeyError: no such column")
            said = [(row, answer(text, row, size, on_all=on_all)) for row, size in rows[trouble == "gap" :]]
            body = "".join(f"{row},{number!r}\n" for row, number in said)
            (folder / "final" / "submission.csv").write_text(f"id,label\n{body}", encoding="utf-8")
            out += "Final Validation Performance: 1.0\n"
            if (folder / "model").is_dir():
                (folder / "model" / text.splitlines()[0]).touch()
        return ExecutionRawResult(stdout=out, stderr="", exit_code=0, duration_seconds=0.01, timed_out=False)


@pytest.fixture
def task(task: TaskDescription, tmp_path: Path) -> TaskDescription:
    """Numbers to predict, so that answers can be averaged."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    known, asked = range(LABELLED), range(LABELLED, LABELLED + ASKED)
    (folder / "train.csv").write_text("id,size,label\n" + "".join(f"{i},{size_of(i)},{size_of(i)}.5\n" for i in known))
    (folder / "test.csv").write_text("id,size\n" + "".join(f"{i},{size_of(i)}\n" for i in asked))
    (folder / "sample_submission.csv").write_text("id,label\n" + "".join(f"{i},0.0\n" for i in asked))
    kind = {"task_type": TaskType.regression, "evaluation_metric": "rmse", "metric_direction": MetricDirection.minimize}
    return task.model_copy(update={"data_dir": str(folder), **kind})


class OtherModel(MindAgents):
    """As if another model were asked: nothing of what was said before is its reply."""

    def fingerprint(self, config: AgentConfig) -> str:
        return super().fingerprint(config) + "of another model"


def two_candidates(first: float = 3.0, second: float = 3.2) -> Mind:
    """A mind with two candidates that are off by about as much, in different rows."""
    candidates = {"model 0": script(7919, first), "model 1": script(5381, second)}
    return Mind(
        overrides={
            "init": lambda prompt: fenced(next(code for name, code in candidates.items() if f"{name}\n" in prompt)),
            "merger": lambda _: fenced(script(3571, 9.0)),
            "coder": lambda _: fenced("error = 8.0"),
            "extractor": lambda _: {"plans": [{"code_block": f"error = {first}", "plan": "less of it"}]},
        }
    )


async def blend(quick: QuickRun, executor: ErringExecutor) -> FinalResult:
    """A run whose best is a blend."""
    agents = MindAgents(two_candidates())
    return await quick(settings(scoring="auto", L=1, K=1), agents=agents, executor=executor)


def promised(result: FinalResult) -> float:
    """The score that a run promises."""
    assert result.promise is not None
    return result.promise.score


async def test_scripts_of_steps_that_are_done_anew_answer_for_themselves(quick: QuickRun, tmp_path: Path) -> None:
    """A fork asks another model: its scripts stand at the steps of the parent's, and err less."""
    config = settings(scoring="auto", L=1, K=1)
    fresh = await quick(config, name="fresh", agents=OtherModel(two_candidates(1.0, 1.1)), executor=ErringExecutor({}))
    parent = await quick(config, name="parent", agents=MindAgents(two_candidates()), executor=ErringExecutor({}))
    assert promised(fresh) < promised(parent)
    fork = await quick(
        config, name="fork", fork_from=tmp_path / "parent", agents=OtherModel(two_candidates(1.0, 1.1)),
        executor=ErringExecutor({}),
    )  # fmt: skip
    assert promised(fork) == promised(fresh)
    members = [(tmp_path / name / "solution" / "member_1.py").read_text() for name in ("fork", "fresh")]
    assert members[0] == members[1]
    assert Path(fork.submission_path).read_text() == Path(fresh.submission_path).read_text()


async def test_what_was_judged_by_other_rows_is_judged_again(quick: QuickRun, tmp_path: Path) -> None:
    """Another seed hides other rows: the keys of both are alike, and answers to one say nothing of the other."""
    config, other = (settings(scoring="auto", L=1, K=1, seed=seed) for seed in (1, 2))
    fresh = await quick(other, name="fresh", agents=MindAgents(two_candidates()), executor=ErringExecutor({}))
    await quick(config, name="parent", agents=MindAgents(two_candidates()), executor=ErringExecutor({}))
    fork = await quick(
        other, name="fork", fork_from=tmp_path / "parent", agents=MindAgents(two_candidates()),
        executor=ErringExecutor({}),
    )  # fmt: skip
    tables = [events(tmp_path / name, FinalistsJudged)[-1].finalists for name in ("fork", "fresh")]
    assert promised(fork) == promised(fresh) and tables[0] == tables[1]
    scored = [[(row.step, row.search, row.select) for row in rescore(tmp_path / name)] for name in ("fork", "fresh")]
    assert scored[0] == scored[1]


@pytest.mark.parametrize("trouble", [{}, {7919: "crash", 5381: "gap"}], ids=["calm", "in trouble"])
async def test_members_answer_on_all_labels_and_those_that_cannot_as_in_the_search(
    quick: QuickRun, tmp_path: Path, trouble: dict[int, str]
) -> None:
    executor = ErringExecutor(trouble)
    result = await blend(quick, executor)
    run_dir = tmp_path / "run"
    assert events(run_dir, FinalistsJudged)[0].chosen == "blend"
    members = [(run_dir / "solution" / f"member_{number}.py").read_text() for number in (1, 2)]
    factors = [int(text.splitlines()[0].removeprefix("factor = ")) for text in members]
    assert sorted(factors) == [5381, 7919]
    (line,) = re.findall(r"^WEIGHTS = (.*)$", result.final_solution.content, re.MULTILINE)
    with Path(result.submission_path).open(newline="") as stream:
        submitted = {int(row["id"]): float(row["label"]) for row in csv.DictReader(stream)}
    parts = list(zip(ast.literal_eval(line), members, strict=True))
    wanted = {
        row: sum(weight * answer(text, row, size_of(row), on_all=not trouble) for weight, text in parts)
        for row in range(LABELLED, LABELLED + ASKED)
    }
    assert submitted == pytest.approx(wanted, abs=1e-4)
    said = {7919: "KeyError: no such column", 5381: "39 rows, the test file 40: answer every one"}
    told = [warning for warning in result.warnings if "of the blend" in warning]
    for number, (factor, warning) in enumerate(zip(factors if trouble else [], told, strict=True), 1):
        assert (
            warning.startswith(f"member {number} of the blend answers as in the search: ") and said[factor] in warning
        )
    final = [event for event in events(run_dir, ScriptStarted) if event.purpose == "submission"]
    assert [event.step.split("/")[:2] for event in final] == [["finalization", f"member-{n}"] for n in (1, 2)]
    assert min(event.timeout_seconds or 0 for event in final) > 2000, "as long as the run has, not a share of it"
    assert executor.shares[1] == pytest.approx(2 * executor.shares[0], rel=0.05), "what is left is shared by members"
    kept = {path.name for path in (run_dir / "model").glob("*")}
    assert kept == (set() if trouble else {"factor = 7919", "factor = 5381"}), "of all members, or of none"
    if not trouble:
        noted = json.loads((run_dir / "model.json").read_text(encoding="utf-8"))["digest"]
        data = DataFolder(result.task.data_dir, ours=run_dir)
        assert noted == fitted_digest(result.final_solution.content, data), "`predict` asks for the same"
    origin = result.lineage["finalization"]
    assert (origin["rows"], origin["problems"], origin["sample"]) == (ASKED, 0, "sample_submission.csv")


async def test_without_a_test_file_a_blend_is_handed_over_as_its_scripts(
    quick: QuickRun, task: TaskDescription, tmp_path: Path
) -> None:
    for name in ("test.csv", "sample_submission.csv"):
        (Path(task.data_dir) / name).unlink()
    executor = ErringExecutor({})
    result = await blend(quick, executor)
    run_dir = tmp_path / "run"
    assert events(run_dir, FinalistsJudged)[0].chosen == "blend"
    assert (result.submission_path, result.has_test, executor.shares) == ("", False, [])
    assert result.promise is not None and result.promise.score == pytest.approx(result.final_solution.score)
    assert sorted(path.name for path in (run_dir / "solution").iterdir()) == ["member_1.py", "member_2.py"]
    assert (run_dir / "solution.py").read_text(encoding="utf-8") == result.final_solution.content
