"""The merger makes one script of two."""

from mle_star.agents import ACT, CAP, Agent

AGENT = Agent(
    duty="Works a second script into the base script and ensembles the two.",
    figure=11,
    needs=("base_code", "reference_code"),
    takes=CAP,
    context=("input_scores", "notes", "limits", "refit"),
    full_tools=ACT,
    alone=True,
    planned={"phase1": lambda n: n.M - 1},
    scripts_read=2.0,
    scripts_written=1.0,
)
