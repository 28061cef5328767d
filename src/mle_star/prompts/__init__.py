"""The prompts: one template file per agent and variant, filled in by `render`.

    render(AgentType.coder, code_block=block, plan=plan)
    render(AgentType.leakage, "correction", code=script, flagged_block=answer.code_block)
    render(AgentType.planner, code_block=block, plans=plans, scores=scores, direction=task.metric_direction)

A declared variable that is missing is a `KeyError`; names with blanks may be spelt with underscores. Lists are given as
lists: `plans` with `scores`, `solutions`, `previous_ablations` and `previous_code_blocks` become sections (see
`mle_star.prompts.sections`), and an empty one is left out.

Optional values: `metric` and `direction` (init), `direction` (planner, ens_planner), `subsample_instruction` or
`subsample_limit` (init, merger, coder, debugger; an empty instruction leaves the rule out), `flagged_block` (leakage
correction), `note` (extractor: `BLOCK_NOT_FOUND` for a second try).

Below every prompt that a run sends stands `facts_section`: agent, metric, direction, seed and scores as JSON.

The headings of every prompt are listed in `docs/prompts.md`: each inserted text stands in a fence of its own under its
heading, and the fence is longer than any run of backticks in the text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from mle_star.models import AgentType, PipelineConfig, PromptTemplate, TaskDescription
from mle_star.models.agents import AGENTS, piece, template_text
from mle_star.prompts.sections import (
    BLOCK_NOT_FOUND,
    fenced,
    format_direction,
    format_flagged_blocks,
    format_metric,
    format_plan_history,
    format_previous_blocks,
    format_solutions,
    format_subsampling,
    format_summaries,
)

__all__ = ["BLOCK_NOT_FOUND", "AgentPrompt", "Prompt", "PromptRegistry", "facts_section", "fenced", "render"]

DEFAULT_SUBSAMPLE_LIMIT = 30000
_STEADY_END = "{steady_end}\n\n"
"""In a template: what stands above is the same in the calls to come."""

MOST_SCORES = 20
MOST_PLANS, PLAN_CHARACTERS = 12, 200
_COUNTS = ("M", "L")


class Prompt(str):
    """A prompt whose first `steady` characters stand in the calls to come, too, so that a provider can keep them."""

    steady: int = 0


class AgentPrompt(PromptTemplate):
    """A template of ours. On top of `PromptTemplate` it

    - lays a longer fence around a value that holds one,
    - writes lists (plans with scores, solutions, summaries, blocks) as sections, and leaves out an empty one,
    - knows `optional` values, which have a default.
    """

    name: str
    variant: str | None = None
    optional: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """A digest of the wording."""
        return hashlib.sha256(self.template.encode()).hexdigest()[:16]

    def render(self, **kwargs: Any) -> Prompt:
        """The prompt, every slot filled in one pass; `KeyError` when a declared variable is missing."""
        steady, mark, rest = self.template.partition(_STEADY_END)
        prompt = Prompt(self._filled(steady + rest, kwargs))
        prompt.steady = len(self._filled(steady, kwargs)) if mark else 0
        return prompt

    def _filled(self, template: str, kwargs: Mapping[str, Any]) -> str:
        given = {name: kwargs[key] for name in (*self.variables, *self.optional) if (key := _key(name, kwargs))}
        for name in self.variables:
            if name not in given:
                raise KeyError(f"the {self.name} prompt needs {name!r}")
        texts = {name: self._text(name, given) for name in (*self.variables, *self.optional)}
        return _slot_pattern(tuple(texts)).sub(lambda match: _fill(match, texts), template)

    def _text(self, name: str, given: Mapping[str, Any]) -> str:
        value = given.get(name)
        if name == "plans":
            title = AGENTS[self.agent_type].request(self.variant).history
            return format_plan_history(given[name], given["scores"], title)
        if name in _FORMS:
            return _FORMS[name](value, given)
        return "" if value is None and name in self.optional else str(value)


_FORMS: dict[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "metric": lambda value, given: format_metric(value, given.get("direction")),
    "direction": lambda value, _: format_direction(value),
    "subsample_instruction": lambda value, given: (
        format_subsampling(given.get("subsample_limit") or DEFAULT_SUBSAMPLE_LIMIT) if value is None else str(value)
    ),
    "flagged_block": lambda value, _: format_flagged_blocks([value] if isinstance(value, str) else value or []),
    "final_script": lambda value, _: piece("final_script" if value else "scored_script"),
    "note": lambda value, _: f"# Note\n\n{value}" if value else "",
    "solutions": lambda value, _: format_solutions(value),
    "previous_ablations": lambda value, _: format_summaries(value),
    "previous_code_blocks": lambda value, _: format_previous_blocks(value),
}
"""How values look that are more than a text."""


def _key(name: str, kwargs: Mapping[str, Any]) -> str | None:
    return next((key for key in (name, name.replace(" ", "_")) if key in kwargs), None)


@cache
def _slot_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """A slot in a fence, a slot that is a list item, a slot that is a section, any other slot."""
    slot = "{(" + "|".join(re.escape(name) for name in names) + ")}"
    return re.compile(rf"^```(\w*)\n{slot}\n```$|^- {slot}\n|^{slot}\n\n|{slot}", re.MULTILINE)


def _fill(match: re.Match[str], texts: Mapping[str, str]) -> str:
    language, in_fence, as_item, as_section, plain = match.groups()
    if in_fence is not None:
        return fenced(texts[in_fence], language)
    if as_item is not None:
        return f"- {texts[as_item]}\n" if texts[as_item] else ""
    if as_section is not None:
        return f"{texts[as_section]}\n\n" if texts[as_section] else ""
    return texts[plain]


@cache
def _own_templates() -> tuple[AgentPrompt, ...]:
    return tuple(
        AgentPrompt(
            agent_type=agent,
            variant=variant,
            name=agent.value if variant is None else f"{agent.value}_{variant}",
            figure_ref=f"Figure {request.figure}",
            template=template_text(agent, variant),
            variables=list(request.needs),
            optional=(*request.takes, "whole_script", "context"),
        )
        for agent, declared in AGENTS.items()
        for variant, request in declared.requests.items()
    )


class PromptRegistry:
    """All templates by agent and variant. `len()` counts agents, iteration gives every template."""

    def __init__(self, templates: Iterable[AgentPrompt] | None = None) -> None:
        """Our own templates, or the given ones instead."""
        prompts = _own_templates() if templates is None else templates
        self._prompts = {(prompt.agent_type, prompt.variant): prompt for prompt in prompts}

    def __len__(self) -> int:
        return len({agent for agent, _ in self._prompts})

    def __iter__(self) -> Iterator[AgentPrompt]:
        return iter(self._prompts.values())

    def get(self, agent_type: AgentType, variant: str | None = None) -> AgentPrompt:
        """The template of an agent; without a variant its plain one, for `leakage` that of detection."""
        key = (agent_type, variant or AGENTS[agent_type].usual)
        if key not in self._prompts:
            raise KeyError(f"no prompt for {agent_type!r}" + (f", variant {variant!r}" if variant else ""))
        return self._prompts[key]

    def hash(self, agent_type: AgentType, variant: str | None = None) -> str:
        """A digest of the template's wording, for the journal."""
        return self.get(agent_type, variant).hash


def render(agent: AgentType, variant: str | None = None, **values: Any) -> str:
    """The prompt for one call: `render(AgentType.coder, code_block=..., plan=...)`."""
    return PromptRegistry().get(agent, variant).render(**values)


# --- the typed section below every prompt ------------------------------------------------------------------


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
    return f"# Facts\n\n{fenced(json.dumps(known, ensure_ascii=False), 'json')}"


def _scores(scores: object) -> list[float | None] | None:
    return [*scores][-MOST_SCORES:] if isinstance(scores, (list, tuple)) and scores else None


def _plans(plans: object) -> list[str] | None:
    """How the last plans begin: that names what they do."""
    shown = (
        [" ".join(str(plan).split())[:PLAN_CHARACTERS] for plan in plans] if isinstance(plans, (list, tuple)) else []
    )
    return shown[-MOST_PLANS:] or None
