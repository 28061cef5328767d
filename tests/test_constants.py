"""What is fixed: the numbers, words and patterns that stand beside the code, as one kept text per room.

Whether a pause, a size or a limit is the one that was meant, no behaviour shows: here it changes on purpose only.
"""

import ast
import dataclasses
import importlib
import inspect
import os
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import mle_star
from tests.conftest import as_kept

PACKAGE = Path(mle_star.__file__).parent
ROOMS: dict[str, list[str]] = {}
"""The modules of each room."""
for path in sorted(PACKAGE.rglob("*.py")):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if parts[-1] != "__main__":
        ROOMS.setdefault(parts[0], []).append(".".join(("mle_star", *parts)).removesuffix(".__init__"))


def shown(value: Any) -> str:
    """A value as a text that is the same in every process and on every machine."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, int) and value > 1 << 40:
        return "an address"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(key)}: {shown(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(shown, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(shown, value)))}}}"
    if isinstance(value, re.Pattern):
        return f"{value.pattern!r} {int(value.flags)}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return f"{type(value).__name__}{shown(fields)}"
    if isinstance(value, (str, bytes, int, float, Path)) or value is None:
        return repr(value).replace(str(PACKAGE), "…").replace(os.environ["PATH"], "…")
    if hasattr(value, "__metadata__"):  # an argument or an option of a command
        notes = [getattr(note, "__dict__", getattr(note, "metadata", note)) for note in value.__metadata__]
        given = [{name: one for name, one in n.items() if one} if isinstance(n, dict) else n for n in notes]
        return f"{shown(value.__origin__)} {shown(given)}"
    if hasattr(value, "__origin__"):
        return repr(value).replace("pathlib._local", "pathlib")  # as later versions of Python call it
    return getattr(value, "__qualname__", type(value).__name__)


def fixed(place: Any, body: list[ast.stmt]) -> Iterator[str]:
    """What names in a module or a class stand for, and the defaults of its functions and fields."""
    if dataclasses.is_dataclass(place):
        yield f"frozen: {place.__dataclass_params__.frozen}"  # type: ignore[union-attr]
        made = {one.name: (one.default_factory, one.compare, one.repr) for one in dataclasses.fields(place)}
        yield from (f"{name} = {shown(one)}" for name, one in made.items() if one != (dataclasses.MISSING, True, True))
    if isinstance(place, type) and issubclass(place, BaseModel):
        if place.model_config != vars(place.__base__).get("model_config"):
            yield f"{shown(dict(place.model_config))}"
        own = {node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
        for name, field in ((name, field) for name, field in place.model_fields.items() if name in own):
            known = {} if field.is_required() else {"default": field.default}
            more = ("default_factory", "alias", "exclude", "description", "metadata")
            known |= {word: getattr(field, word) for word in more if getattr(field, word)}
            if known:
                yield f"{name} = {shown(known)}"
    for node in body:
        if isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and node.value):
            for one in ast.walk(node):
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and one.id in vars(place):
                    value = vars(place)[one.id]
                    if (text := shown(value)) != type(value).__name__:
                        yield f"{one.id} = {text}"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = vars(place).get(node.name)
            if hasattr(function, "cache_parameters"):
                yield f"{node.name} {function.cache_parameters()}"
            function = inspect.unwrap(getattr(function, "__func__", function))
            takes = inspect.signature(function).parameters.values() if inspect.isfunction(function) else ()
            if given := {one.name: one.default for one in takes if one.default is not one.empty}:
                yield f"{node.name}({shown(given)})"
        elif isinstance(node, ast.ClassDef):
            yield from (f"{node.name}: {line}" for line in fixed(vars(place)[node.name], node.body))


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_fixed_is_as_kept(room: str) -> None:
    lines = []
    for name in ROOMS[room]:
        module = importlib.import_module(name)
        tree = ast.parse(inspect.getsource(module))
        lines += [f"{name.removeprefix('mle_star.')}: {line}" for line in fixed(module, tree.body)]
    as_kept(f"constants/{room}.txt", "\n".join(lines).encode("utf-8", "backslashreplace").decode())
