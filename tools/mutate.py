"""Mutation testing: small mistakes are planted in one module at a time, and its fast tests must notice.

    python tools/mutate.py                              # all modules: long
    python tools/mutate.py phase3 execution/outcome       # some, by their path below src/mle_star
    python tools/mutate.py phase3 --sample 60           # some mutants of it, the same ones every time
    python tools/mutate.py phase3 --sample 60 --skip 60 # the next ones

Everything happens in a copy, so the working tree stays as it is. Survivors are printed with their change; what is known
about them is in docs/mutation.md. Each module has to reach the bar by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BAR = 0.9
EXECUTION, METHOD, PIPELINE = "tests/execution/test_", "tests/method/test_", "tests/pipeline/test_"
HOLDOUT = "tests/holdout/test_"
LOG = f"{PIPELINE}log_lines.py::test_the_log_says_what_it_must"
ENDS = (
    "where_the_final_script_fails_the_answers_of_the_search_count",
    "without_as_much_time_as_before_the_solution_is_neither_run_again_nor_repaired",
    "the_question_about_subsampling_is_asked_only_where_rows_may_have_been_cut",
)
TESTS = {
    "run/budget": [f"{PIPELINE}budget.py"],
    "run/timing": [
        f"{PIPELINE}budget.py",
        f"{EXECUTION}recorded.py",
        *(f"{METHOD}{name}.py" for name in ("time", "phase2_outer")),
        f"{PIPELINE}forecast.py::test_the_formulas_count_what_a_run_without_surprises_does",
        f"{PIPELINE}holdout.py::test_{ENDS[1]}",
    ],
    "method/codeblocks": ["tests/test_codeblocks.py"],
    "execution/outcome": [
        f"{EXECUTION}outcome.py",
        f"{EXECUTION}recorded.py::test_a_script_that_is_refused_does_not_run_and_is_told_whole",
    ],
    "execution/recorded": [
        f"{EXECUTION}recorded.py",
        f"{EXECUTION}workspace.py::test_what_cannot_be_removed_is_set_aside_and_a_warning_of_the_run",
        f"{EXECUTION}scored.py",
        f"{METHOD}finalization.py::test_crashes_and_missing_files_share_one_limit",
        f"{PIPELINE}holdout.py::test_every_ensemble_may_be_selected_and_scripts_run_on_as_many_views_as_are_wanted",
        f"{PIPELINE}holdout.py::test_scores_are_compared_on_the_same_rows_when_later_scripts_have_time_for_more",
        f"{PIPELINE}holdout.py::test_answers_that_are_missing_or_cannot_be_meant_are_a_case_for_the_debugger",
        f"{PIPELINE}sample.py::test_after_a_slow_solution_new_scripts_meet_the_sample",
        f"{PIPELINE}endings.py::test_on_a_full_disk_the_best_so_far_is_submitted_and_the_run_goes_on_later",
    ],
    "finalization": [
        *(f"{METHOD}{name}.py" for name in ("finalization", "contract", "specified", "rich_prompts")),
        LOG,
        f"{PIPELINE}blend.py",
        f"{PIPELINE}holdout.py::test_one_table_alone_ends_with_an_expected_score_and_no_submission",
        *(f"{PIPELINE}holdout.py::test_{name}" for name in ENDS),
    ],
    "run/journal": [f"{PIPELINE}journal.py"],
    "orchestrator": [
        *(f"{PIPELINE}{name}.py" for name in ("run", "fallbacks", "resume", "blend", "endings")),
        f"{PIPELINE}holdout.py::test_many_rows_have_one_view_in_search_and_others_in_the_end",
        f"{PIPELINE}holdout.py::test_one_table_alone_ends_with_an_expected_score_and_no_submission",
        f"{PIPELINE}holdout.py::test_what_cannot_be_scored_is_self_reported_and_probed",
        f"{PIPELINE}forecast.py::test_the_formulas_count_what_a_run_without_surprises_does",
        f"{PIPELINE}forecast.py::test_a_forecast_is_told_at_first_and_after_what_took_time_or_money",
        f"{PIPELINE}cli_run.py::test_the_whole_pipeline_with_one_and_several_paths_in_calm_and_in_trouble",
    ],
    **{
        module: [*(f"{METHOD}{name}.py" for name in (*names, "specified", "time", "rich_prompts")), LOG]
        for module, names in {
            "phase1": ("phase1", "leaking", "contract", "reference"),
            "phase2_inner": ("attempts", "leaking", "contract", "reference"),
            "phase2_outer": ("phase2_outer", "contract", "reference"),
            "phase3": ("attempts", "leaking", "contract", "reference"),
            "safety": ("safety", "leaking", "attempts", "phase1"),
        }.items()
    },
    "method/scores": ["tests/test_scores.py", f"{EXECUTION}outcome.py", f"{METHOD}safety.py"],
    "holdout/answers": [f"{HOLDOUT}views.py", f"{HOLDOUT}scorer.py"],
    "holdout/keys": [f"{HOLDOUT}views.py"],
    "holdout/intervals": [
        f"{HOLDOUT}scorer.py",
        f"{HOLDOUT}expected.py::test_an_expected_score_comes_with_the_noise_of_new_rows_and_a_measure_without",
        f"{HOLDOUT}expected.py::test_ends_of_intervals_are_what_they_were_and_lie_where_the_metric_can_be",
        f"{HOLDOUT}expected.py::test_rows_of_one_group_are_one_observation",
        f"{HOLDOUT}expected.py::test_draws_without_a_figure_do_not_count",
    ],
}
LOOKS_AT_THE_TEXT = f"{PIPELINE}run.py::test_the_flow_of_the_pipeline_is_one_module"  # which grows with its mutants
# For the copy's conftest: mutmut reads an attribute of test items that newer releases of pytest no longer have, and it
# hands tests over in no order. With the quick ones first most mistakes are found before a slow one begins.
HOOKS = """

def pytest_itemcollected(item: pytest.Item) -> None:
    item._nodeid = item.nodeid


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import json

    known = Path("mutmut-stats.json")
    seconds = json.loads(known.read_text())["duration_by_test"] if known.exists() else {}
    items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))
"""
PATIENCE = {"timeout_multiplier": 4.0, "timeout_constant": 3.0}  # how much longer the tests of a mutant may take
KILLED = {1, 3, 36, -24, 24, 152, 255, -11, -9}  # failing tests, endless loops, crashes
LATE = {36, -24, 24, 152}  # of these, those whose time was up
SURVIVED = {0, 5, 33}  # 5 and 33: no test comes by


@dataclass
class Outcome:
    """What became of the mutants of one module."""

    module: str
    killed: int = 0
    late: int = 0
    survivors: list[str] = field(default_factory=list)
    odd: Counter[int | None] = field(default_factory=Counter)
    changes: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """Mutants with a verdict."""
        return self.killed + len(self.survivors)

    @property
    def rate(self) -> float:
        """The share that was noticed."""
        return self.killed / self.tried if self.tried else 0.0

    def __str__(self) -> str:
        odd = "".join(f", {count} with exit code {code}" for code, count in self.odd.items())
        late = f" ({self.late} by the clock)" if self.late else ""
        return f"{self.module:16} {self.tried:5} tried, {self.killed:5} killed{late}, {self.rate:6.1%}{odd}"


def prepare(module: str, folder: Path) -> None:
    """Copy what the tests need, with mutmut told to change one module only."""
    for name in ("src", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "catboost_info")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    with (folder / "tests" / "conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write(HOOKS)
    shutil.copy(ROOT / "README.md", folder)
    settings = {
        "source_paths": ["src"],
        "only_mutate": [f"src/mle_star/{module}.py"],
        "pytest_add_cli_args_test_selection": TESTS[module],
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-p", "no:randomly", "--deselect", LOOKS_AT_THE_TEXT],
        **PATIENCE,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text("\n".join([text, "[tool.mutmut]", *lines, ""]), encoding="utf-8")


def mutmut(folder: Path, *arguments: str, check: bool = True) -> str:
    """Run mutmut in the copy; its own output is shown only when it fails."""
    command = [sys.executable, "-m", "mutmut", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if check and done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments[:3])} failed in {folder}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def verdicts(folder: Path, module: str) -> dict[str, int | None]:
    """mutmut's exit code for each mutant, None for one that was not tried."""
    meta = folder / "mutants" / "src" / "mle_star" / f"{module}.py.meta"  # a module is a path
    found: dict[str, int | None] = json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]
    return found


def mutate(module: str, folder: Path, sample: int | None, skip: int, jobs: int) -> Outcome:
    """Plant the mutants of one module and see which its tests notice."""
    prepare(module, folder)
    jobs_option = f"--max-children={jobs}"
    names: list[str] = []
    if sample is not None:
        mutmut(folder, "run", jobs_option, f"mle_star.{module.replace('/', '.')}.no_such_mutant*", check=False)
        known = sorted(verdicts(folder, module))
        random.Random(0).shuffle(known)
        names = known[skip : skip + sample]
        if not names:  # without names all of them would be tried
            raise SystemExit(f"{module} has only {len(known)} mutants")
    mutmut(folder, "run", jobs_option, *names)
    outcome = Outcome(module)
    for name, code in verdicts(folder, module).items():
        if code in KILLED:
            outcome.killed += 1
            outcome.late += code in LATE
        elif code in SURVIVED:
            outcome.survivors.append(name)
        elif not names or name in names:
            outcome.odd[code] += 1
    outcome.changes = [mutmut(folder, "show", name) for name in outcome.survivors]
    return outcome


def main() -> int:
    """Mutate the modules that were asked for; fail when in one of them fewer than 90 % of the mutants are noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"any of: {', '.join(TESTS)} (default: all)")
    parser.add_argument("--sample", type=int, help="at most this many mutants of each module")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many of a sample's mutants before")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time (default: one a core)")
    options = parser.parse_args()
    unknown = set(options.modules) - set(TESTS)
    if unknown:
        parser.error(f"no such module: {', '.join(sorted(unknown))}")
    outcomes = []
    for module in options.modules or list(TESTS):
        with tempfile.TemporaryDirectory(prefix=f"mutate-{module.replace('/', '-')}-") as folder:
            outcomes.append(mutate(module, Path(folder), options.sample, options.skip, options.jobs))
        for change in outcomes[-1].changes:
            print(change)
        print(outcomes[-1], flush=True)
    print("\n".join(["", *map(str, outcomes)]))
    below = [outcome.module for outcome in outcomes if outcome.rate < BAR]
    print(f"below {BAR:.0%}: {', '.join(below)}" if below else f"every module reaches {BAR:.0%}")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
