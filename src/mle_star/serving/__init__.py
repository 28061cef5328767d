"""Servers on loopback, for this machine alone."""
