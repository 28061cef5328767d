"""Pure helpers of the method: blocks of code, and scores."""
