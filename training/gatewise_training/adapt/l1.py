"""The L1 baseline of the Adapt paper: choose features first, then fit f1, then the gate.

Nan & Saligrama, NIPS 2017, section 5: "first perform a L1-regularized logistic regression on
all data to identify a relevant, sparse subset of features; then learn f1 using training data
restricted to the identified feature(s); finally, learn g based on the correctness of f1
predictions as pseudo labels". The choice of features does not consider the gate, whereas Adapt-LIN
chooses features for f1 and the gate together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import labels
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise_training.adapt.alternation import set_up_m_step
from gatewise_training.adapt.base import PenalisedCascade
from gatewise_training.adapt.group_lasso import smallest_zero_penalty
from gatewise_training.adapt.prox_newton import solve
from gatewise_training.adapt.sample import Sample
from gatewise_training.cascades.fit_problem import FitProblem, FittedStages, cross_fit_settings
from gatewise_training.data.validation_split import Rows
from gatewise_training.learners.boosting import link_of

Array = NDArray[np.float64]


@dataclass(eq=False, repr=False, kw_only=True)
class L1Cascade(PenalisedCascade):
    """Features chosen by L1 logistic regression; f1 and then a gate fitted on them.

    The baseline of Nan & Saligrama, "Adaptive classification for prediction under a budget",
    NIPS 2017, section 5.

    Further parameters: :class:`.CascadeClassifier` and, for windows, :class:`.WindowSettings`.

    Parameters
    ----------
    penalties : sequence of float, default 12 values from 0.9 to 0.001
        L1 penalties to sweep, as shares of the smallest penalty that selects no feature; see
        :class:`AdaptLin` for prices that differ widely.
    stop : {"auto", "gate", "margin"}, default "auto"
        As for :class:`AdaptGBRT`.
    accounting : {"union", "paths"}, default "union"
        As for :class:`AdaptGBRT`.

    Notes
    -----
    Features are standardised, and linear models take no NaN. The penalty of a feature is
    proportional to its price, and the shared price of a group is a group penalty, as in
    :class:`AdaptLin`. For M > 2 classes, the M weights of a feature are penalised by their length,
    so that they become 0 together. f1 and the gate are logistic regressions with scikit-learn's
    default ridge penalty. The gate is fitted to predict on which training rows f1 errs. Its
    threshold is refitted on validation rows.
    """

    allow_missing = False

    penalties: Sequence[float] = (
        0.9, 0.5, 0.27, 0.15, 0.08, 0.045, 0.025, 0.014, 0.008, 0.004, 0.002, 0.001,
    )  # fmt: skip

    def _fit_candidates(self, problem: FitProblem) -> Sequence[FittedStages]:
        penalty_shares = sorted(self.penalties, reverse=True)
        settings_fit = self._with_stops(
            partial(_fit_rows, Sample.all_rows(problem), penalty_shares)
        )
        return cross_fit_settings(problem, [settings_fit], "sweeping the penalty")


def _fit_rows(sample: Sample, penalty_shares: Sequence[float], rows: Rows) -> list[Stage]:
    """Fit a stage for each share of the critical penalty, the highest first.

    The critical penalty is the smallest that selects no feature. As the shares fall, each fit
    starts close to its solution, which is near the previous one.
    """
    training_sample = sample.take(rows)
    setup = set_up_m_step(training_sample)
    # without the gate's loss, the M-step is the L1-regularised logistic regression of the labels
    selection_problem = replace(setup.problem, gate=_NoGate())
    pair = setup.start
    critical_penalty = smallest_zero_penalty(
        selection_problem.gradient(pair).weights, selection_problem.penalty
    )
    stages = []
    for penalty_share in penalty_shares:
        penalised_problem = replace(selection_problem, gamma=penalty_share * critical_penalty)
        # a coarse tolerance, because only the choice of features is used, not the weights
        pair = solve(penalised_problem, pair, tol=1e-4, max_iter=200)
        features = np.flatnonzero(pair.weights.any(axis=1))
        weights, bias = _fit_f1_and_gate(features, selection_problem.z, training_sample)
        model = LinearModel(
            setup.mean, setup.scale, weights.astype(np.float32), bias.astype(np.float32)
        )
        stages.append(Stage.from_model(model, link_of(training_sample.n_classes), "column"))
    return stages


class _NoGate:
    """The loss of an absent gate, a :class:`.GateLoss` of 0 with slope 0 and curvature 0."""

    def value(self, g: Array) -> Array:
        return np.zeros_like(g)

    slope = curvature = value


def _fit_f1_and_gate(features: Rows, scaled_x: Array, sample: Sample) -> tuple[Array, Array]:
    """Fit f1 and a gate on some of the features, which may be none.

    Returns the weights, shape (n_features, n_outputs), and the biases, shape (n_outputs,). The last
    output is the stop score -g, and the others are the margins of f1.
    """
    columns = scaled_x[:, features]
    f1_weights, f1_bias = _fit_logistic(columns, sample.y, sample.weight, sample.n_classes)
    # float32, because a device decides by float32 margins
    f1_answers = labels((columns @ f1_weights + f1_bias).astype(np.float32))
    is_wrong = (f1_answers != sample.y).astype(np.int64)
    gate_weights, gate_bias = _fit_logistic(columns, is_wrong, sample.weight, 2)
    weights = np.zeros((scaled_x.shape[1], f1_weights.shape[1] + 1))
    weights[features] = np.column_stack([f1_weights, -gate_weights])
    return weights, np.append(f1_bias, -gate_bias)


def _fit_logistic(
    scaled_x: Array, y: NDArray[np.int64], weight: Array, n_classes: int
) -> tuple[Array, Array]:
    """Fit a logistic regression; return weights, (n_features, n_margins), and biases.

    Two classes have one margin, of class 1 against class 0; M > 2 classes have M margins. A class
    without rows gets the log odds of half a row. All weights must be positive, because scikit-learn
    also counts the classes of rows with weight 0.
    """
    from sklearn.linear_model import LogisticRegression

    class_weights = np.bincount(y, weight, minlength=n_classes)
    log_class_weights = np.log(np.maximum(class_weights, 0.5))
    seen_classes = np.flatnonzero(class_weights)
    weights = np.zeros((scaled_x.shape[1], n_classes))
    # without a feature, or with rows of one class only, the margins are the log weights of classes
    bias = log_class_weights.copy()
    if scaled_x.shape[1] and len(seen_classes) > 1:
        # C is scikit-learn's default; tol is 10 times its default, because the sweep makes two fits
        # for each penalty and fold
        model = LogisticRegression(C=1.0, max_iter=500, tol=1e-3).fit(
            scaled_x, y, sample_weight=weight
        )
        class_slopes = model.coef_.T
        intercepts = model.intercept_
        if len(seen_classes) == 2:  # scikit-learn has one margin, of the second against the first
            class_slopes = class_slopes * [[0.0, 1.0]]
            intercepts = np.append(0.0, intercepts)
        weights[:, seen_classes] = class_slopes
        bias[seen_classes] = intercepts
        # log odds of half a row against the most frequent class, below all intercepts, because a
        # class without rows should rarely be predicted
        unseen_classes = np.setdiff1d(np.arange(n_classes), seen_classes)
        log_weight_gap = log_class_weights[unseen_classes] - log_class_weights[seen_classes].max()
        bias[unseen_classes] = intercepts.min() + log_weight_gap
    if n_classes > 2:
        return weights, bias
    return np.diff(weights, axis=1), np.diff(bias)
