"""Every prompt whole, as a run that knows much sends it: asked for by the phases themselves, kept as snapshots.

`make snapshots` writes them anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mle_star.data.brief import data_brief
from mle_star.data.place import Sample
from mle_star.finalization import check_contamination, generate_test_submission, remove_subsampling
from mle_star.holdout.holdout import HoldOut
from mle_star.models import (
    CodeBlock,
    EnsembleAttempt,
    EvaluationResult,
    Isolation,
    Measure,
    MetricDirection,
    PipelineConfig,
    RetrievedModel,
    SolutionPhase,
    SolutionScript,
    TaskType,
)
from mle_star.models.texts import digest_of
from mle_star.phase1 import generate_candidate, merge_solutions, retrieve_models
from mle_star.phase2_inner import invoke_coder, invoke_planner
from mle_star.phase2_outer import _not_comparable, invoke_ablation, invoke_extractor, invoke_summarize
from mle_star.phase3 import invoke_ens_planner, invoke_ensembler
from mle_star.run.context import current_run, path_context, scope
from mle_star.run.events import (
    AblationFinished,
    CandidateEvaluated,
    DebugAttempted,
    EnsembleTried,
    MergeTried,
    RefinementTried,
    ScriptFinished,
    ScriptPurpose,
)
from mle_star.run.progress import BlockProgress, Phase1Progress, Trial
from mle_star.safety import check_and_fix_leakage, check_data_usage, make_debug_callback, synthetic_traceback
from mle_star.sdk import EnvironmentFacts, build_system_prompt
from mle_star.sdk.definitions import ScriptShare
from tests.ledgers import ran as note_run
from tests.ledgers import script_finished
from tests.method.conftest import ScriptedExecutor, ScriptedRun, leaky, scripted_run, settings
from tests.prompt_samples import NAMES, parts

SNAPSHOTS = Path(__file__).parent.parent / "snapshots" / "rich"

CUT = "if len(train) > 30000:\n    train = train.sample(30000, random_state=42)"
BLOCK = "model = Ridge(alpha=1.0)\nmodel.fit(part[FEATURES], part.price)"
BETTER_BLOCK = "model = Ridge(alpha=10.0)\nmodel.fit(part[FEATURES], np.log1p(part.price))"
SCRIPT = f"""\
import numpy as np
import pandas as pd
from sklearn.linear_model import Ridge
from sklearn.model_selection import train_test_split

train, test = pd.read_csv("./input/train.csv"), pd.read_csv("./input/test.csv")
{CUT}
FEATURES = ["area", "rooms"]
part, holdout = train_test_split(train, test_size=0.2, random_state=42)
{BLOCK}
error = np.sqrt(np.mean((holdout.price - model.predict(holdout[FEATURES])) ** 2))
print(f"Final Validation Performance: {{error}}")
pd.DataFrame({{"id": test.id, "price": model.predict(test[FEATURES])}}).to_csv("./final/submission.csv", index=False)"""
OTHER = SCRIPT.replace("Ridge(alpha=1.0)", "LGBMRegressor(n_estimators=300)")
BLEND = "blend = 0.6 * first + 0.4 * second  # the best of the rounds so far"
STUDY = "print('Ablation baseline: 21.5')\nprint('Ablation no rooms: 24.0')"
PRINTED = "Ablation baseline: 21.5\nAblation no rooms: 24.0\nAnalysis: area above 150: 0.7 of the squared error\n"
SUMMARY = "Without `rooms` the error grows from 21.5 to 24.0. Houses above 150 make 0.7 of the squared error."
PLANS = ["Learn the logarithm of the price.", "Add the ratio of area and rooms."]
PHASE1, PHASE2, INNER = ("phase1",), ("phase2",), ("phase2", "k-2")
TRACEBACK = 'Traceback (most recent call last):\n  File "solution.py", line 9, in <module>\nKeyError: "rooms"'


# --- the situation ---------------------------------------------------------------------------------------


def solution(content: str, score: float | None = None, phase: SolutionPhase = SolutionPhase.refined) -> SolutionScript:
    return SolutionScript(content=content, phase=phase, score=score)


def ran(step: str, script: str, score: float | None, *, error: str | None = None) -> ScriptFinished:
    interval = None if score is None else Measure(
        score=score, low=score - 1.5, high=score + 1.5, rows=400, measured="harness"
    )  # fmt: skip
    return script_finished(
        step=step, digest="d", script=script, stdout="fold 1: 21.1\nfold 2: 21.9\n", stderr="", seconds=12.0,
        exit_code=int(bool(error)), is_error=bool(error), score=score, isolation=Isolation(), measure=interval,
        surroundings="scripted",
        traceback=error,
    )  # fmt: skip


def houses(folder: Path) -> Path:
    """A table with a label to hide, gaps and words."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"{n},{50 + n % 120},{'' if n % 9 == 0 else n % 6},{('brick', 'wood')[n % 2]}" for n in range(300)]
    train = [f"{row},{100 + 3 * (n % 120)}" for n, row in enumerate(rows[:240])]
    (folder / "train.csv").write_text("id,area,rooms,wall,price\n" + "\n".join(train) + "\n", encoding="utf-8")
    (folder / "test.csv").write_text("id,area,rooms,wall\n" + "\n".join(rows[240:]) + "\n", encoding="utf-8")
    answers = "\n".join(f"{n},0" for n in range(240, 300))
    (folder / "sample_submission.csv").write_text(f"id,price\n{answers}\n", encoding="utf-8")
    return folder


TASK: dict[str, Any] = {
    "competition_id": "houses", "task_type": TaskType.regression, "evaluation_metric": "rmse",
    "metric_direction": MetricDirection.minimize, "description": "Predict the `price` of each house in test.csv.",
}  # fmt: skip


@pytest.fixture
def rich(quick_path: Path) -> Iterator[ScriptedRun]:
    """A run in its third step, two of which gained nothing, whose harness measures with intervals."""
    config = settings(M=3, L=2, diversity=PipelineConfig().diversity, task_in_prompts=False)
    with scripted_run(quick_path, executor=ScriptedExecutor(), config=config, clock=lambda: 0.0, **TASK) as run:
        shared = run.context.shared
        scored = run.task.model_copy(update={"data_dir": str(houses(quick_path / "houses"))})
        shared.holdout = HoldOut.prepare(scored, config, quick_path / "holdout", write=False)
        shared.scripts.sample = Sample(quick_path / "sample", rows=9000, of=90_000)
        with scope("phase1"):
            note_run(current_run(), 21.5, 12.0)
        with scope("phase2", "path-0"):
            note_run(current_run(), 20.4, 12.0, script=OTHER)
        shared.progress.analyses["path-1"] = "area above 150: 0.7 of the squared error"
        shared.progress.research = "Winners of a similar task took ratios of areas (a post of 2019)."
        known = Phase1Progress(
            [RetrievedModel(model_name=name, example_code=code) for name, code in (
                ("Ridge", "model = Ridge()"), ("LightGBM", "model = LGBMRegressor()"), ("kNN", "KNeighborsRegressor()")
            )], run.task,
        )  # fmt: skip
        result = EvaluationResult(stdout="", stderr="", exit_code=0, duration_seconds=12.0, is_error=False)
        known.trials[1] = Trial(solution(OTHER, 22.0), result)
        shared.progress.phase1 = known
        state = BlockProgress(CodeBlock(content=BLOCK), solution(SCRIPT, 21.5), 21.5)
        state.best_block = (BETTER_BLOCK, 20.9)
        shared.progress.blocks["path-1"] = state
        shared.progress.rounds += [EnsembleAttempt(plan="Average both.", score=20.2, solution=solution(BLEND, 20.2))]
        yield run


def remember(run: ScriptedRun, places: tuple[str, ...]) -> None:
    """What the journal of such a run holds when it has come so far."""
    tell = run.journal.record
    tell(ran("phase1/candidate-0/script", SCRIPT, 21.5))
    digest = digest_of(SCRIPT)
    tell(CandidateEvaluated(step="phase1/candidate-0", index=0, model_name="Ridge", digest=digest, score=21.5))
    tell(CandidateEvaluated(step="phase1/candidate-2", index=2, model_name="kNN", score=None, error="MemoryError"))
    tell(MergeTried(
        step="phase1/merge-1", index=1, base_score=21.5, reference_model="LightGBM", score=21.9, accepted=False,
        reason="no gain",
    ))  # fmt: skip
    if places == PHASE1:
        return
    tell(AblationFinished(step="phase2/path-1/t-0/study", path=1, t=0, solution_score=21.5))
    for t, plan in enumerate(("Scale the areas.", "Bin the areas.")):
        step = f"phase2/path-1/t-{t}/k-0"
        tell(ran(f"{step}/script", f"script {t}", 22.5))
        tell(RefinementTried(
            step=step, path=1, t=t, k=0, plan=plan, before="a", after="b", score=22.5, best_score=21.5, accepted=False,
            digest=digest_of(f"script {t}"),
        ))  # fmt: skip
    for k, (plan, score) in enumerate(zip(PLANS, (20.9, None), strict=True) if places != PHASE2 else ()):
        step = f"phase2/path-1/t-2/k-{k}"
        tell(ran(f"{step}/script", f"script {k}", score, error=None if score else TRACEBACK))
        tell(RefinementTried(
            step=step, path=1, t=2, k=k, plan=plan, before="a", after="b", score=score, best_score=20.9,
            accepted=score is not None, digest=digest_of(f"script {k}"),
        ))  # fmt: skip
    if places[0] != "phase2":
        tell(EnsembleTried(step="phase3/r-0", r=0, plan="Average both.", score=20.2, best=True))
    place = "/".join(["phase2/path-1/t-2", *places[1:]] if places[0] == "phase2" else places)
    tell(DebugAttempted(step=f"{place}/debugger", error='KeyError: "area"', accepted=True))


# --- who asks --------------------------------------------------------------------------------------------


@contextmanager
def _at(run: ScriptedRun, *places: str) -> Iterator[None]:
    """In a place of the run: `phase2` is the third step of its second path."""
    first, *more = places
    with scope(first):
        if first != "phase2":
            yield
        else:
            with path_context(1, run.work_dir), scope("t-2", *more):
                yield


async def _repair(run: ScriptedRun, purpose: ScriptPurpose = "solution", *, final: bool = False) -> None:
    repair = make_debug_callback(run.task, run.config, purpose=purpose)
    too_slow = synthetic_traceback("TimeoutError: the script was stopped after 120 s")
    error = too_slow if purpose == "ablation" else TRACEBACK
    await repair(solution(SCRIPT, phase=SolutionPhase.final if final else SolutionPhase.refined), error)


async def _leak(run: ScriptedRun) -> None:
    run.agents.reply("leakage-detection", leaky("error = np.sqrt("))
    await check_and_fix_leakage(solution(SCRIPT))


async def _cut_rows(run: ScriptedRun) -> None:
    run.agents.reply("test-subsampling_extract", f"```python\n{CUT}\n```")
    await remove_subsampling(solution(SCRIPT))


MINE, THEIRS = solution(SCRIPT, 21.5), solution(OTHER, 20.4)
BOTH = [MINE, THEIRS]
ASKING: dict[str, tuple[tuple[str, ...], Callable[[ScriptedRun], Awaitable[Any]]]] = {
    "retriever": (PHASE1, lambda run: retrieve_models(run.task, run.config)),
    "init": (PHASE1, lambda run: generate_candidate(
        run.task, RetrievedModel(model_name="Ridge", example_code="model = Ridge()"), run.config)),
    "merger": (PHASE1, lambda run: merge_solutions(MINE, THEIRS, run.config)),
    "data": (PHASE1, lambda run: check_data_usage(solution(SCRIPT), run.task)),
    "ablation": (PHASE2, lambda run: invoke_ablation(solution(SCRIPT), [SUMMARY])),
    "summarize": (PHASE2, lambda run: invoke_summarize(STUDY, PRINTED, note=_not_comparable(20.0))),
    "extractor": (PHASE2, lambda run: invoke_extractor(SUMMARY, solution(SCRIPT), ['FEATURES = ["area"]'], retry=True)),
    "coder": (INNER, lambda run: invoke_coder(BLOCK, PLANS[0])),
    "planner": (INNER, lambda run: invoke_planner(BLOCK, PLANS, [20.9, None])),
    "debugger": (INNER, _repair),
    "debugger_ablation": (PHASE2, lambda run: _repair(run, "ablation")),
    "debugger_submission": (("finalization",), lambda run: _repair(run, final=True)),
    "leakage_detection": (INNER, _leak),
    "leakage_correction": (INNER, _leak),
    "leakage_rewrite": (INNER, _leak),
    "ens_planner": (("phase3",), lambda run: invoke_ens_planner(BOTH, ["Average both."], [20.2])),
    "ensembler": (("phase3",), lambda run: invoke_ensembler("Weight by the score.", BOTH)),
    "test": (("finalization",), lambda run: generate_test_submission(run.task, solution(SCRIPT))),
    "test_subsampling_extract": (("finalization",), _cut_rows),
    "test_subsampling_remove": (("finalization",), _cut_rows),
    "test_contamination": (("finalization",), lambda run: check_contamination(solution(SCRIPT), ["We took ridge."])),
}  # fmt: skip


SAYS: dict[str, str] = {
    "retriever": "list 3 of them | recent, effective models | short and simple | compulsory | does not count | "
    "model_name | example_code",
    "init": "grandmaster | ridge | model = ridge() | `rmse` | `minimize` | subsample to | fixed seed | cuda | "
    "pytorch | ./input/ | final validation performance | exit() | single markdown code block | no ensembling | "
    "no `try`/`except` | evaluation metric",
    "merger": "grandmaster | ensemble the models | subsample to",
    "ablation": "kaggle grandmaster | 2-3 parts | ablation study | no previous study has considered | "
    "`ablation <name>: <score>` | contributes most | not load test data | validation set only | self-contained | "
    "import nothing from it | printing statements | no headings",
    "summarize": "summarize | most impact",
    "extractor": "kaggle grandmaster | better performance | 3-5 sentences | hyperparameter | not improved before | "
    "exactly | list[refine_plan] | {'code_block': str, 'plan': str} | \"plans\"",
    "coder": "kaggle grandmaster | better performance | implement the improvement plan | "
    "do not remove subsampling if exists. | defined earlier | not introduce dummy variables | "
    "single markdown code block | no headings",
    "planner": "kaggle grandmaster | better performance | novel | effective | differ | longer | hyperparameter | "
    "3-5 sentences | no headings",
    "ens_planner": "kaggle grandmaster | better performance | concentrate on | merg | hyperparameters | "
    "easy to implement | novel | effective | differ | original solutions | execution error | outline | "
    "natural language | no headings",
    "ensembler": "kaggle grandmaster | better performance | implement the ensemble plan | the original solutions | "
    "`./input/` | unzip nothing | do not load submissions | hold-out validation set | single markdown code block | "
    "no headings | do not subsample | dummy variables | `./final/submission.csv` | "
    "final validation performance: {final_validation_score} | self-contained | full new solution",
    "debugger": "revise the code to fix the error | do not remove subsampling if exists. | ./input/ | "
    "final validation performance | single markdown code block | exit() | subsample to | no headings",
    "leakage_detection": "leakage_status | code_block",
    "leakage_correction": "just modify it with the above code",
    "data": "do not use try and except; just occur error so we can debug it!",
    "test": "read the test samples | ./input/ | already unpacked | `submission.csv` | "
    "every test sample gets a prediction | you can even use the full training set | as little as possible | "
    "self-contained python file | single markdown code block | exit() | covers up unexpected behaviour | "
    "./final/submission.csv",
    "test_contamination": "`novel` | `same` | we took ridge.",
}
"""What the specification wants each prompt to say, whatever else it does."""


def _kept(name: str, text: str) -> str:
    snapshot = SNAPSHOTS / f"{name}.md"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        snapshot.parent.mkdir(parents=True, exist_ok=True)
        snapshot.write_text(text + "\n", encoding="utf-8")
    return snapshot.read_text(encoding="utf-8")


@pytest.mark.req(
    "REQ-P1-002", "REQ-P1-009", "REQ-P1-014", "REQ-P1-015", "REQ-P1-043", "REQ-P1-044", "REQ-P1-045", "REQ-P2O-002",
    "REQ-P2O-005", "REQ-P2O-006", "REQ-P2O-007", "REQ-P2O-009", "REQ-P2O-013", "REQ-P2O-042", "REQ-P2I-002",
    "REQ-P2I-006", "REQ-P2I-007", "REQ-P2I-009", "REQ-P2I-014", "REQ-P2I-015", "REQ-P3-002", "REQ-P3-007", "REQ-P3-008",
    "REQ-P3-011", "REQ-P3-014", "REQ-P3-015", "REQ-P3-046", "REQ-P3-047", "REQ-P3-048", "REQ-P3-049", "REQ-SF-002",
    "REQ-SF-009", "REQ-SF-029", "REQ-SF-044", "REQ-SF-045", "REQ-SF-046", "REQ-FN-011", "REQ-FN-012", "REQ-FN-014",
    "REQ-FN-015", "REQ-FN-016", "REQ-FN-017", "REQ-FN-027", "REQ-FN-045", "REQ-FN-046", "REQ-FN-047",
)  # fmt: skip
@pytest.mark.parametrize("name", NAMES)
async def test_each_prompt_whole_in_a_rich_situation(name: str, rich: ScriptedRun) -> None:
    places, ask = ASKING[name]
    remember(rich, places)
    with _at(rich, *places):
        await ask(rich)
    text = next(call.prompt for call in rich.agents.calls() if call.name.replace("-", "_") == name)
    assert text + "\n" == _kept(name, text), "see docs/prompts.md on changing a prompt"
    plain = " ".join(text.split()).lower()
    assert [words for words in SAYS.get(name, "").split(" | ") if words not in plain] == []
    prose = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^# (.*)$", prose, re.MULTILINE)
    assert len(titles) == len(set(titles)), "a section twice"
    assert [title for title, body in parts(text).items() if title and not body.strip()] == []
    assert str(rich.run_dir) not in text and str(rich.task.data_dir) not in text


def test_the_system_prompt_whole_in_a_rich_situation(rich: ScriptedRun, quick_path: Path) -> None:
    folder = quick_path / "houses"
    facts = EnvironmentFacts(
        gpu={"cuda_available": True, "gpu_count": 1, "gpu_names": ["H100"], "gpu_memory": ["81559 MiB"]},
        python_version="3.12.1", packages={"scikit-learn": "1.7.0", "lightgbm": "4.6.0"}, cpu_cores=16, memory_gb=64.0,
        scored_by_answers=True, brief=data_brief(folder, rich.task.description), knowledge="## Traps\n\n- A trap.",
        share=ScriptShare(cores=8, memory_gb=28.0, network=False, weights=("org/name",)),
    )  # fmt: skip
    task = rich.task.model_copy(update={"data_dir": str(folder)})
    text = build_system_prompt(task, facts).replace(str(folder), "/data/houses")
    assert text + "\n" == _kept("system", text)


def test_every_rich_snapshot_belongs_to_a_prompt() -> None:
    assert {path.stem for path in SNAPSHOTS.glob("*.md")} == {*NAMES, "system"}
