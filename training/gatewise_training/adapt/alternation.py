"""The alternation of Adapt with linear models (NIPS 2017, Algorithm 1), for any distance.

Each alternation is an exact q-step and one proximal Newton step of the M-step. The M-step is not
solved to the end, because q still changes. Neither step can raise the objective. The alternation
ends when q is optimal for the pair and the KKT residual of the M-step at that q is small.

OPT is convex in the models for fixed q and in q for fixed models, but not in both together
(section 3). From constant models, the alternation first selects the features that separate the
classes on all rows, as an L1 penalty would. Other features separate the classes only on the rows
that f1 answers, and also decide which rows these are. Such a feature has no slope at constant
models, and the paper's Synthetic-2 has such features. The alternation therefore has further starts
(:class:`Start`), which offload the rows above, or below, a quantile of one feature.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.models.linear import standard_scaling
from gatewise_training.adapt.group_lasso import GroupLasso, smallest_zero_penalty
from gatewise_training.adapt.m_step import Iterate, LinearPair, MStep, curvature_bound
from gatewise_training.adapt.prox_newton import newton_step
from gatewise_training.adapt.qstep import Distance, KullbackLeibler
from gatewise_training.adapt.sample import Sample
from gatewise_training.learners.losses import one_hot, prior_margins

Array = NDArray[np.float64]

#: Largest KKT residual of the M-step, in multiples of `tol`, at which an alternation may end. A
#: small decrease of the objective alone may also be due to a short step.
MAX_KKT_RATIO = 10.0

#: Offload probability of the rows that a start offloads. The other rows have one minus it. It is
#: below 1, because both the log odds of q and the M-step's weights must be finite and above 0.
START_PROBABILITY = 0.98

#: Largest number of rows for the comparison of features.
MAX_SCREENING_ROWS = 2000


class QStepResult(NamedTuple):
    """The M-step's problem at the best q for an iterate, and the two parts of the objective."""

    problem: MStep
    value: float  # objective of the M-step: the part that depends on f1 and g
    constant: float  # the part that depends only on f0 and q

    @property
    def objective(self) -> float:
        """The objective of OPT."""
        return self.value + self.constant


def alternate(
    problem: MStep,
    f0_loss: Array,
    p_full: float,
    start: LinearPair,
    *,
    tol: float,
    max_steps: int,
    distance: Distance | None = None,
) -> tuple[LinearPair, list[float]]:
    """Alternate q-steps and steps of the M-step; return the pair and the objective of each step."""
    distance = KullbackLeibler() if distance is None else distance
    weight_shares = problem.weight / problem.weight.sum()

    def q_step(iterate: Iterate) -> QStepResult:
        probabilities = distance.q_step(iterate.f1_loss, f0_loss, iterate.g, p_full, problem.weight)
        next_problem = problem.with_q(probabilities)
        f0_constant = float(weight_shares @ (probabilities.q * f0_loss + probabilities.constant))
        return QStepResult(next_problem, next_problem.objective_at(iterate), f0_constant)

    # Nesterov's momentum across alternations:
    #   t_{k+1} = (1 + sqrt(1 + 4 t_k^2)) / 2
    #   v_{k+1} = w_k + (t_k - 1) / t_{k+1} (w_k - w_{k-1})
    v = problem.evaluate(start)
    w_before = v
    q_result = q_step(v)
    objectives = [q_result.objective]
    t = 1.0
    for _ in range(max_steps - 1):
        proximal_step = q_result.problem.proximal_step(v)
        has_settled = len(objectives) > 1 and objectives[-2] - objectives[-1] < tol
        if has_settled and proximal_step.residual < MAX_KKT_RATIO * tol:
            break
        w, m_step_value = newton_step(q_result.problem, v, proximal_step, q_result.value)
        objective_bound = m_step_value + q_result.constant
        t_next = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t**2))
        v = w.extrapolate(w_before, (t - 1.0) / t_next)
        next_q_result = q_step(v)
        # if the extrapolation overshot, restart from w
        if next_q_result.objective > objective_bound and t > 1.0:
            t_next = 1.0
            v = w
            next_q_result = q_step(v)
        # with a distance that is not convex in q, a q-step may be worse; then keep the result
        if next_q_result.objective <= objective_bound:
            q_result = next_q_result
        w_before = w
        t = t_next
        objectives.append(q_result.objective)
    return v.pair, objectives


class MStepSetup(NamedTuple):
    """The M-step of a sample without a penalty, and the means and scales of its columns."""

    problem: MStep
    start: LinearPair  # the constant models: class margins, and a gate of 0
    mean: NDArray[np.float32]  # (n_features,)
    scale: NDArray[np.float32]  # (n_features,)


def set_up_m_step(sample: Sample, gate_curvature: float = 0.0) -> MStepSetup:
    """Make the M-step of a sample, without a penalty and with no row offloaded."""
    mean, scale = standard_scaling(sample.x)
    z = ((sample.x - mean) * scale).astype(np.float64)
    target = one_hot(sample.y, sample.n_classes)
    n_margins = target.shape[1]
    problem = MStep(
        z=z,
        target=target,
        q=np.zeros(len(z)),
        weight=sample.weight,
        penalty=GroupLasso.from_costs(sample.costs),
        gamma=0.0,
        lipschitz=curvature_bound(z, sample.weight, n_margins, gate_curvature),
    )
    bias = np.append(prior_margins(target, sample.weight), 0.0)
    start = LinearPair(np.zeros((z.shape[1], n_margins + 1)), bias)
    return MStepSetup(problem, start, mean, scale)


def featureless_pair(
    problem: MStep, pair: LinearPair, f0_loss: Array, p_full: float, distance: Distance
) -> tuple[LinearPair, float]:
    """Find the best pair without priced features, and the smallest penalty for it."""
    total_price = problem.penalty.own.sum() + problem.penalty.shared.sum()
    # a penalty that no feature with a price is worth, since mean losses are far below 1e9
    featureless_problem = replace(problem, gamma=1e9 / max(total_price, 1e-12))
    pair, _ = alternate(
        featureless_problem, f0_loss, p_full, pair, tol=1e-7, max_steps=100, distance=distance
    )
    iterate = problem.evaluate(pair)
    probabilities = distance.q_step(iterate.f1_loss, f0_loss, iterate.g, p_full, problem.weight)
    gradient = problem.with_q(probabilities).gradient(pair).weights
    return pair, smallest_zero_penalty(gradient, problem.penalty)


@dataclass(frozen=True)
class Start:
    """A start of the alternation that offloads the rows at one end of one feature."""

    feature: int
    is_upper: bool  # whether the rows with the largest values are offloaded, or the smallest

    def offload(self, column: NDArray[np.floating], weight: Array, p_full: float) -> Array:
        """Get offload probabilities, (n,), that are near 1 for a share `p_full` of the weight."""
        row_order = np.argsort(-column if self.is_upper else column, kind="stable")
        weight_before = np.cumsum(weight[row_order]) - 0.5 * weight[row_order]
        q = np.empty(len(column))
        q[row_order] = np.where(
            weight_before <= p_full * weight.sum(), START_PROBABILITY, 1.0 - START_PROBABILITY
        )
        return q


def best_starts(sample: Sample, p_full: float, n_starts: int) -> list[Start]:
    """Find the features on which a gate and a low-cost model alone do best for their price.

    A feature decides which rows stay on the device, and a line in the same feature is fitted to
    their class indicators by least squares. Its residual squares are compared with the squares of
    the same number of random rows. Features without a price give no starts, because all models
    have them.
    """
    prices = sample.costs.standalone_prices
    priced_features = np.flatnonzero(prices > 0)
    if not n_starts or not len(priced_features):
        return []
    rows = np.random.default_rng(0).permutation(len(sample.x))[:MAX_SCREENING_ROWS]
    x = sample.x[rows].astype(np.float64)
    weight = sample.weight[rows]
    target = one_hot(sample.y[rows], sample.n_classes)
    squares_of_random_rows = (1.0 - p_full) * _compute_residual_squares(
        np.zeros(len(rows)), target, weight
    )
    gains_and_starts = []
    for feature in priced_features:
        column = x[:, feature] - x[:, feature].mean()
        residual_squares = []
        for is_upper in (True, False):
            stays_on_device = Start(int(feature), is_upper).offload(column, weight, p_full) < 0.5
            residual_squares.append(
                _compute_residual_squares(
                    column[stays_on_device], target[stays_on_device], weight[stays_on_device]
                )
            )
        gain = max(squares_of_random_rows - min(residual_squares), 0.0) / prices[feature]
        gains_and_starts.append(
            (gain, Start(int(feature), residual_squares[0] <= residual_squares[1]))
        )
    gains_and_starts.sort(key=lambda gain_and_start: -gain_and_start[0])
    return [start for _, start in gains_and_starts[:n_starts]]


def _compute_residual_squares(column: Array, target: Array, weight: Array) -> float:
    """Compute the weighted residual squares of a line in one feature, fitted to the targets."""
    total_weight = weight.sum()
    if total_weight <= 0.0:
        return 0.0
    # sum w t^2 - (sum w z t)^2 / sum w z^2, with z and t centred
    z = column - weight @ column / total_weight
    t = target - weight @ target / total_weight
    variance_sum = float(weight @ z**2)
    covariance_sum = (weight * z) @ t
    target_squares = float(weight @ (t**2).sum(axis=1))
    # the feature is constant on these rows, apart from rounding
    if variance_sum <= 1e-20 * float(weight @ column**2):
        return target_squares
    return target_squares - float(covariance_sum @ covariance_sum) / variance_sum
