"""A run from its first check to its result: what the orchestrator is made of.

Larger than planned: stages, signals and the result are here instead of in `orchestrator`, and so is what runs after the
search: further views, probes, other splits.
"""
