"""The entries of a manifest: features, groups, stages, the cloud, operating points, files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from gatewise.decision import Link, Score
from gatewise.tiers import Tier

__all__ = [
    "MANIFEST",
    "SAMPLE",
    "ClassLabel",
    "CloudKind",
    "CloudSpec",
    "FeatureSpec",
    "FileSpec",
    "GroupSpec",
    "Missing",
    "OperatingPointSpec",
    "StageKind",
    "StageSpec",
    "Task",
    "Tier",
]

MANIFEST: Final = "manifest.json"
SAMPLE: Final = "sample.npz"

ClassLabel = int | float | str | bool
Missing = Literal["allowed", "refused"]
StageKind = Literal["graph", "lazy"]
CloudKind = Literal["margins", "classifier"]
Task = Literal["classify", "regress", "rank"]


@dataclass(frozen=True)
class FeatureSpec:
    """A feature: name, own price, and the group it is acquired with (or None)."""

    name: str
    own: float
    group: str | None = None


@dataclass(frozen=True)
class GroupSpec:
    """A feature group: name, and the price that its features share."""

    name: str
    shared: float


@dataclass(frozen=True)
class StageSpec:
    """A stage: the file of its model, what it reads, and how its outputs are to be read.

    Attributes
    ----------
    file : str
    inputs : tuple of str
        Feature names, in the order of the model's columns: all that the stage may acquire.
    bytes : int
        Size of the file.
    link : {"sigmoid", "softmax", "identity"}
    score : {"margin", "column"}
        Whether the stop score is computed from the margins or is the last output.
    outputs : int
        Columns of the model's output.
    kind : {"graph", "lazy"}
        ``graph``: an ONNX file; the stage acquires all its inputs, then runs. ``lazy``: flat node
        arrays (:mod:`.flat_trees`); the stage acquires an input for an instance when
        a node on its path tests it.
    carry : tuple of int
        Earlier stages whose outputs are further inputs; none in this version.
    tier : {"device", "gateway", "cloud"}
        Where the stage runs; what that costs tells :mod:`gatewise.tiers`.
    """

    file: str
    inputs: tuple[str, ...]
    bytes: int
    link: Link
    score: Score
    outputs: int
    kind: StageKind = "graph"
    carry: tuple[int, ...] = ()
    tier: Tier = "device"


@dataclass(frozen=True)
class CloudSpec:
    """The high-cost model.

    Attributes
    ----------
    file : str
    inputs : tuple of str
        Feature names, in the order of the graph's columns.
    kind : {"margins", "classifier"}
        ``margins``: one output, to be read by `link`. ``classifier``: two outputs, the class
        index, int64, shape (n,), and the probabilities, float32, shape (n, n_classes).
    link : {"sigmoid", "softmax", "identity"}
    """

    file: str
    inputs: tuple[str, ...]
    kind: CloudKind
    link: Link


@dataclass(frozen=True)
class OperatingPointSpec:
    """One setting of thresholds of one chain, with what it did on validation data.

    Attributes
    ----------
    thresholds : tuple of float or None
        One a stage of the chain; a stage stops where its score is at least this (float32);
        None never stops.
    expected_cost, accuracy, offload_rate : float
        Of a regressor or ranker, `accuracy` is its score (:class:`Manifest`, `task`).
    guarantee : dict or None
    accuracy_error : float
        Standard error of the accuracy minus the high-cost model's (paired).
    chain : int
        Which chain the thresholds belong to.
    """

    thresholds: tuple[float | None, ...]
    expected_cost: float
    accuracy: float
    offload_rate: float
    guarantee: dict[str, Any] | None = None
    accuracy_error: float = 0.0
    chain: int = 0


@dataclass(frozen=True)
class FileSpec:
    """SHA-256, as 64 hexadecimal digits, and size in bytes of a file."""

    sha256: str
    size: int
