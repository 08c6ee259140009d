"""What the parts of a manifest hold, and their bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from gatewise.decision import Link, Score
from gatewise.tiers import Tier

SCHEMA_VERSION: Final = 1
POINT_FIGURES: Final = (
    "weighted_accuracy", "recall", "precision", "balanced_accuracy", "log_loss", "brier_score",
    "gate_range", "interval", "validation_groups", "bytes",
)  # fmt: skip
"""Keys of an operating point that are left out where they are not known."""
CLASS_FIGURES: Final = (
    "reference_weighted_accuracy", "reference_recall", "class_rows", "min_recall", "min_precision",
    "packed_as", "max_instance_cost",
)  # fmt: skip
"""Keys of the manifest that are left out where they are not known."""
MANIFEST: Final = "manifest.json"
SAMPLE: Final = "sample.npz"
INSTANCE: Final = "instance"
"""Name that stands for all values of an array, as a feature and as an input.

So does :data:`gatewise_signals.signal_input.WINDOW` for those of a window.
"""

ClassLabel = int | float | str | bool
Missing = Literal["allowed", "refused"]
StageKind = Literal["graph", "lazy"]
Origin = Literal["gatewise", "given"]
Measured = Literal["accuracy", "agreement"]
CloudKind = Literal["margins", "classifier"]
Task = Literal["classify", "regress", "rank"]
ByClass = tuple[float | None, ...]
"""A share of each class, in the order of the classes; None: none is known, or no bound."""

LARGEST: Final = 1e300
FLOAT32: Final = float(np.finfo(np.float32).max)
MOST_FEATURES: Final = 65535
MOST_CLASSES: Final = 65535
MOST_STAGES: Final = 1024
MOST_BYTES: Final = 1 << 30
"""A file of a bundle is at most this large (1 GiB)."""


@dataclass(frozen=True)
class FeatureSpec:
    """A feature: name, own price, and the group it is acquired with (or None)."""

    name: str
    own: float
    group: str | None = None


@dataclass(frozen=True)
class GroupSpec:
    """A feature group: name, the price that its features share, and groups paid before it."""

    name: str
    shared: float
    requires: tuple[str, ...] = ()


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
    origin : {"gatewise", "given"}
        ``given``: a graph that was given with its operators, not written by Gatewise. It needs
        onnxruntime, and on another kind of machine its margins may differ in their last bits.
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
    origin: Origin = "gatewise"


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
    backend : str or None
        What answers where `file` holds no graph: ``python:module:attribute``, or a URL. It is there
        to be read: a worker runs only the backend that its operator names.
    carries : "window" or None
        What requests carry in the place of the inputs: the raw window, of which the worker computes
        them.
    """

    file: str
    inputs: tuple[str, ...]
    kind: CloudKind
    link: Link
    backend: str | None = None
    carries: str | None = None


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
    agreement : float or None
        Share of the answers that are the high-cost model's.
    weighted_accuracy : float or None
        Under class weights, where the models were fitted with some; `accuracy` has none.
    recall, precision : tuple of float or None, or None
        By class, in the order of the classes; None for a class that no row has, or no answer is.
    balanced_accuracy, log_loss, brier_score : float or None
    gate_range : tuple of (float or None) or None
        Between which thresholds of the last stage on the device the manifest's `min_recall` and
        `min_precision` hold; None in the place of one: never stops.
    interval : tuple of float or None
        95 % confidence interval of `accuracy`, from rows that chose no threshold.
    measured : {"accuracy", "agreement"}
        What `accuracy` is: where there were no labels, the agreement with the high-cost model.
    bytes : int or None
        Of the stages that the point uses, packed as the manifest's `packed_as` says.
    validation_groups : int or None
        Groups of validation rows (subjects, machines, recordings) that the figures rest on.
    """

    thresholds: tuple[float | None, ...]
    expected_cost: float
    accuracy: float
    offload_rate: float
    guarantee: dict[str, Any] | None = None
    accuracy_error: float = 0.0
    chain: int = 0
    agreement: float | None = None
    weighted_accuracy: float | None = None
    recall: ByClass | None = None
    precision: ByClass | None = None
    balanced_accuracy: float | None = None
    log_loss: float | None = None
    brier_score: float | None = None
    gate_range: tuple[float | None, float | None] | None = None
    interval: tuple[float, float] | None = None
    measured: Measured = "accuracy"
    validation_groups: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class FileSpec:
    """SHA-256, as 64 hexadecimal digits, and size in bytes of a file."""

    sha256: str
    size: int
