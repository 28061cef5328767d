"""Usage counted as it streams, and the price of what ended without a word about its cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star.engineer.server import BrainReply, BrainRequest, events_of, message_of
from mle_star.run.budget import CHARACTERS_PER_TOKEN, UNKNOWN, Price, price_of, usage_cost
from mle_star.sdk.meter import Meter, Tariff
from tests.sdk.conftest import MODEL


def streamed(meter: Meter, *, model: str = MODEL, events: int | None = None, **reply: Any) -> None:
    """Let a meter hear a reply as the API streams it and as the SDK repeats it; only its first `events`, when given."""
    request = BrainRequest("coder", None, "", "", model=model)
    message = message_of(request, BrainReply(text="x" * 700, **reply))
    for event in list(events_of(message))[:events]:
        meter.stream(json.loads(event.split(b"data: ")[1]))
        early = {**message["usage"], "output_tokens": 1}  # what the SDK's own messages know
        meter.message(message["id"], model, early)


@pytest.mark.req("REQ-OR-027")
def test_a_reply_counts_once_by_its_last_word_and_one_that_broke_off_as_far_as_it_came() -> None:
    for events, written in ((None, 300.0), (3, 700 / CHARACTERS_PER_TOKEN)):
        meter = Meter()
        streamed(meter, input_tokens=1000, output_tokens=500)
        streamed(meter, input_tokens=2000, output_tokens=300, events=events)
        assert Tariff().cost(meter, MODEL) == pytest.approx(3000 * 3e-6 + (500 + written) * 15e-6)
        assert meter.broken_off == (events is not None)


def test_the_user_s_price_is_that_of_the_model_that_was_asked_for_and_what_the_cli_says_itself_is_free() -> None:
    warnings, meter = list[str](), Meter()
    streamed(meter, model="claude-opus-4-1", input_tokens=1000, output_tokens=100)
    tariff = Tariff(own={"small": Price(1, 2), "opus": Price(10, 50)})
    assert tariff.cost(meter, "opus") == pytest.approx(1000 * 10e-6 + 100 * 50e-6)
    assert tariff.is_own(meter, "opus") and not tariff.is_own(meter, "sonnet")
    meter = Meter()
    meter.message("1", "<synthetic>", {"input_tokens": 0, "output_tokens": 0, "server_tool_use": None})
    meter.message(None, "sonnet", {"input_tokens": 5})
    assert (Tariff(warnings.append).cost(meter, ""), warnings, meter.broken_off) == (0, [], False)


def test_of_a_reply_that_two_have_heard_the_larger_counts() -> None:
    reply = BrainReply(text="x" * 700, input_tokens=1000, output_tokens=500)
    message = message_of(BrainRequest("coder", None, "", "", model=MODEL), reply)
    events = [json.loads(event.split(b"data: ")[1]) for event in events_of(message)]
    for streamed_by_cli, passed in ((events, events[:2]), (events[:2], events), ([], events), (events, [])):
        meters = Meter(), Meter()
        for meter, heard in zip(meters, (streamed_by_cli, passed), strict=True):
            for event in heard:
                meter.stream(event)
        meters[0].add(meters[1])
        assert not meters[0].broken_off
        assert Tariff().cost(meters[0], MODEL) == pytest.approx(1000 * 3e-6 + 500 * 15e-6)


def test_a_model_without_a_list_price_is_estimated_and_that_is_said() -> None:
    warnings, broken = list[str](), Meter()
    streamed(broken, model="mystery-1", input_tokens=1000, output_tokens=100)
    charged = Tariff(warnings.append).cost(broken, "mystery")
    assert charged == pytest.approx(1000 * 4e-6 + 100 * 20e-6), "what the CLI takes for such names"
    assert "'mystery-1'" in warnings[0] and "CLI" in warnings[0]


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        ({"input_tokens": 1_000_000, "output_tokens": 100_000}, 3 + 1.5),
        ({"cache_read_input_tokens": 1_000_000}, 0.3),
        ({"cache_creation_input_tokens": 1_000_000}, 3.75),
        ({"cache_creation_input_tokens": 10**6, "cache_creation": {"ephemeral_1h_input_tokens": 10**6}}, 6.0),
        ({"server_tool_use": {"web_search_requests": 3}, "input_tokens": None}, 0.03),
    ],
)
def test_every_kind_of_token_has_the_price_that_the_cli_was_seen_to_charge(usage: dict[str, Any], usd: float) -> None:
    assert usage_cost(usage, Price(3, 15)) == pytest.approx(usd)


@given(
    own=st.tuples(st.floats(0, 90), st.floats(0, 90)),
    used=st.tuples(st.integers(0, 10**7), st.integers(0, 10**6)),
    model=st.sampled_from(["small", "claude-sonnet-4-5", "opus"]),
)
def test_a_limit_by_the_user_s_prices_is_kept(own: tuple[float, float], used: tuple[int, int], model: str) -> None:
    tariff = Tariff(own={model: Price(*own)})
    limit = tariff.as_the_cli_counts(5.0, model)
    usage = {"input_tokens": used[0], "output_tokens": used[1]}
    listed, paid = (usage_cost(usage, price) for price in (price_of(model) or UNKNOWN, Price(*own)))
    if limit is None:
        assert paid == 0
    elif listed <= limit:
        assert paid <= 5.0 * (1 + 1e-9)
    assert Tariff().as_the_cli_counts(5.0, model) == 5.0 and tariff.as_the_cli_counts(None, model) is None
