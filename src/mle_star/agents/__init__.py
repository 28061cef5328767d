"""The agents: a folder each, with its declaration and its prompts. `models/agents.py` says what belongs into one."""
