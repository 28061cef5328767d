"""What tokens cost: list prices by the model's name, as the agents' CLI charges them, measured call by call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mle_star.basics.traits import traits_of
from mle_star.config import read_mapping
from mle_star.errors import ConfigError

CHARACTERS_PER_TOKEN = 3.5
SEARCH_USD = 0.01
CACHE_READ, CACHE_WRITE, CACHE_WRITE_HOUR = 0.1, 1.25, 2.0
"""Tokens from the cache and into it, as parts of the price of input; what is kept for an hour costs more."""


class Price(NamedTuple):
    """US dollars for a million tokens."""

    input: float
    output: float


UNKNOWN = Price(4, 20)
"""What the CLI charges for a name that it does not know."""
PRICES: tuple[tuple[str, Price], ...] = (
    ("3-5-haiku", Price(0.8, 4)),
    ("haiku-4", Price(1, 5)),
    ("haiku", Price(0.1, 0.5)),
    ("opus-4-5", Price(5, 25)),
    ("opus-4-6", Price(5, 25)),
    ("opusplan", Price(2, 10)),
    ("opus", Price(4, 20)),
    ("sonnet-4", Price(3, 15)),
    ("7-sonnet", Price(3, 15)),
    ("5-sonnet", Price(3, 15)),
    ("sonnet", Price(2, 10)),
)
"""Prices by a part of the model's name, the first that fits.

They serve the forecast, and calls that end without saying what they have cost.
"""


def price_of(model: str) -> Price | None:
    """The list price of a model, or None when the name says nothing."""
    if traits_of(model).is_free:
        return Price(0, 0)
    return next((price for part, price in PRICES if part in model.lower()), None)


def read_prices(path: Path) -> dict[str, Price]:
    """The user's prices: a YAML file of `name: [input, output]`, US dollars for a million tokens."""
    prices = {}
    for name, pair in read_mapping(path).items():
        good = isinstance(pair, list) and len(pair) == 2
        if not good or not all(type(one) in (int, float) and 0 <= one < math.inf for one in pair):
            raise ConfigError(f"{path}: {name}: [input, output] is wanted, US dollars for a million tokens of each")
        prices[name] = Price(*(float(one) for one in pair))
    return prices


def usage_cost(usage: Mapping[str, Any], price: Price) -> float:
    """US dollars for the usage of one message, as the Messages API counts it."""
    written = _number(usage, "cache_creation_input_tokens")
    hour = min(_number(_mapping(usage, "cache_creation"), "ephemeral_1h_input_tokens"), written)
    sent = (
        _number(usage, "input_tokens")
        + CACHE_READ * _number(usage, "cache_read_input_tokens")
        + CACHE_WRITE * (written - hour)
        + CACHE_WRITE_HOUR * hour
    )
    tokens = (sent * price.input + _number(usage, "output_tokens") * price.output) / 1e6
    return tokens + SEARCH_USD * _number(_mapping(usage, "server_tool_use"), "web_search_requests")


def _number(usage: Mapping[str, Any], name: str) -> float:
    return float(usage.get(name) or 0)


def _mapping(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = usage.get(name)
    return value if isinstance(value, Mapping) else {}
