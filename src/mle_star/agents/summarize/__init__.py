"""The reader of what a study printed."""

from mle_star.agents import Agent

AGENT = Agent(
    duty="Agent that summarizes raw ablation study output into a concise textual summary",
    figure=13,
    needs=("ablation_code", "raw_result"),
    context=("keep_analysis",),
    tools=(),
    presets={"quick": {"effort": "low"}, "good": {"effort": "low"}, "best": {"effort": "low"}},
    planned={"phase2": lambda n: n.L * n.T},
    scripts_read=1.3,
)
