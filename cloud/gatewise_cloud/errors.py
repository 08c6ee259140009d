"""Errors of the cloud.

::

    GatewiseError
    ├── BrokerError    a broker cannot be started         (.port)
    ├── ModelError     a bundle cannot be served          (.model)
    │   └── BackendBusy   the model's server is unavailable or overloaded
    └── RefusedRows    a model refuses instances          (.reason)

:class:`gatewise_edge.errors.LinkError` is raised if a broker cannot be reached, and
:class:`gatewise_edge.errors.SelfTestError` if a bundle computes other labels than when it was
packed.
"""

from __future__ import annotations

from gatewise.errors import GatewiseError


class BrokerError(GatewiseError):
    """Broker that cannot be started on `port`; port 0 stands for any free port."""

    def __init__(self, port: int, message: str) -> None:
        super().__init__(message)
        self.port = port


class ModelError(GatewiseError):
    """Bundle with a high-cost model that cannot be served; `model` is its name and version."""

    def __init__(self, model: str, message: str) -> None:
        super().__init__(message)
        self.model = model


class BackendBusy(ModelError):  # noqa: N818  a state, not a fault
    """Model on a server that is unavailable or overloaded; a later request may succeed."""


class RefusedRows(GatewiseError):  # noqa: N818  a refusal is an answer to a client, not a fault
    """Instances that a model refuses.

    `reason` is ``shape``, ``size``, ``type``, ``range``, ``missing`` or ``infinite``, as in
    :class:`gatewise_edge.errors.WireError`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
