"""The rank correlation part of `truth.py`: what all hidden rows say of the scripts of a run, and what so many could."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mle_star.data.formulas import spearman
from mle_star.holdout.answers import read_answers
from mle_star.run.folder import RunFolder, first_line
from mle_star.run.journal import read_journal
from mle_star.run.ledger import Ledger
from mle_star.search import final_result

CUTS = 40


def ranks(run: Path, answers: Path) -> tuple[float | None, float | None]:
    """How the scripts of a run rank on all hidden rows that all of them answered, and what so many rows allow.

    For the latter the real test is cut at random into so many rows, at most half of it, and the others.
    """
    folder, task = RunFolder(run), first_line(run).task
    recorded = list(read_journal(folder.journal))
    holdout, dice = final_result._holdout(recorded, task, run), np.random.default_rng(0)
    if holdout is None:
        return None, None
    truth, scorer = final_result._Truth(holdout.scorer, answers), holdout.scorer
    scored = {one.result.submission: one for one in Ledger.of(recorded).scored() if one.result.submission}
    hidden, real = list[Any](), list[Any]()
    for submission, one in scored.items():
        hidden.append(holdout.read([run / path for path in one.result.answers], holdout.views))
        given = read_answers(scorer.data, run / str(submission), scorer.data.real_view()).real
        real.append(scorer.arrays(truth.labels, list(given)))
    rows = sorted(set[int].intersection(*(set(one.hidden) for one in hidden)))
    worth = [scorer.compute(*pair) for pair in real]
    found, count = spearman(np.array([holdout.figure(one, rows) for one in hidden]), np.array(worth)), len(real[0][0])
    most = list[float]()
    for _ in range(CUTS):
        order = dice.permutation(count)
        cut = min(len(rows), count // 2)
        parts = [[scorer.compute(t[part], p[part]) for t, p in real] for part in (order[:cut], order[cut:])]
        most.append(spearman(*map(np.array, parts)))
    known = [float(np.nanmean(figures)) for figures in ([found], most)]
    return known[0], known[1]
