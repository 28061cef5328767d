"""A finished run to take along in one folder, or with another of its scripts as the final solution."""

import ast
import importlib.metadata
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

from mle_star.data.guess import NO_TEST
from mle_star.data.place import DataFolder
from mle_star.errors import ConfigError
from mle_star.execution import inspect_interpreter, verify_submission
from mle_star.execution.artifacts import STATE, fitted_digest, restore_fitted
from mle_star.execution.harness import NOT_FITTED
from mle_star.execution.submission import SUBMISSION
from mle_star.holdout.views import SAMPLE_NAME
from mle_star.method.codeblocks import parsed
from mle_star.models import FinalResult
from mle_star.results import Model, load_model, read_result, score_in_words, script_of
from mle_star.run.folder import RunFolder, is_running, place_copy
from mle_star.run.journal import Journal
from mle_star.run.ledger import ScriptRun
from mle_star.sdk.definitions import plain_name
from mle_star.search.final_result import write_result
from mle_star.views import RunStory, text
from mle_star.views.facts import place_of

logger = logging.getLogger(__name__)
BY_HAND = "promoted by hand"
_USUAL = {
    "sklearn": "scikit-learn",
    "cv2": "opencv-python",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "skimage": "scikit-image",
}

_TEXTS = Path(__file__).with_name("exported")
"""The files of an exported folder, with names in braces for what differs."""


def export_run(run_dir: Path, target: Path) -> list[Path]:
    """Write all that another machine needs into `target`, which is new or empty; the files at its top."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target}: exists already and is not empty; name a new folder")
    model = load_model(run_dir)
    result = model.result
    python = inspect_interpreter(model.config.python)
    target.mkdir(parents=True, exist_ok=True)
    _copy_data(model, target / "input")
    (target / "final").mkdir()
    if (script := _predict_script(model)) is not None:
        (target / "predict.py").write_text(script, encoding="utf-8")
    (target / "solution.py").write_text(result.final_solution.content, encoding="utf-8")
    if (run_dir / "solution").is_dir():  # the members of a blend
        shutil.copytree(run_dir / "solution", target / "solution")
    digest = fitted_digest(result.final_solution.content, DataFolder(model.layout.folder, ours=run_dir))
    if not restore_fitted(run_dir, target, digest):  # none, or of another script or other data
        (target / STATE).rmdir()
    scripts = [path.read_text(encoding="utf-8") for path in (target / "solution.py", *target.glob("solution/*.py"))]
    packages = needs(scripts, python.packages)
    (target / "requirements.txt").write_text("".join(f"{line}\n" for line in packages))
    version = ".".join(python.version.split(".")[:2])
    (target / "Dockerfile").write_text(_text("Dockerfile", version=version, state=STATE), encoding="utf-8")
    (target / "MODEL_CARD.md").write_text(_card(model, result, target, version, packages), encoding="utf-8")
    return sorted(target.iterdir())


def _copy_data(model: Model, target: Path) -> None:
    """The data that the script reads, as files of their own; for a task without a test, with the run's example rows."""
    shown = RunFolder(model.run_dir).input
    source = shown if model.layout.test is None and shown.is_dir() else model.layout.folder
    for name, _ in DataFolder(source, ours=model.run_dir).files():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)


def _predict_script(model: Model) -> str | None:
    """A program that predicts the rows of a CSV file by the script alone; None where the test is no CSV file."""
    layout = model.layout
    shown, (test, form) = layout.test or layout.train, layout.test_file
    if form.kind != "csv" or (layout.sample is not None and layout.sample.form.kind != "csv"):
        return None
    return _text(
        "predict.py.txt",
        test=test,
        columns=[name for name in shown.columns if name not in model.targets],
        needed=model.features,
        sample=layout.sample.name if layout.sample else None if layout.test else SAMPLE_NAME,
        example=model.example,
        key=layout.key,
        separator=form.separator,
        encoding=form.encoding,
    )


def _text(file: str, **values: object) -> str:
    return (_TEXTS / file).read_text(encoding="utf-8").format(**values)


def needs(scripts: list[str], installed: dict[str, str]) -> list[str]:
    """The packages that scripts import, each as it was installed where they ran."""
    names: set[str] = set()
    for script in scripts:
        for node in ast.walk(parsed(script) or ast.Module([], [])):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    distributions = importlib.metadata.packages_distributions()
    versions = {plain_name(name): f"{name}=={version}" for name, version in installed.items()}
    found: set[str] = set()
    for name in names - set(sys.stdlib_module_names):
        usual = _USUAL.get(name, name)
        homes = map(plain_name, [usual, name, *distributions.get(name, [])])
        found.add(next((versions[home] for home in homes if home in versions), usual))
    return sorted(found, key=str.lower)


def _card(model: Model, result: FinalResult, target: Path, version: str, packages: list[str]) -> str:
    task, layout, has_state = result.task, model.layout, (target / STATE).is_dir()
    tables = [table.name for table in (layout.train, layout.labels, *layout.others) if table is not None]
    use = "`python predict.py NEW.csv PREDICTIONS.csv` predicts rows of your own."
    if not (target / "predict.py").is_file():
        use = f"Put rows of your own into `input/` as `{layout.test_file[0]}`."
    words = (line for line in task.description.splitlines() if not line.startswith(NO_TEST))
    warnings = (one for one in result.warnings if not (has_state and one.startswith(NOT_FITTED)))
    return _text(
        "MODEL_CARD.md",
        name=task.competition_id,
        run=model.run_dir.name,
        model=result.config.model,
        description="\n".join(words),
        score=f"{score_in_words(result)}.",
        files=", ".join(f"`{name}`" for name in tables),
        use=use,
        rows=f"the rows of `{layout.test.name}`" if layout.test else "a few rows as an example",
        features=", ".join(f"`{name}`" for name in model.features[:40]),
        state=f", unless `{STATE}/` holds what it fitted before" if has_state else "",
        version=version,
        packages=", ".join(f"`{name}`" for name in packages) or "no packages",
        loaded=f"; other versions may not load `{STATE}/`: without it the script fits again" if has_state else "",
        author=f"{result.config.traits.author}, not by a person",
        warnings="".join(f"- {text.one_line(warning, 400)}\n" for warning in warnings),
    )


# --- another script ---------------------------------------------------------------------------------------------


def promote(run_dir: Path, step: str, *, executor: Any = None) -> tuple[str, float | None]:
    """Make another script the final solution of a finished run: script, result and, where there is a test, submission.

    The step that it is of, and its score.
    """
    if is_running(run_dir):
        raise ConfigError(f"{run_dir.name} is still running; wait for its end")
    folder, result, story = RunFolder(run_dir), read_result(run_dir), RunStory.of(run_dir)
    chosen = _script_at(story, run_dir, step)
    code, submission = story.ledger.text(chosen.script_id), ""
    if result.has_test:
        made = run_dir / (chosen.result.submission or "")
        if not made.is_file():
            model = load_model(run_dir, executor=executor)
            work = model.execute(script_of(code), model.layout.folder, "promote")
            if not verify_submission(str(work)):
                raise ConfigError(f"the script of {chosen.step} writes no submission")
            made = work / SUBMISSION
        place_copy(made, folder.submission)
        submission = str(folder.submission)
    note = f"{BY_HAND}: the script of {place_of(chosen.step) or chosen.step}"
    if story.ledger.leaks(chosen.script_id):
        note += "; data leakage was found in it: its score may be too good"
        logger.warning("%s", note)
    before = {phase: facts for phase, facts in result.lineage.items() if phase != "finalization"}
    changes = {
        "final_solution": script_of(code, chosen.score),
        "submission_path": submission,
        "expected": chosen.result.measure,
        "single_model": None,  # it was measured on rows that this script was not measured on
        "lineage": {**before, "promoted": chosen.step},
        "warnings": [note, *(words for words in result.warnings if not words.startswith(BY_HAND))],
    }
    with Journal(folder.journal) as journal:
        write_result(folder, journal, result.model_copy(update=changes))
    return chosen.step, chosen.score


def _script_at(story: RunStory, run_dir: Path, step: str) -> ScriptRun:
    """The last script that ran at a step, or below it, and has a score."""
    scripts, name = story.scored, step.rstrip("/")
    chosen = [one for one in scripts if one.step in (name, f"{name}/script")]
    chosen = chosen or [one for one in scripts if one.step.startswith(f"{name}/")]
    if not chosen:
        some = ", ".join(one.step.removesuffix("/script") for one in scripts[:6])
        raise ConfigError(f"{run_dir.name}: no scored script at {step!r}; there are {some or 'none'}")
    return chosen[-1]
