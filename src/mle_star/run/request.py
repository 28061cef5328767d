"""The one way to ask: a prompt is filled, sent as a step of the run, recorded, and its reply read.

Whatever every agent is to be told stands in `_prompt`; whatever happens to every call, happens in `ask_agent`.
"""

import logging
import statistics
import time
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from mle_star.errors import AgentError, AgentFailure
from mle_star.method.codeblocks import extract_code_block, has_extractable_code
from mle_star.models import AgentConfig, AgentType, agent_config
from mle_star.models.agents import AGENTS, section
from mle_star.models.texts import digest_of, figure
from mle_star.prompts import Prompt, PromptRegistry, facts_section
from mle_star.run.context import RunContext, current_run
from mle_star.run.events import AgentFailed, AgentFinished, AgentReply, AgentStarted
from mle_star.run.log_lines import QUOTED_CHARACTERS, gist
from mle_star.run.prompt_context import prompt_context, rows_to_learn_from, whole_script

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=BaseModel)

_IN_SYSTEM_PROMPT = "It stands in the system prompt, under the heading Task."


# --- what a phase gets -----------------------------------------------------------------------------------


async def ask_for_code(agent: AgentType, variant: str | None = None, **values: Any) -> str:
    """The code of an agent's reply; empty, with a warning, when the call failed or the reply holds none."""
    reply = await try_agent(agent, variant, **values)
    code = "" if reply is None else code_of(reply.text)
    if reply is not None and not code:
        warn_unusable(agent, reply.text)
    return code


async def ask_for_text(agent: AgentType, **values: Any) -> str:
    """An agent's reply as it is; empty, with a warning, when the call failed or nothing came back."""
    reply = await try_agent(agent, **values)
    return reply.text if reply is not None and reply.text.strip() else ""


async def ask_for(answer: type[Answer], agent: AgentType, variant: str | None = None, **values: Any) -> Answer | None:
    """An agent's reply as a value; None, with a warning, when the call failed or the reply cannot be read."""
    reply = await try_agent(agent, variant, **values)
    if reply is None:
        return None
    try:
        return answer.model_validate_json(reply.json_text)
    except ValueError:
        warn_unusable(agent, reply.json_text)
        return None


async def try_agent(agent: AgentType, variant: str | None = None, **values: Any) -> AgentReply | None:
    """As `ask_agent`; a call that failed gives None and a warning."""
    try:
        return await ask_agent(agent, variant, **values)
    except AgentError:
        return None


def code_of(reply: str) -> str:
    """The code in a reply, without its fences; empty when it holds none."""
    by_line = current_run().config.letter
    return extract_code_block(reply, by_line=by_line) if has_extractable_code(reply, by_line=by_line) else ""


def warn_unusable(agent: AgentType, reply: str) -> None:
    """Say that a reply cannot be used: its head, or all of the extractor's to the letter."""
    whole = current_run().config.letter and agent is AgentType.extractor
    shown = reply if whole else reply[:QUOTED_CHARACTERS]
    logger.warning("%s: parse failure: unusable reply of %s: %r", current_run().place, agent.value, shown)


# --- the prompt ------------------------------------------------------------------------------------------


def _prompt(run: RunContext, agent: AgentType, variant: str | None, values: dict[str, Any], *notes: str) -> Prompt:
    """The prompt: the template, notes of the caller's, and the sections that every agent gets."""
    task, config = run.task, run.config
    shown: dict[str, Any] = {"metric": task.evaluation_metric, "direction": task.metric_direction}
    shown |= {"subsample_limit": config.subsample_limit, **values}
    if "task_description" in values and not config.task_in_prompts:
        shown["task_description"] = _IN_SYSTEM_PROMPT
    if "scores" in values and not config.letter:  # four significant digits
        shown["scores"] = [None if score is None else float(figure(score)) for score in values["scores"]]
    filled = PromptRegistry().get(agent, variant).render(**shown)
    parts = (filled, *notes, facts_section(agent, variant, task, config, values))
    prompt = Prompt("\n\n".join(filter(None, parts)))
    prompt.steady = filled.steady
    return prompt


def _noise(run: RunContext, scores: Sequence[float | None] | None) -> str:
    """How sure the scores are that an agent compares, where the harness measured them; empty where scripts did."""
    measured = [one.result.measure for one in run.ledger.runs.values() if one.result.measure is not None]
    if run.shared.holdout is None or not measured:
        return ""
    first, attempts = measured[0], [node.event for node in run.ledger.nodes]
    views = f", in {first.views} runs of each script" if first.views and first.views > 1 else ""
    errors = [one.change.error for one in attempts if one.change is not None and one.change.error]
    usual = f" The median of these errors is {statistics.median(errors):.2g} so far." if errors else ""
    changes = {one.score: one.change.words for one in attempts if one.change is not None and one.score is not None}
    bases = {measure.score: measure.basis for measure in measured if measure.basis}
    known = {score: ", ".join(filter(None, (words, bases.get(score)))) for score, words in changes.items()}
    found = ["" if score is None else known.get(score, "") for score in scores or ()]
    against = "; ".join(one or "none" for one in found)
    plans = f"\n\nThe plans above, each against what it was to beat, in their order: {against}." if any(found) else ""
    return section("noise", rows=str(first.rows), views=views, usual=usual, plans=plans)


# --- the call, as a step of the run ----------------------------------------------------------------------


async def ask_agent(agent: AgentType, variant: str | None = None, *, remark: str = "", **values: Any) -> AgentReply:
    """An agent's reply to its template: replayed when recorded, else paid for and recorded."""
    run = current_run()
    note = f"# Note\n\n{remark}" if remark else ""
    essence = _prompt(run, agent, variant, values, note)
    config = agent_config(agent, variant, run.config.tool_profile, run.config.briefing)
    step = run.next_step(agent.value if variant is None else f"{agent.value}-{variant}")
    digest = digest_of(run.agents.fingerprint(config), variant or "", essence)
    known = run.journal.find(AgentFinished, step, digest)
    if known is not None:
        run.journal.tell(known)
        return known
    failed = run.journal.find_failure(step, digest)
    if failed is not None:
        run.journal.tell(failed)
        message = failed.message.removeprefix(f"{agent.value}: ")
        raise AgentError(message, agent=agent.value, reason=cast(AgentFailure, failed.reason))
    added = prompt_context(run, agent, variant, values)  # made each time: a recorded reply answers the essence
    script = whole_script(run, agent, variant, values)
    cap = rows_to_learn_from(run, values.get("subsample_limit", run.config.subsample_limit))
    more = {**values, "context": added, "whole_script": script, "subsample_limit": cap} if added or script else values
    prompt = _prompt(run, agent, variant, more, note, _noise(run, values.get("scores")) if AGENTS[agent].plans else "")
    call: dict[str, Any] = {"step": step, "digest": digest, "agent": agent, "variant": variant, "prompt": prompt}
    return await _send(run, config, call, gist(values))


async def _send(run: RunContext, config: AgentConfig, call: dict[str, Any], about: str) -> AgentReply:
    """Pay for a call `about` something, make it and record how it ended; `call` is what all its events say."""
    agent, prompt, step = config.agent_type, call["prompt"], call["step"]
    await run.budget.wait_for_money()
    reserved = run.budget.open_call(alone=AGENTS[agent].alone)
    started = time.monotonic()

    def failed(reason: str, message: str, cost_usd: float) -> None:
        run.budget.settle(reserved, cost_usd, step)
        seconds = time.monotonic() - started
        run.record(AgentFailed(**call, reason=reason, message=message, cost_usd=cost_usd, seconds=seconds))
        run.budget.after_call()

    try:
        run.record(AgentStarted(step=step, agent=agent, variant=call["variant"], about=about))
        reply = await run.agents.ask(
            config,
            prompt,
            label=run.label,
            max_cost_usd=reserved.cap_usd,
            on_late_cost=lambda usd: failed("cancelled", "stopped before it answered", usd),
        )
    except AgentError as error:
        failed(error.reason, str(error), error.cost_usd)
        raise
    except BaseException:
        run.budget.give_up(reserved)
        raise
    run.budget.settle(reserved, reply.cost_usd, step)
    wording, model = PromptRegistry().hash(agent, call["variant"]), run.config.role(agent).model or run.config.model
    run.record(AgentFinished(**call, template_hash=wording, model=model, **reply.model_dump()))
    run.budget.after_call()
    return reply
