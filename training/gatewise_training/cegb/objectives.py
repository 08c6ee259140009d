"""Learning targets of CEGB's trees: classes, measured values, and rankings of documents.

The classifier, the regressor and the ranker share the growth and the sweep, because all targets
have the same members:

- `n_outputs` is the number of trees per round, and `link` maps outputs to predictions.
- `weight`, (n,), holds the weights of the rows.
- `take` selects rows.
- `base_margins` gives the margins of the best constant model.
- `loss` gives the mean loss of margins, (n, n_outputs).
- `derivatives` gives the gradient and the hessian of the summed loss with respect to the margins.
- `to_prediction_unit` converts trees that were grown on margins above `base_margins` to the unit of
  the predictions.
- `merits` gives a figure of merit for each prediction or ranking, and its weight. The weighted mean
  of the merits is the score.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import Link, labels
from gatewise.models.trees import TreeEnsemble
from gatewise_training.data.metrics import average_precisions_at
from gatewise_training.data.validation_split import Rows
from gatewise_training.learners.losses import (
    HESSIAN_FLOOR,
    log_loss,
    log_loss_gradient,
    log_loss_hessian,
    one_hot,
    prior_margins,
)

Array = NDArray[np.float64]
Outputs = NDArray[np.float32]

#: Number of documents of a query that Average Precision@5 counts.
PRECISION_DEPTH = 5


@dataclass(frozen=True, eq=False)
class ClassTarget:
    """Class labels under the log loss; the merit of a prediction is 1 if it is correct, else 0."""

    y: NDArray[np.int64]  # (n,): class indices
    weight: Array  # (n,): with class weights
    row_weight: Array  # (n,): without class weights, for mean costs
    n_classes: int

    @property
    def n_outputs(self) -> int:
        return 1 if self.n_classes == 2 else self.n_classes

    @property
    def link(self) -> Link:
        return "sigmoid" if self.n_classes == 2 else "softmax"

    def take(self, rows: Rows) -> Self:
        return replace(
            self, y=self.y[rows], weight=self.weight[rows], row_weight=self.row_weight[rows]
        )

    def base_margins(self) -> Array:
        return prior_margins(one_hot(self.y, self.n_classes), self.weight)

    def derivatives(self, margins: Array, *, newton: bool) -> tuple[Array, Array]:
        weight = (self.weight / self.weight.mean())[:, None]
        gradient = weight * log_loss_gradient(margins, one_hot(self.y, self.n_classes))
        if not newton:  # least squares on the negative gradient
            return gradient, np.ones_like(gradient)
        # LightGBM multiplies the hessian of a softmax by M / (M - 1)
        factor = 1.0 if self.n_outputs == 1 else self.n_outputs / (self.n_outputs - 1)
        return gradient, np.maximum(weight * factor * log_loss_hessian(margins), HESSIAN_FLOOR)

    def loss(self, margins: Array) -> float:
        losses = log_loss(margins, one_hot(self.y, self.n_classes))
        return float(np.average(losses, weights=self.weight))

    def to_prediction_unit(self, trees: TreeEnsemble, base_margins: Array) -> TreeEnsemble:
        return replace(trees, base=base_margins.astype(np.float32))

    def merits(self, outputs: Outputs) -> tuple[Array, Array]:
        return (labels(outputs) == self.y).astype(np.float64), self.weight


@dataclass(frozen=True, eq=False)
class ValueTarget:
    """Measured values under half the squared error, in units of their standard deviation.

    A penalty therefore means the same in every unit of the values: a feature of mean price must
    explain twice the penalty as a share of the variance. The score is R².
    """

    y: Array  # (n,)
    weight: Array  # (n,)
    scale: float  # standard deviation of the values of all rows
    n_outputs: ClassVar[int] = 1
    link: ClassVar[Link] = "identity"

    @property
    def row_weight(self) -> Array:
        """Weights for mean costs."""
        return self.weight

    @classmethod
    def standardised(cls, y: Array, weight: Array) -> ValueTarget:
        """Make a target with the standard deviation of the values as scale, or 1 if they agree."""
        return cls(y, weight, float(y.std()) or 1.0)

    def take(self, rows: Rows) -> Self:
        return replace(self, y=self.y[rows], weight=self.weight[rows])

    def base_margins(self) -> Array:
        return np.array([np.average(self.y, weights=self.weight)]) / self.scale

    def derivatives(self, margins: Array, *, newton: bool) -> tuple[Array, Array]:
        weight = (self.weight / self.weight.mean())[:, None]
        # loss w (m - y / s)^2 / 2
        gradient = weight * (margins - self.y[:, None] / self.scale)
        return gradient, np.maximum(weight, HESSIAN_FLOOR) if newton else np.ones_like(gradient)

    def loss(self, margins: Array) -> float:
        residual = margins[:, 0] - self.y / self.scale
        return float(np.average(residual**2, weights=self.weight)) / 2.0

    def to_prediction_unit(self, trees: TreeEnsemble, base_margins: Array) -> TreeEnsemble:
        values_in_unit = (trees.value.astype(np.float64) * self.scale).astype(np.float32)
        return replace(
            trees, value=values_in_unit, base=(base_margins * self.scale).astype(np.float32)
        )

    def merits(self, outputs: Outputs) -> tuple[Array, Array]:
        mean = np.average(self.y, weights=self.weight)
        variance = float(np.average((self.y - mean) ** 2, weights=self.weight))
        squared_error = (outputs[:, 0].astype(np.float64) - self.y) ** 2
        return 1.0 - squared_error / (variance or 1.0), self.weight


@dataclass(frozen=True, eq=False)
class RankingTarget(ValueTarget):
    """Relevance grades of documents under the squared error.

    The merit of a query is the Average Precision@5 of its documents.
    """

    qid: NDArray[np.int64]  # (n,): query of each document; documents of a query are adjacent

    @classmethod
    def of_grades(cls, grade: NDArray[np.int64], qid: NDArray[np.int64]) -> Self:
        """Make a target of relevance grades, where 0 means irrelevant, and queries."""
        y = grade.astype(np.float64)
        return cls(y, np.ones(len(y)), float(y.std()) or 1.0, qid)

    def take(self, rows: Rows) -> Self:
        return replace(self, y=self.y[rows], weight=self.weight[rows], qid=self.qid[rows])

    def merits(self, outputs: Outputs) -> tuple[Array, Array]:
        precisions = average_precisions_at(outputs[:, 0], self.y > 0, self.qid, PRECISION_DEPTH)
        return precisions, np.ones(len(precisions))


#: Any learning target; a RankingTarget is a ValueTarget of grades.
Target = ClassTarget | ValueTarget
