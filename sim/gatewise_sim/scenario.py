"""Scenario of a simulation: fleet, link, workload, outages and prices, in one record."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

import msgspec
import typer
from msgspec import Meta

from gatewise.documents import Amount, Share
from gatewise.errors import InputError
from gatewise.formats import DAY, read_clock, read_span
from gatewise.settings import FileOption, Settings, file_settings, option_words
from gatewise_edge.link.endpoint import Endpoint
from gatewise_edge.link.offload_rules import TokenBucket
from gatewise_sim.fleet.link import PROFILES, LinkProfile, read_profile
from gatewise_sim.fleet.outages import Outages
from gatewise_sim.fleet.row_mix import RowMix
from gatewise_sim.fleet.workload import Arrivals, Workload, draw_arrivals, read_workload
from gatewise_sim.timings import Timings

#: A number of things, at least one.
Count = Annotated[int, Meta(ge=1)]

#: Fields that choose an operating point; a scenario may have one of them.
GOALS: Final = ("budget", "max_loss", "offload_rate")
#: Length of a run by its engine. A live run takes this long in real time.
_DEFAULT_TIME: Final = {"virtual": "1h", "live": "60s"}
#: Field with the service times, which the run measures. Reports and settings files have a separate
#: table for them.
_TIMINGS_FIELD: Final = "timings"


class Scenario(Settings, frozen=True, kw_only=True, dict=True):  # dict=True for cached properties
    """A deployment, its workload, and the engine that simulates them.

    Each field has the help text of the option of ``gatewise simulate``. Fields with a
    :class:`FileOption` are set only from Python or with ``--settings FILE.toml``. A field is the
    text or number that the user gave, and the properties are the objects that it describes.

    Raises
    ------
    InputError
        If a value is out of range or contradicts another one. The message names the field.
    """

    devices: Annotated[int, Meta(ge=1), typer.Option(help="Number of devices.")] = 100
    workers: Annotated[int, Meta(ge=1), typer.Option(help="Number of cloud workers.")] = 1
    time: Annotated[
        str | None,
        typer.Option(
            help="Length of the run, such as 10min or 1day; by default 1h, or 60s for a live run."
        ),
    ] = None
    workload: Annotated[
        str,
        typer.Option(
            help="Arrivals at each device: poisson:1/min, periodic:10s, bursty:1/min, "
            "diurnal:1/min:peak=14:00, replay:trace.csv."
        ),
    ] = "poisson:1/min"
    link: Annotated[
        str, typer.Option(help=f"Link of each device: {', '.join(PROFILES)}; or a file, link.toml.")
    ] = "4g"
    outage: Annotated[
        tuple[str, ...],
        typer.Option(
            help="Outages: cloud:12:00-12:10, link:+30s-+35s, workers:2:+1min-+2min, broker:... "
            "Repeatable."
        ),
    ] = ()
    deadline_ms: Annotated[
        float, Meta(gt=0), typer.Option(help="Longest time to an answer, in ms.")
    ] = 500.0
    policy: Annotated[
        Literal["system", "edge-only", "cloud-only"],
        typer.Option(
            help="Policy of the devices: the bundle's thresholds, or offload no instance or all."
        ),
    ] = "system"
    max_offloads: Annotated[
        str | None, typer.Option(help="Largest rate of offloads of a device: 60/h, 5/min, ...")
    ] = None
    audit: Annotated[
        Share | None,
        typer.Option(help="Share of the devices' own answers to audit, such as 0.02."),
    ] = None
    budget: Annotated[
        Amount | None, typer.Option(help="Operating point: largest mean cost per instance.")
    ] = None
    max_loss: Annotated[
        Share | None, typer.Option(help="Operating point: largest loss of accuracy.")
    ] = None
    offload_rate: Annotated[
        Share | None, typer.Option(help="Operating point: largest share of offloaded instances.")
    ] = None
    engine: Annotated[
        Literal["virtual", "live"],
        typer.Option(
            help="Engine: virtual (a simulated clock) or live (real processes, real MQTT)."
        ),
    ] = "virtual"
    broker: Annotated[
        str | None,
        typer.Option(help="URL of a running broker for a live run; by default one is started."),
    ] = None
    prices: Annotated[
        str | None,
        typer.Option(help="TOML file of prices for the bill: per_mb, per_worker_hour, ..."),
    ] = None
    device_energy: Annotated[
        str | None,
        typer.Option(help="TOML file of a device's energy: idle_w, battery_wh, stage_j, ..."),
    ] = None
    backend: Annotated[
        str | None,
        typer.Option(
            help="Backend of the high-cost model, as for gatewise cloud: python:module:attribute."
        ),
    ] = None
    seed: Annotated[int, Meta(ge=0), typer.Option(help="Seed of all randomness.")] = 0

    mix: Annotated[
        str | None, FileOption("Shares of the classes over time: linear,0s=1/1,1h=9/1 or steps,...")
    ] = None
    day_start: Annotated[str, FileOption("Time of day at the start of the run, HH:MM.")] = "00:00"
    tls: Annotated[
        bool, FileOption("Whether links use TLS, which costs a round trip (virtual engine).")
    ] = False
    breaker: Annotated[bool, FileOption("Whether devices have a circuit breaker.")] = True
    outstanding: Annotated[
        Count, FileOption("Largest number of unanswered requests of a device.")
    ] = 32
    queue: Annotated[Count, FileOption("Largest number of requests in a worker's queue.")] = 1024
    max_batch: Annotated[Count, FileOption("Largest number of instances in a worker's run.")] = 16
    wait_ms: Annotated[Amount, FileOption("Longest wait of a worker to fill a batch, in ms.")] = 0.0
    parallel: Annotated[Count, FileOption("Number of simultaneous runs of a worker.")] = 1
    baselines: Annotated[bool, FileOption("Whether to run other policies for comparison.")] = True
    timings: Annotated[
        Timings | None, FileOption("Table of service times; by default the run measures them.")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.goal) > 1:
            raise InputError("give one of budget, max_loss and offload_rate, not several")
        if self.engine != "live" and self.broker is not None:
            raise InputError("broker can only be used with the live engine (--engine live)")
        if self.engine == "live" and self.tls:
            raise InputError(
                "tls can only be used with the virtual engine: the broker of a live run has no TLS"
            )
        if self.max_offloads is not None:
            TokenBucket.parse(self.max_offloads)  # raises InputError if it is malformed
        if self.audit == 0:
            raise InputError("audit is 0; give a share above 0")
        # Parse these texts now, so that a malformed one is reported before the run. A class mix can
        # only be parsed with the labels, and the files of prices and energy with the bundle.
        _ = self.seconds, self.arrival_process, self.link_profile, self.outages

    # -- parsed settings --------------------------------------------------------------------------

    @cached_property
    def seconds(self) -> float:
        """Length of the run in s; the last answers may arrive later."""
        seconds = read_span(self._time_text, "time")
        if not seconds > 0:
            raise InputError(f"time {self._time_text!r} must be above 0")
        return seconds

    @property
    def _time_text(self) -> str:
        return self.time or _DEFAULT_TIME[self.engine]

    @cached_property
    def start_time_of_day(self) -> float:
        """Time of day (s) at the start of the run; 24:00 is midnight."""
        return read_clock(self.day_start, "day_start") % DAY

    @cached_property
    def arrival_process(self) -> Workload:
        """Arrivals of instances at each device."""
        return read_workload(self.workload, start_time_of_day=self.start_time_of_day)

    @cached_property
    def link_profile(self) -> LinkProfile:
        """Link of each device."""
        return read_profile(self.link)

    @cached_property
    def outages(self) -> Outages:
        """Outages of the run."""
        return Outages.parse(
            self.outage, run_seconds=self.seconds, start_time_of_day=self.start_time_of_day
        )

    @property
    def goal(self) -> dict[str, float]:
        """Field and value that choose the operating point; if empty, the active one is used."""
        return {name: getattr(self, name) for name in GOALS if getattr(self, name) is not None}

    def draw_fleet_arrivals(
        self, n_rows: int, truth: Any = None, *, n_devices: int | None = None
    ) -> Arrivals:
        """Draw the instances of `n_devices` devices, sorted by time; by default of all devices.

        Each instance is one of `n_rows` rows. `truth` contains the class index of each row; without
        it the class mix is not applied, and every row is equally likely.
        """
        mix = None if self.mix is None or truth is None else RowMix.parse(self.mix, truth)
        return draw_arrivals(
            self.arrival_process,
            self.devices if n_devices is None else n_devices,
            self.seconds,
            n_rows=n_rows,
            mix=mix,
            seed=self.seed,
        )

    # -- copies and texts -----------------------------------------------------------------------

    def changed(self, **changes: Any) -> Self:
        """Copy the scenario with other values; InputError if a name or a value is invalid."""
        for name in changes:
            if name not in self.__struct_fields__:
                names = ", ".join(sorted(self.__struct_fields__))
                raise InputError(f"unknown setting {name!r}; the settings are {names}")
        if any(changes.get(name) is not None for name in GOALS):
            changes = dict.fromkeys(GOALS) | changes  # a new goal replaces the old one
        return msgspec.structs.replace(self, **changes)

    def command_options(self) -> list[str]:
        """List the command-line options of the settings that differ from the defaults.

        The seed is always among them, because it makes the run repeatable, and passwords never are.
        """
        replacement_texts = {}
        if self.broker is not None:
            replacement_texts["broker"] = Endpoint(self.broker).url  # without user and password
        return option_words(self, always_written=("seed",), replacement_texts=replacement_texts)

    def as_dict(self) -> dict[str, Any]:
        """List the settings for a report, without timings, passwords and empty values."""
        settings = {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name != _TIMINGS_FIELD and getattr(self, name) not in (None, ())
        }
        if self.broker is not None:
            settings["broker"] = Endpoint(self.broker).url  # without user and password
        return settings | {"time": self._time_text}

    def file_only_settings(self) -> dict[str, Any]:
        """List the settings that only a file can have, if not the defaults, except timings."""
        default_scenario = Scenario()
        return {
            name: getattr(self, name)
            for name in file_settings(Scenario)
            if name != _TIMINGS_FIELD and getattr(self, name) != getattr(default_scenario, name)
        }
