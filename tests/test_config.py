"""Settings: where they come from, which one wins, and what is said when one is wrong."""

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mle_star import AgentType, ConfigError, PhaseTimeBudget, PipelineConfig, RoleSettings
from mle_star.config import close_logging, effective_config, load_config, parse_assignments, setup_logging
from mle_star.data.place import read_mapping
from tests.conftest import as_kept

TEXTS = (
    "model=opus executor=ray://there:10001 permission_mode=plan tool_profile=full client_reuse=clear tool_use=none "
    "scoring=self_reported base_url=http://127.0.0.1:1 prices_file=prices.yaml preset=best leakage_checks=promising "
    "sample_first=off knowledge=notes work_dir=elsewhere log_file=run.log python=/usr/bin/python3"
)
PLANNER = RoleSettings(model="opus", effort="high")
ROLES = {AgentType.planner: PLANNER, AgentType.summarize: RoleSettings(thinking="disabled")}
WHILE_TIME_LASTS = {"more_steps": True, "leakage_checks": "promising"}
SHARES = {"phase1": 0.2, "phase2": 0.5, "phase3": 0.2, "finalization": 0.1}
SAMPLES: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(PipelineConfig.model_fields, ("7", 7)),  # most are whole numbers
    **{name: (text, text) for name, text in (words.split("=") for words in TEXTS.split())},
    **dict.fromkeys(("shared_data", "allow_network", "allow_outside_links"), ("yes", True)),
    **dict.fromkeys(("require_sandbox", "task_in_prompts", "letter", "more_steps"), ("on", True)),
    "use_cache": ("0", False),
    "keep_work": ("0", False),
    "prefer_best_input": ("false", False),
    "score_views": ("2", 2),
    **dict.fromkeys(("script_memory_gb", "script_disk_gb", "max_budget_usd"), ("1.5", 1.5)),
    **dict.fromkeys(("script_gpus", "equivalence_bound"), ("0.25", 0.25)),
    "phase_time_budget": (str(SHARES), PhaseTimeBudget(**SHARES)),
    "agents": ("{planner: {model: opus, effort: high}, summarize: {thinking: disabled}}", ROLES),
    "briefing": ("[data, memory]", ("data", "memory")),
    "diversity": ("[]", ()),
    **dict.fromkeys(("model_caches", "reference_files", "blocked_commands"), ("[/a b.md, c]", ("/a b.md", "c"))),
    "log_level": ("debug", "DEBUG"),
    "split": ("time", "time"),
    **dict.fromkeys(("time_column", "group"), ("none", "none")),
}


@pytest.mark.req("REQ-OR-045", "REQ-OR-046", "REQ-DM-003")
@pytest.mark.parametrize("name", PipelineConfig.model_fields)
def test_every_setting_can_be_given_on_its_own_by_variable_and_by_assignment_and_survives_json(name: str) -> None:
    text, value = SAMPLES[name]
    from_variable = load_config(environ={f"MLE_STAR_{name.upper()}": text})
    from_assignment = load_config(parse_assignments([f"{name}={text}"]), environ={})
    follows = WHILE_TIME_LASTS if name == "time_limit_seconds" else {}
    assert from_variable == from_assignment == PipelineConfig(**{name: value, **follows})
    assert getattr(from_variable, name) == value != getattr(PipelineConfig(), name)
    assert PipelineConfig.model_validate_json(from_variable.model_dump_json()) == from_variable


CHOSEN = """
/ SEED= SOAK=1; / MODEL=opus LOG_LEVEL=DEBUG; / MAX_BUDGET=12.5 TIME_LIMIT=3600; / MAX_BUDGET=1 MAX_BUDGET_USD=2;
/ MAX_BUDGET_USD=2 MAX_BUDGET=1; model: sonnet / MODEL=opus SEED=7; max_budget_usd: 2 / MAX_BUDGET=9;
time_limit_seconds: 60 / TIME_LIMIT=99; max_budget_usd: null / MAX_BUDGET=3; seed: 3 / SEED=none-of-your-business
"""
"""What is said, if only that the default is wanted, and variables: the specification's name of a limit wins."""


@pytest.mark.req("REQ-OR-044", "REQ-OR-046")
def test_the_environment_replaces_only_defaults() -> None:
    lines = []
    for row in CHOSEN.replace("\n", " ").split(";"):
        given, environ = row.split("/")
        chosen = yaml.safe_load(f"{{{given}}}")
        variables = {f"MLE_STAR_{name}": text for name, text in (pair.split("=") for pair in environ.split())}
        config = PipelineConfig(**chosen)
        found = effective_config(config, variables), load_config(chosen, environ={**variables, "SEED": "9"})
        assert config == PipelineConfig(**chosen)
        lines.append(f"{row.strip()} => {', '.join(str(one.model_dump(exclude_unset=True)) for one in found)}")
    as_kept("environment.txt", "\n".join(lines))


LIMITED = """
time_limit_seconds: 60; time_limit_seconds: 60, preset: best; time_limit_seconds: 60, preset: letter;
time_limit_seconds: 60, model: offline; time_limit_seconds: 60, outer_loop_steps: 4; / time_limit_seconds: 60;
time_limit_seconds: 60, more_steps: false; time_limit_seconds: 60 / model: offline; seed: 1 / more_steps: true;
time_limit_seconds: 60 / outer_loop_steps: 3; outer_loop_steps: 6 / more_steps: true
"""
"""What is said, and after a stroke what an earlier run had."""


def test_where_a_time_limit_is_given_and_t_is_not_a_run_goes_on() -> None:
    lines = []
    for row in LIMITED.replace("\n", " ").split(";"):
        given, base = ({**yaml.safe_load(f"{{{part}}}")} for part in f"{row}/".split("/")[:2])
        config = load_config(given, environ={}, base=PipelineConfig(**base) if base else None)
        lines.append(f"{row.strip()} => {config.more_steps}, {config.leakage_checks}")
    as_kept("more_steps.txt", "\n".join(lines))


def test_a_preset_yields_to_the_environment_that_to_the_file_and_that_to_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLE_STAR_SEED", "5")
    assert (load_config().seed, effective_config(PipelineConfig()).seed, load_config(environ={}).seed) == (5, 5, 42)
    file = tmp_path / "run.yaml"
    file.write_text(f"seed: 2\nmodel: haiku\nmax_budget_usd: 4\npreset: quick\nphase_time_budget: {SHARES}\n")
    words = "MLE_STAR_SEED=1 MLE_STAR_MODEL=opus MLE_STAR_TIME_LIMIT=5 MLE_STAR_INNER_LOOP_STEPS=7"
    explicit = parse_assignments(["max_budget_usd=none", "outer_loop_steps=3", "agents.leakage.effort=high"])
    config = load_config({"seed": 3, **explicit}, file, dict(pair.split("=") for pair in words.split()))
    assert (config.seed, config.model, config.time_limit_seconds, config.max_budget_usd) == (3, "haiku", 5, None)
    assert config.phase_time_budget == PhaseTimeBudget(**SHARES)
    assert (config.num_retrieved_models, config.outer_loop_steps, config.inner_loop_steps) == (2, 3, 7)
    assert (config.role(AgentType.leakage).effort, config.role(AgentType.summarize).effort) == ("high", "low")
    assert (config.leakage_checks, PipelineConfig().leakage_checks) == ("promising", "all")


@pytest.mark.parametrize("preset", [None, "quick", "best"])
@pytest.mark.parametrize("name", PipelineConfig.model_fields)
def test_all_settings_of_an_earlier_run_stand_where_nothing_is_said_anew(name: str, preset: str | None) -> None:
    for value in (SAMPLES[name][1], getattr(PipelineConfig(), name)):
        base = PipelineConfig(**{"preset": preset, name: value})
        assert load_config(environ={}, base=base) == base


def test_an_earlier_run_yields_to_file_and_arguments_and_its_roles_join_theirs(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("seed: 3\nagents: {leakage: {effort: low}, planner: {thinking: disabled}}\n", encoding="utf-8")
    base = PipelineConfig(
        seed=1, model="haiku", time_limit_seconds=60, inner_loop_steps=2,
        agents={AgentType.planner: RoleSettings(model="opus"), AgentType.coder: RoleSettings(model="haiku")},
    )  # fmt: skip
    explicit = parse_assignments(["agents.planner.effort=high", "agents.coder.effort=max", "time_limit_seconds=90"])
    variables = {"MLE_STAR_SEED": "2", "MLE_STAR_MODEL": "opus", "MLE_STAR_MAX_BUDGET": "5", "MLE_STAR_PRESET": "best"}
    config = load_config(explicit, file, variables, base=base)
    assert (config.seed, config.model, config.time_limit_seconds, config.inner_loop_steps) == (3, "haiku", 90, 2)
    assert (config.max_budget_usd, config.preset) == (5, None), "what the run had left open may be said by a variable"
    planner, coder = PLANNER.model_copy(update={"thinking": "disabled"}), RoleSettings(model="haiku", effort="max")
    roles = {AgentType.planner: planner, AgentType.coder: coder, AgentType.leakage: RoleSettings(effort="low")}
    assert config.agents == roles
    models = [config.role(agent).model for agent in (AgentType.planner, AgentType.coder, AgentType.leakage)]
    assert models == ["opus", "haiku", "haiku"]
    assert config.model_copy(update={"model": "offline"}).role(AgentType.planner).model == "offline"


def test_another_preset_replaces_the_sizes_of_an_earlier_run_and_no_role_that_it_had_set() -> None:
    coder = {AgentType.coder: RoleSettings(model="haiku")}
    sized = PipelineConfig(outer_loop_steps=9, inner_loop_steps=9, seed=1, agents=coder)
    quick = load_config({"preset": "quick"}, environ={}, base=sized)
    assert quick == PipelineConfig(preset="quick", seed=1, agents=coder)
    best = load_config({"preset": "best"}, environ={}, base=quick)
    assert best == PipelineConfig(preset="best", seed=1, agents=coder)
    assert load_config({"preset": None}, environ={}, base=best) == PipelineConfig(seed=1, agents=coder)
    grown = PipelineConfig(preset="quick", outer_loop_steps=3)
    assert load_config({"preset": "quick"}, environ={}, base=grown) == grown


VARIABLES = """
TIME_LIMIT=soon; MAX_BUDGET=-3; MAX_BUDGET=nan; MAX_BUDGET=inf; LOG_LEVEL=loud; USE_CACHE=maybe; MODLE=sk-secret;
PHASE_TIME_BUDGET={phase1: 0.9
"""
FILES = (
    "outer_lop_steps: 3; zzz: 3; seed: -1\nmodel: [a]; script_gpus: -1; equivalence_bound: 2; seed: true; "
    "split: time\ngroup: a; seed: 1\nseed: 2; seed: [1; - seed; 3: 4; when: 2011-99-99; LONG; model: caf\xe9; "
    "agents: {poet: {model: opus}}; agents: {planner: {effort: some}}; agents: {planner: {model: offline}}; "
    "agents: {coder: {x: 1}}"
)


def test_a_bad_variable_or_file_is_refused_in_a_line_with_its_name_and_what_would_be_right(tmp_path: Path) -> None:
    """The value of a variable that is not known may be a secret."""
    lines, file = list[str](), tmp_path / "run.yaml"
    for pair in VARIABLES.replace("\n", " ").split(";"):
        name, _, text = pair.strip().partition("=")
        with pytest.raises(ConfigError) as refusal:
            effective_config(PipelineConfig(), {f"MLE_STAR_{name}": text})
        lines.append(str(refusal.value))
    for text in FILES.split("; "):
        file.write_text(text.replace("LONG", "[" * 5000), encoding="latin-1")
        with pytest.raises(ConfigError) as refusal:
            load_config(file=file, environ={})
        lines.append(str(refusal.value))
    assert not any("\n" in line for line in lines)
    text = re.sub(r"(?<=known are: )[^\n]*|(?<=recursion depth exceeded)[^)]*", "…", "\n".join(lines))
    as_kept("config.txt", text.replace(str(tmp_path), "…"))


def test_the_last_assignment_of_a_name_counts_and_a_bad_one_or_an_absent_file_is_refused(tmp_path: Path) -> None:
    for name, words in (("absent.yaml", "no such file"), ("", "cannot be read")):
        with pytest.raises(ConfigError, match=words):
            read_mapping(tmp_path / name)
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_mapping(tmp_path / "empty.yaml") == {}
    for wrong, words in (("seed", "NAME=VALUE"), ("sed=4", "did you mean seed"), ("seed=x", "seed='x'")):
        with pytest.raises(ConfigError, match=words):
            load_config(parse_assignments([wrong]), environ={})
    assert parse_assignments(["model=a=b", " seed = 4", "seed=5"]) == {"model": "a=b", "seed": "5"}


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_no_environment_gives_anything_but_settings_or_a_refusal(environ: dict[str, str]) -> None:
    prefixed = {f"MLE_STAR_{name}": value for name, value in environ.items()}
    try:
        assert isinstance(load_config(environ={**environ, **prefixed}), PipelineConfig)
    except ConfigError as error:
        assert "MLE_STAR_" in str(error)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Ours, as it was when the test is over."""
    yield (logger := logging.getLogger("mle_star"))
    close_logging()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


@pytest.mark.req("REQ-OR-047")
def test_the_log_goes_once_to_console_and_file_without_escape_codes(
    logger: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream, file, before = io.StringIO(), tmp_path / "run.log", list(logger.handlers)
    logger.addHandler(foreign := logging.NullHandler())
    file.write_text("earlier\n")
    setup_logging(PipelineConfig(log_file=str(file)), stream=stream)
    logging.getLogger("mle_star.phase1").info("=== Phase 1 ===")
    logger.debug("hidden")
    logging.getLogger("elsewhere").error("not ours")
    assert file.read_text() == "earlier\n" + stream.getvalue() and len(stream.getvalue().splitlines()) == 1
    assert re.match(r"20\d\d-\S+ \S+ INFO    mle_star.phase1: === Phase 1 ===\n", stream.getvalue())
    logger.propagate = False  # the report of a worker of pytest cannot carry what follows
    logging.getLogger("mle_star.execution").warning("said:\n\t%s", "\x1b]0;owned\x07\x1b[2J\x9b31m\rdone\u202e\udc80")
    assert file.read_text() == "earlier\n" + stream.getvalue()
    assert not set("\x1b\x07\x9b\r\u202e\udc80") & set(stream.getvalue())
    assert "said:\n\t\\x1b]0;owned" in stream.getvalue()
    for _ in range(3):
        setup_logging(PipelineConfig(log_level="DEBUG"), stream=stream)
    logger.debug("a prompt")
    assert stream.getvalue().count("a prompt") == 1, "a second run adds no second handler"
    close_logging()
    assert logger.handlers == [*before, foreign]
    logger.removeHandler(foreign)
    setup_logging(PipelineConfig(log_file=str(tmp_path / "new" / "folder" / "run.log")), console=False)
    assert (tmp_path / "new" / "folder" / "run.log").read_text() == ""
    logger.info("%d", "a mistake of ours")
    assert "a mistake of ours" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="log_file="):
        setup_logging(PipelineConfig(log_file=str(Path.cwd())))
