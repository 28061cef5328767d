"""The prompts: one template file per agent and variant, filled in by `render`.

    render(AgentType.coder, code_block=block, plan=plan)
    render(AgentType.leakage, "correction", code=script, flagged_block=answer.code_block)
    render(AgentType.planner, code_block=block, plans=plans, scores=scores, direction=task.metric_direction)

A declared variable that is missing is a `KeyError`; names with blanks may be spelt with underscores. Lists are given as
lists: `plans` with `scores`, `solutions`, `previous_ablations` and `previous_code_blocks` become sections
(`format_plan_history`, `format_solutions`, `format_summaries`, `format_previous_blocks`), and an empty one is left out.

Optional values: `metric` and `direction` (init), `direction` (planner, ens_planner), `subsample_instruction` or
`subsample_limit` (init, merger, coder, debugger; an empty instruction leaves the rule out), `flagged_block` (leakage
correction), `note` (extractor: `BLOCK_NOT_FOUND` for a second try).

Below every prompt that a run sends stands `facts_section`: agent, metric, direction, seed and scores as JSON.

The headings of every prompt are listed in `docs/prompts.md`: each inserted text stands in a fence of its own under its
heading, and the fence is longer than any run of backticks in the text.
"""

from mle_star.prompts.facts import FACTS_HEADING, facts_section
from mle_star.prompts.registry import AgentPrompt, Prompt, PromptRegistry, render
from mle_star.prompts.sections import (
    BLOCK_NOT_FOUND,
    fenced,
    format_plan_history,
    format_previous_blocks,
    format_solutions,
    format_summaries,
    ordinal,
)

__all__ = [
    "BLOCK_NOT_FOUND",
    "FACTS_HEADING",
    "AgentPrompt",
    "Prompt",
    "PromptRegistry",
    "facts_section",
    "fenced",
    "format_plan_history",
    "format_previous_blocks",
    "format_solutions",
    "format_summaries",
    "ordinal",
    "render",
]
