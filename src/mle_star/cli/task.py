"""Commands that make a task folder: `init` from the user's data, `demo` from an example, which it also runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from mle_star.cli import advise, plain, tell
from mle_star.cli.options import AS_USUAL, NOTHING_WANTED, Force, Output, Shown, Wanted
from mle_star.config import load_config
from mle_star.data.folder import TASK_FILE, load_task, write_task
from mle_star.data.guess import guess_task
from mle_star.errors import ConfigError
from mle_star.models import MetricDirection, TaskDescription
from mle_star.models.enums import OFFLINE
from mle_star.models.settings import sized
from mle_star.run.folder import callable_name
from mle_star.search.final_result import SUBMITTED, Rescored, rescore
from mle_star.views import text
from mle_star.views.story import RunStory


def init(
    data_folder: Annotated[Path, Argument(metavar="DATA_FOLDER", help="A folder with data, or with `input/`.")],
    wanted: Wanted = NOTHING_WANTED,
    name: Annotated[str | None, Option(help="The task's name; the folder's name if not given.")] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Where to write; else DATA_FOLDER/task.yaml.")] = None,
    force: Force = False,
) -> None:
    """Look at a data folder and write its task.yaml, with a reason for every guess.

    Only the first rows of each table are read. Nothing is overwritten without --force.

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
    run = f"mle-star run {escape(str(data_folder if output is None else path))}"
    console.print(f"Wrote {escape(str(path))}. Check it, then: {run}  (without a key: --model offline)")


# --- the demo ------------------------------------------------------------------------------------------------------


EXAMPLES = {
    "rents": ("rent", "rmse", "the rent of a flat. The data are generated: a formula and random noise"),
    "breast-cancer": ("benign", "log_loss", "the probability that a breast tumour is benign, from its cell nuclei"),
    "diabetes": ("progression", "rmse", "how far diabetes has progressed in a year, from ten measurements"),
    "digits": ("digit", "accuracy", "a handwritten digit, from its image of 8 x 8 grey values"),
    "wine": ("cultivar", "log_loss", "the probability of each of three cultivars, from the analysis of a wine"),
}
"""What is predicted, the metric, and what the task says. `rents` is generated, scikit-learn carries the others."""
ANSWERS, TEST_SHARE, SEED = "answers.csv", 0.3, 7
NOISE = {"rents": 50.0}
"""The noise that was put into an example: about what a model scores that knows the formula."""
FLATS, BAR = 1200, 40
# Small enough for a first look of two minutes, and still every part of the method.
SETTINGS: dict[str, Any] = {"model": OFFLINE, **sized(2, 1, 2, 2, 1), "score_views": 1, "time_limit_seconds": 480}


def demo(
    name: Annotated[str, Argument(help=f"One of: {', '.join(EXAMPLES)}.")] = "rents",
    folder: Annotated[Path, Option(help="Where the example's task folder is made.")] = Path("demo"),
    output: Output = None,
    view: Shown = AS_USUAL,
) -> None:
    """Try it on an example: no key, no internet, about two minutes.

    The agents are built-in rules, no language model. The data of `rents` are generated, so the best possible score is
    known; those of the other examples are real. At the end every script is scored on the test, whose answers were kept
    from the run.

    \b
    Examples:
      mle-star demo
      mle-star demo diabetes --serve
    """
    from mle_star.cli.run import start_run

    place = build_example(name, folder)
    task = load_task(place)
    tell(f"task: predict {EXAMPLES[name][2]}; the files are in {place}")
    tell("time: about two minutes on two cores, eight at most; Ctrl-C finishes with the best so far")
    run_dir = start_run(task, load_config(SETTINGS), output, view, advice=False)
    if view.talks:
        for line in _truth(rescore(run_dir, place / ANSWERS), run_dir, task, name):
            tell(line)
        advise(f"mle-star report {callable_name(run_dir)} --open")


def _truth(rows: Sequence[Rescored], run_dir: Path, task: TaskDescription, name: str) -> list[str]:
    """A bar for every script by its score on the test, in the order of the run; then the expected score."""
    scored = [one for one in rows if one.truth is not None]
    if not scored or scored[-1].step != SUBMITTED or scored[-1].select is None:
        return ["truth: not known, as nothing was submitted that can be scored"]
    final, metric = scored[-1], task.evaluation_metric
    labels = {one.step: one.label for one in RunStory.of(run_dir).attempts} | {SUBMITTED: "submitted"}
    places = ((one.step.removesuffix("/script"), one.truth or 0.0) for one in scored)
    values = [(labels[place], value) for place, value in places if place in labels]
    floor = NOISE.get(name, 0.0)
    values += [("noise alone", floor)] if floor else []
    wide, most = max(len(label) for label, _ in values), max(value for _, value in values) - floor
    bars = [(label, value, "█" * round(BAR * max(value - floor, 0) / (most or 1))) for label, value in values]
    better = f"{task.metric_direction.better_word} is better" + "; bars: the error above the noise" * bool(floor)
    return [
        f"truth: {metric} of each script on the test, which no script saw ({better})",
        *(f"  {label:{wide}}  {text.score(value):>8}  {bar}" for label, value, bar in bars),
        f"truth: {metric} {text.score(final.truth)} on the test; expected was {final.select}",
    ]


def build_example(name: str, folder: Path) -> Path:
    """Write the task folder of an example: rows to learn from, rows to predict, the shape of a submission.

    The answers lie beside the data, where no script looks.
    """
    if name not in EXAMPLES:
        raise ConfigError(f"no example is called {name!r}; there are {', '.join(EXAMPLES)}")
    from sklearn import datasets

    (target, metric, what), place = EXAMPLES[name], folder / name
    rows = _flats() if name == "rents" else getattr(datasets, f"load_{name.replace('-', '_')}")(as_frame=True).frame
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
    if not (place / TASK_FILE).exists():
        write_task(guess_task(place, target=target, metric=metric, name=name), place / TASK_FILE)
    return place


def _blank_answer(target: str, metric: str, values: set[Any]) -> dict[str, float]:
    """An answer for each column of a submission: with more than two classes, a probability for each."""
    if metric == "log_loss" and len(values) > 2:
        return {f"{target}_{value}": round(1 / len(values), 6) for value in sorted(values)}
    return {target: 0.5 if metric == "log_loss" else 0}


def _flats() -> Any:
    """Flats with a rent by a formula: effects of one column, two that act together, and noise."""
    import numpy as np
    import pandas as pd

    dice = np.random.default_rng(SEED)
    places = ["Airport", "Castle", "Docks", "Harbour", "Market", "Mill", "Park", "Station"]
    levels = dict(zip(places, (7.5, 17, 8, 13, 11.5, 9, 15, 10), strict=True))
    size = dice.normal(65, 20, FLATS).clip(22, 130).round()
    rooms = (size / 26 + dice.normal(0, 0.7, FLATS)).round().clip(1, 6).astype(int)
    district, built = dice.choice(places, FLATS), dice.integers(1890, 2024, FLATS)
    walk, floor = dice.gamma(2, 4, FLATS).round(1), dice.integers(0, 9, FLATS)
    lift, balcony = dice.random(FLATS) < np.where(floor > 4, 0.7, 0.3), dice.random(FLATS) < 0.5
    metre = pd.Series(district).map(levels) + 4 * np.exp(-walk / 6) + 2.5 * (built > 2005) + 1.5 * (built < 1920)
    rent = 120 + (metre - 0.5 * floor * ~lift) * size + 45 * rooms + 60 * balcony + 9 * floor
    columns = {"size": size, "rooms": rooms, "district": district, "built": built, "minutes_to_train": walk}
    yes_no = {name: np.where(values, "yes", "no") for name, values in {"lift": lift, "balcony": balcony}.items()}
    noise = dice.normal(0, NOISE["rents"], FLATS)
    return pd.DataFrame({**columns, "floor": floor, **yes_no, "rent": (rent + noise).round(2)})
