"""Which credentials count, and what a CLI process inherits."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from mle_star.agents import AgentClient, EnvironmentFacts, find_credentials, require_credentials
from mle_star.agents.credentials import client_environment, secret_names
from mle_star.errors import ConfigError, CredentialError
from mle_star.models import PipelineConfig, TaskDescription


def environment(home: Path, environ: dict[str, str], base_url: str | None = None) -> dict[str, str]:
    return client_environment(
        home, agent="leakage", variant="detection", marker="m.1", base_url=base_url, retries=2, environ=environ
    )


@pytest.mark.req("REQ-OR-046")
@pytest.mark.parametrize(
    "variable",
    [
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "CLAUDE_CODE_OAUTH_TOKEN",
        "CLAUDE_CODE_USE_BEDROCK",
        "CLAUDE_CODE_USE_VERTEX",
    ],
)
def test_any_credential_of_the_cli_will_do(variable: str, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), variable: "1"}
    require_credentials(PipelineConfig(), environ)
    (found,) = find_credentials(environ)
    assert found.source == variable


@pytest.mark.req("REQ-OR-046")
def test_without_any_the_error_names_the_variables_and_the_embedded_model(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "ANTHROPIC_API_KEY": " ", "CLAUDE_CODE_USE_BEDROCK": "0"}
    with pytest.raises(EnvironmentError, match=r"ANTHROPIC_API_KEY.*CLAUDE_CODE_USE_VERTEX.*--model offline") as caught:
        require_credentials(PipelineConfig(), environ)
    assert isinstance(caught.value, CredentialError)
    require_credentials(PipelineConfig(model="offline"), environ)


def test_the_command_that_the_error_recommends_exists(tmp_path: Path) -> None:
    with pytest.raises(CredentialError) as caught:
        require_credentials(PipelineConfig(), {"HOME": str(tmp_path)})
    words = shlex.split(str(caught.value).split("log in with `")[1].split("`")[0])
    answer = subprocess.run([*words, "--help"], capture_output=True, text=True, timeout=60, check=True)
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


def test_a_login_of_the_cli_counts_and_keeps_its_home(tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".credentials.json").write_text("{}", encoding="utf-8")
    environ = {"HOME": str(tmp_path)}
    assert find_credentials(environ)[0].kind == "login"
    env = environment(tmp_path / "own", environ)
    assert "HOME" not in env
    assert "CLAUDE_CONFIG_DIR" not in env


def test_a_cloud_login_keeps_the_home_but_not_the_settings(tmp_path: Path) -> None:
    env = environment(tmp_path / "own", {"HOME": str(tmp_path), "CLAUDE_CODE_USE_BEDROCK": "1", "AWS_PROFILE": "p"})
    assert "HOME" not in env
    assert env["CLAUDE_CONFIG_DIR"] == str(tmp_path / "own" / "c")


def test_variables_of_gateways_pass_and_those_that_steer_the_cli_are_blanked(tmp_path: Path) -> None:
    kept = {
        "ANTHROPIC_API_KEY": "k",
        "ANTHROPIC_BASE_URL": "https://gateway.example",
        "ANTHROPIC_VERTEX_PROJECT_ID": "p",
        "ANTHROPIC_BEDROCK_BASE_URL": "https://b.example",
        "CLAUDE_CODE_SKIP_VERTEX_AUTH": "1",
        "HTTPS_PROXY": "http://proxy.example",
    }
    steering = {
        "ANTHROPIC_MODEL": "x",
        "CLAUDE_CODE_SIMPLE": "1",
        "CLAUDE_EFFORT": "low",
        "CLAUDE_CODE_MAX_RETRIES": "99",
    }
    environ = {"HOME": str(tmp_path), "ANTHROPIC_CUSTOM_HEADERS": "x-team: a", **kept, **steering}
    seen = {**environ, **environment(tmp_path / "own", environ)}
    assert {name: seen[name] for name in kept} == kept
    assert (seen["ANTHROPIC_MODEL"], seen["CLAUDE_CODE_SIMPLE"], seen["CLAUDE_EFFORT"]) == ("", "", "")
    assert seen["CLAUDE_CODE_MAX_RETRIES"] == "2"
    assert seen["HOME"] == str(tmp_path / "own")
    headers = seen["ANTHROPIC_CUSTOM_HEADERS"].split("\n")
    assert headers == ["x-team: a", "x-mle-star-agent: leakage", "x-mle-star-variant: detection"]


def test_on_loopback_no_credential_leaves_the_process(tmp_path: Path) -> None:
    environ = {
        "HOME": str(tmp_path),
        "ANTHROPIC_API_KEY": "real",
        "ANTHROPIC_AUTH_TOKEN": "real",
        "CLAUDE_CODE_USE_BEDROCK": "1",
        "ANTHROPIC_BASE_URL": "https://gateway.example",
        "ANTHROPIC_CUSTOM_HEADERS": "authorization: real",
    }
    seen = {**environ, **environment(tmp_path / "own", environ, base_url="http://127.0.0.1:9")}
    assert "real" not in "".join(value for name, value in seen.items())
    assert seen["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:9"
    assert seen["CLAUDE_CODE_USE_BEDROCK"] == ""
    assert "127.0.0.1" in seen["NO_PROXY"]


def test_secrets_are_known_by_their_names() -> None:
    names = secret_names({"HF_TOKEN": "x", "MY_API_KEY": "x", "DB_PASSWORD": "x", "PATH": "x", "odd key": "x"})
    assert {"HF_TOKEN", "MY_API_KEY", "DB_PASSWORD", "ANTHROPIC_API_KEY"} <= set(names)
    assert not {"PATH", "odd key"} & set(names)
