"""What a call uses, counted message by message as it streams: a client that dies leaves nothing uncounted."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mle_star.run.budget import CHARACTERS_PER_TOKEN, UNKNOWN, Price, price_of, usage_cost


@dataclass
class _Message:
    """One reply of the API: what it told of its usage so far, and whether that was its last word."""

    model: str
    usage: dict[str, Any] = field(default_factory=dict)
    characters: int = 0
    whole: bool = False

    def count(self, usage: Mapping[str, Any]) -> None:
        """Take over what is told; counts only grow."""
        for name, value in usage.items():
            if isinstance(value, (int, float)):
                value = max(value, self.usage.get(name) or 0)
            if value is not None:
                self.usage[name] = value

    @property
    def billed(self) -> Mapping[str, Any]:
        """Its usage; what was written of a reply that broke off is estimated, for the API tells it at the end."""
        if self.whole:
            return self.usage
        written = max(self.usage.get("output_tokens") or 0, self.characters / CHARACTERS_PER_TOKEN)
        return {**self.usage, "output_tokens": written}


class Meter:
    """The usage of one prompt, by the id of each message."""

    def __init__(self) -> None:
        self._messages: dict[str, _Message] = {}
        self._open: dict[Hashable, _Message] = {}

    @property
    def messages(self) -> list[_Message]:
        """Every reply that the API asks money for; the CLI adds some of its own, which are free."""
        return [message for message in self._messages.values() if usage_cost(message.usage, UNKNOWN)]

    @property
    def broken_off(self) -> bool:
        """Did a reply end in its middle? The CLI does not count it, although it was paid for."""
        return any(not message.whole for message in self.messages)

    def message(self, key: str | None, model: str, usage: Mapping[str, Any] | None) -> None:
        """A message of the SDK, or a part of one: those with the same key are one reply of the API."""
        if key and usage:
            self._message(key, model).count(usage)

    def stream(self, event: Mapping[str, Any], parent: Hashable = None) -> None:
        """An event of the API's stream; `parent` tells apart the streams of a call that has several."""
        kind = event.get("type")
        if kind == "message_start":
            start = event.get("message") or {}
            key = start.get("id") or f"without id {len(self._messages)}"  # some servers give none
            self._open[parent] = self._message(key, start.get("model") or "")
            self._open[parent].count(start.get("usage") or {})
        elif parent in self._open and kind == "content_block_delta":
            delta = event.get("delta") or {}
            texts = (delta.get(name) for name in ("text", "partial_json", "thinking"))
            self._open[parent].characters += sum(len(text) for text in texts if isinstance(text, str))
        elif parent in self._open and kind == "message_delta" and event.get("usage"):
            self._open[parent].count(event["usage"])
            self._open[parent].whole = True

    def add(self, other: "Meter") -> None:
        """Take over what another one has heard; of a reply that both know, the larger counts."""
        for key, heard in other._messages.items():
            message = self._message(key, heard.model)
            message.count(heard.usage)
            message.characters = max(message.characters, heard.characters)
            message.whole = message.whole or heard.whole

    def _message(self, key: str, model: str) -> _Message:
        return self._messages.setdefault(key, _Message(model))


class Tariff:
    """Turns usage into US dollars: by the user's price of a name, else of the model asked for, else by list price."""

    def __init__(self, warn: Callable[[str], None] = lambda _: None, own: Mapping[str, Price] | None = None) -> None:
        self._warn, self._own = warn, own or {}

    def as_the_cli_counts(self, usd: float | None, model: str) -> float | None:
        """A limit in the CLI's own dollars that keeps this one: it knows nothing of the user's prices."""
        own = self._own.get(model)
        if usd is None or own is None:
            return usd
        listed = price_of(model)
        listed = listed if listed is not None and all(listed) else UNKNOWN
        rates = [theirs / ours for theirs, ours in zip(listed, own, strict=True) if ours]
        return usd * min(rates) if rates else None

    def cost(self, meter: Meter, requested: str) -> float:
        """What the messages so far have cost; `requested` is the model that was asked for."""
        return sum(usage_cost(message.billed, self._price(message.model, requested)) for message in meter.messages)

    def is_own(self, meter: Meter, requested: str) -> bool:
        """Are all messages of models whose price the user gave? Then what the CLI says of their cost is a guess."""
        return bool(meter.messages) and all(self._own_price(message.model, requested) for message in meter.messages)

    def _own_price(self, model: str, requested: str) -> Price | None:
        """A reply may carry a longer name than the one that the user asked for and has a price for."""
        return self._own.get(model, self._own.get(requested))

    def _price(self, model: str, requested: str) -> Price:
        known = self._own_price(model, requested) or price_of(model)
        if known is None:
            how = "what calls that break off have cost is estimated at the price that the CLI takes for such names"
            self._warn(f"the price of {model!r} is not known: {how}")
        return known or UNKNOWN
