"""Finds supplied data that a script ignores."""

from mle_star.offline.rules.profile import Profile


def complete(code: str, profile: Profile) -> str | None:
    return None
