"""The high-cost model of a bundle, ready to answer: matrices in, labels and probabilities out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise_cloud.errors import ModelError, RefusedRows
from gatewise_edge.errors import SelfTestError
from gatewise_training import _onnxruntime, decision

if TYPE_CHECKING:
    from gatewise_export.bundle import Bundle
    from gatewise_export.manifest import Manifest

__all__ = ["CloudAnswer", "CloudModel"]


class CloudAnswer(NamedTuple):
    """What a model says to a matrix of n instances."""

    labels: NDArray[np.int64]
    """Class indices, shape (n,)."""
    probabilities: NDArray[np.float32]
    """Shape (n, n_classes)."""


class CloudModel:
    """A bundle's high-cost model in onnxruntime.

    Make one with :meth:`from_bundle`, which reads and proves the bundle.

    Parameters
    ----------
    manifest : Manifest
        Of a bundle with a cloud model.
    graph : bytes
        The ONNX graph: one input, float32 (n, k). Kind ``margins``: one output, to be read by
        the manifest's link. Kind ``classifier``: class indices, then probabilities.
    threads : int, default 1
        Threads within one run.

    Attributes
    ----------
    name, version : str
        The bundle's; requests name them.
    n_inputs, n_classes : int

    Raises
    ------
    ModelError
        If the bundle has no cloud model, or onnxruntime does not load it.
    """

    def __init__(self, manifest: Manifest, graph: bytes, *, threads: int = 1) -> None:
        onnxruntime = _onnxruntime.load()

        self.name = manifest.name
        self.version = manifest.version
        if manifest.cloud is None:
            raise ModelError(str(self), f"bundle {self} has no cloud model: nothing to serve")
        self._kind = manifest.cloud.kind
        self._link = manifest.cloud.link
        self._allow_missing = manifest.missing["cloud"] == "allowed"
        self.n_inputs = len(manifest.cloud.inputs)
        self.n_classes = len(manifest.classes)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that wait busily take the core from the thread that reads messages.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 4
        try:
            self._session: Any = onnxruntime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's own errors share no base
            raise ModelError(
                str(self), f"the cloud model of bundle {self} does not load: {_one_line(error)}"
            ) from error
        self._input = self._session.get_inputs()[0].name
        n_outputs = 1 if self._kind == "margins" else 2
        if len(self._session.get_outputs()) != n_outputs:
            raise ModelError(
                str(self), f"the cloud model of bundle {self} must have {n_outputs} output(s)"
            )

    @classmethod
    def from_bundle(cls, bundle: Bundle | str | Path, *, threads: int = 1) -> CloudModel:
        """Load a bundle's cloud model and prove it on the bundle's sample rows.

        Parameters
        ----------
        bundle : Bundle or path
        threads : int, default 1

        Raises
        ------
        BundleError
            If the bundle cannot be read, a hash does not hold, or stages are placed beyond the
            device.
        ModelError
            If it has no cloud model, or onnxruntime does not load it.
        SelfTestError
            If a sample row gets another label than where the bundle was packed.
        """
        from gatewise_export.bundle import Bundle

        if not isinstance(bundle, Bundle):
            bundle = Bundle.open(bundle)
        manifest = bundle.manifest
        manifest.check_on_device()
        graph = bundle.read(manifest.cloud.file) if manifest.cloud is not None else b""
        model = cls(manifest, graph, threads=threads)
        model._self_test(bundle)
        return model

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def key(self) -> tuple[str, str]:
        """Name and version."""
        return self.name, self.version

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
        if X.ndim != 2 or X.shape[1] != self.n_inputs:
            raise RefusedRows("shape", f"model {self} takes {self.n_inputs} columns, not {X.shape}")
        if not np.isfinite(X).all():
            if np.isinf(X).any():
                raise RefusedRows("infinite", "the instances hold an infinite value")
            if not self._allow_missing:
                raise RefusedRows("missing", f"model {self} takes no missing values (NaN)")

    def answer(self, X: NDArray[np.float32]) -> CloudAnswer:
        """Classify instances.

        Parameters
        ----------
        X : ndarray of float32, shape (n, k)
            The manifest's ``cloud.inputs``, in their order.

        Raises
        ------
        RefusedRows
            As :meth:`check`.
        ModelError
            If the graph fails on these instances.
        """
        self.check(X)
        if not len(X):  # some graphs fail on no rows
            empty = np.empty((0, self.n_classes), np.float32)
            return CloudAnswer(np.empty(0, np.int64), empty)
        X = np.ascontiguousarray(X, np.float32)
        try:
            outputs = self._session.run(None, {self._input: X})
        except Exception as error:  # onnxruntime's own errors share no base
            raise ModelError(str(self), f"model {self} failed: {_one_line(error)}") from error
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
        return CloudAnswer(labels, probabilities)

    def _self_test(self, bundle: Bundle) -> None:
        sample = bundle.sample()
        X = sample["X"][:, bundle.manifest.cloud_inputs()].astype(np.float32)
        differing = int(np.count_nonzero(self.answer(X).labels != sample["cloud_label"]))
        if differing:
            raise SelfTestError(
                f"the cloud model of bundle {self} labels {differing} of {len(X)} sample rows "
                "otherwise than where it was packed: do not serve it",
                {"cloud_label": differing},
            )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
