"""From what a client said to a reply of the agent, or to the reason why there is none."""

import itertools
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from mle_star.errors import AgentFailure
from mle_star.models import AgentConfig
from mle_star.models.texts import storable
from mle_star.run.events import AgentReply
from mle_star.sdk.meter import Meter

if TYPE_CHECKING:
    from claude_agent_sdk import ResultMessage

MAX_JSON_STARTS = 1000
MAX_REPAIRED = 200_000
MAX_REPAIR_STEPS = 1_500_000
"""Calls of functions, about a second: on some texts of a few kilobytes `json_repair` takes minutes."""
_TRIPLE_QUOTES = re.compile(r"(\"{3}|'{3})(.*?)\1", re.DOTALL)


@dataclass
class Turn:
    """What came of one prompt. Without a `result` the client broke, and `error` says how."""

    result: "ResultMessage | None" = None
    text: str = ""
    written: str = ""  # by the message under way
    begun: str = ""  # by messages before it that reached the limit of tokens: the CLI asks the model to go on
    structured: Any = None
    cost_usd: float = 0.0
    meter: Meter = field(default_factory=Meter)
    passed: Meter = field(default_factory=Meter)  # what the proxy saw
    cut_off: bool = False  # by us: its result may not know of its last reply
    refused: bool = False
    api_error: str | None = None
    error: Exception | None = None
    timed_out: bool = False


@dataclass(frozen=True)
class Failure:
    """Why a turn gave no reply."""

    reason: AgentFailure
    message: str
    reply: str = ""  # all of it, where it cannot be read


def outcome_of(config: AgentConfig, turn: Turn) -> AgentReply | Failure:
    """The reply that a turn gave, or why it gave none."""
    result = turn.result
    if result is None:
        return Failure("transport", _one_line(turn.error) if turn.error else "the CLI ended without a result")
    if result.is_error and not _paid_and_whole(result, turn):
        return _failure(config, result, turn)
    text = storable(turn.text if turn.begun else result.result or turn.text)
    if config.output_schema is not None:
        return _structured(config.output_schema, turn, text, result.structured_output, turn.structured)
    if not text.strip():
        return Failure("other", "the reply is empty")
    return _reply(turn, text)


def refuses_tools(turn: Turn, outcome: AgentReply | Failure) -> bool:
    """Did the server refuse a request for its tools?"""
    if turn.result is None or not isinstance(outcome, Failure) or outcome.reason != "other":
        return False
    return turn.result.api_error_status in (400, 404, 422, 501) and "tool" in outcome.message.lower()


def answers_in_text(turn: Turn, outcome: AgentReply | Failure) -> bool:
    """Did the server give in plain text what a tool was to take?"""
    if turn.result is None or (isinstance(outcome, Failure) and outcome.reason != "unparseable"):
        return False
    return turn.structured is None and turn.result.structured_output is None


def _reply(turn: Turn, text: str, structured: Any = None) -> AgentReply:
    """A usable reply, with the tokens of its turn."""
    assert turn.result is not None
    usage = turn.result.usage or {}
    theirs = ("input", "output", "cache_read_input", "cache_creation_input")
    ours = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    tokens = {name: int(usage.get(f"{kind}_tokens") or 0) for name, kind in zip(ours, theirs, strict=True)}
    return AgentReply(text=text, structured=structured, session_id=turn.result.session_id, **tokens)


def read_structured(schema: type[BaseModel], *values: Any) -> Any:
    """The first value that fits the schema, as JSON data; of what a text holds, the last that does. Else None.

    Models quote the example of their prompt, or a draft, before they answer.
    """
    for value in values:
        for candidate in reversed(list(_json_in(value))) if isinstance(value, str) else (value,):
            with suppress(ValidationError, RecursionError):
                return schema.model_validate(storable(candidate)).model_dump(mode="json")
    return None


def _structured(schema: type[BaseModel], turn: Turn, text: str, *values: Any) -> AgentReply | Failure:
    value = read_structured(schema, *values, text)
    if value is None:
        value = read_structured(schema, _repaired(text))
    if value is None:
        wanted = ", ".join(f"`{name}`" for name in schema.model_fields)
        return Failure("unparseable", f"the reply holds no JSON with {wanted}, but {text[:200]!r}", text)
    return _reply(turn, text, value)


def _repaired(text: str) -> Any:
    """What small models mean by their JSON: quotes of Python, line breaks in texts, an end that is missing."""
    import json_repair

    plain = _TRIPLE_QUOTES.sub(lambda found: json.dumps(found.group(2)), text[:MAX_REPAIRED])
    steps = itertools.count()

    def count(*_: object) -> None:
        if next(steps) > MAX_REPAIR_STEPS:
            raise TimeoutError

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        return json_repair.loads(plain)
    except Exception:  # of a parser that takes any text, also its failed assertions
        return None
    finally:
        sys.setprofile(before)


def _paid_and_whole(result: "ResultMessage", turn: Turn) -> bool:
    """Did the money run out only after the last word? Then the reply is there, and paid for."""
    ended = result.stop_reason == "end_turn" or turn.structured is not None
    return result.subtype == "error_max_budget_usd" and ended and bool(turn.text or turn.structured)


def _failure(config: AgentConfig, result: "ResultMessage", turn: Turn) -> AgentReply | Failure:
    words = result.result or "; ".join(result.errors or []) or result.subtype
    status = result.api_error_status
    if turn.refused or result.stop_reason == "refusal":
        return Failure("refusal", "the model declined to answer")
    if result.subtype == "error_max_budget_usd":
        return Failure("budget", words)
    if result.subtype == "error_max_structured_output_retries" and config.output_schema is not None:
        return _structured(config.output_schema, turn, turn.text, turn.structured)
    reasons: tuple[tuple[bool, AgentFailure], ...] = (
        (turn.api_error == "max_output_tokens", "too_long"),
        (status in (429, 529) or turn.api_error == "rate_limit", "rate_limit"),
        (status in (401, 403) or turn.api_error in ("authentication_failed", "billing_error"), "auth"),
        (status is not None and (status < 500 or status == 501) and status != 408, "other"),
        (result.terminal_reason == "api_error" or result.subtype == "error_during_execution", "transport"),
    )
    return Failure(next((reason for holds, reason in reasons if holds), "other"), words)


def _json_in(text: str) -> Iterator[Any]:
    """The text as JSON, else the outermost JSON values inside it."""
    with suppress(ValueError, RecursionError):
        yield json.loads(text)
        return
    decoder = json.JSONDecoder()
    end = tries = 0
    for match in re.finditer(r"[{\[]", text):
        if match.start() < end:
            continue  # inside the value that was just read
        tries += 1
        if tries > MAX_JSON_STARTS:
            return
        try:
            value, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        yield value


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
