"""The planner proposes the next attempt at a block."""

from mle_star.agents import Agent

AGENT = Agent(
    duty="Agent that proposes the next refinement strategy using feedback from previous attempts",
    figure=16,
    needs=("code_block", "plans", "scores"),
    takes=("direction",),
    context=(
        *("script", "best_block", "solution", "analysis", "memory", "changed_by_repairs"),
        *("notes", "limits", "emphasis", "elsewhere"),
    ),
    tools=(),
    plans=True,
    presets={"good": {"effort": "high"}, "best": {"model": "opus", "effort": "high"}},
    planned={"phase2": lambda n: n.L * n.T * (n.K - 1)},
)
