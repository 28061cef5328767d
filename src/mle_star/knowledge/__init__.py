"""Knowledge files: short texts on libraries, models and validation that agents read; a folder of the user's adds more.

A file is Markdown. Its first line may say what it is for, by modality or task type, `<!-- for: tabular, text -->`, and
which package it speaks of, `<!-- for: tabular; needs: torch -->`; a file that says nothing is for every task.
`models/` holds a model a file, a heading and a block of code: what a run starts from when the retriever finds nothing.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from mle_star.errors import ConfigError
from mle_star.models import RetrievedModel, TaskDescription

MAX_CHARACTERS = 6000
"""Of our own files; those of the user's may hold as much again."""
_MODEL_NAME = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HEAD = re.compile(r"\A\s*<!--\s*(.*?)\s*-->\s*\n", re.DOTALL)


def knowledge_for(task: TaskDescription, packages: Collection[str], folder: str | None = None) -> str:
    """What agents of this task are told: the user's files first, then ours; each is cut at a line."""
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"knowledge: {folder} is not a folder")
    parts = (_fitting(_chosen(place, _words(task), packages)) for place in _places(folder))
    return "\n\n".join(filter(None, parts))


def known_models(
    task: TaskDescription, packages: Collection[str] = (), folder: str | None = None
) -> list[RetrievedModel]:
    """Models for such a task that can be built with these packages: the user's first, then ours."""
    found: dict[str, RetrievedModel] = {}
    for place in _places(folder):
        for text in _chosen(place / "models", _words(task), packages):
            name, code = _MODEL_NAME.search(text), _CODE.search(text)
            if name and code:
                found.setdefault(name[1], RetrievedModel(model_name=name[1], example_code=code[1]))
    return list(found.values())


def _places(folder: str | None) -> list[Path]:
    return [*([] if folder is None else [Path(folder)]), Path(__file__).parent]


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
        wanted, needed = (set(re.findall(r"[^\s,]+", fields.get(name, ""))) for name in ("for", "needs"))
        if (not wanted or wanted & words) and needed <= set(packages):
            yield (text[head.end() :] if head else text).strip()


def _fitting(texts: Iterable[str]) -> str:
    """The texts, as far as there is room, with their headings one level down: the sections of the prompt are ours."""
    whole = re.sub(r"^#", "##", "\n\n".join(texts), flags=re.MULTILINE)
    return whole if len(whole) <= MAX_CHARACTERS else whole[:MAX_CHARACTERS].rpartition("\n")[0]
