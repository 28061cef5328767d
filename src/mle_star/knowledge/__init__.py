"""Knowledge files: short texts on libraries, models and validation that agents read; a folder of the user's adds more.

A file is Markdown. Its first line may say what it is for, by modality or task type, `<!-- for: tabular, text -->`, and
which package it speaks of, `<!-- for: tabular; needs: torch -->`; a file that says nothing is for every task.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from mle_star.errors import ConfigError
from mle_star.models import TaskDescription

MAX_CHARACTERS = 6000
"""Of our own files; those of the user's may hold as much again."""
_HEAD = re.compile(r"\A\s*<!--\s*(.*?)\s*-->\s*\n", re.DOTALL)


def knowledge_for(task: TaskDescription, packages: Collection[str], folder: str | None = None) -> str:
    """What agents of this task are told: the user's files first, each cut at a line where there is no room."""
    words = {task.data_modality.value, task.task_type.value}
    if "mixed" in words:
        words |= {"tabular", "text"}
    own = list(_chosen(Path(__file__).parent, words, packages))
    users: list[str] = []
    if folder is not None:
        place = Path(folder)
        if not place.is_dir():
            raise ConfigError(f"knowledge: {folder} is no folder")
        users = list(_chosen(place, words, packages))
    parts = [_fitting(users, MAX_CHARACTERS), _fitting(own, MAX_CHARACTERS)]
    return "\n\n".join(part for part in parts if part)


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
            yield _below_ours(text[head.end() :] if head else text)


def _below_ours(text: str) -> str:
    """The text with its headings one level down: the sections of the prompt are ours."""
    return re.sub(r"^#", "##", text.strip(), flags=re.MULTILINE)


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
