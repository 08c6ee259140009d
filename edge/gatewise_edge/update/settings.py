"""Settings of a device's updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """Where a device's releases come from, and how often and how carefully it takes them.

    Attributes
    ----------
    urls : sequence of str
        Places of the repository: ``https://``, ``http://`` or ``file://``.
    trust : str or path
        Root metadata that came with the device.
    first : str or path
        Bundle that the device was set up with; its model is updated.
    device : str, optional
        The device's id, for staged rollouts; by default a random one, kept in the store.
    features : sequence of str, optional
        Features that the device can acquire, by default the needs of the first bundle.
    public_key : str, path or bytes, optional
        Key that bundles must be signed by, in addition to the repository's signatures.
    ca_file : str or path, optional
        Certificate authorities to trust in addition to the system's.
    interval : float, default 3600
        Seconds between two checks, drawn from a quarter less to a quarter more.
    spread : float, default 0
        Seconds within which a check follows an announcement, drawn so that a fleet does not come
        all at once.
    gap : float, default 10
        Seconds at least between two checks.
    trial_answers : int, default 20
        Answers in time after which a release has passed its trial.
    trial_seconds : float, default 30
        Running time after which it has.
    report : float, default 10
        Seconds until the status first says how a release does; doubled each time, up to an hour.
    timeout : float, default 20
        Seconds that a server may be silent.
    longest : float, default 3600
        Seconds that fetching a release may take.
    """

    urls: Sequence[str]
    trust: str | Path
    first: str | Path
    device: str | None = None
    features: Sequence[str] | None = None
    public_key: str | Path | bytes | None = None
    ca_file: str | Path | None = None
    interval: float = 3600.0
    spread: float = 0.0
    gap: float = 10.0
    trial_answers: int = 20
    trial_seconds: float = 30.0
    report: float = 10.0
    timeout: float = 20.0
    longest: float = 3600.0
