"""Tests of the harness: real interpreters, real processes, real sandboxes."""
