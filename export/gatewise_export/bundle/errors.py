"""Errors raised when bundles are written or read.

::

    GatewiseError
    ├── BundleError             the bundle cannot be used
    │   ├── ManifestError       a field of its manifest is wrong            (.field)
    │   ├── DamagedFileError    a file is missing, altered or not a file    (.file)
    │   └── SignatureError      it is not signed by the required key
    ├── ConversionError         a model cannot be converted to ONNX or C
    └── VerifyError             graphs decide differently than the system   (.report)
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
    """A `file` of a bundle is missing, is not a plain file, or differs from the packed file."""

    def __init__(self, file: str, message: str) -> None:
        super().__init__(message)
        self.file = file


class SignatureError(BundleError):
    """A signature is missing, malformed, by another key, or for other content."""


class ConversionError(GatewiseError):
    """A model cannot be converted to ONNX or C; the message gives the reason."""


@dataclass(frozen=True)
class VerifyReport:
    """Differences between two computations of the same decisions.

    Attributes
    ----------
    rows : int
        Rows compared.
    differing_decisions, differing_labels, differing_costs : int
        Rows with different decisions, labels or costs.
    max_margin_difference : float
        Largest difference of a stage's outputs.
    cloud_label_differences : int
        Rows with different labels of the high-cost model, including rows that are not offloaded.
    cloud_probability_max_difference : float
        Largest difference of the high-cost model's probabilities.
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
    """Graphs decide differently than the system they were written from; see `report`."""

    def __init__(self, message: str, report: VerifyReport) -> None:
        super().__init__(message)
        self.report = report
