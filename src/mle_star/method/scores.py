"""Scores: reading them in the output of scripts, and the order among scripts that have one. Pure functions."""

import ast
import math
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from mle_star.method.codeblocks import parsed
from mle_star.models import SCORE_PATTERN, EvaluationResult, MetricDirection, SolutionScript, is_improvement

T = TypeVar("T")

SCORE_TEXT = "Final Validation Performance"
_PHRASE = f"{SCORE_TEXT}:"
_HIT = re.compile(SCORE_PATTERN)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_UNDEFINED = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_ABLATION = re.compile(r"^[^\S\n]*Ablation (.*):(.*)", re.MULTILINE)
ANALYSIS = "Analysis:"
"""How the lines of a study begin that say where the solution errs."""
BASELINE = "baseline"
"""The name under which an ablation study prints the score of the unchanged solution."""
MAX_MAGNITUDE = 1e30
"""No metric of any task is larger: a number beyond is a script that went astray."""
MAX_QUOTED = 80
_SLACK = 1e-6


class Scale(NamedTuple):
    """The metric that a score is one of, and the values that it can take."""

    metric: str
    low: float = -math.inf
    high: float = math.inf


class ScoreReading(NamedTuple):
    """The score that a script printed, or in `problem` why its last score line is none, for the debugger."""

    score: float | None = None
    problem: str = ""


def parse_score(stdout: str) -> float | None:
    """REQ-EX-011 as written: the number of the pattern's last hit; None without one, or when it is no finite number."""
    hits = _HIT.findall(stdout)
    return _finite(hits[-1]) if hits else None


def read_score(stdout: str, scale: Scale | None = None) -> ScoreReading:
    """The last score line decides: a line of its own, with one plain number that the metric can take.

    A line with `nan` or `inf` is no score line; after any other that cannot be used no earlier one counts.
    """
    stdout = stdout.replace("\r", "\n") + "\n"
    undefined = ""
    end = len(stdout)
    while (start := stdout.rfind(_PHRASE, 0, end)) >= 0:  # from the end: megabytes of log come before the score
        end = stdout.rfind("\n", 0, start) + 1
        line_end = stdout.find("\n", start)
        line, value = stdout[end:line_end].strip(), stdout[start + len(_PHRASE) : line_end].strip()
        alone = line.startswith(_PHRASE) and line.count(_PHRASE) == 1
        if alone and _UNDEFINED.fullmatch(value):
            undefined = undefined or f"the line says {value}: print a finite number"
        elif alone:
            return _scored(value, scale)
        elif _HIT.match(f"{_PHRASE} {value}"):
            return ScoreReading(problem=f"the line says {_quote(line)}: print the score on a line of its own")
    return ScoreReading(problem=undefined)


def _scored(value: str, scale: Scale | None) -> ScoreReading:
    if not value:
        return ScoreReading(problem="the line holds no number: print it on the same line")
    score = _finite(value) if _NUMBER.fullmatch(value) else None
    if score is None:
        return ScoreReading(problem=f"the line says {_quote(value)}: print a plain number")
    if scale is None or (scale.low - _SLACK <= score <= scale.high + _SLACK and abs(score) <= MAX_MAGNITUDE):
        return ScoreReading(score)
    bounds = {scale.low: f"at least {scale.low:g}", scale.high: f"at most {scale.high:g}"}
    limits = " and ".join(text for bound, text in bounds.items() if math.isfinite(bound)) or "never that far from 0"
    return ScoreReading(problem=f"the line says {_quote(value)}, but {scale.metric} is {limits}")


def _quote(text: str) -> str:
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]} ..."


def parse_ablation_lines(stdout: str) -> dict[str, float]:
    """The scores that a study printed as `Ablation <name>: <score>`, in order; of a repeated name the last counts."""
    lines = [(name.strip(), _finite(number)) for name, number in _ABLATION.findall(stdout)]
    return {name: score for name, score in lines if name and score is not None}


def parse_analysis(stdout: str) -> str:
    """What a study printed about where the solution errs, line by line."""
    return "\n".join(line.strip() for line in re.findall(rf"^[^\S\n]*{ANALYSIS}(.*)", stdout, re.MULTILINE))


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def says_score(code: str) -> bool:
    """Does a text of the script, not only a comment or a docstring, hold the words before the score?"""
    tree = parsed(code)
    if tree is None:
        return SCORE_TEXT in re.sub(r"#.*", "", code)
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in bare]
    return any(isinstance(node.value, str) and SCORE_TEXT in node.value for node in texts)


# --- order; only `is_improvement` knows which score is better ---------------------------------------------


def is_better_solution(new_result: EvaluationResult, old_score: float, direction: MetricDirection) -> bool:
    """Does a run without error beat a known score, strictly?"""
    score = None if new_result.is_error else new_result.score
    return score is not None and is_improvement(score, old_score, direction)


def best_first(items: Iterable[T], score: Callable[[T], float | None], direction: MetricDirection) -> list[T]:
    """The items by their scores; those without one come last, ties keep their order."""
    sign = -1 if direction is MetricDirection.maximize else 1
    return sorted(items, key=lambda item: (score(item) is None, sign * (score(item) or 0.0)))


def best_of(items: Iterable[T], score: Callable[[T], float | None], direction: MetricDirection) -> T | None:
    """The item with the best score, the first one on ties; None where none has any."""
    return next((item for item in best_first(items, score, direction) if score(item) is not None), None)


def rank_solutions(
    solutions: list[SolutionScript], results: list[EvaluationResult], direction: MetricDirection
) -> list[tuple[SolutionScript, EvaluationResult]]:
    """Best first: scored ones, then those without a score, then all that failed; ties keep their order."""
    if len(solutions) != len(results):
        raise ValueError(f"{len(solutions)} solutions but {len(results)} results")
    scored = list(zip(solutions, results, strict=True))
    ran, failed = ([pair for pair in scored if pair[1].is_error is error] for error in (False, True))
    return [*best_first(ran, lambda pair: pair[1].score, direction), *failed]
