"""A blend of scripts that err in different places: its members run on the untouched data, their mean is submitted."""

import ast
import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mle_star.data.layout import find_layout
from mle_star.data.metrics import known_metric
from mle_star.data.place import DataFolder
from mle_star.data.tables import Form
from mle_star.execution.artifacts import fitted_digest
from mle_star.execution.scoring import searched_submission
from mle_star.holdout.holdout import blend_script
from mle_star.holdout.scorer import Scorer
from mle_star.holdout.views import Data
from mle_star.models import ExecutionRawResult, FinalResult, SolutionPhase, SolutionScript, TaskDescription
from mle_star.models.enums import PHASES
from mle_star.run import events as ev
from mle_star.run.context import ScriptRequest, current_run
from mle_star.run.timing import SHARE
from mle_star.safety import LEAK_REPLACED
from mle_star.search.final_result import rescore
from tests.conftest import write_split
from tests.pipeline.clock import in_its_own_time
from tests.pipeline.conftest import LOSS, QuickRun, answers_of, settings, submitted, timed
from tests.pipeline.mind import LevelExecutor, Mind, MindAgents, Rule, crash, extracted, fenced, leaking, model_of

LABELLED, TEST = 400, 40


def size_of(row: int) -> int:
    return row * 7 % 50


def script(factor: int, error: float) -> str:
    """A script whose answers are off by `error`, above or below as `factor` has it."""
    return f"factor = {factor}\nerror = {error}\nlevel = 1.0000\nwrite('submission.csv')\n"


def answer(text: str, row: int, size: int, *, on_all: bool) -> float:
    """What a script says of a row, whose label is its size and a half: trained on all labels, it errs half as much."""
    factor, error = int(re.findall(r"factor = (\d+)", text)[0]), float(re.findall(r"error = ([\d.]+)", text)[0])
    return size + 0.5 + (1 if row * factor % 1009 < 504 else -1) * (error / 2 if on_all else error)


class Erring(LevelExecutor):
    """Answers as the script's words say; on all labels the scripts with these factors crash, or leave out a row."""

    def __init__(self, crashes: int = 0, gap: int = 0) -> None:
        super().__init__(before=self.look, after=self.leave_a_model, seconds=0.01, answers=self.say)
        self.crashes, self.gap, self.shares, self.unknown = crashes, gap, list[float](), list[Path | None]()

    async def look(self, request: ScriptRequest) -> ExecutionRawResult | None:
        if "views" in Path(str(request.input_dir)).parts:
            return None
        self.shares.append(float(request.env[SHARE]))
        never_ran = SolutionScript(content="print('fixed')", phase=SolutionPhase.final)
        self.unknown.append(searched_submission(current_run(), never_ran))
        text = Path(request.script_path).read_text(encoding="utf-8")
        return crash("KeyError: no such column") if f"factor = {self.crashes}\n" in text else None

    def leave_a_model(self, request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
        text, model = Path(request.script_path).read_text(encoding="utf-8"), Path(request.working_dir, "model")
        if "submission.csv" in text and model.is_dir() and not done.exit_code:
            (model / text.splitlines()[0]).touch()
        return done

    def say(self, text: str, rows: list[dict[str, str]]) -> list[tuple[str, Any]]:
        on_all = len(rows) == TEST
        given = rows[on_all and f"factor = {self.gap}\n" in text :]
        return [(row["id"], answer(text, int(row["id"]), int(row["size"]), on_all=on_all)) for row in given]


@pytest.fixture
def task(task: TaskDescription, tmp_path: Path) -> TaskDescription:
    """Numbers to predict, so that answers can be averaged."""
    rows = [(i, size_of(i), f"{size_of(i)}.5") for i in range(LABELLED + TEST)]
    folder = write_split(tmp_path / "numbers", "id,size,label", rows, LABELLED)
    return task.model_copy(update={"data_dir": str(folder), **LOSS})


def two_candidates(first: float = 3.0, second: float = 3.2) -> Mind:
    """A mind with two candidates that are off by about as much, in different rows."""
    candidates = [fenced(script(7919, first)), fenced(script(5381, second))]
    overrides: dict[str, Rule] = {"init": lambda prompt: candidates[model_of(prompt)], "coder": fenced("error = 8.0")}
    overrides["merger"], overrides["extractor"] = fenced(script(3571, 9.0)), extracted(f"error = {first}", "less of it")
    return Mind(overrides=overrides)


async def blend(
    quick: QuickRun, executor: Erring | None = None, agents: MindAgents | None = None, **options: Any
) -> FinalResult:
    changes: dict[str, Any] = {"scoring": "auto", "L": 1, "K": 1, "seed": 1}
    changes |= {name: options.pop(name) for name in ("seed", "leakage_checks") if name in options}
    agents, executor = agents or MindAgents(two_candidates()), executor or Erring()
    return await quick(settings(**changes), agents=agents, executor=executor, **options)


def expected(result: FinalResult) -> float:
    assert result.expected is not None
    return result.expected.score


@pytest.mark.parametrize("change", ["model", "seed"])
async def test_a_fork_scores_what_is_new_as_a_fresh_run_does(quick: QuickRun, tmp_path: Path, change: str) -> None:
    """Another model's scripts stand at the steps of the parent's, and err less; another seed hides other rows."""

    async def changed(**options: Any) -> FinalResult:
        if change == "seed":
            return await blend(quick, seed=2, **options)
        return await blend(quick, agents=MindAgents(two_candidates(1.0, 1.1), changed="all"), **options)

    fresh, parent = await changed(name="fresh"), await blend(quick, name="parent")
    fork = await changed(name="fork", fork_from=tmp_path / "parent")
    assert expected(fork) == expected(fresh) and (change == "seed" or expected(fresh) < expected(parent))
    if change == "model":
        members = [(tmp_path / name / "solution" / "member_1.py").read_text() for name in ("fork", "fresh")]
        assert members[0] == members[1] and submitted(fork) == submitted(fresh)
        return
    tables = [quick.events(ev.ShortlistScored, name)[-1].shortlist for name in ("fork", "fresh")]
    assert tables[0] == tables[1]
    scored = [{row.step: (row.search, row.select) for row in rescore(tmp_path / name)} for name in ("fork", "fresh")]
    assert scored[0] == scored[1], "whichever candidate ends first"


@pytest.mark.req("REQ-OR-039")
@pytest.mark.parametrize("trouble", [(), (7919, 5381)], ids=["calm", "in trouble"])
async def test_members_answer_on_all_labels_or_else_as_in_the_search(quick: QuickRun, trouble: tuple[int, ...]) -> None:
    executor = Erring(*trouble)
    result = await blend(quick, executor)
    assert quick.events(ev.ShortlistScored)[0].chosen == "blend"
    members = [(quick.dir / "solution" / f"member_{number}.py").read_text() for number in (1, 2)]
    factors = [int(text.splitlines()[0].removeprefix("factor = ")) for text in members]
    assert sorted(factors) == [5381, 7919]
    (line,) = re.findall(r"^WEIGHTS = (.*)$", result.final_solution.content, re.MULTILINE)
    parts = list(zip(ast.literal_eval(line), members, strict=True))
    probed = [event.script for event in quick.events(ev.ScriptFinished) if event.purpose == "probe"]
    assert probed == [max(parts)[1]], "which columns matter is measured for the member with the largest weight"
    answers = answers_of(result)
    assert [*answers] == [*range(LABELLED, LABELLED + TEST)]
    for row, given in answers.items():
        wanted = sum(weight * answer(text, row, size_of(row), on_all=not trouble) for weight, text in parts)
        assert given == pytest.approx(wanted, abs=1e-4)
    reasons = {7919: "KeyError: no such column", 5381: "39 rows, the test file 40: answer every one"}
    warned = [warning for warning in result.warnings if "of the blend" in warning]
    for number, (factor, warning) in enumerate(zip(factors if trouble else [], warned, strict=True), 1):
        assert warning.startswith(f"member {number} of the blend answers as in the search: ")
        assert reasons[factor] in warning
    final = [event for event in quick.events(ev.ScriptStarted) if event.purpose == "submission"]
    assert [event.step.split("/")[:2] for event in final] == [["finalization", f"member-{n}"] for n in (1, 2)]
    assert min(event.timeout_seconds or 0 for event in final) > 2000, "as long as the run has, not a share of it"
    assert executor.shares[1] == pytest.approx(2 * executor.shares[0], rel=0.05), "what is left is shared by members"
    assert executor.unknown == [None, None]
    if trouble:  # what was said in the search is kept
        (kept_blend,) = (quick.dir / "answers").glob("blend-*")
        assert kept_blend.read_text() == submitted(result)
    kept = {path.name for path in (quick.dir / "model").glob("*")}
    assert kept == (set() if trouble else {"factor = 7919", "factor = 5381"}), "of all members, or of none"
    if not trouble:
        noted = json.loads((quick.dir / "model.json").read_text(encoding="utf-8"))["digest"]
        data = DataFolder(result.task.data_dir, ours=quick.dir)
        assert noted == fitted_digest(result.final_solution.content, data), "`predict` asks for the same"
    origin = result.lineage["finalization"]
    assert (origin["rows"], origin["problems"], origin["sample"]) == (TEST, 0, "sample_submission.csv")
    selection, scripts = result.lineage["final_selection"], quick.events(ev.ScriptFinished)
    assert [*result.lineage["phase1"]["candidates"]] == ["model 0", "model 1"], "it grew out of both"
    assert (selection["name"], selection["score"], origin["from_phase"]) == ("blend", expected(result), "blend")
    assert [member["weight"] for member in selection["members"]] == pytest.approx(ast.literal_eval(line), abs=1e-5)
    ran = {event.step: event for event in scripts}
    assert [ran[member["step"]].script for member in selection["members"]] == members
    assert all(ran[member["step"]].result.score == member["score"] for member in selection["members"])


async def test_without_sample_or_test_a_blend_is_submitted_all_the_same(quick: QuickRun, task: TaskDescription) -> None:
    (Path(task.data_dir) / "sample_submission.csv").unlink()
    answers = answers_of(await blend(quick, name="no sample"))
    assert list(answers) == list(range(LABELLED, LABELLED + TEST))
    assert all(abs(answer - size_of(row) - 0.5) < 2 for row, answer in answers.items())
    (Path(task.data_dir) / "test.csv").unlink()
    result = await blend(quick, executor := Erring())
    for name in ("no sample", "run"):
        assert quick.events(ev.ShortlistScored, name)[0].chosen == "blend"
    assert (result.submission_path, result.has_test, executor.shares) == ("", False, [])
    assert expected(result) == pytest.approx(result.final_solution.score)
    assert sorted(path.name for path in (quick.dir / "solution").iterdir()) == ["member_1.py", "member_2.py"]
    assert (quick.dir / "solution.py").read_text(encoding="utf-8") == result.final_solution.content


@pytest.mark.parametrize(("seconds", "chosen"), [(1000.0, "blend"), (1300.0, "initial solution")])
async def test_without_a_test_no_more_is_chosen_than_can_learn_from_all_rows(
    quick: QuickRun, task: TaskDescription, seconds: float, chosen: str
) -> None:
    """Of an hour half an hour, or less, is left when the scripts that took so long are compared."""
    for name in ("sample_submission.csv", "test.csv"):
        (Path(task.data_dir) / name).unlink()

    async def pass_time(request: ScriptRequest) -> None:
        current_run().budget._started -= 0.25 * seconds if "candidate" in str(current_run().place) else 0.0

    executor = Erring()
    executor.seconds, executor.before = seconds, pass_time
    result = await blend(quick, executor)
    assert quick.events(ev.ShortlistScored)[-1].chosen == chosen
    assert not any("nothing is fitted" in warning for warning in result.warnings)
    assert (quick.dir / "model.json").is_file()
    assert len(list((quick.dir / "model").iterdir())) == 1 + (chosen == "blend")


@pytest.mark.req("REQ-OR-037")
@pytest.mark.parametrize("corrected", ["I cannot.", fenced("factor = 5387")])
async def test_what_is_picked_is_checked_and_gives_way_where_it_leaks(quick: QuickRun, corrected: str) -> None:
    """Of promising scripts only the winners of each phase are checked: a member of the blend may be none of them."""
    mind = two_candidates()
    mind.overrides |= leaking("factor = 5381", corrected)
    result = await blend(quick, agents=MindAgents(mind), leakage_checks="promising")
    checked = [re.sub("/[0-9a-f]{8}/", "/", e.step) for e in quick.events(ev.LeakageChecked) if e.found]
    assert checked == ["shortlist/leakage-detection"], "the first candidate was checked before, and is clean"
    (study,) = quick.events(ev.AblationFinished)
    assert (study.scores["baseline"], study.solution_score, study.comparable) == (1.0, 3.0, True), "as it was printed"
    (scored,) = quick.events(ev.ShortlistScored)
    assert scored.chosen == "initial solution" and "factor = 7919" in result.final_solution.content
    assert expected(result) == pytest.approx(3.0)
    costs = result.cost_breakdown
    assert sum(costs[f"{phase.name}_cost_usd"] for phase in PHASES) == pytest.approx(costs["total_cost_usd"])
    spent = sum(call.cost_usd for call in quick.events(ev.AgentFinished) if not call.step.startswith("phase"))
    assert costs["finalization_cost_usd"] == pytest.approx(spent), "the checks of the selection are part of it"
    started = {event.phase: event.at for event in quick.events(ev.PhaseStarted)}
    assert started["finalization"] < scored.at, "and so is its time"


@in_its_own_time
async def test_a_leak_that_is_found_after_a_cut_gives_way_to_the_next_of_the_shortlist(quick: QuickRun) -> None:
    """The time of the search is used up, and only finalization has time for a check: the coder's script leaks."""

    async def hang(label: str, agent: str) -> None:
        await asyncio.sleep({"planner": 1000, "leakage": 16}.get(agent, 0))

    mind = two_candidates()
    mind.overrides |= {"coder": fenced("error = 0.0"), **leaking("error = 0.0")}
    config = timed(600, 0.2, 0.699, 0.001, 0.1, scoring="auto", L=1, K=2, leakage_checks="promising")
    result = await quick(config, agents=MindAgents(mind, before=hang), executor=Erring())
    (scored,) = quick.events(ev.ShortlistScored)
    assert scored.chosen == "path 0", "by its score it is the best"
    (leak,) = (event for event in quick.events(ev.LeakageChecked) if event.found)
    assert leak.step == "finalization/leakage-detection"
    assert "error = 3.0" in result.final_solution.content and LEAK_REPLACED in result.warnings
    assert expected(result) == pytest.approx(3.0) == result.final_solution.score


ANSWERS = "id,label\n400,1.0\n401,2.0\n"


@pytest.mark.parametrize(
    ("form", "key", "bodies"),
    [
        (Form(), "id", [ANSWERS, "label,id\n4.0,401.0\n3.0,400.0\n"]),
        (Form(separator=";", decimal=","), "id", ["id;label\n400;1,0\n401;2,0\n", "id,label\n400,3.0\n401,4.0\n"]),
        (Form(), "", [ANSWERS, "id,label\n0,3.0\n1,4.0\n"]),
        (Form(), "id", [ANSWERS, "label\n3.0\n4.0\n"]),
        (Form(), "no test", [ANSWERS, "id,label\n401,4.0\n400,3.0\n"]),
    ],
    ids=["in another order", "decimal commas", "rows without a key", "a member without it", "no test"],
)
def test_the_program_of_a_blend_does_as_the_blend_did(tmp_path: Path, form: Form, key: str, bodies: list[str]) -> None:
    mark, files = form.separator, {"train.csv": "".join(f"{i},{i % 9},{i % 5}.5\n" for i in range(90))}
    files["train.csv"] = f"id,size,label\n{files['train.csv']}"
    if key != "no test":
        files["test.csv"] = "id,size\n400,1\n401,2\n" if key else "size\n1\n2\n"
    if key == "id":
        half = f"0{form.decimal}5"
        files["sample_submission.csv"] = f"id{mark}label\n400{mark}{half}\n401{mark}{half}\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    scorer = Scorer(Data.read(find_layout(tmp_path, "Predict `label`."), check=False), known_metric("rmse"))
    for place in ("solution", "final"):
        (tmp_path / place).mkdir()
    for number, body in enumerate(bodies, 1):
        writes = f"from pathlib import Path\nPath('final/submission.csv').write_text({body!r})\n"
        (tmp_path / "solution" / f"member_{number}.py").write_text(writes)
    (tmp_path / "solution.py").write_text(blend_script([0.25, 0.75], scorer))
    subprocess.run([sys.executable, "solution.py"], cwd=tmp_path, check=True)
    blended = f"id{mark}label\n400{mark}2.5\n401{mark}3.5\n"
    assert (tmp_path / "final" / "submission.csv").read_text() == blended.replace(".", form.decimal)
