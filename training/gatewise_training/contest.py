"""Which model family answers on each feature set: every candidate is fitted and judged.

On small data each set tries every family. On large data only some sets, the probes, do; the sets
between try what won beside them, which hardly ever differs and takes half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise_training.boosting import LARGE_ROWS
from gatewise_training.costs import FeatureCosts
from gatewise_training.decision import labels, split
from gatewise_training.families import Bounds, judged_stage
from gatewise_training.resampling import Resampling
from gatewise_training.stage import Stage

__all__ = ["Contest", "Winner"]


@dataclass(frozen=True, eq=False)
class Winner:
    """The best stage on a feature set.

    Attributes
    ----------
    family : str
    stage : Stage
    held_outputs : ndarray of float32, shape (n_held, n_outputs)
    regret : float
        Area under the risk-coverage curve: how wrong it is where it is sure.
    """

    family: str
    stage: Stage
    held_outputs: NDArray[np.float32]
    regret: float


@dataclass(frozen=True, eq=False)
class Contest:
    """What all fits of a contest share.

    Attributes
    ----------
    plan : Resampling
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

    plan: Resampling
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
        jobs = [(by_cost[p], family) for p in probes for family in self.families]
        total = len(jobs) + 2 * (len(by_cost) - len(probes))
        found = self._judge(jobs, 0, total)
        rest = []
        for between, chosen in enumerate(by_cost):
            if between not in probes:
                below = max(p for p in probes if p < between)
                above = min(p for p in probes if p > between)
                beside = {found[by_cost[p]].family for p in (below, above) if by_cost[p] in found}
                rest += [(chosen, family) for family in sorted(beside or self.families)]
        return found | self._judge(rest, len(jobs), total)

    def _price(self, chosen: tuple[int, ...]) -> float:
        return self.costs.of(np.array(chosen, np.intp))

    def _judge(
        self, jobs: Sequence[tuple[tuple[int, ...], str]], before: int, total: int
    ) -> dict[tuple[int, ...], Winner]:
        fitted = joblib.Parallel(n_jobs=self.n_jobs, return_as="generator")(
            joblib.delayed(judged_stage)(
                self.plan, family, np.array(chosen, np.intp), self.n_classes, self.seed, self.bounds
            )
            for chosen, family in jobs
        )
        best: dict[tuple[int, ...], Winner] = {}
        for done, ((chosen, family), (stage, outputs)) in enumerate(zip(jobs, fitted, strict=True)):
            self.report(min(before + done, total), total)
            regret = self._regret(stage, outputs)
            leads = chosen not in best or regret < best[chosen].regret
            if self.bounds.admit(stage) and leads:
                best[chosen] = Winner(family, stage, outputs, regret)
        return best

    def _regret(self, stage: Stage, outputs: NDArray[np.float32]) -> float:
        margins, score = split(outputs, stage.score)
        held = self.plan.held
        wrong = (labels(margins) != self.plan.y[held]) * self.plan.weight[held]
        by_confidence = wrong[np.argsort(-score, kind="stable")]
        return float(np.mean(np.cumsum(by_confidence) / np.arange(1, len(wrong) + 1)))
