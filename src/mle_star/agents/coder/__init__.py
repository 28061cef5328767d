"""The coder writes a block by a plan."""

from mle_star.agents import ACT, CAP, Agent

AGENT = Agent(
    duty="Agent that implements a refinement plan on a target code block",
    figure=15,
    needs=("code_block", "plan"),
    takes=CAP,
    context=("script", "best_block", "changed_by_repairs", "elsewhere", "limits"),
    tools=(),
    full_tools=ACT,
    presets={"best": {"model": "opus", "effort": "high"}},
    planned={"phase2": lambda n: n.L * n.T * n.K},
)
