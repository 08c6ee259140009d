"""The accuracy-cost curve of a fitted system: operating points, hull, choice of a point.

Points are measured on validation rows. A point is on the frontier unless another point is better in
both cost and accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from gatewise.errors import InputError, TooLargeError
from gatewise.operating_point import OperatingPoint
from gatewise_training.operating_points.class_figures import ClassBound, ClassBounds, split_loss
from gatewise_training.operating_points.cost_cap import points_within_cost
from gatewise_training.operating_points.undominated_points import select_hull, select_undominated

#: Standard errors of accuracy that a point keeps between its loss and `max_loss`, because the best
#: of many points looks better on validation rows than it is.
DEFAULT_SLACK = 1.0

#: Largest rise of the cost, as a share, that is accepted for a gain of a standard error.
SMALL_COST_RISE = 0.02


class Choice(NamedTuple):
    """A point, and the reason for its choice."""

    point: OperatingPoint
    reason: str


class LossError(InputError):
    """No operating point is within a loss; `smallest_loss` is the smallest loss of the points."""

    def __init__(self, max_loss: float, smallest_loss: float) -> None:
        super().__init__(
            f"no operating point loses at most {max_loss:g}; the smallest loss is "
            f"{smallest_loss:.4g}"
        )
        self.smallest_loss = smallest_loss


@dataclass(frozen=True, repr=False)
class Frontier:
    """Operating points that no other point beats in both cost and accuracy, by rising cost.

    Together with :attr:`off_curve_points` they form a surface of accuracy, cost, offload rate and
    bytes.

    Attributes
    ----------
    points : tuple of OperatingPoint
        Points by rising cost and accuracy, or weighted accuracy if classes have weights.
    reference_accuracy : float
        Accuracy of the reference on validation rows. The reference is the high-cost model or, if
        there is none, the last stage. `max_loss` is measured against this accuracy, or against
        `reference_weighted_accuracy`.
    off_curve_points : tuple of OperatingPoint
        Points off the curve that offload less, are smaller, or are better for some class. Only
        :meth:`at` with `offload_rate`, `max_bytes`, bounds on classes or, if rows have groups,
        `max_loss` picks them.
    classes : tuple
        The labels, in the order of a point's `recall`.
    class_rows : tuple of int
        Number of validation rows of each class.
    reference_weighted_accuracy : float or None
        Weighted accuracy of the reference, if classes have weights.
    reference_recall : tuple of float or None
        Recall of the reference by class.

    Examples
    --------
    >>> cheap = OperatingPoint((0.5,), cost=2.0, accuracy=0.90, offload_rate=0.1)
    >>> good = OperatingPoint((2.0,), cost=6.0, accuracy=0.97, offload_rate=0.6)
    >>> bad = OperatingPoint((1.0,), cost=7.0, accuracy=0.93, offload_rate=0.7)
    >>> frontier = Frontier.from_points([good, cheap, bad], reference_accuracy=0.98)
    >>> len(frontier.points)
    2
    >>> frontier.at(budget=5.0).accuracy
    0.9
    >>> frontier.at(max_loss=0.02).cost
    6.0
    """

    points: tuple[OperatingPoint, ...]
    reference_accuracy: float
    off_curve_points: tuple[OperatingPoint, ...] = ()
    classes: tuple[Any, ...] = ()
    class_rows: tuple[int, ...] = ()
    reference_weighted_accuracy: float | None = None
    reference_recall: tuple[float | None, ...] | None = None

    @classmethod
    def from_points(
        cls, points: Iterable[OperatingPoint], *, reference_accuracy: float, **other_fields: Any
    ) -> Frontier:
        """Make the frontier of `points`; `reference_accuracy` and `other_fields` are its fields."""
        curve_points = select_undominated(points)
        if not curve_points:
            raise InputError("a frontier needs at least one operating point")
        return cls(tuple(curve_points), reference_accuracy, **other_fields)

    def __repr__(self) -> str:
        cheapest = self.points[0]
        costliest = self.points[-1]
        accuracy_name = "weighted accuracy" if self.is_weighted else "accuracy"
        n_others = len(self.off_curve_points)
        off_curve_text = f", {n_others} other{'s' * (n_others > 1)}" if n_others else ""
        return (
            f"Frontier({len(self.points)} points: cost {cheapest.cost:.4g} to "
            f"{costliest.cost:.4g}, {accuracy_name} {cheapest.effective_accuracy:.4f} to "
            f"{costliest.effective_accuracy:.4f}; "
            f"reference {self.reference_effective_accuracy:.4f}{off_curve_text})"
        )

    @property
    def is_weighted(self) -> bool:
        """Whether accuracies are compared under class weights."""
        return self.points[0].weighted_accuracy is not None

    @property
    def reference_effective_accuracy(self) -> float:
        """Accuracy or weighted accuracy of the reference, from which losses are measured."""
        weighted_accuracy = self.reference_weighted_accuracy
        return self.reference_accuracy if weighted_accuracy is None else weighted_accuracy

    @property
    def all_points(self) -> tuple[OperatingPoint, ...]:
        """Points of the curve, then the points off it."""
        return (*self.points, *self.off_curve_points)

    def with_class_points(
        self, points: Iterable[OperatingPoint], bounds: ClassBounds | None
    ) -> Frontier:
        """Add the `points` off the curve that are better for some class or for the `bounds`."""
        points_with_recall = [point for point in points if point.recall is not None]
        new_points = select_undominated(
            points_with_recall, lambda point: point.balanced_accuracy or 0.0
        )
        if bounds:
            bounds = bounds.as_recalls(self.reference_recall)
            for bound in bounds.as_list():
                new_points += select_undominated(
                    points_with_recall, partial(_get_bounded_share, bound)
                )
            for slack in (0.0, DEFAULT_SLACK):
                new_points += select_undominated(
                    bounds.select_inside(points_with_recall, self.class_rows, slack)
                )
        return self._with_off_curve_points(new_points)

    def with_small_points(self, points: Iterable[OperatingPoint]) -> Frontier:
        """Add the best `points` up to each of several sizes, which grow by half."""
        points = sorted(points, key=lambda point: point.bytes)
        small_points: list[OperatingPoint] = []
        max_bytes = points[0].bytes if points else 0
        largest_bytes = max(point.bytes for point in self.points)
        while 0 < max_bytes < largest_bytes:
            small_points += select_undominated(
                point for point in points if point.bytes <= max_bytes
            )
            max_bytes += max(max_bytes // 2, 1)
        return self._with_off_curve_points(small_points)

    def with_less_offload(self, points: Iterable[OperatingPoint]) -> Frontier:
        """Add the `points` on the curve of accuracy against offload rate."""
        offload_rate = attrgetter("offload_rate")
        return self._with_off_curve_points(select_undominated(points, price=offload_rate))

    def _with_off_curve_points(self, points: Iterable[OperatingPoint]) -> Frontier:
        old_points = set(self.all_points)
        new_points = dict.fromkeys(point for point in points if point not in old_points)
        return replace(self, off_curve_points=(*self.off_curve_points, *new_points))

    def within_bytes(self, max_bytes: int) -> Frontier:
        """Get the frontier of the points with at most `max_bytes`, or raise TooLargeError."""
        if not isinstance(max_bytes, Integral) or max_bytes < 1:
            raise InputError(f"max_bytes must be a whole number of at least 1, not {max_bytes!r}")
        small_points = [point for point in self.all_points if point.bytes <= max_bytes]
        if not small_points:
            smallest_bytes = min(point.bytes for point in self.all_points)
            hint = "allow more, or fit with this max_bytes="
            raise TooLargeError("no operating point", max_bytes, smallest_bytes, hint)
        return self._with_points(small_points)

    def within_cost(self, max_instance_cost: float) -> Frontier:
        """Get the frontier of the points at which no instance costs above `max_instance_cost`."""
        return self._with_points(points_within_cost(self.all_points, max_instance_cost))

    def _with_points(self, points: Sequence[OperatingPoint]) -> Frontier:
        """Get the frontier of some of the points."""
        curve_points = dict.fromkeys(select_undominated(points))
        off_curve_points = tuple(point for point in points if point not in curve_points)
        return replace(self, points=tuple(curve_points), off_curve_points=off_curve_points)

    def hull(self) -> Frontier:
        """Get the upper convex hull, which random mixtures of two points can reach."""
        return replace(self, points=tuple(select_hull(self.points)))

    def at(
        self,
        *,
        budget: float | None = None,
        max_loss: float | Mapping[Any, float] | None = None,
        offload_rate: float | None = None,
        min_recall: Mapping[Any, float] | None = None,
        min_precision: Mapping[Any, float] | None = None,
        max_bytes: int | None = None,
        slack: float = 0.0,
    ) -> OperatingPoint:
        """Pick the best point for a goal, among the points that keep all bounds.

        Parameters
        ----------
        budget : float, optional
            Pick the most accurate point with at most this mean cost.
        max_loss : float or mapping of class label to float, optional
            Pick the cheapest point of the hull with an accuracy of at most this much below the
            high-cost model's. The next point of the hull is picked instead if it costs at most 2 %
            more and is more accurate by a standard error. If points are within the loss, but none
            by `slack` errors, pick the most accurate one. A mapping bounds the loss of recall of
            each class and, under the key None, the loss of accuracy. A budget or an offload rate
            then picks among the points that keep these bounds.
        offload_rate : float, optional
            Pick the most accurate point that offloads at most this share, and among equally
            accurate points the cheapest. Give 0 for devices without a link.
        min_recall, min_precision : mapping of class label to float, optional
            Pick only among points that keep these shares.
        max_bytes : int, optional
            Pick only among points that take at most this many bytes on a device.
        slack : float, default 0
            Number of standard errors between a point's figure and its bound. The error is
            `accuracy_error` for `max_loss`, and the error of the share for recall and precision. If
            no point keeps the bounds on classes by that many errors, 0 is used for these bounds.

        Returns
        -------
        OperatingPoint

        Raises
        ------
        InputError
            Unless exactly one of `budget`, `max_loss` and `offload_rate` is given, or if no point
            is within it or keeps the shares.
        TooLargeError
            If no point is within `max_bytes`.
        """
        has_other_goal = budget is not None or offload_rate is not None
        total_loss, losses = split_loss(max_loss, has_other_goal=has_other_goal)
        bounds = ClassBounds.from_mappings(self.classes, min_recall, min_precision, losses)
        goal = {"budget": budget, "max_loss": total_loss, "offload_rate": offload_rate}
        return self.choose(bounds, max_bytes, slack=slack, **goal).point

    def choose(
        self,
        bounds: ClassBounds | None,
        max_bytes: int | None = None,
        /,
        *,
        slack: float = 0.0,
        **goal: float | None,
    ) -> Choice:
        """Pick a point as :meth:`at` does; return it with the reason.

        Parameters
        ----------
        bounds : ClassBounds or None
            Bounds on classes.
        max_bytes : int, optional
            Largest number of bytes on a device.
        slack : float, default 0
            Standard errors between a figure and its bound.
        **goal
            Exactly one of `budget`, `max_loss` and `offload_rate`.
        """
        if max_bytes is not None:
            return self.within_bytes(max_bytes).choose(bounds, slack=slack, **goal)
        kind, limit = read_goal(goal)
        if not bounds:
            return self._choose_by_goal(kind, limit, slack)
        bounded_frontier = self._with_points(self.points_within(bounds, slack))
        try:
            point, reason = bounded_frontier._choose_by_goal(kind, limit, slack)
        except LossError:
            raise
        except InputError as error:
            raise InputError(f"{error} (of those that keep {bounds.as_text()})") from None
        return Choice(point, f"{reason}, of those that keep {bounds.as_text()}")

    def _choose_by_goal(self, kind: str, limit: float, slack: float) -> Choice:
        if kind == "max_loss":
            return self._choose_within_loss(limit, slack)
        if kind == "budget":
            return self._choose_within_budget(limit)
        return self._choose_within_offload_rate(limit)

    def _choose_within_budget(self, budget: float) -> Choice:
        # 1e-9 and 1e-12 here and below allow for rounding
        affordable_points = [point for point in self.points if point.cost <= budget + 1e-9]
        if not affordable_points:
            raise InputError(
                f"no operating point costs at most {budget:g}; "
                f"the cheapest costs {self.points[0].cost:g}"
            )
        return Choice(
            affordable_points[-1], f"the most accurate point that costs at most {budget:g}"
        )

    def _choose_within_offload_rate(self, offload_rate: float) -> Choice:
        """Choose the most accurate point within an offload rate, and the cheapest of equals."""
        points_within_rate = [
            point for point in self.all_points if point.offload_rate <= offload_rate + 1e-12
        ]
        if not points_within_rate:
            lowest_rate = min(point.offload_rate for point in self.all_points)
            raise InputError(
                f"no operating point offloads at most {offload_rate:g}; the lowest rate is "
                f"{lowest_rate:g}"
            )
        point = max(points_within_rate, key=lambda point: (point.effective_accuracy, -point.cost))
        return Choice(point, f"the most accurate point that offloads at most {offload_rate:g}")

    def _choose_within_loss(self, max_loss: float, slack: float) -> Choice:
        """Choose the cheapest point within a loss, preferably from the hull."""
        lowest_accuracy = self.reference_effective_accuracy - max_loss - 1e-12

        def is_within(point: OperatingPoint) -> bool:
            return point.effective_accuracy - slack * point.accuracy_error >= lowest_accuracy

        hull_points = list(filter(is_within, self.hull().points))
        if hull_points:
            return _choose_on_hull(hull_points, max_loss)
        # if no point of the hull is within the loss, use a point off the hull
        safe_points = list(filter(is_within, self.points))
        # if rows have groups, a safer point may be off the curve, such as one that never loses
        if not safe_points and self.points[-1].validation_groups is not None:
            safe_points = sorted(
                filter(is_within, self.off_curve_points), key=lambda point: point.cost
            )
        if safe_points:
            return Choice(safe_points[0], f"the cheapest point within a loss of {max_loss:g}")
        most_accurate = self.points[-1]
        if most_accurate.effective_accuracy < lowest_accuracy:
            raise LossError(
                max_loss, self.reference_effective_accuracy - most_accurate.effective_accuracy
            )
        reason = f"the most accurate point, as none keeps a loss of {max_loss:g} for certain"
        return Choice(most_accurate, reason)

    def points_within(self, bounds: ClassBounds, slack: float = 0.0) -> list[OperatingPoint]:
        """List the points that keep `bounds` by `slack` standard errors, or else by 0."""
        bounds.check_measured(self.points[0])
        recall_bounds = bounds.as_recalls(self.reference_recall)
        for smallest_distance in (slack, 0.0):
            points = recall_bounds.select_inside(
                self.all_points, self.class_rows, smallest_distance
            )
            if points:
                return points
        raise InputError(
            f"no operating point keeps {bounds.as_text()}: on validation rows "
            f"{recall_bounds.best_shares_text(self.all_points)}; give a looser bound, or fit with "
            "the class_weight 'balanced'"
        )

    def to_frame(self) -> Any:
        """Make a pandas DataFrame with a row for each point; points off the curve are last.

        `hull` marks the convex hull and `on_curve` the points of the curve. Recall and precision
        have one column per class, such as ``recall fault``.
        """
        import pandas as pd

        hull_ids = {id(point) for point in self.hull().points}
        rows: list[dict[str, Any]] = []
        for point in self.all_points:
            row = msgspec.structs.asdict(point) | {
                "hull": id(point) in hull_ids,
                "on_curve": len(rows) < len(self.points),
            }
            for kind in ("recall", "precision"):
                shares = row.pop(kind) or ()
                pairs = zip(self.classes, shares, strict=False)
                row |= {f"{kind} {label}": share for label, share in pairs}
            row["thresholds"] = row.pop("thresholds")  # the last column, because it is the widest
            rows.append(row)
        return pd.DataFrame(rows)


def read_goal(goal: Mapping[str, float | None]) -> tuple[str, float]:
    """Get the kind and the limit of the only goal that is not None, or raise InputError."""
    set_goals = {kind: limit for kind, limit in goal.items() if limit is not None}
    if len(set_goals) != 1:
        raise InputError("give exactly one of budget, max_loss and offload_rate")
    ((kind, limit),) = set_goals.items()
    if not isinstance(limit, Real) or not 0 <= limit < math.inf:
        raise InputError(f"{kind} must be a number of at least 0, not {limit!r}")
    if kind != "budget" and limit > 1:
        raise InputError(f"{kind} is a share, from 0 to 1, not {limit:g}: 5 % is 0.05")
    return kind, float(limit)


def _get_bounded_share(bound: ClassBound, point: OperatingPoint) -> float:
    """Get the recall or precision that a bound limits; 0 if it is undefined."""
    return bound.share_at(point) or 0.0


def _choose_on_hull(hull_points: Sequence[OperatingPoint], max_loss: float) -> Choice:
    """Choose the first hull point within the loss, or the second if it costs little more."""
    cheapest = hull_points[0]
    reason = "the cheapest point of the hull"
    if max_loss < 1.0:  # otherwise only losses of classes are bounded
        reason += f" within a loss of {max_loss:g}"
    if len(hull_points) == 1:
        return Choice(cheapest, reason)
    next_point = hull_points[1]
    cost_rise = next_point.cost - cheapest.cost
    accuracy_gain = next_point.effective_accuracy - cheapest.effective_accuracy
    if cost_rise > SMALL_COST_RISE * cheapest.cost or accuracy_gain < next_point.accuracy_error:
        return Choice(cheapest, reason)
    cost_rise_share = cost_rise / cheapest.cost if cheapest.cost else 0.0
    return Choice(
        next_point,
        f"the point after {reason}: it costs {cost_rise_share:.1%} more and gains "
        f"{accuracy_gain:.4f}",
    )
