"""Without its extra, each door to another tool says in one line what to install, and makes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mle_star.cli.app import main
from tests.integrations.test_kaggle import DATA


@pytest.mark.parametrize(
    ("words", "absent", "extra"),
    [
        ("run data.csv --target price --model offline --executor ray", ["ray"], "ray"),
        ("sweep data.csv --model offline --executor ray://head:10001", ["ray"], "ray"),
        ("run data.csv --target price --model offline --mlflow http://127.0.0.1:9", ["mlflow"], "mlflow"),
        ("kaggle get houses", ["kaggle", "kaggle.api.kaggle_api_extended"], "kaggle"),
    ],
)
def test_what_is_missing_is_named_with_the_way_to_install_it(
    words: str, absent: list[str], extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text(DATA["train.csv"], encoding="utf-8")
    monkeypatch.delitem(sys.modules, "mle_star.integrations.cluster", raising=False)
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(words.split()) == 1
    out, err = capfd.readouterr()
    complaint = err.splitlines()[-1]
    assert complaint.startswith("mle-star: error: ") and f"pip install 'mle-star[{extra}]'" in complaint
    assert out == "" and "Traceback" not in err
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["data.csv"]
