"""A brain that lets another one answer, and spoils a seeded share of the replies in every way the wire can fail."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

from mle_star.engineer.server import Brain, BrainReply, BrainRequest, Fault, ToolCall

FaultName = Literal[
    "rate_limit",
    "server_error",
    "overloaded",
    "hang",
    "cut_stream",
    "garbage_json",
    "empty_reply",
    "refusal",
    "wrong_schema",
    "huge_reply",
]
FAULT_NAMES: tuple[FaultName, ...] = get_args(FaultName)
HUGE = 2 * 1024 * 1024

_ON_THE_WIRE: dict[FaultName, Fault] = {
    "rate_limit": Fault("status", status=429, retry_after=0),
    "server_error": Fault("status", status=500),
    "overloaded": Fault("status", status=529),
    "hang": Fault("hang"),
    "cut_stream": Fault("cut"),
    "garbage_json": Fault("garbage"),
    "empty_reply": Fault("empty"),
    "refusal": Fault("refusal"),
}


@dataclass(frozen=True)
class InjectedFault:
    """One spoilt reply: which fault hit which agent."""

    name: FaultName
    agent: str


class FaultyBrain:
    """Spoils replies of `brain` at `rate`; the same seed and order of requests give the same faults."""

    def __init__(self, brain: Brain, *, rate: float, seed: int = 0, kinds: tuple[FaultName, ...] = FAULT_NAMES) -> None:
        if not 0 <= rate <= 1:
            raise ValueError(f"a rate is between 0 and 1, not {rate:g}")
        self.injected: list[InjectedFault] = []
        self._brain = brain
        self._rate = rate
        self._random = random.Random(seed)
        self._kinds = kinds

    @property
    def counts(self) -> Counter[str]:
        """How often each fault was injected."""
        return Counter(fault.name for fault in self.injected)

    async def reply(self, request: BrainRequest) -> BrainReply:
        """The other brain's answer, or a spoilt one."""
        # Both numbers are drawn for every request, so that the faults depend on the order of requests alone.
        hit, name = self._random.random() < self._rate, self._random.choice(self._kinds)
        if not hit:
            return await self._brain.reply(request)
        self.injected.append(InjectedFault(name, request.agent))
        return await self._spoil(name, request)

    async def _spoil(self, name: FaultName, request: BrainRequest) -> BrainReply:
        if name == "wrong_schema":
            if request.wants_structured:
                return BrainReply(tool=ToolCall("StructuredOutput", {"not": "what was asked for"}))
            return BrainReply(text="I would rather talk about the weather.")
        if name == "huge_reply":
            return BrainReply(text="x" * HUGE)
        if name in ("cut_stream", "refusal"):
            text = "I cannot help with that." if name == "refusal" else "This sentence is cut " * 50
            return BrainReply(text=text, fault=_ON_THE_WIRE[name])
        return BrainReply(fault=_ON_THE_WIRE[name])
