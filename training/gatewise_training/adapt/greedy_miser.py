"""GreedyMiser: one boosted model that pays for a feature when it is first used.

Xu, Weinberger & Chapelle, "The greedy miser: learning under test-time budgets", ICML 2012. It is
Adapt-GBRT without offloading (P_full = 0). The function that grows Adapt-GBRT's trees also grows
GreedyMiser's, without a gate (``p_full=None`` in
:func:`gatewise_training.adapt.gated_trees.grow_gated_trees`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from gatewise.models.stage import Stage
from gatewise_training.adapt.gated_trees import grow_gated_trees
from gatewise_training.adapt.sample import Sample
from gatewise_training.cascades.fit_problem import FitProblem, FittedStages, cross_fit_settings
from gatewise_training.cascades.single_model import SingleModel
from gatewise_training.data.input_checks import Constraints
from gatewise_training.data.validation_split import Rows
from gatewise_training.learners.boosting import link_of
from gatewise_training.learners.growth_settings import Growth, check_prefixes, first_rounds


@dataclass(eq=False, repr=False, kw_only=True)
class GreedyMiser(Growth, SingleModel):
    """Boosted trees under a penalty on the first use of each feature.

    Xu, Weinberger & Chapelle, "The greedy miser: learning under test-time budgets", ICML 2012. It
    is the same as Adapt-GBRT that never offloads (Nan & Saligrama, NIPS 2017, section 4).

    It is a single model without a cloud, so every instance costs the same. Each penalty and share
    of rounds gives one operating point.

    The trees of the paper are first-order, have depth 4, and make every split that pays for its
    price. ``newton=False, max_depth=4`` gives these trees. CEGB's authors note (NIPS 2017, section
    4.3) that they are the trees of :class:`CEGBClassifier` with coupled prices, grown
    breadth-first. The defaults give a stronger model instead.

    Further parameters: :class:`.SingleModel`.

    Parameters
    ----------
    penalties : sequence of float, default 8 values from 0.1 to 1e-5
        Penalties ``gamma`` to try. A feature of mean price is used only if it lowers the mean loss
        by at least ``gamma`` nats. The unpenalised model is always fitted as well.
    prefixes : sequence of float, default (0.0625, 0.125, 0.25, 0.5, 1.0)
        Shares of a fit's rounds. For each share, the model of the first rounds is also an operating
        point, as in the curves of the papers.
    n_rounds, num_leaves, max_depth, learning_rate, newton
        As for :class:`AdaptGBRT`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> miser = GreedyMiser(budget=4.0, penalties=(0.02,), n_rounds=20, random_state=0).fit(X, y)
    >>> bool(miser.cost(X).max() <= 4.0)
    True
    """

    penalties: Sequence[float] = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00001)
    prefixes: Sequence[float] = (0.0625, 0.125, 0.25, 0.5, 1.0)

    _parameter_constraints: ClassVar[Constraints] = {
        "penalties": ["array-like"],
        "prefixes": ["array-like"],
    }

    def _fit_candidates(self, problem: FitProblem) -> Sequence[FittedStages]:
        sample = Sample.all_rows(problem)
        gammas = sorted({*self.penalties, 0.0}, reverse=True)
        settings_fits = [partial(_fit_rows, sample, self, gamma, problem.seed) for gamma in gammas]
        return cross_fit_settings(problem, settings_fits, "sweeping the penalty")

    def _check_settings(self) -> None:
        super()._check_settings()
        check_prefixes(self.prefixes)


def _fit_rows(
    sample: Sample, method: GreedyMiser, gamma: float, seed: int, rows: Rows
) -> list[Stage]:
    """Fit one model; return stages of its first rounds and, last, of all rounds."""
    sample = sample.take(rows)
    trees = grow_gated_trees(sample, method, gamma, p_full=None, seed=seed)
    stages = []
    for round_share in sorted({*method.prefixes, 1.0}):
        first_trees = first_rounds(trees, round_share)
        stages.append(Stage.from_model(first_trees, link_of(sample.n_classes)))
    return stages
