"""A finished run at work: predictions by what it has fitted, a folder to take along, looking back, another script."""

import asyncio
import csv
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas
import pytest

import mle_star
from mle_star import ConfigError, ExecutionError, ExecutionRawResult, PipelineConfig, Run, load_model, run_pipeline_sync
from mle_star.cli.app import main
from mle_star.data.tables import Form, Table, read_table
from mle_star.execution import LocalExecutor
from mle_star.execution.artifacts import restore_fitted, save_fitted
from mle_star.execution.harness import complete, not_fitted
from mle_star.results.finished import _card, export_run, needs, promote
from mle_star.results.rows import read_new, write_new
from mle_star.run.context import ScriptRequest
from mle_star.run.folder import RunFolder, first_line, last_config
from mle_star.run.journal import read_journal
from mle_star.search.final_result import rescore
from mle_star.views import RunStory
from mle_star.views.lineage import lineage_of
from mle_star.views.verdict import Verdict
from tests.conftest import Captured, Logs, Patch, as_kept, write_texts
from tests.execution.conftest import FixedExecutor
from tests.pipeline.conftest import settings
from tests.pipeline.mind import LevelExecutor, Mind, MindAgents, fenced
from tests.results.conftest import SOLUTION, fit_houses, house_mind, houses
from tests.views.journals import Invented

SIZES = pandas.DataFrame({"size": [1, 2, 3]})
NEW = pandas.DataFrame({"rooms": [3, 4, 5], "kind": ["huge", "small", "castle"]}, index=[7, 8, 9])


def rewritten(run: Run, target: Path, **changes: dict[str, object]) -> Run:
    """A copy of a run whose result says something else: parts by name, each with the fields that change."""
    copy = run if run.path == target else Run(shutil.copytree(run.path, target, symlinks=True))
    result = json.loads((copy.path / "result.json").read_text(encoding="utf-8"))
    for part, fields in changes.items():
        result[part].update(fields)
    (copy.path / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return copy


def test_one_table_becomes_a_task_in_the_runs_folder_with_rows_held_back(house_run: Run) -> None:
    assert (house_run.path / "data" / "train.csv").is_file()
    task = mle_star.load_task(house_run.path)
    assert task.competition_id == "houses" and task.evaluation_metric == "mae"
    assert house_run.result.config.scoring == "auto" and not house_run.result.has_test
    expected = house_run.expected
    assert expected is not None and expected.measured == "harness" and expected.rows == 30
    assert house_run.score == expected.score < 2  # measured; the script itself claims 0.5
    assert house_run.submission is None and house_run.report.is_file()


async def test_new_rows_keep_their_order_and_index_also_under_a_running_event_loop(house_run: Run) -> None:
    assert asyncio.get_running_loop() is not None
    answers = house_run.predict(NEW)
    assert list(answers.columns) == ["price"] and list(answers.index) == [7, 8, 9]
    assert list(answers["price"])[:2] == pytest.approx([202, 10], abs=1.01) and answers.equals(house_run.predict(NEW))
    assert "loaded" in (house_run.path / "logs" / "predict.log").read_text(encoding="utf-8"), "nothing is fitted twice"
    odd = NEW.assign(rooms=["3", " ", None], kind=["huge", "small", "a\rb"]).set_index("kind", drop=False)
    assert list(house_run.predict(odd)["price"]) == list(answers["price"]), "gaps, line ends and indices of every kind"


def test_the_command_reads_other_dialects(house_run: Run, tmp_path: Path, capsys: Captured, monkeypatch: Patch) -> None:
    monkeypatch.chdir(house_run.path.parents[1])
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text("kind;rooms;note\nsmall;3,5;x\nlarge;;y\n", encoding="utf-8")
    assert main(["predict", "latest", str(new), "--output", str(out)]) == 0
    rows = list(csv.DictReader(out.open(newline="")))
    assert capsys.readouterr().err == f"2 predictions in {out}\n"
    assert [round(float(row["price"])) for row in rows] in ([10, 51], [11, 51], [10, 52], [11, 52])
    with pandas.ExcelWriter(tmp_path / "new.xlsx") as book:
        pandas.DataFrame({"Notes": ["made by Ann"]}).to_excel(book, sheet_name="Read me", index=False)
        NEW.to_excel(book, sheet_name="Houses", index=False)
    assert main(["predict", "houses", str(tmp_path / "new.xlsx")]) == 0
    assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == 3
    assert main(["predict", "latest", str(new), "--output", str(out)]) == 1
    assert "exists already; --force overwrites it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (pandas.DataFrame({"rooms": [1]}), "lacks kind; the model was trained on rooms, kind"),
        (pandas.DataFrame({"rooms": [*range(150), "many"], "kind": "a"}), "row 151: rooms is 'many', and all training"),
        (pandas.DataFrame({"rooms": [], "kind": []}), "there are no rows to predict"),
        (pandas.DataFrame({"rooms": [[1, 2]], "kind": "a"}), r"row 1: rooms is '\[1, 2\]', and all training"),
        ([1, 2], "expected a data frame or the path of data, not list"),
        (pandas.DataFrame({("rooms", "all"): [1]}), "the columns of the data frame have several levels"),
        ("nowhere.csv", "nowhere.csv: no such file"),
        ("rooms,kind\n3,small,\n4,huge,\n", "rows of another number of fields"),
        ("rooms,kind\n3,small\n4,huge,1,2\n5,huge\n", "rows of another number of fields"),
        ("3,4\n5,6\n", "no header line"),
    ],
)
def test_rows_unlike_the_training_data_are_refused(house_run: Run, tmp_path: Path, new: object, message: str) -> None:
    if isinstance(new, str) and "\n" in new:
        (tmp_path / "new.csv").write_text(new, encoding="utf-8")
        new = tmp_path / "new.csv"
    with pytest.raises(ConfigError, match=message):
        load_model(house_run.path).predict(new)


def test_a_header_of_numbers_is_known_by_the_training_data(tmp_path: Path) -> None:
    waves = ["400.5", "402.0", "410.5"]
    for name in ("train", "new"):
        pandas.DataFrame([[0.1, 0.2, 0.3]] * 9, columns=waves).to_csv(tmp_path / f"{name}.csv", index=False)
    table = read_table(tmp_path / "train.csv")
    assert isinstance(table, Table)
    assert list(read_new(tmp_path / "new.csv", replace(table, columns=tuple(waves))).columns) == waves


def test_new_rows_are_never_written_into_a_file_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "theirs.csv").write_text("id\n1\n", encoding="utf-8")
    os.link(tmp_path / "theirs.csv", tmp_path / "shown.csv")
    table = read_table(tmp_path / "theirs.csv")
    assert isinstance(table, Table)
    write_new(pandas.DataFrame({"id": ["7"]}), tmp_path / "shown.csv", Form(), table, tmp_path)
    assert (tmp_path / "theirs.csv").read_text(encoding="utf-8") == "id\n1\n"
    with pytest.raises(ConfigError, match="cannot be written in the form of the training data"):
        write_new(pandas.DataFrame({"id": ["Łódź"]}), tmp_path / "shown.csv", Form(encoding="cp1252"), table, tmp_path)


def test_a_run_folder_chooses_no_interpreter(house_run: Run, tmp_path: Path, caplog: Logs, monkeypatch: Patch) -> None:
    """It may come from somebody else."""
    evil = tmp_path / "evil"
    evil.write_text(f'#!/bin/sh\ntouch {tmp_path}/ran\nexec {sys.executable} "$@"\n', encoding="utf-8")
    evil.chmod(0o755)
    settings: dict[str, object] = {"python": str(evil), "model_caches": [str(tmp_path)], "allow_network": True}
    moved, executor = rewritten(house_run, tmp_path / "moved", config=settings).path, FixedExecutor(exit_code=1)
    with pytest.raises(ExecutionError, match="failed on these rows"):
        load_model(moved, executor=executor).predict(NEW)
    assert executor.requests[0].env["HF_HUB_OFFLINE"] == "1" and len(load_model(moved).predict(NEW)) == 3
    export_run(moved, tmp_path / "out")
    assert not (tmp_path / "ran").exists()
    lines = [record.getMessage() for record in caplog.records if "MLE_STAR_ALLOW_NETWORK" in record.getMessage()]
    assert len(lines) == 3 and all(f" {name}=" in line and "\n" not in line for line in lines for name in settings)
    monkeypatch.setenv("MLE_STAR_PYTHON", str(evil))
    chosen = load_model(moved).config
    assert (chosen.python, chosen.allow_network, chosen.model_caches) == (str(evil), False, ())
    export_run(moved, tmp_path / "chosen")
    assert (tmp_path / "ran").exists(), "what the user says counts"


def test_a_failing_script_says_why_and_a_slow_one_leaves_what_was_fitted(house_run: Run, tmp_path: Path) -> None:
    house_run.predict(NEW)
    moved = shutil.copytree(house_run.path, tmp_path / "moved", symlinks=True)
    slow = FixedExecutor(timed_out=True, exit_code=-9)
    with pytest.raises(ExecutionError, match="took more than 5 s"):
        load_model(moved, executor=slow).predict(NEW, timeout_seconds=5)
    assert len(slow.requests) == 1 and (moved / "model" / "means.json").is_file()
    (moved / "solution").mkdir()
    for number in (1, 2):
        (moved / "solution" / f"member_{number}.py").touch()
    with pytest.raises(ExecutionError, match="took more than"):
        load_model(moved, executor=slow).predict(NEW, timeout_seconds=50)
    env = slow.requests[-1].env
    assert (env["MLE_STAR_SECONDS"], env["MLE_STAR_SHARE"]) == ("50", "20.0"), "members share what they have"
    broken = rewritten(house_run, tmp_path / "broken", final_solution={"content": "raise KeyError('size')\n"})
    with pytest.raises(ExecutionError, match=r"failed on these rows: KeyError: 'size'; see .*predict\.log"):
        broken.predict(NEW)


async def test_what_a_cell_waits_for_ends_when_the_cell_is_interrupted() -> None:
    class Interrupted(Exception):
        """What a signal does to the cell."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before, seen = signal.signal(signal.SIGUSR1, interrupt), list[str]()

    async def work() -> None:
        seen.append("begun")
        os.kill(os.getpid(), signal.SIGUSR1)
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("ended")

    try:
        with pytest.raises(Interrupted):
            complete(work())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == ["begun", "ended"]


async def test_a_run_that_took_its_data_in_can_be_moved_and_a_fork_of_it_stands_on_its_own(tmp_path: Path) -> None:
    (tmp_path / "houses.csv").write_text(houses(), encoding="utf-8")
    moved, fork = fit_houses(tmp_path / "houses.csv", tmp_path).path.rename(tmp_path / "moved"), tmp_path / "fork"
    agents = MindAgents(house_mind())
    task, config = first_line(moved).task, last_config(moved)
    assert Path(task.data_dir) == moved / "data"
    await mle_star.run_pipeline(task, config, run_dir=moved, resume=True, agents=agents, console=False)
    await mle_star.run_pipeline(task, config, run_dir=fork, fork_from=moved, agents=agents, console=False)
    assert agents.calls == [] and rescore(moved)[0].search == rescore(fork)[0].search is not None
    shutil.rmtree(moved)
    assert Run(fork).predict(NEW)["price"].iloc[0] == pytest.approx(202, abs=1.01)


def run_solution(folder: Path) -> list[str]:
    """The lines that the script of a folder writes there, by itself."""
    made = folder / "final" / "submission.csv"
    made.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "solution.py"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return made.read_text(encoding="utf-8").splitlines()


def test_the_script_runs_in_the_run_s_folder_on_all_rows(house_run: Run, label_run: Run, tmp_path: Path) -> None:
    moved = shutil.copytree(label_run.path, tmp_path / "labels", symlinks=True)
    assert len(run_solution(moved)) == 11
    assert (label_run.path / "input").resolve() == Path(label_run.result.task.data_dir).resolve()
    moved = shutil.copytree(house_run.path, tmp_path / "houses", symlinks=True)
    assert (moved / "input" / "train.csv").read_text() == houses(), "no row is held back from it"
    assert len(run_solution(moved)) == 6, "a few rows as an example, not those that were held back"
    assert Run(moved).submission is None, "nothing was asked for"


def test_of_too_few_rows_to_hold_any_back_a_model_is_made_and_no_file_to_submit(tmp_path: Path) -> None:
    (tmp_path / "houses.csv").write_text("".join(houses().splitlines(keepends=True)[:13]), encoding="utf-8")
    run = fit_houses(tmp_path / "houses.csv", tmp_path)
    assert not run.result.has_test and run.submission is None and run.result.submission_path == ""
    assert not list((run.path / "final").glob("*.csv")) and run.settings and run.settings.work_dir == str(tmp_path)
    assert (run.path / "input" / "train.csv").read_bytes() == (tmp_path / "houses.csv").read_bytes()
    verdict = Verdict(RunStory.from_events(read_journal(run.path / "journal.jsonl")), run.path)
    assert verdict.file.path is None and verdict.file.note.startswith("ready: mle-star predict ")
    assert "expect a larger mae on new rows" in verdict.sure
    assert list(run.predict(NEW)["price"])[1] == pytest.approx(10, abs=1.01)


def test_keys_come_back_as_they_were_given(label_run: Run, tmp_path: Path) -> None:
    model, given = load_model(label_run.path), pandas.DataFrame({"size": [1, 2, 3], "id": ["x9", "x9", "x1"]})
    answers = model.predict(given)
    assert list(answers["id"]) == ["x9", "x9", "x1"] and len(set(abs(answers["label"]))) == 1
    assert "id" not in model.predict(given[["size"]]).columns
    model._show(given.astype(str), tmp_path)
    assert (tmp_path / "sample_submission.csv").read_text(encoding="utf-8") == "id,label\nx9,0\nx9,0\nx1,0\n"


HOSTILE = """
import os
import re
from pathlib import Path
state = Path('model')
found = [path.read_text() for path in state.rglob('*') if path.is_file()] if state.exists() else []
state.mkdir(exist_ok=True)
(state / 'fitted').write_text('1')
for name, target in (('key', 'SECRETS/key'), ('all', 'SECRETS')):
    if not os.path.lexists(state / name):
        os.symlink(target, state / name)
os.mkfifo(state / 'pipe')
rows = Path('input/test.csv').read_text().splitlines()[1:]
Path('final/submission.csv').write_text('label\\n' + ''.join(f'seen{"".join(found)}\\n' for _ in rows))
"""


def test_what_a_script_keeps_for_later_brings_nothing_of_the_user_s(label_run: Run, tmp_path: Path) -> None:
    """A link among what it has fitted would be followed by us, for the script or for whoever gets the model."""
    run = Run(shutil.copytree(label_run.path, tmp_path / "hostile", symlinks=True))
    secrets = write_texts(tmp_path / "secrets", {"key": "canary"})

    def write(code: str) -> None:
        rewritten(run, run.path, final_solution={"content": code.replace("SECRETS", str(secrets))})

    write(HOSTILE)
    for seen in ("seen", "seen1"):
        assert list(run.predict(pandas.DataFrame({"size": [1]}))["label"]) == [seen]
    assert [path.name for path in (run.path / "model").iterdir()] == ["fitted"]
    (run.path / "model" / "key").symlink_to(secrets / "key")
    export_run(run.path, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out" / "model").iterdir()] == ["fitted"]
    write("import os\nos.symlink('SECRETS/key', 'final/submission.csv')\n")
    export_run(run.path, tmp_path / "other")
    assert not (tmp_path / "other" / "model").exists(), "another script has fitted that"
    with pytest.raises(ExecutionError, match="wrote no predictions"):
        run.predict(pandas.DataFrame({"size": [1]}))


def test_a_leaderboard_ranks_scripts_and_marks_the_final(label_run: Run, capsys: Captured, monkeypatch: Patch) -> None:
    table = label_run.leaderboard()
    assert list(table["score"]) == sorted(table["score"], reverse=True) and len(table) >= 6
    assert table["chosen"].sum() >= 1
    monkeypatch.chdir(label_run.path.parents[1])
    assert main(["leaderboard", "latest", "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert "phase3" in out.splitlines()[1] and "final solution" in out and "more: --top" in out
    assert main(["leaderboard", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["score"] == table["score"].iloc[0]


def test_all_runs_are_ranked_by_task_and_a_bad_one_named(tmp_path: Path, capsys: Captured, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("houses", "cars", "houses")):
        Invented(seed=number, M=2, T=1, K=1, L=1, name=name).write(tmp_path / "runs" / f"run-{number}")
    write_texts(tmp_path, {"runs/damaged/journal.jsonl": '{"kind": "nonsense"}\n{"kind": "more"}\n'})
    assert main(["leaderboard", "--json", "--top", "3"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)
    assert [row["task"] for row in rows] == ["houses"] * 3 + ["cars"] * 3
    assert sorted(rows, key=lambda row: (row["task"] == "cars", -row["score"])) == rows
    assert {row["run"] for row in rows if row["task"] == "houses"} == {"run-0", "run-2"}
    assert err.startswith("note: left out: ") and "damaged" in err and err.count("\n") == 1


def test_another_script_is_promoted_and_the_report_is_about_it(label_run: Run, house_run: Run, tmp_path: Path) -> None:
    bare = shutil.ignore_patterns("final", "artifacts")  # as a run that came to no submission
    run = Run(shutil.copytree(label_run.path, tmp_path / "promoted", symlinks=True, ignore=bare))
    before = len(list(read_journal(run.path / "journal.jsonl")))
    assert promote(run.path, "phase1/candidate-0") == ("phase1/candidate-0/script", 0.5)
    assert run.score == 0.5 and "level = 0.5000" in (run.path / "solution.py").read_text(encoding="utf-8")
    assert run.submission is not None and "60,0.5" in run.submission.read_text(encoding="utf-8")
    fields = {"warnings", "lineage", "expected", "single_model", "submission_path"}
    facts = run.result.model_dump(mode="json", include=fields)
    assert facts.pop("submission_path") == str(run.submission)
    as_kept("results/promoted.txt", json.dumps(facts, indent=1))
    assert len(list(read_journal(run.path / "journal.jsonl"))) == before + 1
    with pytest.raises(ConfigError, match="no scored script at 'phase9'; there are phase1/candidate-"):
        promote(run.path, "phase9")
    run = Run(shutil.copytree(house_run.path, tmp_path / "houses", symlinks=True))
    kept = "that of the result is on rows kept for"
    assert kept in run.report.read_text(encoding="utf-8")
    assert main(["promote", str(run.path), "phase1/candidate-0"]) == 0
    story = RunStory.from_events(read_journal(run.path / "journal.jsonl"))
    verdict = Verdict(story, run.path)
    assert verdict.why == "The script of candidate 0 was promoted by hand."
    assert verdict.stages[-1].what == "of the script promoted by hand"
    assert verdict.gain[0].startswith("no better than the best single model"), "it is the best single model"
    assert lineage_of(story).submitted == "phase1/candidate-0"
    page = run.report.read_text(encoding="utf-8")
    assert "By hand" in page and kept not in page, "that was another script's"


def test_what_cannot_be_loaded_says_why(house_run: Run, tmp_path: Path) -> None:
    lines, result = list[str](), json.loads((house_run.path / "result.json").read_text(encoding="utf-8"))
    task, journal = {**result["task"], "data_dir": str(tmp_path / "gone")}, house_run.path / "journal.jsonl"
    events = [line for line in journal.read_text(encoding="utf-8").splitlines(True) if '"script_finished"' not in line]
    write_texts(tmp_path / "run", {"journal.jsonl": "".join(events)})
    empty = {**result, "final_solution": {**result["final_solution"], "content": " "}}
    for known in (None, {}, empty, {**result, "task": task}):
        if known is not None:
            write_texts(tmp_path / "run", {"result.json": json.dumps(known)})
        with pytest.raises(ConfigError) as error:
            load_model(tmp_path / "run")
        lines.append(str(error.value).replace(str(tmp_path), "…"))
    with pytest.raises(ConfigError, match=r"no scored script at 'phase1'; there are none$"):
        promote(tmp_path / "run", "phase1")
    as_kept("results/unloaded.txt", "\n".join(lines))


def test_a_script_that_nothing_confines_and_that_changes_the_data_is_named(house_run: Run, tmp_path: Path) -> None:
    model, shown = (
        load_model(house_run.path, executor=LocalExecutor(sandbox="none")),
        write_texts(tmp_path, {"a.csv": ""}),
    )
    script = house_run.result.final_solution.model_copy(update={"content": "open('input/a.csv', 'a').write('x')"})
    with pytest.raises(ExecutionError, match=r"changed the files in ./input"):
        model.execute(script, shown, "predict")


def test_two_runs_are_compared_and_scores_measured_anew(
    label_run: Run, house_run: Run, capsys: Captured, monkeypatch: Patch, tmp_path: Path
) -> None:
    assert main(["compare", str(label_run.path), str(house_run.path)]) == 0
    out = capsys.readouterr().out
    assert "labels, accuracy (higher is better)" in out and "houses, mae (lower is better)" in out
    assert "num_parallel_solutions" in out and "outer_loop_steps" not in out
    assert "their scores are not comparable" in out
    answers = write_texts(tmp_path, {"answers.csv": "id,label\n" + "".join(f"{i},{i % 2}\n" for i in range(60, 70))})
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["score", str(house_run.path)]) == 0
    assert main(["score", str(label_run.path), "--answers", str(answers / "answers.csv")]) == 0
    as_kept("results/scored.txt", "\n".join(sorted(capsys.readouterr().out.splitlines())))  # scripts run side by side


def test_an_export_is_all_a_machine_needs(house_run: Run, label_run: Run, tmp_path: Path, capsys: Captured) -> None:
    target = tmp_path / "taken-along"
    for run, place in ((house_run, target), (label_run, tmp_path / "labels")):
        assert main(["export", str(run.path), str(place)]) == 0
        names = {Path(line).name for line in capsys.readouterr().out.splitlines()}
        assert {"solution.py", "predict.py", "requirements.txt", "Dockerfile", "MODEL_CARD.md", "input"} <= names
    for path in (*target.rglob("*"), *(tmp_path / "labels").rglob("*")):
        assert not path.is_symlink() and (path.is_dir() or path.stat().st_nlink == 1), "its own copy"
    target = target.rename(tmp_path / "alone")
    assert len(run_solution(target)) == 6 and len(run_solution(tmp_path / "labels")) == 11
    (tmp_path / "new.csv").write_text("kind,rooms,note\nhuge,3,x\nsmall,4,y\n", encoding="utf-8")
    call = [sys.executable, "predict.py", str(tmp_path / "new.csv"), str(tmp_path / "out.csv")]
    done = subprocess.run(call, cwd=target, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    prices = [float(row["price"]) for row in csv.DictReader((tmp_path / "out.csv").open(newline=""))]
    assert prices == [pytest.approx(202, abs=1.01), pytest.approx(10, abs=1.01)]
    assert done.stdout == f"2 predictions in {call[3]}\n", "what the script prints is not for its reader"
    (tmp_path / "new.csv").write_text("rooms\n3\n", encoding="utf-8")
    for given, words in ((call[2], "new.csv lacks kind"), ("gone.csv", "gone.csv: No such file or directory")):
        done = subprocess.run([*call[:2], given, call[3]], cwd=target, capture_output=True, text=True, timeout=300)
        assert done.returncode != 0 and done.stderr.endswith(f"{words}\n") and done.stderr.count("\n") == 1
    lines = list[str]()
    for folder, run in ((target, house_run), (tmp_path / "labels", label_run)):
        texts = [folder / name for name in ("predict.py", "MODEL_CARD.md", "Dockerfile", "requirements.txt")]
        lines += [path.read_text(encoding="utf-8").replace(run.path.name, "…") for path in texts]
        lines += sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    as_kept("results/exported.txt", re.sub(rf"([Pp]ython[: ]){re.escape(version)}\b", r"\1…", "\n".join(lines)))
    assert (target / "requirements.txt").read_text() == ""  # the standard library is enough for this one
    model, late = load_model(label_run.path), {"warnings": [not_fitted("late")]}  # what `predict` fits since is kept
    cards = [_card(model, model.result.model_copy(update=late), one, "", []) for one in (tmp_path / "labels", target)]
    assert ["not fitted" in card for card in cards] == [True, False]
    kept = tmp_path / "labels/input/b/test.csv"
    write_texts(tmp_path, {"new.csv": "size\n3\n", "labels/input/b/test.csv": "kept"})
    (tmp_path / "labels" / "predict.py").write_text(texts[0].read_text().replace("'test.csv'", "'b/test.csv'"))
    assert not subprocess.call(call, cwd=tmp_path / "labels", timeout=300) and kept.read_text() == "kept"
    assert main(["export", str(house_run.path), str(target)]) == 1 and "is not empty" in capsys.readouterr().err


def test_requirements_are_what_scripts_import_in_the_version_that_ran() -> None:
    script = "import os, numpy as np\nfrom sklearn.svm import SVC\nimport nowhere_to_be_found\nfrom . import mine\n"
    assert needs([script], {"numpy": "2.1.0", "scikit_learn": "1.5"}) == [
        "nowhere_to_be_found", "numpy==2.1.0", "scikit_learn==1.5",
    ]  # fmt: skip


def test_a_notebook_shows_a_run_and_its_model_in_a_few_lines(house_run: Run, monkeypatch: Patch) -> None:
    monkeypatch.chdir(house_run.path.parents[1])
    model = load_model(house_run.path)
    for shown in (house_run._repr_html_(), model._repr_html_(), repr(house_run), repr(model)):
        assert "measured on hidden rows" in shown and house_run.path.name in shown
        assert len(shown) < 2000, "the report and the scripts stay where they are"
    assert f'href="runs/{house_run.path.name}/report.html"' in house_run._repr_html_()
    assert "phase1/candidate-0" in house_run._repr_html_()
    assert repr(house_run).startswith("Run('houses-") and repr(model).startswith("Model('houses-")
    assert "predicts price from rooms, kind" in repr(model)


@dataclass
class Watching(LevelExecutor):
    """Says which scripts found a folder `./model/`, and leaves something there."""

    found: list[bool] = field(default_factory=list)

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """Look, then run."""
        place = Path(request.working_dir, "model")
        self.found.append(place.is_dir())
        if self.found[-1]:
            (place / "fitted").write_text("1", encoding="utf-8")
        return await super().run(request)


@pytest.mark.parametrize("kept", [True, False])
def test_only_the_final_run_has_a_folder_to_fit_in_and_it_is_kept(kept: bool, label_run: Run, tmp_path: Path) -> None:
    mind, ran = MindAgents(), Watching()
    parts = [name for name in PipelineConfig().briefing if kept or name != "model"]
    config = settings(M=1, T=1, K=1, L=1, briefing=parts, scoring="self_reported")
    run_pipeline_sync(label_run.result.task, config, run_dir=tmp_path / "run", agents=mind, executor=ran, console=False)
    assert len(ran.found) > 2 and ran.found == [False] * (len(ran.found) - 1) + [kept]
    assert RunFolder(tmp_path / "run").model.is_dir() == kept


def test_a_prediction_fits_only_what_it_must(label_run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = shutil.copytree(label_run.result.task.data_dir, tmp_path / "data")
    task = label_run.result.task.model_copy(update={"data_dir": str(data)})
    code = {name: lambda prompt: fenced(SOLUTION) for name in ("init", "test")}
    mind = Mind(overrides={**code, "test-subsampling_extract": lambda prompt: "There is none."})
    run_dir, config = tmp_path / "run", settings(M=1, T=1, K=1, L=1, scoring="self_reported")
    run_pipeline_sync(task, config, run_dir=run_dir, agents=MindAgents(mind), console=False)
    run, kept = Run(run_dir), RunFolder(run_dir).model / "means.json"

    def predicts(mean: float) -> str:
        assert list(run.predict(SIZES)["label"]) == pytest.approx([mean] * 3)
        return (run_dir / "logs" / "predict.log").read_text(encoding="utf-8")

    assert "loaded" in predicts(0.5), "the first time, after the final run"
    kept.write_text("no JSON", encoding="utf-8")
    assert "fitted" in predicts(0.5) and "it is run again without" in caplog.text and "loaded" in predicts(0.5)
    rows = data / "train.csv"
    rows.write_text(rows.read_text(encoding="utf-8") + "".join(f"{i},1,1\n" for i in range(900, 960)), encoding="utf-8")
    assert "fitted" in predicts(0.75)
    rewritten(run, run_dir, final_solution={"content": SOLUTION.replace("/ len(prices)", "/ len(prices) * 2")})
    assert "fitted" in predicts(1.5)


def test_too_much_is_not_kept_and_said_so_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_dir, folder = tmp_path / "run", RunFolder(tmp_path / "run")
    run_dir.mkdir()
    for name in ("one", "two", "huge"):
        (tmp_path / name).mkdir()
        with (tmp_path / name / f"{name}.pickle").open("wb") as stream:
            stream.truncate(3 << 30 if name == "huge" else 5)  # a hole: it takes no room
    (tmp_path / "link").symlink_to(tmp_path / "huge")
    assert not save_fitted(run_dir, tmp_path / "nothing", "digest")
    for name, digest in (("one", ""), ("link", ""), ("two", "digest")):
        assert not folder.model_note.exists() and save_fitted(run_dir, tmp_path / name, digest, beside=name != "one")
    assert {path.name for path in folder.model.iterdir()} == {"one.pickle", "two.pickle"} and folder.model_note.exists()
    with caplog.at_level(logging.WARNING):
        assert not save_fitted(run_dir, tmp_path / "huge", "digest", beside=True)
    assert caplog.messages == ["what the solution has fitted is not kept (3.2 GB are too much): `predict` fits again"]
    assert not folder.model.exists() and not folder.model_note.exists()
    for name in ("one", "two"):
        assert save_fitted(run_dir, tmp_path / name, "digest")
    assert [path.name for path in folder.model.iterdir()] == ["two.pickle"], "another solution's is gone"
    folder.model_note.write_text("{", encoding="utf-8")  # a crash has cut it short
    assert restore_fitted(run_dir, tmp_path, "digest") == {}
