"""Findings of the doctor, and the settings of the device that it examines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from gatewise.documents import Meta
from gatewise.settings import Settings

if TYPE_CHECKING:
    from gatewise_edge.link.broker_url import Endpoint

CheckName = Literal["installation", "bundle", "broker", "round trip", "worker"]
State = Literal["ok", "problem", "note"]

ACCESS_LIST: Final = "the access list (gatewise broker init writes one)"
SET_CLOCK: Final = "set the clock: timedatectl set-ntp true, or add a clock with a battery"


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one check."""

    check: CheckName
    state: State
    #: Identifier of the problem or note, for programs; empty if the check passes.
    code: str
    #: Description in one line.
    text: str
    #: Advice; empty if there is nothing to do.
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """One of the doctor's checks, which makes findings with its `name`."""

    name: CheckName

    def ok(self, text: str) -> Finding:
        """Make the finding of a check that passes."""
        return Finding(self.name, "ok", "", text)

    def problem(self, code: str, text: str, remedy: str) -> Finding:
        """Make the finding of a check that fails."""
        return Finding(self.name, "problem", code, text, remedy)

    def note(self, code: str, text: str, remedy: str = "") -> Finding:
        """Make a finding that is no problem, but important for the user."""
        return Finding(self.name, "note", code, text, remedy)


INSTALLATION: Final = Check("installation")
BUNDLE: Final = Check("bundle")
BROKER: Final = Check("broker")
ROUND_TRIP: Final = Check("round trip")
WORKER: Final = Check("worker")


class DeviceSettings(Settings, frozen=True):
    """Settings of the device to examine."""

    bundle: Annotated[
        Path | None,
        typer.Argument(help="Bundle of the device; the worker must answer one of its sample rows."),
    ] = None
    broker: Annotated[
        str | None, typer.Option(help="URL of the broker, mqtt://user:password@host or mqtts://.")
    ] = None
    device: Annotated[
        str | None, typer.Option(help="Id of the device; by default the name in its certificate.")
    ] = None
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates of the trusted authorities, for mqtts://.")
    ] = None
    cert_file: Annotated[Path | None, typer.Option(help="Certificate of the device.")] = None
    key_file: Annotated[Path | None, typer.Option(help="Key of the device's certificate.")] = None
    timeout: Annotated[
        float, Meta(gt=0, le=60), typer.Option(help="Time to wait for each reply, in s.")
    ] = 3.0
    block: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="NAME=MODULE:FUNCTION", help="Python function of a block of the bundle."
        ),
    ] = ()

    @property
    def endpoint(self) -> Endpoint:
        """Address of the broker, with the files for TLS."""
        from gatewise_edge.link.broker_url import Endpoint

        return Endpoint(
            self.broker or "",
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
        )
