"""What the guides show is run as it stands: their Python, and the commands that need no key, on a small table."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {path.stem: path for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))}
SHOWN = {
    name: re.findall(r"^```(python|sh)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for name, path in PAGES.items()
}
PYTHON = {name: [code for language, code in blocks if language == "python"] for name, blocks in SHOWN.items()}
RUN_HERE = ("extending", "README", "one-csv", "production")
NOT_RUN = {"CONTRIBUTING": "the head of a test, without its body"}
COMMANDS = ("predict", "export")
"""Those that use a run and take seconds; others have tests of their own."""
ONCE = "num_retrieved_models outer_loop_steps inner_loop_steps num_parallel_solutions score_views".upper().split()
SMALL = {f"MLE_STAR_{name}": "1" for name in ONCE}


def commands_of(*pages: str) -> list[list[str]]:
    """Each command once, in the order of `COMMANDS`."""
    shells = (block for page in pages for language, block in SHOWN[page] if language == "sh")
    lines = [line for block in shells for line in block.splitlines()]
    found = {line.partition("  #")[0].strip() for line in lines if line.startswith("mle-star ") and "RUN" not in line}
    words = [shlex.split(line) for line in sorted(found)]
    return [command for name in COMMANDS for command in words if command[1] == name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the guides name: a table, new rows, a data folder."""
    here = tmp_path_factory.mktemp("reader")
    rows = [f"{n},{40 + 7 * n % 90},{n % 5},{1500 * (40 + 7 * n % 90) + 9000 * (n % 5) + n % 11}" for n in range(90)]
    new = "id,area,rooms\n200,55,2\n201,90,4\n"
    (here / "my-data").mkdir()
    for name in ("houses.csv", "my-data/train.csv"):
        (here / name).write_text("\n".join(["id,area,rooms,price", *rows]), encoding="utf-8")
    for name in ("new.csv", "new-houses.csv", "my-data/test.csv"):
        (here / name).write_text(new, encoding="utf-8")
    return here


def done(folder: Path, *words: str) -> str:
    """What a program prints that ends well."""
    ended = subprocess.run(words, cwd=folder, env={**os.environ, **SMALL}, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, f"{words}: {ended.stdout}\n{ended.stderr}"
    return ended.stdout


def test_every_python_block_is_run_here_or_among_the_recipes_or_says_why_not() -> None:
    assert {name for name, blocks in PYTHON.items() if blocks} == {*RUN_HERE, *NOT_RUN}
    assert len(PYTHON["extending"]) > 3, "all but the first are recipes: tests/test_extending.py runs those"
    assert all(len(PYTHON[name]) == 1 for name in RUN_HERE if name != "extending")


def test_python_and_commands_of_the_guides_do_on_a_table_what_their_pages_say(folder: Path) -> None:
    for page in RUN_HERE:
        if page == "extending":
            done(folder, sys.executable, "-m", "mle_star", "init", "my-data/", "--target", "price")
        shown = done(folder, sys.executable, "-c", PYTHON[page][0])
        assert "print(" not in PYTHON[page][0] or re.search(r"\d", shown), "a score is printed"
    assert len(list((folder / "runs").iterdir())) == 2, "one of `run_pipeline`, one of `fit`"
    commands = commands_of("README", "production")
    assert {words[1] for words in commands} == {*COMMANDS}
    for words in commands:
        done(folder, sys.executable, "-m", "mle_star", *words[1:])
    assert (folder / "predictions.csv").read_text(encoding="utf-8").startswith("id,price\n200,")
