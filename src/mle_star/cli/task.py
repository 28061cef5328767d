"""Commands that make a task folder: `init` from the user's data, `demo` from an example, which it also runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from mle_star.cli import advise, in_words, plain, tell
from mle_star.cli.options import AS_USUAL, NOTHING_WANTED, Force, Output, Shown, Wanted
from mle_star.config import load_config
from mle_star.data.folder import TASK_FILE, load_task, write_task
from mle_star.data.guess import guess_task
from mle_star.errors import ConfigError
from mle_star.models import MetricDirection
from mle_star.models.enums import OFFLINE
from mle_star.run.folder import callable_name
from mle_star.search.final_result import rescore
from mle_star.views import text


def init(
    data_folder: Annotated[Path, Argument(metavar="DATA_FOLDER", help="With data, or an `input` with data.")],
    wanted: Wanted = NOTHING_WANTED,
    name: Annotated[str | None, Option(help="The task's name; the folder's name if not given.")] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Where to write; else DATA_FOLDER/task.yaml.")] = None,
    force: Force = False,
) -> None:
    """Look at a data folder and write its task.yaml, every guess explained.

    Reads the first rows of the tables only, never a large file whole. Nothing is overwritten without --force.

    \b
    Examples:
      mle-star init data/
      mle-star init data/ --target price --metric mae
      mle-star init data/ --metric score.py:profit --maximize --output tasks/profit.yaml
    """
    direction = MetricDirection.of(wanted.maximize)
    guess = guess_task(data_folder, target=wanted.target, metric=wanted.metric, direction=direction, name=name)
    path = data_folder if output is None else output
    path = path / TASK_FILE if path.is_dir() else path
    write_task(guess, path, force=force)

    console = Console(highlight=False, soft_wrap=True)
    values = {**guess.task.model_dump(mode="json"), "target": ", ".join(guess.targets) or "-"}
    for field, reason in guess.reasons.items():
        console.print(f"{field:18} [bold]{escape(plain(values[field]))}[/bold]  [dim]{escape(plain(reason))}[/dim]")
    for words in guess.notes:
        console.print(f"[yellow]note[/yellow]  {escape(plain(words))}")
    place = data_folder if output is None else path
    run = f"mle-star run {escape(str(place))}"
    console.print(f"Wrote {escape(str(path))}. Check it, then: {run}  (without a key: --model offline)")


# --- the demo ------------------------------------------------------------------------------------------------------


EXAMPLES = {
    "breast-cancer": ("benign", "log_loss", "the probability that a breast tumour is benign, from its cell nuclei"),
    "diabetes": ("progression", "rmse", "how far diabetes has progressed in a year, from ten measurements"),
    "digits": ("digit", "accuracy", "a handwritten digit, from its image of 8 x 8 grey values"),
    "wine": ("cultivar", "log_loss", "the probability of each of three cultivars, from the analysis of a wine"),
}
"""Data that scikit-learn carries: what is predicted, the metric, and what the task says."""
ANSWERS, TEST_SHARE, SEED = "answers.csv", 0.3, 7
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
    name: Annotated[str, Argument(help=f"One of: {', '.join(EXAMPLES)}.")] = "breast-cancer",
    folder: Annotated[Path, Option(help="Where the example's task folder is made.")] = Path("demo"),
    output: Output = None,
    view: Shown = AS_USUAL,
) -> None:
    """Build an example task and run the whole method on it: no key, no internet, about two minutes.

    The agents are built-in rules, no language model. It shows the method at work; Claude goes far beyond it.

    \b
    Examples:
      mle-star demo
      mle-star demo diabetes --serve
    """
    from mle_star.cli.run import start_run

    place = build_example(name, folder)
    task = load_task(place)
    tell(f"task folder: {folder / name}")
    tell("time: about two minutes on two cores, four at most; Ctrl-C finishes with the best so far")
    run_dir = start_run(task, load_config(SETTINGS), output, view, advice=False)
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
    final = rescore(run_dir, answers)[-1]
    if final.truth is None or final.select is None or final.select.low is None:
        return f"truth: not known: {final.problem or 'no score was expected'}"
    return f"truth: {metric} {text.score(final.truth)} on the test; expected was {in_words(final.select)}"


def build_example(name: str, folder: Path) -> Path:
    """Write the task folder of an example: rows to learn from, rows to predict, the shape of a submission.

    The answers lie beside the data, where no script looks.
    """
    if name not in EXAMPLES:
        raise ConfigError(f"no example is called {name!r}; there are {', '.join(EXAMPLES)}")
    try:
        from sklearn import datasets
    except ImportError:
        needed = f"{sys.executable} -m pip install scikit-learn lightgbm"
        raise ConfigError(f"the examples need scikit-learn: {needed}") from None
    (target, metric, what), place = EXAMPLES[name], folder / name
    rows = getattr(datasets, f"load_{name.replace('-', '_')}")(as_frame=True).frame
    rows = rows.rename(columns={"target": target}).rename(columns=lambda column: column.replace(" ", "_"))
    rows = rows.sample(frac=1, random_state=SEED, ignore_index=True).rename_axis("id")
    cut = round(len(rows) * TEST_SHARE)
    test, train = rows[:cut], rows[cut:]
    files = {
        "input/train.csv": train.to_csv(),
        "input/test.csv": test.drop(columns=target).to_csv(),
        "input/sample_submission.csv": test[[]].assign(**_blank_answer(target, metric, set(rows[target]))).to_csv(),
        ANSWERS: test[[target]].to_csv(),
        "description.md": f"Predict {what}.\n",
    }
    for file, content in files.items():
        if (place / file).exists() and (place / file).read_text(encoding="utf-8") != content:
            raise ConfigError(f"{place / file} exists already, and is not the example's; --folder names another place")
    (place / "input").mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (place / file).write_text(content, encoding="utf-8")
    write_task(guess_task(place, target=target, metric=metric, name=name), place / TASK_FILE, force=True)
    return place


def _blank_answer(target: str, metric: str, values: set[Any]) -> dict[str, float]:
    """An answer for each column of a submission: with more than two classes, a probability for each."""
    if metric == "log_loss" and len(values) > 2:
        return {f"{target}_{value}": round(1 / len(values), 6) for value in sorted(values)}
    return {target: 0.5 if metric == "log_loss" else 0}
