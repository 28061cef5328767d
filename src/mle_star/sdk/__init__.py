"""The only door to the Claude Agent SDK: from a prompt to a checked reply."""

from typing import TYPE_CHECKING

from mle_star.sdk.client import AgentClient, CallPolicy
from mle_star.sdk.credentials import check_sdk_version, find_credentials, installed_sdk_version, require_credentials
from mle_star.sdk.definitions import EnvironmentFacts, build_system_prompt

if TYPE_CHECKING:
    from claude_agent_sdk import CanUseTool

__all__ = [
    "AgentClient",
    "CallPolicy",
    "CanUseTool",
    "EnvironmentFacts",
    "build_system_prompt",
    "find_credentials",
    "require_credentials",
]

# At import, as the specification wants it: a run must not find out in its middle. No SDK at all is no error yet.
check_sdk_version(installed_sdk_version())
