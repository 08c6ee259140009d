"""The sub-command ``gatewise edge``, which reads instances and writes a JSON line per answer."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatewise.console import note
from gatewise.errors import InputError
from gatewise.imports import import_object
from gatewise.settings import with_options
from gatewise_edge.device.answer import Observer
from gatewise_edge.device.device import Device
from gatewise_edge.link.offload_rules import OffloadRules
from gatewise_edge.link.topics import answers_topic
from gatewise_edge.service.home_assistant import HomeAssistant
from gatewise_edge.service.outputs import AnswerFile, AnswerLog, AnswerPublisher
from gatewise_edge.service.serve import (
    AnswerTotals,
    AnswerWriter,
    LineWriter,
    run_loop,
)
from gatewise_edge.service.settings import EdgeSettings
from gatewise_edge.service.startup import (
    make_late_requests,
    make_link,
    make_updater,
    make_with_first_usable,
    open_answer_log,
    open_bundles,
    open_instances,
    serve_metrics,
)
from gatewise_edge.service.troubles import Troubles
from gatewise_edge.service.watchdog import Heartbeat, Notifier
from gatewise_edge.stop_request import StopRequest
from gatewise_edge.update import Store
from gatewise_export.bundle.bundle import Bundle
from gatewise_signals.blocks.block import load_block_functions
from gatewise_signals.filters import MajorityFilter, parse_filter

if TYPE_CHECKING:
    from gatewise_edge.device.late_requests import LateRequests
    from gatewise_edge.link.mqtt_link import MqttLink
    from gatewise_edge.sensors.instance_source import InstanceSource
    from gatewise_edge.sensors.sensors import Sensors
    from gatewise_edge.update import Updater

#: Seconds after an instance's deadline at which the watchdog considers the device stuck. Writing a
#: line takes less, even on a slow disk or to a full pipe.
_GRACE_SECONDS = 5.0


@with_options
def edge(
    settings: EdgeSettings,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary at the end as a JSON line.")
    ] = False,
) -> None:
    r"""Run a device: classify each instance before its deadline, and print a JSON line for it.

    Instances about which the bundle's stages are not sure are offloaded to the cloud over MQTT. If
    no response arrives in time, or without a broker, the device gives the last stage's answer with
    the route "fallback".

    --data module:function imports the module, from the current folder first, and calls the
    function without arguments. If it returns Sensors, the device reads them on demand. If it
    returns an iterator, such as a generator, each item is an instance. Otherwise its result is the
    first instance, and the device calls the function for each further instance until it returns
    None. An instance is a mapping by feature name, or a row in the bundle's order. An absent
    feature is a missing value, which matters only if a stage needs it.

    A bundle with blocks takes windows of a signal, or pictures. --data reads them as arrays of the
    window's shape. --signal cuts them from samples, but never across a gap, and adds the number
    (start) and the time of their first sample to the line. In a csv each line has the channels of
    one sample, optionally preceded by its time in seconds; a line with the word gap stands for lost
    samples.

    SIGTERM and Ctrl-C end the command after all instances that were read have their line. Under
    systemd it reports that it is ready and that it is alive (deploy/gatewise-edge.service).

    Examples:

        gatewise edge bundle --broker mqtt://localhost --device pi-1 --data rows.csv
        gatewise edge bundle --data rows.csv --keep id,timestamp --out answers.jsonl
        gatewise edge bundle --data rows.csv --resume resumable.jsonl
        gatewise edge bundle --broker mqtt://localhost --device pi-1 --publish gw/v1/pi-1/answers
        arecord -t raw -f S16_LE -r 16000 |
        gatewise edge bundle --signal - --settings hop.toml
        gatewise edge bundle --data my_sensors:read --interval 1 --metrics-port 9101
        gatewise edge bundle --broker mqtt://localhost --max-offloads 60/h --audit 0.02
        gatewise edge bundle --broker mqtts://broker --store /var/lib/gw \
            --trust root.json --update-host models.example.org

    If the broker, the store or the updates do not work, the device logs that, shows it in the
    metrics, answers without them, and retries.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("gatewise_edge").setLevel(logging.INFO)
    with ExitStack() as stack:
        stop_request = stack.enter_context(StopRequest())
        service = _open_service(settings, stop_request, stack)
        # Open the observers of the answers.
        totals = AnswerTotals(settings.deadline_ms)
        notifier = Notifier()
        heartbeat = Heartbeat(
            notifier,
            max_seconds=settings.deadline_ms / 1000.0 + _GRACE_SECONDS,
            status=lambda: f"{totals}{service.troubles}",
        )
        observers = [totals.add, *_open_observers(settings, service, heartbeat, stack)]
        # Connect, start the updates, and report that the device is ready.
        service.troubles.connect_link(settings.connect_timeout)
        if service.updater is not None:
            stack.enter_context(service.updater).start(service.device)
        stack.enter_context(heartbeat)
        release = service.device.bundle.manifest.release
        notifier.send("READY=1", f"model {release}{service.troubles}")
        writer = AnswerWriter(
            _open_outputs(settings, service.link, service.answer_file, stack),
            log=service.answer_log,
            label_filter=service.label_filter,
        )
        # Exclude the loaded libraries from garbage collection. A full collection takes 6 ms on a
        # desktop and longer on a small device, within the time of some instance.
        gc.collect()
        gc.freeze()
        # Answer until the end of the instances or a stop.
        try:
            run_loop(
                service.device.answer,
                service.instances,
                stop_request=stop_request,
                heartbeat=heartbeat,
                observers=observers,
                writer=writer,
                limit=settings.limit,
                interval_s=settings.interval,
                parallel=settings.parallel,
            )
        finally:
            notifier.send("STOPPING=1", str(totals))
            _print_summary(service, totals, writer, as_json=as_json)
    if stop_request.signal_name == "SIGINT":
        raise KeyboardInterrupt
    if (totals.n_errors or service.n_lines_lost) and not stop_request.signal_name:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Service:
    """The open parts of the service."""

    device: Device
    instances: InstanceSource
    link: MqttLink | None
    updater: Updater | None
    answer_file: AnswerFile
    answer_log: AnswerLog | None
    label_filter: MajorityFilter | None
    troubles: Troubles

    @property
    def n_lines_lost(self) -> int:
        """Number of lines that could not be written."""
        files = (self.answer_file, self.answer_log)
        return sum(file.n_lost for file in files if file is not None)


def _open_service(settings: EdgeSettings, stop_request: StopRequest, stack: ExitStack) -> _Service:
    """Open the store and its bundles, the instances, the link, the device and its files."""
    store = None if settings.store is None else Store(settings.store)
    # the last bundle is the configured one, or one of the store if that cannot be opened
    bundles = open_bundles(settings.bundle, store, settings.public_key)
    configured_manifest = bundles[-1].manifest
    instances = open_instances(settings, bundles[-1], stop_request)
    answer_log = None
    if settings.resume is not None:
        answer_log = stack.enter_context(open_answer_log(settings.resume, settings.data))
    # the updater must subscribe to announcements before the link is opened
    link = make_link(settings)
    updater = make_updater(settings, store, bundles[-1], link)
    if store is not None and updater is None:
        # Without an updater there is no trial, in which this start would count.
        stack.callback(store.save, n_starts=0)
    late_requests = _open_late_requests(settings, link, stack)
    device = _open_device(settings, link, late_requests, instances.sensors, bundles, stack)
    answer_file = stack.enter_context(AnswerFile(settings.out))
    troubles = Troubles(
        link,
        {
            "store": store,
            "update": updater,
            "sensors": instances.sensors,
            "out": answer_file,
            "resume": answer_log,
            "unsent": late_requests,
        },
    )
    return _Service(
        device=device,
        instances=instances,
        link=link,
        updater=updater,
        answer_file=answer_file,
        answer_log=answer_log,
        label_filter=_make_filter(settings, has_classes=bool(configured_manifest.classes)),
        troubles=troubles,
    )


def _open_late_requests(
    settings: EdgeSettings, link: MqttLink | None, stack: ExitStack
) -> LateRequests | None:
    """Open the late requests, with the publisher of their corrections."""
    on_correction = None
    if link is not None and settings.corrections is not None:
        on_correction = stack.enter_context(AnswerPublisher(link, settings.corrections)).write
    return make_late_requests(settings, on_correction)


def _open_device(
    settings: EdgeSettings,
    link: MqttLink | None,
    late_requests: LateRequests | None,
    sensors: Sensors | None,
    bundles: Sequence[Bundle],
    stack: ExitStack,
) -> Device:
    """Open the device with the first usable bundle, and state its release on the link."""
    column_names = bundles[-1].manifest.column_names
    make_device = partial(_make_device, settings, link, late_requests, sensors, column_names)
    device = stack.enter_context(make_with_first_usable(make_device, bundles))
    if link is not None:
        link.set_status(device.bundle.manifest.release)
    return device


def _make_filter(settings: EdgeSettings, *, has_classes: bool) -> MajorityFilter | None:
    """Make the filter of ``smooth``, and print its delay."""
    if settings.smooth is None:
        return None
    if not has_classes:
        raise InputError("smooth needs a bundle with classes; this bundle answers with values")
    label_filter = parse_filter(settings.smooth)
    note(f"smooth {settings.smooth}: a lasting change shows {label_filter.delay} windows later")
    return label_filter


def _open_observers(
    settings: EdgeSettings, service: _Service, heartbeat: Heartbeat, stack: ExitStack
) -> list[Observer]:
    """Open the observers of answers: the updater with its trial, and the metrics."""
    observers: list[Observer] = []
    if service.updater is not None:
        observers.append(service.updater.observe)
    if settings.metrics_port is not None:
        metrics, status_server = serve_metrics(
            service.device,
            heartbeat,
            settings.metrics_host,
            settings.metrics_port,
            link=service.link,
            instances=service.instances,
            updater=service.updater,
            troubles=service.troubles.by_part,
        )
        stack.enter_context(status_server)
        observers.append(metrics.observe)
    return observers


def _make_device(
    settings: EdgeSettings,
    link: MqttLink | None,
    late_requests: LateRequests | None,
    sensors: Sensors | None,
    column_names: Sequence[str],
    bundle: Bundle,
) -> Device:
    """Make the device of `bundle`; rows have the column order of the configured bundle."""
    policy: Any = settings.policy  # Device checks it
    return Device(
        bundle,
        link=link,
        sensors=sensors,
        blocks=load_block_functions(settings.block),
        row_names=column_names,
        deadline_ms=settings.deadline_ms,
        policy=import_object("policy", policy) if ":" in policy else policy,
        runner=settings.runner,
        provider=settings.provider,
        offload_rules=OffloadRules(
            max_in_flight=max(32, settings.parallel),  # each thread may wait for a request
            max_offloads=settings.max_offloads,
            implausible=settings.implausible,
            private=settings.private,
        ),
        audit=settings.audit,
        late_requests=late_requests,
    )


def _open_outputs(
    settings: EdgeSettings, link: MqttLink | None, answer_file: AnswerFile, stack: ExitStack
) -> list[LineWriter]:
    """Open the outputs of answers: `answer_file`, and topics of the broker."""
    outputs: list[LineWriter] = [answer_file.write]
    if settings.publish is not None and link is not None:
        outputs.append(stack.enter_context(AnswerPublisher(link, settings.publish)).write)
    if settings.home_assistant is not None and link is not None:
        publisher = stack.enter_context(AnswerPublisher(link, answers_topic(link.device)))
        home_assistant = HomeAssistant(link, settings.home_assistant, publisher.write)
        outputs.append(stack.enter_context(home_assistant).write)
    return outputs


def _print_summary(
    service: _Service, totals: AnswerTotals, writer: AnswerWriter, *, as_json: bool
) -> None:
    """Print the counts of the run as a JSON line or as notes."""
    counts = service.instances.counts
    if not as_json:
        note(totals.summary_text())
        counts = counts | {"lines lost": service.n_lines_lost}
        count_texts = [
            f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count
        ]
        if count_texts:
            note(", ".join(count_texts))
        return
    summary = totals.summary() | {
        "model": service.device.bundle.manifest.release,  # an update may have changed it
        "counters": service.device.counters,
        "lines_lost": service.n_lines_lost,
    }
    if service.label_filter is not None:
        summary["smoothing"] = {
            "delay_windows": service.label_filter.delay,
            "changed": writer.n_changed_labels,
        }
    if counts:
        summary["signal"] = counts
    with AnswerFile() as standard_output:
        standard_output.write({"summary": summary})
