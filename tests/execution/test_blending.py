"""A blend: its members run again while there is time; what they leave in their folder is read and written past."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mle_star.execution import LocalExecutor, execute_in_run
from mle_star.finalization import submit_blend
from mle_star.holdout.holdout import HoldOut
from mle_star.models import ExecutionRawResult, PipelineConfig, TaskDescription
from mle_star.run.context import RunShared, ScriptRequest
from mle_star.run.events import ScriptFinished
from tests.execution.conftest import OpenRun, script, write_sizes

MEMBER = """
import csv, os, shutil
rows = list(csv.DictReader(open('input/test.csv')))
with open('final/submission.csv', 'w') as file:
    file.write('id,label\\n' + ''.join(f"{row['id']},{int(int(row['size']) > 25)}\\n" for row in rows))
if len(open('input/train.csv').readlines()) == 401:  # all labels are there: it is the last run
    LINK
print('Final Validation Performance: 0.9')
"""
LINKS = {
    "a file": "os.remove('final/submission.csv'); os.symlink('OUTSIDE/precious.csv', 'final/submission.csv')",
    "a folder": "shutil.rmtree('final'); os.symlink('OUTSIDE', 'final')",
    "a pipe": "os.remove('final/submission.csv'); os.mkfifo('final/submission.csv')",
}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return write_sizes(tmp_path / "data")


@pytest.mark.parametrize("what", LINKS)
async def test_the_answers_of_a_blend_are_written_to_no_place_that_a_member_chose(
    what: str, open_run: OpenRun, task: TaskDescription, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    mine = "id,label\n" + "".join(f"{i},{i % 2}\n" for i in range(400, 440))
    (outside / "precious.csv").write_text(mine)
    member = script(MEMBER.replace("LINK", LINKS[what]).replace("OUTSIDE", str(outside)))
    config = PipelineConfig(scoring="auto", score_views=1, time_limit_seconds=3600)
    holdout = HoldOut.prepare(task, config, tmp_path / "run")
    with open_run(config, LocalExecutor(config), shared=RunShared(holdout=holdout)):
        assert (await execute_in_run(member, purpose="solution")).score == 1.0
        done = await submit_blend(member, {member.content: 1.0})
    assert [path.name for path in outside.iterdir()] == ["precious.csv"]
    assert (outside / "precious.csv").read_text() == mine
    assert any("answers as in the search: it wrote no submission" in warning for warning in done.warnings)
    said = [line.split(",") for line in Path(done.path).read_text().splitlines()[1:]]
    assert [(int(key), float(answer)) for key, answer in said] == [(i, i * 7 % 50 > 25) for i in range(400, 440)]


class SlowInTheSearch(LocalExecutor):
    """What calls itself slow has taken most of an hour, as far as anybody is told."""

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        raw = await super().run(request)
        is_slow = "# slow" in Path(request.script_path).read_text(encoding="utf-8")
        return raw.model_copy(update={"duration_seconds": 3500.0}) if is_slow else raw


async def test_members_answer_anew_while_there_is_time_and_the_others_as_in_the_search(
    open_run: OpenRun, task: TaskDescription, tmp_path: Path
) -> None:
    right, wrong = MEMBER.replace("LINK", "pass"), MEMBER.replace("LINK", "pass").replace("> 25", "<= 25")
    members = [script(text) for text in (right, wrong, f"{right}# slow")]
    config = PipelineConfig(scoring="auto", score_views=1, time_limit_seconds=4000)
    holdout = HoldOut.prepare(task, config, tmp_path / "run")
    with open_run(config, SlowInTheSearch(config), shared=RunShared(holdout=holdout)) as run:
        for member in members:
            await execute_in_run(member, purpose="solution")
        done = await submit_blend(script("# the blend"), {member.content: 1 / 3 for member in members})
        again = [e.script for e in run.journal.events if isinstance(e, ScriptFinished) and e.purpose == "submission"]
    assert again == [member.content for member in members[:2]]
    (warning,) = (warning for warning in done.warnings if "of the blend" in warning)
    assert re.fullmatch(
        r"member 3 of the blend answers as in the search: \d+ s are left, and the scored solution ran for 3500 s",
        warning,
    )
    said = [line.split(",") for line in Path(done.path).read_text().splitlines()[1:]]
    assert [(int(key), round(3 * float(answer))) for key, answer in said] == [
        (i, 2 if i * 7 % 50 > 25 else 1) for i in range(400, 440)
    ]
