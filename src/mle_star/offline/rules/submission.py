"""The final script: trains on all labelled rows and writes the submission; and the cap on rows, found and removed."""

from __future__ import annotations

import re

from mle_star.offline.rules import validation
from mle_star.offline.rules.profile import Profile
from mle_star.offline.rules.sections import Script

MORE_FOLDS_UP_TO = 4_000
_CAP = re.compile(
    r"^(?P<indent>[ \t]*)if\s+len\([^)\n]*\)\s*>\s*[^\n]*:[^\n]*\n(?:(?P=indent)[ \t]+[^\n]*(?:sample|head|iloc|choice|[\[:])[^\n]*\n?)+",
    re.MULTILINE,
)
_BARE = re.compile(
    r"^[ \t]*(\w+)\s*=\s*\1(?:\.sample\([^\n]*\)[^\n]*|\.head\(\d[\d_]*\)|\[:\d[\d_]*\]|\.iloc\[:\d[\d_]*\])[ \t]*$",
    re.MULTILINE,
)


def final_script(script: Script, profile: Profile) -> Script:
    """The validated script on all rows and cores: more folds for few rows, one more fit for a single hold-out set."""
    sections = dict(script.sections)
    views = "VIEWS" in sections.get("combine", "")
    refit = "train_test_split" in sections["split"] or bool(profile.later_test)
    sections["split"] = _more_folds(sections["split"], profile)
    sections["validate"] = validation.section(profile, views=views, refit=refit)
    settings = re.sub(r"^THREADS = .*$", "THREADS = os.cpu_count() or 1", script.settings, flags=re.MULTILINE)
    settings += "" if "THREADS" in settings else "\nTHREADS = os.cpu_count() or 1"
    doc = script.doc.rstrip() + "\n\nThe final version: every labelled row takes part in training.\n"
    return script.changed(doc=doc, settings=settings, sections=sections)


def _more_folds(split: str, profile: Profile) -> str:
    """More folds leave more rows for each model; where that is cheap, or where there were few."""
    if profile.rows <= MORE_FOLDS_UP_TO:
        return re.sub(r"(KFold\()(?:n_splits=)?5, (shuffle|n_repeats)", _ten, split)
    return re.sub(r"(KFold\()3, ", r"\g<1>5, ", split)


def _ten(found: re.Match[str]) -> str:
    return f"{found[1]}{'n_splits=10' if found[2] == 'n_repeats' else '8'}, {found[2]}"


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
