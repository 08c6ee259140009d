"""Choose the backend by the URL that an operator gives on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gatewise.imports import import_object
from gatewise.models.opaque_models import PYTHON_PREFIX
from gatewise_cloud.models.backends import Backend, PythonBackend
from gatewise_cloud.models.oip import oip_backend_factory

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest


def backend_factory(url: str) -> Callable[[Manifest], Backend]:
    """Make a function that creates the backend for a bundle's manifest.

    A worker that loads its bundles later can therefore refuse a wrong URL when it starts.

    Parameters
    ----------
    url : str
        ``python:module:attribute``, or ``http[s]://host[:port]/v2/models/NAME`` of a server with
        the Open Inference Protocol. ``{name}`` and ``{version}`` are replaced by the bundle's name
        and version.

    Raises
    ------
    InputError
        If the object cannot be imported, or `url` is not valid.
    """
    if not url.startswith(PYTHON_PREFIX):
        return oip_backend_factory(url)
    model = import_object(url, url.removeprefix(PYTHON_PREFIX))

    def make_backend(manifest: Manifest) -> Backend:
        return PythonBackend(model, classes=manifest.classes, model=manifest.title, import_path=url)

    return make_backend
