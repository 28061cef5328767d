"""The only room that uses the Claude Agent SDK: from a prompt to a checked reply."""

from typing import TYPE_CHECKING

from mle_star.sdk.client import AgentClient as AgentClient
from mle_star.sdk.client import CallPolicy as CallPolicy
from mle_star.sdk.credentials import check_sdk_version, installed_sdk_version
from mle_star.sdk.credentials import require_credentials as require_credentials
from mle_star.sdk.definitions import EnvironmentFacts as EnvironmentFacts

if TYPE_CHECKING:
    from claude_agent_sdk import CanUseTool as CanUseTool

# At import, as the specification wants it: a run must not find out in its middle. No SDK at all is no error yet.
check_sdk_version(installed_sdk_version())
