"""Which model family answers on each feature set: every candidate is fitted and judged.

On small data each set tries every family. On large data only some sets, the probes, do; the sets
between try what won beside them, which hardly ever differs and takes half the time. And a family
that is hopeless on two probes, a cheap one and the dearest, is not tried on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.decision import labels, split
from gatewise.models.stage import Stage
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners.boosting import LARGE_ROWS
from gatewise_training.learners.model_families import Bounds, cross_fitted_stage

__all__ = ["Contest", "Winner"]

HOPELESS = 1.25
"""A family so many times as wrong as the best, where it is sure, will not win beside it."""


@dataclass(frozen=True, eq=False)
class Winner:
    """The best stage on a feature set.

    Attributes
    ----------
    family : str
    stage : Stage
    outputs : ndarray of float32, shape (n_held, n_outputs)
    regret : float
        Area under the risk-coverage curve: how wrong it is where it is sure.
    """

    family: str
    stage: Stage
    outputs: NDArray[np.float32]
    regret: float


@dataclass(frozen=True, eq=False)
class _Found:
    """What has been judged so far."""

    best: dict[tuple[int, ...], Winner] = field(default_factory=dict)
    regrets: dict[tuple[tuple[int, ...], str], float] = field(default_factory=dict)

    def add(self, chosen: tuple[int, ...], candidate: Winner) -> None:
        """Take note of a fitted stage; it leads if it is less wrong than the leader."""
        self.regrets[chosen, candidate.family] = candidate.regret
        if chosen not in self.best or candidate.regret < self.best[chosen].regret:
            self.best[chosen] = candidate

    def able(self, sets: Sequence[tuple[int, ...]], families: Sequence[str]) -> list[str]:
        """Families that are not hopeless on all of the sets."""
        return [
            family
            for family in families
            if any(
                chosen not in self.best
                or self.regrets.get((chosen, family), np.inf) <= HOPELESS * self.best[chosen].regret
                for chosen in sets
            )
        ]


@dataclass(frozen=True, eq=False)
class Contest:
    """What all fits of a contest share.

    Attributes
    ----------
    plan : ValidationSplit
    costs : FeatureCosts
    n_classes : int
    families : sequence of str
    bounds : Bounds
    seed : int
    n_jobs : int or None
    report : callable (done, total)
    probe : int, default 3
        On large data every so many sets try all families.
    """

    plan: ValidationSplit
    costs: FeatureCosts
    n_classes: int
    families: Sequence[str]
    bounds: Bounds
    seed: int
    n_jobs: int | None
    report: Callable[[int, int], None]
    probe: int = 3

    def winners(self, sets: Sequence[NDArray[np.intp]]) -> dict[tuple[int, ...], Winner]:
        """Find the best stage for each set; a set on which none fits the bounds is left out."""
        by_cost = sorted({tuple(chosen.tolist()) for chosen in sets}, key=self._price)
        large = len(self.plan.fit_rows) > LARGE_ROWS and len(self.families) > 1
        step = self.probe if large else 1
        probes = sorted({*range(0, len(by_cost), step), len(by_cost) - 1})
        first = sorted({probes[len(probes) // 3], probes[-1]}) if large else probes
        others = [p for p in probes if p not in first]
        done, total = 0, len(probes) * len(self.families) + 2 * (len(by_cost) - len(probes))
        found = _Found()

        def judge(pairs: Sequence[tuple[int, str]]) -> None:
            nonlocal done
            jobs = [(by_cost[at], family) for at, family in pairs]
            self._judge(jobs, found, lambda now: self.report(min(done + now, total), total))
            done += len(jobs)

        judge([(at, family) for at in first for family in self.families])
        able = found.able([by_cost[at] for at in first], self.families)
        judge([(at, family) for at in others for family in able])
        between = []
        for at in sorted(set(range(len(by_cost))) - set(probes)):
            below = max(p for p in probes if p < at)
            above = min(p for p in probes if p > at)
            beside = {
                found.best[by_cost[p]].family for p in (below, above) if by_cost[p] in found.best
            }
            between += [(at, family) for family in sorted(beside or self.families)]
        judge(between)
        return found.best

    def _price(self, chosen: tuple[int, ...]) -> float:
        return self.costs.price(np.array(chosen, np.intp))

    def _judge(
        self,
        jobs: Sequence[tuple[tuple[int, ...], str]],
        found: _Found,
        report: Callable[[int], None],
    ) -> None:
        fitted = joblib.Parallel(n_jobs=self.n_jobs, return_as="generator")(
            joblib.delayed(cross_fitted_stage)(
                self.plan, family, np.array(chosen, np.intp), self.n_classes, self.seed, self.bounds
            )
            for chosen, family in jobs
        )
        for done, ((chosen, family), (stage, outputs)) in enumerate(zip(jobs, fitted, strict=True)):
            report(done)
            if self.bounds.admit(stage):
                found.add(chosen, Winner(family, stage, outputs, self._regret(stage, outputs)))

    def _regret(self, stage: Stage, outputs: NDArray[np.float32]) -> float:
        margins, score = split(outputs, stage.score)
        held = self.plan.validation_rows
        wrong = (labels(margins) != self.plan.y[held]) * self.plan.weight[held]
        by_confidence = wrong[np.argsort(-score, kind="stable")]
        return float(np.mean(np.cumsum(by_confidence) / np.arange(1, len(wrong) + 1)))
