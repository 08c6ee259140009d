"""Service times of devices, broker and workers: measured by a run, or from a settings file."""

from __future__ import annotations

import msgspec


class Timings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Service times of devices, broker and workers.

    Parameters
    ----------
    edge_ms : tuple of float
        Milliseconds until each stage on the device has answered.
    run_us, instance_us, message_us : float
        A worker's run of n instances from m requests takes ``run + n * instance + m * message``
        microseconds.
    broker_us : float
        Microseconds of the broker's time for a message.
    hop_ms : float
        Milliseconds one way between broker and worker.
    proxy_ms : float
        Milliseconds that the proxy of an emulated link adds one way (live runs).
    assumed : tuple of str
        Names of the fields above that were not measured.
    """

    edge_ms: tuple[float, ...]
    run_us: float
    instance_us: float
    message_us: float = 265.0
    broker_us: float = 30.0
    hop_ms: float = 0.16
    proxy_ms: float = 0.0
    assumed: tuple[str, ...] = ("message_us", "broker_us", "hop_ms")
