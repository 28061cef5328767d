"""Which agent will be called next: the method's usual order at first, then what this run has shown."""

from __future__ import annotations

from collections import Counter, defaultdict

AgentKey = tuple[str, str | None]
"""An agent and its variant."""

_DETECTION: AgentKey = ("leakage", "detection")
_USUAL: dict[AgentKey, AgentKey] = {
    ("retriever", None): ("init", None),
    ("init", None): _DETECTION,
    ("merger", None): _DETECTION,
    ("ablation", None): ("summarize", None),
    ("summarize", None): ("extractor", None),
    ("extractor", None): ("coder", None),
    ("coder", None): _DETECTION,
    ("planner", None): ("coder", None),
    ("ens_planner", None): ("ensembler", None),
    ("ensembler", None): _DETECTION,
    ("debugger", None): _DETECTION,
    ("data", None): _DETECTION,
    ("leakage", "correction"): _DETECTION,
    ("test", "subsampling_extract"): ("test", "subsampling_remove"),
    ("test", "subsampling_remove"): ("test", None),
}
_AFTER_DETECTION: dict[AgentKey, AgentKey] = {
    ("init", None): ("init", None),
    ("merger", None): ("merger", None),
    ("coder", None): ("planner", None),
    ("ensembler", None): ("ens_planner", None),
    ("data", None): ("ablation", None),
}


class Foresight:
    """Learns what follows what, separately for each path, and guesses one call ahead."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[AgentKey | None, AgentKey]] = {}
        self._seen: dict[tuple[AgentKey | None, AgentKey], Counter[AgentKey]] = defaultdict(Counter)

    def observe(self, label: str, key: AgentKey) -> AgentKey | None:
        """Note that `label` calls `key` now; what it will probably call next."""
        before = self._last.get(label)
        if before is not None:
            self._seen[before][key] += 1
        state = (before[1] if before is not None else None, key)
        self._last[label] = state
        return self._guess(state)

    def _guess(self, state: tuple[AgentKey | None, AgentKey]) -> AgentKey | None:
        seen = self._seen.get(state)
        if seen:
            return seen.most_common(1)[0][0]
        before, now = state
        if now == _DETECTION and before is not None:
            return _AFTER_DETECTION.get(before)
        return _USUAL.get(now)
