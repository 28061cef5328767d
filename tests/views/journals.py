"""Runs made up from a seed: every kind of event, in the order and under the steps that the pipeline uses."""

import random
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from mle_star import models as m
from mle_star.data.folder import Medals
from mle_star.integrations.campaign import PAGE, Campaign, campaign_html
from mle_star.models.texts import digest_of
from mle_star.run import events as ev
from mle_star.run.events import AnyEvent
from mle_star.run.ledger import best_score
from mle_star.views import RunStory
from tests.conftest import script_finished, write_texts

MODELS = ["LightGBM", "CatBoost", "ExtraTrees", "Logistic regression", "XGBoost", "Random forest", "TabPFN", "k-NN"]
PARTS = ["target encoding", "early stopping", "outlier clipping", "feature crosses", "class weights"]
PLANS = [
    "Replace one-hot columns by target encoding, fitted inside each fold.",
    "Lower the learning rate to 0.03 and stop early on the validation fold.",
    "Add ratios of the three largest numeric columns.",
    "Use five stratified folds and average the fold models.",
    "Tune depth and leaves together, with stronger regularisation.",
]
CONFINED = m.Isolation(sandbox="bubblewrap", network_blocked=True, limits=("memory", "processes", "time"))
SCRIPT = '''"""{note}"""
import pandas as pd
from lightgbm import LGBMClassifier

train = pd.read_csv("./input/train.csv")
model = LGBMClassifier(n_estimators={trees}, learning_rate=0.05)  # {note}
model.fit(train.drop(columns=["id", "label"])[::2], train["label"][::2])
print(f"Final Validation Performance: {{model.score(train[1::2], train['label'][1::2])}}")
'''
ERROR = "ValueError: could not convert string to float: 'n/a'"
TRACEBACK = f'Traceback (most recent call last):\n  File "solution.py", line 9, in <module>\n{ERROR}'
EXPECTED = m.Measure(score=0.85, low=0.83, high=0.87, rows=1200, measured="harness")
BEGUN = datetime(2026, 1, 31, 14, 5, tzinfo=timezone.utc)
HOLDOUT = ev.HoldOutPrepared(
    at=BEGUN, step="run", rule="time: date of the test rows lies after that of the training rows", views=1,
    search_rows=900, select_rows=1200, baseline=m.Measure(score=0.6, measured="harness"),
    not_shown=["a.zip", "b.pkl", "c.bak", "d.db"],
)  # fmt: skip
GOOD = "good-20260131-140500"
_LATE: dict[str, Any] = {"exit_code": -1, "is_error": True, "timed_out": True, "timeout_seconds": 7}
_ENDED = m.EvaluationResult(stdout="", stderr="", duration_seconds=7.5, **_LATE)
_CACHED = _ENDED.model_copy(update={"is_error": False, "timed_out": False, "score": 0.5, "cached": True})
TRIED: dict[str, Any] = {"path": 0, "t": 1, "k": 2, "plan": "p", "before": "a", "after": "b", "best_score": 0.5}
HAPPENED: list[AnyEvent] = [
    HOLDOUT.model_copy(update={"not_shown": [], "views": 5}),
    ev.ScriptFinished(step="here", digest="", script="", result=_ENDED),
    ev.ScriptFinished(digest="", script="", result=_CACHED),
    ev.LeakageChecked(found=3, fixed=1),
    ev.RefinementTried(step="phase2/path-0/t-1/k-2", score=None, accepted=False, **TRIED),
    ev.AgentFailed(digest="", agent=m.AgentType.coder, reason="transport", message="coder: gone"),
    ev.PhaseFinished(step="phase3", phase="phase3", outcome="failed", seconds=1.25, detail="a bug"),
    ev.Decided(step="phase1/here", name="in-time", value=False),
    ev.Decided(step="phase1/here", name="in-time", value=True),
    ev.HoldOutPrepared(why_not="no labels"),
    ev.HoldOutPrepared(),
    ev.ShortlistScored(chosen="a blend", shortlist=[{"name": "a"}, {"name": "b"}]),
    ev.BudgetWarning(limit="money", used=8, allowed=10),
    ev.FinishRequested(source="Ctrl-C"),
    ev.FinishRequested(source="Ctrl-C", now=True),
    ev.Notice(level="info", message="info"),
    ev.Notice(level="warning", message="warning"),
    ev.Notice(level="error", message="error"),
    ev.RunFinished(state="failed", message="no model"),
    ev.Forecast(calls=1, scripts=1, cost_usd=None, seconds=None),
]
"""What no invented run comes to."""
NUMBERED = {"path": "path", "t": "t", "k": "k", "r": "r", "candidate": "index", "merge": "index"}
"""The parts of a step that are numbered, and the fields of events that hold their numbers."""


@dataclass
class Invented:
    """One invented run. Its letters are the paper's; `words` replaces every plan, name and error, to be nasty."""

    seed: int = 7
    M: int = 4
    T: int = 3
    K: int = 3
    L: int = 2
    R: int = 3
    direction: m.MetricDirection = m.MetricDirection.maximize
    words: str = ""
    block_lines: int = 12
    outcome: str = "completed"
    model: str = "sonnet"
    name: str = "spaceship-passengers"
    started_at: datetime = BEGUN
    run_dir: Path | None = None

    def __post_init__(self) -> None:
        up = self.direction is m.MetricDirection.maximize
        self._sign, self._base, metric = (1, 0.78, "accuracy") if up else (-1, 0.42, "rmse")
        self.config = m.PipelineConfig(
            num_retrieved_models=self.M, outer_loop_steps=self.T, inner_loop_steps=self.K, ensemble_rounds=self.R,
            num_parallel_solutions=self.L, model=self.model, max_budget_usd=5.0, time_limit_seconds=7200,
        )  # fmt: skip
        self.task = m.TaskDescription(
            competition_id=self.words or self.name, task_type=m.TaskType.classification,
            data_modality=m.DataModality.tabular, evaluation_metric=self.words or metric,
            metric_direction=self.direction, description=self.words or "Predict `label` of the rows of test.csv.",
        )  # fmt: skip

    def events(self) -> list[AnyEvent]:
        """Every event of the run, in order."""
        self._events: list[AnyEvent] = []
        self._now, self._random = self.started_at, random.Random(self.seed)
        self._best: float | None = None
        self._made: dict[str, str] = {}  # by place, the digest of its script
        self._say(
            ev.RunStarted, "", 0, run_id="f00dfacecafe", task=self.task, config=self.config, model=self.model,
            hardware={"cpu_count": 8}, versions={"mle-star": "0.1.0", "python": "3.11.2"}, isolation=CONFINED,
        )  # fmt: skip
        self._say(
            ev.Forecast, calls=12 + self.L * self.T * (3 + 2 * self.K) + 2 * self.R, cost_usd=3.2, seconds=2700,
            scripts=2 * self.M + self.L * self.T * (1 + self.K) + self.R, basis="by the settings and list prices",
        )  # fmt: skip
        best, initial = self._phase1()
        for step in ("phase2", *(f"phase2/path-{path}" for path in range(self.L))):
            self._say(ev.PhaseStarted, step, phase="phase2", model=MODELS[2] * step.endswith("-1"))
        paths = [self._path(f"phase2/path-{path}", best, initial) for path in range(self.L)]
        best = best_score([score for score, _ in paths], self.direction)
        self._done("phase2", best)
        best = self._phase3(best, [digest for _, digest in paths])
        self._finalization(best)
        return self._events

    def ended(self, chosen: str = "", **facts: object) -> list[AnyEvent]:
        """The same with a whole result in its last line and, where one is `chosen`, a final selection before it."""
        *before, last = self.events()
        assert isinstance(last, ev.RunFinished)
        script = m.SolutionScript(content="a last script of its own", phase=m.SolutionPhase.final, score=last.score)
        phase1 = m.Phase1Result(
            retrieved_models=[], candidate_solutions=[], candidate_scores=[], initial_solution=script, initial_score=0.5
        )
        result = m.FinalResult(
            task=self.task, config=self.config, phase1=phase1, phase2_results=[], phase3=None, final_solution=script,
            submission_path=last.submission_path, total_duration_seconds=1.0, total_cost_usd=0.0,
        ).model_copy(update=facts)  # fmt: skip
        return picked([*before, last.model_copy(update={"result": result})], chosen)

    def write(self, run_dir: Path) -> list[AnyEvent]:
        """A journal of the run in `run_dir`, and the files that a run leaves."""
        self.run_dir = run_dir
        events = self.events()
        write_journal(run_dir, events)
        script = SCRIPT.format(note="final", trees=900)
        write_texts(run_dir, {"final/submission.csv": "id,label\n1,0\n", "solution.py": script})
        return events

    def _phase1(self) -> tuple[Any, str]:
        self._say(ev.PhaseStarted, "phase1", phase="phase1")
        self._call("phase1/retriever", m.AgentType.retriever, seconds=40)
        names = [self.words or MODELS[index % len(MODELS)] for index in range(self.M)]
        models = [m.RetrievedModel(model_name=name, example_code="x") for name in names]
        self._say(ev.ModelsRetrieved, "phase1", models=models)
        scores: list[float | None] = []
        for index in range(self.M):
            step = f"phase1/candidate-{index}"
            self._call(f"{step}/init", m.AgentType.init)
            self._call(f"{step}/leakage-detection", m.AgentType.leakage, "detection")
            works = index < self.M - 1 or self.M == 1
            scores.append(self._script(f"{step}/script", self._level(0.02 * index)) if works else self._broken(step))
        for i, score in enumerate(scores):
            error = "" if score is not None else self.words or ERROR
            self._say(ev.CandidateEvaluated, f"phase1/candidate-{i}", model_name=names[i], score=score, error=error)
        best: Any = best_score(scores, self.direction)
        initial = self._made[f"phase1/candidate-{scores.index(best)}"]
        for index in range(1, self.M - scores.count(None)):
            step = f"phase1/merge-{index}"
            self._call(f"{step}/merger", m.AgentType.merger)
            score = self._script(f"{step}/script", self._level(0.04 + 0.01 * index))
            accepted = m.is_improvement_or_equal(score, best, self.direction)
            self._say(
                ev.MergeTried, step, base_score=best, reference_model=names[index], score=score, accepted=accepted,
                reason="" if accepted else f"{score} does not reach {best}", parents=[initial],
            )  # fmt: skip
            if not accepted:
                break
            best, initial = score, self._made[step]
        self._say(ev.DataUsageChecked, "phase1/data-use", changed=False, score=best)
        blocks = [self.words or "scaler.fit(pd.concat([train, test]))"]
        self._say(ev.LeakageChecked, "phase1/leakage/leakage-detection", 1, found=1, fixed=1, blocks=blocks)
        self._done("phase1", best)
        return best, initial

    def _path(self, path: str, best: Any, start: str) -> tuple[Any, str]:
        """The score that a path reaches, and the digest of its script."""
        for t in range(self.T):
            step, latest = f"{path}/t-{t}", start
            self._call(f"{step}/ablation", m.AgentType.ablation)
            self._script(f"{step}/ablation-script", None, "ablation")
            self._call(f"{step}/summarize", m.AgentType.summarize)
            parts = [self.words or name for name in PARTS[: 3 + t % 3]]
            scores = {f"no {name}": self._near(best, -0.03, 0.004) for name in parts}
            self._say(
                ev.AblationFinished, step, scores={"baseline": best, **scores}, solution_score=best,
                summary=self.words or f"Without {parts[0]} the score falls most; the rest hardly matters.",
            )  # fmt: skip
            self._call(f"{step}/extractor", m.AgentType.extractor)
            self._say(ev.BlockChosen, step, block=self._block(0), plan=self._plan())
            for k in range(self.K):
                reached = self._attempt(f"{step}/k-{k}", k, best, start)
                if reached is not None:
                    best, latest = reached, self._made[f"{step}/k-{k}"]
            start = latest
        self._done(path, best)
        return best, start

    def _attempt(self, step: str, k: int, best: Any, start: str) -> float | None:
        """The score of an attempt that was accepted."""
        plan = self._plan()
        if k:
            self._call(f"{step}/planner", m.AgentType.planner)
        self._call(f"{step}/coder", m.AgentType.coder)
        breaks = sum(map(int, re.findall(r"(?:path|t|k)-(\d+)", step))) % 7 == 5
        score = self._broken(step) if breaks else self._script(f"{step}/script", self._near(best, -0.02, 0.008))
        accepted = score is not None and m.is_improvement_or_equal(score, best, self.direction)
        self._say(
            ev.RefinementTried, step, plan=plan, before=self._block(0), after=self._block(k + 1), score=score,
            best_score=score if accepted else best, accepted=accepted, parents=[start],
        )  # fmt: skip
        return score if accepted else None

    def _phase3(self, best: Any, parents: list[str]) -> Any:
        self._say(ev.PhaseStarted, "phase3", phase="phase3")
        ahead: float | None = None
        for r in range(self.R):
            step = f"phase3/r-{r}"
            self._call(f"{step}/ens_planner", m.AgentType.ens_planner)
            self._call(f"{step}/ensembler", m.AgentType.ensembler)
            score = self._script(f"{step}/script", self._near(best, -0.004, 0.01))
            leads = ahead is None or m.is_improvement_or_equal(score, ahead, self.direction)
            ahead = score if leads else ahead
            self._say(ev.EnsembleTried, step, plan=self._plan(), score=score, best=leads, parents=parents)
        self._say(ev.BudgetWarning, limit="money", used=4.1, allowed=5.0)
        self._done("phase3", ahead)
        return ahead

    def _finalization(self, best: Any) -> None:
        self._say(ev.PhaseStarted, "finalization", phase="finalization")
        self._call("finalization/test", m.AgentType.test)
        self._script("finalization/submission-script", None, "submission")
        self._say(ev.Notice, level="info", message=self.words or "the submission has 4,277 rows")
        self._done("finalization", best)
        done, folder = self.outcome == "completed", self.run_dir or Path("run")
        self._say(
            ev.RunFinished, state="completed" if done else "failed", score=best if done else None,
            submission_path=str(folder / "final" / "submission.csv") if done else "",
            cost_usd=1.0, seconds=(self._now - self.started_at).total_seconds(),
            message="" if done else self.words or "PipelineError: no solution",
        )  # fmt: skip

    def _call(self, step: str, agent: m.AgentType, variant: str | None = None, seconds: float = 9) -> None:
        self._say(ev.AgentStarted, step, agent=agent, variant=variant)
        prompt = f"{self.words or 'Do your part.'} ({step})"
        request = {"digest": digest_of(prompt), "agent": agent, "prompt": prompt, "seconds": seconds}
        if agent is m.AgentType.planner and self._random.random() < 0.05:
            message = self.words or "planner: no answer within 900 s"
            self._say(ev.AgentFailed, step, seconds, **request, reason="timeout", message=message, cost_usd=0.001)
            return
        self._say(
            ev.AgentFinished, step, seconds, **request, variant=variant, template_hash="abc", model=self.model,
            text=self.words or f"Done: {step}.", cost_usd=0.021, input_tokens=2100, output_tokens=640,
        )  # fmt: skip

    def _script(self, step: str, score: Any, purpose: str = "solution") -> Any:
        code = SCRIPT.format(note=self.words or step, trees=self._random.randrange(100, 900))
        out = "" if score is None else f"Final Validation Performance: {score}\n"
        out = (self.words and self.words + "\n") + out
        self._ran(step, code, self._random.uniform(4, 30), purpose=purpose, stdout=out, score=score)
        place = step.rpartition("/")[0]
        if purpose == "solution":
            self._made[place] = digest_of(code)
        if score is not None and (self._best is None or m.is_improvement(score, self._best, self.direction)):
            self._best = score
            self._say(ev.BestImproved, place, 0.01, score=score)
            self._say(ev.SubmissionKept, step, 0.01, path="final/best_submission.csv", rows=4277, score=score)
        return score

    def _broken(self, step: str) -> float | None:
        """A script that fails, is repaired once, and fails again: it has no score."""
        error = f"{TRACEBACK}{self.words and chr(10) + self.words}"
        failed: dict[str, Any] = {"stderr": error, "exit_code": 1, "is_error": True, "score": None, "traceback": error}
        self._ran(f"{step}/script", SCRIPT.format(note=self.words or f"{step}/script", trees=1), 3, **failed)
        self._call(f"{step}/debugger", m.AgentType.debugger)
        self._say(ev.DebugAttempted, f"{step}/debugger", accepted=True, error=self.words or ERROR)
        self._ran(f"{step}/script-2", SCRIPT.format(note=self.words or f"{step}/script-2", trees=2), 3, **failed)
        return None

    def _ran(self, step: str, code: str, seconds: float, purpose: str = "solution", **result: Any) -> None:
        about: dict[str, Any] = {"step": step, "purpose": purpose}
        self._events.append(ev.ScriptStarted(at=self._tick(0.1), **about, timeout_seconds=600))
        about |= {"digest": digest_of(code), "script": code, "isolation": CONFINED}
        self._events.append(script_finished(seconds, at=self._tick(seconds), **about, **result))

    def _say(self, kind: type[AnyEvent], step: str = "", passed: float = 0.1, **fields: Any) -> None:
        """An event after so many seconds, with the numbers of its step and the digest of what was made there."""
        found = {NUMBERED[name]: int(number) for name, number in re.findall(r"(\w+)-(\d+)", step) if name in NUMBERED}
        known = {"step": step, "digest": self._made.get(step, ""), **found}
        own = {name: value for name, value in known.items() if name in kind.model_fields}
        self._events.append(kind(at=self._tick(passed), **{**own, **fields}))

    def _done(self, step: str, score: float | None) -> None:
        self._say(ev.PhaseFinished, step, phase=step.partition("/")[0], outcome="completed", score=score)

    def _level(self, gain: float) -> float:
        return self._base + self._sign * (gain + self._random.uniform(0, 0.01))

    def _near(self, score: float, low: float, high: float) -> float:
        return score + self._sign * self._random.uniform(low, high)

    def _plan(self) -> str:
        return self.words or self._random.choice(PLANS)

    def _block(self, version: int) -> str:
        lines = [f"feature_{number} = frame[{number}] * {self.seed}" for number in range(self.block_lines)]
        if version:
            lines[version % len(lines)] = f"feature_{version} = encode(frame, folds={version + 3})"
            lines.append(self.words or f"model = LGBMClassifier(num_leaves={16 * version + 15})")
        return "\n".join(lines)

    def _tick(self, seconds: float) -> datetime:
        self._now += timedelta(seconds=seconds)
        return self._now


def picked(events: list[AnyEvent], chosen: str = "") -> list[AnyEvent]:
    """The same with a final selection before its end; in the result stands which script it was made from."""
    *before, last = events
    story = RunStory.from_events(before)
    starts = [story.chosen_candidate, *(one for one in story.tried(ev.MergeTried) if one.accepted)]
    named: dict[str, Any] = {"": story.best_ensemble, "initial solution": starts[-1]}
    named |= {f"path {path}": starts[-1] for path in story.paths}
    named |= {f"path {one.path}": one for one in story.refinements if one.accepted}
    named |= {f"ensemble {one.r}": one for one in story.tried(ev.EnsembleTried)}
    named |= {f"{node.step}/script": node.event for node in story.nodes}
    if isinstance(last, ev.RunFinished) and last.result is not None:
        made = {"from_script": "", "from_phase": chosen} if chosen == "blend" else {"from_script": named[chosen].digest}
        facts = {**last.result.lineage, "finalization": {**last.result.lineage.get("finalization", {}), **made}}
        final = last.result.final_solution
        if "promoted" in facts:
            final = final.model_copy(update={"content": story.ledger.text(named[str(facts["promoted"])].digest)})
        result = last.result.model_copy(update={"lineage": facts, "final_solution": final})
        last = last.model_copy(update={"result": result})
    pick = [ev.ShortlistScored(at=last.at, step="shortlist", chosen=chosen)] if chosen else []
    return [*before, *pick, last]


def write_journal(run_dir: Path, events: list[AnyEvent]) -> None:
    """The journal of these events."""
    write_texts(run_dir, {"journal.jsonl": "".join(event.model_dump_json() + "\n" for event in events)})


def scored(invented: Invented) -> list[AnyEvent]:
    """A run with everything that a harness that scores by hidden rows adds."""
    expected = EXPECTED.model_copy(update={"printed": 0.871})
    start, *events, pick, end = invented.ended("ensemble 0", expected=expected)
    table = [
        {"name": name, **expected.model_dump(), "members": 1, "compared": compared}
        for name, compared in (("path 0", 0.849), ("ensemble 0", 0.851))
    ]
    examined = ev.SolutionExamined(
        at=end.at, step="shortlist", rows=3600, classes=["no", "yes, on the whole", "undecided"],
        confusion=[[1200, 20, 40], [3, 990, 12], [100, 9, 1226]],
        importance=[("a column with a rather long name, as tables have them", 0.12), ("age", 0.03), ("fare", -0.001)],
    )  # fmt: skip
    return [start, HOLDOUT, *events, pick.model_copy(update={"shortlist": table}), examined, end]


def campaign(shelf: Path) -> Path:
    """The page of a campaign in which everything has happened, beside the runs of the shelf."""
    names = ["good", "a-rather-long-name-of-a-competition-as-they-have-them", "third"]
    tasks = [Invented(name=name).task.model_copy(update={"data_dir": str(shelf)}) for name in names]
    medals = {"good": Medals(gold=0.9, silver=0.85, bronze=0.8)}
    made = Campaign.create(shelf, tasks, 3, m.PipelineConfig(model="offline"), medals=medals)
    done: dict[str, Any] = {"state": "finished", "score": 0.8712, "cost_usd": 1.25, "seconds": 754.0}
    ends: list[dict[str, Any]] = [
        {**done, "expected": 0.8531, "low": 0.84, "high": 0.866, "medal": "silver", "folder": GOOD},
        {**done, "score": 0.9},
        {"state": "failed", "message": "no candidate of Phase 1 came to a score; the last error was out of memory"},
        {"state": "left out", "message": "the campaign's money is spent"},
        {"state": "running"},
    ]
    made.entries = [one.model_copy(update=end) for one, end in zip(made.entries, [*ends, *ends], strict=False)]
    (shelf / PAGE).write_text(campaign_html(made), encoding="utf-8")
    return shelf / PAGE
