"""The final script: trains on all labelled rows and writes the submission; and the cap on rows, found and removed."""

from __future__ import annotations

import re

from mle_star.offline.rules import validation
from mle_star.offline.rules.profile import Profile
from mle_star.offline.rules.sections import Script

_CAP = re.compile(
    r"^(?P<indent>[ \t]*)if\s+len\([^)\n]*\)\s*>\s*[^\n]*:[^\n]*\n"
    r"(?:(?P=indent)[ \t]+[^\n]*(?:sample|head|iloc|choice|[\[:])[^\n]*\n?)+",
    re.MULTILINE,
)
_BARE = re.compile(
    r"^[ \t]*(\w+)\s*=\s*\1(?:\.sample\([^\n]*\)[^\n]*|\.head\(\d[\d_]*\)|\[:\d[\d_]*\]|\.iloc\[:\d[\d_]*\])[ \t]*$",
    re.MULTILINE,
)


def final_script(script: Script, profile: Profile) -> Script:
    """The validated script on all cores, with models for the test rows that are trained on every labelled row."""
    sections = dict(script.sections)
    views = "VIEWS" in sections.get("combine", "")
    sections["validate"] = validation.section(profile, views=views, refits=_refits(profile))
    settings = re.sub(r"^THREADS = .*$", "THREADS = os.cpu_count() or 1", script.settings, flags=re.MULTILINE)
    doc = script.doc.rstrip() + "\n\nThe final version: every labelled row takes part in training.\n"
    return script.changed(doc=doc, settings=settings, sections=sections)


def _refits(profile: Profile) -> int:
    """How many fits to average: as many as cost little."""
    if profile.rows * profile.width > 1_500_000 or len(profile.classes) > 15:
        return 1
    return 4 if profile.rows < 4_000 else 3


def find_cap(code: str) -> str:
    """The lines that cut the training rows, as they stand in the code; nothing when there are none."""
    found = _CAP.search(code)
    if found:
        return found[0].rstrip("\n")
    bare = [
        m[0]
        for m in _BARE.finditer(code)
        if re.search(r"train|df|data|x|rows", m[1], re.IGNORECASE) and "frac=1" not in m[0]
    ]
    return bare[0] if bare else ""


def without_cap(block: str) -> str:
    """A block without its subsampling; what else it does stays."""
    kept = _CAP.sub("", block + "\n")
    kept = _BARE.sub("", kept)
    return kept.strip("\n")
