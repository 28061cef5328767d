"""The typed section below every prompt: small values as JSON, for minds that compute rather than read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mle_star.models import AgentType, PipelineConfig, TaskDescription
from mle_star.prompts.sections import fenced

FACTS_HEADING = "Facts"
MOST_SCORES = 20
MOST_PLANS, PLAN_CHARACTERS = 12, 200
_COUNTS = ("M", "L")


def facts_section(
    agent: AgentType, variant: str | None, task: TaskDescription, config: PipelineConfig, values: Mapping[str, object]
) -> str:
    """What is known in numbers and names, as one line of JSON; scripts stay in the fences above, prose is not repeated.

    It is the same whenever the same question is asked: no clock, no limit, nothing that may differ on resume. To the
    letter there is none, except for the embedded engineer, who reads nothing else.
    """
    if config.letter and config.traits.reads_prose:
        return ""
    facts: dict[str, Any] = {
        "agent": agent.value,
        "variant": variant,
        "task": task.competition_id,
        "task_type": task.task_type.value,
        "modality": task.data_modality.value,
        "metric": task.evaluation_metric,
        "direction": task.metric_direction.value,
        "seed": config.seed,
        "rows": values.get("subsample_limit", config.subsample_limit),
        "count": next((values[name] for name in _COUNTS if name in values), None),
        "model": values.get("model_name"),
        "scores": _scores(values.get("scores")),
        "tried": _plans(values.get("tried")) if "memory" in config.briefing else None,
    }
    known = {name: value for name, value in facts.items() if value is not None}
    return f"# {FACTS_HEADING}\n\n{fenced(json.dumps(known, ensure_ascii=False), 'json')}"


def _scores(scores: object) -> list[float | None] | None:
    return [*scores][-MOST_SCORES:] if isinstance(scores, (list, tuple)) and scores else None


def _plans(plans: object) -> list[str] | None:
    """How the last plans begin: that names what they do."""
    shown = (
        [" ".join(str(plan).split())[:PLAN_CHARACTERS] for plan in plans] if isinstance(plans, (list, tuple)) else []
    )
    return shown[-MOST_PLANS:] or None
