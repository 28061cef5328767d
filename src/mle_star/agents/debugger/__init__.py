"""The debugger repairs scripts: solutions, studies, and those that write the submission."""

from mle_star.agents import ACT, CAP, Agent, Request

_NEEDS, _CONTEXT = ("code", "bug"), ("repairs", "limits")

AGENT = Agent(
    duty="Repairs scripts that crash.",
    figure=19,
    needs=_NEEDS,
    takes=CAP,
    context=_CONTEXT,
    tools=("Read", "Bash"),
    full_tools=ACT,
    scripts_written=1.0,
    variants={
        "submission": Request(figure=19, needs=_NEEDS, context=_CONTEXT),
        "ablation": Request(figure=19, needs=_NEEDS, context=_CONTEXT, study=True),
    },
)
