"""A look at a Parquet file, in a process of its own: a few hundred bytes of it can unfold to more than any memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MAX_MEMORY = 2 << 30
MAX_SECONDS = 60
MAX_SAMPLE_BYTES = 32 << 20
MAX_CELL = 100_000

_QUESTION = """
import json, os, sys
path, most_rows, most_memory, most_bytes, most_cell = sys.argv[1], *map(int, sys.argv[2:])
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the others reserve more addresses than they use
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (most_memory, most_memory))
except (ImportError, OSError, ValueError):
    pass  # not on this system
try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    sys.exit(print(json.dumps({"problem": "reading Parquet needs pyarrow (pip install pyarrow)"})))

def text(value):
    if value is None or value != value:
        return ""
    if isinstance(value, (list, dict)):
        return json.dumps(value, default=str)[:most_cell]
    return str(value).strip()[:most_cell]

def sample(file):
    groups = file.num_row_groups
    spread = sorted({0, groups // 3, 2 * groups // 3, groups - 1}) if groups else []
    rows = []
    for group in spread:
        held, wanted = 0, len(rows) + most_rows // len(spread)
        for batch in file.iter_batches(64, row_groups=[group]):
            columns = [column.to_pylist() for column in batch.columns]
            rows += [[text(value) for value in row] for row in zip(*columns)]
            held += batch.nbytes
            if len(rows) >= wanted or held > most_bytes // len(spread):
                break
        del rows[wanted:]
    return rows

try:
    with pyarrow.parquet.ParquetFile(path) as file:
        rows = sample(file)
        names = [str(name) for name in file.schema_arrow.names]
        answer = {"names": names, "rows": rows, "whole": len(rows) == file.metadata.num_rows}
except MemoryError:
    answer = {"problem": f"cannot be read within {most_memory >> 30} GB of memory"}
except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
    answer = {"problem": f"cannot be read ({' '.join(str(error).split())[:200]})"}
print(json.dumps(answer))
"""


def sample_parquet(path: Path, most_rows: int) -> dict[str, Any]:
    """`names`, `rows` as texts and `whole`; or `problem`, the reason why there are none."""
    from mle_star.execution.probe import PROBE_ERRORS, ask_program

    with path.open("rb") as file:
        if file.read(4) != b"PAR1":
            return {"problem": "cannot be read (not a Parquet file)"}
    limits = [str(limit) for limit in (most_rows, MAX_MEMORY, MAX_SAMPLE_BYTES, MAX_CELL)]
    try:
        said = ask_program([sys.executable, "-E", "-c", _QUESTION, str(path.absolute()), *limits], MAX_SECONDS)
        answer: dict[str, Any] = json.loads(said)
    except (*PROBE_ERRORS, ValueError):
        return {"problem": f"cannot be read within {MAX_SECONDS} s and {MAX_MEMORY >> 30} GB of memory"}
    return answer
