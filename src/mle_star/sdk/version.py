"""The gate for the Claude Agent SDK: old versions are refused by name, a missing one only when it is needed."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from pathlib import Path

PACKAGE = "claude-agent-sdk"
MINIMUM_VERSION = "0.2.182"
"""The specification asks for 0.1.39; verbatim prompts and typed result errors came later, and calls rely on them."""


def installed_sdk_version() -> str | None:
    """The version of the SDK here, or None when it is not installed."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def check_sdk_version(installed: str | None) -> None:
    """Raise `ImportError` for an SDK that is too old; None (no SDK at all) passes, see `require_sdk`."""
    if installed is not None and _numbers(installed) < _numbers(MINIMUM_VERSION):
        raise ImportError(
            f"{PACKAGE} {installed} is too old, {MINIMUM_VERSION} or later is needed: "
            f"pip install --upgrade '{PACKAGE}>={MINIMUM_VERSION}'"
        )


def require_sdk() -> None:
    """Raise `ImportError` unless an SDK is here that agents can be called with."""
    installed = installed_sdk_version()
    if installed is None:
        raise ImportError(f"agents need {PACKAGE}, which is not installed: pip install '{PACKAGE}>={MINIMUM_VERSION}'")
    check_sdk_version(installed)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, enough to compare releases."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def bundled_cli() -> tuple[Path | None, str]:
    """The CLI inside the SDK's package and its version; (None, "") when this platform's wheel has none."""
    spec = importlib.util.find_spec("claude_agent_sdk")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for name in ("claude", "claude.exe"):
            path = Path(folder) / "_bundled" / name
            if path.is_file():
                noted = path.with_name("claude.version")
                text = noted.read_text(encoding="utf-8").strip() if noted.is_file() else ""
                return path, text.split()[0] if text else ""
    return None, ""
