"""Base of the Adapt methods: the sweep over P_full and the penalty.

Each setting gives one stage: a low-cost model f1 and a gate g in one graph. The gate's threshold
is refitted on validation rows (the bare ``g > 0`` often never reaches the accuracy wanted), and
the frontier is taken over all settings.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise_training.adapt.sample import Sample
from gatewise_training.cascades.cascade import CascadeClassifier
from gatewise_training.cascades.fit_problem import FittedStages, Problem, sweep
from gatewise_training.data.validation_split import Rows

__all__ = ["Adapt", "PenalisedCascade"]


@dataclass(eq=False, repr=False, kw_only=True)
class PenalisedCascade(CascadeClassifier):
    """Base of cascades with a sweep over a feature penalty."""

    penalties: Sequence[float] = ()

    def _check_settings(self) -> None:
        super()._check_settings()
        if not len(self.penalties):
            raise InputError("penalties must hold at least one number")


@dataclass(eq=False, repr=False, kw_only=True)
class Adapt(PenalisedCascade):
    """Base of :class:`AdaptGBRT`, :class:`AdaptLin` and :class:`AdaptLstsq`."""

    p_full: Sequence[float] = ()

    @abstractmethod
    def _fit_path(
        self, sample: Sample, p_full: float, seed: int, starts: Sequence[Any] = ()
    ) -> list[Stage]:
        """Fit one stage for each penalty, the highest first; the one method of a subclass."""

    def _starts(self, sample: Sample, p_full: float) -> Sequence[Any]:
        """Further starts of the path's fits; the same for all folds."""
        return ()

    def _fit_candidates(self, problem: Problem) -> Sequence[FittedStages]:
        sample = Sample.all_rows(problem)
        fitted = sample.take(problem.plan.fit_rows)
        paths = [
            partial(_fit_rows, self, sample, p, problem.seed, self._starts(fitted, p))
            for p in self.p_full
        ]
        return sweep(problem, paths, "sweeping P_full")

    def _check_settings(self) -> None:
        super()._check_settings()
        if not len(self.p_full) or not all(0.0 <= p <= 1.0 for p in self.p_full):
            raise InputError(f"p_full must be shares in [0, 1], not {list(self.p_full)}")


def _fit_rows(
    method: Adapt, sample: Sample, p_full: float, seed: int, starts: Sequence[Any], rows: Rows
) -> list[Stage]:
    return method._fit_path(sample.take(rows), p_full, seed, starts)
