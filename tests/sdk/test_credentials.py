"""Which credentials count, and what a CLI process inherits."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from mle_star.errors import ConfigError, CredentialError
from mle_star.models import PipelineConfig, TaskDescription
from mle_star.sdk import AgentClient, EnvironmentFacts, require_credentials
from mle_star.sdk.credentials import Upstream, agent_headers, client_environment, find_credentials, find_upstream
from mle_star.sdk.proxy import CredentialProxy


def environment(home: Path, environ: dict[str, str], proxied: dict[str, str] | None = None) -> dict[str, str]:
    """All that a CLI process sees: the SDK puts what we give it over what it inherits."""
    given = client_environment(home, agent_headers("leakage", "detection"), proxied, environ)
    return {name: value for name, value in {**environ, **given}.items() if value}


@pytest.mark.req("REQ-OR-046")
def test_any_credential_will_do_and_without_one_the_error_says_what_would(tmp_path: Path) -> None:
    clouds = [f"CLAUDE_CODE_USE_{cloud}" for cloud in ("BEDROCK", "VERTEX", "FOUNDRY")]
    for variable in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", *clouds):
        environ = {"HOME": str(tmp_path), variable: "1"}
        require_credentials(PipelineConfig(), environ)
        assert [found.source for found in find_credentials(environ)] == [variable]
    environ = {"HOME": str(tmp_path), "ANTHROPIC_API_KEY": " ", "CLAUDE_CODE_USE_BEDROCK": "0"}
    with pytest.raises(EnvironmentError, match=r"ANTHROPIC_API_KEY.*CLAUDE_CODE_USE_VERTEX.*--model offline") as caught:
        require_credentials(PipelineConfig(), environ)
    assert isinstance(caught.value, CredentialError)
    require_credentials(PipelineConfig(model="offline"), environ)
    words = shlex.split(str(caught.value).split("log in with `")[1].split("`")[0])
    answer = subprocess.run([*words, "--help"], capture_output=True, text=True, timeout=240, check=True)
    assert answer.stdout.startswith("Usage: claude auth login")


@pytest.mark.req("REQ-OR-046")
async def test_a_client_without_credential_does_not_open(
    task: TaskDescription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CredentialError):
        async with AgentClient(task, PipelineConfig(), EnvironmentFacts()):
            pass
    with pytest.raises(ConfigError, match="base_url"):
        AgentClient(task, PipelineConfig(model="offline"), EnvironmentFacts())


def test_a_login_keeps_the_home_and_that_of_a_cloud_not_the_settings(tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".credentials.json").write_text("{}", encoding="utf-8")
    environ = {"HOME": str(tmp_path)}
    assert find_credentials(environ)[0].kind == "login"
    assert find_upstream(environ) is None
    env = environment(tmp_path / "own", environ)
    assert env["HOME"] == str(tmp_path)
    assert "CLAUDE_CONFIG_DIR" not in env
    cloud = {"CLAUDE_CODE_USE_BEDROCK": "1", "AWS_PROFILE": "p", "ANTHROPIC_BEDROCK_BASE_URL": "https://b.example"}
    environ |= {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_CUSTOM_HEADERS": "x-team: a", **cloud}
    assert find_upstream(environ) is None
    env = environment(tmp_path / "own", environ)
    assert (env["HOME"], env["CLAUDE_CONFIG_DIR"]) == (str(tmp_path), str(tmp_path / "own" / "c"))
    assert {name: env[name] for name in cloud} == cloud
    headers = env["ANTHROPIC_CUSTOM_HEADERS"].split("\n")
    assert headers == ["x-team: a", "x-mle-star-agent: leakage", "x-mle-star-variant: detection"]


def test_the_proxy_gets_what_the_service_wants_to_see() -> None:
    assert find_upstream({"ANTHROPIC_API_KEY": "k"}) == Upstream("https://api.anthropic.com", {"x-api-key": "k"})
    gateway = {
        "ANTHROPIC_BASE_URL": "https://gateway.example/v2",
        "ANTHROPIC_AUTH_TOKEN": "t",
        "ANTHROPIC_CUSTOM_HEADERS": "X-Team: a:b\n\nnonsense\nx-two: 2",
    }
    found = find_upstream(gateway)
    assert found is not None
    assert found.url == "https://gateway.example/v2"
    assert dict(found.headers) == {"authorization": "Bearer t", "x-team": "a:b", "nonsense": "", "x-two": "2"}
    assert "Bearer" not in repr(found)
    assert find_upstream({"CLAUDE_CODE_OAUTH_TOKEN": "t"}) is None


async def test_behind_the_proxy_a_cli_inherits_what_is_listed_and_no_secret(tmp_path: Path) -> None:
    kept = {"PATH": "/bin", "LANG": "C", "LC_ALL": "C", "HTTPS_PROXY": "http://proxy.example", "SSL_CERT_FILE": "/c"}
    dropped = {
        "ANTHROPIC_API_KEY": "real", "ANTHROPIC_AUTH_TOKEN": "real", "CLAUDE_CODE_OAUTH_TOKEN": "real",
        "CLAUDE_CODE_USE_BEDROCK": "real", "ANTHROPIC_BASE_URL": "real", "ANTHROPIC_CUSTOM_HEADERS": "a: real",
        "ANTHROPIC_MODEL": "real", "CLAUDE_CODE_SIMPLE": "real", "CLAUDE_CODE_MAX_RETRIES": "real", "HOME": "real",
        "AWS_SECRET_ACCESS_KEY": "real", "HF_TOKEN": "real", "DATABASE_URL": "real", "SSH_AUTH_SOCK": "real",
    }  # fmt: skip
    async with CredentialProxy(Upstream("http://127.0.0.1:9"), {"NO_PROXY": "inside.example"}) as proxy:
        env = environment(tmp_path / "own", {**kept, **dropped}, proxy.environment("coder", None))
        assert (env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_API_KEY"][:9]) == (proxy.base_url, "mle-star-")
    assert env["NO_PROXY"] == env["no_proxy"] == "inside.example,127.0.0.1,localhost"
    assert {name: env[name] for name in kept} == kept
    assert "real" not in " ".join(env.values())
    assert env["HOME"] == str(tmp_path / "own")
    assert not {"ANTHROPIC_CUSTOM_HEADERS", "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"} & set(env)
    async with CredentialProxy(Upstream("https://api.anthropic.com"), {}) as proxy:
        assert proxy.environment("coder", None)["_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"] == "1"
