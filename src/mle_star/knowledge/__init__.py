"""Knowledge files: short texts on libraries, models and validation that agents read; a folder of the user's adds more.

A file is Markdown. Its first line may say what it is for, by modality or task type, `<!-- for: tabular, text -->`, and
which package it speaks of, `<!-- for: tabular; needs: torch -->`; a file that says nothing is for every task.
`models/` holds a model a file, a heading and a block of code: what a run starts from when the retriever finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from mle_star.errors import ConfigError
from mle_star.models import RetrievedModel, TaskDescription

MAX_CHARACTERS = 6000
"""Of our own files; those of the user's may hold as much again."""
_MODEL_NAME = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HEAD = re.compile(r"\A\s*<!--\s*(.*?)\s*-->\s*\n", re.DOTALL)


def knowledge_for(task: TaskDescription, packages: Collection[str], folder: str | None = None) -> str:
    """What agents of this task are told: the user's files first, each cut at a line where there is no room."""
    words = _words(task)
    own = [_below_ours(text) for text in _chosen(Path(__file__).parent, words, packages)]
    users: list[str] = []
    if folder is not None:
        place = Path(folder)
        if not place.is_dir():
            raise ConfigError(f"knowledge: {folder} is no folder")
        users = [_below_ours(text) for text in _chosen(place, words, packages)]
    parts = [_fitting(users, MAX_CHARACTERS), _fitting(own, MAX_CHARACTERS)]
    return "\n\n".join(part for part in parts if part)


def known_models(
    task: TaskDescription, packages: Collection[str] = (), folder: str | None = None
) -> list[RetrievedModel]:
    """Models for such a task that can be built with these packages: the user's first, then ours."""
    places = [*([] if folder is None else [Path(folder) / "models"]), Path(__file__).parent / "models"]
    found: dict[str, RetrievedModel] = {}
    for place in places:
        for text in _chosen(place, _words(task), packages):
            name, code = _MODEL_NAME.search(text), _CODE.search(text)
            if name and code:
                found.setdefault(name[1], RetrievedModel(model_name=name[1], example_code=code[1]))
    return list(found.values())


def _words(task: TaskDescription) -> set[str]:
    words = {task.data_modality.value, task.task_type.value}
    return words | {"tabular", "text"} if "mixed" in words else words


def _chosen(folder: Path, words: set[str], packages: Collection[str]) -> Iterator[str]:
    for path in sorted(folder.glob("*.md")):
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"knowledge: {path} cannot be read: {error}") from None
        head = _HEAD.match(text)
        fields = dict(re.findall(r"(for|needs):\s*([^;]*)", head[1])) if head else {}
        wanted = {word.strip() for word in fields.get("for", "").split(",") if word.strip()}
        needed = {word.strip() for word in fields.get("needs", "").split(",") if word.strip()}
        if (not wanted or wanted & words) and needed <= set(packages):
            yield (text[head.end() :] if head else text).strip()


def _below_ours(text: str) -> str:
    """The text with its headings one level down: the sections of the prompt are ours."""
    return re.sub(r"^#", "##", text, flags=re.MULTILINE)


def _fitting(texts: list[str], most: int) -> str:
    kept: list[str] = []
    left = most
    for text in texts:
        piece = text if len(text) <= left else text[:left].rpartition("\n")[0]
        if piece:
            kept.append(piece)
        left -= len(piece) + 2
        if left <= 0:
            break
    return "\n\n".join(kept)
