"""The leakage checker: it looks for leaks, and removes them."""

from typing import Literal

from mle_star.agents import Agent, Frozen, ListReply, Request


class LeakageAnswer(Frozen):
    """One preprocessing block and whether it leaks."""

    leakage_status: Literal["Yes Data Leakage", "No Data Leakage"]
    code_block: str


class LeakageDetectionOutput(ListReply):
    """The leakage checker's answer."""

    answers: list[LeakageAnswer]


_REMOVES = "Removes data leakage from a script."

AGENT = Agent(
    usual="detection",
    duty="Looks for data leakage in preprocessing, and removes it.",
    figure=20,
    needs=("code",),
    schema=LeakageDetectionOutput,
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
