"""Make the parts of a device from the options of ``gatewise edge``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gatewise.console import note
from gatewise.errors import GatewiseError, InputError, not_installed
from gatewise.formats import plural, read_bytes
from gatewise_edge.link.topics import answers_topic
from gatewise_edge.sensors.data_source import ARRAY_SUFFIXES, TABLE_SUFFIXES, open_source
from gatewise_edge.sensors.instance_source import InstanceSource
from gatewise_edge.sensors.signal_source import open_signal
from gatewise_edge.service.home_assistant import check_discovery_names
from gatewise_edge.service.outputs import AnswerLog
from gatewise_edge.service.settings import EdgeSettings
from gatewise_edge.service.watchdog import Heartbeat
from gatewise_edge.stop_request import StopRequest
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError

if TYPE_CHECKING:
    from gatewise_edge.device.late_requests import CorrectionHandler, LateRequests
    from gatewise_edge.link.mqtt_link import MqttLink
    from gatewise_edge.service.edge_metrics import EdgeMetrics, MeasuredDevice
    from gatewise_edge.service.status_server import StatusServer
    from gatewise_edge.update import Store, Updater

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")


def open_bundles(
    configured_path: Path, store: Store | None, public_key: Path | None
) -> list[Bundle]:
    """Open the bundles of the store, the preferred one first, and then the configured one.

    Logs the error of each bundle that cannot be opened, but raises that of the configured bundle if
    none can be opened.
    """
    bundles: list[Bundle] = []
    failures: list[BundleError] = []
    for path in [*([] if store is None else store.start()), configured_path]:
        try:
            bundles.append(Bundle.open(path, public_key=public_key, for_device=True))
        except BundleError as error:
            failures.append(error)
    # the configured bundle comes last
    for failure in failures if bundles else failures[:-1]:
        _LOG.error("%s", failure)
    if not bundles:
        raise failures[-1]
    return bundles


def make_with_first_usable(make: Callable[[Bundle], Result], bundles: Sequence[Bundle]) -> Result:
    """Call `make` with each bundle in turn, and return the first result.

    Logs the error of each bundle that `make` refuses, and raises the error for the last bundle.
    """
    for bundle in bundles[:-1]:
        try:
            return make(bundle)
        except GatewiseError as error:
            _LOG.error("%s cannot be used: %s", bundle, error)
    return make(bundles[-1])


def make_updater(
    settings: EdgeSettings, store: Store | None, configured_bundle: Bundle, link: MqttLink | None
) -> Updater | None:
    """Make the updater of ``--update-host``; None without this option.

    `configured_bundle`, the bundle of the command line, runs before the first update.
    """
    if not settings.update_host or store is None or settings.trust is None:
        return None
    from gatewise_edge.update import Updater, UpdateSettings

    update_hosts = settings.update_host
    update_settings = UpdateSettings(
        urls=[host if "://" in host else f"https://{host}" for host in update_hosts],
        trust=settings.trust,
        first_bundle=configured_bundle.path,
        device=settings.device or (None if link is None else link.certificate_name),
        features=configured_bundle.manifest.device_input_names,
        public_key=settings.public_key,
        ca_file=settings.update_ca_file,
        announcement_spread=settings.update_spread,
        interval=settings.update_interval or 3600.0,
    )
    return Updater(store, update_settings, link=link)


def make_link(settings: EdgeSettings) -> MqttLink | None:
    """Make the link to ``--broker``, without connecting it, and check the topics of its outputs."""
    if settings.broker is None:
        return None
    from gatewise_edge.link.mqtt_link import MqttLink

    link = MqttLink(
        settings.broker,
        device=settings.device,
        max_inflight=64 + settings.parallel,  # 64 for published answers and audits
        ca_file=settings.ca_file,
        cert_file=settings.cert_file,
        key_file=settings.key_file,
    )
    publish_topic = settings.publish
    home_assistant = settings.home_assistant
    for topic in (publish_topic, settings.corrections):
        if topic is not None:
            link.check_answers_topic(topic)
    if home_assistant is not None:
        check_discovery_names(link.device, home_assistant)
        if publish_topic == answers_topic(link.device):
            raise InputError(
                f"--home-assistant already publishes on {publish_topic}: omit --publish"
            )
    return link


def make_late_requests(
    settings: EdgeSettings, on_correction: CorrectionHandler | None
) -> LateRequests | None:
    """Open the file of ``--keep-unsent``, if any; `on_correction` gets the late answers."""
    if settings.keep_unsent is None:
        return None
    from gatewise_edge.device.late_requests import LateRequests
    from gatewise_edge.device.unsent_store import UnsentStore

    store = UnsentStore(
        settings.keep_unsent,
        max_bytes=read_bytes(settings.keep_unsent_bytes, "keep_unsent_bytes"),
        max_age_s=86_400.0 * settings.keep_unsent_days,
    )
    return LateRequests(store, on_correction)


def serve_metrics(
    device: MeasuredDevice, heartbeat: Heartbeat, host: str, port: int, **metric_sources: Any
) -> tuple[EdgeMetrics, StatusServer]:
    """Serve the device's metrics, and the health that `heartbeat` observes.

    `metric_sources` are the further arguments of :class:`.EdgeMetrics`.
    """
    try:
        from gatewise_edge.service.edge_metrics import EdgeMetrics
    except ModuleNotFoundError as error:
        raise not_installed(error, "edge") from None
    from gatewise_edge.service.status_server import StatusServer

    metrics = EdgeMetrics(device, **metric_sources)
    status_server = StatusServer(
        port, read_metrics=metrics.text, read_trouble=lambda: heartbeat.trouble, host=host
    )
    note(f"metrics at http://{host}:{status_server.port}/metrics")
    return metrics, status_server


def open_answer_log(path: Path, data_option: str) -> AnswerLog:
    """Open the answer log of ``--resume``; `data_option` must be a file with row numbers."""
    if Path(data_option).suffix.lower() not in (*TABLE_SUFFIXES, *ARRAY_SUFFIXES):
        raise InputError("--resume needs a file as --data, whose rows always have the same numbers")
    log = AnswerLog(path, Path(data_option))
    if log.answered_rows:
        note(f"{plural(len(log.answered_rows), 'row')} with an answer in {path}: skipped")
    return log


def open_instances(
    settings: EdgeSettings, bundle: Bundle, stop_request: StopRequest
) -> InstanceSource:
    """Open ``--data`` or ``--signal``; raise InputError if it does not match the bundle."""
    kept_columns = (
        [] if settings.keep is None else [name.strip() for name in settings.keep.split(",")]
    )
    if not all(kept_columns) or len(set(kept_columns)) < len(kept_columns):
        raise InputError(f"--keep {settings.keep}: give names of columns, such as id,timestamp")
    manifest = bundle.manifest
    if settings.signal is None:
        window_shape = None if manifest.signal is None else manifest.signal.shape
        column_names = manifest.column_names
        return open_source(
            settings.data,
            column_names,
            stop_request,
            manifest.encoder,
            kept_columns=kept_columns,
            window_shape=window_shape,
        )
    if manifest.signal is None:
        raise InputError(
            f"--signal: {bundle.path} was not trained on signals; give rows with --data"
        )
    return open_signal(settings.signal, manifest.signal, stop_request, settings)
