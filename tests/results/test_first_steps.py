"""First steps: one CSV in a fresh environment, from `pip install` to predictions, and the notebook in `examples/`."""

from __future__ import annotations

import csv
import os
import re
import site
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import write_texts
from tests.results.conftest import houses

ROOT = Path(__file__).parents[2]
SOAK = pytest.mark.skipif("MLE_STAR_SOAK" not in os.environ, reason="a whole run of the rules; `make soak`")


def _notebook() -> Any:
    read: Any = nbformat.read
    return read(ROOT / "examples" / "houses.ipynb", 4)


def _shown(cell: Any) -> str:
    return "\n".join(str(output.get("data", output)) for output in cell.get("outputs", []))


def test_the_notebook_was_executed_and_carries_no_trace_of_a_machine() -> None:
    notebook = _notebook()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    shown = "\n".join(map(_shown, cells))
    assert "measured on hidden rows" in shown and "harness on 20 rows" in shown
    assert "/tmp/" not in shown and "Traceback" not in shown


@pytest.mark.long
@pytest.mark.timeout(900)
@SOAK
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    notebook = _notebook()
    for cell in notebook.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell["outputs"], cell["execution_count"] = [], None
    NotebookClient(notebook, timeout=800, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [_shown(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert "measured on hidden rows" in shown[1] and re.search(r"harness on \d+ rows", shown[2])
    assert "phase1/candidate-0" in shown[3]
    assert "villa" in shown[4]
    printed = [output["text"] for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output]
    assert len(printed) == 1, "nothing but what the cells print: no log"
    assert (next((tmp_path / "runs").iterdir()) / "report.html").is_file()


@pytest.mark.long
@pytest.mark.timeout(900)
@SOAK
def test_one_csv_becomes_predictions_with_three_commands(tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    home = write_texts(tmp_path / "home", {"houses.csv": houses(), "new.csv": "kind,rooms\nhuge,2\nsmall,3\n"})
    venv.create(fresh, with_pip=True)
    inside = next((fresh / "lib").glob("python3*/site-packages"))
    # what the package needs comes from here instead of the network; the package itself is installed for real
    (inside / "needed.pth").write_text("\n".join(site.getsitepackages()) + "\n")

    def call(*words: str) -> str:
        env = {**os.environ, "PATH": f"{fresh / 'bin'}:{os.environ['PATH']}", "HOME": str(home)}
        done = subprocess.run(words, cwd=home, env=env, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr

    call(str(fresh / "bin/python"), "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", str(ROOT))
    assert (fresh / "bin" / "mle-star").is_file() and sys.prefix != str(fresh)
    small = ["-M", "1", "-T", "1", "-K", "1", "-L", "1"]
    output = call("mle-star", "run", "houses.csv", "--target", "price", "--model", "offline", *small)
    for words in ("rows are held back to score by", "a guess until the first script has run", "next: mle-star predict"):
        assert words in output
    call("mle-star", "predict", "latest", "new.csv", "--output", "out.csv")
    with (home / "out.csv").open(newline="") as stream:
        prices = [float(row["price"]) for row in csv.DictReader(stream)]
    assert prices[0] == pytest.approx(201, abs=20) and prices[1] == pytest.approx(11, abs=20)
