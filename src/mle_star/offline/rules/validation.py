"""The code that trains and judges: cross-validation, answers, the honest score. One shape for all kinds of scripts."""

from __future__ import annotations

from mle_star.offline.rules.profile import Profile

RARE_CLASS = 12
"""Below so many rows a class may be missing from a fold's training rows."""

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
    """Each model's predictions for the test rows: the mean of fits on all rows that differ by their seed."""
    asked = {}
$loop
    return asked'''


def functions(profile: Profile, *, test: bool = True, views: bool = False, varied: bool = False) -> str:
    """The section's functions. `test`: predict the test rows, too; `views`: several solutions; `varied`: a study."""
    parts = [SPREAD] if has_rare_classes(profile) else []
    parts += [_cross_validate(profile, test=test, views=views, varied=varied), _answers(profile), PICK]
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


def _cross_validate(profile: Profile, *, test: bool, views: bool, varied: bool) -> str:
    arguments = "y"
    if varied:
        arguments += ", build_features=build_features, models=MODELS"
        arguments += ", to_model=to_model, to_task=to_task" if profile.numeric else ""
    which = "(*models for _, models, *_ in VIEWS)" if views else "models" if varied else "MODELS"
    names = "[name for _, models, *_ in VIEWS for name in models]" if views else which
    about = "for the training rows out of fold" + (", for the test rows as the mean of the folds" if test else "")
    lines = [
        f"def cross_validate({arguments}):",
        f'    """Each model\'s predictions: {about}."""',
        f"    known = {{name: np.zeros({_shape(profile, 'len(train)')}) for name in {names}}}",
    ]
    if test:
        lines.append(f"    asked = {{name: np.zeros({_shape(profile, 'len(test)')}) for name in known}}")
    lines += [
        "    times = np.bincount(np.concatenate([held for _, held in folds]), minlength=len(train))",
        "    for number, (fit, held) in enumerate(folds):",
        *_fold(profile, test=test, views=views, varied=varied),
        "    return known, asked" if test else "    return known",
    ]
    return "\n".join(lines)


def _fold(profile: Profile, *, test: bool, views: bool, varied: bool) -> list[str]:
    """What happens in one fold."""
    lines, indent = [], "        "
    rare = has_rare_classes(profile)
    if rare:
        lines.append(f"{indent}seen, y_fit = np.unique(y[fit], return_inverse=True)  # a rare class may be missing")
    elif not profile.numeric:
        lines.append(f"{indent}y_fit = y[fit]")
    if views:
        scale = ", to_model, to_task" if profile.numeric else ""
        lines.append(f"{indent}for build_features, models{scale} in VIEWS:")
        indent += "    "
    if profile.numeric:
        lines.append(f"{indent}y_fit = to_model(y[fit])")
    others, got = ("[train.iloc[held], test]", "x, x_held, x_test") if test else ("[train.iloc[held]]", "x, x_held")
    lines.append(f"{indent}{got} = build_features(train.iloc[fit], y_fit, {others})")
    lines.append(f"{indent}for name, fit_model in {'models' if views or varied else 'MODELS'}.items():")
    indent += "    "
    frames, given = ("[x_held, x_test]", "p_held, p_test") if test else ("[x_held]", "(p_held,)")
    lines.append(f"{indent}{given} = fit_model(x, y_fit, {frames}, SEED + number)")
    wrap = "to_task({})" if profile.numeric else "spread({}, seen)" if rare else "{}"
    divide = "times[held]" if profile.numeric else "times[held, None]"
    lines.append(f"{indent}known[name][held] += {wrap.format('p_held')} / {divide}")
    if test:
        lines.append(f"{indent}asked[name] += {wrap.format('p_test')} / len(folds)")
    return lines


def fit_all(profile: Profile, *, views: bool, times: int) -> str:
    """The function that trains on all rows, for the submission."""
    lines, indent = [], "    "
    fit_y = "to_model(y)" if profile.numeric else "y"
    if views:
        scale = ", to_model, to_task" if profile.numeric else ""
        lines.append(f"{indent}for build_features, models{scale} in VIEWS:")
        indent += "    "
    lines.append(f"{indent}x, x_test = build_features(train, {fit_y}, [test])")
    lines.append(f"{indent}for name, fit_model in {'models' if views else 'MODELS'}.items():")
    lines.append(f"{indent}    runs = [fit_model(x, {fit_y}, [x_test], SEED + 100 * k)[0] for k in range(times)]")
    given = "[to_task(p) for p in runs]" if profile.numeric else "runs"
    lines.append(f"{indent}    asked[name] = np.mean({given}, axis=0)")
    return FIT_ALL.replace("$loop", "\n".join(lines)).replace("$times", str(times))


def _answers(profile: Profile) -> str:
    decided = bool(profile.metric.decision(len(profile.classes)))
    last = "decide(y, blends[0], blends[1:])" if decided else "blends[1:]"
    return f'''def answers(y, known, others):
    """Combined predictions for `others`; weights, cuts and the like are learned from `known` and its truth `y`."""
    blends = combine(y, known, [known, *others])
    return {last}'''


def run(profile: Profile, *, refit: bool = False) -> str:
    """The lines that do it all and print the score. `refit`: the test rows get models trained on all rows."""
    got = "known = cross_validate(y)" if refit else "known, asked = cross_validate(y)"
    again = ["asked = fit_all(y)"] if refit else []
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


def section(profile: Profile, *, views: bool = False, refits: int = 0) -> str:
    """The section of a solution. `refits`: fits on all rows behind the submission; 0: the folds' models make it."""
    parts = [functions(profile, views=views, test=not refits)]
    if refits:
        parts.append(fit_all(profile, views=views, times=refits))
    return "\n\n\n".join([*parts, run(profile, refit=bool(refits))])
