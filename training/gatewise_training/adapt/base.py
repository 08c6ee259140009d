"""What the Adapt methods share: the sweep over P_full and the penalty.

Each setting gives one stage: a low-cost model f1 and a gate g in one graph. Judging rows
refit the gate's threshold (the bare ``g > 0`` often never reaches the accuracy wanted), and
the frontier is taken over all settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise_training.budgeted import Chain, Problem
from gatewise_training.cascade import Cascade
from gatewise_training.costs import FeatureCosts
from gatewise_training.errors import InputError
from gatewise_training.stage import Stage

__all__ = ["Adapt", "Sample"]

LOG_FLOOR = 1e-12
"""Probabilities below this count as this: f0 may be certain and wrong."""


class Sample:
    """Training rows as the Adapt fits see them.

    Attributes
    ----------
    x : ndarray of float32, shape (n, n_features)
    y : ndarray of int64, shape (n,)
    weight : ndarray of float64, shape (n,)
        Of mean 1.
    f0_loss : ndarray of float64, shape (n,)
        ``-log p(y | x; f0)`` in nats.
    n_classes : int
    costs : FeatureCosts
    """

    def __init__(self, problem: Problem) -> None:
        plan = problem.plan
        rows = plan.fit_rows
        self.x, self.y = plan.x[rows], plan.y[rows]
        self.weight = plan.weight[rows] / plan.weight[rows].mean()
        assert problem.high_cost_model is not None
        proba = problem.high_cost_model.predict_proba(self.x)
        self.f0_loss: NDArray[np.float64] = -np.log(
            np.maximum(proba[np.arange(len(rows)), self.y], LOG_FLOOR)
        )
        self.n_classes = problem.n_classes
        self.costs: FeatureCosts = problem.costs


class Adapt(Cascade):
    """Base of :class:`AdaptGBRT` and :class:`AdaptLin`."""

    _cross_fits = False  # a sweep is many fits already

    p_full: Sequence[float]
    penalties: Sequence[float]

    def _fit_path(self, sample: Sample, p_full: float, seed: int) -> list[Stage]:
        """Fit one stage for each penalty, dear to cheap; a method's one duty."""
        raise NotImplementedError

    def _fit_chains(self, problem: Problem) -> Sequence[Chain]:
        sample = Sample(problem)
        held = problem.plan.x[problem.plan.held]
        paths = joblib.Parallel(n_jobs=problem.n_jobs, return_as="generator")(
            joblib.delayed(_path)(self, sample, p, problem.seed) for p in self.p_full
        )
        chains: list[Chain] = []
        for done, stages in enumerate(paths):
            problem.report(done + 1, len(self.p_full), "sweeping P_full")
            chains += [Chain((stage,), (stage.margins(held),)) for stage in stages]
        return chains

    def _check_settings(self) -> None:
        super()._check_settings()
        if not len(self.p_full) or not all(0.0 <= p <= 1.0 for p in self.p_full):
            raise InputError(f"p_full must be shares in [0, 1], not {list(self.p_full)}")
        if not len(self.penalties) or not all(0.0 <= c < np.inf for c in self.penalties):
            raise InputError(f"penalties must be at least 0, not {list(self.penalties)}")


def _path(method: Any, sample: Sample, p_full: float, seed: int) -> list[Stage]:
    stages: list[Stage] = method._fit_path(sample, p_full, seed)
    return stages
