"""What a client is started with: SDK, credential, environment, prompts and tools; `mle-star doctor` looks."""

import dataclasses
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path
from typing import get_args

import pytest
from claude_agent_sdk import AgentDefinition

from mle_star import models as m
from mle_star.cli.app import main
from mle_star.cli.doctor import _REMEDIES, _calls, _sdk, diagnose
from mle_star.engineer.server import BrainReply, MessagesServer
from mle_star.errors import AgentFailure, ConfigError, CredentialError
from mle_star.execution import inspect_interpreter
from mle_star.models import PipelineConfig
from mle_star.sdk import AgentClient, EnvironmentFacts, credentials, definitions, require_credentials
from mle_star.sdk.credentials import Upstream, agent_headers, client_environment, find_credentials, find_upstream
from mle_star.sdk.definitions import ScriptShare, build_definitions, build_system_prompt, effective_tools
from mle_star.sdk.proxy import CredentialProxy
from mle_star.testing import ScriptedBrain
from tests.conftest import Captured, Patch, as_kept, write_texts
from tests.sdk.conftest import FACTS


def environment(home: Path, environ: dict[str, str], proxied: dict[str, str] | None = None) -> dict[str, str]:
    """All that a CLI process sees: the SDK puts what we give it over what it inherits."""
    given = client_environment(home, agent_headers("leakage", "detection"), proxied, environ)
    return {name: value for name, value in {**environ, **given}.items() if value}


@pytest.mark.req("REQ-OR-046")
async def test_no_client_opens_without_credential(task: m.TaskDescription, tmp_path: Path) -> None:
    clouds = [f"CLAUDE_CODE_USE_{cloud}" for cloud in ("BEDROCK", "VERTEX", "FOUNDRY")]
    for variable in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", *clouds):
        environ = {"HOME": str(tmp_path), variable: "1"}
        require_credentials(m.PipelineConfig(), environ)
        assert [found.source for found in find_credentials(environ)] == [variable]
    environ = {"HOME": str(tmp_path), "ANTHROPIC_API_KEY": " ", "CLAUDE_CODE_USE_BEDROCK": "0"}
    with pytest.raises(EnvironmentError, match=r"ANTHROPIC_API_KEY.*CLAUDE_CODE_USE_VERTEX.*--model offline") as caught:
        require_credentials(m.PipelineConfig(), environ)
    assert isinstance(caught.value, CredentialError)
    require_credentials(m.PipelineConfig(model="offline"), environ)
    words = shlex.split(str(caught.value).split("log in with `")[1].split("`")[0])
    answer = subprocess.run([*words, "--help"], capture_output=True, text=True, timeout=240, check=True)
    assert answer.stdout.startswith("Usage: claude auth login")
    with pytest.raises(CredentialError):
        async with AgentClient(task, m.PipelineConfig(), EnvironmentFacts()):
            pass
    with pytest.raises(ConfigError, match="base_url"):
        AgentClient(task, m.PipelineConfig(model="offline"), EnvironmentFacts())


def test_a_login_keeps_the_home_and_that_of_a_cloud_not_the_settings(tmp_path: Path) -> None:
    environ = {"HOME": str(write_texts(tmp_path, {".claude/.credentials.json": "{}"}))}
    assert find_credentials(environ)[0].kind == "login" and find_upstream(environ) is None
    env = environment(tmp_path / "own", environ)
    assert env["HOME"] == str(tmp_path) and "CLAUDE_CONFIG_DIR" not in env
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
        "ANTHROPIC_CUSTOM_HEADERS": "X-Team : a:b\n\nnonsense\nx-two: 2",
    }
    found, headers = find_upstream(gateway), {"x-team": "a:b", "nonsense": "", "x-two": "2"}
    assert found == Upstream("https://gateway.example/v2", {"authorization": "Bearer t", **headers})
    assert "Bearer" not in repr(found) and find_upstream({"CLAUDE_CODE_OAUTH_TOKEN": "t"}) is None


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
    assert {name: env[name] for name in kept} == kept and "real" not in " ".join(env.values())
    assert env["HOME"] == str(tmp_path / "own")
    assert not {"ANTHROPIC_CUSTOM_HEADERS", "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"} & set(env)
    async with CredentialProxy(Upstream("https://api.anthropic.com"), {}) as proxy:
        assert proxy.environment("coder", None)["_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"] == "1"


@pytest.mark.req("REQ-OR-006", "REQ-OR-008", "REQ-OR-010", "REQ-OR-057")
def test_all_fourteen_agents_are_registered_with_their_tools_under_the_names_of_the_enum(tmp_path: Path) -> None:
    coder, server = m.agent_config(m.AgentType.coder), definitions.build_tool_server(tmp_path)
    made = build_definitions(coder, "the system prompt", "minimal", server)
    assert set(made) == {agent.value for agent in m.AgentType} and len(made) == 14
    assert all(isinstance(one, AgentDefinition) and one.description and one.prompt for one in made.values())
    assert made["coder"].prompt == "the system prompt"
    without = build_definitions(coder, "", "minimal")
    assert not any(set(definitions.MCP_TOOLS) & set(definition.tools or []) for definition in without.values())
    made["correction"] = build_definitions(m.agent_config(m.AgentType.leakage, "correction"), "", "full")["leakage"]
    lines = [f"{name}: {one.tools}" for name, one in made.items()]  # a missing list would mean all
    for profile in ("full", "minimal"):
        configs = m.build_default_agent_configs(profile)
        lines += [f"{profile}, {agent.value}: {effective_tools(configs[agent], profile)}" for agent in configs]
    as_kept("sdk/tools.txt", "\n".join(lines))


@pytest.mark.req("REQ-OR-007")
def test_the_system_prompt_says_who_what_and_on_which_machine(task: m.TaskDescription, monkeypatch: Patch) -> None:
    long = task.model_copy(update={"description": "Every word counts. " * 2000 + "The end."})
    assert long.description in build_system_prompt(long, FACTS)
    prompt = build_system_prompt(task, FACTS)
    assert prompt.startswith(definitions.PERSONA) and "pip==" not in prompt, "nothing that a solution would import"
    other = task.model_copy(update={"metric_direction": m.MetricDirection.minimize, "evaluation_metric": "rmse"})
    none = {"cuda_available": False, "gpu_count": 0, "gpu_names": []}
    poor = build_system_prompt(other, dataclasses.replace(FACTS, gpu=none))
    share = ScriptShare(cores=1, memory_gb=3.5, network=False)
    gpu = {**FACTS.gpu, "gpu_memory": ["143771 MiB", "143771 MiB"]}
    facts = dataclasses.replace(FACTS, brief="- `x`: numbers 1 to 2", knowledge="## Traps", share=share, gpu=gpu)
    rich = build_system_prompt(task, facts)
    known = dataclasses.replace(share, weights=("org/name", "/models/a.pth"))
    weights = build_system_prompt(task, dataclasses.replace(FACTS, share=known))
    monkeypatch.setattr(definitions, "MAX_LISTED", 2)
    bare = build_system_prompt(task, dataclasses.replace(FACTS, python_version="", packages={}))
    text = "\n=====\n".join((prompt, poor, rich, weights, bare)).replace(str(Path(task.data_dir).resolve()), "/data")
    as_kept("sdk/system.txt", text)
    plain = [line for line in prompt.splitlines() if line]
    assert [line for line in rich.splitlines() if line in plain] == plain, "what is added stands in lines of its own"


@pytest.mark.req("REQ-OR-007")
def test_packages_are_announced_however_they_are_spelt_and_noise_is_not(task: m.TaskDescription) -> None:
    wanted = ("category_encoders", "huggingface_hub", "lifelines", "my_own.models", "openpyxl", "Scikit_Learn")
    noise = ("claude-agent-sdk", "mypy_extensions", "pip", "pydantic_core", "pyseccomp", "pytest-xdist")
    facts = EnvironmentFacts(packages=dict.fromkeys((*wanted, *noise), "1.0"))
    assert build_system_prompt(task, facts).endswith("\n".join(f"{name}==1.0" for name in wanted))
    ours = EnvironmentFacts(packages=inspect_interpreter().packages)
    assert len(ours.packages) > 60
    assert {"numpy", "scikit-learn", "lightgbm"} <= {name for name, _ in ours.script_packages}
    assert sum(len(name) + len(version) + 3 for name, version in ours.script_packages) < 800


@pytest.mark.req("REQ-OR-054")
def test_an_old_sdk_is_refused_by_name_and_a_missing_one_only_when_needed(tmp_path: Path, monkeypatch: Patch) -> None:
    for old in ("0.1.38", "0.2.9", "0.2.181"):
        with pytest.raises(ImportError, match=f"{old} is too old, {credentials.MINIMUM_VERSION} or later is needed"):
            credentials.check_sdk_version(old)
    for fine in (credentials.MINIMUM_VERSION, "0.2.182.post1", "0.3.0", "1.0", None):
        credentials.check_sdk_version(fine)
    assert credentials.installed_sdk_version() is not None
    credentials.require_sdk()
    with monkeypatch.context() as nothing, pytest.raises(ImportError, match=r"agents need .* not installed: pip"):
        nothing.setattr(sys, "path", [])
        credentials.require_sdk()
    files = {"METADATA": "Metadata-Version: 2.1\nName: claude-agent-sdk\nVersion: 0.1.38\n"}
    write_texts(tmp_path / "claude_agent_sdk-0.1.38.dist-info", files)
    command = [sys.executable, "-c", "import mle_star.models; print('models'); import mle_star.orchestrator"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stdout) == (1, "models\n")
    assert "ImportError: claude-agent-sdk 0.1.38 is too old" in ended.stderr


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login of whoever runs the tests must not count."""
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_model_is_called_and_no_credential_shown(tmp_path: Path, capsys: Captured, monkeypatch: Patch) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("model: offline\n", encoding="utf-8")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-very-secret")
    assert main(["doctor", "--config", str(settings), "--call"]) == 0
    shown = capsys.readouterr().out
    for words in ("ML packages", "GPUs", "script sandbox", "offline answered in", "$0.0000", "found: API key (ANTHROP"):
        assert words in shown and "very-secret" not in shown
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    assert main(["doctor", "--call"]) == 1
    out, err = capsys.readouterr()
    assert "ANTHROPIC_API_KEY" in out and "very-secret" not in out + err
    assert "the service cannot be reached" in out and "Traceback" not in err


def test_every_problem_comes_with_a_remedy_and_another_cli_will_do(tmp_path: Path, monkeypatch: Patch) -> None:
    venv.create(tmp_path / "empty")
    empty, lines = tmp_path / "empty" / "bin" / "python", list[str]()
    for python, model in ((str(empty), "sonnet"), ("/bin/false", "offline")):
        findings = list(diagnose(PipelineConfig(python=python, model=model)))
        assert all(finding.remedy for finding in findings if finding.state != "ok")
        lines += [": ".join(finding) for finding in findings if finding.topic not in ("GPUs", "script sandbox")]
    as_kept("sdk/doctor.txt", re.sub(r"(?<=[ (`])(/\w[^ ,]*|\d[\w.]*)", "…", "\n".join(lines)))
    monkeypatch.setattr(sys.modules["claude_agent_sdk"].__spec__, "submodule_search_locations", [])
    (tmp_path / "claude").touch(0o755)
    for path, state in ((str(tmp_path), "note"), ("", "problem")):
        monkeypatch.setenv("PATH", path)
        assert [one.state for one in _sdk()] == ["ok", state]


async def test_a_server_that_knows_less_is_no_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("small-model: [1000, 2000]\n", encoding="utf-8")
    brain = ScriptedBrain(BrainReply(text='[{"code_block": "x", "plan": "y"}]', input_tokens=1000, output_tokens=500))
    async with MessagesServer(brain) as server:
        config = PipelineConfig(model="small-model", base_url=server.base_url, prices_file=str(prices))
        text, structured, tools = await _calls(config)
    assert (text.state, structured.state, tools.state) == ("ok", "ok", "note")
    assert "1000 + 500 tokens, $2.0000" in text.text, "by the prices of the file"
    assert "overlooks the one for structured replies" in tools.text and "tool_use=none" in tools.remedy
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    async with MessagesServer(ScriptedBrain(BrainReply(text="no", stop_reason="refusal"))) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url)
        (finding,) = await _calls(PipelineConfig())
    assert finding.remedy == "the model declined a harmless question: choose another one with --model"
    assert set(_REMEDIES) == set(get_args(AgentFailure))
