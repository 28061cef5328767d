"""The extractor chooses the block to refine, and plans the first attempt."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from mle_star.agents.declaration import READ, Agent, ListReply, Reply, refuse_empty


class RefinePlan(Reply):
    """A block and what to do with it."""

    code_block: str
    plan: str


class ExtractorOutput(ListReply):
    """The extractor's answer."""

    plans: Annotated[list[RefinePlan], AfterValidator(refuse_empty)]


AGENT = Agent(
    duty="Agent that identifies the most impactful code block and proposes a refinement plan",
    figure=14,
    needs=("solution_script", "ablation_summary", "previous_code_blocks"),
    takes=("note",),
    context=("solution", "analysis", "memory", "limits", "emphasis", "borrow"),
    schema=ExtractorOutput,
    tools=READ,
    plans=True,
    presets={"good": {"effort": "high"}, "best": {"model": "opus", "effort": "high"}},
    planned={"phase2": lambda n: n.L * n.T},
)
