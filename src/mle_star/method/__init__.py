"""Pure helpers of the method: blocks of code, and scores. Larger than planned: excerpts of scripts for prompts."""
