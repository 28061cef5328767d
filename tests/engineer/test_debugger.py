"""The engineer as debugger: scripts with a planted fault run again after at most three repairs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mle_star.engineer.brain import EngineerBrain
from mle_star.engineer.rules.repairs.size import with_fewer_words
from mle_star.engineer.wire import BrainRequest
from mle_star.execution import debug_text
from mle_star.method.codeblocks import extract_code_block
from mle_star.models import AgentType
from mle_star.prompts import render
from tests.engineer.broken_scripts import BROKEN
from tests.engineer.conftest import Run
from tests.engineer.shop import write_shop

REPAIRS = 3
FIRST_OF_KIND = {kind: name for name, kind, _ in reversed(BROKEN)}.values()
# One of every kind and every third one in a quick run; `make soak` takes them all.
PLANTED = [
    case
    for number, case in enumerate(BROKEN)
    if os.environ.get("MLE_STAR_SOAK") or case[0] in FIRST_OF_KIND or number % 3 == 0
]


@pytest.mark.parametrize(("name", "kind", "code"), PLANTED, ids=[name for name, _, _ in PLANTED])
async def test_a_broken_script_runs_after_at_most_three_repairs(
    name: str, kind: str, code: str, tmp_path: Path, run_script: Run
) -> None:
    system, brain = write_shop(tmp_path / "input"), EngineerBrain()
    result = await run_script(code)
    assert result.is_error, f"{name} ({kind}) is not broken"
    for _ in range(REPAIRS):
        prompt = render(AgentType.debugger, code=code, bug=debug_text(result))
        reply = await brain.reply(BrainRequest("debugger", None, system, prompt))
        repaired = extract_code_block(reply.text or "")
        code, result = repaired, await run_script(repaired)
        if not result.is_error:
            break
    assert not result.is_error, result.error_traceback
    assert result.score is not None


@pytest.mark.parametrize(
    ("call", "mended"),
    [
        ("TfidfVectorizer(ngram_range=(1, 2), max_features=9)", "TfidfVectorizer(ngram_range=(1, 2), max_features=9)"),
        ("TfidfVectorizer(ngram_range=(1, 2))", "TfidfVectorizer(max_features=20000, ngram_range=(1, 2))"),
        ("text.CountVectorizer()", "text.CountVectorizer(max_features=20000)"),
        ("CountVectorizer(vocabulary=words)", "CountVectorizer(vocabulary=words)"),
    ],
)
def test_a_vocabulary_is_bounded_once_whatever_its_arguments_hold(call: str, mended: str) -> None:
    assert with_fewer_words(f"é = 1\nvectorizer = {call}\n") == f"é = 1\nvectorizer = {mended}\n"
