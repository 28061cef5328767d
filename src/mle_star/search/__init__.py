"""A run from its first check to its result: what the orchestrator is made of."""
