"""Errors of writing and reading bundles.

::

    GatewiseError
    ├── BundleError             a bundle that cannot be used
    │   ├── ManifestError       a field of its manifest is wrong        (.field)
    │   ├── DamagedFileError    a file missing, altered or out of place (.file)
    │   └── SignatureError      not signed, or not by the key asked for
    ├── ConversionError         a model that cannot be written as a graph
    └── VerifyError             graphs with other decisions than the system (.report)
"""

from __future__ import annotations

from dataclasses import dataclass

from gatewise.errors import BundleError, GatewiseError, ManifestError

__all__ = [
    "BundleError",
    "ConversionError",
    "DamagedFileError",
    "ManifestError",
    "SignatureError",
    "VerifyError",
    "VerifyReport",
]


class DamagedFileError(BundleError):
    """A `file` of a bundle that is missing, leaves the bundle, or differs from the packed one."""

    def __init__(self, file: str, message: str) -> None:
        super().__init__(message)
        self.file = file


class SignatureError(BundleError):
    """A signature that is missing, malformed, by another key, or of something else."""


class ConversionError(GatewiseError):
    """A model that cannot be written as an ONNX graph; the message says why."""


@dataclass(frozen=True)
class VerifyReport:
    """Differences between two computations of the same decisions.

    Attributes
    ----------
    rows : int
        Rows compared.
    differing_decisions, differing_labels, differing_costs : int
        Rows with another exit, another label, another cost.
    max_margin_difference : float
        Largest difference of a stage's outputs.
    cloud_label_differences : int
        Rows with another label of the high-cost model, offloaded or not.
    cloud_probability_max_difference : float
        Largest difference of its probabilities.
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


class VerifyError(GatewiseError):
    """Graphs with other decisions than the system that they were made from; see `report`."""

    def __init__(self, message: str, report: VerifyReport) -> None:
        super().__init__(message)
        self.report = report
