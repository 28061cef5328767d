"""The final script: trains on all labelled rows and writes the submission; and the cap on rows, found and removed."""

from __future__ import annotations

import re

from mle_star.engineer.rules import validation
from mle_star.engineer.rules.ensemble import POOL_IMPORT, folds_in, with_all_cores
from mle_star.engineer.rules.profile import Profile
from mle_star.engineer.rules.sections import Script

FEW_FOLDS = 3
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
    """The validated script on all cores; models trained on every labelled row answer for the test rows, too."""
    sections = dict(script.sections)
    scale = ", to_model, to_task" if profile.numeric else ""
    alone = "" if "VIEWS" in sections.get("combine", "") else f"VIEWS = [(build_features, MODELS{scale})]\n\n\n"
    views, folds = max(len(script.names("features")), 1), folds_in(sections["split"])
    sections["validate"] = alone + validation.section(
        profile, views=True, refits=_refits(script, profile, views, folds)
    )
    settings = with_all_cores(script.settings, jobs=views * folds)
    doc = script.doc.rstrip() + "\n\nThe final version: every labelled row takes part in training.\n"
    return script.changed(doc=doc, settings=settings, sections=sections, imports=(*script.imports, POOL_IMPORT))


def _refits(script: Script, profile: Profile, views: int, folds: int) -> validation.Refits:
    """As many fits on all rows as cost little. Models of few folds know too little of the rows to answer with them."""
    work = profile.rows * profile.width * len(script.names("model"))
    alone = validation.is_hold_out(profile) or folds <= FEW_FOLDS
    if validation.is_hold_out(profile) or len(profile.classes) > 15:
        return validation.Refits(1, alone)
    if work > 300_000:
        return validation.Refits(2 if views == 1 else 1, alone)  # what is fitted side by side takes no longer
    return validation.Refits(3 if work < 60_000 else 2, alone)


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
