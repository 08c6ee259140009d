"""The accuracy-cost curve of a fitted system: operating points, hull, plot.

Points are measured on validation rows; the frontier keeps those that no other point beats in
both cost and accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from gatewise.errors import InputError

__all__ = ["SLACK", "Frontier", "FrontierDisplay", "OperatingPoint"]

SLACK = 1.0
"""Standard errors of the paired accuracy difference that `max_loss` keeps in hand."""


@dataclass(frozen=True)
class OperatingPoint:
    """One setting of a candidate cascade's thresholds, with its expected cost and accuracy.

    Attributes
    ----------
    thresholds : tuple of float or None
        One a stage, which stops where its score is at least the threshold; None never stops.
    cost : float
        Mean cost per instance on validation rows, union accounting.
    accuracy : float
        On validation rows.
    offload_rate : float
        Share of validation instances sent to the high-cost model.
    accuracy_error : float
        Standard error of `accuracy` minus the high-cost model's accuracy (paired).
    agreement : float or None
        Share of the answers that are the high-cost model's.
    trees : float
        Mean number of trees evaluated on the device for a decision.
    nbytes : int
        Bytes of the flat models of the stages that may stop: what a device must hold.
    chain : int
        Which of the system's candidate cascades the thresholds belong to.
    guarantee : dict or None
        The certified bound, its kind, confidence and test; see :func:`.certify`.
    """

    thresholds: tuple[float | None, ...]
    cost: float
    accuracy: float
    offload_rate: float
    accuracy_error: float = 0.0
    agreement: float | None = None
    trees: float = 0.0
    nbytes: int = 0
    chain: int = 0
    guarantee: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class Frontier:
    """Operating points that no other beats in both cost and accuracy, by rising cost.

    Attributes
    ----------
    points : tuple of OperatingPoint
        Rising in cost and in accuracy.
    reference_accuracy : float
        Accuracy on validation rows of the high-cost model (of the last stage where there is
        none); `max_loss` is measured against it.

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

    @classmethod
    def from_points(
        cls, points: Iterable[OperatingPoint], *, reference_accuracy: float
    ) -> Frontier:
        """Keep the points that no other point beats; of equals the first given."""
        ranked = sorted(points, key=lambda p: (p.cost, -p.accuracy))
        kept: list[OperatingPoint] = []
        for point in ranked:
            if not kept or point.accuracy > kept[-1].accuracy + 1e-12:
                kept.append(point)
        if not kept:
            raise InputError("a frontier needs at least one operating point")
        return cls(tuple(kept), reference_accuracy)

    def hull(self) -> Frontier:
        """Get the upper convex hull: what mixing two points at random can reach."""
        kept: list[OperatingPoint] = []
        for p in self.points:
            while len(kept) >= 2 and _slope(kept[-2], p) >= _slope(kept[-2], kept[-1]):
                kept.pop()
            kept.append(p)
        return Frontier(tuple(kept), self.reference_accuracy)

    def at(
        self,
        *,
        budget: float | None = None,
        max_loss: float | None = None,
        offload_rate: float | None = None,
        slack: float = 0.0,
    ) -> OperatingPoint:
        """Pick a point.

        Parameters
        ----------
        budget : float, optional
            The most accurate point whose mean cost is at most this.
        max_loss : float, optional
            The cheapest point whose accuracy is at most this much below the high-cost
            model's; the costliest point if there is none.
        offload_rate : float, optional
            The most accurate point that offloads at most this share.
        slack : float, default 0
            For `max_loss`: standard errors of the paired difference to keep in hand.

        Returns
        -------
        OperatingPoint

        Raises
        ------
        InputError
            Unless exactly one of the three is given, or if no point is within the budget
            or the rate.
        """
        given = [v for v in (budget, max_loss, offload_rate) if v is not None]
        if len(given) != 1:
            raise InputError("give exactly one of budget, max_loss and offload_rate")
        if not np.isfinite(given[0]) or given[0] < 0:
            raise InputError(
                f"budget, max_loss and offload_rate must be at least 0, not {given[0]}"
            )
        if max_loss is not None:
            floor = self.reference_accuracy - max_loss - 1e-12
            good = [p for p in self.points if p.accuracy - slack * p.accuracy_error >= floor]
            return good[0] if good else self.points[-1]
        if budget is not None:
            good = [p for p in self.points if p.cost <= budget + 1e-9]
            if not good:
                raise InputError(
                    f"no operating point costs at most {budget:g}; "
                    f"the cheapest costs {self.points[0].cost:g}"
                )
            return good[-1]
        good = [p for p in self.points if p.offload_rate <= offload_rate + 1e-12]  # type: ignore[operator]
        if not good:
            least = min(p.offload_rate for p in self.points)
            raise InputError(
                f"no operating point offloads at most {offload_rate:g}; least {least:g}"
            )
        return good[-1]

    def to_frame(self) -> Any:
        """Make a pandas DataFrame with a row a point; `hull` marks the convex hull."""
        import pandas as pd

        hull = {id(p) for p in self.hull().points}
        rows = [asdict(p) | {"hull": id(p) in hull} for p in self.points]
        return pd.DataFrame(rows)


def _slope(a: OperatingPoint, b: OperatingPoint) -> float:
    return (b.accuracy - a.accuracy) / max(b.cost - a.cost, 1e-12)


class FrontierDisplay:
    """Plot of accuracy against cost, of one system or several.

    Examples
    --------
    ``FrontierDisplay.from_estimator(system, name="staged").ax_.figure.savefig("f.png")``
    draws one; pass ``ax=display.ax_`` to put the next system into the same plot.
    """

    def __init__(self, frontier: Frontier, *, name: str = "") -> None:
        self.frontier = frontier
        self.name = name

    @classmethod
    def from_estimator(
        cls, system: Any, *, name: str | None = None, ax: Any = None
    ) -> FrontierDisplay:
        """Plot the frontier of a fitted system.

        Parameters
        ----------
        system : a fitted cascade or budgeted model
        name : str, optional
            Its label; the class's name by default.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        FrontierDisplay
            With `ax_` and `figure_`.
        """
        display = cls(
            system.frontier_,
            name=type(system).__name__ if name is None else name,
        )
        return display.plot(ax=ax, active=system.operating_point_)

    def plot(self, *, ax: Any = None, active: OperatingPoint | None = None) -> FrontierDisplay:
        """Draw points faint, the hull as a line, the active operating point as a ring."""
        if ax is None:
            from matplotlib.figure import Figure

            ax = Figure(figsize=(6.4, 4.2), layout="constrained").subplots()
        points, hull = self.frontier.points, self.frontier.hull().points
        line = ax.plot(*_xy(hull), marker=".", label=self.name)[0]
        ax.plot(*_xy(points), ".", alpha=0.3, color=line.get_color())
        if active is not None:
            ring = {"fillstyle": "none", "markersize": 11, "markeredgewidth": 1.8}
            ax.plot([active.cost], [active.accuracy], "o", color=line.get_color(), **ring)
        ax.set(xlabel="mean cost per instance", ylabel="accuracy on validation data")
        ax.grid(alpha=0.25)
        ax.legend(loc="lower right", frameon=False)
        self.ax_ = ax
        self.figure_ = ax.figure
        return self


def _xy(points: Sequence[OperatingPoint]) -> tuple[list[float], list[float]]:
    return [p.cost for p in points], [p.accuracy for p in points]
