"""The gate for the Claude Agent SDK: old versions are refused by name, a missing one only when it is needed."""

from __future__ import annotations

import re
from importlib import metadata

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
