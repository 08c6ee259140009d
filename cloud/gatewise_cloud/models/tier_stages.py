"""The stages that a bundle places on a gateway or in the cloud, run on the columns of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.errors import SelfTestError
from gatewise_edge.stages.stages import StageRunner

if TYPE_CHECKING:
    from gatewise.tiers import Tier
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.manifest import Manifest

__all__ = ["StageAnswer", "TierStages", "columns_of", "stages_of"]


class StageAnswer(NamedTuple):
    """What the stages of a tier say of n instances.

    An instance that none of them stops has the last one's answer; one with missing values where
    the stages take none has no answer of theirs, and goes on.
    """

    labels: NDArray[np.int64]
    """Class indices, shape (n,)."""
    probabilities: NDArray[np.float32]
    """Shape (n, n_classes)."""
    exits: NDArray[np.int64]
    """Index of the stage whose answer it is among all stages, shape (n,); -1: of none."""
    goes_on: NDArray[np.bool_]
    """Which instances none of them stops, shape (n,)."""


def stages_of(manifest: Manifest, tier: Tier) -> list[int]:
    """Indices of the stages of the chain in force that run on a tier."""
    return [s for s, where in enumerate(manifest.tiers) if where == tier]


def columns_of(manifest: Manifest, features: NDArray[np.intp]) -> NDArray[np.intp]:
    """Where a request's matrix holds features that are given as columns of an instance."""
    place = {int(column): i for i, column in enumerate(manifest.request_inputs())}
    return np.array([place[int(column)] for column in features], np.intp)


class TierStages:
    """The stages of one tier, one after the other, each on what the one before lets go on.

    Parameters
    ----------
    bundle : Bundle
        With at least one stage there.
    tier : {"gateway", "cloud"}

    Raises
    ------
    BundleError
        If a stage's file cannot be loaded.
    SelfTestError
        If a sample row gets other outputs than where the bundle was packed.
    """

    def __init__(self, bundle: Bundle, tier: Tier) -> None:
        manifest = bundle.manifest
        self.indices = stages_of(manifest, tier)
        self._runner = StageRunner(bundle)
        self._columns = [columns_of(manifest, manifest.stage_inputs(s)) for s in self.indices]
        self._n_classes = manifest.n_classes
        self._take_nan = manifest.missing["stages"] == "allowed"
        self._test(bundle)

    def answer(self, X: NDArray[np.float32]) -> StageAnswer:
        """Run the stages.

        Parameters
        ----------
        X : ndarray of float32, shape (n, k)
            The columns of :meth:`gatewise_export.bundle.manifest.Manifest.request_inputs`.
        """
        n = len(X)
        answer = StageAnswer(
            np.zeros(n, np.int64),
            np.zeros((n, self._n_classes), np.float32),
            np.full(n, -1, np.int64),
            np.ones(n, np.bool_),
        )
        # Trees would take a missing value for one that is easy to answer.
        rows = np.arange(n) if self._take_nan else np.flatnonzero(~np.isnan(X).any(axis=1))
        for stage, columns in zip(self.indices, self._columns, strict=True):
            if not len(rows):
                break
            output = self._runner.run(stage, np.ascontiguousarray(X[np.ix_(rows, columns)]))
            answer.labels[rows] = output.labels
            answer.probabilities[rows] = output.probabilities
            answer.exits[rows] = stage
            stopped = output.stops(self._runner.thresholds[stage])
            answer.goes_on[rows[stopped]] = False
            rows = rows[~stopped]
        return answer

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
            told = ", ".join(f"{name} in {count} rows" for name, count in differences.items())
            raise SelfTestError(
                f"bundle {bundle.path} computes otherwise here than where it was packed: {told}",
                differences,
            )
