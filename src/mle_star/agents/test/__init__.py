"""The author of the final script; it also removes subsampling, and compares the script with texts of others."""

from typing import Literal

from mle_star.agents import ACT, Agent, Frozen, Request


class DataContaminationResult(Frozen):
    """Is the solution its own work, or a copy of a discussion?"""

    verdict: Literal["Novel", "Same"]


AGENT = Agent(
    duty="Turns the validated script into one that writes a submission.",
    figure=25,
    needs=("task description", "final solution"),
    context=("solution", "limits", "model"),
    full_tools=ACT,
    alone=True,
    presets={"quick": {"effort": "low"}},
    planned={"finalization": lambda n: 3},
    scripts_written=1.0,
    variants={
        "subsampling_extract": Request(figure=26, needs=("final solution",)),
        "subsampling_remove": Request(figure=27, needs=("code block with subsampling",)),
        "contamination": Request(
            figure=28,
            duty="Scores whether a script copies a post of a forum.",
            needs=("reference discussion", "final solution"),
            schema=DataContaminationResult,
            without_tools=True,
        ),
    },
)
