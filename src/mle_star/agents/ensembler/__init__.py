"""The author of ensembles."""

from mle_star.agents import ACT, Agent

AGENT = Agent(
    duty="Agent that implements an ensemble plan on L solution scripts into a single Python program",
    figure=18,
    needs=("L", "solutions", "plan"),
    context=("input_scores", "best_ensemble", "limits", "refit"),
    full_tools=ACT,
    alone=True,
    presets={"best": {"model": "opus", "effort": "high"}},
    planned={"phase3": lambda n: n.R},
    scripts_read=None,
    scripts_written=1.0,
)
