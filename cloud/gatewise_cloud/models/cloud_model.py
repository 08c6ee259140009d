"""The high-cost model of a bundle, ready to answer: matrices in, labels and probabilities out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise import decision
from gatewise_cloud.errors import ModelError
from gatewise_cloud.models.backends import Backend, OnnxBackend
from gatewise_cloud.models.memory import memory_limit
from gatewise_cloud.models.tier_stages import (
    TierAnswer,
    TierStages,
    check_rows,
    columns_of,
    opened,
    sample_rows,
    stages_of,
)
from gatewise_edge.device.auditor import disagreement_bound
from gatewise_edge.errors import SelfTestError

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.manifest import Manifest

__all__ = ["CloudAnswer", "CloudModel"]

#: Bytes that loading and proving a model may take, and more for each byte of its graph: some
#: operators make gigabytes of a few kilobytes.
_MEMORY: Final = 1 << 30
_MEMORY_PER_BYTE: Final = 8


class CloudAnswer(NamedTuple):
    """Answers of a high-cost model to n instances."""

    labels: NDArray[np.int64]
    """Class indices, shape (n,)."""
    probabilities: NDArray[np.float32]
    """Shape (n, n_classes)."""


class CloudModel:
    """A bundle's high-cost model, behind the stages that the bundle places in the cloud.

    Make one with :meth:`from_bundle`, which reads and proves the bundle.

    Parameters
    ----------
    manifest : Manifest
        Of a bundle with a cloud model.
    backend : Backend
        What runs it. Kind ``margins``: its output is read by the manifest's link. Kind
        ``classifier``: class indices, then probabilities.
    stages : TierStages, optional
        Of the tier ``cloud``.

    Attributes
    ----------
    name, version : str
        The bundle's; requests name them.
    n_inputs, n_classes : int
        Columns of a request, and classes.
    local : bool
        Whether it computes in this process.

    Raises
    ------
    ModelError
        If the bundle has no cloud model.
    """

    def __init__(
        self, manifest: Manifest, backend: Backend, stages: TierStages | None = None
    ) -> None:
        self.name = manifest.name
        self.version = manifest.version
        cloud = _cloud(manifest)
        self._backend = backend
        self.local = backend.local
        self.disagreement_bound = disagreement_bound(manifest)
        self._stages = stages
        # what gives probabilities does so whatever graph it stands for
        self._kind, self._link = getattr(backend, "kind", cloud.kind), cloud.link
        self._allow_missing = manifest.missing["cloud"] == "allowed"
        self._last = len(manifest.stages)
        columns = columns_of(manifest, manifest.cloud_inputs())
        self.n_inputs = len(manifest.request_inputs())
        # None where a request holds the model's inputs as they are: nothing is copied then.
        as_they_are = np.array_equal(columns, np.arange(self.n_inputs))
        self._columns = None if as_they_are else columns
        self.n_classes = len(manifest.classes)

    @classmethod
    def from_bundle(
        cls,
        bundle: Bundle | str | Path,
        *,
        threads: int = 1,
        public_key: str | Path | bytes | None = None,
        backend: Backend | None = None,
    ) -> CloudModel:
        """Load a bundle's cloud model and prove it on the bundle's sample rows.

        Parameters
        ----------
        bundle : Bundle or path
        threads : int, default 1
            Threads within one run of onnxruntime.
        public_key : str, Path or bytes, optional
            The bundle must be signed by its owner, see
            :meth:`gatewise_export.bundle.bundle.Bundle.open`.
        backend : Backend, optional
            Runs the high-cost model instead of onnxruntime in this process.

        Raises
        ------
        BundleError
            If the bundle cannot be read, a hash or the signature does not hold, or a graph holds
            what none may.
        ModelError
            If it has no cloud model, onnxruntime does not load it, or it takes too much memory.
        SelfTestError
            If a sample row gets another label than where the bundle was packed.
        """
        bundle = opened(bundle, public_key)
        if backend is not None:  # the operator's own: what it takes is not for us to bound
            return cls._load(bundle, threads, backend)
        cloud = _cloud(bundle.manifest)
        if cloud.backend is not None:
            name = f"{bundle.manifest.name} {bundle.manifest.version}"
            raise ModelError(
                name,
                f"bundle {name} carries no high-cost model: it was packed with {cloud.backend}; "
                "name what answers: --backend python:module:attribute or --backend http(s)://...",
            )
        size = bundle.manifest.files[cloud.file].size
        with memory_limit(_MEMORY + _MEMORY_PER_BYTE * size):
            return cls._load(bundle, threads, backend)

    @classmethod
    def _load(cls, bundle: Bundle, threads: int, backend: Backend | None) -> CloudModel:
        manifest = bundle.manifest
        cloud = _cloud(manifest)
        if backend is None:
            from gatewise_export.onnx_files.graph_rules import check_cloud_graph

            graph = bundle.read(cloud.file)
            check_cloud_graph(graph, file=cloud.file)
            name = f"{manifest.name} {manifest.version}"
            backend = OnnxBackend(graph, kind=cloud.kind, model=name, threads=threads)
        stages = TierStages(bundle, "cloud") if stages_of(manifest, "cloud") else None
        model = cls(manifest, backend, stages)
        try:
            model._self_test(bundle)
        except BaseException:
            model.close()
            raise
        return model

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def key(self) -> tuple[str, str]:
        """Name and version."""
        return self.name, self.version

    @property
    def n_stages(self) -> int:
        """Stages before the high-cost model, wherever they run."""
        return self._last

    @property
    def trouble(self) -> str | None:
        """Why the backend could not answer now; None if it could."""
        return self._backend.trouble

    def check(self, X: NDArray[np.floating[Any]]) -> None:
        """Refuse what this model does not take, without running it.

        Parameters
        ----------
        X : ndarray, shape (n, k)

        Raises
        ------
        RefusedRows
            If k is not the number of inputs, a value is infinite, or one is NaN and the
            manifest refuses missing values in the cloud.
        """
        check_rows(X, str(self), n_inputs=self.n_inputs, allow_missing=self._allow_missing)

    def answer(self, X: NDArray[np.float32]) -> CloudAnswer:
        """Classify instances.

        Parameters
        ----------
        X : ndarray of float32, shape (n, k)
            The columns of :meth:`gatewise_export.bundle.manifest.Manifest.request_inputs`: those of
            ``cloud.inputs``, in their order, unless the bundle places stages beyond the device.

        Raises
        ------
        RefusedRows
            As :meth:`check`.
        ModelError
            If the model fails on these instances.
        """
        self.check(X)
        if not len(X):  # some graphs fail on no rows
            empty = np.empty((0, self.n_classes), np.float32)
            return CloudAnswer(np.empty(0, np.int64), empty)
        answer = self.run(np.ascontiguousarray(X, np.float32))
        return CloudAnswer(answer.labels, answer.probabilities)

    def run(self, X: NDArray[np.float32]) -> TierAnswer:
        """Classify checked instances, at least one, and say which stage answered.

        Parameters
        ----------
        X : ndarray of float32, shape (n, k)
            As :meth:`answer`, in C order.

        Raises
        ------
        ModelError
            If the model fails on these instances.
        """
        if self._stages is None:
            return TierAnswer(*self._high_cost(X))
        labels, probabilities, exits, offload = self._stages.answer(X)
        assert exits is not None
        assert offload is not None
        if offload.any():  # those with missing values where the stages take none, too
            labels[offload], probabilities[offload] = self._high_cost(X[offload])
            exits[offload] = self._last
        return TierAnswer(labels, probabilities, exits)

    def close(self) -> None:
        """Let go of what the backend holds open."""
        self._backend.close()

    def _high_cost(self, X: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        inputs = X if self._columns is None else np.ascontiguousarray(X[:, self._columns])
        outputs = self._backend.run(inputs)
        if self._kind == "margins":
            margins = outputs[0]
            labels = decision.labels(margins)
            probabilities = decision.probabilities(margins, self._link).astype(np.float32)
        else:
            labels = outputs[0].reshape(-1).astype(np.int64)
            probabilities = outputs[1].astype(np.float32, copy=False)
        if labels.shape != (len(X),) or probabilities.shape != (len(X), self.n_classes):
            shapes = f"{labels.shape} labels and {probabilities.shape} probabilities"
            raise ModelError(str(self), f"model {self} gave {shapes} for {len(X)} instances")
        return labels, probabilities

    def _self_test(self, bundle: Bundle) -> None:
        expected = bundle.sample()["cloud_label"]
        labels, _ = self._high_cost(sample_rows(bundle))
        differing = int(np.count_nonzero(labels != expected))
        if differing:
            raise SelfTestError(
                f"the cloud model of bundle {self} labels {differing} of {len(expected)} sample "
                "rows otherwise than where it was packed: do not serve it",
                {"cloud_label": differing},
            )


def _cloud(manifest: Manifest) -> Any:
    if manifest.cloud is None:
        name = f"{manifest.name} {manifest.version}"
        raise ModelError(name, f"bundle {name} has no cloud model: nothing to serve")
    return manifest.cloud
