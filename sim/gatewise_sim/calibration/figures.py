"""Service times of real machines for virtual time, and a file to keep them in.

Written as JSON; read as JSON, or as TOML if the name ends in ``.toml``::

    kind = "gatewise-calibration"
    model = "digits/1"          # of the bundle
    edge_ms = [0.05, 0.09]      # until each stage has answered, one for each on the device
    broker_us = 30              # of the broker's time for a message
    hop_ms = 0.16               # between broker and worker, one way
    proxy_ms = 0.7              # of an emulated link beside its delay, one way; 0 if left out

    [service]                   # a worker's time for a run of n instances, m requests:
    base_us = 115               # base + each * n + message * m
    each_us = 29
    message_us = 265
    spread = "fixed"            # or "exponential"

    [about]                     # optional: what it was measured on
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from gatewise.documents.toml_settings import SettingsTable, take_number
from gatewise.errors import InputError
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import ServiceTime
from gatewise_sim.report.output import write_text

KIND: Final = "gatewise-calibration"
_WHAT: Final = "calibration file"
_FIGURES: Final = ("broker_us", "hop_ms", "proxy_ms")
_KEYS: Final = ("kind", "model", "edge_ms", "service", *_FIGURES, "about")
_TIMES: Final = ("base_us", "each_us", "message_us")
_Spread = Literal["fixed", "exponential"]
_SPREADS: Final[dict[str, _Spread]] = {spread: spread for spread in get_args(_Spread)}

ASSUMED_SERVICE: Final = ServiceTime(115e-6, 29e-6, 265e-6)
"""A worker with an RBF support vector machine of digits on one x86-64 core."""
_ASSUMED_EDGE_MS: Final = (0.015, 0.03)  # once, and for every stage visited
_ASSUMED_BROKER_US: Final = 30.0
_ASSUMED_HOP_MS: Final = 0.16


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How long devices, broker and workers take for what they do; InputError on an impossible time.

    The assumed figures are those of a 2-core x86-64 machine, by ``make bench-edge`` and ``make
    bench-cloud`` (``benchmarks/results/edge.json``, ``cloud.json``): a device of one stage answers
    in 45 us, a cascade of 8 stages in 245 us (so 15 us, and 30 us a stage); a support vector
    machine's run takes 144 us alone and 1041 us for 32 (115 us, and 29 us each); one worker carries
    2441 requests a second (410 us each, 265 us of them beside the run); mosquitto routes a message
    in 20 to 40 us; one request at a time takes 783 us, which leaves 160 us a hop. A Raspberry Pi is
    several times slower: measure there, or write a file.
    """

    model: str
    """Name and version of the bundle, as ``digits/1``."""
    edge_ms: tuple[float, ...]
    """Until the stage that stops has answered, by stage, in ms."""
    service: ServiceTime
    """Of a worker."""
    broker_us: float
    """Of the broker's time for a message, in us."""
    hop_ms: float
    """One way between broker and worker, in ms; what a request takes beside all other figures
    (threads that wake, encoding, sockets on the device) is halved and added.
    """
    proxy_ms: float = 0.0
    """What the proxy of an emulated link takes beside the link's delay, one way, in ms."""
    source: str = "assumed"
    """``assumed``, ``measured``, or the name of the file it was read from."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What it was measured on, fit for JSON."""

    def __post_init__(self) -> None:
        if not self.edge_ms:
            raise InputError("calibration: edge_ms has no figure; give one for each stage")
        for i, ms in enumerate(self.edge_ms):
            take_number(ms, f"calibration: edge_ms[{i}]")
        for name in _FIGURES:
            take_number(getattr(self, name), f"calibration: {name}")

    @classmethod
    def assumed(cls, routes: Routes) -> Self:
        """Figures of a common machine for a bundle of these routes; see the notes."""
        once, each = _ASSUMED_EDGE_MS
        return cls(
            model=model_of(routes),
            edge_ms=tuple(round(once + each * (i + 1), 6) for i in range(routes.plan.n_stages)),
            service=ASSUMED_SERVICE,
            broker_us=_ASSUMED_BROKER_US,
            hop_ms=_ASSUMED_HOP_MS,
        )

    @classmethod
    def from_file(cls, path: str | Path, *, n_stages: int | None = None) -> Self:
        """Read a file as shown above, with `n_stages` figures for the stages if given."""
        path = Path(path)
        parse = tomllib.loads if path.suffix == ".toml" else json.loads
        table = SettingsTable.read(path, _WHAT, _KEYS, parse=parse)
        table.choice("kind", {KIND: KIND})
        return cls(
            model=table.text("model"),
            edge_ms=tuple(table.number_list("edge_ms", n_stages, "stages run on the device")),
            service=_read_service(table, "service"),
            broker_us=table.number("broker_us"),
            hop_ms=table.number("hop_ms"),
            proxy_ms=table.number("proxy_ms", 0.0),
            source=path.name,
            about=_about_of(table.get("about", {}), table.place("about")),
        )

    def apply(self, settings: FleetSettings, *, live: bool = False) -> FleetSettings:
        """Settings with these figures in place of their own.

        `live`: for a live run here, with links emulated by a proxy
        (:class:`gatewise_sim.fleet.network.proxy.DelayProxy`), and not links that are real.
        """
        link = settings.link
        if live and link.delays and self.proxy_ms:
            link = replace(link, rtt_ms=link.rtt_ms + 2 * self.proxy_ms)
        return replace(
            settings,
            edge_ms=self.edge_ms,
            service=self.service,
            broker_us=self.broker_us,
            hop_ms=self.hop_ms,
            link=link,
        )

    def as_dict(self) -> dict[str, Any]:
        """The figures in plain numbers, without `about`; `kind` is the source."""
        return {
            "kind": self.source,
            "model": self.model,
            "edge_ms": list(self.edge_ms),
            "service": _written(self.service),
            **{name: getattr(self, name) for name in _FIGURES},
        }

    def to_json(self) -> str:
        """Text of a file that :meth:`from_file` reads."""
        document = self.as_dict() | {"kind": KIND, "about": dict(self.about)}
        return json.dumps(document, indent=1, allow_nan=False) + "\n"

    def write(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all; InputError if that cannot be done."""
        path = Path(path)
        try:
            write_text(path, self.to_json())
        except OSError as error:
            raise InputError(f"{_WHAT} {path}: {error.strerror or error}") from error


def _read_service(table: SettingsTable, key: str) -> ServiceTime:
    service = table.table(key, (*_TIMES, "spread"))
    base, each, message = (service.number(name) / 1e6 for name in _TIMES)
    spread = service.choice("spread", _SPREADS, "fixed")
    with table.named_in_errors(key):
        return ServiceTime(base, each, message, spread)


def _written(service: ServiceTime) -> dict[str, Any]:
    times = (service.base, service.each, service.message)
    # Rounded, so that what was read from a file is written as it was.
    return {key: round(1e6 * s, 6) for key, s in zip(_TIMES, times, strict=True)} | {
        "spread": service.spread
    }


def model_of(routes: Routes) -> str:
    """Name and version of a bundle, as in a calibration."""
    return f"{routes.plan.model}/{routes.plan.version}"


def _about_of(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where} is {value!r}, not a table")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:  # TOML has dates, and numbers that are none
        raise InputError(f"{where}: {error}") from error
    return value
