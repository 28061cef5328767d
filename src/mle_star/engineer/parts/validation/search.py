"""A frugal search for a model's settings: small steps from where it stands, on few rows, within a given time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mle_star.engineer.parts.core import Job, Rows


def search_settings(
    fit: Callable[..., list[np.ndarray]], rows: Rows, y: np.ndarray, settings: dict[str, Any], job: Job
) -> dict[str, Any]:
    """The best settings found in `job.seconds`: a step in a random direction, else its opposite, else smaller steps."""
    ranges, ends = settings["search"], time.monotonic() + job.seconds
    dice = np.random.default_rng(job.seed)
    some = dice.permutation(len(y))[:6000]
    cut = int(0.75 * len(some))
    learn, scorer = some[:cut], some[cut:]
    if not job.numeric:
        scorer = scorer[np.isin(y[scorer], y[learn])]
        _, within = np.unique(y[learn], return_inverse=True)
    truth = y[learn] if job.numeric else within

    def loss(tried: dict[str, Any], seconds: float) -> float:
        (p,) = fit(rows.take(learn), truth, [rows.take(scorer)], tried, replace(job, seconds=seconds))
        if job.numeric:
            error = np.abs(y[scorer] - p)
            return float(np.mean(error if job.loss == "absolute" else error**2))
        place = np.searchsorted(np.unique(y[learn]), y[scorer])
        return float(-np.mean(np.log(np.clip(p[np.arange(len(scorer)), place], 1e-6, 1))))

    begun = time.monotonic()
    best, lowest = dict(settings), loss(settings, job.seconds)
    pace, size, failures = time.monotonic() - begun, 0.8, 0
    while time.monotonic() + pace < ends:
        step = dice.normal(size=len(ranges))
        for sign in (1, -1):
            if time.monotonic() + pace > ends:
                break
            tried = dict(best)
            for (name, (low, high)), move in zip(ranges.items(), step / np.linalg.norm(step), strict=True):
                value = min(high, max(low, best[name] * float(np.exp(sign * move * size * 1.6))))
                tried[name] = round(value) if isinstance(settings[name], int) else value
            found = loss(tried, 3 * pace)
            if found < lowest:
                best, lowest, failures = tried, found, 0
                break
        else:
            failures += 1
            size = max(0.15, size * 0.8)
    return best
