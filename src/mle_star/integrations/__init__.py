"""Doors to the tools that people already use. Each needs an extra of its own and says so where it is missing."""
