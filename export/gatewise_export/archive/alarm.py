"""Test by betting, with few labels, whether the accuracy is below the promised one.

Let theta0 be the promised accuracy less a tolerance. For an instance of the archive, let e be 1 if
the answer is right and 0 otherwise, and let m be the probability that it is right by
the high-cost model. The test computes

    g = w lambda (theta0 - m) + L W [(theta0 - e) - lambda (theta0 - m)],

where L is 1 if the instance was labelled, and W = w / c. The mean of g is theta0 less the accuracy,
however good or bad the high-cost model is. While the promise holds, this mean is at most zero, so
each factor 1 + b g has a mean of at most 1 if the bet b is fixed before a label is seen. Ville's
inequality then bounds the product of the factors: it reaches 1 / level with a probability of at
most `level`, even if it is checked after each label (Waudby-Smith and Ramdas, 2023, section 4).

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

_TUNINGS: Final = np.array([0.0, 0.5, 1.0])
#: Bets as fractions of the largest bet with which no factor can become negative.
_BETS: Final = np.array([0.03, 0.08, 0.2, 0.5])
TOLERANCE: Final = 0.01
"""Loss of accuracy, compared with the validation rows, that raises no alarm."""


@dataclass(frozen=True, eq=False)
class LabelBatch:
    """The n instances that one choice was made from.

    All arrays have the shape (n,). `weights` are the w. `label_weights` are the W of labelled
    instances and 0 for the others. `correct_probability` is the high-cost model's probability that
    the answer is right. `is_correct` is 1 for a labelled instance with a right answer, and 0
    otherwise. No W can exceed `largest_weight`.
    """

    weights: Floats
    label_weights: Floats
    correct_probability: Floats
    is_correct: Floats
    largest_weight: float


def log_growth(batch: LabelBatch, bound: float) -> Floats:
    """Sum of the logarithms of a batch's factors, of shape (n_lambdas, n_bets)."""
    w = batch.weights[:, None]
    W = batch.label_weights[:, None]
    model_loss = (bound - batch.correct_probability)[:, None] * _TUNINGS
    label_loss = (bound - batch.is_correct)[:, None] - model_loss
    g = w * model_loss + W * label_loss
    # g is smallest if the label is "right" and the model was sure that the answer is wrong.
    w_max = float(batch.weights.max())
    largest_decrease = batch.largest_weight * ((1 - bound) + _TUNINGS) + w_max * _TUNINGS
    growth = [np.log1p(bet / largest_decrease * g).sum(axis=0) for bet in _BETS]
    return np.stack(growth, axis=1)


def evidence(batches: Iterable[LabelBatch], bound: float) -> float:
    """Evidence that the accuracy is below `bound`; 20 raises an alarm at the level 0.05."""
    stakes: list[Floats] = []
    for choice_number, batch in enumerate(batches, 1):
        growth = np.exp(log_growth(batch, bound))
        stakes.append(
            np.full(growth.shape, 1 / (choice_number * (choice_number + 1)) / growth.size)
        )
        stakes = [stake * growth for stake in stakes]
    capital = sum(float(stake.sum()) for stake in stakes)
    # the part of the capital that is reserved for later choices
    reserved_capital = 1 / (len(stakes) + 1)
    return capital + reserved_capital
