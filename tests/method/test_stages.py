"""Work within the time of its stage."""

from __future__ import annotations

import asyncio

import pytest

from mle_star.errors import BudgetExceeded
from mle_star.run.events import ScriptStarted
from mle_star.search.stages import Stages
from tests.method.conftest import ScriptedRun
from tests.pipeline.clock import in_its_own_time


async def late() -> str:
    """Work that takes longer than it has."""
    await asyncio.sleep(3)
    return "done"


@in_its_own_time
async def test_what_the_last_script_has_left_is_handed_over_beyond_the_limit(quick_run: ScriptedRun) -> None:
    stages = Stages(quick_run.context, {})
    assert await stages.within(1, late(), "finalization") == "done"
    with pytest.raises(BudgetExceeded):
        await stages.within(1, late(), "phase3")
    started = ScriptStarted(step="finalization/script", purpose="submission", timeout_seconds=1.0)
    quick_run.context.journal.record(started)
    with pytest.raises(BudgetExceeded):
        await stages.within(1, late(), "finalization")
