"""What a script's environment holds: an allow-list, seeds, weights, its share of cores and GPUs, and no credential."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mle_star.basics.texts import printable
from mle_star.models import PipelineConfig

MAX_SEEN = 5000
CACHE_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "TORCH_HOME")
"""Where libraries keep weights that were loaded before: scripts may read there."""
SUFFIXES = {".bin", ".ckpt", ".gguf", ".h5", ".keras", ".onnx", ".pt", ".pth", ".safetensors", ".tflite"}
_HUB = "models--"
_LOGINS = ("token", "stored_tokens")
"""Where the hub's library keeps its login, in the folder that `HF_HOME` names."""


def cache_places(config: PipelineConfig, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Where libraries find weights, by the variable that tells them: as set, else a configured folder of that form."""
    environ = os.environ if environ is None else environ
    places = {name: environ[name] for name in CACHE_VARIABLES if environ.get(name)}
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
    places = {*cache_places(config, environ).values(), *config.model_caches}
    return sorted({weights for place in places for weights in _weights_in(Path(place))})


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


_CREDENTIAL = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|^(ANTHROPIC|CLAUDE|AWS)_", re.IGNORECASE)

_ALLOWED = re.compile(
    r"""PATH|LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|USER|LOGNAME|SHELL
      | LD_LIBRARY_PATH|DYLD_(FALLBACK_)?LIBRARY_PATH
      | CUDA_[A-Z_]+|NVIDIA_[A-Z_]+|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|XLA_FLAGS
      | CONDA_PREFIX|VIRTUAL_ENV|HF_HOME|HF_HUB_CACHE|TORCH_HOME
      | PYTHONUNBUFFERED|PYTHONHASHSEED|PYTHONUTF8|PYTHONIOENCODING
    """,
    re.VERBOSE | re.IGNORECASE,
)

CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_NETWORK = re.compile(rf"(HTTPS?|ALL|FTP|NO)_PROXY|HF_ENDPOINT|{'|'.join(CERTIFICATE_VARIABLES)}", re.IGNORECASE)
"""What a script needs beyond the allow-list to download something, here and behind a proxy."""

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")

_THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
    *("NUMEXPR_MAX_THREADS", "LOKY_MAX_CPU_COUNT", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS"),
)


def build_execution_env(gpu_indices: list[int] | None = None) -> dict[str, str]:
    """A copy of the current environment, unbuffered and with a fixed hash seed; `[]` hides every GPU."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}
    if gpu_indices is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpu_indices))
    return env


def scrub_credentials(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without anything whose name smells of a credential."""
    return {name: value for name, value in env.items() if not _CREDENTIAL.search(name)}


def script_environment(config: PipelineConfig, gpus: Sequence[str] | None = None) -> dict[str, str]:
    """All that a script gets to see: only names of the allow-list pass, then seeds and thread counts are set."""
    allowed = re.compile(f"{_ALLOWED.pattern}|{_NETWORK.pattern}", _ALLOWED.flags) if config.allow_network else _ALLOWED
    env = {name: text for name, text in scrub_credentials(build_execution_env()).items() if allowed.fullmatch(name)}
    if gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    env.update(cache_places(config, env))
    if not config.allow_network:
        env.update(dict.fromkeys(_OFFLINE, "1"))  # a missing weight is an error at once, not after minutes of waiting
    env["MLE_STAR_SEED"] = str(config.seed)
    env["MPLBACKEND"] = "Agg"
    env["PYTHONIOENCODING"] = "utf-8:backslashreplace"
    return {**env, **thread_counts(threads_per_script(config))}


def thread_counts(threads: int) -> dict[str, str]:
    """The variables by which libraries learn how many cores are theirs."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def concurrent_scripts(config: PipelineConfig) -> int:
    """How many scripts may run side by side."""
    return config.max_concurrent_scripts or config.max_concurrent_paths or config.num_parallel_solutions


def threads_per_script(config: PipelineConfig) -> int:
    """An even share of the cores, at least one."""
    return max(1, usable_cores() // concurrent_scripts(config))


def usable_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
