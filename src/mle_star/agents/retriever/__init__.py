"""The retriever searches the web for models."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from mle_star.agents.declaration import Agent, ListReply, Reply, refuse_empty


class RetrievedModel(Reply):
    """A model worth trying, with code that shows how."""

    model_name: str
    example_code: str


def _as_text(value: Any) -> str:
    """A remark as text, whatever JSON it came as: nothing that is merely told to others refuses an answer."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        return "\n".join(map(_as_text, value))
    return json.dumps(value, ensure_ascii=False, default=str)


class RetrieverOutput(ListReply):
    """The retriever's answer."""

    models: Annotated[list[RetrievedModel], AfterValidator(refuse_empty)]


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
