"""The checker of whether all data is used."""

from mle_star.agents import Agent

AGENT = Agent(
    duty="Makes sure that no supplied data source is ignored.",
    figure=22,
    needs=("initial solution", "task description"),
    context=("limits", "refit"),
    alone=True,
    presets={"quick": {"effort": "low"}},
    planned={"phase1": lambda n: 1},
    scripts_written=1.0,
)
