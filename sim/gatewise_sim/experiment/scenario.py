"""Settings of a simulation: fleet, link, workload, outages, prices. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from gatewise.documents.toml_settings import take_number
from gatewise.errors import InputError
from gatewise.formats import DAY, read_clock
from gatewise.imports import import_object
from gatewise_edge.device.answer import OwnPolicy, Policy
from gatewise_edge.link.mqtt import Endpoint
from gatewise_sim.command_options import option_words
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.network.profiles import profile
from gatewise_sim.fleet.settings import FleetSettings, policy_name, take_count
from gatewise_sim.fleet.worker import ServiceTime
from gatewise_sim.fleet.workload.arrivals import parse
from gatewise_sim.fleet.workload.row_mix import RowMix

Engine = Literal["virtual", "live"]
GOALS: Final = ("budget", "max_loss", "offload_rate")
"""Ways to choose an operating point."""

_UNTIL_KNOWN: Final = ServiceTime(0.001, 0.0)  # a calibration says it
OPTIONS: Final = {"seconds": "time", "outages": "outage"}
"""Options of the command line that have another name than their field."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A deployment, its workload, and how it is simulated.

    The words below each field are also the help of ``gatewise simulate``.

    Raises
    ------
    InputError
        If a value cannot be; the message names it.
    """

    devices: int = 100
    """Devices."""
    workers: int = 1
    """Cloud workers."""
    seconds: float = 3600.0
    """How long instances come, in s."""
    workload: str = "poisson:1/min"
    """Arrivals at each device: poisson:1/min, periodic:10s, bursty:1/min, diurnal:1/min:peak=14:00,
    replay:trace.csv.

    See :func:`gatewise_sim.fleet.workload.arrivals.parse`.
    """
    mix: str | None = None
    """Shares of the classes over time: linear,0s=1/1,1h=9/1 or steps,...; without it every row is
    equally likely.

    See :meth:`gatewise_sim.fleet.workload.row_mix.RowMix.parse`.
    """
    day_start: str = "00:00"
    """Time of day at the begin, HH:MM."""
    link: str = "4g"
    """Of each device: wifi, 4g, 3g, edge, nb-iot, satellite, none; or a file, link.toml."""
    tls: bool = False
    """Connections are encrypted (virtual engine): a new one takes a round trip more."""
    outages: str = ""
    """Joined by commas, see :meth:`gatewise_sim.fleet.network.outages.Outages.parse`."""
    deadline_ms: float = 500.0
    """For each answer, in ms."""
    policy: str | OwnPolicy | None = None
    """What decides after each stage: system, edge-only, cloud-only, or a function of your own, as
    my_policy:decide.

    As of :class:`gatewise_edge.device.device.Device`; here it may be the function itself.
    """
    audit: float | None = None
    """Share of the devices' own answers to audit, as 0.02."""
    breaker: bool = True
    """Devices take a break from a silent cloud, or retry without one."""
    outstanding: int = 32
    """Unanswered requests of a device."""
    queue: int = 1024
    """Requests that a worker queues."""
    max_batch: int = 16
    """Instances in a worker's run."""
    wait_ms: float = 0.0
    """A worker's wait for a fuller batch."""
    parallel: int = 1
    """A worker's runs at a time."""
    backend: str | None = None
    """What runs the high-cost model on this machine, as of gatewise cloud: python:module:attribute
    or a URL. Needed where the bundle has none.
    """
    budget: float | None = None
    """Mean cost per instance at most.

    At most one of this and the next two: which of the bundle's operating points; by default the
    active one.
    """
    max_loss: float | None = None
    """Accuracy to give up at most."""
    offload_rate: float | None = None
    """Share of instances to offload at most."""
    engine: Engine = "virtual"
    """virtual (a simulated clock) or live (real processes, real MQTT)."""
    broker: str | None = None
    """Live: URL of a broker that runs; mosquitto, or else the embedded one."""
    processes: int | None = None
    """Live: processes that hold the devices."""
    calibration: str | None = None
    """Service times measured before: calibration.json; assumptions by default."""
    prices: str | None = None
    """TOML: per_mb, per_worker_hour, per_kwh, ...: a bill.

    See :mod:`gatewise_sim.fleet.money`.
    """
    device_energy: str | None = None
    """TOML: idle_w, battery_wh, stage_j, feature_j, ...

    See :mod:`gatewise_sim.fleet.energy`.
    """
    baselines: bool = True
    """Other policies answer the same instances, or the system alone."""
    seed: int = 0
    """Of all randomness."""

    def __post_init__(self) -> None:
        if self.processes is not None:
            take_count(self.processes, "processes", 1)
        for name, value in self.goal.items():
            take_number(value, name)
        if self.engine not in get_args(Engine):
            raise InputError(f"engine {self.engine!r}; choose one of {', '.join(get_args(Engine))}")
        if len(self.goal) > 1:
            raise InputError("give one of budget, max_loss and offload_rate, not several")
        if self.engine != "live":
            for name in ("broker", "processes"):
                if getattr(self, name) is not None:
                    raise InputError(f"{name} goes with the live engine (--engine live)")
        if self.tls and self.engine == "live":
            raise InputError("tls goes with the virtual engine: a live run has a broker without it")
        self.settings()  # checks all else

    def settings(self, labels: Sequence[int] | NDArray[np.int64] | None = None) -> FleetSettings:
        """Describe the deployment as both engines take it; service times are yet to be applied.

        `labels` (class of each row, shape (n,)) are for a class mix; without them it is left out.
        """
        day_begins = read_clock(self.day_start, "day_start") % DAY
        same = {field.name for field in fields(FleetSettings)} & vars(self).keys()
        return FleetSettings(
            **{name: getattr(self, name) for name in same}
            | {
                "policy": self._policy,
                "workload": parse(self.workload, day_begins=day_begins),
                "mix": None if labels is None or not self.mix else RowMix.parse(self.mix, labels),
                "link": profile(self.link),
                "service": _UNTIL_KNOWN,
                "outages": Outages.parse(self.outages, day_begins=day_begins),
            }
        )

    @property
    def _policy(self) -> Policy | OwnPolicy:
        """The policy by its name, or imported."""
        given = "system" if self.policy is None else self.policy
        if isinstance(given, str) and ":" in given:
            given = import_object("policy", given)
            if not callable(given):
                raise InputError(f"policy {self.policy}: give module:function; this is no function")
        return given  # type: ignore[return-value]  # FleetSettings checks names

    @property
    def goal(self) -> dict[str, float]:
        """How the operating point is chosen; empty: the active one."""
        return {g: getattr(self, g) for g in GOALS if getattr(self, g) is not None}

    def changed(self, **changes: Any) -> Self:
        """Copy the scenario with other values; InputError if a name or a value is not known."""
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                raise InputError(f"no setting {name!r}; there are {', '.join(sorted(known))}")
        if any(changes.get(name) is not None for name in GOALS):
            changes = dict.fromkeys(GOALS) | changes  # the new one takes the old one's place
        return replace(self, **changes)

    def words(self) -> list[str]:
        """Options of the command line for this scenario, beyond the defaults."""
        texts = {"seconds": f"{self.seconds:.12g}s"}
        if callable(self.policy):
            texts["policy"] = policy_name(self.policy)
        return option_words(self, always=("seed",), names=OPTIONS, texts=texts)

    def as_dict(self) -> dict[str, Any]:
        """The settings for a report: no password, and none that is None."""
        named = replace(self, policy=None) if callable(self.policy) else self
        given = {k: v for k, v in asdict(named).items() if v is not None and v != ""}
        if callable(self.policy):
            given["policy"] = policy_name(self.policy)
        if self.broker is not None:
            given["broker"] = Endpoint(self.broker).url
        return given
