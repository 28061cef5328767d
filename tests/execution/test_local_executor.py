"""The local executor keeps the contract in each of its forms, and says truthfully what confines a script."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from mle_star.execution import Limits, LocalExecutor
from mle_star.models import PipelineConfig
from mle_star.run.context import ScriptRequest
from mle_star.testing.executor import ExecutorContract

LIMITS = dataclasses.replace(Limits.of(PipelineConfig()), grace_seconds=0.5, tasks=200, memory_bytes=2 * 10**9)
CONFINED = "writes only in the working directory"


class TestInBubblewrap(ExecutorContract):
    @pytest.fixture
    def executor(self) -> LocalExecutor:
        return LocalExecutor(limits=LIMITS)

    async def test_it_says_so(self, executor: LocalExecutor, request_for: Callable[..., ScriptRequest]) -> None:
        raw = await executor.run(request_for("print(1)"))
        assert raw.isolation.sandbox == "bubblewrap+landlock+seccomp"
        assert raw.isolation.network_blocked
        assert CONFINED in raw.isolation.limits
        promised = executor.isolation()
        assert (promised.sandbox, promised.network_blocked) == ("bubblewrap+landlock+seccomp", True)


class TestInNamespaces(ExecutorContract):
    """No bubblewrap, but a kernel that lets users make namespaces."""

    @pytest.fixture
    def executor(self) -> LocalExecutor:
        return LocalExecutor(limits=LIMITS, sandbox="namespaces")

    async def test_it_says_so(self, executor: LocalExecutor, request_for: Callable[..., ScriptRequest]) -> None:
        raw = await executor.run(request_for("print(1)"))
        assert raw.isolation.sandbox == "namespaces+landlock+seccomp" == executor.isolation().sandbox
        assert raw.isolation.network_blocked and CONFINED in raw.isolation.limits


class TestWithoutAWorldOfItsOwn(ExecutorContract):
    @pytest.fixture
    def executor(self) -> LocalExecutor:
        return LocalExecutor(limits=LIMITS, sandbox="none")

    async def test_it_says_so(
        self,
        executor: LocalExecutor,
        request_for: Callable[..., ScriptRequest],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        for _ in range(2):
            raw = await executor.run(request_for("print(1)"))
        assert (raw.isolation.sandbox, raw.isolation.network_blocked) == ("landlock+seccomp", True)
        warnings = [record.getMessage() for record in caplog.records if "without a sandbox" in record.getMessage()]
        assert len(warnings) == 1 and "unix sockets" in warnings[0]


class TestWithNothingButProcesses(ExecutorContract):
    """No namespaces, no filters, no control groups: what is left on an old kernel."""

    @pytest.fixture
    def executor(self) -> LocalExecutor:
        return LocalExecutor(limits=LIMITS, sandbox="none", use_cgroups=False, use_filters=False)

    async def test_it_claims_nothing_more(
        self, executor: LocalExecutor, request_for: Callable[..., ScriptRequest]
    ) -> None:
        raw = await executor.run(request_for("print(1)"))
        assert (raw.isolation.sandbox, raw.isolation.network_blocked) == ("none", False)
        assert CONFINED not in raw.isolation.limits
