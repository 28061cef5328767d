"""One error tree. A script that fails is a value (`EvaluationResult.is_error`), never one of these."""

from typing import Any, Literal

AgentFailure = Literal[
    "timeout",  # no answer within `agent_timeout_seconds`
    "transport",  # the CLI died or the API could not be reached, also after the retries
    "rate_limit",  # 429 or 529 outlasted the waiting
    "refusal",  # the model declined
    "too_long",  # the reply reached the model's limit of tokens, also when it was resumed
    "unparseable",  # a structured reply that no fallback could read
    "budget",  # the call hit its share of the money
    "auth",  # the credential was refused
    "other",
]


class MleStarError(Exception):
    """Everything that this package raises on purpose."""


class ConfigError(MleStarError, ValueError):
    """A setting, a task folder or an environment variable is wrong; the message says what would be right."""


class CredentialError(MleStarError, EnvironmentError):
    """No credential that the agents' CLI accepts was found."""


class AgentError(MleStarError):
    """An agent call failed after all retries. `reason` is what to branch on; `cost_usd` was spent nevertheless."""

    def __init__(
        self, message: str, *, agent: str, reason: AgentFailure = "other", attempts: int = 1, cost_usd: float = 0.0
    ) -> None:
        self.agent, self.reason, self.attempts, self.cost_usd = agent, reason, attempts, cost_usd
        super().__init__(f"{agent}: {message}")


class ExecutionError(MleStarError):
    """The harness itself failed (never: a script failed)."""


class JournalError(MleStarError):
    """A journal cannot be read or written; the message names the file and, for damage, the line."""


class PipelineError(MleStarError):
    """No result can be returned; `diagnostics` says how far the run came."""

    def __init__(self, message: str, *, diagnostics: dict[str, Any] | None = None) -> None:
        self.diagnostics: dict[str, Any] = diagnostics or {}
        super().__init__(message)


class PipelineTimeoutError(PipelineError):
    """A limit was reached before Phase 1 had a solution; `diagnostics["reason"]` says which limit."""


class RunInterrupted(PipelineError):
    """Someone stopped the run at once. Its journal is whole: `mle-star resume` continues it."""


class Phase1Error(MleStarError, RuntimeError):
    """Phase 1 has no solution to pass on; `errors` holds one line per candidate."""

    def __init__(self, message: str, *, errors: dict[str, str] | None = None) -> None:
        self.errors = errors or {}
        super().__init__(message)


class BudgetExceeded(MleStarError):
    """A limit was reached or nothing can be written: open no new work, finalize with the best so far.

    `limit` is what to branch on: time, money, disk or journal.
    """

    def __init__(self, *, limit: str, used: float = 0.0, allowed: float = 0.0, message: str = "") -> None:
        self.limit, self.used, self.allowed = limit, used, allowed
        super().__init__(message or f"{limit} spent: {used:g} of {allowed:g}")
