"""The sub-command ``gatewise edge``: rows in, one JSON line an answer out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from gatewise.console import note
from gatewise.errors import InputError
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.auditor import Audit, AuditAction
from gatewise_edge.device.device import Device
from gatewise_edge.device.pacer import Pacer
from gatewise_edge.sensors.sources import open_source
from gatewise_edge.service.serve import AnswerTotals, print_json, run_loop
from gatewise_edge.service.watchdog import Heartbeat, Notifier
from gatewise_edge.stop_request import Stop
from gatewise_export.bundle.bundle import Bundle

if TYPE_CHECKING:
    from gatewise_edge.link.mqtt import MqttLink
    from gatewise_edge.service.edge_metrics import EdgeMetrics
    from gatewise_edge.update import Store, Updater

__all__ = ["commands", "edge"]

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
            help="A CSV file with a header, module:function (below), or - for JSON lines on "
            "standard input."
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
        typer.Option(help="Take signed updates from this HTTPS host[:port]; may be repeated."),
    ] = None,
    update_ca_file: Annotated[
        Path | None, typer.Option(help="Authorities trusted for --update-host beside the system's.")
    ] = None,
    update_spread: Annotated[
        float, typer.Option(min=0, help="Wait up to so many seconds before fetching an update.")
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
    None. An instance is a mapping by feature name, or a row in the bundle's order.

    SIGTERM and Ctrl-C end it once every instance that was taken in has its line. Under systemd it
    says when it is ready, and gives signs of life (deploy/gatewise-edge.service).

    For example:

        gatewise edge bundle --broker mqtt://localhost --device pi-1 --data rows.csv
        gatewise edge bundle --data my_sensors:read --interval 1 --metrics-port 9101
        gatewise edge bundle --broker mqtt://localhost --pace offload_rate=0.1 --coalesce-ms 5
            --parallel 8 --float16
        gatewise edge bundle --broker mqtts://broker --public-key fleet.pub --store /var/lib/gw
            --update-host models.example.org
    """
    with ExitStack() as stack:
        stop = stack.enter_context(Stop())
        kept = _open_store(store, public_key)
        path = bundle if kept is None else kept.start() or bundle
        opened = Bundle.open(path, public_key=public_key, for_device=True)
        model = f"{opened.manifest.name}/{opened.manifest.version}"
        instances = open_source(data, opened.manifest.feature_names, stop)
        link = None
        if broker is not None:
            from gatewise_edge.link.mqtt import MqttLink

            link = MqttLink(
                broker, device=device, ca_file=ca_file, cert_file=cert_file, key_file=key_file
            )
        updater = None
        if update_host:
            # Before the link is opened: it subscribes to the announcements.
            updater = _make_updater(
                link,
                kept,
                public_key,
                model=opened.manifest.name,
                hosts=update_host,
                first=bundle,
                ca_file=update_ca_file,
                spread=update_spread,
            )
        elif update_ca_file is not None or update_spread:
            raise InputError("--update-ca-file and --update-spread are for --update-host")
        if link is not None:
            link.set_status(model)
        runtime = stack.enter_context(
            Device(
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
        )
        totals, notifier = AnswerTotals(), Notifier()
        beat = Heartbeat(
            notifier, patience=deadline_ms / 1000.0 + _GRACE, status=lambda: str(totals)
        )
        observers = [totals.add]
        if updater is not None:
            observers.append(updater.observe)
        if metrics_port is not None:
            from gatewise_edge.service.endpoints import Endpoints

            metrics = _import_metrics()(
                runtime, link=link, sensors=instances.sensors, updater=updater
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
            link.connect(connect_timeout)
            note(f"device {link.device} at {link.url}")
        if updater is not None:
            stack.enter_context(updater).start(runtime)
        stack.enter_context(beat)
        notifier.ready(f"model {model}")

        def observe(end: Answer | Exception) -> None:
            for observer in observers:
                observer(end)

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


def _open_store(folder: Path | None, public_key: Path | None) -> Store | None:
    """Open the store of over-the-air updates."""
    if folder is None:
        return None
    if public_key is None:
        raise InputError("--store needs --public-key: only signed versions are kept")
    from gatewise_edge.update import Store

    return Store(folder, public_key=public_key)


def _make_updater(
    link: MqttLink | None,
    store: Store | None,
    public_key: Path | None,
    *,
    model: str,
    hosts: Sequence[str],
    **options: Any,
) -> Updater:
    """Make the updater; raise InputError if something that it needs is not given."""
    for what, value in (("--broker", link), ("--store", store), ("--public-key", public_key)):
        if value is None:
            raise InputError(f"--update-host needs {what}")
    assert link is not None
    assert store is not None
    assert public_key is not None
    from gatewise_edge.update import Updater

    return Updater(link, store, model=model, public_key=public_key, hosts=hosts, **options)


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
