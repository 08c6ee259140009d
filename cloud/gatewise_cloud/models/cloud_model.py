"""The high-cost model of a bundle, ready to answer: matrices in, labels and probabilities out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise import decision
from gatewise_cloud.errors import ModelError
from gatewise_cloud.models.backends import Backend, OnnxBackend, cloud_of
from gatewise_cloud.models.memory import memory_limit
from gatewise_cloud.models.tier_stages import (
    JpegInstances,
    TierAnswer,
    TierStages,
    check_rows,
    columns_of,
    opened,
    sample_rows,
    stages_of,
)
from gatewise_cloud.models.window_features import WindowFeatures
from gatewise_edge.device.auditor import disagreement_bound
from gatewise_edge.errors import SelfTestError

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.manifest import Manifest

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
    """A bundle's high-cost model, behind the stages that its `manifest` places in the cloud.

    Make one with :meth:`from_bundle`, which reads and proves the bundle. The `backend` runs it: of
    kind ``margins`` its output is read by the manifest's link, of kind ``classifier`` it gives
    class indices, then probabilities. `stages` are those of the tier ``cloud``; `features` computes
    what the model reads, where requests carry raw windows. `n_inputs` are the columns of a request;
    `local` says whether it computes in this process. ModelError if the bundle has no cloud model.
    """

    def __init__(
        self,
        manifest: Manifest,
        backend: Backend,
        stages: TierStages | None = None,
        features: WindowFeatures | None = None,
    ) -> None:
        self.name = manifest.name
        self.version = manifest.version
        cloud = cloud_of(manifest)
        self._backend = backend
        self.local = backend.local
        self.disagreement_bound = disagreement_bound(manifest)
        self._stages = stages
        # what gives probabilities does so whatever graph it stands for
        self._kind, self._link = getattr(backend, "kind", cloud.kind), cloud.link
        self._allow_missing = manifest.missing["cloud"] == "allowed"
        self._last = len(manifest.stages)
        self._features = features
        self.n_inputs = len(manifest.request_inputs())
        # None where a request holds the model's inputs as they are: nothing is copied then.
        self._columns = None
        if features is None:
            columns = columns_of(manifest, manifest.cloud_inputs())
            as_they_are = np.array_equal(columns, np.arange(self.n_inputs))
            self._columns = None if as_they_are else columns
        self.n_classes = len(manifest.classes)
        self.decode = JpegInstances(manifest).decode

    @classmethod
    def from_bundle(
        cls,
        bundle: Bundle | str | Path,
        *,
        threads: int = 1,
        public_key: str | Path | bytes | None = None,
        backend: Backend | None = None,
    ) -> CloudModel:
        """Load the cloud model of `bundle` and prove it on the bundle's sample rows.

        `threads` are those within one run of onnxruntime, in whose place a `backend` runs the
        model; with a `public_key` the bundle must be signed by its owner. BundleError if the bundle
        cannot be read, a hash or the signature does not hold, or a graph holds what none may;
        ModelError if it has no cloud model, onnxruntime does not load it, or it takes too much
        memory; SelfTestError if a sample row gets another label than where the bundle was packed.
        """
        bundle = opened(bundle, public_key)
        if backend is not None:  # the operator's own: what it takes is not for us to bound
            return cls._load(bundle, threads, backend)
        cloud = cloud_of(bundle.manifest)
        if cloud.backend is not None:
            name = bundle.manifest.title
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
        cloud = cloud_of(manifest)
        if backend is None:
            from gatewise_export.onnx_files.graph_rules import check_cloud_graph

            graph = bundle.read(cloud.file)
            check_cloud_graph(graph, file=cloud.file)
            backend = OnnxBackend(graph, kind=cloud.kind, model=manifest.title, threads=threads)
        stages = TierStages(bundle, "cloud") if stages_of(manifest, "cloud") else None
        features = None if cloud.carries is None else WindowFeatures(bundle)
        model = cls(manifest, backend, stages, features)
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
        """Refuse what this model does not take, `X` of shape (n, k), without running it.

        RefusedRows if k is not the number of inputs, a value is infinite, or one is NaN and the
        manifest refuses missing values in the cloud.
        """
        check_rows(X, str(self), n_inputs=self.n_inputs, allow_missing=self._allow_missing)
        if self._features is not None and len(X):  # so that no window spoils the run of others
            inputs, n = self._features.compute(X), len(self._features)
            check_rows(inputs, str(self), n_inputs=n, allow_missing=self._allow_missing)

    def answer(self, X: NDArray[np.float32]) -> CloudAnswer:
        """Classify instances, `X` float32 (n, k), the columns of :meth:`.Manifest.request_inputs`.

        RefusedRows as :meth:`check`; ModelError if the model fails on these instances.
        """
        self.check(X)
        if not len(X):  # some graphs fail on no rows
            empty = np.empty((0, self.n_classes), np.float32)
            return CloudAnswer(np.empty(0, np.int64), empty)
        answer = self.run(np.ascontiguousarray(X, np.float32))
        return CloudAnswer(answer.labels, answer.probabilities)

    def run(self, X: NDArray[np.float32]) -> TierAnswer:
        """Classify checked instances, at least one, in C order, and say which stage answered.

        `X` and ModelError as of :meth:`answer`.
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
        if self._features is not None:
            inputs = self._features.compute(X)
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
