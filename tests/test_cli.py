"""The frame of the command line: help, errors in one line, exit codes; and the examples of `mle-star demo`."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mle_star import ConfigError, PipelineConfig, errors, load_config, load_task
from mle_star.cli.app import COMMANDS, build_app, exit_code, main
from mle_star.cli.options import FLAGS, PANELS
from mle_star.cli.task import ANSWERS, EXAMPLES, NOISE, SETTINGS, _truth, build_example
from mle_star.data.guess import guess_task
from mle_star.models.settings import SIZES
from mle_star.run.events import RunStarted
from mle_star.run.journal import Journal
from mle_star.search.final_result import SUBMITTED, Rescored, rescore
from mle_star.views import RunStory
from tests.conftest import Captured, Patch, as_kept, write_texts
from tests.views.journals import EXPECTED, Invented

HEAVY = ("claude_agent_sdk", "pydantic", "pandas", "numpy", "sklearn", "starlette", "uvicorn", "yaml", "jinja2")


def test_help_shows_every_command_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, json; from mle_star.cli.app import main; main(['--help']); "
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    shown, modules = done.stdout.rsplit("\n", 2)[:2]
    assert [name for name in (*COMMANDS, "Examples:", "Exit codes:") if name not in shown] == []
    assert set(json.loads(modules)) & set(HEAVY) == set()
    assert [command.name for command in build_app().registered_commands] == list(COMMANDS)


TEXTS = (
    "model=opus base_url=http://127.0.0.1:1 preset=best executor=ray split=random time_column=none group=none "
    f"python={sys.executable}"
)
GIVEN: dict[str, tuple[str, Any]] = {
    **{name: (text, text) for name, text in (words.split("=") for words in TEXTS.split())},
    **{name: (str(size), size) for size, name in enumerate(SIZES, 7)},
    "time_limit_seconds": ("1.5h", 5400),
    "script_timeout_seconds": ("2m", 120),
    "max_budget_usd": ("2.5", 2.5),
    "use_cache": ("", False),
    "knowledge": ("notes", "HERE/notes"),
    "reference_files": ("other.py", ["HERE/other.py"]),
}


def test_an_option_is_made_from_its_setting_and_sets_it(tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    files = {"notes/one.md": "Be brief.", "other.py": "print(1)", "data/train.csv": "size,price\n1,2\n2,4\n3,6\n"}
    write_texts(tmp_path, files)
    assert set(GIVEN) == set(FLAGS), "each setting with an option is tried here"
    flags = {name: FLAGS[name].split()[-1].rpartition("/")[2] for name in FLAGS}
    words = [word for name, (text, _) in GIVEN.items() for word in (flags[name], text) if word]
    assert main(["run", "data", "--dry-run", "--json", *words]) == 0
    plan = json.loads(capsys.readouterr().out)["config"]
    wanted = {name: json.loads(json.dumps(value).replace("HERE", str(tmp_path))) for name, (_, value) in GIVEN.items()}
    assert {name: plan[name] for name in GIVEN} == wanted and main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    shown = " ".join(out.lower().split())
    panels = {title: re.findall(r"│ (--[a-z-]+)", part) for title, part in re.findall(r"╭─ ([a-z ]+) ─+╮(.*?)╰", shown)}
    assert panels.pop("options") == ["--config", "--set", "--help"], "each other option stands in a panel"
    assert panels.pop("arguments") == [] and "continues later. `--target`" in out, "a paragraph fills the width"
    assert [*map(str.lower, PANELS)] == sorted(panels, key=[*map(str.lower, PANELS)].index)
    assert [name for name in FLAGS if str(PipelineConfig.model_fields[name].description).lower() not in shown] == []


def test_version_help_a_name_that_would_drive_the_terminal_and_the_traceback_if_it_is_wanted(capsys: Captured) -> None:
    from importlib.metadata import version

    assert main(["--version"]) == 0 and capsys.readouterr().out == f"mle-star {version('mle-star')}\n"
    assert main([]) == 0 and "Usage: mle-star" in capsys.readouterr().out
    assert main(["init", "/no/\x1b[31mred\nline"]) == 1
    assert capsys.readouterr().err == "mle-star: error: /no/ [31mred line: no such folder\n"
    for words in ("--debug init /none", "init /none --debug"):
        assert main(words.split()) == 1
        err = capsys.readouterr().err
        assert "Traceback" in err and err.splitlines()[-1] == "mle-star: error: /none: no such folder"


def test_exit_codes_tell_wrong_input_from_a_failed_pipeline(monkeypatch: Patch) -> None:
    wrong = (errors.ConfigError, errors.CredentialError, errors.JournalError)
    failed = (errors.PipelineError, errors.PipelineTimeoutError, errors.Phase1Error, errors.ExecutionError)
    codes: dict[Exception, int] = {**{kind("x"): 1 for kind in wrong}, **{kind("x"): 3 for kind in failed}}
    codes[errors.RunInterrupted("x")] = 130
    codes[errors.AgentError("x", agent="coder")] = codes[errors.BudgetExceeded(limit="time", used=1, allowed=1)] = 3
    assert {error: exit_code(error) for error in codes} == codes
    monkeypatch.setattr("mle_star.cli.app.build_app", lambda called: signal.raise_signal(signal.SIGINT))
    assert main([]) == 130


@pytest.mark.parametrize("moment", ["mle_star.errors", "pydantic", "mle_star.orchestrator"])
def test_three_ctrl_c_before_there_is_a_journal_are_one_line_and_exit_code_130(moment: str, tmp_path: Path) -> None:
    table, run_dir = tmp_path / "houses.csv", tmp_path / "run"
    table.write_text("size,price\n" + "".join(f"{row % 17},{row % 17 * 2}\n" for row in range(300)), encoding="utf-8")
    words = ["run", str(table), "--target", "price", "--model", "offline", "--output", str(run_dir)]
    words = [sys.executable, "-X", "importtime", "-m", "mle_star", *words]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    imported = (line.rpartition("|")[2].strip() for line in process.stderr)
    assert next((name for name in imported if name == moment), None)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.03)
    lines = [line for line in process.stderr.read().splitlines() if not line.startswith("import time:")]
    # Python itself may end by the signal, which shells call 130
    assert process.wait(60) in (130, -signal.SIGINT), lines
    assert lines[-1] == "mle-star: interrupted" and "Traceback" not in "".join(lines)
    assert not run_dir.exists(), "the copy of the data is gone"


def test_the_package_as_a_program_is_the_command_with_its_exit_code_and_its_reader_may_go_away() -> None:
    done = subprocess.run([sys.executable, "-m", "mle_star", "inti"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 1 and done.stderr.startswith("mle-star: error: No such command 'inti'")
    reader, writer = os.pipe()
    os.close(reader)
    prints = "from mle_star.cli import app as a\na.build_app = lambda _: lambda *_, **how: print(1)\nexit(a.main([]))"
    done = subprocess.run([sys.executable, "-c", prints], stdout=writer, stderr=-1, text=True, timeout=240)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_shell_is_told_the_commands_and_their_options() -> None:
    command = [sys.executable, "-c", "from mle_star.cli.app import main; main()"]
    for typed, offered in (("mle-star re", {"report", "resume"}), ("mle-star show --he", {"--help"})):
        words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
        env = {**os.environ, "_MLE_STAR_COMPLETE": "complete_bash", **words}
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
        assert set(done.stdout.split()) == offered


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_task_folder_whose_answers_lie_apart_and_fit_its_submissions(name: str, tmp_path: Path) -> None:
    folder = build_example(name, tmp_path)
    task, data = load_task(folder), folder / "input"
    train, test, sample = (pd.read_csv(data / f"{table}.csv") for table in ("train", "test", "sample_submission"))
    target = EXAMPLES[name][0]
    assert task.competition_id == name and target in train and target not in test and train[target].nunique() > 1
    assert list(test["id"]) == list(sample["id"]) and not set(train["id"]) & set(test["id"])
    guess = guess_task(data)
    assert (guess.task.task_type, guess.targets) == (task.task_type, (target,))
    again = build_example(name, tmp_path / "again")
    assert all(file.read_bytes() == (again / file.relative_to(folder)).read_bytes() for file in folder.rglob("*.*"))
    assert not (data / ANSWERS).exists()
    texts = [(folder / file).read_text(encoding="utf-8") for file in ("description.md", "task.yaml")]
    kept = [f"{len(train)} rows, {len(test)} to predict", str(sample.iloc[0].to_dict())]
    shown = ((c, sorted({*map(str, train[c])}), *train[c].iloc[[0, -1]], test.get(c, [0])[0]) for c in train)
    kept += [f"{c}: {len(all_)}, {all_[:: len(all_) // 8 or 1]}, {a}, {b}, {first}" for c, all_, a, b, first in shown]
    as_kept(f"examples/{name}.txt", "\n".join([*texts, *kept]))
    run_dir = tmp_path / "run"
    write_texts(run_dir, {"final/submission.csv": (data / "sample_submission.csv").read_text(encoding="utf-8")})
    with Journal(run_dir / "journal.jsonl") as journal:
        journal.record(RunStarted(run_id="r", task=task, config=PipelineConfig(), model="offline"))
    (final,) = rows = rescore(run_dir, folder / ANSWERS)
    assert final.truth is not None, final.problem
    assert _truth(rows, run_dir, task, name) == ["truth: not known, as nothing was submitted that can be scored"]


def test_the_demo_shows_what_each_script_is_worth(tmp_path: Path) -> None:
    run = Invented(seed=11, M=3, T=1, K=2, R=2, name="rents")
    run.write(tmp_path)
    steps = [one.step for one in RunStory.of(tmp_path).attempts]
    known = [Rescored(step, 0.5, truth=90 - 2.5 * place) for place, step in enumerate(steps)]
    known += [Rescored("nowhere", 0.5, truth=1.0), Rescored(steps[0], 0.5)]
    known += [Rescored(SUBMITTED, 0.5, truth=61.25, select=EXPECTED)]
    lines = [line for name in ("rents", "wine") for line in _truth(known, tmp_path, run.task, name)]
    as_kept("examples/truth.txt", "\n".join(lines))


def test_files_of_the_user_s_are_not_overwritten(tmp_path: Path) -> None:
    mine = write_texts(tmp_path, {"wine/input/train.csv": "my,own\n1,2\n"}) / "wine" / "input" / "train.csv"
    with pytest.raises(ConfigError, match=r"train\.csv exists already, and is not the example's; --folder names"):
        build_example("wine", tmp_path)
    config = load_config(SETTINGS)
    assert config.num_parallel_solutions == 2 and config.num_retrieved_models > 1, "every part of the method is shown"
    assert mine.read_text() == "my,own\n1,2\n" and [path.name for path in mine.parent.iterdir()] == ["train.csv"]
    (changed := build_example("wine", tmp_path / "again") / "task.yaml").open("a").write("# mine\n")
    assert build_example("wine", tmp_path / "again") and changed.read_text().endswith("# mine\n")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif("MLE_STAR_SOAK" not in os.environ, reason="the whole demo; `make soak`")
def test_the_demo_takes_two_minutes_of_two_cores_and_says_what_to_try_next(tmp_path: Path) -> None:
    before, words = resource.getrusage(resource.RUSAGE_CHILDREN), [sys.executable, "-m", "mle_star", "demo"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 2 * 120, "seconds of a core: however busy the machine is with other things"
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert (run_dir / "final" / "submission.csv").is_file() and (run_dir / "report.html").is_file()
    pattern = r"^truth: rmse (\S+) on the test; expected was (\S+) to (\S+) \(95 % interval\), "
    truth = re.search(pattern, done.stderr, re.MULTILINE)
    assert truth and NOISE["rents"] * 0.95 < float(truth[1]) < 80 and float(truth[2]) < float(truth[3])
    assert [line.split()[0] for line in done.stderr.splitlines() if "█" in line][-1:] == ["submitted"]
    assert [line.split()[2] for line in done.stderr.splitlines() if line.startswith("next: ")] == ["report"]
