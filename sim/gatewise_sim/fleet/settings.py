"""How a simulated fleet is deployed and used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_edge.device.answer import Policy
from gatewise_sim.fleet.network.link import LinkProfile
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.worker import ServiceTime
from gatewise_sim.fleet.workload.arrivals import Workload, draw_arrivals, parse
from gatewise_sim.fleet.workload.row_mix import RowMix

__all__ = ["Arrivals", "Chunk", "FleetSettings"]

Chunk = tuple[NDArray[np.float64], NDArray[Any], NDArray[Any]]
Arrivals = Callable[[int, float, np.random.Generator], Iterable[Chunk]]
"""Gives, for so many devices and seconds, chunks of (times, devices, rows), sorted by time."""


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """How a fleet is deployed and used.

    Attributes
    ----------
    devices : int
    seconds : float
        Instances come from 0 up to then; the last answers come a little later.
    workload : Workload or str, optional
        How instances come to each device, see :func:`gatewise_sim.fleet.workload.arrivals.parse`.
    mix : RowMix, optional
        Which rows they are, and when; all are equally likely by default.
    arrivals : callable, optional
        In place of a workload, see :data:`Arrivals`.
    in_turn : sequence of sequence of int, optional
        In their place: rows of each device, each begun when the one before is answered, as a live
        run does.
    pause_ms : float
        Between two rows in turn.
    link : LinkProfile
        Each device has one of its own.
    workers : int
    service : ServiceTime
        Of a worker.
    deadline_ms, policy, outstanding, breaker
        As of :class:`gatewise_edge.device.device.Device`.
    pace : str or None
        Budget of every device's pacer, as ``offload_rate=0.1``.
    queue, max_batch, wait_ms, parallel
        As of :class:`gatewise_cloud.worker.worker.Worker`.
    edge_ms : float or sequence of float
        Until a stage has answered, by stage; one number for all.
    broker_us : float
        Of the broker's time for a message, in microseconds.
    hop_ms : float
        Between broker and worker, one way.
    outages : Outages
    primed : bool
        Whether devices know from the beginning how long a round trip takes when nobody waits, as
        those do that have run for a while.
    seed : int

    Raises
    ------
    InputError
        If a setting is out of range.
    """

    devices: int
    seconds: float
    workload: Workload | str | None = None
    mix: RowMix | None = None
    arrivals: Arrivals | None = None
    in_turn: Sequence[Sequence[int]] | None = None
    pause_ms: float = 0.0
    link: LinkProfile = field(default_factory=lambda: LinkProfile("none"))
    workers: int = 1
    service: ServiceTime
    deadline_ms: float = 500.0
    policy: Policy = "system"
    outstanding: int = 32
    breaker: bool = True
    pace: str | None = None
    queue: int = 1024
    max_batch: int = 16
    wait_ms: float = 0.0
    parallel: int = 1
    edge_ms: float | Sequence[float] = 0.1
    broker_us: float = 30.0
    hop_ms: float = 0.0
    outages: Outages = field(default_factory=Outages)
    primed: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("devices", "workers", "outstanding", "queue", "max_batch", "parallel"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("seconds", "deadline_ms"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; give a positive number")
        for name in ("pause_ms", "wait_ms", "broker_us", "hop_ms"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.policy not in get_args(Policy):
            raise InputError(f"policy {self.policy!r}; choose one of {', '.join(get_args(Policy))}")
        given = [self.workload is not None, self.arrivals is not None, self.in_turn is not None]
        if sum(given) != 1:
            raise InputError("give one of a workload, arrivals, and rows in turn")
        if isinstance(self.workload, str):
            parse(self.workload)
        if self.in_turn is not None and len(self.in_turn) != self.devices:
            raise InputError(f"rows in turn for {len(self.in_turn)} of {self.devices} devices")
        if any(window.what == "gateway" for window in self.outages.windows):
            raise InputError("outage of a gateway: gateways are not simulated in virtual time")
        if self.pace is not None and self.policy != "system":
            raise InputError("a pacer needs policy system: there is nothing to pace")

    def chunks(self, n_rows: int) -> Iterable[Chunk]:
        """All arrivals of a table of `n_rows` rows, chunk by chunk of time."""
        rng = np.random.default_rng([self.seed, 1])
        if self.arrivals is not None:
            return self.arrivals(self.devices, self.seconds, rng)
        assert self.workload is not None
        rows = n_rows if self.mix is None else self.mix
        return draw_arrivals(self.workload, self.devices, self.seconds, rng, rows=rows)
