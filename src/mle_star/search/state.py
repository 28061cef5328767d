"""A window on a run for whoever started it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mle_star.run.budget import Budget
from mle_star.run.events import AgentFailed, AgentFinished, AnyEvent, BestImproved, PhaseStarted, RunFinished


@dataclass
class PipelineState:
    """A window on a run: make one, hand it to `run_pipeline`, look at it whenever you like."""

    current_phase: str = "phase1"
    phase2_path_statuses: list[str] = field(default_factory=list)
    best_score_so_far: float | None = None
    agent_call_count: int = 0
    hardware: dict[str, Any] = field(default_factory=dict)
    run_dir: Path | None = None
    _budget: Budget | None = field(default=None, repr=False)

    @property
    def elapsed_seconds(self) -> float:
        """Wall-clock time of the run so far, earlier processes included."""
        return 0.0 if self._budget is None else self._budget.elapsed()

    @property
    def accumulated_cost_usd(self) -> float:
        """Money spent so far."""
        return 0.0 if self._budget is None else self._budget.spent_usd

    def watch(self, budget: Budget, run_dir: Path, hardware: dict[str, Any]) -> None:
        """Begin anew with this run."""
        self.current_phase, self.best_score_so_far, self.agent_call_count = "phase1", None, 0
        self.phase2_path_statuses = []
        self.hardware, self.run_dir, self._budget = hardware, run_dir, budget

    def hear(self, event: AnyEvent) -> None:
        """Follow the run."""
        if isinstance(event, PhaseStarted) and event.path is None:
            self.current_phase = event.phase
        elif isinstance(event, (AgentFinished, AgentFailed)):
            self.agent_call_count += 1
        elif isinstance(event, BestImproved):
            self.best_score_so_far = event.score
        elif isinstance(event, RunFinished):
            self.current_phase = "complete"
