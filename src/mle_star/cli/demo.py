"""`mle-star demo`: the whole method on an example, with no key and no internet."""

from __future__ import annotations

import csv
import io
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from mle_star.errors import ConfigError

TEST_SHARE = 0.3
ANSWERS = "answers.csv"
SEED = 7


@dataclass(frozen=True)
class Example:
    """A task built from data that scikit-learn carries."""

    loader: str
    target: str
    task_type: str
    metric: str
    direction: str
    description: str


EXAMPLES = {
    "breast-cancer": Example(
        "load_breast_cancer", "benign", "classification", "log_loss", "minimize",
        "Predict the probability that a breast tumour is benign, from measurements of its cell nuclei.",
    ),
    "diabetes": Example(
        "load_diabetes", "progression", "regression", "rmse", "minimize",
        "Predict how far diabetes has progressed one year after age, sex, body mass, blood pressure and six blood "
        "values were taken.",
    ),
    "digits": Example(
        "load_digits", "digit", "classification", "accuracy", "maximize",
        "Read a handwritten digit from its image of 8 x 8 grey values.",
    ),
    "wine": Example(
        "load_wine", "cultivar", "classification", "log_loss", "minimize",
        "Tell which of three cultivars a wine was made of, as probabilities, from its chemical analysis.",
    ),
}  # fmt: skip
DEFAULT = "breast-cancer"

# Small enough for a first look of two minutes, and still every part of the method.
SETTINGS: dict[str, Any] = {
    "model": "offline",
    "num_retrieved_models": 2,
    "outer_loop_steps": 1,
    "inner_loop_steps": 1,
    "num_parallel_solutions": 2,
    "ensemble_rounds": 1,
    "score_views": 2,
    "time_limit_seconds": 240,
}


def demo(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(EXAMPLES)}.")] = DEFAULT,
    folder: Annotated[Path, typer.Option(help="Where the example's task folder is made.")] = Path("demo"),
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The run's folder.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve a live page of the run.")] = False,
) -> None:
    """Build an example task and run the whole method on it: no key, no internet, about two minutes.

    The agents are built-in rules, no language model. It shows the method at work; Claude goes far beyond it.

    \b
    Examples:
      mle-star demo
      mle-star demo diabetes --serve
    """
    from mle_star.cli.run import advise, start_run
    from mle_star.config import load_config
    from mle_star.data import load_task
    from mle_star.run.finding import callable_name

    if name not in EXAMPLES:
        raise ConfigError(f"no example is called {name!r}; there are {', '.join(EXAMPLES)}")
    place = build_example(name, folder)
    task = load_task(place)
    typer.echo(f"task folder: {folder / name}", err=True)
    typer.echo("time: about two minutes on two cores, four at most; Ctrl-C finishes with the best so far", err=True)
    run_dir = start_run(task, load_config(SETTINGS), output, mode="auto", serve=serve)
    typer.echo(_truth(run_dir, task.evaluation_metric, place / ANSWERS), err=True)
    this = callable_name(run_dir)
    commands = {
        f"mle-star report {this} --open": "why it won",
        f"mle-star predict {this} {place}/input/test.csv": "the model at work on new rows",
        f"mle-star leaderboard {this}": "every script that was tried",
        "mle-star run YOUR.csv --target COLUMN --model offline": "the same on your data",
    }
    width = max(map(len, commands))
    advise(*(f"{command:{width}}   {why}" for command, why in commands.items()))


def _truth(run_dir: Path, metric: str, answers: Path) -> str:
    """What the submission is worth beside what was promised: only an example's author can tell at once."""
    from mle_star.pipeline.rescore import rescore
    from mle_star.views import text

    handed_over = rescore(run_dir, answers)[-1]
    promise, truth = handed_over.select, handed_over.truth
    if truth is None or promise is None or promise.low is None or promise.high is None:
        return f"truth: not known: {handed_over.problem or 'nothing was promised'}"
    return (
        f"truth: {metric} {text.score(truth)} by the answers of the test, which were kept apart; "
        f"promised were {text.score(promise.score)} ({text.score(promise.low)} to {text.score(promise.high)})"
    )


def build_example(name: str, folder: Path) -> Path:
    """Write the task folder of an example: rows to learn from, rows to predict, the shape of a submission.

    The answers lie beside the data, where no script looks.
    """
    example = EXAMPLES[name]
    try:
        from sklearn import datasets
    except ImportError:
        raise ConfigError(
            f"the examples need scikit-learn: {sys.executable} -m pip install scikit-learn lightgbm"
        ) from None
    data = getattr(datasets, example.loader)()
    features = [str(feature).replace(" ", "_") for feature in data.feature_names]
    rows = [[*map(float, values), target] for values, target in zip(data.data, data.target.tolist(), strict=True)]
    random.Random(SEED).shuffle(rows)
    cut = round(len(rows) * TEST_SHARE)
    numbered = [[number, *row] for number, row in enumerate(rows)]
    test, train = numbered[:cut], numbered[cut:]
    columns, blank = _submission_shape(example, sorted({row[-1] for row in rows}))
    content = {
        "competition_id": name,
        "target": example.target,
        "task_type": example.task_type,
        "data_modality": "tabular",
        "evaluation_metric": example.metric,
        "metric_direction": example.direction,
        "description": example.description,
    }
    place = folder / name
    files = {
        place / "input/train.csv": _csv(["id", *features, example.target], train),
        place / "input/test.csv": _csv(["id", *features], [row[:-1] for row in test]),
        place / "input/sample_submission.csv": _csv(["id", *columns], [[row[0], *blank] for row in test]),
        place / ANSWERS: _csv(["id", example.target], [[row[0], row[-1]] for row in test]),
        place / "task.yaml": yaml.safe_dump(content, sort_keys=False).encode(),
    }
    for path, text in files.items():
        if path.exists() and path.read_bytes() != text:
            raise ConfigError(f"{path} is there already, and is not the example's; --folder names another place")
    (place / "input").mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_bytes(text)
    return place


def _submission_shape(example: Example, values: list[Any]) -> tuple[list[str], list[Any]]:
    """The columns beside the id and a blank answer: with more than two classes, a probability for each."""
    if example.metric == "log_loss" and len(values) > 2:
        return [f"{example.target}_{value}" for value in values], [round(1 / len(values), 6)] * len(values)
    return [example.target], [0.5 if example.metric == "log_loss" else 0]


def _csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([header, *rows])
    return text.getvalue().encode()
