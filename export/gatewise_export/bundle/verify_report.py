"""The outcome of comparing two computations of a bundle's decisions."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["VerifyReport"]


@dataclass(frozen=True)
class VerifyReport:
    """How far two computations of the same decisions differ.

    Attributes
    ----------
    rows : int
    differing_decisions : int
        Rows that another stage (or the cloud) answers.
    differing_labels : int
        Rows with another label.
    differing_costs : int
        Rows with another cost.
    max_margin_difference : float
        Largest difference of a stage's outputs.
    cloud_label_differences : int
        Rows to which the high-cost model gives another label, offloaded or not.
    cloud_probability_max_difference : float
    """

    rows: int
    differing_decisions: int
    differing_labels: int
    differing_costs: int
    max_margin_difference: float
    cloud_label_differences: int
    cloud_probability_max_difference: float

    @property
    def agrees(self) -> bool:
        """Whether every row has the same decision, label and cost."""
        return not (self.differing_decisions or self.differing_labels or self.differing_costs)
