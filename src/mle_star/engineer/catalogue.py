"""All parts that there are, found by looking into the folders: a new file is a new part."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from mle_star.engineer.parts import features, models
from mle_star.engineer.parts.blends.combining import BLENDS
from mle_star.engineer.parts.describe import Blend, Family, Step
from mle_star.engineer.profile import Profile


def _modules(package: ModuleType) -> list[ModuleType]:
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


@cache
def families() -> dict[str, Family]:
    """The model families by key."""
    found = [module.FAMILY for module in _modules(models) if hasattr(module, "FAMILY")]
    return {family.key: family for family in found}


@cache
def steps() -> dict[str, Step]:
    """The feature steps by key."""
    return {step.key: step for module in _modules(features) for step in getattr(module, "STEPS", ())}


@cache
def all_blends() -> dict[str, Blend]:
    """The ways to combine models by key."""
    return {blend.key: blend for blend in BLENDS}


def fitting_families(profile: Profile) -> list[Family]:
    """The families that scripts can import and that suit a task, the most promising first."""
    able = [family for family in families().values() if family.package in (*profile.packages, "sklearn")]
    return sorted((f for f in able if f.worth(profile) > 0), key=lambda family: -family.worth(profile))


def fitting_steps(profile: Profile, *, first: bool = False) -> list[Step]:
    """The steps that suit a task, the most promising first; those of the first script in the order of the folder."""
    able = [step for step in steps().values() if step.worth(profile) > 0 and (step.first or not first)]
    return able if first else sorted(able, key=lambda step: -step.worth(profile))


def fitting_blends(profile: Profile) -> list[Blend]:
    """The ways to combine models that suit a task, the most promising first."""
    return sorted((b for b in BLENDS if b.worth(profile) > 0), key=lambda blend: -blend.worth(profile))
