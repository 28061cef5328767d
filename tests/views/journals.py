"""Runs made up from a seed: every kind of event, in the order and under the steps that the pipeline uses."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

from mle_star import models as m
from mle_star.models.texts import digest_of
from mle_star.run import events as ev
from mle_star.run.events import AnyEvent
from mle_star.run.ledger import best_score
from tests.ledgers import script_finished

E = TypeVar("E", bound=ev.Event)
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
TRACEBACK = """Traceback (most recent call last):
  File "solution.py", line 9, in <module>
    model.fit(train, labels)
ValueError: could not convert string to float: 'n/a'"""


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
    started_at: datetime = datetime(2026, 1, 31, 14, 5, tzinfo=timezone.utc)
    run_dir: Path | None = None

    def __post_init__(self) -> None:
        self._now, self._random = self.started_at, random.Random(self.seed)
        self._best: float | None = None
        self._made: dict[str, str] = {}  # by place, the digest of its script
        self._parent: dict[str, str] = {}
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

    # --- the whole of it ---

    def events(self) -> Iterator[AnyEvent]:
        """Every event of the run, in order."""
        yield self._say(
            ev.RunStarted, 0, run_id="f00dfacecafe", task=self.task, config=self.config, model=self.model,
            hardware={"cpu_count": 8}, versions={"mle-star": "0.1.0", "python": "3.11.2"}, isolation=CONFINED,
        )  # fmt: skip
        yield self._say(
            ev.Forecast, calls=12 + self.L * self.T * (3 + 2 * self.K) + 2 * self.R, cost_usd=3.2, seconds=2700,
            scripts=2 * self.M + self.L * self.T * (1 + self.K) + self.R, basis="by the settings and list prices",
        )  # fmt: skip
        best = yield from self._phase1()
        for path in range(self.L):
            yield self._say(ev.PhaseStarted, step=f"phase2/path-{path}", phase="phase2", path=path)
        scores = []
        for path in range(self.L):
            scores.append((yield from self._path(path, best)))
        yield self._done("phase2", best_score(scores, self.direction))
        best = yield from self._phase3(best_score(scores, self.direction))
        yield from self._finalization(best)

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
        pick = [ev.ShortlistScored(at=last.at, step="shortlist", chosen=chosen)] if chosen else []
        return [*before, *pick, last.model_copy(update={"result": result})]

    def write(self, run_dir: Path) -> list[AnyEvent]:
        """A journal of the run in `run_dir`, and the files that a run leaves."""
        self.run_dir = run_dir
        events = list(self.events())
        write_journal(run_dir, events)
        (run_dir / "final").mkdir(exist_ok=True)
        (run_dir / "final" / "submission.csv").write_text("id,label\n1,0\n", encoding="utf-8")
        (run_dir / "solution.py").write_text(SCRIPT.format(note="final", trees=900), encoding="utf-8")
        return events

    # --- phases ---

    def _phase1(self) -> Generator[AnyEvent, None, Any]:
        yield self._say(ev.PhaseStarted, step="phase1", phase="phase1")
        yield from self._call("phase1/retriever", m.AgentType.retriever, seconds=40)
        names = [self.words or MODELS[index % len(MODELS)] for index in range(self.M)]
        models = [m.RetrievedModel(model_name=name, example_code="x") for name in names]
        yield self._say(ev.ModelsRetrieved, step="phase1", models=models)
        scores: list[float | None] = []
        for index in range(self.M):
            step = f"phase1/candidate-{index}"
            yield from self._call(f"{step}/init", m.AgentType.init)
            yield from self._call(f"{step}/leakage-detection", m.AgentType.leakage, "detection")
            if index == self.M - 1 and self.M > 1:
                yield from self._broken(step)
                scores.append(None)
            else:
                scores.append((yield from self._script(f"{step}/script", self._level(0.02 * index))))
        for index, score in enumerate(scores):
            step, error = f"phase1/candidate-{index}", self.words or "ValueError: could not convert 'n/a'"
            yield self._say(
                ev.CandidateEvaluated, step=step, index=index, model_name=names[index], score=score,
                error="" if score is not None else error, digest=self._made.get(step, ""),
            )  # fmt: skip
        best: Any = best_score(scores, self.direction)
        self._parent["initial"] = self._made[f"phase1/candidate-{scores.index(best)}"]
        for index in range(1, self.M - scores.count(None)):
            step = f"phase1/merge-{index}"
            yield from self._call(f"{step}/merger", m.AgentType.merger)
            score = yield from self._script(f"{step}/script", self._level(0.04 + 0.01 * index))
            accepted = m.is_improvement_or_equal(score, best, self.direction)
            yield self._say(
                ev.MergeTried, step=step, index=index, base_score=best, reference_model=names[index], score=score,
                accepted=accepted, reason="" if accepted else f"{score} does not reach {best}",
                digest=self._made[step], parents=[self._parent["initial"]],
            )  # fmt: skip
            if not accepted:
                break
            best, self._parent["initial"] = score, self._made[step]
        yield self._say(ev.DataUsageChecked, step="phase1/data-use", changed=False, score=best)
        blocks = [self.words or "scaler.fit(pd.concat([train, test]))"]
        yield self._say(ev.LeakageChecked, 1, step="phase1/leakage/leakage-detection", found=1, fixed=1, blocks=blocks)
        yield self._done("phase1", best)
        yield self._say(ev.PhaseStarted, step="phase2", phase="phase2")
        return best

    def _path(self, path: int, best: float) -> Generator[AnyEvent, None, Any]:
        self._parent[f"path-{path}"] = self._parent["initial"]
        for t in range(self.T):
            start = self._parent[f"path-{path}"]
            step = f"phase2/path-{path}/t-{t}"
            yield from self._call(f"{step}/ablation", m.AgentType.ablation)
            yield from self._script(f"{step}/ablation-script", None)
            yield from self._call(f"{step}/summarize", m.AgentType.summarize)
            parts = [self.words or name for name in PARTS[: 3 + t % 3]]
            scores = {"baseline": best} | {
                f"no {name}": best + self._sign * self._random.uniform(-0.03, 0.004) for name in parts
            }
            summary = self.words or f"Without {parts[0]} the score falls most; the rest hardly matters."
            yield self._say(
                ev.AblationFinished, step=step, path=path, t=t, scores=scores, solution_score=best, summary=summary
            )
            yield from self._call(f"{step}/extractor", m.AgentType.extractor)
            block = self._block(0)
            yield self._say(ev.BlockChosen, step=step, path=path, t=t, block=block, plan=self._plan())
            for k in range(self.K):
                best = yield from self._attempt(path, t, k, block, best, start)
        yield self._done(f"phase2/path-{path}", best, path=path)
        return best

    def _attempt(
        self, path: int, t: int, k: int, block: str, best: float, start: str
    ) -> Generator[AnyEvent, None, Any]:
        step, plan = f"phase2/path-{path}/t-{t}/k-{k}", self._plan()
        if k:
            yield from self._call(f"{step}/planner", m.AgentType.planner)
        yield from self._call(f"{step}/coder", m.AgentType.coder)
        score: float | None = None
        if (path + t + k) % 7 == 5:
            yield from self._broken(step)
        else:
            score = yield from self._script(f"{step}/script", best + self._sign * self._random.uniform(-0.02, 0.008))
        accepted = score is not None and m.is_improvement_or_equal(score, best, self.direction)
        best = (score if accepted else None) or best
        yield self._say(
            ev.RefinementTried, step=step, path=path, t=t, k=k, plan=plan, before=block, after=self._block(k + 1),
            score=score, best_score=best, accepted=accepted, digest=self._made.get(step, ""), parents=[start],
        )  # fmt: skip
        if accepted:
            self._parent[f"path-{path}"] = self._made[step]
        return best

    def _phase3(self, best: Any) -> Generator[AnyEvent, None, Any]:
        yield self._say(ev.PhaseStarted, step="phase3", phase="phase3")
        ahead: float | None = None
        for r in range(self.R):
            step = f"phase3/r-{r}"
            yield from self._call(f"{step}/ens_planner", m.AgentType.ens_planner)
            yield from self._call(f"{step}/ensembler", m.AgentType.ensembler)
            score = yield from self._script(f"{step}/script", best + self._sign * self._random.uniform(-0.004, 0.01))
            leads = ahead is None or m.is_improvement_or_equal(score, ahead, self.direction)
            ahead = score if leads else ahead
            parents = [self._parent[f"path-{path}"] for path in range(self.L)]
            yield self._say(
                ev.EnsembleTried, step=step, r=r, plan=self._plan(), score=score, best=leads,
                digest=self._made[step], parents=parents,
            )  # fmt: skip
        yield self._say(ev.BudgetWarning, limit="money", used=4.1, allowed=5.0)
        yield self._done("phase3", ahead)
        return ahead

    def _finalization(self, best: float) -> Iterator[AnyEvent]:
        yield self._say(ev.PhaseStarted, step="finalization", phase="finalization")
        yield from self._call("finalization/test", m.AgentType.test)
        yield from self._script("finalization/submission-script", None, purpose="submission")
        yield self._say(ev.Notice, level="info", message=self.words or "the submission has 4,277 rows")
        yield self._done("finalization", best)
        done, folder = self.outcome == "completed", self.run_dir or Path("run")
        yield self._say(
            ev.RunFinished, state="completed" if done else "failed", score=best if done else None,
            submission_path=str(folder / "final" / "submission.csv") if done else "",
            cost_usd=1.0, seconds=(self._now - self.started_at).total_seconds(),
            message="" if done else self.words or "PipelineError: no solution",
        )  # fmt: skip

    # --- calls and scripts ---

    def _call(
        self, step: str, agent: m.AgentType, variant: str | None = None, seconds: float = 9
    ) -> Iterator[AnyEvent]:
        yield self._say(ev.AgentStarted, step=step, agent=agent, variant=variant or None)
        prompt = f"{self.words or 'Do your part.'} ({step})"
        asked = {"step": step, "digest": digest_of(prompt), "agent": agent, "prompt": prompt, "seconds": seconds}
        if agent is m.AgentType.planner and self._random.random() < 0.05:
            message = self.words or "planner: no answer within 900 s"
            yield self._say(ev.AgentFailed, seconds, **asked, reason="timeout", message=message, cost_usd=0.001)
            return
        yield self._say(
            ev.AgentFinished, seconds, **asked, variant=variant or None, template_hash="abc", model=self.model,
            text=self.words or f"Done: {step}.", cost_usd=0.021, input_tokens=2100, output_tokens=640,
        )  # fmt: skip

    def _script(self, step: str, score: float | None, purpose: Any = "") -> Generator[AnyEvent, None, Any]:
        purpose = purpose or ("ablation" if step.endswith("ablation-script") else "solution")
        code = SCRIPT.format(note=self.words or step, trees=self._random.randrange(100, 900))
        yield self._say(ev.ScriptStarted, step=step, purpose=purpose, timeout_seconds=600)
        seconds, place = self._random.uniform(4, 30), step.rpartition("/")[0]
        if purpose == "solution":
            self._made[place] = digest_of(code)
        out = "" if score is None else f"Final Validation Performance: {score}\n"
        yield script_finished(
            at=self._tick(seconds), step=step, digest=digest_of(code), purpose=purpose, script=code,
            stdout=(self.words and self.words + "\n") + out, seconds=seconds, score=score, isolation=CONFINED,
        )  # fmt: skip
        if score is not None and (self._best is None or m.is_improvement(score, self._best, self.direction)):
            self._best = score
            yield self._say(ev.BestImproved, 0.01, step=place, score=score, digest=digest_of(code))
            yield self._say(
                ev.SubmissionKept, 0.01, step=step, path="final/best_submission.csv", rows=4277, score=score
            )
        return score

    def _broken(self, step: str) -> Iterator[AnyEvent]:
        """A script that fails, is repaired once, and fails again."""
        error = f"{TRACEBACK}{self.words and chr(10) + self.words}"
        for number in (1, 2):
            name = f"{step}/script{'' if number == 1 else '-2'}"
            yield self._say(ev.ScriptStarted, step=name, timeout_seconds=600)
            code = SCRIPT.format(note=self.words or name, trees=number)
            yield script_finished(
                at=self._tick(3), step=name, digest=digest_of(code), script=code, stderr=error, exit_code=1,
                seconds=3, is_error=True, score=None, traceback=error, isolation=CONFINED,
            )  # fmt: skip
            if number == 1:
                yield from self._call(f"{step}/debugger", m.AgentType.debugger)
                words = self.words or "ValueError: could not convert string to float: 'n/a'"
                yield self._say(ev.DebugAttempted, step=f"{step}/debugger", accepted=True, error=words)

    # --- small things ---

    def _say(self, kind: type[E], passed: float = 0.1, **fields: Any) -> E:
        """An event after so many seconds."""
        return kind(at=self._tick(passed), **fields)

    def _done(self, step: str, score: float | None, **fields: Any) -> AnyEvent:
        phase = step.partition("/")[0]
        return self._say(ev.PhaseFinished, step=step, phase=phase, outcome="completed", score=score, **fields)

    def _level(self, gain: float) -> float:
        return self._base + self._sign * (gain + self._random.uniform(0, 0.01))

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


def write_journal(run_dir: Path, events: list[AnyEvent]) -> None:
    """The journal of these events."""
    run_dir.mkdir(parents=True, exist_ok=True)
    lines = (event.model_dump_json() + "\n" for event in events)
    (run_dir / "journal.jsonl").write_text("".join(lines), encoding="utf-8")
