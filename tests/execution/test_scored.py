"""Scripts scored by labels that they never see: on how many views, what is kept, what is told, and blends of them."""

import asyncio
import csv
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mle_star.data.metrics import known_metric
from mle_star.data.place import DataFolder
from mle_star.execution import LocalExecutor, check_submission_format
from mle_star.execution.executors import Announcement
from mle_star.execution.outcome import HEADER
from mle_star.execution.recorded import execute_in_run
from mle_star.execution.scoring import overlaps
from mle_star.finalization import submit_blend
from mle_star.holdout.answers import read_answers
from mle_star.holdout.holdout import HoldOut
from mle_star.models import ExecutionRawResult, MetricDirection, PipelineConfig, SolutionScript, TaskDescription
from mle_star.run.budget import Budget
from mle_star.run.context import RunShared, ScriptRequest
from mle_star.run.events import Notice, ScriptFinished, ScriptStarted
from mle_star.run.folder import RunFolder
from mle_star.run.timing import limit_in_run, share_in_run
from tests.conftest import best_score, check
from tests.conftest import kept as kept_submission
from tests.execution.conftest import FixedExecutor, OpenRun, finished, scored, script, write_sizes

CONFIG = PipelineConfig(scoring="auto", score_views=5, time_limit_seconds=3600)
HITS = """
def hits(truth, answers):
    if (answers["label"].astype(int) == 7).any():
        raise ValueError("seven is no answer")
    return (truth["label"].astype(int) == answers["label"].astype(int)).mean()
"""


Rule = Callable[[int, int], int | float | str]
"""From the number of a row and its size to the answer."""


def right(number: int, size: int) -> int:
    return int(size > 25)


class Answering(FixedExecutor):
    """Answers the test file that it sees by a rule, or by the one that is read from its script."""

    def __init__(self, rule: Rule, read: Callable[[ScriptRequest], Rule] | None = None, **fields: object) -> None:
        super().__init__(**{"stdout": "done\n", **fields})  # type: ignore[arg-type]
        self.rule, self.read = rule, read

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        rows = csv.DictReader(Path(str(request.input_dir), "test.csv").read_text().splitlines())
        rule = self.read(request) if self.read else self.rule
        answers = [f"{row['id']},{rule(n, int(row['size']))}\n" for n, row in enumerate(rows)]
        Path(request.working_dir, "final", "submission.csv").write_text("".join(["id,label\n", *answers]))
        return await super().run(request)


class Meeting(Answering):
    """Four machines elsewhere whose scripts end when as many are at work as `meet` says, after the first one.

    What `fails` names by the number of its view fails, the last one first; what comes after that one never ends.
    """

    def __init__(self, meet: int = 4, fails: tuple[int, ...] = ()) -> None:
        super().__init__(right)
        self.meet, self.fails, self.met, self.news = meet, fails, False, asyncio.Condition()
        self.at_work, self.ended, self.stopped = set[int](), list[int](), list[int]()

    def announce(self) -> Announcement:
        return Announcement(machines={}, slots=4)

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        view = int(str(request.input_dir)[-1])
        async with self.news:
            self.at_work.add(view)
            self.met |= len(self.at_work) == self.meet
            self.news.notify_all()
            try:
                await self.news.wait_for(lambda: view == 0 or (self.met and self._is_next(view)))
                self.ended.append(view)
            except asyncio.CancelledError:
                self.stopped.append(view)
                raise
            finally:
                self.at_work.remove(view)
                self.news.notify_all()
        if view in self.fails:
            return self.raw.model_copy(update={"stderr": f"Traceback\nValueError: on view {view}", "exit_code": 1})
        return await super().run(request)

    def _is_next(self, view: int) -> bool:
        later = [other for other in self.fails if other > view]
        return all(other in self.ended for other in later) and view <= max(self.fails, default=view)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = write_sizes(tmp_path / "data")
    (tmp_path / "score.py").write_text(HITS)
    return folder


@pytest.fixture
def holdout(task: TaskDescription, tmp_path: Path) -> HoldOut:
    return HoldOut.prepare(task, CONFIG, tmp_path / "run")


async def test_a_scored_script_is_recorded_with_answers_and_score(open_run: OpenRun, holdout: HoldOut) -> None:
    odd = "Final Validation Performance: 85%\n"  # no score, and none is needed
    executor = Answering(lambda number, size: right(number, size) ^ (number % 10 == 0), stdout=odd)
    with open_run(CONFIG, executor, shared=RunShared(holdout=holdout)) as run:
        result = await execute_in_run(scored(0.1))
        (event,) = finished(run)
        assert not [note for note in run.journal.events if isinstance(note, Notice)], "it boasts of nothing"
        assert event.result.answers == [f"answers/script-{event.digest[:12]}-{number}.csv" for number in range(5)]
        assert all((run.run_dir / path).is_file() for path in event.result.answers)
        assert event.result.submission == f"answers/script-{event.digest[:12]}.real.csv"
        lines = (run.run_dir / event.result.submission).read_text().splitlines()
        assert [line.split(",")[0] for line in lines] == ["id", *map(str, range(400, 440))]
        assert best_score(run) == result.score
    assert result.score == pytest.approx(0.9, abs=0.06) and result.measure is not None
    assert (result.score_problem, result.is_error, result.measure.printed) == ("", False, None)
    assert (result.measure.score, result.measure.rows) == (result.score, len(holdout.search_rows))
    assert [request.input_dir for request in executor.requests] == [str(view.folder) for view in holdout.views]
    kept_from_it = {str(run.run_dir), run.task.data_dir}  # the labels, wherever something around them is shown
    assert all({*request.hidden} == kept_from_it for request in executor.requests)


@pytest.mark.req("REQ-FN-018")
@pytest.mark.parametrize(
    ("name", "counts"), [("sample_submission_2.csv", False), ("sample.csv", True), ("old/sample_submission.csv", True)]
)
async def test_which_sample(open_run: OpenRun, task: TaskDescription, tmp_path: Path, name: str, counts: bool) -> None:
    """Two are none; but a file of another name, or one that lies deeper among the data, is no second sample."""
    folder = Path(task.data_dir).resolve()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("id,guess\n400,0\n")
    holdout = HoldOut.prepare(task, CONFIG, tmp_path / "run")
    assert holdout.sample == (folder / "sample_submission.csv" if counts else None)
    with open_run(CONFIG, Answering(right), shared=RunShared(holdout=holdout)) as run:
        await execute_in_run(scored(0.1))
        assert run.ledger.kept is not None
        turned = run.work_dir / "final" / "submission.csv"
        turned.write_text("label,id\n" + "".join(f"0,{i}\n" for i in range(400, 440)))
        assert len(check_submission_format(str(run.work_dir), sample=holdout.sample)) == counts


async def test_where_there_is_room_a_script_meets_its_views_side_by_side(open_run: OpenRun, holdout: HoldOut) -> None:
    together = Meeting()
    with open_run(CONFIG, together, shared=RunShared(holdout=holdout)) as run:
        result = await asyncio.wait_for(execute_in_run(scored(0.5)), 120)
        (event,) = finished(run)
        assert event.result.answers == [f"answers/script-{event.digest[:12]}-{number}.csv" for number in range(5)]
        pairs = zip(event.result.answers, holdout.views, strict=True)
        assert all(read_answers(holdout.scorer.data, run.run_dir / path, view).hidden for path, view in pairs)
        assert sorted(path.name for path in (run.run_dir / "work").iterdir()) == [".main.mle-star-work", "main"]
    logs = {Path(str(request.output_file)).name for request in together.requests}
    assert logs == {"script.log", *(f"script.view-{number}.log" for number in range(1, 5))}
    assert (result.score, together.ended[0], sorted(together.ended)) == (1.0, 0, [0, 1, 2, 3, 4])
    alone = Meeting(meet=1)
    alone.seconds = 0.1
    config = CONFIG.model_copy(update={"max_concurrent_scripts": 1, "use_cache": False})
    with open_run(config, alone, shared=RunShared(holdout=holdout)):
        await asyncio.wait_for(execute_in_run(scored(0.5, "# anew")), 120)
    assert (alone.ended, alone.most) == ([0, 1, 2, 3, 4], 1), "no more at once than the settings allow"


async def test_of_views_side_by_side_the_first_that_fails_counts(open_run: OpenRun, holdout: HoldOut) -> None:
    failing = Meeting(fails=(1, 3))
    with open_run(CONFIG, failing, shared=RunShared(holdout=holdout)) as run:
        result = await asyncio.wait_for(execute_in_run(scored(0.5)), 120)
        (event,) = finished(run)
        assert (event.result.answers, event.result.submission, best_score(run)) == ([], None, None)
    assert result.is_error and result.stderr.endswith("on view 1")
    assert failing.ended[:2] == [0, 3] and 1 in failing.ended and 4 in failing.stopped and not failing.at_work


MEGABYTES = "x" * 5_000_000
MISSING = "./final/submission.csv is missing or empty: write an answer for every row of the test file there"


@pytest.mark.parametrize(
    ("metric", "odd", "words"),
    [
        ("score.py:hits", 7, "score.py:hits cannot be computed: {}/score.py:hits failed: ValueError: seven is no"),
        ("score.py:hits", MEGABYTES, "score.py:hits cannot be computed: "),
        ("accuracy", MEGABYTES, "holds 'xxx"),
        ("log_loss", MEGABYTES, "an answer is no number"),
        ("accuracy", None, MISSING),
    ],
    ids=["refused", "long, refused", "long label", "long, no number", "none"],
)
async def test_what_cannot_be_scored_goes_to_the_debugger_with_the_reason_in_a_line(
    metric: str, odd: int | str | None, words: str, open_run: OpenRun, task: TaskDescription, tmp_path: Path
) -> None:
    direction = MetricDirection.maximize if metric.endswith("hits") else known_metric(metric).direction
    own = task.model_copy(update={"evaluation_metric": metric, "metric_direction": direction})
    holdout = HoldOut.prepare(own, CONFIG, tmp_path / "run")
    answering = Answering(lambda row, size: odd if odd and row == 3 else right(row, size), duration_seconds=12.5)
    executor = FixedExecutor("done\n", duration_seconds=12.5) if odd is None else answering
    with open_run(CONFIG, executor, shared=RunShared(holdout=holdout)) as run:
        result = await execute_in_run(scored(0.1))
        (event,) = finished(run)
        assert best_score(run) is None and (event.result.submission, event.result.answers) == (None, [])
        assert run.journal.path.stat().st_size < 100_000
    assert (result.is_error, result.score, result.measure) == (True, None, None)
    assert (result.stdout, result.duration_seconds, result.exit_code) == ("done\n", 12.5, 0)
    error = result.error_traceback or ""
    assert error.startswith(f"{HEADER}\nValueError: ") and len(error) < 1000 and words.format(tmp_path) in error
    assert odd is not None or (error, len(executor.requests)) == (f"{HEADER}\nValueError: {MISSING}", 1)


@pytest.mark.parametrize(("turns", "views"), [(0.5, 1), (2.0, 2), (3.9, 3), (9.0, 5)])
async def test_a_script_has_the_views_that_fit(turns: float, views: int, open_run: OpenRun, holdout: HoldOut) -> None:
    budget = Budget(CONFIG, clock=lambda: 0.0)
    with open_run(CONFIG, FixedExecutor(), budget=budget) as run:
        share = share_in_run(run, limit_in_run(run, "solution"))
    executor = Answering(right, duration_seconds=share / turns)
    with open_run(CONFIG, executor, budget=budget, shared=RunShared(holdout=holdout)) as run:
        result = await execute_in_run(scored(0.5))
        assert len(finished(run)[0].result.answers) == len(executor.requests) == views
        (limit,) = {event.timeout_seconds for event in run.journal.events if isinstance(event, ScriptStarted)}
    assert result.score == 1.0
    shares = {(request.env["MLE_STAR_SECONDS"], request.env["MLE_STAR_SHARE"]) for request in executor.requests}
    assert shares == {(f"{limit:.0f}", f"{share / 5:.1f}")}, "what it should take on each view, had it time for all"


def losing(first: float, others: float) -> SolutionScript:
    """A script that says what it loses on each row (log loss): on those of the first view, and on the others."""
    return script(f"# {first} {others} #")


def lost(request: ScriptRequest) -> Rule:
    first, others = map(float, Path(request.script_path).read_text().split("#")[1].split())
    sure = math.exp(-(first if str(request.input_dir).endswith("view-0") else others))
    return lambda number, size: sure if right(number, size) else 1 - sure


@pytest.mark.parametrize(
    ("weak", "seconds", "loss", "score", "views"),
    [
        ((0.02, 0.075), 20.0, 0.000055, 0.000055, 5),  # ahead, and there is time for the views that it lacks
        ((0.02, 0.075), 30.0, 0.000055, 0.0003, 1),  # ahead, and there is none: at most as good as the best
        ((0.1, 0.055), 30.0, 0.0006, 0.0006, 1),
        ((0.1, 0.055), 30.0, 0.000229, 0.0003, 1),
    ],
)
async def test_a_script_on_fewer_views_is_compared_with_the_best_one_and_never_takes_its_place_by_an_estimate(
    weak: tuple[float, float], seconds: float, loss: float, score: float, views: int, open_run: OpenRun,
    task: TaskDescription, tmp_path: Path,
) -> None:  # fmt: skip
    """The first script of a run is a weak one, far better or worse on the first view than on the others."""
    better = {"evaluation_metric": "log_loss", "metric_direction": MetricDirection.minimize}
    holdout = HoldOut.prepare(task.model_copy(update=better), CONFIG, tmp_path / "run")
    config, executor = CONFIG.model_copy(update={"script_timeout_seconds": 100}), Answering(right, lost)
    with open_run(config, executor, shared=RunShared(holdout=holdout)) as run:
        check(run, losing(0.0001, 0.0001).content, leaking=True)  # a leak is nothing to be compared with
        for one in (losing(*weak), losing(0.0001, 0.0001), losing(0.0003, 0.0003)):
            await execute_in_run(one)
        executor.raw = executor.raw.model_copy(update={"duration_seconds": seconds})
        result = await execute_in_run(losing(loss, loss))
        assert len(finished(run)[-1].result.answers) == views
    assert result.score == pytest.approx(score, rel=1e-3) and result.measure is not None
    assert (result.measure.views, result.measure.estimated) == (views, views < 5)
    assert result.measure.rows == len(holdout.compared_rows(views))
    assert (result.measure.low, result.measure.high) == pytest.approx((score, score), rel=1e-3), "all rows are alike"
    assert result.measure.basis == ("" if views == 5 else f"estimated from {result.measure.rows} rows, 1 view")


async def test_scripts_are_told_in_pairs_how_they_err(open_run: OpenRun, holdout: HoldOut) -> None:
    def wrong_on_every(request: ScriptRequest) -> Rule:
        number = int(Path(request.script_path).read_text().split("#")[1])
        return lambda row, size: right(row, size) ^ (row % number == 0)

    with open_run(CONFIG, Answering(right, wrong_on_every), shared=RunShared(holdout=holdout)):
        for every in (2, 4):
            await execute_in_run(script(f"# {every} #"))
        found = await overlaps(["# 2 #", "# 4 #", "# 2 #", "# 9 #"])
    words = "errors correlate by 0.54; of 265 answers {} are right in the first alone, {} in the second alone, "
    words += "{} in neither"
    assert found == [(0, 1, words.format(0, 76, 72)), (1, 2, words.format(76, 0, 72))]


async def test_studies_and_final_scripts_are_not_scored(open_run: OpenRun, holdout: HoldOut, data_dir: Path) -> None:
    executor = Answering(right, stdout="Final Validation Performance: 0.5\n")
    with open_run(CONFIG, executor, shared=RunShared(holdout=holdout)) as run:
        study = await execute_in_run(scored(0.5), purpose="ablation")
        final = await execute_in_run(scored(0.5), purpose="submission")
        study_event, final_event = finished(run)
        assert final_event.result.submission is not None
        assert len((run.run_dir / final_event.result.submission).read_text().splitlines()) == 1 + 40
    assert study.measure is final.measure is None
    assert (study_event.result.submission, study_event.result.answers) == (None, []) and len(executor.requests) == 2
    assert executor.requests[1].input_dir == str(data_dir), "the last script sees all labels"


@pytest.mark.parametrize("use_cache", [True, False])
async def test_what_runs_on_other_data_is_never_the_best(use_cache: bool, open_run: OpenRun, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"use_cache": use_cache})
    executor, places = FixedExecutor(), [tmp_path / "sample-1", tmp_path / "sample-2"]
    for place in places:
        place.mkdir()
        (place / "train.csv").write_text("id,label\n1,0\n")
    with open_run(config, executor) as run:
        sampled = [await execute_in_run(scored(0.5), purpose="sample", data=DataFolder(place)) for place in places]
        probed = await execute_in_run(scored(0.5), purpose="probe", data=DataFolder(places[0]))
        again = await execute_in_run(scored(0.5), purpose="sample", data=DataFolder(places[0]))
        steps = [(event.step, event.purpose, event.result.submission) for event in finished(run)]
        assert (best_score(run), kept_submission(run)) == (None, None)
    assert steps == [
        ("sample-script", "sample", None), ("sample-script-2", "sample", None),
        ("probe-script", "probe", None), ("sample-script-3", "sample", None),
    ]  # fmt: skip
    assert [(result.score, result.cached) for result in [*sampled, probed, again]] == [
        (None, False), (None, False), (0.5, False), (None, use_cache)
    ]  # fmt: skip
    seen = [str(places[n]) for n in (0, 1, 0, 0)[: 4 - use_cache]]
    assert [request.input_dir for request in executor.requests] == seen


async def test_files_of_a_script_that_found_no_room_are_swept(open_run: OpenRun) -> None:
    def cache(request: ScriptRequest) -> None:
        (Path(request.working_dir) / "cache.bin").write_bytes(b"x")

    for number, error in enumerate(("OSError: [Errno 28] No space left on device", "KeyError: 'room'")):
        trace = f"Traceback (most recent call last):\n{error}\n"
        with open_run(CONFIG, FixedExecutor("", first=cache, stderr=trace, exit_code=1)) as run:
            result = await execute_in_run(scored(number))
            assert result.is_error and (run.work_dir / "cache.bin").exists() == bool(number)


MEMBER = """
import csv, os, shutil
rows = list(csv.DictReader(open('input/test.csv')))
with open('final/submission.csv', 'w') as file:
    file.write('id,label\\n' + ''.join(f"{row['id']},{int(int(row['size']) > 25)}\\n" for row in rows))
if len(open('input/train.csv').readlines()) == 401:  # all labels are there: it is the last run
    LINK
print('Final Validation Performance: 0.9')
"""
LINKS = {
    "a file": "os.remove('final/submission.csv'); os.symlink('OUTSIDE/precious.csv', 'final/submission.csv')",
    "a folder": "shutil.rmtree('final'); os.symlink('OUTSIDE', 'final')",
    "a pipe": "os.remove('final/submission.csv'); os.mkfifo('final/submission.csv')",
}


@pytest.mark.parametrize("what", LINKS)
async def test_no_member_misleads_a_blend(what: str, open_run: OpenRun, task: TaskDescription, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    mine = "id,label\n" + "".join(f"{i},{i % 2}\n" for i in range(400, 440))
    (outside / "precious.csv").write_text(mine)
    member = script(MEMBER.replace("LINK", LINKS[what]).replace("OUTSIDE", str(outside)))
    config = PipelineConfig(scoring="auto", score_views=1, time_limit_seconds=3600)
    holdout = HoldOut.prepare(task, config, tmp_path / "run")
    with open_run(config, LocalExecutor(config), shared=RunShared(holdout=holdout)):
        assert (await execute_in_run(member, purpose="solution")).score == 1.0
        done = await submit_blend(member, {member.content: 1.0})
    assert [path.name for path in outside.iterdir()] == ["precious.csv"]
    assert (outside / "precious.csv").read_text() == mine
    assert any("answers as in the search: it wrote no submission" in warning for warning in done.warnings)
    rows = [line.split(",") for line in Path(done.path).read_text().splitlines()[1:]]
    assert [(int(key), float(answer)) for key, answer in rows] == [(i, i * 7 % 50 > 25) for i in range(400, 440)]


class SlowInTheSearch(LocalExecutor):
    """What calls itself slow has taken most of an hour; whether what was fitted counted as complete before it ran."""

    complete = False

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        self.complete |= RunFolder(Path(request.working_dir).parents[1]).model_note.exists()
        raw = await super().run(request)
        is_slow = "# slow" in Path(request.script_path).read_text(encoding="utf-8")
        return raw.model_copy(update={"duration_seconds": 3500.0}) if is_slow else raw


async def test_members_answer_anew_if_there_is_time(open_run: OpenRun, task: TaskDescription, tmp_path: Path) -> None:
    good = MEMBER.replace("LINK", "open('model/good', 'w').close()")
    members = [script(text) for text in (good, good.replace("> 25", "<= 25").replace("good", "bad"), f"{good}# slow")]
    config = PipelineConfig(scoring="auto", score_views=1, time_limit_seconds=4000)
    holdout, executor = HoldOut.prepare(task, config, tmp_path / "run"), SlowInTheSearch(config)
    with open_run(config, executor, shared=RunShared(holdout=holdout)) as run:
        for member in members:
            await execute_in_run(member, purpose="solution")
        done = await submit_blend(script("# the blend"), {member.content: 1 / 3 for member in members})
        again = [e.script for e in run.journal.events if isinstance(e, ScriptFinished) and e.purpose == "submission"]
        assert not executor.complete and not RunFolder(run.run_dir).model.exists(), "fitted by all members, or by none"
    assert again == [member.content for member in members[:2]]
    (warning,) = (warning for warning in done.warnings if "of the blend" in warning)
    assert re.fullmatch(
        r"member 3 of the blend answers as in the search: \d+ s are left, and the scored solution ran for 3500 s",
        warning,
    )
    rows = [line.split(",") for line in Path(done.path).read_text().splitlines()[1:]]
    wanted = [(i, 2 if i * 7 % 50 > 25 else 1) for i in range(400, 440)]
    assert [(int(key), round(3 * float(answer))) for key, answer in rows] == wanted
