"""An operating point: the thresholds of a cascade, and the figures that they gave on validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np

from gatewise.console import html_table
from gatewise.documents import Meta, Share
from gatewise.formats import threshold

MAX_STAGES = 1024
MAX_CLASSES = 65535
FLOAT32_MAX = float(np.finfo(np.float32).max)

Amount: TypeAlias = Annotated[float, Meta(ge=0.0)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
Threshold: TypeAlias = Annotated[float, Meta(ge=-FLOAT32_MAX, le=FLOAT32_MAX)]
ByClass: TypeAlias = Annotated[tuple[Share | None, ...], Meta(max_length=MAX_CLASSES)]
"""A share of each class, in the order of the classes; None: not known, or no bound."""


class OperatingPoint(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    repr_omit_defaults=True,
):
    """One setting of a candidate cascade's thresholds, with its figures on validation rows.

    Attributes
    ----------
    thresholds : tuple of float or None
        One per stage. A stage answers where its score is at least the threshold; None: never.
    cost : float
        Mean cost per instance, union accounting; ``expected_cost`` in a manifest.
    accuracy : float
        Share of right answers; of a regressor or ranker its own score.
    offload_rate : float
        Share of instances sent to the high-cost model.
    accuracy_error : float
        Standard error of `accuracy` minus the high-cost model's accuracy (paired); where rows have
        groups, how much more new groups may lose.
    agreement : float or None
        Share of the answers that are the high-cost model's.
    trees : float
        Mean number of trees that the device evaluates per decision.
    nbytes : int
        Bytes of the flat models of the stages that may stop, which a device must hold.
    bytes : int
        Bytes of these stages as a device keeps them; if none may stop, of the smallest stage.
    max_cost : float or None
        Upper bound on the cost of any instance; None: not known.
    chain : int
        Index of the candidate cascade that the thresholds belong to.
    guarantee : mapping or None
        The certified bound, its kind, confidence and test.
    weighted_accuracy : float or None
        Accuracy under `class_weight`, where one was given; `accuracy` itself is never weighted.
    recall, precision : tuple of float or None
        By class; None for a class without rows, or without answers.
    balanced_accuracy : float or None
        Mean of the recalls.
    log_loss, brier_score : float or None
        Of the answers' probabilities, as scikit-learn defines them.
    exit_shares : tuple of float
        Share of instances answered by each stage and, last, by the high-cost model.
    interval : tuple of float or None
        95 % confidence interval of `accuracy`, from rows that chose no threshold.
    measured : {"accuracy", "agreement"}
        Meaning of `accuracy`: without labels it is the agreement with the high-cost model.
    validation_groups : int or None
        Number of groups (subjects, machines) behind the figures, where rows have groups.
    """

    thresholds: Annotated[tuple[Threshold | None, ...], Meta(max_length=MAX_STAGES)]
    cost: Amount = msgspec.field(name="expected_cost")
    accuracy: float
    offload_rate: Share
    accuracy_error: Amount = 0.0
    agreement: Share | None = None
    trees: Amount = 0.0
    nbytes: Count = 0
    bytes: Count = 0
    max_cost: Amount | None = None
    chain: Count = 0
    guarantee: Mapping[str, Any] | None = None
    weighted_accuracy: Share | None = None
    recall: ByClass | None = None
    precision: ByClass | None = None
    balanced_accuracy: Share | None = None
    log_loss: Amount | None = None
    brier_score: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    interval: tuple[Share, Share] | None = None
    measured: Literal["accuracy", "agreement"] = "accuracy"
    exit_shares: Annotated[tuple[Share, ...], Meta(max_length=MAX_STAGES + 1)] = ()
    validation_groups: Count | None = None

    def __hash__(self) -> int:
        """Hash the figures; a guarantee, a mapping, has no hash."""
        return hash((self.thresholds, self.chain, self.cost, self.accuracy))

    def __repr__(self) -> str:
        limits = ", ".join(map(threshold, self.thresholds))
        notes = "" if self.guarantee is None else ", guaranteed"
        if self.validation_groups is not None:
            notes += f", {self.validation_groups} groups"
        return (
            f"OperatingPoint(cost {self.cost:.4g}, {self.measured} {self.accuracy:.4f}, offload "
            f"rate {self.offload_rate:.3f}, stops at ({limits}){notes})"
        )

    def _repr_html_(self) -> str:
        entries = msgspec.structs.asdict(self)
        entries["thresholds"] = ", ".join(map(threshold, self.thresholds))
        rows = [(k.replace("_", " "), _cell(v)) for k, v in entries.items() if v not in (None, ())]
        return html_table("operating point", ("", ""), rows)

    @property
    def merit(self) -> float:
        """Figure that a frontier compares: the weighted accuracy where there is one."""
        return self.accuracy if self.weighted_accuracy is None else self.weighted_accuracy


def _cell(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(_cell, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
