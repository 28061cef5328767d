"""What agents are told by a run that knows much: every prompt whole, asked for by the phases themselves, and each fact.

The prompts are kept as snapshots; `make snapshots` writes them anew.
"""

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mle_star import models as m
from mle_star.data.brief import data_brief
from mle_star.data.place import Sample
from mle_star.finalization import check_contamination, generate_test_submission, remove_subsampling
from mle_star.holdout.holdout import HoldOut
from mle_star.models.agents import section
from mle_star.models.texts import TRACEBACK_HEADER, digest_of
from mle_star.phase1 import generate_candidate, merge_solutions, retrieve_models
from mle_star.phase2_inner import invoke_coder, invoke_planner
from mle_star.phase2_outer import invoke_ablation, invoke_extractor, invoke_summarize
from mle_star.phase3 import invoke_ens_planner, invoke_ensembler
from mle_star.prompts import Prompt
from mle_star.run import events as ev
from mle_star.run.context import current_run, enter_run, path_context, scope
from mle_star.run.prompt_context import MARK, _first_lines, around
from mle_star.run.request import ask_agent
from mle_star.safety import check_and_fix_leakage, check_data_usage, make_debug_callback
from mle_star.sdk.definitions import EnvironmentFacts, ScriptShare, build_system_prompt
from tests.conftest import as_kept, script_finished, write_split
from tests.conftest import ran as note_run
from tests.method.conftest import ScriptedExecutor, ScriptedRun, quick, scripted_run, settings
from tests.prompt_samples import NAMES, parts, sample

from .replies import leaky

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


def solution(
    content: str, score: float | None = None, phase: m.SolutionPhase = m.SolutionPhase.refined
) -> m.SolutionScript:
    return m.SolutionScript(content=content, phase=phase, score=score)


def ran(step: str, script: str, score: float | None, *, error: str | None = None) -> ev.ScriptFinished:
    interval = None if score is None else m.Measure(
        score=score, low=score - 1.5, high=score + 1.5, rows=400, measured="harness"
    )  # fmt: skip
    return script_finished(
        step=step, digest="d", script=script, stdout="fold 1: 21.1\nfold 2: 21.9\n", stderr="", seconds=12.0,
        exit_code=int(bool(error)), is_error=bool(error), score=score, isolation=m.Isolation(), measure=interval,
        surroundings="scripted",
        traceback=error,
    )  # fmt: skip


def houses(folder: Path) -> Path:
    """A table with a label to hide, gaps and words."""
    sides = ("brick", "wood")
    rows = [(n, 50 + n % 120, "" if n % 9 == 0 else n % 6, sides[n % 2], 100 + 3 * (n % 120)) for n in range(300)]
    return write_split(folder, "id,area,rooms,wall,price", rows, 240)


ANALYSIS = "area above 150: 0.7 of the squared error"
LOOP: dict[str, Any] = {"around": SCRIPT, "best": (BETTER_BLOCK, 20.9)}
TASK: dict[str, Any] = {
    "competition_id": "houses", "task_type": m.TaskType.regression, "evaluation_metric": "rmse",
    "metric_direction": m.MetricDirection.minimize, "description": "Predict the `price` of each house in test.csv.",
}  # fmt: skip


@pytest.fixture
def rich(quick_path: Path) -> Iterator[ScriptedRun]:
    """A run in its third step, two of which gained nothing, whose harness measures with intervals."""
    config = settings(M=3, L=2, diversity=m.PipelineConfig().diversity, task_in_prompts=False)
    with scripted_run(quick_path, executor=ScriptedExecutor(), config=config, clock=lambda: 0.0, **TASK) as run:
        shared = run.context.shared
        scored = run.task.model_copy(update={"data_dir": str(houses(quick_path / "houses"))})
        shared.holdout = HoldOut.prepare(scored, config, quick_path / "holdout", write=0)
        shared.scripts.sample = Sample(quick_path / "sample", rows=9000, of=90_000)
        with scope("phase1"):
            note_run(current_run(), 21.5, 12.0)
        with scope("phase2", "path-0"):
            note_run(current_run(), 20.4, 12.0, script=OTHER)
        codes = {"Ridge": "Ridge()", "LightGBM": "x", "kNN": "KNeighborsRegressor()", "odd  one": "y"}
        found = [m.RetrievedModel(model_name=name, example_code=code) for name, code in codes.items()]
        notes = "Winners of a similar task took ratios of areas (a post of 2019)."
        run.journal.record(ev.ModelsRetrieved(models=found, notes=notes))
        yield run


def remember(run: ScriptedRun, places: tuple[str, ...]) -> None:
    """What the journal of such a run holds when it has come so far."""
    tell = run.journal.record
    tell(ran("phase1/candidate-0/script", SCRIPT, 21.5))
    digest = digest_of(SCRIPT)
    tell(ev.CandidateEvaluated(step="phase1/candidate-0", index=0, model_name="Ridge", digest=digest, score=21.5))
    tell(ev.CandidateEvaluated(step="phase1/candidate-2", index=2, model_name="kNN", score=None, error="MemoryError"))
    tell(ev.MergeTried(
        step="phase1/merge-1", index=1, base_score=21.5, reference_model="LightGBM", score=21.9, accepted=False,
        reason="no gain",
    ))  # fmt: skip
    if places == PHASE1:
        return
    step, digest = "phase2/path-0/t-0/k-0", digest_of(OTHER)
    tell(ev.RefinementTried(
        step=step, path=0, t=0, k=0, plan="Take the logarithm\nof the area.", before="a", accepted=True,
        after='X["area"] = np.log(X["area"])', score=20.4, best_score=20.4, digest=digest,
    ))  # fmt: skip
    tell(ev.AblationFinished(step="phase2/path-1/t-0/study", path=1, t=0, solution_score=21.5, analysis=ANALYSIS))
    for t, plan in enumerate(("Scale the areas.", "Bin the areas.")):
        step = f"phase2/path-1/t-{t}/k-0"
        tell(ran(f"{step}/script", f"script {t}", 22.5))
        tell(ev.RefinementTried(
            step=step, path=1, t=t, k=0, plan=plan, before="a", after="b", score=22.5, best_score=21.5, accepted=False,
            digest=digest_of(f"script {t}"),
            change=m.ScoreChange(difference=-1.0, error=(0.9, 0.3)[t], wins=0.1, rows=400),
        ))  # fmt: skip
    for k, (plan, score) in enumerate(zip(PLANS, (20.9, None), strict=True) if places != PHASE2 else ()):
        step = f"phase2/path-1/t-2/k-{k}"
        tell(ran(f"{step}/script", f"script {k}", score, error=None if score else TRACEBACK))
        tell(ev.RefinementTried(
            step=step, path=1, t=2, k=k, plan=plan, before="a", after="b", score=score, best_score=20.9,
            accepted=score is not None, digest=digest_of(f"script {k}"),
            change=None if score is None else m.ScoreChange(difference=0.6, error=0.21, wins=0.99, rows=400),
        ))  # fmt: skip
    if places[0] != "phase2":
        tell(ev.EnsembleTried(step="phase3/r-0", r=0, plan="Average both.", score=20.2, best=True))
    place = "/".join(["phase2/path-1/t-2", *places[1:]] if places[0] == "phase2" else places)
    tell(ran(f"{place}/script-2", f"{SCRIPT}\nprint(part.area)", None, error=TRACEBACK))
    repair = {"parent": digest_of(f"{SCRIPT}\nprint(part.area)"), "digest": digest_of(SCRIPT)}
    tell(ev.DebugAttempted(step=f"{place}/debugger", error='KeyError: "area"', accepted=True, **repair))


async def _repair(run: ScriptedRun, purpose: ev.ScriptPurpose = "solution", *, final: bool = False) -> None:
    repair = make_debug_callback(run.task, run.config, purpose=purpose)
    too_slow = f"{TRACEBACK_HEADER}\nTimeoutError: the script was stopped after 120 s"
    error = too_slow if purpose == "ablation" else TRACEBACK
    await repair(solution(SCRIPT, phase=m.SolutionPhase.final if final else m.SolutionPhase.refined), error)


async def _write_candidate(run: ScriptedRun) -> None:
    text = "model = make_pipeline(StandardScaler(), LGBMRegressor())"
    run.journal.record(ran("phase1/candidate-1/script", text, 22.0))
    known: dict[str, Any] = {"index": 1, "model_name": "LightGBM", "digest": digest_of(text), "score": 22.0}
    run.journal.record(ev.CandidateEvaluated(step="phase1/candidate-1", **known))
    failed: dict[str, Any] = {"index": 3, "model_name": "odd", "score": None, "error": "E" * 999}
    run.journal.record(ev.CandidateEvaluated(step="phase1/candidate-3", **failed))
    await generate_candidate(run.task, m.RetrievedModel(model_name="Ridge", example_code="Ridge()"), run.config)


async def _leak(run: ScriptedRun) -> None:
    run.agents.reply("leakage-detection", leaky("error = np.sqrt("))
    await check_and_fix_leakage(solution(SCRIPT))


async def _cut_rows(run: ScriptedRun) -> None:
    run.agents.reply("test-subsampling_extract", f"```python\n{CUT}\n```")
    await remove_subsampling(solution(SCRIPT))


MINE, THEIRS = solution(SCRIPT, 21.5), solution(OTHER, 20.4)
BOTH = [MINE, THEIRS]
ALIKE = [(0, 1, "errors correlate by 0.86; of 400 answers the first is nearer to the truth on 150, the second on 250")]
ASKING: dict[str, tuple[tuple[str, ...], Callable[[ScriptedRun], Awaitable[Any]]]] = {
    "retriever": (PHASE1, lambda run: retrieve_models(run.task, run.config)),
    "init": (PHASE1, _write_candidate),
    "merger": (PHASE1, lambda run: merge_solutions(MINE, THEIRS, run.config)),
    "data": (PHASE1, lambda run: check_data_usage(solution(SCRIPT), run.task)),
    "ablation": (PHASE2, lambda run: invoke_ablation(solution(SCRIPT), [SUMMARY])),
    "summarize": (PHASE2, lambda run: invoke_summarize(STUDY, PRINTED, note=section("not_comparable", printed="20"))),
    "extractor": (PHASE2, lambda run: invoke_extractor(SUMMARY, solution(SCRIPT), ['FEATURES = ["area"]'], retry=True)),
    "coder": (INNER, lambda run: invoke_coder(BLOCK, PLANS[0], **LOOP)),
    "planner": (INNER, lambda run: invoke_planner(BLOCK, PLANS, [20.9, None], **LOOP)),
    "debugger": (INNER, _repair),
    "debugger_ablation": (PHASE2, lambda run: _repair(run, "ablation")),
    "debugger_submission": (("finalization",), lambda run: _repair(run, final=True)),
    "leakage_detection": (INNER, _leak),
    "leakage_correction": (INNER, _leak),
    "leakage_rewrite": (INNER, _leak),
    "ens_planner": (
        ("phase3",),
        lambda run: invoke_ens_planner(BOTH, ["Average both."], [20.2], best=(BLEND, 20.2), overlap=ALIKE),
    ),
    "ensembler": (("phase3",), lambda run: invoke_ensembler("Weight by the score.", BOTH, best=(BLEND, 20.2))),
    "test": (("finalization",), lambda run: generate_test_submission(run.task, solution(SCRIPT))),
    "test_subsampling_extract": (("finalization",), _cut_rows),
    "test_subsampling_remove": (("finalization",), _cut_rows),
    "test_contamination": (("finalization",), lambda run: check_contamination(solution(SCRIPT), ["We took ridge."])),
}  # fmt: skip


async def prompt_of(run: ScriptedRun, name: str) -> str:
    (phase, *more), ask = ASKING[name]
    path: AbstractContextManager[Any] = nullcontext()
    if phase == "phase2":  # the third step of the second path
        path, more = path_context(1, run.work_dir), ["t-2", *more]
    with scope(phase), path, scope(*more):
        await ask(run)
    return [call.prompt for call in run.agents.log if call.name.replace("-", "_") == name][-1]


@pytest.mark.req("REQ-P1-009", "REQ-P1-014", "REQ-P2O-002", "REQ-P3-011", "REQ-FN-012", "REQ-FN-047")
@pytest.mark.parametrize("name", NAMES)
async def test_each_prompt_whole_in_a_rich_situation(name: str, rich: ScriptedRun) -> None:
    remember(rich, ASKING[name][0])
    text = await prompt_of(rich, name)
    as_kept(f"rich/{name}.md", text, "see docs/prompts.md on changing a prompt")
    titles = re.findall(r"^# (.*)$", re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    assert len(titles) == len(set(titles)), "a section twice"
    assert [title for title, body in parts(text).items() if title and not body.strip()] == []
    assert str(rich.run_dir) not in text and str(rich.task.data_dir) not in text


def test_the_system_prompt_whole_in_a_rich_situation(rich: ScriptedRun, quick_path: Path) -> None:
    folder = quick_path / "houses"
    facts = EnvironmentFacts(
        gpu={"cuda_available": True, "gpu_count": 1, "gpu_names": ["H100"], "gpu_memory": ["81559 MiB"]},
        python_version="3.12.1", packages={"scikit-learn": "1.7.0", "lightgbm": "4.6.0"}, cpu_cores=16, memory_gb=64.0,
        scored_by_answers=True, brief=data_brief(folder, rich.task.description), knowledge="## Traps\n\n- A trap.",
        share=ScriptShare(cores=8, memory_gb=28.0, network=False, weights=("org/name",), keeps_work=True),
    )  # fmt: skip
    task = rich.task.model_copy(update={"data_dir": str(folder)})
    as_kept("rich/system.md", build_system_prompt(task, facts).replace(str(folder), "/data/houses"))
    assert {path.stem for path in SNAPSHOTS.glob("*.md")} == {*NAMES, "system"}


FACTS = {
    "script": "coder planner", "best": "merger coder planner ens_planner ensembler extractor test",
    "errors": "ablation summarize extractor planner", "memory": "planner coder ablation extractor ens_planner debugger",
    "research": "planner ens_planner retriever", "refit": "init merger ensembler data", "model": "test",
    "limits": "init merger ablation coder ensembler debugger data test planner extractor",
}  # fmt: skip


@pytest.mark.parametrize("part", FACTS)
async def test_each_part_reaches_those_who_need_it_and_can_be_switched_off(part: str, rich: ScriptedRun) -> None:
    remember(rich, INNER)
    for name in FACTS[part].split():
        texts = []
        for briefing in ((part,), ()):
            config = m.PipelineConfig(**{**rich.config.model_dump(), "briefing": briefing, "diversity": ()})
            with enter_run(replace(current_run(), config=config)):
                texts.append(await prompt_of(rich, name))
        with_it, without = (set(parts(text)) for text in texts)
        assert with_it > without, name
        assert without - set(parts(sample(name))) <= {"Facts", "How sure the scores are", "Note"}, name


@pytest.mark.req("REQ-P2O-005")
async def test_a_study_with_time_for_one_variant_varies_one_part(rich: ScriptedRun) -> None:
    remember(rich, ASKING["ablation"][0])
    for left, variants in ((100, "2 variants"), (80, "1 variant, of one part")):
        rich.context.budget.set_phase_deadline(left)
        assert f"time for the baseline and {variants}.\n" in await prompt_of(rich, "ablation")


def test_a_script_has_a_mark_where_its_block_stands_and_an_analysis_as_many_whole_lines_as_have_room() -> None:
    script = "import x\n\ndef f():\n    model = Ridge()\n    return model\n\nprint(f())\n"
    block = "    model = Ridge()"
    assert around(script, block) == script.replace(block, f"    {MARK}")
    assert around(script, "import x\n") == script.replace("import x\n", f"{MARK}\n")
    assert around(script, "no such block") == script == around(script, " ")
    shown = {3: "ab", 8: "ab c\nde", 9: "ab c\nde", 12: "ab c\nde\nfgh"}
    assert {most: _first_lines("ab c\nde\nfgh", most) for most in shown} == shown


async def test_what_a_step_repeats_comes_first_and_additions_do_not_decide_about_reuse(quick_path: Path) -> None:
    heads = []
    with quick(quick_path) as run:
        for plan in ("a plan", "another plan"):
            await ask_agent(m.AgentType.coder, code_block=BLOCK, around=SCRIPT, plan=plan)
            prompt = run.agents.calls()[-1].prompt
            assert isinstance(prompt, Prompt) and "# Limits" in prompt
            heads.append(prompt[: prompt.steady])
            assert prompt[prompt.steady :].startswith(f"# Plan\n\n```text\n{plan}\n")
        assert heads[0] == heads[1] and BLOCK in heads[0] and MARK in heads[0] and "# Around the block" in heads[0]
        assert [event.prompt for event in run.events(ev.AgentFinished)] == [call.prompt for call in run.agents.log]
    with quick(quick_path) as second:
        second.journal.record(ran("phase1/script", SCRIPT, 0.5))
        await ask_agent(m.AgentType.coder, code_block=BLOCK, around="another = 1", plan="a plan")
        assert second.agents.calls() == []
