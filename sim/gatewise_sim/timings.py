"""Service times of devices, broker and workers, measured by a run or read from a settings file."""

from __future__ import annotations

import msgspec


class Timings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Service times of devices, broker and workers.

    Parameters
    ----------
    edge_ms : tuple of float
        Milliseconds from the arrival of an instance to the answer of each stage on the device.
    run_us, instance_us, message_us : float
        Parts of a worker's run. A run of n instances from m requests takes ``run_us +
        n * instance_us + m * message_us`` microseconds.
    broker_us : float
        Microseconds that the broker needs for a message.
    hop_ms : float
        Milliseconds of a message between broker and worker, one way.
    assumed : tuple of str
        Names of the fields above that were not measured. Their defaults are measurements of a
        worker and a broker on a desktop (docs/simulation.md).
    """

    edge_ms: tuple[float, ...]
    run_us: float
    instance_us: float
    message_us: float = 265.0
    broker_us: float = 30.0
    hop_ms: float = 0.16
    assumed: tuple[str, ...] = ("message_us", "broker_us", "hop_ms")
