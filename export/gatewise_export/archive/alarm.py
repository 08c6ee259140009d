"""Test by betting, with few labels, whether the error rate is above the tolerated one.

Let beta be the tolerated error rate: one minus the promised accuracy, plus a tolerance. For an
instance of the archive, let z be 1 if the answer is wrong and 0 otherwise, and let q be the
probability that it is wrong by the high-cost model. The test computes

    g = w (lambda q - beta) + L W (z - lambda q),

where L is 1 if the instance was labelled, and W = w / c. The mean of g is the error rate less beta,
however good or bad the high-cost model is. While the promise holds, this mean is at most zero, so
each factor 1 + b g has a mean of at most 1 if the bet b is fixed before the instance is seen.
Ville's inequality then bounds the product of the factors: it reaches 1 / level with a probability
of at most `level`, even if it is checked after each label (Waudby-Smith and Ramdas, 2023, section
4).

The smallest possible g of an instance is -w beta - lambda q (W - w), and a bet is a fraction of the
one with which the smallest g so far would make a factor zero. It must not depend on later
instances: instances with a large weight are mostly right, so that larger bets on samples that
happen to lack them would gain even while the promise holds. Therefore nothing is bet on the first
instances of the first choice. One quantity is of the whole choice: the largest q (W - w), because
the archive does not record the c of instances that were not chosen. Its influence could not be seen
in 1,000 simulated streams at the tolerated rate: the mean product of each bet was at most 1.03.

The capital of 1 is divided among several bets and several lambda. Each choice of labels starts new
bets, and the j-th choice gets 1 / (j (j + 1)) of the capital. Because of this, the test also finds
a loss of accuracy that begins late.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TUNINGS: Final = np.array([0.0, 1.0])
#: Bets as fractions of the one with which the smallest g so far would make a factor zero.
_BETS: Final = np.array([0.05, 0.15, 0.35])
#: Share of the first choice's instances that only show how small g can be.
_SHARE_WITHOUT_BETS: Final = 0.2
#: Loss of accuracy, compared with the validation rows, that raises no alarm.
TOLERANCE: Final = 0.01


@dataclass(frozen=True, eq=False)
class LabelBatch:
    """The n instances that one choice was made from, in the order of time.

    All arrays have the shape (n,). `weights` are the w. `label_weights` are the W of labelled
    instances and 0 for the others. `wrong_probability` is the high-cost model's probability that
    the answer is wrong. `is_wrong` is 1 for a labelled instance with a wrong answer, and 0
    otherwise. No q (W - w) can exceed `largest_correction`.
    """

    weights: Floats
    label_weights: Floats
    wrong_probability: Floats
    is_wrong: Floats
    largest_correction: float


def log_growth(batch: LabelBatch, tolerated_rate: float, earlier_weight: float | None) -> Floats:
    """Sum of the logarithms of a batch's factors, of shape (n_lambdas, n_bets).

    `earlier_weight` is the largest weight in earlier batches, or None for the first batch.
    """
    n_without_bets = 0
    if earlier_weight is None:
        n_without_bets = int(np.ceil(_SHARE_WITHOUT_BETS * len(batch.weights)))
        earlier_weight = 0.0
    weights_before = np.concatenate([[earlier_weight], batch.weights[:-1]])
    largest_weight = np.maximum.accumulate(weights_before)[n_without_bets:, None]
    w = batch.weights[n_without_bets:, None]
    W = batch.label_weights[n_without_bets:, None]
    prediction = batch.wrong_probability[n_without_bets:, None] * _TUNINGS
    g = w * (prediction - tolerated_rate)
    g += W * (batch.is_wrong[n_without_bets:, None] - prediction)
    scaled_g = g / (largest_weight * tolerated_rate + batch.largest_correction * _TUNINGS)
    # a bet is lost if g is much smaller than it could be so far
    growth = [np.log1p(np.maximum(bet * scaled_g, -1 + 1e-12)).sum(axis=0) for bet in _BETS]
    return np.stack(growth, axis=1)


def evidence(batches: Iterable[LabelBatch], tolerated_rate: float) -> float:
    """Evidence that more answers are wrong than tolerated; 20 is an alarm at the level 0.05."""
    stakes: list[Floats] = []
    largest_weight: float | None = None
    for choice_number, batch in enumerate(batches, 1):
        growth = np.exp(log_growth(batch, tolerated_rate, largest_weight))
        largest_weight = max(largest_weight or 0.0, float(batch.weights.max()))
        stakes.append(
            np.full(growth.shape, 1 / (choice_number * (choice_number + 1)) / growth.size)
        )
        stakes = [stake * growth for stake in stakes]
    capital = sum(float(stake.sum()) for stake in stakes)
    # the part of the capital that is reserved for later choices
    reserved_capital = 1 / (len(stakes) + 1)
    return capital + reserved_capital
