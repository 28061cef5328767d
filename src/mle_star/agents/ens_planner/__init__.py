"""The planner of ensembles."""

from mle_star.agents import Agent

AGENT = Agent(
    duty="Agent that proposes ensemble strategies for combining L solution scripts",
    figure=17,
    needs=("L", "solutions", "plans", "scores"),
    takes=("direction",),
    context=("input_scores", "best_ensemble", "memory", "notes", "limits"),
    history="Ensemble plans you have tried",
    tools=(),
    plans=True,
    alone=True,
    presets={"good": {"effort": "high"}, "best": {"model": "opus", "effort": "high"}},
    planned={"phase3": lambda n: n.R},
    scripts_read=None,
)
