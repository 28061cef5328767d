"""For tests of your own: minds that say what they are told or fail as told, and what every executor must do.

from mle_star.testing import FaultyBrain, MessagesServer, ScriptedBrain
from mle_star.testing.executor import ExecutorContract  # needs pytest and pytest-asyncio
"""

from mle_star.engineer.server import Brain, BrainReply, BrainRequest, Fault, MessagesServer, ToolCall
from mle_star.testing.faults import FaultyBrain, InjectedFault
from mle_star.testing.scripted import ScriptedBrain

__all__ = [
    "Brain",
    "BrainReply",
    "BrainRequest",
    "Fault",
    "FaultyBrain",
    "InjectedFault",
    "MessagesServer",
    "ScriptedBrain",
    "ToolCall",
]
