"""Ensembles of whole solutions: plans for combining them, and the one script that trains them all."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mle_star.engineer.rules import validation
from mle_star.engineer.rules.blends import BLENDS, judge_code
from mle_star.engineer.rules.profile import Profile
from mle_star.engineer.rules.sections import Script, defined_names, renamed

POOL_IMPORT = "from concurrent.futures import ThreadPoolExecutor"
MEAN_OF_SOLUTIONS = '''
def combine(y, known, others):
    """The mean of the solutions, each the mean of its models."""
    return [
        np.mean([np.mean([other[name] for name in names], axis=0) for names in SOLUTIONS], axis=0) for other in others
    ]
'''
CAREFUL_WEIGHTS = '''
def combine(y, known, others):
    """Half way between the plain mean and the weights that serve `known` best, so that luck counts only half."""
    rows = np.random.default_rng(SEED).permutation(len(y))[:8000]
    total, times = 0.0, dict.fromkeys(known, 0)
    for size in range(1, 21):
        best = max(known, key=lambda name: judge(y[rows], (total + known[name][rows]) / size))
        total = total + known[best][rows]
        times[best] += 1
    weights = {name: 0.5 * times[name] / 20 + 0.5 / len(times) for name in times}
    return [sum(weights[name] * other[name] for name in weights) for other in others]
'''


@dataclass(frozen=True)
class Plan:
    """One way to combine solutions: what is said, and the code of `combine`."""

    title: str
    why: str
    code: Callable[[Profile], str]
    worth: Callable[[Profile], float]
    imports: Callable[[Profile], tuple[str, ...]] = lambda p: ()


def _of_blend(name: str, title: str, worth: Callable[[Profile], float]) -> Plan:
    blend = BLENDS[name]

    def code(profile: Profile) -> str:
        judge = f"{judge_code(profile)}\n\n\n" if blend.judges else ""
        return judge + blend.code_for(profile)

    return Plan(title, blend.why, code, worth, blend.imports_for)


PLANS: tuple[Plan, ...] = (
    _of_blend(
        "weights",
        "Pool the models of all solutions and weigh them by their out-of-fold predictions",
        lambda p: 0.95 if p.rows > 300 else 0.7,
    ),
    Plan(
        "Pool the models of all solutions, with weights half way to the plain mean",
        "Fitted weights overrate what was lucky on the validation rows; half way back they keep most of the gain.",
        lambda p: f"{judge_code(p)}\n\n\n{CAREFUL_WEIGHTS.strip()}",
        lambda p: 0.85,
        BLENDS["weights"].imports_for,
    ),
    _of_blend(
        "stack", "Stack the models of all solutions under a linear model", lambda p: BLENDS["stack"].worth(p) + 0.1
    ),
    Plan(
        "Average the solutions, each as the mean of its models",
        "Each solution keeps its say, however many models it has, and nothing is fitted that could be fitted too well.",
        lambda p: MEAN_OF_SOLUTIONS.strip(),
        lambda p: 0.8 if p.small else 0.6,
    ),
    _of_blend("ranks", "Average the ranks that the models of all solutions give", BLENDS["ranks"].worth),
    _of_blend("geometric", "Take the geometric mean over the models of all solutions", BLENDS["geometric"].worth),
    _of_blend("median", "Take the median over the models of all solutions", lambda p: 0.25),
)


def next_plan(history: list[tuple[str, float | None]], profile: Profile) -> str:
    """The most promising plan that was not tried yet."""
    tried = " ".join(plan for plan, _ in history)
    ranked = sorted(PLANS, key=lambda plan: -plan.worth(profile))
    chosen = next((plan for plan in ranked if plan.title not in tried and plan.worth(profile) > 0), ranked[0])
    return (
        f"{chosen.title}. {chosen.why} All models are trained on the same folds, each with the features of its own "
        "solution, and the combination is learned from out-of-fold predictions alone."
    )


def plan_in(text: str, profile: Profile) -> Plan:
    """The plan that a text means."""
    ranked = sorted(PLANS, key=lambda plan: -plan.worth(profile))
    return next((plan for plan in PLANS if plan.title.lower() in text.lower()), ranked[0])


# --- the script ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """A model of one solution, with the names it has in the ensemble."""

    solution: int
    name: str
    body: str


def assemble(scripts: list[Script], plan: Plan, profile: Profile) -> Script:
    """One script that trains the models of all solutions; what two of them share is there once."""
    first = scripts[0]
    sections = {"load": _without_cap(first.sections["load"]), "target": _truth(first), "split": first.sections["split"]}
    views: dict[tuple[str, str], int] = {}
    members: list[Member] = []
    for number, script in enumerate(scripts, start=1):
        look = (script.sections["features"], _scale(script))
        if look not in views:
            views[look] = number
            sections |= _view_sections(script, number, profile)
        for section in script.names("model: "):
            body = _as_member(script.sections[section], views[look], number)
            if body is None or any(_same(m, script.sections[section], views[look]) for m in members):
                continue
            name = section.removeprefix("model: ")
            members.append(Member(number, f"{name} {number}", f"{views[look]}\n{script.sections[section]}"))
            sections[f"model {number}: {name}"] = body
    sections["combine"] = f"{_solutions(members)}\n{_views(views, profile)}\n\n\n{plan.code(profile)}"
    sections["metric"] = first.sections["metric"]
    sections["validate"] = validation.section(profile, views=True)
    sections["submit"] = first.sections["submit"]
    imports = (*(line for script in scripts for line in script.imports), *plan.imports(profile), POOL_IMPORT)
    entries = "\n".join(f"MODELS_{number} = {{}}" for number in views.values())
    settings = re.sub(r"^MODELS = \{\}$", entries, first.settings, flags=re.MULTILINE)
    settings = with_all_cores(settings, jobs=len(views) * folds_in(first.sections["split"]))
    names = ", ".join(dict.fromkeys(m.name for m in members))
    doc = re.sub(
        r" with .*?, judged by", f" with an ensemble of {len(scripts)} solutions, judged by", first.doc, count=1
    )
    doc = f"{doc.rstrip()}\n\nIts models: {names}.\n"
    return Script(doc, imports, settings, sections)


def with_all_cores(settings: str, jobs: int) -> str:
    """Settings for a script that runs so many jobs side by side."""
    lines = f"CORES = os.cpu_count() or 1\nTHREADS = max(1, CORES // {jobs})"
    settings = re.sub(r"^CORES = .*\n", "", settings, flags=re.MULTILINE)
    return re.sub(r"^THREADS = .*$", lines, settings, flags=re.MULTILINE)


def folds_in(split: str) -> int:
    """How many folds a split makes."""
    found = re.search(r"KFold\((?:n_splits=)?(\d+)(?:, n_repeats=(\d+))?", split)
    return int(found[1]) * int(found[2] or 1) if found else 1


def _same(member: Member, body: str, view: int) -> bool:
    return member.body == f"{view}\n{body}"


def _without_cap(load: str) -> str:
    """The load section without the cap on the rows: an ensemble is trained on all of them."""
    return re.sub(r"^if len\(train\) > \d+:.*\n    train = train\.sample\(.*\n", "", load, flags=re.MULTILINE)


def _truth(script: Script) -> str:
    return script.sections["target"].split("\n\n\ndef to_model")[0]


def _scale(script: Script) -> str:
    """The functions that change the target's scale."""
    _, found, rest = script.sections["target"].partition("\n\n\ndef to_model")
    return f"def to_model{rest}" if found else ""


def _view_sections(script: Script, number: int, profile: Profile) -> dict[str, str]:
    """The features of a solution, and its scale, under names of their own."""
    body = script.sections["features"]
    scale = _scale(script)
    text = f"{scale}\n\n\n{body}" if scale else body
    names = {name: f"{name}_{number}" for name in defined_names(text)}
    return {f"features {number}": renamed(text, names)}


def _as_member(body: str, view: int, number: int) -> str | None:
    """A model section under names of its own; None when it holds no model."""
    if 'MODELS["' not in body:
        return None
    names = {name: f"{name}_{number}" for name in defined_names(body)} | {"MODELS": f"MODELS_{view}"}
    names |= {"TEXTS": f"TEXTS_{view}"}
    text = renamed(body, names)
    return re.sub(r'^(MODELS_\d+)\["([^"]+)"\]', rf'\1["\2 {number}"]', text, flags=re.MULTILINE)


def _solutions(members: list[Member]) -> str:
    by_solution: dict[int, list[str]] = {}
    for member in members:
        by_solution.setdefault(member.solution, []).append(member.name)
    lists = ", ".join("[" + ", ".join(f'"{name}"' for name in names) + "]" for names in by_solution.values())
    return f"SOLUTIONS = [{lists}]"


def _views(views: dict[tuple[str, str], int], profile: Profile) -> str:
    scale = ", to_model_{0}, to_task_{0}" if profile.numeric else ""
    rows = [f"    (build_features_{number}, MODELS_{number}{scale.format(number)})," for number in views.values()]
    return "\n".join(["VIEWS = [", *rows, "]"])
