"""What the log says where much goes wrong; what it says of each phase is kept with the tests of the phase."""

import logging
import re

import pytest

from mle_star.run.log_lines import log_event
from tests.conftest import Logs, as_kept
from tests.method.replies import NO_LEAKAGE, leaky
from tests.pipeline.conftest import QuickRun, settings
from tests.pipeline.mind import Mind, MindAgents, broken, fenced, model_of, script
from tests.views.journals import HAPPENED

ROUGH = r"""
REQ-P1-038 INFO phase start: sizes, M 3
REQ-P1-038 INFO phase1: retrieval done: 3 models: model 0, model 1, model 2
REQ-P1-038 INFO phase1/candidate-1/init: starts: .*model_name 'model 1', .*
REQ-P1-038 INFO phase1/candidate-1/init: complete: code of \d+ characters, .*
REQ-P1-038 INFO phase1/candidate-0: evaluation done: model 0, failed
REQ-P1-038 INFO ranked: model 2 0.52, model 1 0.51
REQ-P1-038 INFO merge start: index 1, base score 0.52, reference model 1
REQ-P1-038 INFO phase1/merge-1: merge result: index 1, base score 0.52, reference model 1, score 0.525, accepted
REQ-P1-038 INFO phase end: score 0.5301, \d+\.\d s, 1 merges done
REQ-P1-021 WARNING phase1/candidate-0: candidate skipped: model 0: RuntimeError: broken
REQ-EX-039 DEBUG script written: \S+/solution.py, \d+ characters
REQ-EX-039 INFO phase1/candidate-0/script: run starts: \S+/candidate-0/solution.py, \d+ .*, at most \d+ s
REQ-EX-039 INFO phase1/candidate-0/script: run ended: exit code 1 after \d\.\d\d s, score failed, .* written: no
REQ-EX-039 WARNING phase1/candidate-0/script: error: exit code 1, Traceback .*: RuntimeError: broken
REQ-EX-039 INFO retry 1 of 1
REQ-SF-041 INFO phase1/data-use: data check result: modified: yes, score 0.5301
REQ-SF-041 INFO phase1/data-use/leakage-correction: starts: code of \d+ characters, flagged_block 'level = 0.5300'
REQ-SF-041 INFO phase1/data-use/leakage-detection: leakage check complete: found: yes, corrected: 1 of 1
REQ-P2O-037 INFO PATH/ablation-script: run ended: exit code 1 after \d.*, output of \d+ characters, file written: no
REQ-P2O-037 WARNING PATH: ablation study failed
REQ-P2I-043 DEBUG PATH/k-1: code block: 14 characters became 14
REQ-P2I-043 INFO PATH/k-0/script: run ended: exit code 0 after \d\.\d\d s, score 0.5\d+, is_error: no, .* written: yes
REQ-P3-039 INFO Phase 3 starts: L 2, R 2, sizes
REQ-P3-039 INFO phase3/r-1/ens_planner: starts: .*, 1 plans, 1 scores, .*
REQ-P3-039 INFO phase3/r-1/ens_planner: complete: 20 characters: 'average them, idea 1', .*
REQ-P3-039 INFO phase3/r-0/ensembler: starts: .*, plan 'average them, idea 0', .*
REQ-P3-039 INFO phase3/r-0/ensembler: complete: code of \d+ characters, .*
REQ-P3-039 WARNING r=0: round failed: RuntimeError: broken; plan 'average them, idea 0'
REQ-P3-039 INFO Phase 3 complete: best score 0.5421, best round None, \d+\.\d s, 2 rounds
REQ-P3-026 WARNING Phase 3 ensemble: all 2 attempts failed; falling back to best input solution \(score 0.5\d+\)
REQ-FN-042 WARNING repair: attempt 1 of 1, RuntimeError: broken
REQ-FN-042 WARNING fallback: no submission by a script of its own: RuntimeError: broken; .*; phase .*, score 0.5\d+
REQ-FN-042 INFO contamination skipped: no references
REQ-FN-025 WARNING run: .*no submission by a script of its own: RuntimeError: broken; the submission is .* score 0.5\d+
"""
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
