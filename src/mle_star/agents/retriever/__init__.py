"""The retriever searches the web for models."""

import json
from typing import Annotated, Any

from pydantic import BeforeValidator

from mle_star.agents import Agent, Frozen, ListReply


class RetrievedModel(Frozen):
    """A model worth trying, with code that shows how."""

    model_name: str
    example_code: str


def _as_text(value: Any) -> str:
    """A remark as text, whatever JSON it came as: nothing that is merely told to others refuses an answer."""
    if isinstance(value, list):
        return "\n".join(map(_as_text, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) if value else ""


class RetrieverOutput(ListReply):
    """The retriever's answer."""

    models: list[RetrievedModel]


class RetrieverNotes(RetrieverOutput):
    """The retriever's answer with `notes`: what it found beyond the models."""

    notes: Annotated[str, BeforeValidator(_as_text)] = ""


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
