"""The leakage checker: it looks for leaks, and removes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from mle_star.agents.declaration import READ, Agent, ListReply, Reply, Request, refuse_empty


class LeakageAnswer(Reply):
    """One preprocessing block and whether it leaks."""

    leakage_status: Literal["Yes Data Leakage", "No Data Leakage"]
    code_block: str


class LeakageDetectionOutput(ListReply):
    """The leakage checker's answer."""

    answers: Annotated[list[LeakageAnswer], AfterValidator(refuse_empty)]


_REMOVES = "Removes data leakage from a script."

AGENT = Agent(
    usual="detection",
    duty="Looks for data leakage in preprocessing, and removes it.",
    figure=20,
    needs=("code",),
    schema=LeakageDetectionOutput,
    tools=READ,
    presets={"quick": {"effort": "low"}},
    planned={
        "phase1": lambda n: 2 * n.M,
        "phase2": lambda n: n.L * n.T * n.K,
        "phase3": lambda n: n.R,
        "finalization": lambda n: 1,
    },
    variants={
        "correction": Request(figure=21, needs=("code",), takes=("flagged_block",), duty=_REMOVES),
        "rewrite": Request(figure=21, needs=("code",), takes=("flagged_block", "final_script"), duty=_REMOVES),
    },
)
