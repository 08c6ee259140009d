"""Settings of :class:`gatewise_edge.update.Updater`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """Settings of updates: the repository, the times of the checks, and the length of a trial.

    Attributes
    ----------
    urls : sequence of str
        URLs of the repository and its mirrors: ``https://``, ``http://`` or ``file://``.
    trust : str or path
        Root metadata that came with the device.
    first_bundle : str or path
        Bundle that the device was set up with. The updater follows the releases of its model.
    device : str, optional
        The device's id, for staged rollouts; by default a random id from the store.
    features : sequence of str, optional
        Features that the device can acquire; by default those that the first bundle needs.
    public_key : str, path or bytes, optional
        Key that must have signed each bundle, in addition to the repository's signatures.
    ca_file : str or path, optional
        Certificate authorities to trust in addition to the system's.
    interval : float, default 3600
        Mean time between two checks, in seconds. Each interval is drawn from 75 % to 125 % of the
        mean, which spreads the checks of a fleet that was switched on at once.
    announcement_spread : float, default 0
        Longest wait between an announcement and the check, in seconds. Each wait is drawn at
        random, because the devices of a fleet must not check all at once.
    min_interval : float, default 10
        Shortest time between two checks, in seconds.
    trial_answers : int, default 20
        Number of answers in time that a release needs to pass its trial.
    trial_seconds : float, default 30
        Running time that a release needs to pass its trial, in seconds.
    timeout : float, default 20
        Longest silence of a server, in seconds.
    """

    urls: Sequence[str]
    trust: str | Path
    first_bundle: str | Path
    device: str | None = None
    features: Sequence[str] | None = None
    public_key: str | Path | bytes | None = None
    ca_file: str | Path | None = None
    interval: float = 3600.0
    announcement_spread: float = 0.0
    min_interval: float = 10.0
    trial_answers: int = 20
    trial_seconds: float = 30.0
    timeout: float = 20.0
