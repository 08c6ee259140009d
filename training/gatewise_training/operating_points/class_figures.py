"""Figures by class: recall, precision, probability scores; class weights and bounds on classes.

Accuracy hides rare classes. If 2 % of the rows are faults, a model that never finds a fault is
right on 98 % of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.cells import UNKNOWN_CLASS, class_indices
from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint

#: A share for each class; None if it is undefined or has no bound.
Shares = tuple[float | None, ...]

#: Smallest probability in a log loss, as in scikit-learn.
SMALLEST_PROBABILITY = float(np.finfo(np.float64).eps)

#: A class is rare if its share of the rows is below this part of an equal share.
RARE_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class ExitAnswers:
    """Answers of a cascade's exits on labelled rows, and the scores of their probabilities."""

    truth: NDArray[np.int64]  # (n,): class indices
    labels: NDArray[np.int64]  # (n_exits, n): class indices
    n_classes: int
    log_losses: NDArray[np.float64] | None = None  # (n_exits, n); NaN without probabilities
    brier_scores: NDArray[np.float64] | None = None  # (n_exits, n)

    @classmethod
    def from_probabilities(
        cls,
        truth: NDArray[np.int64],
        labels: NDArray[np.int64],
        n_classes: int,
        probabilities: Sequence[NDArray[np.float64] | None],
    ) -> Self:
        """Score the probabilities of each exit, (n, n_classes), or None if it gives labels only."""
        rows = np.arange(len(truth))
        log_losses = np.full(labels.shape, np.nan)
        brier_scores = np.full(labels.shape, np.nan)
        for exit_number, exit_probabilities in enumerate(probabilities):
            if exit_probabilities is None:
                continue
            truth_probability = exit_probabilities[rows, truth]
            log_losses[exit_number] = -np.log(np.clip(truth_probability, SMALLEST_PROBABILITY, 1.0))
            # sum_c (p_c - [c = truth])^2, halved for two classes as in scikit-learn
            scale = 0.5 if n_classes == 2 else 1.0
            brier_scores[exit_number] = scale * (
                (exit_probabilities**2).sum(axis=1) - 2 * truth_probability + 1
            )
        return cls(truth, labels, n_classes, log_losses, brier_scores)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Self:
        """Get the same answers on some of the rows."""
        log_losses = self.log_losses
        brier_scores = self.brier_scores
        return replace(
            self,
            truth=self.truth[rows],
            labels=self.labels[:, rows],
            log_losses=None if log_losses is None else log_losses[:, rows],
            brier_scores=None if brier_scores is None else brier_scores[:, rows],
        )

    def figures(self, exits: NDArray[np.int64], weights: NDArray[np.float64]) -> dict[str, Any]:
        """Compute the figures of rows that leave at `exits`, named as fields of OperatingPoint."""
        rows = np.arange(len(exits))
        answers = self.labels[exits, rows]
        is_right = answers == self.truth
        n_classes = self.n_classes
        weight_right = np.bincount(self.truth[is_right], weights[is_right], n_classes)
        recall = _compute_ratios(weight_right, np.bincount(self.truth, weights, n_classes))
        precision = _compute_ratios(weight_right, np.bincount(answers, weights, n_classes))
        recalls = [share for share in recall if share is not None]
        figures: dict[str, Any] = {
            "recall": recall,
            "precision": precision,
            "balanced_accuracy": sum(recalls) / len(recalls),
        }
        for name, values in (("log_loss", self.log_losses), ("brier_score", self.brier_scores)):
            if values is not None:
                mean = float(np.average(values[exits, rows], weights=weights))
                figures[name] = None if math.isnan(mean) else mean
        return figures

    def class_rows(self) -> tuple[int, ...]:
        """Count the rows of each class."""
        return tuple(np.bincount(self.truth, minlength=self.n_classes).tolist())


def _compute_ratios(part_weights: NDArray[Any], total_weights: NDArray[Any]) -> Shares:
    """Divide weights by the totals of their classes; None for a class without weight."""
    return tuple(
        min(part_weight / total_weight, 1.0) if total_weight > 0 else None  # 1.0 despite rounding
        for part_weight, total_weight in zip(
            part_weights.tolist(), total_weights.tolist(), strict=True
        )
    )


def class_weights(
    weights: Mapping[Any, float] | str | None, y: NDArray[np.int64], classes: NDArray[Any]
) -> NDArray[np.float64] | None:
    """Get the weight of each class, (n_classes,); classes missing from a dict have weight 1."""
    if weights is None:
        return None
    if isinstance(weights, str):
        if weights != "balanced":
            raise InputError(f"class_weight must be a dict or 'balanced', not {weights!r}")
        return len(y) / (len(classes) * np.bincount(y, minlength=len(classes)))
    # a weight of 0 would leave a class out
    dict_weights = values_by_class("class_weight", weights, tuple(classes.tolist()), 1e-9, math.inf)
    return np.array([1.0 if weight is None else weight for weight in dict_weights])


def values_by_class(
    name: str,
    value_of_class: Mapping[Any, float] | None,
    classes: Sequence[Any],
    low: float,
    high: float,
) -> Shares:
    """List a setting's values in the order of the classes, which `class_indices` finds by keys."""
    if not isinstance(value_of_class, Mapping | None):
        raise InputError(f"{name}: give a dict by class, not {value_of_class!r}")
    values: list[float | None] = [None] * len(classes)
    value_of_class = value_of_class or {}
    problems = []
    for (label, value), class_index in zip(
        value_of_class.items(), class_indices(value_of_class, classes).tolist(), strict=True
    ):
        label_text = str(label)
        if class_index == UNKNOWN_CLASS:
            class_list = ", ".join(map(str, classes[:8])) + ", ..." * (len(classes) > 8)
            problems.append(f"there is no class {label_text!r}; there are {class_list}")
            continue
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not low <= value <= high or value == math.inf:
            limits = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
            problems.append(f"{label_text!r} has {value!r}, which must be a number {limits}")
            continue
        values[class_index] = float(value)
    if problems:
        raise InputError(f"{name}: {'; '.join(problems)}")
    return tuple(values)


def split_loss(
    max_loss: float | Mapping[Any, float] | None, *, has_other_goal: bool
) -> tuple[float | None, Mapping[Any, float] | None]:
    """Split a `max_loss` into the bound on all rows, under the key None, and bounds by class.

    Without that key only the bounds by class apply, and the bound on all rows is 1.
    """
    if not isinstance(max_loss, Mapping):
        return max_loss, None
    losses = {label: loss for label, loss in max_loss.items() if label is not None}
    if has_other_goal and None in max_loss:
        raise InputError(
            "max_loss: with another goal, leave out the key None (the loss of all rows)"
        )
    if not losses:
        raise InputError("max_loss: a dict needs a class, such as {'fault': 0.05}")
    total_loss = max_loss.get(None, 1.0)
    if not isinstance(total_loss, Real) or not 0 <= total_loss < math.inf:
        raise InputError(
            f"max_loss: the value of None (the loss of all rows) is {total_loss!r}; it must be a "
            "number of at least 0"
        )
    return (None if has_other_goal else total_loss), losses


class ClassBound(NamedTuple):
    """A bound on the recall, the precision or the loss of recall of one class."""

    kind: Literal["recall", "precision", "loss"]
    class_index: int
    limit: float  # the smallest recall or precision, or the largest loss

    def share_at(self, point: OperatingPoint) -> float | None:
        """Get the recall or precision that this bounds at a point; None if it is undefined."""
        shares = point.precision if self.kind == "precision" else point.recall
        if shares is None:
            raise InputError(
                "these operating points have no recall and precision: fit and pack again"
            )
        return shares[self.class_index]


@dataclass(frozen=True)
class ClassBounds:
    """Smallest recall, smallest precision and largest loss of recall of each class.

    The loss is measured against the high-cost model.
    """

    classes: tuple[Any, ...]
    min_recall: Shares
    min_precision: Shares
    max_loss: Shares = ()

    @classmethod
    def from_mappings(
        cls,
        classes: Sequence[Any],
        min_recall: Mapping[Any, float] | None = None,
        min_precision: Mapping[Any, float] | None = None,
        max_loss: Mapping[Any, float] | None = None,
    ) -> Self:
        """Read bounds from dicts by class label; a share of 0 is no bound.

        >>> bounds = ClassBounds.from_mappings(("fault", "ok"), {"fault": 0.9})
        >>> bounds.min_recall, bool(bounds), bounds.by_name()
        ((0.9, None), True, {'min_recall fault': 0.9})
        """
        recall_bounds, precision_bounds = (
            tuple(
                bound or None for bound in values_by_class(name, bound_of_class, classes, 0.0, 1.0)
            )
            for name, bound_of_class in (
                ("min_recall", min_recall),
                ("min_precision", min_precision),
            )
        )
        loss_bounds = values_by_class("max_loss", max_loss, classes, 0.0, 1.0) if max_loss else ()
        return cls(tuple(classes), recall_bounds, precision_bounds, loss_bounds)

    def __bool__(self) -> bool:
        return bool(self.as_list())

    def as_list(self) -> list[ClassBound]:
        """List the bounds on recall, then those on precision and on losses."""
        limits_by_kind: dict[Literal["recall", "precision", "loss"], Shares] = {
            "recall": self.min_recall,
            "precision": self.min_precision,
            "loss": self.max_loss,
        }
        return [
            ClassBound(kind, class_index, limit)
            for kind, limits in limits_by_kind.items()
            for class_index, limit in enumerate(limits)
            if limit is not None
        ]

    def by_name(self) -> dict[str, float]:
        """Get the limits by the names of their bounds, such as ``min_recall fault``."""
        return {self.name_of(bound): bound.limit for bound in self.as_list()}

    def name_of(self, bound: ClassBound) -> str:
        """Get the name of a bound, such as ``min_recall fault``."""
        direction = "max" if bound.kind == "loss" else "min"
        return f"{direction}_{bound.kind} {self.classes[bound.class_index]}"

    def as_recalls(self, reference: Shares | None) -> Self:
        """Replace bounds on losses by bounds on recall, given the recalls of the reference."""
        if not self.max_loss:
            return self
        if reference is None:
            raise InputError(
                "max_loss by class needs the high-cost model's recall: fit the system again"
            )
        min_recall = [
            recall
            if loss is None or reference_recall is None
            else max(recall or 0.0, reference_recall - loss, 0.0) or None
            for recall, loss, reference_recall in zip(
                self.min_recall, self.max_loss, reference, strict=True
            )
        ]
        return replace(self, min_recall=tuple(min_recall), max_loss=())

    def check_measured(self, point: OperatingPoint) -> None:
        """Raise InputError for a bound on the recall of a class without validation rows."""
        names = [
            self.name_of(bound)
            for bound in self.as_list()
            if bound.kind != "precision" and bound.share_at(point) is None
        ]
        if names:
            raise InputError(
                f"{', '.join(names)}: no validation row has this class, so that its recall is "
                "unknown; give validation rows of it, or leave out the bound"
            )

    def as_text(self) -> str:
        """Write the bounds as text, for an error message."""
        return ", ".join(f"{name}={bound:g}" for name, bound in self.by_name().items())

    def distance(self, point: OperatingPoint, class_rows: Sequence[int]) -> float:
        """Compute a point's distance to its nearest bound in standard errors; negative outside."""
        smallest_distance = math.inf
        for bound in self.as_list():
            share = bound.share_at(point)
            if share is None:
                continue  # no such rows or answers, so none is wrong
            n_rows = float(class_rows[bound.class_index])
            if bound.kind == "precision" and share:
                # number of answers with the class: rows * recall / precision
                recall = bound._replace(kind="recall").share_at(point) or 0.0
                n_rows *= recall / share
            standard_error = math.sqrt(bound.limit * (1 - bound.limit) / max(n_rows, 1.0))
            # 1e-12 keeps a share inside that equals the limit up to rounding
            distance = (share - bound.limit + 1e-12) / max(standard_error, 1e-9)
            smallest_distance = min(smallest_distance, distance)
        return smallest_distance

    def select_inside(
        self, points: Iterable[OperatingPoint], class_rows: Sequence[int], distance: float
    ) -> list[OperatingPoint]:
        """Select the points with at least this :meth:`distance` inside the bounds."""
        return [point for point in points if self.distance(point, class_rows) >= distance]

    def best_shares_text(self, points: Sequence[OperatingPoint]) -> str:
        """Write which bounds no point reaches, with the highest shares, for an error message."""
        texts = []
        for bound in self.as_list():
            shares = [bound.share_at(point) for point in points]
            highest_share = max((share for share in shares if share is not None), default=0.0)
            if highest_share < bound.limit:
                label = str(self.classes[bound.class_index])
                texts.append(f"{bound.kind} of {label!r} reaches {highest_share:.3f} at most")
        return "; ".join(texts) or "each bound is reached, but no point reaches all of them"


def is_rare(shares: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Get a mask of the rare classes, by their shares of the rows."""
    return (shares > 0) & (shares < RARE_SHARE / len(shares))


def tuning_class_weights(
    shares: NDArray[np.float64], bounds: ClassBounds | None
) -> list[NDArray[np.float64]]:
    """List class weights, (n_classes,) each, for additional tuning of thresholds.

    Thresholds that are tuned for accuracy alone suit rare and bounded classes badly.
    """
    # with the weight (1 - share) / share, a class counts as much as all others together
    is_balanceable = (shares > 0) & (shares < 1)
    balancing_weights = np.where(is_balanceable, (1 - shares) / np.maximum(shares, 1e-12), 1.0)
    weightings = []
    if is_rare(shares).any():
        balanced_weights = np.where(shares > 0, 1 / np.maximum(shares * len(shares), 1e-12), 1.0)
        weightings += [np.sqrt(balanced_weights), balanced_weights]
    for bound in bounds.as_list() if bounds else ():
        balancing_weight = float(balancing_weights[bound.class_index])
        # weights above and below the balance give points on both sides of it
        weights_of_class = [factor * balancing_weight for factor in (0.3, 1.0, 3.0)]
        if bound.kind == "precision":  # which rises with the accuracy of the other classes
            weights_of_class = [0.3 / balancing_weight, 0.3]
        for weight in weights_of_class:
            weighting = np.ones(len(shares))
            weighting[bound.class_index] = weight
            weightings.append(weighting)
    return weightings


def bound_masks(
    answers: ExitAnswers, exits: NDArray[np.int64], bound: ClassBound
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Get masks of the rows that a bound on recall or precision counts, and of the wrong ones."""
    is_of_class = answers.truth == bound.class_index
    is_answered = answers.labels[exits, np.arange(len(exits))] == bound.class_index
    is_counted = is_of_class if bound.kind == "recall" else is_answered
    return is_counted, is_counted & ~(is_of_class & is_answered)
