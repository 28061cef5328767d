"""Ablation studies: scripts that leave parts out and print the scores, and what can be read from their output."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mle_star.engineer.rules import validation
from mle_star.engineer.rules.moves import change_settings, function_of, model_keys, step_keys, without_step
from mle_star.engineer.rules.profile import Profile
from mle_star.engineer.rules.script import PLAIN_SCALE
from mle_star.engineer.rules.sections import Script

PARTS_A_STUDY = 3
QUICK_ABOVE_ROWS = 4_000
SHALLOW: dict[str, dict[str, str | float]] = {
    "lightgbm": {"num_leaves": "4"},
    "catboost": {"depth": "2"},
    "xgboost": {"max_depth": "2"},
    "extra_trees": {"min_samples_leaf": 20.0},
    "random_forest": {"min_samples_leaf": 20.0},
    "hist_boosting": {"max_leaf_nodes": "4"},
}
"""Settings that take a model's strength away, to see how much of the score it carries."""
HALVES = {"first": "[: len(NUMBERS) // 2]", "second": "[len(NUMBERS) // 2 :]"}
HALF = '''def $name(fit, fit_y, others):
    """The columns for the models without half of the numbers."""
    return [x.drop(columns=NUMBERS$slice, errors="ignore") for x in build_features(fit, fit_y, others)]'''
_LINE = re.compile(r"^\s*(?:Ablation\s+)?([^:\n]{2,80}?)\s*[:=]\s*([-+]?\d[\d.]*(?:[eE][-+]?\d+)?)\s*$")
_PAIR = re.compile(r"([A-Za-z][\w .+/&'-]{1,60}?)\s*[:=]\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)")


@dataclass(frozen=True)
class Finding:
    """One varied part: its score, and how much worse than the baseline it is (negative: better)."""

    part: str
    score: float
    loss: float


# --- the study -------------------------------------------------------------------------------------------


def study(script: Script, previous: str, profile: Profile, *, turn: int) -> Script:
    """A study of two or three parts that no summary in `previous` names; of those that it does when none is left."""
    parts = parts_of(script)
    fresh = [part for part in parts if f"`{part}`" not in previous] or parts
    if turn and len(fresh) > PARTS_A_STUDY:
        fresh = fresh[turn % len(fresh) :] + fresh[: turn % len(fresh)]
    chosen = fresh[:PARTS_A_STUDY]
    sections = {name: body for name, body in script.sections.items() if name not in ("validate", "submit")}
    sections["load"] = _without_test(sections.get("load", ""))
    sections["validate"] = _validate(profile)
    sections["study"] = _study(script, chosen, profile)
    doc = (
        f"Ablation study: {', '.join(chosen)}.\n\nEach variation leaves one part out; everything else stays as it is.\n"
    )
    return script.changed(doc=doc, sections=sections)


def parts_of(script: Script) -> list[str]:
    """What can be varied, in the order of the script, features and models in turn."""
    steps = [f"features / {key}" for key in step_keys(script.sections.get("features", "")) if key != "texts"]
    named = script.names("model: ")
    trained = named if len(named) > 1 else [
        f"{name} / depth" for name in named if set(model_keys(script.sections[name])) & set(SHALLOW)
    ]  # fmt: skip
    other = ["target / logarithm"] if "np.log1p(values)" in script.sections.get("target", "") else []
    if "judge(" in script.sections.get("combine", "") or "Regression" in script.sections.get("combine", ""):
        other.append("combine / weights")
    halves = [f"features / {half} half of the numbers" for half in HALVES] if len(script.names("model")) < 3 else []
    rows = [steps, trained, other, halves]
    return [part for turn in range(max(map(len, rows), default=0)) for row in rows for part in row[turn : turn + 1]]


def _without_test(load: str) -> str:
    """The load section without the test rows."""
    load = re.sub(r"^test = .*\n?", "", load, flags=re.MULTILINE)
    joined = r"^train, test = \(frame(.*) for frame in \(train, test\)\)$"
    load = re.sub(joined, r"train = train\1", load, flags=re.MULTILINE)
    return load.replace("for frame in (train, test):", "for frame in (train,):")


def _validate(profile: Profile) -> str:
    """Cross-validation of variations: no test rows, and the parts that vary are arguments."""
    few = "folds = folds[:2]  # enough to tell the parts apart\n\n\n" if profile.rows > QUICK_ABOVE_ROWS else ""
    return few + validation.functions(profile, test=False, varied=True)


def _study(script: Script, parts: list[str], profile: Profile) -> str:
    variants: list[str] = []
    runs: list[str] = []
    for part in parts:
        kind, _, detail = part.partition(" / ")
        made = _variant(script, kind, detail, part)
        variants += made[:1] if made[0] else []
        runs.append(made[1])
    worst = "min" if profile.metric.higher else "max"
    lines = ["scores = {}", "known = cross_validate(y)", 'scores["baseline"] = honest_score(y, known)', *runs]
    if len(profile.targets) > 1:
        lines = _of_all_targets(lines)
    lines += [
        "for name, value in scores.items():",
        '    print(f"Ablation {name}: {value}")',
        'parts = [name for name in scores if name != "baseline"]',
        f'print(f"The part that contributes most is {{{worst}(parts, key=scores.get)}}.")',
    ]
    return "\n\n\n".join([*variants, "\n".join(lines)])


def _of_all_targets(lines: list[str]) -> list[str]:
    """The study of one target done for each, and the mean of the scores."""
    return [
        "means = {}",
        "for target in TARGETS:",
        "    classes, y = truth(target)",
        *(f"    {line}" for line in lines),
        "    for name, value in scores.items():",
        "        means[name] = means.get(name, 0) + value / len(TARGETS)",
        "scores = means",
    ]


def _variant(script: Script, kind: str, detail: str, part: str) -> tuple[str, str]:
    """The code that a variation needs, and the line that runs it."""
    line = f'scores["{part}"] = honest_score(y, '
    half = re.fullmatch(r"(\w+) half of the numbers", detail)
    if kind == "features" and half:
        name = f"build_without_{half[1]}_half"
        function = HALF.replace("$name", name).replace("$slice", HALVES[half[1]])
        return function, f"{line}cross_validate(y, build_features={name}))"
    if kind == "features":
        body = without_step(script.sections["features"], detail)
        function = body[body.index("def build_features(") :]
        name = f"build_without_{detail.replace(' ', '_')}"
        return function.replace(
            "def build_features(", f"def {name}(", 1
        ), f"{line}cross_validate(y, build_features={name}))"
    if kind.startswith("model: ") and not detail:
        name = kind.removeprefix("model: ")
        others = f'{{name: p for name, p in known.items() if name != "{name}"}}'
        return "", f"{line}{others})"
    if kind.startswith("model: "):
        section = script.sections[kind]
        key = model_keys(section)[0]
        weak = change_settings(section, key, SHALLOW[key])
        place = function_of(weak, key)
        function = weak[slice(*place)].rstrip() if place else ""
        name = kind.removeprefix("model: ")
        renamed = function.replace(f"def fit_{key}(", "def fit_shallow(", 1)
        return renamed, f'{line}cross_validate(y, models={{"{name}": fit_shallow}}))'
    if kind == "target":
        plain = PLAIN_SCALE.replace("to_model", "plain_to_model").replace("to_task", "plain_to_task")
        return plain, f"{line}cross_validate(y, to_model=plain_to_model, to_task=plain_to_task))"
    mean = '{"mean": np.mean(list(known.values()), axis=0)}'
    return "", f"{line}{mean})"


# --- reading results -------------------------------------------------------------------------------------


def printed_scores(output: str) -> dict[str, float]:
    """The scores that a study printed, by name: lines of their own first, else pairs inside lines."""
    scores = {m[1].strip(): float(m[2]) for line in output.splitlines() if (m := _LINE.match(line))}
    if len(scores) < 2:
        scores = {m[1].strip(): float(m[2]) for m in _PAIR.finditer(output)}
    return scores


def summarize(output: str, *, higher: bool, metric: str) -> str:
    """What a study found, in a few sentences; most and least important parts by name."""
    scores = printed_scores(output)
    baseline = next(
        (name for name in scores if re.search(r"baseline|original|full|unchanged", name, re.IGNORECASE)), None
    )
    if not scores:
        return "The study printed no scores, so nothing can be said about the parts of the solution."
    if baseline is None:
        return "The study printed no baseline. " + " ".join(f"`{n}` scores {v:.10g}." for n, v in scores.items())
    base = scores.pop(baseline)
    if not scores:
        return f"The baseline scores {base:.10g}; no part was varied."
    losses = {name: (base - value) if higher else (value - base) for name, value in scores.items()}
    order = sorted(losses, key=lambda name: -losses[name])
    better = "higher" if higher else "lower"
    sentences = [f"The baseline scores {base:.10g} ({metric or 'score'}, {better} is better)."]
    for name in order:
        change = f"{abs(losses[name]):.6g} {'worse' if losses[name] > 0 else 'better'}" if losses[name] else "no change"
        sentences.append(f"Without `{name}` the score is {scores[name]:.10g}, {change}.")
    by_size = sorted(losses, key=lambda name: -abs(losses[name]))
    sentences.append(f"`{order[0]}` has the most impact: leaving it out costs most.")
    if len(order) > 1:
        sentences.append(f"`{by_size[-1]}` has the least impact.")
    harmful = [name for name in order if losses[name] < 0]
    if harmful:
        sentences.append(f"Leaving out `{harmful[-1]}` even helps.")
    return " ".join(sentences)


def findings_in(summary: str) -> list[Finding]:
    """The varied parts that a summary of ours tells of."""
    pattern = re.compile(r"Without `([^`]+)` the score is ([-+\d.eE]*\d), (?:([\d.eE+-]*\d) (worse|better)|no change)")
    found = []
    for part, score, size, word in pattern.findall(summary):
        loss = float(size) * (1 if word == "worse" else -1) if size else 0.0
        found.append(Finding(part, float(score), loss))
    return found
