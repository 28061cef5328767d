"""A brain that says what it was told to say, and remembers everything it was asked."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from mle_star.engineer.server import BrainReply, BrainRequest

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
        keys = [request.agent] if request.variant is None else [f"{request.agent}/{request.variant}", request.agent]
        for key in keys:
            if self._queues[key]:
                return self._queues[key].popleft()
        for key in keys:
            if key in self._always:
                return self._always[key]
        if self._default is not None:
            return self._default
        raise LookupError(f"no reply was scripted for {keys[0]!r}")


def _as_reply(answer: Answer, request: BrainRequest) -> BrainReply:
    if isinstance(answer, BrainReply):
        return answer
    if isinstance(answer, str):
        return BrainReply(text=answer)
    if isinstance(answer, (dict, list)):
        return BrainReply(structured=answer)
    return _as_reply(answer(request), request)
