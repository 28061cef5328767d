"""`mle-star demo`: the whole method on an example, with no key and no internet."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mle_star.basics.traits import OFFLINE
from mle_star.cli.options import Output, Serve
from mle_star.cli.printing import advise, in_words, tell
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
        "load_breast_cancer",
        "benign",
        "classification",
        "log_loss",
        "minimize",
        "Predict the probability that a breast tumour is benign, from measurements of its cell nuclei.",
    ),
    "diabetes": Example(
        "load_diabetes",
        "progression",
        "regression",
        "rmse",
        "minimize",
        "Predict how far diabetes has progressed one year after age, sex, body mass, blood pressure and six blood "
        "values were taken.",
    ),
    "digits": Example(
        "load_digits",
        "digit",
        "classification",
        "accuracy",
        "maximize",
        "Read a handwritten digit from its image of 8 x 8 grey values.",
    ),
    "wine": Example(
        "load_wine",
        "cultivar",
        "classification",
        "log_loss",
        "minimize",
        "Tell which of three cultivars a wine was made of, as probabilities, from its chemical analysis.",
    ),
}
DEFAULT = "breast-cancer"

# Small enough for a first look of two minutes, and still every part of the method.
SETTINGS: dict[str, Any] = {
    "model": OFFLINE,
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
    output: Output = None,
    serve: Serve = False,
) -> None:
    """Build an example task and run the whole method on it: no key, no internet, about two minutes.

    The agents are built-in rules, no language model. It shows the method at work; Claude goes far beyond it.

    \b
    Examples:
      mle-star demo
      mle-star demo diabetes --serve
    """
    from mle_star.cli.run import start_run
    from mle_star.config import load_config
    from mle_star.data import load_task
    from mle_star.run.finding import callable_name

    if name not in EXAMPLES:
        raise ConfigError(f"no example is called {name!r}; there are {', '.join(EXAMPLES)}")
    place = build_example(name, folder)
    task = load_task(place)
    tell(f"task folder: {folder / name}")
    tell("time: about two minutes on two cores, four at most; Ctrl-C finishes with the best so far")
    run_dir = start_run(task, load_config(SETTINGS), output, mode="auto", serve=serve, advice=False)
    tell(_truth(run_dir, task.evaluation_metric, place / ANSWERS))
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
    """The score of the submission on the test beside the expected one: an example has the answers."""
    from mle_star.search.rescore import rescore
    from mle_star.views import text

    final = rescore(run_dir, answers)[-1]
    if final.truth is None or final.select is None or final.select.low is None:
        return f"truth: not known: {final.problem or 'no score was expected'}"
    return f"truth: {metric} {text.score(final.truth)} on the test; expected was {in_words(final.select)}"


def build_example(name: str, folder: Path) -> Path:
    """Write the task folder of an example: rows to learn from, rows to predict, the shape of a submission.

    The answers lie beside the data, where no script looks.
    """
    import yaml

    example = EXAMPLES[name]
    try:
        from sklearn import datasets
    except ImportError:
        raise ConfigError(
            f"the examples need scikit-learn: {sys.executable} -m pip install scikit-learn lightgbm"
        ) from None
    target, place = example.target, folder / name
    rows = getattr(datasets, example.loader)(as_frame=True).frame.rename(columns={"target": target})
    rows.columns = [column.replace(" ", "_") for column in rows.columns]
    rows = rows.sample(frac=1, random_state=SEED, ignore_index=True).rename_axis("id")
    cut = round(len(rows) * TEST_SHARE)
    test, train = rows[:cut], rows[cut:]
    content = {
        "competition_id": name,
        "target": target,
        "task_type": example.task_type,
        "data_modality": "tabular",
        "evaluation_metric": example.metric,
        "metric_direction": example.direction,
        "description": example.description,
    }
    answer = _blank_answer(example, sorted(set(rows[target])))
    files = {
        "input/train.csv": train.to_csv(),
        "input/test.csv": test.drop(columns=target).to_csv(),
        "input/sample_submission.csv": test[[]].assign(**answer).to_csv(),
        ANSWERS: test[[target]].to_csv(),
        "task.yaml": yaml.safe_dump(content, sort_keys=False),
    }
    for file, text in files.items():
        if (place / file).exists() and (place / file).read_text(encoding="utf-8") != text:
            raise ConfigError(f"{place / file} exists already, and is not the example's; --folder names another place")
    (place / "input").mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (place / file).write_text(text, encoding="utf-8")
    return place


def _blank_answer(example: Example, values: list[Any]) -> dict[str, Any]:
    """An answer for each column of a submission: with more than two classes, a probability for each."""
    if example.metric == "log_loss" and len(values) > 2:
        return {f"{example.target}_{value}": round(1 / len(values), 6) for value in values}
    return {example.target: 0.5 if example.metric == "log_loss" else 0}
