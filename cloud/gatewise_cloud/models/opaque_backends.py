"""Backends that answer with probabilities alone: a Python object, or a JSON service over HTTP.

Their contract is that of :mod:`gatewise.models.opaque_models` and the page
docs/high-cost-models.md. They stay in the worker, and only its operator names them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError, one_line
from gatewise.imports import import_object
from gatewise.models.opaque_models import (
    PYTHON,
    PythonModel,
    json_answer,
    json_request,
)
from gatewise_cloud.errors import ModelError
from gatewise_cloud.models.backends import Backend
from gatewise_cloud.models.http_backend import HttpBackend, excerpt, url_for
from gatewise_cloud.models.oip import backend_at

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest


class PythonBackend(Backend):
    """A function, an object or a class in this process: :class:`.Backend`.

    `given`: as :class:`gatewise.models.opaque_models.PythonModel`. It is called from as many
    threads as the worker runs batches at a time (one by default). `classes`: the bundle's class
    labels, the order of the columns. `model`: name and version, for messages. `spec`: its import
    path. Raises InputError if it gives no probabilities of these classes, as far as is known before
    a run.
    """

    kind = "classifier"

    def __init__(self, given: Any, *, classes: Any, model: str, spec: str | None = None) -> None:
        self._python, self._model = PythonModel(given, list(classes), spec), model

    def run(self, X: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Call it: class indices and probabilities. See :meth:`.Backend.run`."""
        try:
            chances = self._python.predict_proba(X)
        except Exception as error:  # a user's code may raise anything
            raise ModelError(
                self._model, f"model {self._model} failed: {one_line(error)}"
            ) from error
        return [chances.argmax(axis=1), chances]


class JsonBackend(HttpBackend):
    """A service that takes ``{"instances": ...}`` and gives ``{"predictions": ...}``.

    The form of TensorFlow Serving and of KServe's protocol, version 1: a row of numbers for each
    instance there, a row of probabilities for each one back. Its other settings are those of
    :class:`.HttpBackend`.
    """

    kind = "classifier"

    def __init__(self, url: str, *, n_classes: int, model: str, timeout: float = 5.0) -> None:
        super().__init__(url, model=model, timeout=timeout)
        self._n_classes = n_classes

    def run(self, X: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Call the service: class indices and probabilities. See :meth:`.Backend.run`."""
        head = {"Content-Type": "application/json", "Accept": "application/json"}
        status, _, body = self._call("POST", self._path, json_request(X), head)
        if status != 200:
            raise self._bad(f"it answered {status} {excerpt(body)}")
        try:
            chances = json_answer(body, (len(X), self._n_classes), "it")
        except InputError as error:
            raise self._bad(one_line(error)) from None
        return [chances.argmax(axis=1), chances]


def chosen_backend(
    url: str, *, timeout: float = 5.0, binary: bool = False
) -> Callable[[Manifest], Backend]:
    """Make what gives each bundle the backend that an operator chose.

    `url`: ``python:module:attribute``; ``http[s]://host[:port]/v2/models/NAME``, a server of the
    Open Inference Protocol; or any other ``http[s]://...``, a JSON service. In a URL, ``{name}``
    and ``{version}`` stand for the bundle's. `timeout`: seconds for one call over HTTP. `binary`:
    raw numbers, for the Open Inference Protocol. Raises InputError if the object cannot be
    imported, or it is none of these. At once, before any bundle is loaded.
    """
    if url.startswith(PYTHON):
        given = import_object(url, url.removeprefix(PYTHON))

        def python(manifest: Manifest) -> Backend:
            return PythonBackend(given, classes=manifest.classes, model=manifest.title, spec=url)

        return python
    try:
        parts = urlsplit(url)
    except ValueError as error:  # a bracket without its other half
        raise InputError(f"--backend {url}: {error}") from None
    if "/v2/models/" in url:
        return backend_at(url, timeout=timeout, binary=binary)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"--backend {url}: give python:module:attribute or http[s]://...")

    def service(manifest: Manifest) -> Backend:
        return JsonBackend(
            url_for(url, manifest),
            n_classes=manifest.n_classes,
            model=manifest.title,
            timeout=timeout,
        )

    return service
