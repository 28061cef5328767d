"""The author of ablation studies."""

from mle_star.agents import ACT, Agent

AGENT = Agent(
    duty="Agent that generates ablation study code to identify impactful solution components",
    figure=12,
    needs=("solution_script", "previous_ablations"),
    context=("ask_for_analysis", "memory", "limits", "emphasis"),
    study=True,
    full_tools=ACT,
    planned={"phase2": lambda n: n.L * n.T},
    scripts_written=1.0,
)
