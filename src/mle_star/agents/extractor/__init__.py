"""The extractor chooses the block to refine, and plans the first attempt."""

from mle_star.agents import Agent, Frozen, ListReply


class RefinePlan(Frozen):
    """A block and what to do with it."""

    code_block: str
    plan: str


class ExtractorOutput(ListReply):
    """The extractor's answer."""

    plans: list[RefinePlan]


AGENT = Agent(
    duty="Agent that identifies the most impactful code block and proposes a refinement plan",
    figure=14,
    needs=("solution_script", "ablation_summary", "previous_code_blocks"),
    takes=("note",),
    context=("solution", "analysis", "memory", "limits", "emphasis", "bolder", "elsewhere"),
    schema=ExtractorOutput,
    plans=True,
    presets={"good": {"effort": "high"}, "best": {"model": "opus", "effort": "high"}},
    planned={"phase2": lambda n: n.L * n.T},
)
