"""The Python that runs the scripts: where it is, how old, and what it can import."""

from __future__ import annotations

import json
import subprocess
import sys

from mle_star.context import digest_of
from mle_star.errors import ConfigError
from mle_star.execution.environment import script_environment
from mle_star.models import Frozen, PipelineConfig

_QUESTION = """
import importlib.metadata as metadata, json, site, sys
packages = {}
for found in metadata.distributions():
    name = found.metadata["Name"]
    if name and name not in packages:
        packages[name] = found.version
user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
print(json.dumps({
    "path": sys.executable,
    "version": ".".join(map(str, sys.version_info[:3])),
    "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    "roots": sorted({sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *filter(None, sys.path)}),
    "user_base": site.getuserbase() if user in sys.path else None,
}))
"""
QUESTION_SECONDS = 60


class InterpreterInfo(Frozen):
    """An interpreter as it describes itself; `roots` are the folders it must be able to read."""

    path: str
    version: str
    packages: dict[str, str]
    roots: tuple[str, ...] = ()
    user_base: str | None = None

    @property
    def fingerprint(self) -> str:
        """A digest of all that could make the same script behave differently."""
        return digest_of(self.version, *(f"{name}=={version}" for name, version in self.packages.items()))


def inspect_interpreter(python: str | None = None) -> InterpreterInfo:
    """Ask an interpreter about itself, in the environment that scripts get; None means the running one."""
    chosen = python or sys.executable
    try:
        answer = subprocess.run(
            [chosen, "-c", _QUESTION],
            env=script_environment(PipelineConfig()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=QUESTION_SECONDS,
            check=True,
        )
        return InterpreterInfo.model_validate(json.loads(answer.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        detail = (
            error.stderr.decode("utf-8", "replace") if isinstance(error, subprocess.CalledProcessError) else str(error)
        )
        last = detail.strip().splitlines()[-1] if detail.strip() else "no answer"
        raise ConfigError(f"python={chosen!r} is no usable Python interpreter: {last}") from None
