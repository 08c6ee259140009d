"""The sub-command ``gatewise edge``: rows in, one JSON line an answer out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from gatewise.console import note
from gatewise.errors import GatewiseError, InputError
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.auditor import Audit, AuditAction
from gatewise_edge.device.device import Device
from gatewise_edge.device.pacer import Pacer
from gatewise_edge.errors import LinkError
from gatewise_edge.sensors.sources import open_source
from gatewise_edge.service.answer_log import AnswerLog
from gatewise_edge.service.outputs import AnswerFile, AnswerPublisher, print_json
from gatewise_edge.service.serve import AnswerTotals, run_loop
from gatewise_edge.service.watchdog import Heartbeat, Notifier
from gatewise_edge.stop_request import Stop
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError

if TYPE_CHECKING:
    from gatewise_edge.link.mqtt import MqttLink
    from gatewise_edge.service.edge_metrics import EdgeMetrics
    from gatewise_edge.update import Store, Updater

__all__ = ["commands", "edge"]

_LOG = logging.getLogger(__name__)

#: Seconds that an instance may take beyond its deadline before the watchdog counts it as stuck.
_GRACE = 5.0


def edge(
    bundle: Annotated[Path, typer.Argument(help="The bundle: a directory or a .gwb file.")],
    broker: Annotated[
        str | None,
        typer.Option(help="mqtt://[user:password@]host[:port] or mqtts://...; without: no cloud."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="The device's id, unique in the fleet; random if left out.")
    ] = None,
    data: Annotated[
        str,
        typer.Option(
            help="A CSV file with a header, arrays in an .npy or .npz file, module:function "
            "(below), or - for JSON lines on standard input."
        ),
    ] = "-",
    deadline_ms: Annotated[float, typer.Option(help="Time for an answer, in ms.")] = 500.0,
    policy: Annotated[
        str, typer.Option(help="system, edge-only (never offload) or cloud-only (always).")
    ] = "system",
    runner: Annotated[
        str,
        typer.Option(help="onnxruntime, numpy (less memory, same bits) or auto: what is there."),
    ] = "auto",
    resume: Annotated[
        Path | None,
        typer.Option(help="Keep each line here, too; rows of --data with a line are passed over."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="Columns that are passed on to the answers, as id,timestamp."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Append the lines to this file, not to standard output.")
    ] = None,
    publish: Annotated[
        str | None,
        typer.Option(help="Publish each line on this topic of the broker, too, as plain JSON."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many instances.")] = None,
    interval: Annotated[
        float, typer.Option(min=0, help="Seconds from one instance to the next, at least.")
    ] = 0.0,
    parallel: Annotated[
        int, typer.Option(min=1, help="Instances under way at a time; lines come as answers do.")
    ] = 1,
    pace: Annotated[
        str | None,
        typer.Option(help="Keep a budget over time, as offload_rate=0.1: voids a guarantee."),
    ] = None,
    pace_state: Annotated[
        Path | None, typer.Option(help="File that keeps the pacer's state over restarts.")
    ] = None,
    audit: Annotated[
        float | None,
        typer.Option(help="Share of the device's own answers to check with the cloud, as 0.02."),
    ] = None,
    audit_bound: Annotated[
        float | None,
        typer.Option(help="Share of answers that may differ; by default what training expects."),
    ] = None,
    audit_action: Annotated[
        str, typer.Option(help="After an audit's alarm: report, safer (move on), offload (all).")
    ] = "report",
    coalesce_ms: Annotated[
        float,
        typer.Option(min=0, help="Wait so long for others to share a message; see --parallel."),
    ] = 0.0,
    float16: Annotated[
        bool, typer.Option("--float16", help="Send half-precision values: half the bytes.")
    ] = False,
    public_key: Annotated[
        Path | None, typer.Option(help="NAME.pub: the bundle must be signed by this key.")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="Folder of the versions taken over the air: the last one is run."),
    ] = None,
    update_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Take updates from the repository on this HTTPS host[:port], or at this URL; a "
            "repeated one is another place of it."
        ),
    ] = None,
    trust: Annotated[
        Path | None,
        typer.Option(help="Root metadata of the repository (gatewise repo), for --update-host."),
    ] = None,
    update_interval: Annotated[
        float, typer.Option(min=1, help="Seconds between two checks for updates, about.")
    ] = 3600.0,
    update_ca_file: Annotated[
        Path | None, typer.Option(help="Authorities trusted for --update-host beside the system's.")
    ] = None,
    update_spread: Annotated[
        float,
        typer.Option(min=0, help="Wait up to so many seconds before a check that was announced."),
    ] = 0.0,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve /metrics and /healthz here; 0: a free port."),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address for --metrics-port.")] = "127.0.0.1",
    connect_timeout: Annotated[
        float, typer.Option(help="How long to wait for the broker at the start, in seconds.")
    ] = 5.0,
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates of the authorities trusted for mqtts://.")
    ] = None,
    cert_file: Annotated[Path | None, typer.Option(help="This device's certificate.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with the summary as a JSON line on standard output.")
    ] = False,
) -> None:
    """Run a device: classify instances, each before its deadline, and print one JSON line each.

    Instances that the bundle's stages are not sure of go to the cloud over MQTT. If no answer
    is there in time, or there is no broker, the last stage's answer is given: route "fallback".

    --data module:function imports the module, from the current folder first, and calls the
    function without arguments. If it returns Sensors, the device reads them on demand. If it
    returns an iterator (a generator function does), each item is an instance. Otherwise what it
    returned is the first instance and it is called again for each further one, until it returns
    None. An instance is a mapping by feature name, or a row in the bundle's order. A feature that
    is not there is missing: an instance is answered where the stages that run have what they need.

    SIGTERM and Ctrl-C end it once every instance that was taken in has its line. Under systemd it
    says when it is ready, and gives signs of life (deploy/gatewise-edge.service).

    For example:

        gatewise edge bundle --broker mqtt://localhost --device pi-1 --data rows.csv
        gatewise edge bundle --data rows.csv --keep id,timestamp --out answers.jsonl
        gatewise edge bundle --data rows.csv --resume answers.jsonl
        gatewise edge bundle --broker mqtt://localhost --device pi-1 --publish gw/v1/pi-1/answers
        gatewise edge bundle --data my_sensors:read --interval 1 --metrics-port 9101
        gatewise edge bundle --broker mqtt://localhost --pace offload_rate=0.1 --coalesce-ms 5
            --parallel 8 --float16
        gatewise edge bundle --broker mqtts://broker --store /var/lib/gw
            --trust root.json --update-host models.example.org

    What is in trouble (the broker, the store, updates) is logged and in the metrics; the device
    starts and answers without it, and keeps trying.
    """
    with ExitStack() as stack:
        stop = stack.enter_context(Stop())
        if resume is not None and Path(data).suffix.lower() != ".csv":
            raise InputError("--resume is for a --data file: its rows have lasting numbers")
        kept = None if store is None else _open_store(store)
        bundles = _open_bundles(bundle, kept, public_key)
        first = bundles[-1].manifest
        # Rows stay in the order of the bundle that the device was set up with.
        kept_columns = [] if keep is None else _names(keep)
        instances = open_source(data, first.column_names, stop, first.encoder, keep=kept_columns)
        log = None if resume is None else stack.enter_context(AnswerLog(resume, Path(data)))
        if log is not None and log.answered:
            note(f"{len(log.answered)} rows have an answer in {resume}; they are passed over")
        link = None
        if broker is not None:
            from gatewise_edge.link.mqtt import MqttLink

            link = MqttLink(
                broker, device=device, ca_file=ca_file, cert_file=cert_file, key_file=key_file
            )
        if publish is not None:
            if link is None:
                raise InputError("--publish needs --broker: the lines go to a topic of it")
            link.check_answers_topic(publish)
        updater = None
        if update_host:
            # Before the link is opened: it subscribes to the announcements.
            updater = _make_updater(
                kept,
                trust,
                urls=[u if "://" in u else f"https://{u}" for u in update_host],
                first=bundles[-1].path,
                link=link,
                device=device,
                features=first.column_names,
                public_key=public_key,
                ca_file=update_ca_file,
                interval=update_interval,
                spread=update_spread,
            )
        elif update_ca_file is not None or update_spread or trust is not None:
            raise InputError("--trust and --update-... are for --update-host")

        if kept is not None and updater is None:
            # No trial is held here: this start does not count against one.
            stack.callback(kept.save, starts=0)

        def make(opened: Bundle) -> Device:
            return Device(
                opened,
                link=link,
                sensors=instances.sensors,
                row_names=instances.names,
                deadline_ms=deadline_ms,
                policy=policy,  # type: ignore[arg-type]  # Device checks it
                runner=runner,  # type: ignore[arg-type]
                coalesce_ms=coalesce_ms,
                float16=float16,
                pacer=None if pace is None else Pacer.parse(pace),
                pacer_state=pace_state,
                audit=None if audit is None else _audit(audit, audit_bound, audit_action),
            )

        runtime = stack.enter_context(_first_that_runs(make, bundles))
        model = f"{runtime.bundle.manifest.name}/{runtime.bundle.manifest.version}"
        if link is not None:
            link.set_status(model)
        troubles = _Troubles(link, kept, updater)
        totals, notifier = AnswerTotals(), Notifier()
        beat = Heartbeat(
            notifier, patience=deadline_ms / 1000.0 + _GRACE, status=lambda: f"{totals}{troubles}"
        )
        observers = [totals.add]
        if updater is not None:
            observers.append(updater.observe)
        if metrics_port is not None:
            from gatewise_edge.service.endpoints import Endpoints

            metrics = _import_metrics()(
                runtime,
                link=link,
                sensors=instances.sensors,
                updater=updater,
                troubles=troubles.found,
            )
            pages = Endpoints(
                metrics_port,
                metrics=metrics.text,
                trouble=lambda: None if beat.alive else "an instance is long past its deadline",
                host=metrics_host,
            )
            stack.enter_context(pages)
            note(f"metrics at http://{metrics_host}:{pages.port}/metrics")
            observers.append(metrics.observe)
        if link is not None:
            try:
                link.connect(connect_timeout)
                note(f"device {link.device} at {link.url}")
            except LinkError as error:
                troubles.link_error = str(error)
                _LOG.error("%s; the device answers without it and keeps trying", error)
        if updater is not None:
            stack.enter_context(updater).start(runtime)
        stack.enter_context(beat)
        notifier.ready(f"model {model}{troubles}")

        def observe(end: Answer | Exception) -> None:
            for observer in observers:
                observer(end)

        writers = [print_json if out is None else stack.enter_context(AnswerFile(out)).write]
        if publish is not None and link is not None:
            writers.append(stack.enter_context(AnswerPublisher(link, publish)).write)

        try:
            run_loop(
                runtime.answer,
                instances,
                stop=stop,
                beat=beat,
                observe=observe,
                limit=limit,
                interval=interval,
                parallel=parallel,
                log=log,
                writers=writers,
            )
        finally:
            notifier.stopping(str(totals))
            manifest = runtime.bundle.manifest  # an update may have changed it
            if as_json:
                summary = totals.summary()
                summary["model"] = f"{manifest.name}/{manifest.version}"
                summary["counters"] = runtime.counters
                print_json({"summary": summary})
            else:
                note(totals.in_words())
    if stop.requested == "SIGINT":
        raise KeyboardInterrupt
    if totals.errors and not stop.requested:
        raise typer.Exit(1)


commands: dict[str, Callable[..., None]] = {"edge": edge}


# What only some options need is imported where it is used.


def _audit(share: float, bound: float | None, action: str) -> Audit:
    return Audit(share, bound, action=cast(AuditAction, action))


def _names(listed: str) -> list[str]:
    names = [name.strip() for name in listed.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise InputError(f"--keep {listed}: give names of columns, as id,timestamp")
    return names


def _open_store(folder: Path) -> Store:
    from gatewise_edge.update import Store

    return Store(folder)


def _open_bundles(first: Path, store: Store | None, public_key: Path | None) -> list[Bundle]:
    """The store's bundles, the best first, and the one that the device was set up with."""
    opened: list[Bundle] = []
    failures: list[BundleError] = []
    for path in [*([] if store is None else store.start()), first]:
        try:
            opened.append(Bundle.open(path, public_key=public_key, for_device=True))
        except BundleError as error:
            failures.append(error)
    if not opened:
        raise failures[-1]
    for failure in failures:
        _LOG.error("%s", failure)
    return opened


def _first_that_runs(make: Callable[[Bundle], Device], bundles: Sequence[Bundle]) -> Device:
    """Make a device with the first bundle that runs here; the last one must."""
    for opened in bundles[:-1]:
        try:
            return make(opened)
        except GatewiseError as error:
            _LOG.error("%s does not run here: %s", opened, error)
    return make(bundles[-1])


def _make_updater(store: Store | None, trust: Path | None, **options: Any) -> Updater:
    """Make the updater; raise InputError if something that it needs is not given."""
    if store is None or trust is None:
        raise InputError(f"--update-host needs {'--store' if store is None else '--trust'}")
    from gatewise_edge.update import Updater

    return Updater(store, trust=trust, **options)


class _Troubles:
    """What does not work now while the device answers: the link, the store, updates."""

    def __init__(self, link: MqttLink | None, store: Store | None, updater: Updater | None) -> None:
        self._link, self._store, self._updater = link, store, updater
        self.link_error = ""

    def found(self) -> dict[str, str | None]:
        """What is wrong with each part that there is; None: nothing."""
        found: dict[str, str | None] = {}
        if self._link is not None:
            lost = self.link_error or f"broker {self._link.url} is not connected"
            found["link"] = None if self._link.ready else lost
            found["device id"] = self._link.trouble
            if self._link.ready:
                self.link_error = ""
        if self._store is not None:
            found["store"] = self._store.trouble
        if self._updater is not None:
            found["update"] = self._updater.trouble
        return found

    def __str__(self) -> str:
        return "".join(f"; {why}" for why in dict.fromkeys(self.found().values()) if why)


def _import_metrics() -> type[EdgeMetrics]:
    try:
        from gatewise_edge.service.edge_metrics import EdgeMetrics
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("gatewise"):
            raise
        raise InputError(
            "--metrics-port needs prometheus-client: pip install 'gatewise[edge]'"
        ) from None
    return EdgeMetrics
