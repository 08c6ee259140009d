"""Backends that compute a high-cost model: onnxruntime, a booster's library, a Python object.

A backend gets float32 instances in the order of ``cloud.inputs`` and returns the model's outputs,
from which :class:`.CloudModel` makes labels and probabilities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError, one_line
from gatewise.imports import CPU, open_session
from gatewise.models.booster_files import BoosterFile, Library
from gatewise.models.opaque_models import PythonModel
from gatewise_cloud.errors import BackendBusy, ModelError

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest
    from gatewise_export.bundle.manifest_records import CloudSpec


def cloud_of(manifest: Manifest) -> CloudSpec:
    """Get the specification of a manifest's high-cost model; ModelError without one."""
    if manifest.cloud is None:
        raise ModelError(
            manifest.title, f"bundle {manifest.title} has no cloud model: nothing to serve"
        )
    return manifest.cloud


class Backend(Protocol):
    """A place where a high-cost model runs."""

    local: bool = True
    """Whether it computes in this process, so that a run never waits for another machine."""
    kind: str | None = None
    """Kind of its outputs, ``margins`` or ``classifier``; None: the bundle's kind."""

    @property
    def trouble(self) -> str | None:
        """Reason why it cannot run now, if one is known."""
        return None

    def run(self, X: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Run the model on instances of shape (n, k), n at least 1."""
        ...

    def close(self) -> None:
        """Close its connections and files."""
        return


class OnnxBackend(Backend):
    """An ONNX graph in onnxruntime, in this process.

    It has one input, float32 (n, k), and one output (kind ``margins``) or two (``classifier``).
    Messages call it `model`. `provider` is an execution provider of onnxruntime.
    """

    def __init__(
        self, graph: bytes, *, kind: str, model: str, threads: int = 1, provider: str = CPU
    ) -> None:
        self._model = model
        try:
            self._session = open_session(graph, threads=threads, provider=provider)
        except Exception as error:  # onnxruntime's own errors share no base
            raise ModelError(
                model, f"the cloud model of bundle {model} does not load: {one_line(error)}"
            ) from error
        self._input = self._session.get_inputs()[0].name
        n_outputs = 1 if kind == "margins" else 2
        if len(self._session.get_outputs()) != n_outputs:
            raise ModelError(
                model, f"the cloud model of bundle {model} must have {n_outputs} output(s)"
            )

    def run(self, X: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Run the graph. See :meth:`Backend.run`."""
        try:
            outputs: list[NDArray[Any]] = self._session.run(None, {self._input: X})
        except Exception as error:  # onnxruntime's own errors share no base
            raise ModelError(
                self._model, f"model {self._model} failed: {one_line(error)}"
            ) from error
        return outputs


class BoosterBackend(Backend):
    """A booster that its own library runs in this process, from the `content` of its file.

    Raises ModelError if the library is not installed, or does not read the file.
    """

    kind = "classifier"

    def __init__(
        self, library: Library, content: bytes, n_classes: int, *, model: str, threads: int = 1
    ) -> None:
        self._model = model
        try:
            self._booster = BoosterFile(library, content, n_classes, threads=threads)
        except InputError as error:
            raise ModelError(model, f"the cloud model of bundle {model}: {error}") from error

    def run(self, X: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Predict class indices and probabilities. See :meth:`Backend.run`."""
        try:
            chances = self._booster.predict_proba(X)
        except Exception as error:  # each library raises types of its own
            raise ModelError(
                self._model, f"model {self._model} failed: {one_line(error)}"
            ) from error
        return [chances.argmax(axis=1), chances]


class PythonBackend(Backend):
    """A function, an object or a class in this process; docs/high-cost-models.md has the contract.

    `given` is as in :class:`gatewise.models.opaque_models.PythonModel`, and is called on as many
    threads as the worker runs batches at a time. `classes` are the bundle's labels in the order of
    the columns, and `spec` is its import path. Raises InputError if it is known to give no
    probabilities of these classes.
    """

    kind = "classifier"

    def __init__(self, given: Any, *, classes: Any, model: str, spec: str | None = None) -> None:
        self._python = PythonModel(given, list(classes), spec)
        self._model = model

    def run(self, X: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Call it; see :meth:`.Backend.run`. An OSError of the callable becomes BackendBusy."""
        try:
            probabilities = self._python.predict_proba(X)
        except OSError as error:
            raise BackendBusy(
                self._model, f"model {self._model} does not answer: {one_line(error)}"
            ) from error
        except Exception as error:  # a user's code may raise anything
            raise ModelError(
                self._model, f"model {self._model} failed: {one_line(error)}"
            ) from error
        return [probabilities.argmax(axis=1), probabilities]
