"""A run to take along: script, fitted state, requirements, a Dockerfile and a model card in one folder."""

from __future__ import annotations

import ast
import importlib.metadata
import shutil
import sys
from pathlib import Path

from mle_star.data.place import DataFolder
from mle_star.errors import ConfigError
from mle_star.execution import inspect_interpreter
from mle_star.execution.fitted import STATE, fitted_digest, restore_fitted
from mle_star.method.codeblocks import parsed
from mle_star.models import FinalResult
from mle_star.results.model import Model
from mle_star.views import text

_USUAL = {
    "sklearn": "scikit-learn",
    "cv2": "opencv-python",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "skimage": "scikit-image",
}

_DOCKERFILE = """\
FROM python:{version}-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
RUN useradd --create-home runner && mkdir -p final {state} && chown -R runner final {state}
USER runner
# docker run -v "$PWD/input:/app/input:ro" -v "$PWD/final:/app/final" IMAGE
CMD ["python", "solution.py"]
"""

_CARD = """\
# {name}

Made by MLE-STAR from the run `{run}` with the model `{model}`.

## What it does
{description}

## How good it is
{score}

## Use
1. Put the training data into `input/` under the names that they had: {files}.
2. Put the rows to predict there as `{test}`: {features}.{sample}
3. `pip install -r requirements.txt`, then `python solution.py`: predictions are in `final/submission.csv`.

The script fits on the training data each time{state}. `mle-star predict {run} NEW.csv` does all of this by itself.

## Limits
- Rows unlike the training rows (later dates, other groups, new categories) may be predicted worse than the score says.
- It was written by {author} and run in a sandbox; read `solution.py` before you trust it with anything that matters.
{warnings}"""


def export_run(run_dir: Path, target: Path) -> list[Path]:
    """Write all that another machine needs into `target`, which is new or empty; the files at its top."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target}: exists already and is not empty; name a new folder")
    model = Model.of(run_dir)
    result = model.result
    python = inspect_interpreter(result.config.python)
    scripts = [result.final_solution.content]
    target.mkdir(parents=True, exist_ok=True)
    (target / "solution.py").write_text(result.final_solution.content, encoding="utf-8")
    if (run_dir / "solution").is_dir():  # the members of a blend
        shutil.copytree(run_dir / "solution", target / "solution")
        scripts += [path.read_text(encoding="utf-8") for path in sorted((run_dir / "solution").glob("*.py"))]
    digest = fitted_digest(result.final_solution.content, DataFolder(model.data_dir, ours=run_dir))
    if not restore_fitted(run_dir, target, digest):  # none, or of another script or other data
        (target / STATE).rmdir()
    (target / "requirements.txt").write_text("".join(f"{line}\n" for line in needs(scripts, python.packages)))
    version = ".".join(python.version.split(".")[:2])
    (target / "Dockerfile").write_text(_DOCKERFILE.format(version=version, state=STATE), encoding="utf-8")
    (target / "MODEL_CARD.md").write_text(_card(model, result, target), encoding="utf-8")
    return sorted(target.iterdir())


def needs(scripts: list[str], installed: dict[str, str]) -> list[str]:
    """The packages that scripts import, each as it was installed where they ran."""
    names: set[str] = set()
    for script in scripts:
        for node in ast.walk(parsed(script) or ast.Module([], [])):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    homes = importlib.metadata.packages_distributions()
    versions = {name.lower().replace("_", "-"): (name, version) for name, version in installed.items()}
    found: set[str] = set()
    for name in names - set(sys.stdlib_module_names):
        for home in [_USUAL.get(name, ""), name, *homes.get(name, [])]:
            known = versions.get(home.lower().replace("_", "-"))
            if known is not None:
                found.add(f"{known[0]}=={known[1]}")
                break
        else:
            found.add(_USUAL.get(name, name))
    return sorted(found, key=str.lower)


def _card(model: Model, result: FinalResult, target: Path) -> str:
    task, promise, layout = result.task, result.promise, model.layout
    better = f"({task.metric_direction.better_word} is better)"
    score = f"{task.evaluation_metric}: **{text.score(result.final_solution.score)}** {better}"
    if promise is not None and promise.measured == "harness":
        score += f", measured on {promise.rows} rows that it never saw"
        if promise.low is not None and promise.high is not None:
            score += f", between {text.score(promise.low)} and {text.score(promise.high)} (95 %)"
    else:
        score += ", as the script itself measured it: nobody else has checked it"
    tables = [table.name for table in (layout.train, layout.labels, *layout.others) if table is not None]
    sample = layout.sample.name if layout.sample else "sample_submission.csv" if layout.test is None else ""
    return _CARD.format(
        name=task.competition_id,
        run=model.run_dir.name,
        model=result.config.model,
        description=task.description,
        score=f"{score}.",
        files=", ".join(f"`{name}`" for name in tables),
        test=layout.test.name if layout.test else "test.csv",
        features=", ".join(f"`{name}`" for name in model.features[:40]),
        sample=f" `{sample}` holds a row for each of them, in the form of an answer." if sample else "",
        state=f", unless `{STATE}/` holds what it fitted before" if (target / STATE).is_dir() else "",
        author="rules, not by a person" if result.config.model == "offline" else "a language model, not by a person",
        warnings="".join(f"- {text.one_line(warning, 400)}\n" for warning in result.warnings),
    )
