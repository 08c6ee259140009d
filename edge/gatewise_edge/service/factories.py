"""Make the parts of ``gatewise edge``; each is loaded only if an option needs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gatewise.console import note
from gatewise.errors import InputError

if TYPE_CHECKING:
    from gatewise_edge.device.pacer import Pacer
    from gatewise_edge.link.mqtt import MqttLink
    from gatewise_edge.sensors.sensors import Sensors
    from gatewise_edge.service.edge_metrics import EdgeMetrics, MeasuredDevice
    from gatewise_edge.service.watchdog import Heartbeat
    from gatewise_edge.update import Store, Updater

__all__ = ["make_link", "make_pacer", "make_updater", "metrics_pages", "open_store"]


def make_link(
    broker: str | None,
    device: str | None,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
) -> MqttLink | None:
    """Make the link to the cloud, not open yet; None without a broker."""
    if broker is None:
        return None
    from gatewise_edge.link.mqtt import MqttLink

    return MqttLink(broker, device=device, ca_file=ca_file, cert_file=cert_file, key_file=key_file)


def make_pacer(text: str | None) -> Pacer | None:
    """Make the pacer of a budget such as ``offload_rate=0.1``."""
    if text is None:
        return None
    from gatewise_edge.device.pacer import Pacer

    return Pacer.parse(text)


def open_store(folder: Path | None, public_key: Path | None) -> Store | None:
    """Open the store of over-the-air updates."""
    if folder is None:
        return None
    if public_key is None:
        raise InputError("--store needs --public-key: only signed versions are kept")
    from gatewise_edge.update import Store

    return Store(folder, public_key=public_key)


def make_updater(
    link: MqttLink | None,
    store: Store | None,
    *,
    model: str,
    public_key: Path | None,
    hosts: Sequence[str],
    first: Path,
    ca_file: Path | None,
    spread: float,
) -> Updater | None:
    """Make the updater; it must be made before the link is opened.

    Raises
    ------
    InputError
        If there are hosts, and something that an update needs is not given.
    """
    if not hosts:
        if ca_file is not None or spread:
            raise InputError("--update-ca-file and --update-spread are for --update-host")
        return None
    for what, given in (("--broker", link), ("--store", store), ("--public-key", public_key)):
        if given is None:
            raise InputError(f"--update-host needs {what}")
    assert link is not None
    assert store is not None
    assert public_key is not None
    from gatewise_edge.update import Updater

    return Updater(
        link,
        store,
        model=model,
        public_key=public_key,
        hosts=hosts,
        first=first,
        ca_file=ca_file,
        spread=spread,
    )


@contextmanager
def metrics_pages(
    device: MeasuredDevice,
    link: MqttLink | None,
    sensors: Sensors | None,
    updater: Updater | None,
    beat: Heartbeat,
    *,
    host: str,
    port: int,
) -> Iterator[EdgeMetrics]:
    """Serve ``/metrics`` and ``/healthz`` while the block runs.

    Raises
    ------
    InputError
        If the port cannot be used, or prometheus-client is not installed.
    """
    from gatewise_edge.service.endpoints import Endpoints

    try:
        from gatewise_edge.service.edge_metrics import EdgeMetrics
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("gatewise"):
            raise
        raise InputError(
            "--metrics-port needs prometheus-client: pip install 'gatewise[edge]'"
        ) from None
    metrics = EdgeMetrics(device, link=link, sensors=sensors, updater=updater)

    def trouble() -> str | None:
        return None if beat.alive else "an instance is long past its deadline"

    with Endpoints(port, metrics=metrics.text, trouble=trouble, host=host) as pages:
        note(f"metrics at http://{host}:{pages.port}/metrics")
        yield metrics
