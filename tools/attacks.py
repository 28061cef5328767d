"""What scripts have tried against the harness, and what held: written into docs/security.md.

The rows are those of tests/scripts/attacks.py and tests/execution/hostile.py, which the tests prove.

python tools/attacks.py --write    write the list
python tools/attacks.py --check    exit code 1 when it is not current
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- made by tools/attacks.py: do not edit -->", "<!-- end of what is made -->"


def table() -> str:
    """The names of all attempts to reach something, then of those that only misbehave."""
    attacks = runpy.run_path(str(ROOT / "tests" / "scripts" / "attacks.py"))["ATTACKS"]
    sys.path.insert(0, str(ROOT))
    from tests.execution.hostile import CASES

    confined = [case.name for case in CASES if case.confined]
    others = [case.name for case in CASES if not case.confined]
    return (
        f"Held in bubblewrap and in namespaces, {len(attacks)} of {len(attacks)}:\n"
        + "\n".join(f"- {title}" for title in attacks)
        + f"\n\nContained there as well, {len(confined)} scripts that misbehave: {'; '.join(confined)}.\n\n"
        + f"Contained there and unconfined, {len(others)} more: {'; '.join(others)}."
    )


def page() -> str:
    """The page as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str]) -> int:
    """Write the list, or say whether it is current."""
    if "--write" in arguments:
        PAGE.write_text(page(), encoding="utf-8")
    elif page() != PAGE.read_text(encoding="utf-8"):
        print("the list in docs/security.md is not current: python tools/attacks.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
