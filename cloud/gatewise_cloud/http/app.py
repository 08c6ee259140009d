"""The pages of ``gatewise serve``: the Open Inference Protocol, plain JSON, health and metrics.

Rows that a stage answers are answered on the event loop, since a stage takes microseconds; rows
that are offloaded or whose features are fetched wait on threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from gatewise import __version__
from gatewise.errors import GatewiseError, InputError
from gatewise_cloud.http.openapi import openapi_document, openapi_page
from gatewise_cloud.http.protocol import (
    MOST_ROWS,
    InferRequest,
    Row,
    infer_response,
    model_metadata,
    rows_of,
)
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import Pending
from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.fetched_row import FetchedRow
from gatewise_edge.service.edge_metrics import EdgeMetrics

MOST_BYTES = 16 << 20
"""Largest body of a request."""
N_THREADS = 64
"""Rows that may wait for the cloud or for features at a time; the others queue."""

FetchFeatures = Callable[[Sequence[str], Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Gets names of columns, and the cells of the instance so far; returns the columns' cells."""

_ENCODER = msgspec.json.Encoder(enc_hook=lambda value: value.tolist())
_INFER = msgspec.json.Decoder(InferRequest)


class PredictRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``/predict``: rows, or objects with cells by the columns' names."""

    instances: list[list[float | None] | dict[str, Any]]


_PREDICT = msgspec.json.Decoder(PredictRequest)


class CascadeService:
    """The pages of one device.

    Parameters
    ----------
    device : Device
        Answers; with a link it offloads.
    metrics : EdgeMetrics
        Observes the device's answers.
    fetch : coroutine function, optional
        ``await fetch(names, cells)`` gets features that a stage needs and a request lacks.
    """

    def __init__(
        self, device: Device, metrics: EdgeMetrics, *, fetch: FetchFeatures | None = None
    ) -> None:
        self._device = device
        self._metrics = metrics
        self._fetch = fetch
        self._threads = ThreadPoolExecutor(N_THREADS, thread_name_prefix="gatewise-serve")

    def app(self) -> Starlette:
        """Make the application of ASGI."""
        pages: dict[str, tuple[str, Callable[[Request], Awaitable[Response]]]] = {
            "/v2": ("GET", self._server),
            "/v2/": ("GET", self._server),
            "/v2/health/live": ("GET", self._live),
            "/v2/health/ready": ("GET", self._live),
            "/predict": ("POST", self._predict),
            "/healthz": ("GET", self._live),
            "/metrics": ("GET", self._metrics_page),
            "/openapi.json": ("GET", self._openapi),
            "/docs": ("GET", self._docs),
        }
        for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            pages[model] = ("GET", self._model)
            pages[f"{model}/ready"] = ("GET", self._model_ready)
            pages[f"{model}/infer"] = ("POST", self._infer)
        routes = [Route(path, page, methods=[method]) for path, (method, page) in pages.items()]
        errors = {InputError: _refused, msgspec.DecodeError: _refused, SensorError: _refused}
        return Starlette(routes=routes, exception_handlers=errors)

    # -- answers ---------------------------------------------------------------------------

    async def _answers(self, rows: Sequence[Any]) -> list[Answer | Exception]:
        """Answer rows; an error takes the place of an answer that cannot be given."""
        if self._fetch is not None:
            loop = asyncio.get_running_loop()
            fetched = [self._fetched(row, loop) for row in rows]
            waits = [loop.run_in_executor(self._threads, self._answer, row) for row in fetched]
            return list(await asyncio.gather(*waits))
        if len(rows) > 1:
            answers: list[Answer | Exception]
            answers = await self._on_thread(self._device.answer_many, rows)
            return answers
        try:
            step = self._device.begin(rows[0])
            if isinstance(step, Pending):
                step = await self._on_thread(self._device.finish, step)
        except GatewiseError as error:
            return [error]
        assert isinstance(step, Answer)
        return [step]

    def _answer(self, row: Any) -> Answer | Exception:
        try:
            return self._device.answer(row)
        except GatewiseError as error:
            return error

    def _fetched(self, row: Row, loop: asyncio.AbstractEventLoop) -> FetchedRow:
        """Make a row with absent cells that the user's coroutine fetches on the event loop."""
        fetch = self._fetch
        assert fetch is not None
        names = self._device.bundle.manifest.column_names
        if not isinstance(row, dict) and len(row) != len(names):
            raise InputError(f"a row of {len(row)} values; the bundle has {len(names)} columns")
        cells = row if isinstance(row, dict) else dict(zip(names, row, strict=True))

        def fetch_and_wait(absent: Sequence[str], seconds: float) -> Mapping[str, Any]:
            waiting = asyncio.run_coroutine_threadsafe(_awaited(fetch(absent, cells)), loop)
            try:
                return waiting.result(seconds)
            except TimeoutError:
                waiting.cancel()
                raise

        return FetchedRow(cells, fetch_and_wait)

    async def _on_thread(self, function: Callable[..., Any], *values: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *values)

    # -- pages -----------------------------------------------------------------------------

    async def _infer(self, request: Request) -> Response:
        if (absent := self._absent(request)) is not None:
            return absent
        message = _INFER.decode(await _body(request))
        manifest = self._device.bundle.manifest
        rows = rows_of(message, manifest.column_names)
        answers = await self._answers(rows) if rows else []
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        whole = [answer for answer in answers if isinstance(answer, Answer)]
        return _json(infer_response(message, manifest, whole))

    async def _predict(self, request: Request) -> Response:
        rows = _PREDICT.decode(await _body(request)).instances
        if len(rows) > MOST_ROWS:
            raise InputError(f"{len(rows)} instances; at most {MOST_ROWS} are taken")
        answers = await self._answers(rows) if rows else []
        names = self._device.bundle.manifest.feature_names
        return _json({"predictions": [_prediction(answer, names) for answer in answers]})

    async def _server(self, _: Request) -> Response:
        return _json({"name": "gatewise", "version": __version__, "extensions": []})

    async def _live(self, _: Request) -> Response:
        return _json({"live": True, "ready": True})

    async def _model(self, request: Request) -> Response:
        metadata = model_metadata(self._device.bundle.manifest)
        return self._absent(request) or _json(metadata)

    async def _model_ready(self, request: Request) -> Response:
        name = self._device.bundle.manifest.name
        return self._absent(request) or _json({"name": name, "ready": True})

    async def _metrics_page(self, _: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _openapi(self, _: Request) -> Response:
        return _json(openapi_document(self._device.bundle.manifest))

    async def _docs(self, _: Request) -> Response:
        return HTMLResponse(openapi_page(openapi_document(self._device.bundle.manifest)))

    def _absent(self, request: Request) -> Response | None:
        """Answer for a model, or a version of it, that is not served here."""
        manifest = self._device.bundle.manifest
        served = {"name": manifest.name, "version": manifest.version}
        if all(served[key] == value for key, value in request.path_params.items()):
            return None
        return _json({"error": f"only {manifest.name}, version {manifest.version}, is here"}, 404)


async def _awaited(cells: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return await cells


async def _body(request: Request) -> bytes:
    """Read a body; InputError if it is too large."""
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > MOST_BYTES:
            raise InputError(f"a body has at most {MOST_BYTES} bytes")
    return bytes(parts)


def _prediction(answer: Answer | Exception, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(answer, Exception):
        return {"error": str(answer)}
    fields = msgspec.structs.asdict(answer)
    return fields | {"acquired": [names[k] for k in answer.acquired]}


def _json(document: Mapping[str, Any], status: int = 200) -> Response:
    return Response(_ENCODER.encode(document), status, media_type="application/json")


async def _refused(_: Request, error: Exception) -> Response:
    return _json({"error": str(error)}, 400)
