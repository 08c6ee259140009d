"""One operating point of a system: thresholds, and what they come to on validation rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.console import html_table
from gatewise.errors import InputError
from gatewise.formats import threshold


@dataclass(frozen=True, repr=False)
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
        Standard error of `accuracy` minus the high-cost model's accuracy (paired); where rows have
        groups, how much more new groups may lose (:mod:`.group_losses`).
    agreement : float or None
        Share of the answers that are the high-cost model's.
    trees : float
        Mean number of trees evaluated on the device for a decision.
    nbytes : int
        Bytes of the flat models of the stages that may stop: what a device must hold.
    bytes : int
        What a device keeps of the system at this point, packed as the system's `packed_as` says:
        the stages that may stop or, if none does, the smallest.
    max_cost : float or None
        The most that one instance can cost, on any rows; None where it is not known.
    chain : int
        Which of the system's candidate cascades the thresholds belong to.
    guarantee : dict or None
        The certified bound, its kind, confidence and test; see :func:`.certify`.
    weighted_accuracy : float or None
        Accuracy under `class_weight`, where one was given; `accuracy` itself never has it.
    recall, precision : tuple of float or None
        By class, in the order of the classes; None where no row has it, or no row is answered so.
    balanced_accuracy : float or None
        Mean of the recalls.
    log_loss, brier_score : float or None
        Of the probabilities of the answers, as scikit-learn defines them.
    gate_range : tuple of (float or None) or None
        Thresholds of the last stage on the device, from least to most, between which bounds on
        recall and precision hold; see :class:`.ClassBounds`.
    exit_shares : tuple of float
        Share of validation instances answered by each stage and, last, by the high-cost model.
    interval : tuple of float or None
        95 % confidence interval of `accuracy`, where its rows chose nothing.
    measured : {"accuracy", "agreement"}
        What `accuracy` is: without labels, the agreement with the high-cost model.
    validation_groups : int or None
        Number of groups that the figures rest on, where rows have groups.
    """

    thresholds: tuple[float | None, ...]
    cost: float
    accuracy: float
    offload_rate: float
    accuracy_error: float = 0.0
    agreement: float | None = None
    trees: float = 0.0
    nbytes: int = 0
    bytes: int = 0
    max_cost: float | None = None
    chain: int = 0
    guarantee: Mapping[str, Any] | None = field(default=None, hash=False)
    weighted_accuracy: float | None = None
    recall: tuple[float | None, ...] | None = None
    precision: tuple[float | None, ...] | None = None
    balanced_accuracy: float | None = None
    log_loss: float | None = None
    brier_score: float | None = None
    gate_range: tuple[float | None, float | None] | None = None
    interval: tuple[float, float] | None = None
    measured: Literal["accuracy", "agreement"] = "accuracy"
    exit_shares: tuple[float, ...] = ()
    validation_groups: int | None = None

    def __repr__(self) -> str:
        limits = ", ".join(map(threshold, self.thresholds))
        kept = "" if self.guarantee is None else ", guaranteed"
        if self.validation_groups is not None:
            kept += f", {self.validation_groups} groups"
        return (
            f"OperatingPoint(cost {self.cost:.4g}, {self.measured} {self.accuracy:.4f}, offload "
            f"rate {self.offload_rate:.3f}, stops at ({limits}){kept})"
        )

    def _repr_html_(self) -> str:
        entries = asdict(self) | {"thresholds": ", ".join(map(threshold, self.thresholds))}
        if self.gate_range is not None:
            entries["gate_range"] = " to ".join(map(threshold, self.gate_range))
        rows = [(k.replace("_", " "), _cell(v)) for k, v in entries.items() if v not in (None, ())]
        return html_table("operating point", ("", ""), rows)

    @property
    def merit(self) -> float:
        """What a frontier compares: the weighted accuracy where there is one."""
        return self.accuracy if self.weighted_accuracy is None else self.weighted_accuracy


def _cell(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(_cell, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def points_within_cost(points: Iterable[OperatingPoint], most: float) -> list[OperatingPoint]:
    """Keep the points at which no instance can cost more; InputError if there are none."""
    if not isinstance(most, Real) or not 0 <= float(most) < math.inf:
        raise InputError(f"max_instance_cost must be at least 0 and finite, not {most!r}")
    every = list(points)
    kept = [p for p in every if keeps_cost(p, most)]
    if not kept:
        known = [p.max_cost for p in every if p.max_cost is not None]
        raise cost_too_low(most, min(known, default=math.inf))
    return kept


def keeps_cost(point: OperatingPoint, most: float) -> bool:
    """Whether no instance can cost more at an operating point."""
    return point.max_cost is not None and point.max_cost <= most


def cost_too_low(most: float, lowest: float) -> InputError:
    """Make the error of a cap that nothing keeps."""
    return InputError(
        f"no operating point keeps max_instance_cost={float(most)!r} for every instance; "
        f"the lowest cap possible is {float(lowest)!r}"
    )


@dataclass(frozen=True, eq=False)
class PackedSizes:
    """Bytes of a cascade's stages as a device keeps them; 0 of one beyond the device.

    In each of `forms`, of which the smallest is packed: bytes of each stage, (n_stages,), and which
    thresholds each needs, (n_stages, n_thresholds), which stages share and which take 4 bytes.
    """

    forms: tuple[tuple[NDArray[np.int64], NDArray[np.bool_]], ...]

    @classmethod
    def plain(cls, sizes: Sequence[int]) -> PackedSizes:
        """Sizes of stages that share nothing."""
        return cls(((np.array(sizes, np.int64), np.zeros((len(sizes), 0), np.bool_)),))

    @property
    def alone(self) -> tuple[int, ...]:
        """Bytes of each stage without the others."""
        return tuple(self.total([s]) for s in range(len(self.forms[0][0])))

    def total(self, stages: Sequence[int], *, free_thresholds: int = 0) -> int:
        """Bytes of some of the stages at most, as a cascade of these alone.

        Of the thresholds beside the trees so many are not counted.
        """
        chosen = np.array(stages, np.intp)
        return min(
            int(own[chosen].sum()) + 4 * max(0, int(needs[chosen].any(0).sum()) - free_thresholds)
            for own, needs in self.forms
        )

    def kept(self, stages: Sequence[int]) -> int:
        """Bytes that a device keeps of some stages or, of none, the smallest: it answers alone.

        >>> sizes = PackedSizes.plain((30, 20, 0))
        >>> sizes.kept((0, 1)), sizes.kept(())
        (50, 20)
        """
        return self.total(stages) or min(filter(None, self.alone), default=0)
