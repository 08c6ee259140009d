"""Test that the system is right as often as promised: by betting, with few labels.

Let theta0 be the promised accuracy less a tolerance. For each instance of the archive, with e = 1
if the answer is right and m the high-cost model's probability that it is,

    g = w lambda (theta0 - m) + L W [(theta0 - e) - lambda (theta0 - m)],

where L is 1 if it was labelled, W = w / c. Its mean is theta0 less the accuracy, whatever the model
is worth: at most zero while the promise holds. So the factors 1 + b g with bets b that are fixed
before a label is seen have means of at most 1, and by Ville's inequality their product reaches
1 / level with a probability of at most `level`, however often one looks (Waudby-Smith and Ramdas,
2023, section 4). Several bets and several lambda share the money; with each choice of labels new
bets begin, the j-th with 1 / (j (j + 1)) of it, so that a loss that begins late is found as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TUNINGS: Final = np.array([0.0, 0.5, 1.0])
#: Bets as parts of the largest one with which no factor can become negative.
_BETS: Final = np.array([0.03, 0.08, 0.2, 0.5])
TOLERANCE: Final = 0.01
"""Loss of accuracy against validation rows that raises no alarm."""


@dataclass(frozen=True, eq=False)
class LabelBatch:
    """Instances of one choice, n of them.

    `weights` are w, `label_weights` W where there is a label and 0 elsewhere, `predicted` the
    high-cost model's probability that the answer is right, `right` 1 or 0 where there is a label;
    each of shape (n,). No W can exceed `largest_weight`.
    """

    weights: Floats
    label_weights: Floats
    predicted: Floats
    right: Floats
    largest_weight: float


def log_growth(batch: LabelBatch, bound: float) -> Floats:
    """Sum of the logarithms of all factors of a batch, by lambda and bet: (lambdas, bets)."""
    w = batch.weights[:, None]
    W = batch.label_weights[:, None]
    model_loss = (bound - batch.predicted)[:, None] * _TUNINGS
    label_loss = (bound - batch.right)[:, None] - model_loss
    g = w * model_loss + W * label_loss
    # The smallest g: a label "right" where the model is sure of the opposite.
    worst = batch.largest_weight * ((1 - bound) + _TUNINGS) + float(batch.weights.max()) * _TUNINGS
    growth = [np.log1p(bet / worst * g).sum(axis=0) for bet in _BETS]
    return np.stack(growth, axis=1)


def evidence(batches: Iterable[LabelBatch], bound: float) -> float:
    """Evidence that the accuracy lies below `bound`; 20 raises an alarm at the level 0.05."""
    stakes: list[Floats] = []
    for number, batch in enumerate(batches, 1):
        growth = np.exp(log_growth(batch, bound))
        stakes.append(np.full(growth.shape, 1 / (number * (number + 1)) / growth.size))
        stakes = [stake * growth for stake in stakes]
    money = sum(float(stake.sum()) for stake in stakes)
    return money + 1 / (len(stakes) + 1)
