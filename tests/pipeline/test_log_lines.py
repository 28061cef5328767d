"""What the log says of a run, requirement by requirement: a run where all goes well, and one where much goes wrong."""

import logging
import re

import pytest

from mle_star.run.log_lines import log_event
from tests.conftest import as_kept
from tests.method.replies import NO_LEAKAGE, leaky
from tests.pipeline.conftest import CalmRun, QuickRun, settings
from tests.pipeline.mind import Answer, Mind, MindAgents, broken, extracted, fenced, levels, model_of, script
from tests.views.journals import HAPPENED

PATH = "phase2/path-0/t-0"
"""Of these rows, each a requirement and a pattern of a whole line of the log, PATH stands for this."""
SMOOTH = r"""
REQ-OR-047 INFO phase1: === Phase 1: Initial Solution Generation ===
REQ-OR-047 INFO phase2: === Phase 2: Refinement ===
REQ-OR-047 INFO phase3: === Phase 3: Ensemble ===
REQ-OR-047 INFO finalization: === Finalization: Submission ===
REQ-OR-047 DEBUG phase1/retriever: was asked:\n.*# Task description.*
REQ-OR-047 DEBUG phase1/retriever: replied:\n{"models": \[{"model_name": "model 0".*
REQ-P1-038 INFO phase start: sizes, M 3
REQ-P1-038 INFO phase1: retrieval done: 3 models: model 0, model 1, model 2
REQ-P1-038 INFO phase1/candidate-1/init: starts: .*model_name 'model 1', example_code .*, subsample_limit 30000
REQ-P1-038 INFO phase1/candidate-1/init: complete: code of \d+ characters, \d+\.\d s, 0.5000 USD
REQ-P1-038 INFO phase1/candidate-1: evaluation done: model 1, 0.51
REQ-P1-038 INFO ranked: model 2 0.52, model 1 0.51, model 0 0.5
REQ-P1-038 INFO merge start: index 1, base score 0.52, reference model 1
REQ-P1-038 INFO phase1/merge-1: merge result: index 1, base score 0.52, reference model 1, score 0.525, accepted
REQ-P1-038 INFO phase1/data-use/data: starts: .*initial_solution of \d+ characters, task_description of 74 characters
REQ-P1-038 INFO phase1/data-use: data check result: modified: no, score 0.53
REQ-P1-038 INFO phase1/leakage/leakage-detection: starts: code of \d+ characters
REQ-P1-038 INFO phase1/leakage/leakage-detection: leakage check complete: found: no, corrected: 0 of 0
REQ-P1-038 INFO phase end: score 0.53, \d{1,3}\.\d s, 2 merges done
REQ-P2O-037 INFO path-0 t=0: outer step 0 starts: h_best 0.53, 0 summaries
REQ-P2O-037 INFO PATH/ablation-script: run starts: \S+/path-0/solution.py, \d+ characters, at most 600 s
REQ-P2O-037 INFO PATH/ablation-script: run ended: exit code 0 after \d.*, output of \d+ characters, file written: no
REQ-P2O-037 INFO path-0 t=0: outer step 0 complete: h_best 0.54, \d{1,3}\.\d s
REQ-P2O-037 INFO path-0: outer loop complete: 1 steps, h_best 0.54, \d{1,3}\.\d s
REQ-P2I-043 INFO path-0 t=0: inner loop starts: block of 14 .*, plan 'raise .*, h_best 0.53, K 3
REQ-P2I-043 DEBUG PATH/k-1: code block: 14 characters became 14
REQ-P2I-043 INFO PATH/k-0/script: run starts: \S+, \d+ characters, at most \d+ s
REQ-P2I-043 INFO PATH/k-0/script: run ended: exit code 0 after \d\.\d\d s, score 0.54, is_error: no, .* written: yes
REQ-P2I-043 INFO path-0 t=0: inner loop complete: 3 attempts, \d evaluated, best score 0.5\d+, improved: yes
REQ-P3-039 INFO Phase 3 starts: L 2, R 2, sizes
REQ-P3-039 INFO phase3/r-1/ens_planner: starts: L 2, 2 solutions, 1 plans, 1 scores, 2 input_scores, 2 best
REQ-P3-039 INFO phase3/r-1/ens_planner: complete: 20 characters: 'average them, idea 1', \d+\.\d s, 0.5000 USD
REQ-P3-039 INFO phase3/r-1/ensembler: starts: L 2, 2 solutions, plan 'average them, idea 1', 2 input_scores, 2 best
REQ-P3-039 INFO phase3/r-1/ensembler: complete: code of \d+ characters, \d+\.\d s, 0.5000 USD
REQ-P3-039 INFO phase3/r-1/leakage-detection: leakage check complete: found: no, corrected: 0 of 0
REQ-P3-039 INFO phase3/r-1/script: run ended: exit code 0 after \d.*, score 0.5\d+, is_error: no, .*, file written: yes
REQ-P3-039 INFO Phase 3: best round 1, score 0.5\d+, 2 successful rounds
REQ-P3-039 INFO Phase 3 complete: best score 0.5\d+, best round 1, \d{1,3}\.\d s, 2 rounds
REQ-FN-042 INFO finalization start: phase ensemble, \d+ characters, sizes
REQ-FN-042 INFO finalization/test-subsampling_extract: starts: final_solution of \d+ characters
REQ-FN-042 INFO extraction result: found: no
REQ-FN-042 INFO finalization/test: starts: .*final_solution of \d+ characters
REQ-FN-042 INFO finalization/test: complete: code of \d+ characters, \d+\.\d s, 0.5000 USD
REQ-FN-042 INFO finalization/submission-script: run starts: \S+, \d+ characters, at most \d+ s
REQ-FN-042 INFO finalization/submission-script: run ended: exit code 0 after \d.*, is_error: no, .*, file written: yes
REQ-FN-042 INFO verification: exists True, \d+ bytes, \d+ rows
REQ-FN-030 INFO contamination start: 2 references
REQ-FN-032 INFO contamination result: 2 references, Novel, Novel, overall Novel
REQ-FN-042 INFO result built: phase final, path '\S+submission.csv', \d{1,3}\.\d s in total
REQ-OR-037 INFO run: cost: {"phase1_cost_usd": .*"total_cost_usd": 23.0}
REQ-OR-038 INFO run: duration: {"phase1_duration_seconds": \d.*, "total_duration_seconds": \d{1,3}\.\d+}
REQ-OR-039 INFO run: lineage: {"phase1": {"retrieved_models": .*}}
"""
ROUGH = r"""
REQ-P1-021 WARNING phase1/candidate-0: candidate skipped: model 0: RuntimeError: broken
REQ-EX-039 DEBUG script written: \S+/solution.py, \d+ characters
REQ-EX-039 INFO phase1/candidate-0/script: run starts: \S+/candidate-0/solution.py, \d+ .*, at most \d+ s
REQ-EX-039 INFO phase1/candidate-0/script: run ended: exit code 1 after \d\.\d\d s, score failed, .* written: no
REQ-EX-039 WARNING phase1/candidate-0/script: error: exit code 1, Traceback .*: RuntimeError: broken
REQ-EX-039 INFO retry 1 of 1
REQ-SF-041 INFO phase1/candidate-0/debugger: starts: code of \d+ characters, bug of \d+ characters
REQ-SF-041 INFO phase1/candidate-0/debugger: debug end: RuntimeError: broken: no code in the reply
REQ-SF-041 WARNING candidate-0: parse failure: unusable reply of debugger: 'I cannot.'
REQ-P1-038 INFO phase1/merge-1: merge result: index 1, .*, score 0.1, rejected: 0.1 does not reach 0.52
REQ-SF-041 INFO phase1/data-use: data check result: modified: yes, score 0.5301
REQ-SF-041 INFO phase1/data-use/leakage-detection: complete: 2 answers, \d+\.\d s, 0.0100 USD
REQ-SF-041 INFO phase1/data-use/leakage-correction: starts: code of \d+ characters, flagged_block 'level = 0.5300'
REQ-SF-041 WARNING data-use: replacement skipped: the leaking block is not in the script: 'gone'
REQ-SF-041 INFO phase1/data-use/leakage-detection: leakage check complete: found: yes, corrected: 2 of 2
REQ-P2O-037 WARNING path-0 t=0: code block not in the solution, attempt 1: 'foreign = 1'
REQ-P2O-037 INFO path-0 t=0: code block validation failed
REQ-P2O-037 WARNING PATH/ablation-script: error: exit code 1, Traceback .*: RuntimeError: broken
REQ-P2O-037 WARNING PATH: ablation study failed
REQ-P2I-034 WARNING PATH/k-1/planner: empty reply
REQ-P2I-043 WARNING PATH/k-1: attempt skipped: planner failed
REQ-P2I-032 WARNING path-0 t=0 k=0: parse failure: unusable reply of coder: 'No code today.'
REQ-P2I-043 WARNING PATH/k-0: attempt skipped: coder failed
REQ-P2O-037 WARNING phase2/path-0/t-1: outer step 1 skipped: no code block was extracted
REQ-P3-039 WARNING phase3/r-0/ens_planner: empty reply
REQ-P3-039 WARNING r=1: round failed: .*RuntimeError: broken; plan 'average them, idea 7!{180}'
REQ-P3-026 WARNING Phase 3 ensemble: all 2 attempts failed; falling back to best input solution \(score 0.5301\)
REQ-FN-042 WARNING repair: attempt 1 of 1, RuntimeError: broken
REQ-FN-042 WARNING fallback: no submission by a script of its own: RuntimeError: broken; .*; phase init, score 0.5301
REQ-FN-042 INFO contamination skipped: no references
REQ-FN-025 WARNING run: .*no submission by a script of its own: RuntimeError: broken; the submission is .* score 0.5301
"""


def rough_mind() -> Mind:
    """Half of its replies are of no use."""
    plans = iter(["", *[f"average them, idea 7{'!' * 200}"] * 9])
    blocks = iter(["foreign = 1", None, *["foreign = 1"] * 99])

    def leaks(prompt: str) -> Answer:
        return leaky(f"level = {levels(prompt)[0]:.4f}", "gone") if "revised" in prompt else NO_LEAKAGE

    def extractor(prompt: str) -> Answer:
        return extracted(next(blocks) or f"level = {levels(prompt)[0]:.4f}", "raise the level")

    return Mind(
        overrides={
            "init": lambda text: Mind().answer("init", None, text) if model_of(text) else fenced(broken("model 0")),
            "merger": fenced(script(0.1)),
            "debugger": "I cannot.",
            "data": fenced(script(0.53, note="revised")),
            "leakage-detection": leaks,
            "leakage-correction": fenced("level = 0.5301"),
            "leakage-rewrite": fenced(script(0.5301)),
            "ablation": fenced(broken("a study")),
            "extractor": extractor,
            "planner": "",
            "coder": "No code today.",
            "ens_planner": lambda prompt: next(plans),
            "ensembler": fenced(broken("an ensemble")),
            "test": fenced(broken("a submission")),
        }
    )


@pytest.mark.req("REQ-OR-047", "REQ-OR-037", "REQ-OR-038", "REQ-OR-039", "REQ-P1-038", "REQ-P2O-037", "REQ-P2I-043")
@pytest.mark.req("REQ-P3-039", "REQ-FN-042", "REQ-FN-030", "REQ-FN-032", "REQ-SF-041", "REQ-EX-039", "REQ-P1-021")
@pytest.mark.req("REQ-P2I-032", "REQ-P2I-034", "REQ-P3-026", "REQ-FN-025")
async def test_the_log_says_what_it_must(calm: CalmRun, quick: QuickRun, caplog: pytest.LogCaptureFixture) -> None:
    await quick(settings(M=3, T=2, log_level="DEBUG"), agents=MindAgents(rough_mind()))
    rough = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    for rows, log in ((SMOOTH, calm.log), (ROUGH, rough)):
        patterns = [row.split(" ", 1)[1] for row in rows.replace("PATH", PATH).strip().splitlines()]
        missing = [row for row in patterns if not any(re.fullmatch(row, line, re.DOTALL) for line in log)]
        assert not missing, "\n".join([*missing, "is not in:", *(line.partition("\n")[0] for line in log)])


def test_the_rest_of_the_table(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mle_star")
    for event in HAPPENED:
        log_event(event)
    lines = [f"{record.levelname} {record.name}: {record.getMessage()}" for record in caplog.records]
    as_kept("pipeline/log_lines.txt", "\n".join(lines))
