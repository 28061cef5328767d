"""Is this ready to be released? What a stranger gets is built, installed and used, in folders that are gone afterwards.

    python tools/release.py            # sdist and wheel in dist/, their metadata, the wheel alone in two environments
    python tools/release.py --bare     # the environment without extras only: half the time and disk

The wheel is built from the sdist, so what the sdist lacks is missed. Each environment has the wheel and what it asks
for, in the newest versions: what `pip install` gives today, not what is locked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
EXTRAS = ("", "[ml]")
THREE_LINES = """
import mle_star
run = mle_star.fit("table.csv", target="price", model="offline", preset="quick", time_limit=120)
print(run.expected, run.predict("new.csv").head())
"""
TABLE = "size,kind,price\n" + "".join(f"{20 + 7 * i % 90},{'ab'[i % 2]},{100 + 3 * i % 50}\n" for i in range(80))


def call(*words: str | Path, cwd: Path) -> None:
    """One command, shown and run without what would let the sources be found."""
    print("$", *words, flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run(list(map(str, words)), cwd=cwd, env=environment, check=True)


def environment(place: Path, *wanted: str | Path) -> Path:
    """The programs of a fresh environment with what is wanted; by uv where it is installed."""
    if uv := shutil.which("uv"):
        call(uv, "venv", "--quiet", "--python", sys.executable, place, cwd=place.parent)
        call(uv, "pip", "install", "--quiet", "--python", place / "bin" / "python", *wanted, cwd=place.parent)
    else:
        call(sys.executable, "-m", "venv", place, cwd=place.parent)
        call(place / "bin" / "python", "-m", "pip", "install", "--quiet", *wanted, cwd=place.parent)
    return place / "bin"


def build(folder: Path) -> Path:
    """The sdist, the wheel made from it, and their metadata checked; gives the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    tools = environment(folder / "tools", "build", "twine")
    call(tools / "python", "-m", "build", "--outdir", DIST, ROOT, cwd=folder)
    call(tools / "python", "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()), cwd=folder)
    (wheel,) = DIST.glob("*.whl")
    return wheel


def use(wheel: Path, extra: str, folder: Path) -> None:
    """What people do first, with the wheel alone: the demo, and three lines of Python."""
    folder.mkdir()
    programs = environment(folder / "venv", f"{wheel}{extra}")
    call(programs / "mle-star", "--version", cwd=folder)
    call(programs / "mle-star", "demo", cwd=folder)
    (folder / "table.csv").write_text(TABLE, encoding="utf-8")
    (folder / "new.csv").write_text("size,kind\n30,a\n60,b\n", encoding="utf-8")
    call(programs / "python", "-c", THREE_LINES, cwd=folder)
    size = subprocess.run(["du", "-sh", folder / "venv"], capture_output=True, text=True, check=True)
    print(f"== the wheel{extra} works; its environment has {size.stdout.split()[0]}", flush=True)


def versions_agree() -> None:
    """The changelog and the citation name the version that is built."""
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert declared
    for name, words in (("CHANGELOG.md", f"## [{declared[1]}]"), ("CITATION.cff", f"version: {declared[1]}")):
        if words not in (ROOT / name).read_text(encoding="utf-8"):
            raise SystemExit(f"{name} does not name version {declared[1]}: {words!r} is missing")


def main(arguments: list[str]) -> int:
    """All of it; the first thing that fails ends it."""
    versions_agree()
    with tempfile.TemporaryDirectory(prefix="mle-star-release-") as place:
        wheel = build(Path(place))
        for number, extra in enumerate(EXTRAS[:1] if "--bare" in arguments else EXTRAS):
            use(wheel, extra, Path(place) / f"use-{number}")
        for program, words in (("uvx", ["--from"]), ("pipx", ["run", "--spec"])):
            if found := shutil.which(program):
                call(found, *words, wheel, "mle-star", "--version", cwd=Path(place))
    print(f"ready: {', '.join(sorted(path.name for path in DIST.iterdir()))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
