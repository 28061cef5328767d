"""Pretrained weights that scripts can reach without a network: where they lie, and what is there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from mle_star.config import printable
from mle_star.models import PipelineConfig

MAX_LISTED = 40
MAX_SEEN = 5000
SUFFIXES = {".bin", ".ckpt", ".gguf", ".h5", ".keras", ".onnx", ".pt", ".pth", ".safetensors", ".tflite"}
_HUB = "models--"
_LOGINS = ("token", "stored_tokens")
"""Where the hub's library keeps its login, in the folder that `HF_HOME` names."""


def cache_places(config: PipelineConfig, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Where libraries find weights, by the variable that tells them: as set, else a configured folder of that form."""
    environ = os.environ if environ is None else environ
    places = {name: environ[name] for name in ("HF_HOME", "HF_HUB_CACHE", "TORCH_HOME") if environ.get(name)}
    for folder in config.model_caches:
        if "HF_HOME" not in places and "HF_HUB_CACHE" not in places:
            if _has_models(Path(folder)):
                places["HF_HUB_CACHE"] = folder
            elif _has_models(Path(folder) / "hub"):
                places["HF_HOME"] = folder
        if "TORCH_HOME" not in places and (Path(folder) / "hub" / "checkpoints").is_dir():
            places["TORCH_HOME"] = folder
    return places


def readable_parts(cache: str) -> list[str]:
    """A cache as scripts may read it: whole, or, where a login lies beside the weights, all of it but the login."""
    folder = Path(cache)
    if not any((folder / name).exists() for name in _LOGINS):
        return [cache]
    return [str(path) for path in sorted(folder.iterdir()) if path.name not in _LOGINS]


def weights_at_hand(config: PipelineConfig, environ: Mapping[str, str] | None = None) -> list[str]:
    """The weights in the caches, each as a script would ask for it: a model's name on the hub, or a file's path."""
    places = dict.fromkeys([*cache_places(config, environ).values(), *config.model_caches])
    found: dict[str, None] = {}
    for place in places:
        found.update(dict.fromkeys(_weights_in(Path(place))))
    return sorted(found)


def _has_models(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob(f"{_HUB}*"))


def _weights_in(folder: Path) -> Iterator[str]:
    seen = 0
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in [name for name in folders if name.startswith(_HUB)]:
            folders.remove(name)
            if any((Path(place) / name / "snapshots").glob("*/*")):
                yield printable(name.removeprefix(_HUB).replace("--", "/"))
        seen += len(files)
        yield from (printable(str(Path(place) / name)) for name in files if Path(name).suffix.lower() in SUFFIXES)
        if seen > MAX_SEEN:
            return
