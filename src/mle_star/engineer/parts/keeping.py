"""What a script has fitted, kept for rows that come later."""

from __future__ import annotations

import hashlib
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Memory:
    """What is fitted, one thing after another, a file each in a folder below `./model/`.

    It is kept where `./model/` is, and recalled where the same script has kept it of the same training data.
    """

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        place = Path("./model")
        self.open = data is not None and place.is_dir()
        self.folder = place / fingerprint(data) if data is not None and self.open else place
        self.draft = self.folder.with_suffix(".draft")
        self.full = self.open and self.folder.is_dir()
        self.count, self.room = 0, min(2**29, shutil.disk_usage(".").free // 8)
        if self.open:
            shutil.rmtree(self.draft, ignore_errors=True)  # of a script that was stopped

    def hold(self, make: Callable[..., Any], *given: Any) -> Any:
        """What `make` makes of what is given, or has made before; what is held on the way is a part of it."""
        if not self.open:
            return make(*given)
        self.count += 1
        if self.full:
            with (self.folder / f"{self.count}.pickle").open("rb") as stream:
                return pickle.load(stream)
        self.open = False
        made = make(*given)
        self.open = self.write(made)
        return made

    def write(self, made: Any) -> bool:
        """Keep one thing; where that fails or there is no room for it, the script goes on and keeps nothing at all."""
        path = self.draft / f"{self.count}.pickle"
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as stream:
                pickle.dump(made, stream)
            self.room -= path.stat().st_size
            if self.room < 0:
                raise OSError("it is too large")
        except Exception as reason:
            print(f"What is fitted is not kept: {reason}")
            shutil.rmtree(self.draft, ignore_errors=True)
            return False
        return True

    def close(self) -> None:
        """All is fitted: what was kept of it is complete."""
        if self.open and not self.full and self.count:
            self.draft.replace(self.folder)

    def forget(self) -> None:
        """Begin anew."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.full, self.count = False, 0


def fingerprint(data: dict[str, Any]) -> str:
    """This script and the tables that it learns from, as one number."""
    tables = [data["train"], *(other["table"] for other in (data.get("labels"), *data.get("lookups", [])) if other)]
    digest = hashlib.sha256()
    for path in (Path(__file__), *(Path("./input") / table["file"] for table in tables)):
        with path.open("rb") as stream:
            while piece := stream.read(2**20):
                digest.update(piece)
    return digest.hexdigest()[:16]
