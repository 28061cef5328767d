"""The recipes of docs/extending.md, each done as the page says it, in a package that is not ours."""

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import mle_star

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
PACKAGE = Path(mle_star.__file__).parent


def blocks(heading: str) -> list[str]:
    """The code that the page shows below a heading, without its fences."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"^( *)(`{3,})\w+\n(.*?)\n\1\2$", section, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(code) for _, _, code in found]


def scratch_package(folder: Path, heading: str) -> None:
    """Write what the page shows as a module with entry points, as installing it would."""
    module, points = blocks(heading)[:2]
    name = module.split("\n", 1)[0].removeprefix("# ").removesuffix(".py")
    (folder / f"{name}.py").write_text(module, encoding="utf-8")
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    group = re.sub(r'project\.entry-points\."(.+)"', r"\1", points).replace('"', "")
    (info / "entry_points.txt").write_text(group, encoding="utf-8")


def copied_package(folder: Path) -> Path:
    """A copy of ours to write into."""
    return Path(shutil.copytree(PACKAGE, folder / "mle_star", ignore=shutil.ignore_patterns("__pycache__")))


def run_beside(folder: Path, code: str) -> str:
    """What a fresh interpreter prints that finds `folder` first."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


USES = {
    "A metric": (
        "from mle_star.data.metrics import known_metric\nimport numpy\n"
        "print(known_metric('Lift at half').compute(numpy.array(['a', 'b']), numpy.array(['a', 'b'])))",
        "2.0\n",
    ),
    "An executor": (
        "import asyncio\nfrom mle_star import PipelineConfig\n"
        "from mle_star.execution.executors import opened_executor\nasync def main():\n"
        "    async with opened_executor(PipelineConfig(executor='elsewhere://there:9')) as executor:\n"
        "        print(type(executor).__name__, executor.address)\nasyncio.run(main())",
        "Elsewhere elsewhere://there:9\n",
    ),
    "A view": (
        "from mle_star.views.display import make_display\nfrom mle_star.run.events import BestImproved\n"
        "with make_display('ticker') as display: display(BestImproved(step='phase1', score=0.75, digest='x'))",
        "phase1 0.75\nover: 0.75\n",
    ),
}


@pytest.mark.parametrize("heading", USES)
def test_a_package_of_somebody_elses_adds_it(heading: str, tmp_path: Path) -> None:
    scratch_package(tmp_path, heading)
    code, output = USES[heading]
    assert run_beside(tmp_path, code) == output


def test_an_agent_takes_a_folder_and_the_phase_that_asks_it(tmp_path: Path) -> None:
    declaration, prompt, asking = blocks("An agent")[:3]
    copy = copied_package(tmp_path)
    (copy / "agents" / "critic").mkdir()
    (copy / "agents" / "critic" / "__init__.py").write_text(declaration + "\n", encoding="utf-8")
    (copy / "agents" / "critic" / "prompt.md").write_text(prompt + "\n", encoding="utf-8")
    code = textwrap.indent(f"code = solution.content\n{asking}\nreturn str(opinion)\n", "    ")
    with (copy / "phase2_outer.py").open("a", encoding="utf-8") as phase:
        phase.write(f"\n\nasync def criticize(solution):\n{code}")
    (tmp_path / "tests").symlink_to(Path(__file__).parent)
    output = run_beside(
        tmp_path,
        "import asyncio\nfrom pathlib import Path\n"
        "from mle_star.models import AgentType, PipelineConfig, SolutionScript, agent_config\n"
        "from mle_star.phase2_outer import criticize\nfrom mle_star.sdk.definitions import build_definitions\n"
        "from tests.method.conftest import scripted_run\n"
        "critic = AgentType('critic')\n"
        "print(len(AgentType), sorted(build_definitions(agent_config(critic), '', 'full'))[2])\n"
        "print(PipelineConfig(agents={'critic': {'effort': 'low'}}).role(critic).effort)\n"
        f"with scripted_run(Path({str(tmp_path)!r})) as run:\n"
        "    run.agents.reply('critic', 'The split is random.')\n"
        "    print(asyncio.run(criticize(SolutionScript(content='x = 1', phase='init'))))\n"
        "    print(run.agents.calls('critic')[0].prompt)\n",
    )
    assert output.startswith("15 critic\nlow\nThe split is random.\n")
    assert "What is the weakest part of this script?\n\n```python\nx = 1\n```" in output


def test_an_executor_of_a_package_passes_the_suite_that_is_shipped(tmp_path: Path) -> None:
    scratch_package(tmp_path, "An executor")
    (tmp_path / "test_elsewhere.py").write_text(blocks("An executor")[2], encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    command += ["-k", "exit_code or stdin", "test_elsewhere.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout


def test_a_model_family_of_the_engineer_is_one_file(tmp_path: Path) -> None:
    (module,) = blocks("What the embedded engineer knows")
    (copied_package(tmp_path) / "engineer" / "parts" / "ridge.py").write_text(module, encoding="utf-8")
    (tmp_path / "input").mkdir()
    rows = [f"{n},{n % 7},{3 * (n % 7) + n % 2}" for n in range(60)]
    (tmp_path / "input" / "train.csv").write_text("\n".join(["id,rooms,price", *rows]), encoding="utf-8")
    (tmp_path / "input" / "test.csv").write_text("id,rooms\n60,3\n61,5\n", encoding="utf-8")
    code = (
        "import os, runpy\nfrom pathlib import Path\n"
        "from mle_star.engineer import design, planning, profile\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "seen = profile.look('rmse', Path('input'), 'Predict `price`.', ('sklearn',))\n"
        "family = next(one for one in design.fitting_families(seen) if one.name == 'Ridge')\n"
        "Path('solution.py').write_text(design.assemble(planning.first_design(seen, family, None)))\n"
        "runpy.run_path('solution.py', run_name='__main__')"
    )
    output = run_beside(tmp_path, code)
    assert "Final Validation Performance: " in output and "Ridge(settings" in (tmp_path / "solution.py").read_text()
    assert len((tmp_path / "final" / "submission.csv").read_text().splitlines()) == 3
