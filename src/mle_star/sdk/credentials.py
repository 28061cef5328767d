"""What the agents' CLI needs: an SDK that is new enough, a credential, and the environment that its processes get."""

import importlib.util
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

from mle_star.errors import CredentialError
from mle_star.models import PipelineConfig
from mle_star.models.enums import OFFLINE

PACKAGE = "claude-agent-sdk"
MINIMUM_VERSION = "0.2.182"
"""The specification asks for 0.1.39; verbatim prompts and typed result errors came later, and calls rely on them."""
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
# All that a CLI process inherits: what programs need to run at all, to speak the user's language, to reach a network
# and a GPU. Everything else could change what a run does, or is a secret.
_INHERITED = re.compile(
    r"PATH|SHELL|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|TERM|COLORTERM|NO_COLOR|TMPDIR|TEMP|TMP|IS_SANDBOX"
    r"|(HTTPS?|NO)_PROXY|SSL_CERT_(FILE|DIR)|NODE_EXTRA_CA_CERTS|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
    r"|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX|CUDA_(HOME|PATH|VISIBLE_DEVICES)|NVIDIA_VISIBLE_DEVICES|OMP_NUM_THREADS"
    r"|SYSTEM(ROOT|DRIVE)|COMSPEC|PATHEXT|WINDIR|APPDATA|LOCALAPPDATA|PROGRAM(DATA|FILES.*)|USERPROFILE"
    r"|ANTHROPIC_(SMALL_FAST_MODEL.*|DEFAULT_(OPUS|SONNET|HAIKU)_MODEL.*|BETAS)|CLAUDE_CODE_MAX_OUTPUT_TOKENS",
    re.IGNORECASE,
)
# Besides, where the proxy cannot hold the credential: what a login, a cloud or the way to it consists of.
_CREDENTIAL = re.compile(
    r"HOME|CLAUDE_CONFIG_DIR|ANTHROPIC_(API_KEY|AUTH_TOKEN|BASE_URL|BEDROCK_.*|VERTEX_.*|FOUNDRY_.*|AWS_.*)"
    r"|CLAUDE_CODE_(OAUTH_TOKEN|USE_(BEDROCK|VERTEX|FOUNDRY)|SKIP_(BEDROCK|VERTEX|FOUNDRY)_AUTH"
    r"|CLIENT_(CERT|KEY|KEY_PASSPHRASE))|(AWS|AZURE|GOOGLE|GCLOUD|CLOUDSDK|VERTEX)_.*|CLOUD_ML_REGION|XDG_\w+"
)
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|HEADERS", re.IGNORECASE)
_CLAUDE = re.compile(r"claude|sonnet|opus|haiku|anthropic|^(default|best)$|^arn:", re.IGNORECASE)
_FIRST_PARTY = "https://api.anthropic.com"


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
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    places = (Path(folder, "_bundled", name) for folder in folders for name in ("claude", "claude.exe"))
    path = next(filter(Path.is_file, places), None)
    noted = None if path is None else path.with_name("claude.version")
    words = noted.read_text(encoding="utf-8").split() if noted is not None and noted.is_file() else []
    return path, words[0] if words else ""


@dataclass(frozen=True)
class Upstream:
    """The model's API: where it is, and the headers, the credential among them, that requests to it carry."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_first_party(self) -> bool:
        """Is it the API of Anthropic, no gateway and no server of our own?"""
        return self.url.rstrip("/") == _FIRST_PARTY


@dataclass(frozen=True)
class Credential:
    """Where a credential was found; never its value."""

    source: str
    kind: Literal["secret", "cloud", "login"]
    description: str


def find_credentials(environ: Mapping[str, str] = os.environ) -> list[Credential]:
    """Every credential that the CLI would accept, the one it prefers first."""
    given = {name: value for name in (*_CLOUDS, *_SECRETS) if (value := environ.get(name, "").strip())}
    off = ("0", "false", "no", "off")
    found = [Credential(name, "cloud", _CLOUDS[name]) for name in _CLOUDS if given.get(name, "off").lower() not in off]
    found += [Credential(name, "secret", _SECRETS[name]) for name in _SECRETS if name in given]
    home = environ.get("CLAUDE_CONFIG_DIR") or Path(environ.get("HOME") or Path.home()) / ".claude"
    login = Path(home) / ".credentials.json"
    if login.is_file():
        found.append(Credential(str(login), "login", "login of the claude command"))
    return found


def require_credentials(config: PipelineConfig, environ: Mapping[str, str] = os.environ) -> None:
    """Raise `CredentialError` when nothing could authenticate a call.

    The embedded model needs nothing, and a server of the user's may not either.
    """
    if config.traits.is_embedded or config.base_url or find_credentials(environ):
        return
    if not _CLAUDE.search(config.model):
        raise CredentialError(
            f"{config.model!r} is not a Claude model: other models need a gateway (set ANTHROPIC_BASE_URL and "
            f"ANTHROPIC_AUTH_TOKEN); --model {OFFLINE} uses the built-in rules"
        )
    names = ", ".join((*_SECRETS, *_CLOUDS))
    cli = shlex.quote(str(bundled_cli()[0] or "claude"))  # that of the SDK is on nobody's PATH
    raise CredentialError(
        f"no credential for the model {config.model!r}: set one of {names}, log in with `{cli} auth login`, "
        f"or use the built-in rules with --model {OFFLINE}"
    )


def find_upstream(environ: Mapping[str, str] = os.environ, base_url: str | None = None) -> Upstream | None:
    """The API at `base_url`, else the one that the user's variables name.

    None when the CLI itself must hold the credential (a login, a cloud).
    """
    held_here = [one.source in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN") for one in find_credentials(environ)]
    if base_url is None and not any(held_here[:1]):
        return None
    lines = environ.get("ANTHROPIC_CUSTOM_HEADERS", "").splitlines()
    pairs = [line.partition(":") for line in lines if line.partition(":")[0].strip()]
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    key, token = (environ.get(name, "").strip() for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"))
    own = {"x-api-key": key, "authorization": token and f"Bearer {token}"}
    url = base_url or environ.get("ANTHROPIC_BASE_URL", "").strip() or _FIRST_PARTY
    return Upstream(url, {**{name: value for name, value in own.items() if value}, **headers})


def client_environment(
    home: Path, named: Mapping[str, str], proxied: Mapping[str, str] | None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """What a CLI process gets; what it must not inherit is blank.

    `named`: the headers that name its agent; `proxied`: what leads it to the proxy, or None.
    """
    own = {"HOME": str(home), "CLAUDE_CONFIG_DIR": str(home / "c")}
    return {
        **{name: "" for name in environ if not is_inherited(name, direct=proxied is None)},
        **({**own, **proxied} if proxied is not None else _direct(own, named, environ)),
        "CLAUDE_CODE_TMPDIR": str(home.parent / "t"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


def secret_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The variables of a CLI process that an agent's shell must not get."""
    found = {name for name in environ if is_inherited(name, direct=True) and SECRET_NAME.search(name)}
    return sorted(found | set(_SECRETS) | {"ANTHROPIC_CUSTOM_HEADERS", "CLAUDE_CODE_MESSAGING_TOKEN"})


def is_inherited(name: str, *, direct: bool) -> bool:
    """May a CLI process have this variable of ours? `direct`: it talks to the service without the proxy."""
    return bool(_INHERITED.fullmatch(name) or (direct and _CREDENTIAL.fullmatch(name)))


def agent_headers(agent: str, variant: str | None) -> dict[str, str]:
    """What names an agent in its requests."""
    return {"x-mle-star-agent": agent, **({} if variant is None else {"x-mle-star-variant": variant})}


def _direct(own: Mapping[str, str], named: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """For a CLI that holds the credential itself: the agent's name in its headers, `own` settings where possible."""
    lines = [environ.get("ANTHROPIC_CUSTOM_HEADERS", "").strip(), *(f"{name}: {named[name]}" for name in named)]
    env = {"ANTHROPIC_CUSTOM_HEADERS": "\n".join(filter(None, lines))}
    kinds = {credential.kind for credential in find_credentials(environ)}
    if "cloud" in kinds:  # ~/.aws and ~/.config/gcloud are the credential
        return {**env, "CLAUDE_CONFIG_DIR": own["CLAUDE_CONFIG_DIR"]}
    return {**env, **own} if "secret" in kinds else env
