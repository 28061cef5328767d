"""Which credential the agents' CLI will find, and the environment that its processes get."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mle_star.agents.version import bundled_cli
from mle_star.errors import CredentialError
from mle_star.models import PipelineConfig

OFFLINE = "offline"
MARKER = "MLESTAR_AGENT_CLIENT"
"""Set in every CLI process, so that it can be found and ended whatever happened to its client."""

_SECRETS = {
    "ANTHROPIC_API_KEY": "API key",
    "ANTHROPIC_AUTH_TOKEN": "auth token",
    "CLAUDE_CODE_OAUTH_TOKEN": "OAuth token",
}
_CLOUDS = {
    "CLAUDE_CODE_USE_BEDROCK": "Amazon Bedrock",
    "CLAUDE_CODE_USE_VERTEX": "Google Vertex AI",
    "CLAUDE_CODE_USE_FOUNDRY": "Microsoft Foundry",
}
# What a gateway, a cloud or a company network needs. Every other inherited ANTHROPIC_* or CLAUDE_* variable could
# change what a run does, and is blanked.
_PASSED = re.compile(
    r"ANTHROPIC_(API_KEY|AUTH_TOKEN|BASE_URL|BEDROCK_.*|VERTEX_.*|FOUNDRY_.*|CUSTOM_HEADERS|SMALL_FAST_MODEL.*"
    r"|DEFAULT_(OPUS|SONNET|HAIKU)_MODEL.*|BETAS)"
    r"|CLAUDE_CODE_(OAUTH_TOKEN|USE_(BEDROCK|VERTEX|FOUNDRY)|SKIP_(BEDROCK|VERTEX|FOUNDRY)_AUTH"
    r"|CLIENT_(CERT|KEY|KEY_PASSPHRASE)|MAX_OUTPUT_TOKENS)"
)
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|ANTHROPIC_CUSTOM_HEADERS|MESSAGING", re.I)


@dataclass(frozen=True)
class Credential:
    """Where a credential was found; never its value."""

    source: str
    kind: Literal["secret", "cloud", "login"]
    description: str


def login_file(environ: Mapping[str, str] | None = None) -> Path:
    """Where the CLI keeps its own login."""
    environ = os.environ if environ is None else environ
    home = environ.get("CLAUDE_CONFIG_DIR") or str(Path(environ.get("HOME") or Path.home()) / ".claude")
    return Path(home) / ".credentials.json"


def find_credentials(environ: Mapping[str, str] | None = None) -> list[Credential]:
    """Every credential that the CLI would accept, the one it prefers first."""
    environ = os.environ if environ is None else environ
    found = [Credential(name, "cloud", what) for name, what in _CLOUDS.items() if _is_on(environ.get(name))]
    found += [Credential(name, "secret", what) for name, what in _SECRETS.items() if environ.get(name, "").strip()]
    login = login_file(environ)
    if login.is_file():
        found.append(Credential(str(login), "login", "login of the claude command"))
    return found


def require_credentials(config: PipelineConfig, environ: Mapping[str, str] | None = None) -> None:
    """Raise `CredentialError` when nothing could authenticate a call; the embedded model needs nothing."""
    if config.model == OFFLINE or find_credentials(environ):
        return
    names = ", ".join((*_SECRETS, *_CLOUDS))
    raise CredentialError(
        f"no credential for the model {config.model!r}: set one of {names}, log in with `{login_command()}`, "
        f"or choose the embedded model with --model {OFFLINE}"
    )


def login_command() -> str:
    """What to type in order to log in: the CLI of the SDK is on nobody's PATH."""
    return f"{shlex.quote(str(bundled_cli()[0] or 'claude'))} auth login"


def client_environment(
    home: Path,
    *,
    agent: str,
    variant: str | None,
    marker: str,
    base_url: str | None,
    retries: int,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """What a CLI process sees on top of the parent's variables: nothing of the user's settings, its agent's name."""
    environ = os.environ if environ is None else environ
    env = {name: "" for name in environ if _decides_behaviour(name)}
    env.update(_isolation(home, environ, local=base_url is not None))
    headers = [f"x-mle-star-agent: {agent}"]
    if variant is not None:
        headers.append(f"x-mle-star-variant: {variant}")
    if base_url is None:
        headers[:0] = filter(None, [environ.get("ANTHROPIC_CUSTOM_HEADERS", "").strip()])
    else:
        env.update(_loopback(base_url, environ))
    return {
        **env,
        "ANTHROPIC_CUSTOM_HEADERS": "\n".join(headers),
        "CLAUDE_CODE_MAX_RETRIES": str(retries),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        MARKER: marker,
    }


def secret_names(environ: Mapping[str, str] | None = None) -> list[str]:
    """The variables that an agent's shell must not see: this process's secrets and those of the CLI."""
    environ = os.environ if environ is None else environ
    found = {name for name in environ if _SECRET_NAME.search(name) and re.fullmatch(r"\w+", name, re.ASCII)}
    return sorted(found | set(_SECRETS) | {"ANTHROPIC_CUSTOM_HEADERS", "CLAUDE_CODE_MESSAGING_TOKEN"})


def _decides_behaviour(name: str) -> bool:
    return name.startswith(("ANTHROPIC_", "CLAUDE_")) and not _PASSED.fullmatch(name)


def _isolation(home: Path, environ: Mapping[str, str], *, local: bool) -> dict[str, str]:
    """A home of its own, unless the credential lives in the user's."""
    kinds = {credential.kind for credential in find_credentials(environ)}
    own = {"CLAUDE_CODE_TMPDIR": str(home.parent / "t")}
    if not local and "cloud" in kinds:  # ~/.aws and ~/.config/gcloud are the credential
        return {**own, "CLAUDE_CONFIG_DIR": str(home / "c")}
    if local or "secret" in kinds:
        return {**own, "HOME": str(home), "CLAUDE_CONFIG_DIR": str(home / "c")}
    given = environ.get("CLAUDE_CONFIG_DIR")
    return {**own, "CLAUDE_CONFIG_DIR": given} if given else own


def _loopback(base_url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Talk to our own server, whatever the user's credentials and proxies are."""
    blank = {name: "" for name in (*_SECRETS, *_CLOUDS) if name in environ}
    direct = ",".join(filter(None, [environ.get("NO_PROXY", ""), "127.0.0.1", "localhost"]))
    return {
        **blank,
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_API_KEY": "loopback",
        "NO_PROXY": direct,
        "no_proxy": direct,
    }


def _is_on(value: str | None) -> bool:
    return (value or "").strip().lower() not in ("", "0", "false", "no", "off")
