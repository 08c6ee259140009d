"""Settings of a simulation: fleet, link, workload, outages, prices. Plain values."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.formats import DAY, read_clock
from gatewise.imports import import_object
from gatewise_edge.device.answer import OwnPolicy, Policy
from gatewise_edge.device.auditor import Audit
from gatewise_edge.device.pacer import Pacer
from gatewise_edge.link.mqtt import Endpoint
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.network.profiles import profile
from gatewise_sim.fleet.settings import FleetSettings, policy_name
from gatewise_sim.fleet.worker import ServiceTime
from gatewise_sim.fleet.workload.arrivals import parse
from gatewise_sim.fleet.workload.row_mix import RowMix

Engine = Literal["virtual", "live"]
GOALS: Final = ("budget", "max_loss", "offload_rate")
"""Ways to choose an operating point."""

_COUNTS: Final = (
    "devices", "gateways", "workers", "outstanding", "queue", "max_batch", "parallel", "seed",
)  # fmt: skip
_AS_THEY_ARE: Final = (*_COUNTS, "breaker", "tls", "pace", "audit", "backend")
_UNTIL_KNOWN: Final = ServiceTime(0.001, 0.0)  # a calibration says it
#: Options of the command line that have another name than their field.
_OPTIONS: Final = {"seconds": "time", "outages": "outage"}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A deployment, its workload, and how it is simulated.

    Attributes
    ----------
    devices, workers : int
        How many there are.
    gateways : int
        Of a bundle that places stages on gateways: how many, to which devices are dealt in turn.
    uplink : str
        Link from each gateway to the cloud, as `link`.
    seconds : float
        How long instances come, in s.
    workload : str
        How they come to each device, see :func:`gatewise_sim.fleet.workload.arrivals.parse`.
    mix : str or None
        Shares of the classes over time, see
        :meth:`gatewise_sim.fleet.workload.row_mix.RowMix.parse`; None: every row is equally likely.
    day_start : str
        Time of day at which the run begins, ``HH:MM``.
    link : str
        A profile of :data:`gatewise_sim.fleet.network.profiles.PROFILES`, or a TOML file.
    tls : bool
        Whether connections are encrypted, for the virtual engine: a new one, after an outage of
        link or broker, takes a round trip more.
    outages : str
        See :meth:`gatewise_sim.fleet.network.outages.Outages.parse`.
    deadline_ms : float
        Milliseconds within which a device answers.
    policy : str, callable or None
        What decides after each stage: a policy of :class:`gatewise_edge.device.device.Device`,
        ``system`` by default; ``module:function`` imports one.
    pace : str or None
        Budget of every device's pacer, as ``offload_rate=0.1``.
    audit : float or None
        Share of the devices' own answers that is sent to the high-cost model, too, and tested; see
        :class:`gatewise_edge.device.auditor.Audit`.
    breaker : bool
        Whether devices stop to ask a cloud that does not reply.
    coalesce_ms : float
        How long, in ms, a device's request waits for those of more rows, to share a message.
    outstanding : int
        Requests that a device has out at most.
    queue, max_batch, parallel : int
    wait_ms : float
        As of :class:`gatewise_cloud.worker.worker.Worker`.
    backend : str or None
        What runs the high-cost model, on this machine: ``python:module:attribute`` or a URL, as of
        ``gatewise cloud``. Needed where the bundle does not carry it.
    budget, max_loss, offload_rate : float or None
        At most one: which of the bundle's operating points; the active one by default.
    engine : {"virtual", "live"}
        Virtual time, or processes on this machine.
    broker : str or None
        URL of a running broker, for the live engine.
    processes : int or None
        That hold the devices, for the live engine.
    calibration : str or None
        File of service times; documented assumptions by default.
    prices, device_energy : str or None
        TOML files, see :mod:`gatewise_sim.fleet.money` and :mod:`gatewise_sim.fleet.energy.device`.
    baselines : bool
        Whether to run the baselines, too.
    seed : int
        Of all randomness.

    Raises
    ------
    InputError
        If a value cannot be; the message names it.
    """

    devices: int = 100
    workers: int = 1
    gateways: int = 1
    uplink: str = "none"
    seconds: float = 3600.0
    workload: str = "poisson:1/min"
    mix: str | None = None
    day_start: str = "00:00"
    link: str = "4g"
    tls: bool = False
    outages: str = ""
    deadline_ms: float = 500.0
    policy: str | OwnPolicy | None = None
    pace: str | None = None
    audit: float | None = None
    breaker: bool = True
    coalesce_ms: float = 0.0
    outstanding: int = 32
    queue: int = 1024
    max_batch: int = 16
    wait_ms: float = 0.0
    parallel: int = 1
    backend: str | None = None
    budget: float | None = None
    max_loss: float | None = None
    offload_rate: float | None = None
    engine: Engine = "virtual"
    broker: str | None = None
    processes: int | None = None
    calibration: str | None = None
    prices: str | None = None
    device_energy: str | None = None
    baselines: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (*_COUNTS, "processes"):
            value = getattr(self, name)
            if name == "processes" and value is None:
                continue
            least = 0 if name == "seed" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} is {value!r}; give a whole number, at least {least}")
        for name in ("seconds", "deadline_ms", "wait_ms", "coalesce_ms", "audit", *GOALS):
            value = getattr(self, name)
            if name in ("audit", *GOALS) and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"{name} is {value!r}, not a number")
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} is {value}; it must be at least 0")
        if self.engine not in get_args(Engine):
            raise InputError(f"engine {self.engine!r}; choose one of {', '.join(get_args(Engine))}")
        if sum(getattr(self, name) is not None for name in GOALS) > 1:
            raise InputError("give one of budget, max_loss and offload_rate, not several")
        if self.engine != "live":
            for name in ("broker", "processes"):
                if getattr(self, name) is not None:
                    raise InputError(f"{name} goes with the live engine (--engine live)")
        if self.tls and self.engine == "live":
            raise InputError("tls goes with the virtual engine: a live run has a broker without it")
        if self.pace is not None:
            Pacer.parse(self.pace)
        if self.audit is not None:
            Audit(self.audit)
        # Whatever else a text may hold is found out here, not after the first policy.
        self.settings()

    def settings(self, labels: Sequence[int] | NDArray[np.int64] | None = None) -> FleetSettings:
        """Describe the deployment as both engines take it; service times are yet to be applied.

        `labels` (class of each row, shape (n,)) are for a class mix; without them it is left out.
        """
        day_begins = read_clock(self.day_start, "day_start") % DAY
        mix = None
        if self.mix is not None and labels is not None:
            mix = RowMix.parse(self.mix, labels)
        return FleetSettings(
            **{name: getattr(self, name) for name in _AS_THEY_ARE},
            policy=self._policy,
            seconds=float(self.seconds),
            deadline_ms=float(self.deadline_ms),
            wait_ms=float(self.wait_ms),
            coalesce_ms=float(self.coalesce_ms),
            workload=parse(self.workload, day_begins=day_begins),
            mix=mix,
            link=profile(self.link),
            uplink=profile(self.uplink),
            service=_UNTIL_KNOWN,
            outages=Outages.parse(self.outages, day_begins=day_begins),
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
        return option_words(self, always=("seed",), names=_OPTIONS, texts=texts)

    def as_dict(self) -> dict[str, Any]:
        """The settings for a report: no password, and none that is None."""
        named = replace(self, policy=None) if callable(self.policy) else self
        given = {k: v for k, v in asdict(named).items() if v is not None and v != ""}
        if callable(self.policy):
            given["policy"] = policy_name(self.policy)
        if self.broker is not None:
            given["broker"] = Endpoint(self.broker).url
        return given


def option_words(
    settings: Any,
    *,
    always: Collection[str],
    names: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
) -> list[str]:
    """Words of a command line for a dataclass of settings: what is no default, or `always` given.

    `names` are those of options that are called otherwise than their fields, `texts` those of
    values that are written otherwise. A broker is written without its user and password.
    """
    found = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value == field.default and field.name not in always:
            continue
        option = (names or {}).get(field.name, field.name).replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{option}" if value else f"--no-{option}")
            continue
        if field.name == "broker":
            value = Endpoint(value).url
        text = f"{value:.12g}" if isinstance(value, float) else str(value)
        found += [f"--{option}", shlex.quote((texts or {}).get(field.name, text))]
    return found
