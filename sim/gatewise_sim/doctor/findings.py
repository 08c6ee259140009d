"""Finding of one check of the doctor, and the settings of the device that it examines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from gatewise_edge.link.mqtt import Endpoint

State = Literal["ok", "problem", "note", "skipped"]

ACCESS_LIST: Final = "the access list (gatewise broker init writes one)"
SET_CLOCK: Final = "set the clock: timedatectl set-ntp true, or add a clock with a battery"
INSTALL_ONNXRUNTIME: Final = (
    "no-onnxruntime",
    "onnxruntime is not installed: stages run slower, in numpy",
    "pip install onnxruntime, where there is one for this machine",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one check."""

    check: str
    """Its subject: ``packages``, ``bundle``, ``tls``, ..."""
    state: State
    code: str
    """A short name of the problem, for machines; that of the check if there is none."""
    says: str
    """One line for people."""
    remedy: str = ""
    """What to do; empty if there is nothing."""


def ok(check: str, says: str) -> Finding:
    """Make the finding of a check that holds."""
    return Finding(check, "ok", check, says)


def skipped(check: str, why: str) -> Finding:
    """Make the finding of a check that could not be made."""
    return Finding(check, "skipped", check, why)


def problem(check: str, code: str, says: str, remedy: str) -> Finding:
    """Make the finding of a check that fails."""
    return Finding(check, "problem", code, says, remedy)


def note(check: str, code: str, says: str, remedy: str = "") -> Finding:
    """Make a finding that is no problem and worth knowing."""
    return Finding(check, "note", code, says, remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """The settings of the device to examine."""

    broker: str | None = None
    """mqtt://[user:password@]host[:port] or mqtts://...; without it this machine only."""
    device: str | None = None
    """The device's id; without it the name in its certificate."""
    bundle: Path | None = None
    """Without it no model's answer is tried."""
    blocks: tuple[str, ...] = ()
    """``NAME=module:function``: functions of its blocks."""
    ca_file: Path | None = None
    """Authorities trusted for mqtts://."""
    cert_file: Path | None = None
    """The device's certificate."""
    key_file: Path | None = None
    """Its key."""
    deadline_ms: float = 500.0
    """The device's deadline, in ms: a broker is slow that leaves no time for a retry."""
    timeout: float = 3.0
    """How long to wait for what should come, in seconds."""

    @property
    def name(self) -> str:
        """The device's id, once it is known."""
        return self.device or ""

    @property
    def endpoint(self) -> Endpoint:
        """The broker, with the files for TLS."""
        from gatewise_edge.link.mqtt import Endpoint

        files = {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
        return Endpoint(self.broker or "", **files)
