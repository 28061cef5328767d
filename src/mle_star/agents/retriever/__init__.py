"""The retriever searches the web for models."""

from mle_star.models.agents import Agent, RetrieverNotes, RetrieverOutput

AGENT = Agent(
    duty="Searches the web for strong models that fit the task.",
    figure=9,
    needs=("task_description", "M"),
    context=("ask_for_notes", "families"),
    schema=RetrieverOutput,
    schemas={"research": RetrieverNotes},
    tools=("WebSearch", "WebFetch"),
    full_tools=("WebSearch", "WebFetch"),
    alone=True,
    presets={"best": {"model": "opus", "effort": "high"}},
    planned={"phase1": lambda n: 1},
    scripts_read=20.0,  # pages, in several requests, each with what was found so far
    scripts_written=2.0,
)
