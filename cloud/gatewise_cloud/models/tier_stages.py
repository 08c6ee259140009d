"""The stages that a bundle places on a gateway or in the cloud, run on the rows of requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.models.jpeg import decode_jpeg, load_decoder
from gatewise_cloud.errors import ModelError, RefusedRows
from gatewise_edge.device.stages import StageRunner
from gatewise_edge.errors import SelfTestError

if TYPE_CHECKING:
    from gatewise.tiers import Tier
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.manifest import Manifest


class TierAnswer(NamedTuple):
    """Answers of a tier, its stages and perhaps the high-cost model, to n instances."""

    labels: NDArray[np.int64]
    """Class indices, shape (n,)."""
    probabilities: NDArray[np.float32]
    """Shape (n, n_classes)."""
    exits: NDArray[np.int64] | None = None
    """Index of the stage that answered, the number of stages for the high-cost model, -1 where
    none did: shape (n,); None: the high-cost model answered all."""
    offload: NDArray[np.bool_] | None = None
    """Which instances no stage of the tier stopped, shape (n,); None: all are answered."""


class RequestModel(ABC):
    """What a worker serves of a bundle: :class:`.CloudModel` or :class:`.GatewayModel`.

    `local`: whether it computes in this process. `disagreement_bound`: share of the instances that
    devices may answer otherwise; None where that is unknown. `n_stages` are those before the
    high-cost model, wherever they run; `n_inputs` are the columns of a request. ModelError if the
    bundle takes JPEG files and Pillow is not there.
    """

    local = True
    disagreement_bound: float | None = None

    def __init__(self, manifest: Manifest) -> None:
        self.name, self.version = self.key = manifest.name, manifest.version
        self.n_stages = len(manifest.stages)
        self.n_classes = manifest.n_classes
        self._instance = manifest.instance
        self._request_inputs = manifest.request_inputs()
        self.n_inputs = len(self._request_inputs)
        self._allow_missing = manifest.missing["cloud"] == "allowed"
        if self._takes_files and not load_decoder():
            raise ModelError(
                manifest.title,
                f"bundle {manifest.title} takes JPEG files: install Pillow, "
                "pip install 'gatewise[jpeg]'",
            )

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def _takes_files(self) -> bool:
        return self._instance is not None and self._instance.encoding is not None

    @property
    def trouble(self) -> str | None:
        """Why it could not answer now; None if it could."""
        return None

    def check(self, X: NDArray[np.floating[Any]]) -> None:
        """Refuse what this model does not take, `X` of shape (n, k), without running it.

        RefusedRows if k is not the number of inputs, a value is infinite, or one is NaN and the
        manifest refuses missing values in the cloud.
        """
        check_rows(X, str(self), n_inputs=self.n_inputs, allow_missing=self._allow_missing)

    def decode(self, jpeg: bytes) -> NDArray[np.uint8]:
        """Get the instance that the file `jpeg` is, shape (1, k); RefusedRows if it is none."""
        if self._instance is None or not self._takes_files:
            raise RefusedRows("type", "the model takes no JPEG files")
        try:
            values = decode_jpeg(jpeg, self._instance)
        except InputError as error:
            raise RefusedRows("type", str(error)) from None
        return values[None, self._request_inputs]

    @abstractmethod
    def run(self, X: NDArray[np.float32]) -> TierAnswer:
        """Classify checked instances, `X` float32 (n, k) in C order, n at least 1."""

    def close(self) -> None:  # noqa: B027  (most hold nothing)
        """Let go of what it holds open."""


def stages_of(manifest: Manifest, tier: Tier) -> list[int]:
    """Indices of the active stages that run on a tier."""
    return [s for s, where in enumerate(manifest.tiers) if where == tier]


def columns_of(manifest: Manifest, features: NDArray[np.intp]) -> NDArray[np.intp]:
    """Columns of a request's matrix that hold features, given as columns of an instance."""
    place = {int(column): i for i, column in enumerate(manifest.request_inputs())}
    return np.array([place[int(column)] for column in features], np.intp)


class TierStages:
    """The stages of one tier, each run on the instances that the one before did not stop.

    `bundle`: with at least one stage there. Raises BundleError if a stage's file cannot be loaded;
    SelfTestError if a sample row gets other outputs than where the bundle was packed.
    """

    def __init__(self, bundle: Bundle, tier: Tier) -> None:
        manifest = bundle.manifest
        self.indices = stages_of(manifest, tier)
        self._runner = StageRunner(bundle)
        self._columns = [columns_of(manifest, manifest.stage_inputs(s)) for s in self.indices]
        self._n_classes = manifest.n_classes
        self._last_exit = manifest.last_exit
        self._take_nan = manifest.missing["stages"] == "allowed"
        self._test(bundle)

    def answer(self, X: NDArray[np.float32]) -> TierAnswer:
        """Run the stages; an instance that none stops has the last one's answer.

        Shapes: `X` (n, k).
        """
        n = len(X)
        labels = np.zeros(n, np.int64)
        probabilities = np.zeros((n, self._n_classes), np.float32)
        exits = np.full(n, -1, np.int64)
        offload = np.ones(n, np.bool_)
        # Trees would take a missing value for one that is easy to answer.
        rows = np.arange(n) if self._take_nan else np.flatnonzero(~np.isnan(X).any(axis=1))
        for stage, columns in zip(self.indices, self._columns, strict=True):
            if not len(rows):
                break
            output = self._runner.run(stage, np.ascontiguousarray(X[np.ix_(rows, columns)]))
            labels[rows] = output.labels
            probabilities[rows] = output.probabilities
            exits[rows] = stage
            stopped = output.stops(self._runner.thresholds[stage])
            stopped |= stage >= self._last_exit  # what follows could cost an instance too much
            offload[rows[stopped]] = False
            rows = rows[~stopped]
        return TierAnswer(labels, probabilities, exits, offload)

    def _test(self, bundle: Bundle) -> None:
        sample = bundle.sample()
        differences = {}
        for stage in self.indices:
            x = np.ascontiguousarray(sample["X"][:, self._runner.inputs[stage]], np.float32)
            got, packed = self._runner.run(stage, x).outputs, sample[f"stage_{stage}"]
            same = (got == packed) | (np.isnan(got) & np.isnan(packed))
            if not same.all():
                differences[f"stage_{stage}"] = int(np.count_nonzero(~same.all(axis=1)))
        if differences:
            shown = ", ".join(f"{name} in {count} rows" for name, count in differences.items())
            raise SelfTestError(
                f"bundle {bundle.path} computes otherwise here than where it was packed: {shown}",
                differences,
            )


def opened(bundle: Bundle | str | Path, public_key: str | Path | bytes | None = None) -> Bundle:
    """Open a bundle; with a `public_key` one that its owner has signed.

    One that is open already is taken as it is, unless its signature was not checked with this key.
    """
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.signing import PublicKey

    if isinstance(bundle, Bundle):
        if public_key is None or bundle.signed_by == PublicKey(public_key).key_id:
            return bundle
        bundle = bundle.path
    return Bundle.open(bundle, public_key=public_key)


def sample_rows(bundle: Bundle) -> NDArray[np.float32]:
    """The bundle's sample as requests carry it: float32, shape (n, k)."""
    rows: NDArray[np.float32] = bundle.sample()["X"][:, bundle.manifest.request_inputs()]
    return np.ascontiguousarray(rows, np.float32)


def check_rows(
    X: NDArray[np.floating[Any]], model: str, *, n_inputs: int, allow_missing: bool
) -> None:
    """Refuse instances that a model does not take: see :meth:`CloudModel.check`."""
    if X.ndim != 2 or X.shape[1] != n_inputs:
        raise RefusedRows("shape", f"model {model} takes {n_inputs} columns, not {X.shape}")
    if not np.isfinite(X).all():
        if np.isinf(X).any():
            raise RefusedRows("infinite", "the instances hold an infinite value")
        if not allow_missing:
            raise RefusedRows("missing", f"model {model} takes no missing values (NaN)")
