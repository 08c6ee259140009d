"""The sub-command ``gatewise edge``: rows in, one JSON line an answer out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from gatewise.console import note
from gatewise.errors import InputError
from gatewise_edge.device.device import Device
from gatewise_edge.link.topics import answers_topic
from gatewise_edge.service.home_assistant import HomeAssistant
from gatewise_edge.service.outputs import AnswerFile, AnswerPublisher, print_json
from gatewise_edge.service.serve import AnswerTotals, Smoothing, run_loop
from gatewise_edge.service.startup import (
    Troubles,
    first_that_runs,
    make_link,
    make_updater,
    open_bundles,
    open_instances,
    open_log,
    serve_metrics,
)
from gatewise_edge.service.watchdog import Heartbeat, Notifier
from gatewise_edge.stop_request import Stop
from gatewise_edge.update import Store
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.commands.options import BlockFunctions
from gatewise_signals.blocks.block import load_block_functions

#: Seconds that an instance may take beyond its deadline before the watchdog counts it as stuck.
_GRACE = 5.0


def edge(
    bundle: Annotated[Path, typer.Argument(help="The bundle: a directory or a .gwb file.")],
    broker: Annotated[
        str | None, typer.Option(help="mqtt(s)://[user:password@]host[:port]; without: no cloud.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="The device's id, unique in the fleet; random if left out.")
    ] = None,
    data: Annotated[
        str, typer.Option(help="A .csv, .npy or .npz file, module:function, or - for JSON lines.")
    ] = "-",
    signal: Annotated[
        str | None,
        typer.Option(help="Samples, not --data: -, tcp://host:port, a .wav, .npy or .csv file."),
    ] = None,
    signal_format: Annotated[
        str | None,
        typer.Option(help="Of a stream: int16, float32, ... (by default the bundle's) or csv."),
    ] = None,
    rate_hz: Annotated[
        float | None, typer.Option(help="Samples a second of --signal; by default the blocks'.")
    ] = None,
    hop: Annotated[
        int | None,
        typer.Option(min=1, help="Samples from one window to the next; by default a window's."),
    ] = None,
    smooth: Annotated[
        str | None,
        typer.Option(
            help="Add a smoothed label: majority:5, of the last 5, or two-state:LABEL,0.8,0.4,3: "
            "from 3 windows with that probability until one below 0.4."
        ),
    ] = None,
    block: BlockFunctions = None,
    deadline_ms: Annotated[float, typer.Option(help="Time for an answer, in ms.")] = 500.0,
    policy: Annotated[
        str, typer.Option(help="system, edge-only (never offload) or cloud-only (always).")
    ] = "system",
    runner: Annotated[
        str, typer.Option(help="onnxruntime, numpy (less memory, same bits), or auto.")
    ] = "auto",
    resume: Annotated[
        Path | None, typer.Option(help="Keep each line here, too; pass over rows with a line.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Columns that are passed on to the answers, as id,timestamp.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Append the lines to this file, not to standard output.")
    ] = None,
    publish: Annotated[
        str | None, typer.Option(help="Publish each line on this topic of the broker, too.")
    ] = None,
    home_assistant: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX",
            help="Show the device in Home Assistant; its discovery prefix, as homeassistant.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many instances.")] = None,
    interval: Annotated[
        float, typer.Option(min=0, help="Seconds from one instance to the next, at least.")
    ] = 0.0,
    parallel: Annotated[
        int, typer.Option(min=1, help="Instances under way at a time; lines come as answers do.")
    ] = 1,
    max_offloads: Annotated[
        str | None, typer.Option(help="Bound on offloads over time: 60/h, 5/min, 1/s, 1000/d.")
    ] = None,
    audit: Annotated[
        float | None,
        typer.Option(
            help="Share of own answers sent to the cloud as well, so that workers test them: 0.02."
        ),
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="NAME.pub: the bundle must be signed by this key.")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="Folder of the versions taken over the air: the last is run."),
    ] = None,
    update_host: Annotated[
        list[str] | None,
        typer.Option(help="Repository of updates: host[:port] or URL; repeated: its mirrors."),
    ] = None,
    trust: Annotated[
        Path | None, typer.Option(help="Root metadata of the repository, for --update-host.")
    ] = None,
    update_interval: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds between two checks for updates, about; by default 3600."),
    ] = None,
    update_ca_file: Annotated[
        Path | None, typer.Option(help="Authorities trusted for --update-host beside the system's.")
    ] = None,
    update_spread: Annotated[
        float, typer.Option(min=0, help="Wait up to so many seconds before an announced check.")
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

    A bundle with blocks takes windows of a signal, or pictures: --data gives them as arrays of that
    shape, --signal cuts them from samples, none across a gap; each line then has the window's first
    sample (start) and its second (time). In a csv a line is a sample's channels, with the seconds
    before them or without; the word gap stands for lost samples.

    SIGTERM and Ctrl-C end it once every instance that was taken in has its line. Under systemd it
    says when it is ready, and gives signs of life (deploy/gatewise-edge.service).

    For example:

        gatewise edge bundle --broker mqtt://localhost --device pi-1 --data rows.csv
        gatewise edge bundle --data rows.csv --keep id,timestamp --out answers.jsonl
        gatewise edge bundle --data rows.csv --resume resumable.jsonl
        gatewise edge bundle --broker mqtt://localhost --device pi-1 --publish gw/v1/pi-1/answers
        arecord -t raw -f S16_LE -r 16000 |
        gatewise edge bundle --signal - --smooth majority:5
        gatewise edge bundle --data my_sensors:read --interval 1 --metrics-port 9101
        gatewise edge bundle --broker mqtt://localhost --max-offloads 60/h --audit 0.02
        gatewise edge bundle --broker mqtts://broker --store /var/lib/gw
            --trust root.json --update-host models.example.org

    What is in trouble (the broker, the store, updates) is logged and in the metrics; the device
    starts and answers without it, and keeps trying.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("gatewise_edge").setLevel(logging.INFO)
    with ExitStack() as stack:
        stop = stack.enter_context(Stop())
        kept = None if store is None else Store(store)
        bundles = open_bundles(bundle, kept, public_key)
        first = bundles[-1].manifest
        instances = open_instances(
            bundles[-1], stop, data, keep,
            signal=signal, form=signal_format, rate_hz=rate_hz, hop=hop,
        )  # fmt: skip
        log = None if resume is None else stack.enter_context(open_log(resume, data))
        link = make_link(
            broker, publish, home_assistant,
            device=device, ca_file=ca_file, cert_file=cert_file, key_file=key_file,
            max_inflight=64 + parallel,
        )  # fmt: skip
        # Before the link is opened: it subscribes to the announcements.
        updater = make_updater(
            update_host, kept, trust,
            first=bundles[-1].path, link=link, device=device, features=first.acquired_names,
            public_key=public_key, ca_file=update_ca_file, spread=update_spread,
            **({} if update_interval is None else {"interval": update_interval}),
        )  # fmt: skip
        if kept is not None and updater is None:
            # No trial is held here: this start does not count against one.
            stack.callback(kept.save, starts=0)

        functions = load_block_functions(block or ())

        def make(opened: Bundle) -> Device:
            return Device(
                opened,
                link=link,
                sensors=instances.sensors,
                blocks=functions,
                # Rows stay in the order of the bundle that the device was set up with.
                row_names=first.column_names,
                deadline_ms=deadline_ms,
                policy=policy,  # type: ignore[arg-type]  # Device checks it
                runner=runner,  # type: ignore[arg-type]
                outstanding=max(32, parallel),
                max_offloads=max_offloads,
                audit=audit,
            )

        runtime = stack.enter_context(first_that_runs(make, bundles))
        model = runtime.bundle.manifest.release
        if link is not None:
            link.set_status(model)
        troubles = Troubles(link, kept, updater)
        smoothing = None
        if smooth is not None:
            if parallel > 1:
                raise InputError("--smooth needs answers in order: leave --parallel at 1")
            smoothing = Smoothing(smooth, first.classes, lambda: runtime.bundle.manifest.classes)
            note(f"--smooth {smooth}: a change that lasts shows {smoothing.delay} windows later")
        totals, notifier = AnswerTotals(), Notifier()
        beat = Heartbeat(
            notifier, patience=deadline_ms / 1000.0 + _GRACE, status=lambda: f"{totals}{troubles}"
        )
        observers = [totals.add]
        if updater is not None:
            observers.append(updater.observe)
        if metrics_port is not None:
            metrics, pages = serve_metrics(
                runtime, beat, metrics_host, metrics_port,
                link=link, sensors=instances.sensors, updater=updater, troubles=troubles.found,
            )  # fmt: skip
            stack.enter_context(pages)
            observers.append(metrics.observe)
        troubles.connect(connect_timeout)
        if updater is not None:
            stack.enter_context(updater).start(runtime)
        stack.enter_context(beat)
        notifier.send("READY=1", f"model {model}{troubles}")

        writers = [print_json if out is None else stack.enter_context(AnswerFile(out)).write]
        if publish is not None and link is not None:
            writers.append(stack.enter_context(AnswerPublisher(link, publish)).write)
        if home_assistant is not None and link is not None:
            answers = stack.enter_context(AnswerPublisher(link, answers_topic(link.device)))
            home = HomeAssistant(link, home_assistant, answers.write)
            writers.append(stack.enter_context(home).write)

        try:
            run_loop(
                runtime.answer,
                instances,
                stop=stop,
                beat=beat,
                observers=observers,
                limit=limit,
                interval=interval,
                parallel=parallel,
                smoothing=smoothing,
                log=log,
                writers=writers,
            )
        finally:
            notifier.send("STOPPING=1", str(totals))
            if as_json:
                print_json({"summary": _summary(totals, runtime, smoothing)})
            else:
                note(totals.in_words())
    if stop.requested == "SIGINT":
        raise KeyboardInterrupt
    if totals.errors and not stop.requested:
        raise typer.Exit(1)


commands: dict[str, Callable[..., None]] = {"edge": edge}


def _summary(
    totals: AnswerTotals, runtime: Device, smoothing: Smoothing | None
) -> dict[str, object]:
    model = runtime.bundle.manifest.release  # an update may have changed it
    summary: dict[str, object] = totals.summary() | {"model": model, "counters": runtime.counters}
    if smoothing is not None:
        delay, changed = smoothing.delay, smoothing.changed
        summary["smoothing"] = {"delay_windows": delay, "changed": changed}
    return summary
