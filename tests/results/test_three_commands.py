"""A person with one CSV: from `pip install` to predictions for new rows with three commands, in a fresh environment."""

from __future__ import annotations

import csv
import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.results.conftest import houses

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif("MLE_STAR_SOAK" not in os.environ, reason="installs the package and runs the rules; `make soak`")
def test_one_csv_becomes_predictions_with_three_commands(tmp_path: Path) -> None:
    fresh, home = tmp_path / "fresh", tmp_path / "home"
    venv.create(fresh, with_pip=True)
    inside = next((fresh / "lib").glob("python3*/site-packages"))
    # what the package needs comes from here instead of the network; the package itself is installed for real
    (inside / "needed.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    home.mkdir()
    (home / "houses.csv").write_text(houses(), encoding="utf-8")
    (home / "new.csv").write_text("kind,rooms\nhuge,2\nsmall,3\n", encoding="utf-8")

    def call(*words: str) -> str:
        env = {**os.environ, "PATH": f"{fresh / 'bin'}:{os.environ['PATH']}", "HOME": str(home)}
        done = subprocess.run(words, cwd=home, env=env, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr

    call(str(fresh / "bin/python"), "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", str(ROOT))
    assert (fresh / "bin" / "mle-star").is_file() and sys.prefix != str(fresh)
    small = ["-M", "1", "-T", "1", "-K", "1", "-L", "1"]
    told = call("mle-star", "run", "houses.csv", "--target", "price", "--model", "offline", *small)
    assert (
        "rows are held back to score by" in told
        and "a guess until the first script has run" in told
        and "next: mle-star predict" in told
    )
    call("mle-star", "predict", "latest", "new.csv", "--output", "out.csv")
    with (home / "out.csv").open(newline="") as stream:
        prices = [float(row["price"]) for row in csv.DictReader(stream)]
    assert prices[0] == pytest.approx(201, abs=20) and prices[1] == pytest.approx(11, abs=20)
