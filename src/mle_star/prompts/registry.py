"""The registry: which template belongs to which agent and variant, and how its slots are filled."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from mle_star.agents import AGENTS, piece, template_text
from mle_star.models import AgentType, PromptTemplate
from mle_star.prompts import sections

_DEFAULT_SUBSAMPLE_LIMIT = 30000

_STEADY_END = "{steady_end}\n\n"
"""In a template: what stands above is the same in the calls to come."""


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
        if name == "metric":
            return sections.format_metric(value, given.get("direction"))
        if name == "direction":
            return sections.format_direction(value)
        if name == "subsample_instruction" and value is None:
            return sections.format_subsampling(given.get("subsample_limit") or _DEFAULT_SUBSAMPLE_LIMIT)
        if name == "flagged_block" and value:
            return sections.format_flagged_blocks([value] if isinstance(value, str) else value)
        if name == "final_script":
            return piece("final_script" if value else "scored_script")
        if name == "note" and value:
            return f"# Note\n\n{value}"
        if isinstance(value, (list, tuple)):
            return self._section(name, list(value), given)
        return "" if value is None and name in self.optional else str(value)

    def _section(self, name: str, value: list[Any], given: Mapping[str, Any]) -> str:
        if name == "plans":
            return sections.format_plan_history(
                value, given["scores"], AGENTS[self.agent_type].request(self.variant).history
            )
        if name == "solutions":
            return sections.format_solutions(value)
        if name == "previous_ablations":
            return sections.format_summaries(value)
        if name == "previous_code_blocks":
            return sections.format_previous_blocks(value)
        return str(value)


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
        return sections.fenced(texts[in_fence], language)
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
