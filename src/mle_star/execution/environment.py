"""What scripts find where they run: variables without a credential, weights, interpreter, GPUs; programs of others.

Programs are asked from an empty folder, in the environment that scripts have.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mle_star.errors import ConfigError
from mle_star.models import PipelineConfig
from mle_star.models.texts import printable
from mle_star.run.events import Interpreter

MAX_SEEN = 5000
CACHE_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "TORCH_HOME")
"""Where libraries keep weights that were loaded before: scripts may read there."""
SUFFIXES = {".bin", ".ckpt", ".gguf", ".h5", ".keras", ".onnx", ".pt", ".pth", ".safetensors", ".tflite"}
_HUB = "models--"
_CACHE_FORMS = {
    f"{_HUB}*": ("HF_HUB_CACHE", "HF_HOME"),
    f"hub/{_HUB}*": ("HF_HOME", "HF_HUB_CACHE"),
    "hub/checkpoints/": ("TORCH_HOME",),
}
"""What a cache holds, the variable that tells of it, and another one that tells as much."""
_LOGINS = ("token", "stored_tokens")
"""Where the hub's library keeps its login, in the folder that `HF_HOME` names."""


def cache_places(config: PipelineConfig, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Where libraries find weights, by the variable that tells them: as set, else a configured folder of that form."""
    places = {name: environ[name] for name in CACHE_VARIABLES if environ.get(name)}
    for folder in config.model_caches:
        for form, names in _CACHE_FORMS.items():
            if not places.keys() & set(names) and any(Path(folder).glob(form)):
                places[names[0]] = folder
    return places


def readable_parts(cache: str) -> list[str]:
    """A cache as scripts may read it: whole, or, where a login lies beside the weights, all of it but the login."""
    folder = Path(cache)
    if not any((folder / name).exists() for name in _LOGINS):
        return [cache]
    return [str(path) for path in sorted(folder.iterdir()) if path.name not in _LOGINS]


def weights_at_hand(config: PipelineConfig, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The weights in the caches, each as a script would ask for it: a model's name on the hub, or a file's path."""
    places = {*cache_places(config, environ).values(), *config.model_caches}
    return sorted({weights for place in places for weights in _weights_in(Path(place))})


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
    """`env` without anything whose name suggests a credential."""
    return {name: value for name, value in env.items() if not _CREDENTIAL.search(name)}


def script_environment(config: PipelineConfig, gpus: Sequence[int | str] | None = None) -> dict[str, str]:
    """All that a script gets to see: only names of the allow-list pass, then seeds and thread counts are set."""
    allowed = re.compile(f"{_ALLOWED.pattern}|{_NETWORK.pattern}", _ALLOWED.flags) if config.allow_network else _ALLOWED
    env = {name: text for name, text in scrub_credentials(build_execution_env()).items() if allowed.fullmatch(name)}
    if gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    env.update(cache_places(config, env))
    if not config.allow_network:
        env.update(dict.fromkeys(_OFFLINE, "1"))  # a missing weight is an error at once, not after minutes of waiting
    env |= {"MLE_STAR_SEED": str(config.seed), "MPLBACKEND": "Agg", "PYTHONIOENCODING": "utf-8:backslashreplace"}
    if not config.letter:
        env["PYTHONFAULTHANDLER"] = "1"  # where a script was when it crashed or was stopped
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
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- programs ------------------------------------------------------------------------------------------------


def find_program(name: str) -> str | None:
    """The absolute path of a program; a bare name is never found in the current folder, whatever PATH says."""
    if os.path.dirname(name):  # noqa: PTH120 - `./x` and `x` differ here, and are the same to pathlib
        return os.path.abspath(name) if shutil.which(name) else None  # noqa: PTH100
    places = [place for place in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(place)]  # noqa: PTH117
    return shutil.which(name, path=os.pathsep.join(places))


def try_program(command: str | Sequence[str], seconds: float, **how: Any) -> tuple[bytes, str]:
    """Run a program to its end: what it prints, and in one line why it failed, if it did."""
    with tempfile.TemporaryDirectory(prefix="mle-star-probe-") as neutral:
        how = {"cwd": neutral, "env": script_environment(PipelineConfig()), **how}
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, **how)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return b"", str(error)
    errors = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
    return done.stdout, errors[-1] if done.returncode else ""


GPU_SECONDS = 5


def detect_gpu_info() -> dict[str, Any]:
    """Ask `nvidia-smi`; any trouble means that there is no GPU. Never raises."""
    query = [find_program("nvidia-smi") or "", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    answer, why = try_program(query, GPU_SECONDS)
    text = "" if why else answer.decode("utf-8", "replace")
    lines = [line.partition(",")[::2] for line in text.splitlines() if line.strip()]
    names, memory = [name.strip() for name, _ in lines], [size.strip() for _, size in lines if size.strip()]
    found: dict[str, Any] = {"cuda_available": bool(lines), "gpu_count": len(lines), "gpu_names": names}
    return {**found, "gpu_memory": memory} if memory else found


detect_gpu = detect_gpu_info


_PLACES = """
import site
site.check_enableusersite = lambda: True  # -I alone would leave out the user's own packages, which scripts have
site.main()
import json, sys
user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
print(json.dumps({
    "path": sys.executable,
    "version": ".".join(map(str, sys.version_info[:3])),
    "roots": [*filter(None, sys.path), sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix],
    "user_base": site.getuserbase() if user in sys.path else None,
}))
"""
QUESTION_SECONDS = 60


class InterpreterInfo(Interpreter):
    """An interpreter as it describes itself; `roots` are the folders it must be able to read, its path among them."""

    path: str
    roots: tuple[str, ...] = ()
    user_base: str | None = None


def inspect_interpreter(python: str | None = None) -> InterpreterInfo:
    """Ask an interpreter about itself, in the environment that scripts get; None means the running one."""
    wanted = python or sys.executable
    chosen = find_program(wanted) or wanted
    # -S, because the question goes through `site` in its own way
    answer, why = try_program([chosen, "-I", "-S", "-c", _PLACES], QUESTION_SECONDS)
    with suppress(ValidationError):
        found = InterpreterInfo.model_validate_json(b"" if why else answer)
        return found.model_copy(update={"packages": _packages(found.roots)})
    raise ConfigError(f"python={chosen!r} is not a usable Python interpreter: {why or 'no answer'}")


def _packages(roots: Iterable[str]) -> dict[str, str]:
    """What can be imported from these folders, by name; of what is there twice, the first."""
    found: dict[str, str] = {}
    for one in distributions(path=list(dict.fromkeys(roots))):
        # the first lines of the file are enough, and parsing the rest takes most of the time
        lines = (one.read_text("METADATA") or one.read_text("PKG-INFO") or "").split("\n\n", 1)[0].splitlines()[:10]
        head = dict(line.split(": ", 1) for line in lines if ": " in line)
        if "Name" in head and "Version" in head:
            found.setdefault(head["Name"], head["Version"])
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


COMMAND_SECONDS = 30.0


def call_command(command: str, variables: Mapping[str, str]) -> str:
    """Run a command of the user's in a shell, with these variables; what went wrong, or nothing."""
    _, why = try_program(command, COMMAND_SECONDS, shell=True, cwd=None, env={**os.environ, **variables})
    return why and f"{command!r}: {why}"
