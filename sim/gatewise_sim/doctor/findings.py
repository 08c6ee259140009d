"""Finding of one check of the doctor, and the settings of the device that is checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gatewise_edge.link.mqtt import Endpoint

__all__ = ["DeviceSettings", "Finding", "note", "ok", "problem", "skipped"]

State = Literal["ok", "problem", "note", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one check.

    Attributes
    ----------
    check : str
        Its subject: ``packages``, ``bundle``, ``tls``, ...
    state : {"ok", "problem", "note", "skipped"}
    code : str
        A short name of the problem, for machines; that of the check if there is none.
    says : str
        One line for people.
    remedy : str
        What to do; empty if there is nothing.
    """

    check: str
    state: State
    code: str
    says: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """The attributes, fit for JSON."""
        return asdict(self)


def ok(check: str, says: str) -> Finding:
    """Make the finding of a check that holds."""
    return Finding(check, "ok", check, says)


def problem(check: str, code: str, says: str, remedy: str) -> Finding:
    """Make the finding of a check that fails."""
    return Finding(check, "problem", code, says, remedy)


def note(check: str, code: str, says: str, remedy: str = "") -> Finding:
    """Make a finding that is no problem and worth knowing."""
    return Finding(check, "note", code, says, remedy)


def skipped(check: str, why: str) -> Finding:
    """Make the finding of a check that could not be made."""
    return Finding(check, "skipped", check, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """The settings of the device to examine.

    Parameters
    ----------
    broker : str or None
        URL, as a device takes it; None: this machine only.
    device : str, optional
        The device's id; without it the common name of `cert_file`, else ``gatewise-doctor``.
    bundle : path, optional
        Without it no model's answer is tried.
    ca_file, cert_file, key_file : path, optional
        For TLS.
    deadline_ms : float, default 500
        Of the device's answers: a broker is slow that leaves no time for a retry.
    timeout : float, default 3
        Seconds to wait for whatever should come.
    """

    broker: str | None
    device: str | None = None
    bundle: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    deadline_ms: float = 500.0
    timeout: float = 3.0

    @property
    def name(self) -> str:
        """The device's id, once it is known."""
        return self.device or ""

    @property
    def endpoint(self) -> Endpoint:
        """The broker, with the files for TLS."""
        from gatewise_edge.link.mqtt import Endpoint

        return Endpoint(
            self.broker or "",
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
        )
