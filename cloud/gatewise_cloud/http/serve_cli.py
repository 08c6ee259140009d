"""Command ``gatewise serve``, which serves a bundle's cascade over HTTP."""

from __future__ import annotations

import inspect
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from gatewise.console import print_line
from gatewise.errors import InputError
from gatewise.imports import CPU, import_object
from gatewise_cloud.http.app import CascadeService, FetchFeatures
from gatewise_cloud.models.backend_choice import backend_factory
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.link.link import InProcessLink, Link
from gatewise_edge.link.mqtt_link import MqttLink
from gatewise_edge.service.edge_metrics import EdgeMetrics
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.commands import options

#: Number of requests that run at the same time; the others wait, and may miss their deadline.
_N_THREADS = 16


def serve(
    bundle: options.BundlePath,
    port: options.Port = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    broker: Annotated[
        str | None,
        typer.Option(help="URL of the broker of workers that answer hard rows: mqtt(s)://host."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Id of this service on the broker; by default a random id.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="URL|python:MODULE:ATTRIBUTE",
            help="Model that answers hard rows instead, such as http://host:8000/v2/models/NAME.",
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Coroutine function that fetches the features that a request lacks.",
        ),
    ] = None,
    provider: Annotated[
        str, typer.Option(help="Execution provider of onnxruntime for stages that are networks.")
    ] = CPU,
    deadline_ms: Annotated[
        float, typer.Option(min=1, help="Longest time to an answer, in ms.")
    ] = 500.0,
    ca_file: options.CaFile = None,
    cert_file: Annotated[Path | None, typer.Option(help="Certificate of this service.")] = None,
    key_file: options.KeyFile = None,
    public_key: options.PublicKeyFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the address as a JSON document.")
    ] = False,
) -> None:
    """Serve a bundle's cascade over HTTP, in the Open Inference Protocol v2 and in plain JSON.

    The stages run in this process. Hard rows go to a worker over MQTT (--broker) or to a model
    server such as Triton, KServe or MLServer (--backend). Without either, the last stage
    answers. --features names a function ``async def fetch(names, cells)``. It gets the names of the
    columns that the next stage needs and the request lacks, and returns their cells by name. The
    service has neither passwords nor TLS: run it behind a proxy that has both.

    Examples:

        gatewise serve bundle --port 8080 --broker mqtt://localhost
        curl localhost:8080/predict -d '{"instances": [{"age": 41}]}'
    """
    if broker is not None and backend is not None:
        raise InputError("give --broker or --backend, not both")
    fetch = None if features is None else _import_fetch(features)
    opened_bundle = Bundle.open(bundle, public_key=public_key, for_device=True)
    link: Link | None = None
    if broker is not None:
        link = MqttLink(
            broker, device=device, ca_file=ca_file, cert_file=cert_file, key_file=key_file
        )
    if backend is not None:
        model = CloudModel.from_bundle(
            opened_bundle, backend=backend_factory(backend)(opened_bundle.manifest)
        )
        link = _BackendLink(model)
    # the metrics need the device, and the device needs the function that feeds the metrics
    metrics: EdgeMetrics | None = None

    def observe(answer: Answer | Exception) -> None:
        if metrics is not None:
            metrics.observe(answer)

    with Device(
        opened_bundle,
        link=link,
        deadline_ms=deadline_ms,
        provider=provider,
        row_names=opened_bundle.manifest.column_names,
        observe=observe,
    ) as cascade_device:
        metrics = EdgeMetrics(cascade_device, link=link)
        app = CascadeService(cascade_device, metrics, fetch=fetch).app()
        server_config = uvicorn.Config(app, host=host, port=port, log_level="warning")
        listener = server_config.bind_socket()
        # connections inherit this option; without it, a response's body may wait 40 ms for an ACK
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # listen before the address is printed, so that no connection is refused
        listener.listen()
        bound_port = listener.getsockname()[1]
        address = f"[{host}]" if ":" in host else host  # IPv6
        url = f"http://{address}:{bound_port}"
        title = opened_bundle.manifest.title
        print_line(f"{title} at {url}/docs", {"model": title, "url": url}, as_json=as_json)
        uvicorn.Server(server_config).run(sockets=[listener])


def _import_fetch(import_path: str) -> FetchFeatures:
    function: FetchFeatures = import_object(import_path, import_path)
    if not inspect.iscoroutinefunction(function):
        raise InputError(f"--features {import_path} must be a coroutine function: async def")
    return function


class _BackendLink(InProcessLink):
    """Link to the backend of a high-cost model, which runs requests on threads of its own."""

    def __init__(self, model: CloudModel) -> None:
        super().__init__(model.answer)
        self._model = model
        self._threads = ThreadPoolExecutor(_N_THREADS, thread_name_prefix="gatewise-backend")

    def send(self, payload: bytes) -> bool:
        """Queue a request; return False if the link is not open."""
        if self.is_ready:
            self._threads.submit(super().send, payload)
        return self.is_ready

    def close(self) -> None:
        """Close the link and the model, and drop queued requests."""
        super().close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._model.close()
