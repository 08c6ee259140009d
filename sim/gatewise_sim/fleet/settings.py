"""How a simulated fleet is deployed and used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from gatewise.documents.toml_settings import take_number
from gatewise.errors import InputError
from gatewise.imports import object_path
from gatewise_edge.device.answer import OwnPolicy, Policy
from gatewise_sim.fleet.network.link import LinkProfile
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.worker import ServiceTime
from gatewise_sim.fleet.workload.arrivals import draw_arrivals, parse
from gatewise_sim.fleet.workload.kinds import Workload
from gatewise_sim.fleet.workload.row_mix import RowMix

_COUNTS: Final = (
    "devices", "workers", "outstanding", "queue", "max_batch", "parallel", "seed",
)  # fmt: skip
Chunk = tuple[NDArray[np.float64], NDArray[Any], NDArray[Any]]
Arrivals = Callable[[int, float, np.random.Generator], Iterable[Chunk]]
"""Gives, for so many devices and seconds, chunks of (times, devices, rows), sorted by time."""


def policy_name(policy: Policy | OwnPolicy) -> str:
    """Name of a policy: its own, or of a function ``module:function`` where others can import it.

    >>> policy_name("edge-only")
    'edge-only'
    """
    if not callable(policy):
        return policy
    return object_path(policy) or str(getattr(policy, "__name__", type(policy).__name__))


def take_count(value: object, name: str, least: int) -> None:
    """Check a whole number; InputError names it."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} is {value!r}; give a whole number, at least {least}")


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """How a fleet is deployed and used; InputError if a setting is out of range.

    There are so many `devices` and `workers`. `deadline_ms`, `policy`, `outstanding` and `breaker`
    are as of :class:`gatewise_edge.Device`, `queue`, `max_batch`, `wait_ms` and
    `parallel` as of :class:`gatewise_cloud.Worker`. `outages` say what is down when, and `seed` is
    that of all randomness.
    """

    devices: int
    seconds: float
    """Instances come from 0 up to then; the last answers come a little later."""
    workload: Workload | str | None = None
    """How instances come to each device, see :func:`gatewise_sim.fleet.workload.arrivals.parse`."""
    mix: RowMix | None = None
    """Which rows they are, and when; all are equally likely by default."""
    arrivals: Arrivals | None = None
    """In place of a workload, see :data:`Arrivals`."""
    in_turn: Sequence[Sequence[int]] | None = None
    """In their place: rows of each device, each begun when the one before is answered, as a live
    run does.
    """
    pause_ms: float = 0.0
    """Between two rows in turn."""
    link: LinkProfile = field(default_factory=lambda: LinkProfile("none"))
    """Each device has one of its own."""
    tls: bool = False
    """Whether connections are encrypted, for virtual time: a new one takes a round trip more."""
    workers: int = 1
    service: ServiceTime
    """Of a worker."""
    deadline_ms: float = 500.0
    policy: Policy | OwnPolicy = "system"
    outstanding: int = 32
    breaker: bool = True
    audit: float | None = None
    """Share of the devices' own answers that is audited, above 0 and up to 1."""
    queue: int = 1024
    max_batch: int = 16
    wait_ms: float = 0.0
    parallel: int = 1
    backend: str | None = None
    """What runs a live run's high-cost model, as of ``gatewise cloud``."""
    edge_ms: float | Sequence[float] = 0.1
    """Until a stage has answered, by stage; one number for all."""
    broker_us: float = 30.0
    """Of the broker's time for a message, in microseconds."""
    hop_ms: float = 0.0
    """Between broker and worker, one way."""
    outages: Outages = field(default_factory=Outages)
    primed: bool = False
    """Whether devices know from the beginning how long a round trip takes when nobody waits, as
    those do that have run for a while.
    """
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _COUNTS:
            take_count(getattr(self, name), name, 0 if name == "seed" else 1)
        for name in ("seconds", "deadline_ms"):
            take_number(getattr(self, name), name, positive=True)
        for name in ("pause_ms", "wait_ms", "broker_us", "hop_ms"):
            take_number(getattr(self, name), name)
        if not callable(self.policy) and self.policy not in get_args(Policy):
            known = ", ".join(get_args(Policy))
            raise InputError(f"policy {self.policy!r}; choose one of {known}, or give a function")
        given = [self.workload is not None, self.arrivals is not None, self.in_turn is not None]
        if sum(given) != 1:
            raise InputError("give one of a workload, arrivals, and rows in turn")
        if isinstance(self.workload, str):
            parse(self.workload)
        if self.in_turn is not None and len(self.in_turn) != self.devices:
            raise InputError(f"rows in turn for {len(self.in_turn)} of {self.devices} devices")
        if self.audit is not None:
            if not 0 < self.audit <= 1:
                raise InputError(f"audit is {self.audit}; give a share above 0, up to 1")
            if callable(self.policy):
                raise InputError("an audit tests the gate's decisions, not those of another policy")

    @property
    def data_change(self) -> float | None:
        """When the data begin to change, in s since the beginning; None if they do not."""
        return None if self.mix is None else self.mix.changes_at

    def chunks(self, n_rows: int) -> Iterable[Chunk]:
        """All arrivals of a table of `n_rows` rows, chunk by chunk of time."""
        rng = np.random.default_rng([self.seed, 1])
        if self.arrivals is not None:
            return self.arrivals(self.devices, self.seconds, rng)
        assert self.workload is not None
        rows = n_rows if self.mix is None else self.mix
        return draw_arrivals(self.workload, self.devices, self.seconds, rng, rows=rows)
