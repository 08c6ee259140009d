"""Operating point of a cascade: thresholds, and their figures on validation rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np

from gatewise.documents import Meta, Share
from gatewise.formats import threshold

#: Largest numbers of stages and classes in a manifest, which bound the size of a hostile one.
MAX_STAGES = 1024
MAX_CLASSES = 65535

#: Largest threshold, because scores are float32.
FLOAT32_MAX = float(np.finfo(np.float32).max)

Amount: TypeAlias = Annotated[float, Meta(ge=0.0)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
Threshold: TypeAlias = Annotated[float, Meta(ge=-FLOAT32_MAX, le=FLOAT32_MAX)]
#: A share for each class, in the order of the classes; None if it is unknown or has no bound.
ByClass: TypeAlias = Annotated[tuple[Share | None, ...], Meta(max_length=MAX_CLASSES)]


class OperatingPoint(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    repr_omit_defaults=True,
):
    """Thresholds of a candidate cascade, with their figures on validation rows.

    Attributes
    ----------
    thresholds : tuple of float or None
        One per stage. A stage answers if its score reaches the threshold; None means never.
    cost : float
        Mean cost per instance, where an offloaded instance also pays for the features of the
        stages; ``expected_cost`` in a manifest.
    accuracy : float
        Share of correct answers, or the score of a regressor or ranker.
    offload_rate : float
        Share of instances sent to the high-cost model.
    accuracy_error : float
        Standard error of the paired difference between `accuracy` and the accuracy of the high-cost
        model. If rows have groups, it is the additional loss that new groups may have.
    agreement : float or None
        Share of answers equal to those of the high-cost model.
    trees : float
        Mean number of trees that the device evaluates per decision.
    nbytes : int
        Size of the flat models of the stages that can stop.
    bytes : int
        Memory that these stages need on a device; of the smallest stage if no stage can stop.
    max_cost : float or None
        Upper bound on the cost of an instance; None if it is unknown.
    chain : int
        Index of the candidate cascade.
    guarantee : mapping or None
        The certified bound, its kind, confidence and test.
    weighted_accuracy : float or None
        Accuracy with the weights `class_weight`, if these are set; `accuracy` is never weighted.
    recall, precision : tuple of float or None
        One per class; None for a class without rows or without answers.
    balanced_accuracy : float or None
        Mean recall.
    log_loss, brier_score : float or None
        Scores of the probabilities, as scikit-learn defines them.
    exit_shares : tuple of float
        Share of instances that each stage answers, and as the last entry the high-cost model.
    interval : tuple of float or None
        95 % confidence interval of `accuracy`, from rows that did not choose the thresholds.
    measured : {"accuracy", "agreement"}
        Meaning of `accuracy`, which without labels is the agreement with the high-cost model.
    validation_groups : int or None
        Number of groups of the rows, if rows have groups.
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
        """Hash the figures without the guarantee, because a mapping has no hash."""
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

    @property
    def effective_accuracy(self) -> float:
        """Accuracy by which points are compared: weighted if classes have weights."""
        return self.accuracy if self.weighted_accuracy is None else self.weighted_accuracy
