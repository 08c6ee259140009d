"""Choice of a backend by its name on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gatewise.imports import import_object
from gatewise.models.opaque_models import PYTHON
from gatewise_cloud.models.backends import Backend, PythonBackend
from gatewise_cloud.models.oip import backend_at

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest


def chosen_backend(
    url: str, *, timeout: float = 5.0, binary: bool = False
) -> Callable[[Manifest], Backend]:
    """Make the function that gives each bundle its backend.

    Parameters
    ----------
    url : str
        ``python:module:attribute``, or ``http[s]://host[:port]/v2/models/NAME`` of a server with
        the Open Inference Protocol; ``{name}`` and ``{version}`` stand for the bundle's.
    timeout : float, default 5.0
        Seconds of a call over HTTP.
    binary : bool, default False
        Send raw numbers over HTTP.

    Raises
    ------
    InputError
        If the object cannot be imported, or `url` is not valid.
    """
    if not url.startswith(PYTHON):
        return backend_at(url, timeout=timeout, binary=binary)
    model = import_object(url, url.removeprefix(PYTHON))

    def make(manifest: Manifest) -> Backend:
        return PythonBackend(model, classes=manifest.classes, model=manifest.title, spec=url)

    return make
