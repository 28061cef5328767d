"""The code that trains and judges: cross-validation, answers, the honest score. One shape for all kinds of scripts."""

from __future__ import annotations

from dataclasses import dataclass

from mle_star.engineer.rules.profile import Profile

RARE_CLASS = 12
"""Below so many rows a class may be missing from a fold's training rows."""

HOLD_OUT_ABOVE_CELLS = 1_500_000
"""Above so many rows times columns one held-out part is enough to judge by."""

SPREAD = '''def spread(p, seen):
    """Probabilities of the classes in `seen` as probabilities of all classes."""
    full = np.zeros((len(p), len(classes)))
    full[:, seen] = p
    return full'''

PICK = '''def pick(predictions, rows):
    """The predictions of every model for some rows."""
    return {name: p[rows] for name, p in predictions.items()}'''

HONEST = '''def honest_score(y, known):
    """The score of answers that were each learned from other rows than those they are given for."""
    scored = np.unique(np.concatenate([held for _, held in folds]))
    given = $empty
    for learn, judge_rows in KFold(5, shuffle=True, random_state=SEED).split(scored):
        learn, judged = scored[learn], scored[judge_rows]
        given[judged] = answers(y[learn], pick(known, learn), [pick(known, judged)])[0]
    return score(y[scored], given[scored])'''

FIT_ALL = '''def fit_all(y, times=$times):
    """Each model's predictions for the test rows, trained on all rows: the mean of fits that differ by their seed."""

    def work(job):
        ($names), k = job
        x, x_test = build_features(train, $fit_y, [test])
        return {name: fit_model(x, $fit_y, [x_test], SEED + 100 * k)[0] for name, fit_model in models.items()}

    asked = {name: 0.0 for _, models, *_ in VIEWS for name in models}
    with ThreadPoolExecutor(CORES) as pool:
        jobs = [(view, k) for view in VIEWS for k in range(times)]
        for (($names), _), predictions in zip(jobs, pool.map(work, jobs)):
            for name, p in predictions.items():
                asked[name] = asked[name] + $given / times
    return asked'''

IN_PARALLEL = '''def cross_validate(y):
    """Each model's predictions: $about."""

    def work(job):
        number, (fit, held), ($names) = job
$y_fit
        $got = build_features(train.iloc[fit], y_fit, $frames)
        return {name: fit_model(x, y_fit, $others, SEED + number) for name, fit_model in models.items()}$seen

    known = {name: np.zeros($rows) for _, models, *_ in VIEWS for name in models}
$asked    times = np.bincount(np.concatenate([held for _, held in folds]), minlength=len(train))
    with ThreadPoolExecutor(CORES) as pool:
        jobs = [(number, fold, view) for number, fold in enumerate(folds) for view in VIEWS]
        for (_, (_, held), ($names)), $result in zip(jobs, pool.map(work, jobs)):
            for name, $pair in predictions.items():
                known[name][held] += $held / $times
$add    return $return'''


def functions(profile: Profile, *, test: bool = True, views: bool = False, varied: bool = False) -> str:
    """The section's functions. `test`: predict the test rows, too; `views`: several solutions; `varied`: a study."""
    parts = [SPREAD] if has_rare_classes(profile) else []
    parts.append(_in_parallel(profile, test=test) if views else _cross_validate(profile, test=test, varied=varied))
    parts += [_answers(profile), PICK]
    parts.append(HONEST.replace("$empty", _empty(profile)))
    return "\n\n\n".join(parts)


def has_rare_classes(profile: Profile) -> bool:
    """May a fold lack a class?"""
    return not profile.numeric and profile.rarest_class < RARE_CLASS


def _shape(profile: Profile, rows: str) -> str:
    return rows if profile.numeric else f"({rows}, len(classes))"


def _empty(profile: Profile) -> str:
    """Where the answers of a task are stored."""
    if profile.metric.kind == "probability":
        return "np.zeros((len(train), len(classes)))"
    return "np.zeros(len(train))" if profile.metric.kind == "number" else "np.zeros(len(train), dtype=int)"


def _cross_validate(profile: Profile, *, test: bool, varied: bool) -> str:
    """One fold after another, one model after another."""
    arguments = "y"
    if varied:
        arguments += ", build_features=build_features, models=MODELS"
        arguments += ", to_model=to_model, to_task=to_task" if profile.numeric else ""
    models = "models" if varied else "MODELS"
    lines = [
        f"def cross_validate({arguments}):",
        f'    """Each model\'s predictions: {_about(test)}."""',
        f"    known = {{name: np.zeros({_shape(profile, 'len(train)')}) for name in {models}}}",
        *([f"    asked = {{name: np.zeros({_shape(profile, 'len(test)')}) for name in known}}"] if test else []),
        "    times = np.bincount(np.concatenate([held for _, held in folds]), minlength=len(train))",
        "    for number, (fit, held) in enumerate(folds):",
        f"        {_y_fit(profile)}",
    ]
    others, got = ("[train.iloc[held], test]", "x, x_held, x_test") if test else ("[train.iloc[held]]", "x, x_held")
    frames, given = ("[x_held, x_test]", "p_held, p_test") if test else ("[x_held]", "(p_held,)")
    lines += [
        f"        {got} = build_features(train.iloc[fit], y_fit, {others})",
        f"        for name, fit_model in {models}.items():",
        f"            {given} = fit_model(x, y_fit, {frames}, SEED + number)",
        f"            known[name][held] += {_in_task(profile, 'p_held')} / {_times(profile)}",
        *([f"            asked[name] += {_in_task(profile, 'p_test')} / len(folds)"] if test else []),
        "    return known, asked" if test else "    return known",
    ]
    return "\n".join(lines)


def _about(test: bool) -> str:
    return "for the training rows out of fold" + (", for the test rows as the mean of the folds" if test else "")


def _y_fit(profile: Profile) -> str:
    if has_rare_classes(profile):
        return "seen, y_fit = np.unique(y[fit], return_inverse=True)  # a rare class may be missing"
    return "y_fit = to_model(y[fit])" if profile.numeric else "y_fit = y[fit]"


def _in_task(profile: Profile, name: str) -> str:
    """A model's predictions on the scale, or for the classes, of the task."""
    if profile.numeric:
        return f"to_task({name})"
    return f"spread({name}, seen)" if has_rare_classes(profile) else name


def _times(profile: Profile) -> str:
    return "times[held]" if profile.numeric else "times[held, None]"


def _in_parallel(profile: Profile, *, test: bool) -> str:
    """Solutions and folds side by side, on all cores."""
    rare = has_rare_classes(profile)
    words = {
        "$about": _about(test),
        "$names": _view_names(profile),
        "$y_fit": f"        {_y_fit(profile)}",
        "$got": "x, x_held, x_test" if test else "x, x_held",
        "$frames": "[train.iloc[held], test]" if test else "[train.iloc[held]]",
        "$others": "[x_held, x_test]" if test else "[x_held]",
        "$seen": ", seen" if rare else "",
        "$rows": _shape(profile, "len(train)"),
        "$asked": f"    asked = {{name: np.zeros({_shape(profile, 'len(test)')}) for name in known}}\n" if test else "",
        "$result": "(predictions, seen)" if rare else "predictions",
        "$pair": "(p_held, p_test)" if test else "(p_held,)",
        "$held": _in_task(profile, "p_held"),
        "$times": _times(profile),
        "$add": f"                asked[name] += {_in_task(profile, 'p_test')} / len(folds)\n" if test else "",
        "$return": "known, asked" if test else "known",
    }
    return _filled(IN_PARALLEL, words)


def _view_names(profile: Profile) -> str:
    return "build_features, models, to_model, to_task" if profile.numeric else "build_features, models"


def fit_all(profile: Profile, times: int) -> str:
    """The function that trains on all rows, for the submission."""
    words = {
        "$times": str(times),
        "$names": _view_names(profile),
        "$fit_y": "to_model(y)" if profile.numeric else "y",
        "$given": "to_task(p)" if profile.numeric else "p",
    }
    return _filled(FIT_ALL, words)


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _answers(profile: Profile) -> str:
    decided = bool(profile.metric.decision(len(profile.classes)))
    last = "decide(y, blends[0], blends[1:])" if decided else "blends[1:]"
    return f'''def answers(y, known, others):
    """Combined predictions for `others`; weights, cuts and the like are learned from `known` and its truth `y`."""
    blends = combine(y, known, [known, *others])
    return {last}'''


@dataclass(frozen=True)
class Refits:
    """Models trained on all rows, for the submission: how many, and whether they answer without those of the folds."""

    times: int
    alone: bool


def run(profile: Profile, refits: Refits | None) -> str:
    """The lines that do it all and print the score. With `refits`, models trained on all rows join the folds'."""
    again: list[str] = []
    got = "known, asked = cross_validate(y)"
    if refits and refits.alone:
        got, again = "known = cross_validate(y)", ["asked = fit_all(y)"]
    elif refits:
        again = ["everything = fit_all(y)", HALF_AND_HALF]
    if len(profile.targets) == 1:
        return "\n".join([got, 'print(f"Final Validation Performance: {honest_score(y, known)}")', *again])
    return "\n".join(
        [
            "scores, given = [], {}",
            "scored = np.unique(np.concatenate([held for _, held in folds]))",
            "for target in TARGETS:",
            "    classes, y = truth(target)",
            f"    {got}",
            "    scores.append(honest_score(y, known))",
            *(f"    {line}" for line in again),
            "    given[target] = answers(y[scored], pick(known, scored), [asked])[0]",
            'print(f"Final Validation Performance: {np.mean(scores)}")',
        ]
    )


HALF_AND_HALF = "asked = {name: (asked[name] + everything[name]) / 2 for name in asked}"


def is_hold_out(profile: Profile) -> bool:
    """Is there one held-out part instead of folds?"""
    return bool(profile.later_test) or profile.rows * profile.width > HOLD_OUT_ABOVE_CELLS


def section(profile: Profile, *, views: bool = False, refits: Refits | None = None) -> str:
    """The section of a solution. Without `refits` the folds' models make the submission."""
    parts = [functions(profile, views=views, test=not (refits and refits.alone))]
    if refits:
        parts.append(fit_all(profile, refits.times))
    return "\n\n\n".join([*parts, run(profile, refits)])
