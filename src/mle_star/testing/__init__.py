"""For tests of your own: a mind that replies as it is told, and what every executor must do.

from mle_star.testing import MessagesServer, ScriptedBrain
from mle_star.testing.executor import ExecutorContract  # needs pytest and pytest-asyncio
"""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from mle_star.engineer.server import BrainReply, BrainRequest, MessagesServer, ToolCall

__all__ = ["Answer", "BrainReply", "BrainRequest", "MessagesServer", "ScriptedBrain", "ToolCall"]
Answer = str | dict[str, Any] | list[Any] | BrainReply | Response | Callable[[BrainRequest], "Answer"]
"""A text, a structured value, a whole reply or response, or a function of the request that gives one of them."""


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

    async def reply(self, request: BrainRequest) -> BrainReply | Response:
        """The next answer for the agent that asks."""
        self.requests.append(request)
        return _as_reply(self._next(request), request)

    def _next(self, request: BrainRequest) -> Answer:
        keys = (f"{request.agent}/{request.variant}", request.agent)
        if queue := next((self._queues[key] for key in keys if self._queues[key]), None):
            return queue.popleft()
        answer = next((self._always[key] for key in keys if key in self._always), self._default)
        if answer is None:
            raise LookupError(f"no reply was scripted for {request.agent!r}")
        return answer


def _as_reply(answer: Answer, request: BrainRequest) -> BrainReply | Response:
    if isinstance(answer, (BrainReply, Response)):
        return answer
    if isinstance(answer, str):
        return BrainReply(text=answer)
    if isinstance(answer, (dict, list)):
        return BrainReply(structured=answer)
    return _as_reply(answer(request), request)
