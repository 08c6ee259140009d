"""The high-cost model of a bundle, ready to answer: matrices in, labels and probabilities out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise import decision
from gatewise_cloud.errors import ModelError
from gatewise_cloud.models.backends import Backend, OnnxBackend, cloud_of
from gatewise_cloud.models.tier_stages import (
    RequestModel,
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

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.manifest import Manifest

#: Bytes that loading and proving a model may take, and more for each byte of its graph: some
#: operators make gigabytes of a few kilobytes.
_MEMORY: Final = 1 << 30
_MEMORY_PER_BYTE: Final = 8
_STATUS: Final = Path("/proc/self/status")


class CloudAnswer(NamedTuple):
    """Answers of a high-cost model to n instances."""

    labels: NDArray[np.int64]
    """Class indices, shape (n,)."""
    probabilities: NDArray[np.float32]
    """Shape (n, n_classes)."""


class CloudModel(RequestModel):
    """A bundle's high-cost model, behind the stages that its `manifest` places in the cloud.

    Make one with :meth:`from_bundle`, which reads and proves the bundle. The `backend` runs it: of
    kind ``margins`` its output is read by the manifest's link, of kind ``classifier`` it gives
    class indices, then probabilities. `stages` are those of the tier ``cloud``; `features` computes
    what the model reads, where requests carry raw windows. ModelError if the bundle has no cloud
    model.
    """

    def __init__(
        self,
        manifest: Manifest,
        backend: Backend,
        stages: TierStages | None = None,
        features: WindowFeatures | None = None,
    ) -> None:
        super().__init__(manifest)
        cloud = cloud_of(manifest)
        self._backend = backend
        self.local = backend.local
        self.disagreement_bound = disagreement_bound(manifest)
        self._stages = stages
        # what gives probabilities does so whatever graph it stands for
        self._kind, self._link = getattr(backend, "kind", cloud.kind), cloud.link
        self._features = features
        # None where a request holds the model's inputs as they are: nothing is copied then.
        self._columns = None
        if features is None:
            columns = columns_of(manifest, manifest.cloud_inputs())
            as_they_are = np.array_equal(columns, np.arange(self.n_inputs))
            self._columns = None if as_they_are else columns

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
            return cls._proved(bundle, backend)
        manifest, cloud = bundle.manifest, cloud_of(bundle.manifest)
        if cloud.backend is not None:
            name = manifest.title
            raise ModelError(
                name,
                f"bundle {name} carries no high-cost model: it was packed with {cloud.backend}; "
                "name what answers with --backend python:module:attribute",
            )
        from gatewise_export.onnx_files.graph_rules import check_cloud_graph

        with _memory_limit(_MEMORY + _MEMORY_PER_BYTE * manifest.files[cloud.file].size):
            graph = bundle.read(cloud.file)
            check_cloud_graph(graph, file=cloud.file)
            backend = OnnxBackend(graph, kind=cloud.kind, model=manifest.title, threads=threads)
            return cls._proved(bundle, backend)

    @classmethod
    def _proved(cls, bundle: Bundle, backend: Backend) -> CloudModel:
        manifest, cloud = bundle.manifest, cloud_of(bundle.manifest)
        stages = TierStages(bundle, "cloud") if stages_of(manifest, "cloud") else None
        features = None if cloud.carries is None else WindowFeatures(bundle)
        model = cls(manifest, backend, stages, features)
        try:
            model._self_test(bundle)
        except BaseException:
            model.close()
            raise
        return model

    @property
    def trouble(self) -> str | None:
        """Why the backend could not answer now; None if it could."""
        return self._backend.trouble

    def check(self, X: NDArray[np.floating[Any]]) -> None:
        """Refuse what this model does not take; see :meth:`.RequestModel.check`."""
        super().check(X)
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
            exits[offload] = self.n_stages
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


@contextmanager
def _memory_limit(more: int) -> Iterator[None]:
    """Let allocations fail that would add more than `more` bytes to this process; on Linux only.

    Other threads fall under it, too: leave them room.
    """
    if resource is None or not _STATUS.exists():
        yield
        return
    lines = _STATUS.read_text().splitlines()
    used = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [used + more, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
