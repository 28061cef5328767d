"""The prompts: one template file per agent and variant, filled in by `render`.

    render(AgentType.coder, code_block=block, plan=plan)
    render(AgentType.leakage, "correction", code=script, flagged_block=answer.code_block)
    render(AgentType.planner, code_block=block, plans=plans, scores=scores, direction=task.metric_direction)

A declared variable that is missing is a `KeyError`; names with blanks may be spelt with underscores. Lists are given as
lists: `plans` with `scores`, `solutions`, `previous_ablations` and `previous_code_blocks` become sections, and an empty
one is left out.

Optional values: `metric` and `direction` (init), `direction` (planner, ens_planner), `subsample_instruction` or
`subsample_limit` (init, merger, coder, debugger; an empty instruction leaves the rule out), `flagged_block` (leakage
correction), `note` (extractor: `BLOCK_NOT_FOUND` for a second try).

Below every prompt that a run sends stands `facts_section`: agent, metric, direction, seed and scores as JSON.

The headings of every prompt are listed in `docs/prompts.md`: each inserted text stands in a fence of its own under its
heading, and the fence is longer than any run of backticks in the text.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from mle_star.models import AgentType, MetricDirection, PipelineConfig, PromptTemplate, TaskDescription
from mle_star.models.agents import AGENTS, piece, section, template_text
from mle_star.models.texts import digest_of

SUBSAMPLE_INSTRUCTION = (
    "If there are more than {limit} training samples, you must subsample to {limit} for a faster run."
)
_STEADY_END = "{steady_end}\n\n"
"""In a template: what stands above is the same in the calls to come."""

FAILED_SCORE = "N/A (evaluation failed)"
RUNNING, RUNNING_SCORE = math.nan, "not known yet: it is running now"
"""The score of a plan that is being tried, and how it is told."""
BLOCK_NOT_FOUND = (
    "The previously extracted code block was not found in the solution. "
    "Please extract the code block exactly as it appears in the script."
)
"""What the extractor is told when its block was not part of the script; give it as `note`."""

_EITHER = "higher (or, for a metric to be minimized, lower)"
"""The comparative before "score" when the direction is not told."""

MOST_SCORES = 20
MOST_PLANS, PLAN_CHARACTERS = 12, 200


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

    def render(self, **kwargs: Any) -> Prompt:
        """The prompt, every slot filled in one pass; `KeyError` when a declared variable is missing."""
        names = (*self.variables, *self.optional)
        given = self.given(names, kwargs)
        texts = {name: self._text(name, given) for name in names}
        first, mark, rest = self.template.partition(_STEADY_END)
        steady, others = (_SLOT.sub(lambda match: _fill(match, texts), part) for part in (first, rest))
        prompt = Prompt(steady + others)
        prompt.steady = len(steady) if mark else 0
        return prompt

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
    "direction": lambda value, _: MetricDirection(value).better_word if value else _EITHER,
    "subsample_instruction": lambda value, given: (
        SUBSAMPLE_INSTRUCTION.format(limit=given.get("subsample_limit") or 30_000) if value is None else str(value)
    ),
    "flagged_block": lambda value, _: format_flagged_blocks([value] if isinstance(value, str) else value or []),
    "final_script": lambda value, _: piece("final_script" if value else "scored_script"),
    "note": lambda value, _: f"# Note\n\n{value}" if value else "",
    "solutions": lambda value, _: format_solutions(value),
    "previous_ablations": lambda value, _: _numbered("Previous ablation studies", "Study", value, "text"),
    "previous_code_blocks": lambda value, _: _numbered("Code blocks improved before", "Block", value),
}
"""How values look that are more than a text."""


_NAME = r"{([^{}]+)}"
_SLOT = re.compile(rf"^```(\w*)\n{_NAME}\n```$|^- {_NAME}\n|^{_NAME}\n\n|{_NAME}", re.MULTILINE)
"""A slot in a fence, a slot that is a list item, a slot that is a section, any other slot."""


def _fill(match: re.Match[str], texts: Mapping[str, str]) -> str:
    language, in_fence, as_item, as_section, plain = match.groups()
    name = in_fence or as_item or as_section or plain
    if name not in texts:
        return match[0]
    if in_fence:
        return fenced(texts[name], language)
    return match[0].replace(f"{{{name}}}", texts[name]) if texts[name] or plain else ""


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
        return digest_of(self.get(agent_type, variant).template)[:16]


def render(agent: AgentType, variant: str | None = None, **values: Any) -> str:
    """The prompt for one call: `render(AgentType.coder, code_block=..., plan=...)`."""
    return PromptRegistry().get(agent, variant).render(**values)


# --- how values look; the values themselves are never changed ---------------------------------------------


def fenced(text: str, language: str = "python") -> str:
    """`text` as a Markdown code block; no run of backticks in it is as long as the fence, so that none can close it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st, ..."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def format_plan_history(
    plans: Sequence[str], scores: Sequence[float | None], title: str = "Improvement plans you have tried"
) -> str:
    """The plans tried so far with their scores, in order; empty when there are none."""
    shown = [FAILED_SCORE if s is None else RUNNING_SCORE if math.isnan(s) else str(s) for s in scores]
    entries = [f"## Plan: {plan}\n## Score: {score}" for plan, score in zip(plans, shown, strict=True)]
    return "\n\n".join([f"# {title}", *entries]) if entries else ""


def format_solutions(solutions: Sequence[str]) -> str:
    """The scripts to be ensembled, in full, each under its number."""
    return "\n\n".join(f"# {ordinal(n)} Python Solution\n\n{fenced(text)}" for n, text in enumerate(solutions, 1))


def format_flagged_blocks(blocks: Sequence[str]) -> str:
    """The block that leaks, or several, numbered; blank ones are left out; empty when there are none."""
    shown = [text for text in blocks if text.strip()]
    if len(shown) == 1:
        return f"# Flagged block\n\n{fenced(shown[0])}"
    return _numbered("Flagged blocks", "Block", shown)


def format_metric(metric: str | None, direction: MetricDirection | str | None) -> str:
    """The metric to use, so that the scores of different scripts can be compared."""
    if not metric:
        return "# Metric\n\nUse the metric that the task names. If it names none, propose a sensible evaluation metric."
    lines = ["# Metric", "", f"- name: `{metric}`"]
    if direction:
        direction = MetricDirection(direction)
        lines.append(f"- direction: `{direction.value}` ({direction.better_word} is better)")
    return "\n".join([*lines, "", section("metric_rule")])


def _numbered(title: str, label: str, texts: Sequence[str], language: str = "python") -> str:
    """Texts under their numbers; blank ones are left out; empty when there are none."""
    shown = [text for text in texts if text.strip()]
    entries = [f"## {label} {number}\n\n{fenced(text, language)}" for number, text in enumerate(shown, 1)]
    return "\n\n".join([f"# {title}", *entries]) if shown else ""


# --- the typed section below every prompt ------------------------------------------------------------------


def facts_section(
    agent: AgentType, variant: str | None, task: TaskDescription, config: PipelineConfig, values: Mapping[str, Any]
) -> str:
    """What is known in numbers and names, as one line of JSON; scripts stay in the fences above, prose is not repeated.

    It is the same whenever the same question is asked: no clock, no limit, nothing that may differ on resume. To the
    letter there is none, except for the embedded engineer, who reads nothing else.
    """
    if config.letter and not config.traits.is_embedded:
        return ""
    tried = (values.get("tried") or ()) if "memory" in config.briefing else ()
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
        "count": next((values[name] for name in ("M", "L") if name in values), None),
        "model": values.get("model_name"),
        "scores": [*(values.get("scores") or ())][-MOST_SCORES:] or None,
        "tried": [" ".join(plan.split())[:PLAN_CHARACTERS] for plan in tried][-MOST_PLANS:] or None,
    }
    known = {name: value for name, value in facts.items() if value is not None}
    return f"# Facts\n\n{fenced(json.dumps(known, ensure_ascii=False), 'json')}"
