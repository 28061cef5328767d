"""What scripts have tried against the harness, and what held: written into docs/security.md.

The rows are those of tests/scripts/attacks.py and tests/execution/hostile.py, which the tests prove.

python tools/attacks.py --write    write the table
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
    """One line for each attempt to reach something, then the names of those that only misbehave."""
    attacks = runpy.run_path(str(ROOT / "tests" / "scripts" / "attacks.py"))["ATTACKS"]
    sys.path.insert(0, str(ROOT))
    from tests.execution.hostile import CASES

    lines = ["| a script tries to | bubblewrap | namespaces | filters alone |", "| --- | --- | --- | --- |"]
    for title, gets_through, _ in attacks:
        cells = ["**open**" if kind in gets_through else "held" for kind in ("bubblewrap", "namespaces", "filters")]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    boxed = [case.name for case in CASES if case.only_boxed]
    lines += [
        "",
        f"{len(CASES)} more only misbehave, by force or by stealth, and are contained in all three kinds: "
        + "; ".join(case.name for case in CASES if not case.only_boxed)
        + f". In bubblewrap and namespaces only: {'; '.join(boxed)}.",
    ]
    return "\n".join(lines)


def page() -> str:
    """The page as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str]) -> int:
    """Write the table, or say whether it is current."""
    if "--write" in arguments:
        PAGE.write_text(page(), encoding="utf-8")
    elif page() != PAGE.read_text(encoding="utf-8"):
        print("the table in docs/security.md is not current: python tools/attacks.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
