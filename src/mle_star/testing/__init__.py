"""For tests of your own: minds that reply or fail as they are told, and what every executor must do.

from mle_star.testing import FaultyBrain, MessagesServer, ScriptedBrain
from mle_star.testing.executor import ExecutorContract  # needs pytest and pytest-asyncio
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from mle_star.engineer.server import Brain as Brain
from mle_star.engineer.server import BrainReply as BrainReply
from mle_star.engineer.server import BrainRequest as BrainRequest
from mle_star.engineer.server import Fault as Fault
from mle_star.engineer.server import MessagesServer as MessagesServer
from mle_star.engineer.server import ToolCall as ToolCall

Answer = str | dict[str, Any] | list[Any] | BrainReply | Callable[[BrainRequest], "Answer"]
"""A text, a structured value, a whole reply, or a function of the request that gives one of them."""


class ScriptedBrain:
    """Queues of replies per agent, or per `agent/variant`; the last reply of `always` answers when a queue is empty."""

    def __init__(self, default: Answer | None = None) -> None:
        self.requests: list[BrainRequest] = []
        self._queues: dict[str, deque[Answer]] = defaultdict(deque)
        self._always: dict[str, Answer] = {}
        self._default = default

    def reply_with(self, agent: str, *answers: Answer) -> None:
        """Queue answers for an agent, or for one variant of it (`"leakage/detection"`)."""
        self._queues[agent].extend(answers)

    def always(self, agent: str, answer: Answer) -> None:
        """Answer an agent this way whenever its queue is empty."""
        self._always[agent] = answer

    def calls(self, agent: str) -> list[BrainRequest]:
        """Every request of an agent so far."""
        return [request for request in self.requests if request.agent == agent]

    async def reply(self, request: BrainRequest) -> BrainReply:
        """The next answer for the agent that asks."""
        self.requests.append(request)
        return _as_reply(self._next(request), request)

    def _next(self, request: BrainRequest) -> Answer:
        keys = (f"{request.agent}/{request.variant}", request.agent)
        for key in keys:
            if self._queues[key]:
                return self._queues[key].popleft()
        for key in keys:
            if key in self._always:
                return self._always[key]
        if self._default is not None:
            return self._default
        raise LookupError(f"no reply was scripted for {request.agent!r}")


def _as_reply(answer: Answer, request: BrainRequest) -> BrainReply:
    if isinstance(answer, BrainReply):
        return answer
    if isinstance(answer, str):
        return BrainReply(text=answer)
    if isinstance(answer, (dict, list)):
        return BrainReply(structured=answer)
    return _as_reply(answer(request), request)


# --- faults ----------------------------------------------------------------------------------------------

_SPOILT = {
    "rate_limit": BrainReply(fault=Fault("status", status=429, retry_after=0)),
    "server_error": BrainReply(fault=Fault("status", status=500)),
    "overloaded": BrainReply(fault=Fault("status", status=529)),
    "hang": BrainReply(fault=Fault("hang")),
    "cut_stream": BrainReply(text="This sentence is cut " * 50, fault=Fault("cut")),
    "garbage_json": BrainReply(fault=Fault("garbage")),
    "empty_reply": BrainReply(fault=Fault("empty")),
    "refusal": BrainReply(text="I cannot help with that.", fault=Fault("refusal")),
    "wrong_schema": BrainReply(text="I would rather talk about the weather."),
    "huge_reply": BrainReply(text="x" * 2 * 1024 * 1024),
}
FAULT_NAMES = tuple(_SPOILT)


class InjectedFault(NamedTuple):
    """One spoilt reply: which fault hit which agent."""

    name: str
    agent: str


class FaultyBrain:
    """Lets another brain answer, and makes a share of the replies fail in every way the wire can.

    Replies of `brain` fail at `rate`; the same seed and order of requests give the same faults.
    """

    def __init__(self, brain: Brain, *, rate: float, seed: int = 0, kinds: tuple[str, ...] = FAULT_NAMES) -> None:
        self.injected: list[InjectedFault] = []
        self._brain, self._rate, self._kinds = brain, rate, kinds
        self._random = random.Random(seed)

    async def reply(self, request: BrainRequest) -> BrainReply:
        """The other brain's answer, or a spoilt one."""
        # Both numbers are drawn for every request, so that the faults depend on the order of requests alone.
        hit, name = self._random.random() < self._rate, self._random.choice(self._kinds)
        if not hit:
            return await self._brain.reply(request)
        self.injected.append(InjectedFault(name, request.agent))
        if name == "wrong_schema" and request.wants_structured:
            return BrainReply(tool=ToolCall("StructuredOutput", {"not": "what was asked for"}))
        return _SPOILT[name]
