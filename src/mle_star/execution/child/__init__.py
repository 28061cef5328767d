"""Code that runs between the harness and a script, in a process of its own. It imports nothing of this package."""
