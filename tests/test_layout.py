"""The folders show the architecture, every fact has one place, words are plain, requirements are named by tests, which
have a fence: no credential, no connection that leaves the machine, no deaf children, and lasting names.
"""

import ast
import functools
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import yaml
from tools import mutate, trace

import mle_star
from mle_star import errors, models
from mle_star.models import PRESETS, PipelineConfig
from mle_star.models.enums import PHASES
from mle_star.run.events import ScriptFinished
from mle_star.run.ledger import ScriptRun
from tests.conftest import KEPT, SECRET

PACKAGE = Path(mle_star.__file__).parent
ROOT = Path(__file__).parents[1]
PLACED = """
__init__ __main__ api config errors finalization orchestrator phase1 phase2_inner phase2_outer phase3 safety seccomp
"""
"""The last one filters system calls of scripts and of the agents' shell, two rooms that do not know each other."""


@functools.cache
def nodes() -> list[tuple[str, ast.AST]]:
    """All that every module consists of, with its path in the package."""
    parsed = ((path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_bytes())) for path in PACKAGE.rglob("*.py"))
    return [(path, node) for path, tree in parsed for node in ast.walk(tree)]


def test_every_module_but_the_api_and_those_that_the_specification_places_is_in_a_room() -> None:
    assert sorted(path.stem for path in PACKAGE.glob("*.py")) == PLACED.split()
    rooms = {name.partition("/")[0] for name, _ in nodes() if "/" in name}
    assert [room for room in rooms if not (PACKAGE / room / "__init__.py").exists()] == []


def test_one_module_knows_what_the_model_offline_means_and_no_two_classes_have_the_same_name() -> None:
    own = ("offline", "mle-star-offline")
    spelt = [path for path, node in nodes() if isinstance(node, ast.Constant) and node.value in own]
    # the engineer says its own name, as any server does that is reached over HTTP alone
    assert sorted(spelt) == ["engineer/server.py", "models/enums.py", "models/enums.py"]
    bodies = [node.body for _, node in nodes() if isinstance(node, ast.Module)]
    names = Counter(node.name for body in bodies for node in body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []


def test_an_outcome_of_a_script_passes_through_three_types() -> None:
    assert issubclass(ScriptRun, ScriptFinished) and issubclass(models.EvaluationResult, models.ExecutionRawResult)
    classes = [node for _, node in nodes() if isinstance(node, ast.ClassDef)]
    fields = [(one.name, ast.unparse(part)) for one in classes for part in one.body if isinstance(part, ast.AnnAssign)]
    holding = {name for name, text in fields if re.match(r"(exit_code|stderr|is_error):|.*\bEvaluationResult\b", text)}
    assert holding == {"ExecutionRawResult", "EvaluationResult", "ScriptFinished"}


def tables_of(names: set[str]) -> set[str]:
    """The modules with a literal table or list that has three of these names or more, as texts or as members."""
    found = set()
    for path, node in nodes():
        inside = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        parts = [part for one in inside if one for part in (one, *getattr(one, "elts", [])[:1])]
        texts = {str(getattr(part, "value", "")) for part in parts if isinstance(part, ast.Constant)}
        members = {part.attr for part in parts if isinstance(part, ast.Attribute)}
        if len((texts | members) & names) >= 3:
            found.add(path)
    return found


def test_agents_and_phases_are_declared_once() -> None:
    # The engineer is reached over HTTP and has an answer for each agent.
    assert tables_of({agent.value for agent in models.AgentType}) == {"engineer/brain.py"}
    # Formulas of a forecast, words of a verdict, the lineage by phase, and how often leaks are looked for.
    kept = {"run/timing.py", "views/verdict.py", "search/final_result.py", "agents/leakage/__init__.py"}
    assert tables_of({phase.name for phase in PHASES}) == {"models/enums.py", *kept}
    assert set(models.PhaseTimeBudget.model_fields) == {phase.name for phase in PHASES}


def public_names(module: object) -> set[str]:
    """What a module defines itself and does not hide."""
    name = getattr(module, "__name__", "")
    return {key for key, value in vars(module).items() if key[0] != "_" and getattr(value, "__module__", "") == name}


@pytest.mark.req("REQ-DM-046")
def test_the_first_page_has_what_most_people_need_and_every_name_of_models_and_errors_is_an_attribute() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    page = reference.partition("## Python\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `mle_star\.(\w+)", page, re.MULTILINE) == mle_star.__all__ == dir(mle_star)
    for module in (models, errors):
        for name in public_names(module):
            assert getattr(mle_star, name) is getattr(module, name)
    assert {"PromptTemplate", "EnsembleAttempt"} <= public_names(models)
    others = "AgentType PhaseTimeBudget PipelineState PromptRegistry SCORE_PATTERN ToolProfile Frozen"
    assert [name for name in others.split() if not hasattr(mle_star, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'run_pipelin'"):
        _ = getattr(mle_star, "run_pipelin")  # noqa: B009


IMPORTS = {
    "all names without the SDK": "sys.modules['claude_agent_sdk'] = None; from mle_star import *; run_pipeline",
    "minds for tests without a test library": "sys.modules['pytest'] = None; from mle_star.testing import *",
    "no numbers": "import mle_star.orchestrator; assert not {'numpy', 'pandas', 'pyarrow', 'scipy'} & {*sys.modules}",
    "an agent, first of all": "import mle_star.agents.coder",
    "nothing else": "import mle_star; assert not [n for n in sys.modules if n.startswith(('mle_star.', 'pydantic'))]",
}


@pytest.mark.req("REQ-DM-046")
@pytest.mark.parametrize("what", IMPORTS)
def test_importing_needs_no_more_than_it_must(what: str) -> None:
    words = [sys.executable, "-c", f"import sys; {IMPORTS[what]}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")


FOLDERS = ("src", "docs", "tools", "benchmarks", "examples")
TEXTS = [
    *(path for end in ("py", "md", "j2", "js") for folder in FOLDERS for path in (ROOT / folder).rglob(f"*.{end}")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")),
    ROOT / "mkdocs.yml",
]
INSTEAD = {
    r"promise[sd]?": "expected score",
    r"exams?": "hold-out",
    r"judg(?:e[sd]?|ing|e?ments?)": "scorer, scored",
    r"doubts?": "problem",
    r"banks?|bank_name": "predictions, predictions_file",
    r"finalists?": "shortlist",
    r"final picks?": "final selection",
    r"walls?(?![- _]?(?:clock|seconds))": "sandbox",
    r"worlds? of (?:its|their) own": "namespaces and seccomp",
    r"first contact": "smoke test",
    r"leanings?": "importance",
    r"abreast": "concurrently",
    r"errands?": "cancellable task",
    r"somebody's whole life": "home directories",
    r"lest": "so that ... not",
    r"twins?": "parallel paths that differ",
    r"(?:a|the) model (?:that )?stays": "the fitted model",
    r"mend(?:s|ed|ing|able)?": "fix",
    r"puts? aside": "saved",
    r"hand(?:s|ed|ing)? (?:it |them |that )?over": "submitted, or final solution",
}
OF_THE_SPECIFICATION = (r"promise[sd]?", r"judg(?:e[sd]?|ing|e?ments?)")
"""Prompts follow its words."""


def test_old_words_for_things_are_gone() -> None:
    patterns = {word: re.compile(rf"\b(?:{word})\b", re.IGNORECASE) for word in INSTEAD}
    any_of, found = re.compile("|".join(rf"\b(?:{word})\b" for word in INSTEAD), re.IGNORECASE), []
    for path in TEXTS:
        place = path.relative_to(ROOT).as_posix()
        allowed = OF_THE_SPECIFICATION if place.startswith("src/mle_star/agents/") else ()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            words = [word for word in INSTEAD if patterns[word].search(line)] if any_of.search(line) else []
            found += [f"{place}:{number}: say `{INSTEAD[word]}`: {line}" for word in words if word not in allowed]
    assert found == []


def names_in(code: CodeType) -> set[str]:
    inside = [names_in(one) for one in code.co_consts if isinstance(one, CodeType)]
    return {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}.union(*inside)


VERBS = r"told|said|asked"
"""A prompt's context, a script's output, a request: what is told, said or asked is a thing."""
OLD = r"promise[sd]?|exams?|judge[sd]?|doubts?|banks?|finalists?|walls?|gaps?|contact|leanings?|again|abreast|errands?"
OTHER_SENSE = {
    "src/mle_star/run/budget.py": "gap",  # between two events
    "src/mle_star/method/excerpts.py": "gap _with_gaps",  # lines of a script that are left out
    "src/mle_star/engineer/parts/columns.py": "gaps add_gaps",  # as scripts and recorded plans call the step
    "src/mle_star/orchestrator.py": "_look_again",  # what is done, not a thing
    "src/mle_star/method/codeblocks.py": "_opened_again",
}


def test_old_words_and_verbs_are_no_names() -> None:
    found = []
    for path in (path for place in ("tests", *FOLDERS) for path in (ROOT / place).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        words = VERBS if place.startswith("tests/") else rf"{VERBS}|{OLD}|ears?|brakes?|mend(?:s|ed)?|lest|twins?"
        names = names_in(compile(path.read_bytes(), path, "exec")) - {*OTHER_SENSE.get(place, "").split()}
        old = [name for name in names if any(re.fullmatch(words, one) for one in name.lower().split("_"))]
        found += [(place, name) for name in old if name[:5] != "test_"]
    assert found == []


def test_every_requirement_is_named_by_a_test_and_no_other_id_is_and_the_table_in_the_docs_is_current() -> None:
    counts = {"DM": 50, "EX": 47, "SF": 46, "P1": 45, "P2O": 44, "P2I": 50, "P3": 49, "FN": 48, "OR": 57}
    expected = [f"REQ-{key}-{number:03}" for key, count in counts.items() for number in range(1, count + 1)]
    assert list(trace.requirements()) == expected and len(expected) == 436
    departed = trace.departures(trace.DEVIATIONS.read_text(encoding="utf-8"))
    proofs = trace.collect(trace.ROOT / "tests")
    assert trace.problems(proofs, departed) == []
    assert trace.TABLE.read_text(encoding="utf-8") == trace.table(proofs, departed), "run `make trace`"
    beyond = f"REQ-DM-{51:03}"  # put together, so that nobody counts it among those that tests name
    assert trace.problems({}, {beyond: [f"{beyond}: one too many"]})[-1].startswith(f"{beyond} is no requirement")


REASONS = {"SDK", "machine", "safety"}
ABOUT_THE_SOURCE = {"REQ-DM-045", "REQ-EX-040", "REQ-OR-055"}
"""No setting says how the code is divided into files."""
MOST_THAT_REMAIN = 30


def test_every_deviation_is_restored_by_the_preset_letter_or_says_what_forbids_it() -> None:
    text = trace.DEVIATIONS.read_text(encoding="utf-8")
    departed, preset, remaining = trace.departures(text), PipelineConfig(preset="letter"), set()
    assert not re.search(r"^## .*REQ-", text, re.MULTILINE), "entries are headings of the third level"
    entries = {trace.anchor(heading): heading for heading in re.findall(r"^### (.+)$", text, re.MULTILINE)}
    rows = re.findall(r"^\| \[(.+?)\]\(#(\S+)\) \| (.+) \|$", text, re.MULTILINE)
    assert [link for _, link, _ in rows] == list(entries), "a row for each entry, in their order"
    for title, link, cell in rows:
        names, _, about = entries[link].partition(": ")
        identifiers = set(names.split(", "))
        assert title == about and identifiers <= set(trace.requirements()) & set(departed)
        settings = [yaml.safe_load(pair) for pair in re.findall(r"`(.+?)`", cell)]
        reason, _, why = cell.partition(": ")
        if not settings:
            assert why and reason in (REASONS | {"source"} if identifiers <= ABOUT_THE_SOURCE else REASONS), cell
            remaining |= identifiers
        for name, value in (item for pair in settings for item in pair.items()):
            wanted = "off" if value is False and name == "sample_first" else value  # what YAML makes of it
            assert getattr(preset, name) == getattr(PipelineConfig(**{name: wanted}), name), cell
    assert len(remaining) <= MOST_THAT_REMAIN
    restored = {name for _, _, cell in rows for name in re.findall(r"`(\w+):", cell)}
    assert restored == set(PRESETS["letter"]) - {"agents"}, "the preset sets nothing without a deviation that needs it"


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "example.org"])
def test_a_connection_that_is_not_loopback_is_refused(host: str) -> None:
    with pytest.raises(PermissionError, match="this machine only"):
        socket.create_connection((host, 80), timeout=1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, pytest.raises(PermissionError):
        sender.sendto(b"x", ("192.0.2.1", 9))


def output_of(*words: str, **options: Any) -> str:
    """What another Python prints that runs this where the tests are."""
    printed: bytes = subprocess.check_output([sys.executable, *words], cwd=Path(__file__).parents[1], **options)
    return printed.decode()


def test_credentials_are_stripped_and_children_hear_ctrl_c_although_the_tests_were_started_in_the_background() -> None:
    secrets = ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "https_proxy")
    env = {**os.environ, **dict.fromkeys(secrets, "x")}
    seen = output_of("-c", "import os, tests.conftest; print(sorted(os.environ))", env=env)
    assert not [name for name in secrets if name in seen]
    assert not [name for name in os.environ if SECRET.match(name) and name not in KEPT]
    child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    code = f"import subprocess, sys, tests.conftest; subprocess.run([sys.executable, '-c', {child!r}])"
    deaf: dict[str, Any] = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}  # `nohup make test &`
    assert [output_of("-c", words, **deaf) for words in (child, code)] == ["False\n", "True\n"]


@pytest.mark.long
def test_names_of_tests_hold_no_time_hash_address_or_folder(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Workers agree on them, and a failure can be run again: another process finds them later, with other hashes."""
    env = {**os.environ, "PYTHONHASHSEED": "1", "TMPDIR": str(tmp_path)}
    env.pop("PYTEST_XDIST_WORKER", None)
    words = "-m pytest --collect-only -q -p no:cacheprovider -p no:xdist"
    names = [line for line in output_of(*words.split(), env=env, timeout=900).splitlines() if "::" in line]
    assert len(names) > 2500 and len(set(names)) == len(names)
    named = [name for tests in mutate.TESTS.values() for name in tests]
    assert [name for name in named if not any(known.startswith(name) for known in names)] == []
    assert not {item.nodeid for item in request.session.items} - set(names)
