"""The prompts: one template file per agent and variant."""
