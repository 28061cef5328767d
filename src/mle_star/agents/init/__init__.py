"""The first author: one script around one model."""

from mle_star.agents import ACT, CAP, Agent

AGENT = Agent(
    duty="Writes a first solution script around one given model.",
    figure=10,
    needs=("task_description", "model_name", "example_code"),
    takes=("metric", "direction", *CAP),
    context=("notes", "limits", "refit", "candidates"),
    full_tools=ACT,
    planned={"phase1": lambda n: n.M},
    scripts_read=0.3,
    scripts_written=1.0,
)
