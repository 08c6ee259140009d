"""Errors of the cloud.

::

    GatewiseError
    ├── BrokerError    a broker that cannot be started   (.host, .port)
    ├── ModelError     a bundle that cannot be served    (.model)
    │   └── BackendBusy   its server is away or overloaded now
    └── RefusedRows    instances that a model refuses    (.reason)

A broker that cannot be reached raises :class:`gatewise_edge.errors.LinkError`, and a bundle that
computes other labels here raises :class:`gatewise_edge.errors.SelfTestError`.
"""

from __future__ import annotations

from gatewise.errors import GatewiseError


class BrokerError(GatewiseError):
    """A broker that cannot be started on `host` and `port`; 0 stands for any free port."""

    def __init__(self, host: str, port: int, message: str) -> None:
        super().__init__(message)
        self.host = host
        self.port = port


class ModelError(GatewiseError):
    """A bundle (`model` is its name and version) with a high-cost model that cannot be served."""

    def __init__(self, model: str, message: str) -> None:
        super().__init__(message)
        self.model = model


class BackendBusy(ModelError):  # noqa: N818  a state, not a fault
    """A model on a server that is away or overloaded: a later request may succeed."""


class RefusedRows(GatewiseError):  # noqa: N818  a refusal is an answer to a client, not a fault
    """Instances that a model refuses.

    `reason`: ``shape``, ``size``, ``missing`` or ``infinite``, as in
    :class:`gatewise_edge.errors.WireError`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
