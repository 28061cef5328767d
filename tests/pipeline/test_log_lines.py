"""What the log says where much goes wrong; what it says of each phase is kept with the tests of the phase."""

import logging
import re
from pathlib import Path

import pytest

from mle_star.run.log_lines import log_event
from tests.conftest import Logs, as_kept
from tests.method.replies import NO_LEAKAGE, leaky
from tests.pipeline.conftest import QuickRun, settings
from tests.pipeline.mind import Mind, MindAgents, broken, fenced, model_of, script
from tests.views.journals import HAPPENED

ROUGH = Path(__file__).with_name("log_lines.txt").read_text(encoding="utf-8")
"""Each a requirement and a pattern of a whole line of the log, where PATH stands for the first step of a path."""
ROUGH_MIND = Mind(
    overrides={
        "init": lambda text: Mind().answer("init", None, text) if model_of(text) else fenced(broken("model 0")),
        "debugger": "I cannot.",
        "data": fenced(script(0.53, note="revised")),
        "leakage-detection": lambda text: leaky("level = 0.5300") if "level = 0.5300" in text else NO_LEAKAGE,
        "leakage-correction": fenced("level = 0.5301"),
        **{agent: fenced(broken(agent)) for agent in ("ablation", "ensembler", "test")},
    }
)


@pytest.mark.req("REQ-P1-021", "REQ-EX-039", "REQ-SF-041", "REQ-P2O-037", "REQ-P2I-043", "REQ-P3-026", "REQ-FN-042")
@pytest.mark.req("REQ-FN-025", "REQ-P1-038", "REQ-P3-039")
async def test_the_log_says_what_it_must(quick: QuickRun, caplog: Logs) -> None:
    await quick(settings(M=3, log_level="DEBUG", scoring="self_reported", diversity=()), agents=MindAgents(ROUGH_MIND))
    log = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    patterns = [row.split(" ", 1)[1] for row in ROUGH.replace("PATH", "phase2/path-0/t-0").strip().splitlines()]
    missing = [row for row in patterns if not any(re.fullmatch(row, line, re.DOTALL) for line in log)]
    assert not missing, "\n".join([*missing, "is not in:", *(line.partition("\n")[0] for line in log)])


def test_the_rest_of_the_table(caplog: Logs) -> None:
    caplog.set_level(logging.INFO, "mle_star")
    for event in HAPPENED:
        log_event(event)
    lines = [f"{record.levelname} {record.name}: {record.getMessage()}" for record in caplog.records]
    as_kept("pipeline/log_lines.txt", "\n".join(lines))
