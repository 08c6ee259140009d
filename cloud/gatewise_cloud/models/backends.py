"""Backends that run a high-cost model: onnxruntime, a booster's library or a Python object.

A backend receives float32 instances with the columns ``cloud.inputs`` of the manifest, and returns
the outputs of the model. :class:`.CloudModel` computes labels and probabilities from these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError, one_line
from gatewise.formats import plural
from gatewise.imports import CPU, open_session
from gatewise.models.booster_files import BoosterFile, Library
from gatewise.models.opaque_models import PythonModel
from gatewise_cloud.errors import BackendBusy, ModelError

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest
    from gatewise_export.bundle.manifest_records import CloudSpec


def cloud_spec(manifest: Manifest) -> CloudSpec:
    """Get the high-cost model's specification from a manifest; ModelError if it has none."""
    if manifest.cloud is None:
        raise ModelError(
            manifest.title, f"bundle {manifest.title} has no high-cost model that could be served"
        )
    return manifest.cloud


class Backend(Protocol):
    """Interface of a backend that runs a high-cost model."""

    #: Whether the model runs in this process and never waits for another machine.
    is_local: bool = True
    #: Kind of the outputs, ``margins`` or ``classifier``; None means the bundle's kind.
    kind: str | None = None

    @property
    def trouble(self) -> str | None:
        """Known reason why the backend cannot run now, or None."""
        return None

    def run(self, X: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Run the model on instances of shape (n, k), n at least 1."""
        ...

    def close(self) -> None:
        """Close connections and files."""
        return


class OnnxBackend(Backend):
    """ONNX graph that onnxruntime runs in this process.

    The graph has one input, float32 (n, k). A graph of kind ``margins`` has one output, and a graph
    of kind ``classifier`` has two. Error messages call it `model`. `provider` is an execution
    provider of onnxruntime.
    """

    def __init__(
        self, graph: bytes, *, kind: str, model: str, n_threads: int = 1, provider: str = CPU
    ) -> None:
        self._model = model
        try:
            self._session = open_session(graph, n_threads=n_threads, provider=provider)
        except Exception as error:  # onnxruntime's errors have no common base class
            raise ModelError(
                model, f"the high-cost model of bundle {model} does not load: {one_line(error)}"
            ) from error
        self._input_name = self._session.get_inputs()[0].name
        n_outputs = 1 if kind == "margins" else 2
        if len(self._session.get_outputs()) != n_outputs:
            raise ModelError(
                model,
                f"the high-cost model of bundle {model} must have {plural(n_outputs, 'output')}",
            )

    def run(self, X: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Run the graph; see :meth:`Backend.run`."""
        try:
            outputs: list[NDArray[Any]] = self._session.run(None, {self._input_name: X})
        except Exception as error:  # onnxruntime's errors have no common base class
            raise _make_run_error(self._model, error) from error
        return outputs


class BoosterBackend(Backend):
    """Booster that its own library loads from the `content` of a file and runs in this process.

    Raises ModelError if the library is not installed or cannot read the file.
    """

    kind = "classifier"

    def __init__(
        self, library: Library, content: bytes, n_classes: int, *, model: str, n_threads: int = 1
    ) -> None:
        self._model = model
        try:
            self._booster = BoosterFile(library, content, n_classes, n_threads=n_threads)
        except InputError as error:
            raise ModelError(model, f"the high-cost model of bundle {model}: {error}") from error

    def run(self, X: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Compute class indices and probabilities; see :meth:`Backend.run`."""
        try:
            probabilities = self._booster.predict_proba(X)
        except Exception as error:  # the libraries' errors have no common base class
            raise _make_run_error(self._model, error) from error
        return [probabilities.argmax(axis=1), probabilities]


class PythonBackend(Backend):
    """Python function or object that runs in this process; see docs/high-cost-models.md.

    :class:`gatewise.models.opaque_models.PythonModel` describes `source`. Several threads call it
    at the same time if the worker runs batches in parallel. `classes` are the bundle's labels in
    the order of the columns, and `import_path` is that of the source. Raises InputError if the
    source cannot return probabilities of these classes.
    """

    kind = "classifier"

    def __init__(
        self, source: Any, *, classes: Any, model: str, import_path: str | None = None
    ) -> None:
        self._python_model = PythonModel(source, list(classes), import_path)
        self._model = model

    def run(self, X: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Call the source; see :meth:`.Backend.run`. Its OSError becomes a BackendBusy."""
        try:
            probabilities = self._python_model.predict_proba(X)
        except OSError as error:
            raise BackendBusy(
                self._model, f"model {self._model} does not answer: {one_line(error)}"
            ) from error
        except Exception as error:  # a user's code may raise anything
            raise _make_run_error(self._model, error) from error
        return [probabilities.argmax(axis=1), probabilities]


def _make_run_error(model: str, error: Exception) -> ModelError:
    return ModelError(model, f"model {model} failed: {one_line(error)}")
