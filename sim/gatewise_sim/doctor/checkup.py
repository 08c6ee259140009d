"""What is wrong between this device and its cloud, found out by trying; and what to do.

An MQTT 3.1.1 broker refuses without a word: a denied SUBSCRIBE looks granted, a denied PUBLISH
is acknowledged. So nothing here believes an acknowledgement alone: a request is sent and its
response awaited, a message is published and read back. Where the broker speaks MQTT 5, its
reason codes say in addition why a round trip failed; the runtime itself never needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

__all__ = ["Finding", "Patient", "examine"]

State = Literal["ok", "problem", "note", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes
    ----------
    check : str
        What was looked at: ``packages``, ``bundle``, ``tls``, ...
    state : {"ok", "problem", "note", "skipped"}
    code : str
        A short name of what is the matter, for machines; that of the check if nothing is.
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
    """Nothing is the matter."""
    return Finding(check, "ok", check, says)


def problem(check: str, code: str, says: str, remedy: str) -> Finding:
    """Something is."""
    return Finding(check, "problem", code, says, remedy)


def note(check: str, code: str, says: str, remedy: str = "") -> Finding:
    """Something is as it may be, and should be known."""
    return Finding(check, "note", code, says, remedy)


def skipped(check: str, why: str) -> Finding:
    """It could not be looked at."""
    return Finding(check, "skipped", check, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """Whom to examine.

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
        assert self.device is not None
        return self.device

    @property
    def tls_files(self) -> dict[str, Path | None]:
        """As keyword arguments of :class:`gatewise_edge.link.mqtt.Endpoint`."""
        return {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}


def examine(patient: Patient) -> Iterator[Finding]:
    """Run all checks, from the machine itself outwards; what a failed one makes vain is left out.

    Parameters
    ----------
    patient : Patient

    Yields
    ------
    Finding
        As they are made.

    Raises
    ------
    InputError
        If the URL or a file's name is wrong: nothing to examine.
    WireError
        If the device id cannot be a topic level.
    """
    from gatewise_sim.doctor.local import check_bundle, check_packages

    packages, missing = check_packages()
    if missing:
        yield packages
        return
    from gatewise_edge.link.mqtt import Endpoint
    from gatewise_edge.link.wire import check_device
    from gatewise_sim.doctor import net as doctor_net
    from gatewise_sim.doctor import talk as doctor_talk

    if patient.broker is not None:
        Endpoint(patient.broker)
    patient = replace(patient, device=check_device(patient.device or _named(patient.cert_file)))
    yield packages
    opened: Any = None
    if patient.bundle is not None:
        opened = yield from check_bundle(patient.bundle)
    else:
        yield skipped("clock", "no bundle, so there is no date that this clock must be after")
    if patient.broker is None:
        return
    steps: list[Callable[[], Iterator[Finding]]] = [
        lambda: doctor_net.reach(patient),
        lambda: doctor_talk.converse(patient, opened),
    ]
    for step in steps:
        failed = False
        for finding in step():
            failed |= finding.state == "problem"
            yield finding
        if failed:
            return


def _named(cert_file: Path | None) -> str:
    """Whom a certificate names; a file that is none is told of later."""
    from gatewise_sim.doctor.tls import common_name

    return (common_name(cert_file) if cert_file else "") or "gatewise-doctor"
