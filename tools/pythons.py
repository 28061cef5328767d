"""Every Python that this project supports and that is at hand here, one a line: its version and where it is.

python tools/pythons.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SUPPORTED = ("3.10", "3.11", "3.12", "3.13", "3.14")
_WHERE = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"


def candidates(version: str) -> list[str]:
    """Where it may be: on the path, or among those that pyenv or uv keeps."""
    name = f"python{version}"
    kept = [Path.home() / ".pyenv" / "versions", Path.home() / ".local" / "share" / "uv" / "python"]
    found = [path for place in kept for path in sorted(place.glob(f"*{version}*/bin/{name}"), reverse=True)]
    return [shutil.which(name) or "", *map(str, found), sys.executable]


def at_hand(version: str) -> str:
    """The first that starts and is of this version; nothing where there is none."""
    for path in filter(None, candidates(version)):
        done = subprocess.run([path, "-c", _WHERE], capture_output=True, text=True)  # a shim may lead nowhere
        if done.returncode == 0 and done.stdout.split()[0] == version:
            return done.stdout.split(maxsplit=1)[1].strip()
    return ""


def main() -> int:
    """One line for each; what is missing is named on standard error."""
    for version in SUPPORTED:
        if path := at_hand(version):
            print(version, path, flush=True)
        else:
            print(f"Python {version}: none at hand", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
