"""ASGI application of ``gatewise serve``: inference, health, metrics and documentation.

A stage takes microseconds, so the stages of a single row run on the event loop. Several rows of a
request, offloaded rows, and rows with features to fetch wait on threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
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
    MAX_ROWS,
    InferRequest,
    Row,
    infer_response,
    model_metadata,
    read_rows,
)
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import PendingInstance
from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.cell_source import FetchedRow
from gatewise_edge.service.edge_metrics import EdgeMetrics

#: Largest size of a request's body.
MAX_BODY_BYTES = 16 << 20
#: Number of requests, or of rows with features to fetch, that can wait at the same time.
N_THREADS = 64

#: Coroutine function that fetches the named cells of an instance, given its other cells.
FetchFeatures = Callable[[Sequence[str], Mapping[str, Any]], Coroutine[Any, Any, Mapping[str, Any]]]

_ENCODER = msgspec.json.Encoder(enc_hook=lambda value: value.tolist())
_INFER_DECODER = msgspec.json.Decoder(InferRequest)


class PredictRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a ``/predict`` request: instances as lists of values, or as cells by column name."""

    instances: list[list[float | None] | dict[str, Any]]


_PREDICT_DECODER = msgspec.json.Decoder(PredictRequest)


class CascadeService:
    """Pages of the HTTP service for one cascade.

    Parameters
    ----------
    device : Device
        Device that answers rows, and offloads the hard ones if it has a link.
    metrics : EdgeMetrics
        Metrics of the device's answers.
    fetch : coroutine function, optional
        Called as ``await fetch(names, cells)`` for features that a stage needs and a request lacks.
    """

    def __init__(
        self, device: Device, metrics: EdgeMetrics, *, fetch: FetchFeatures | None = None
    ) -> None:
        self._device = device
        self._metrics = metrics
        self._fetch = fetch
        self._threads = ThreadPoolExecutor(N_THREADS, thread_name_prefix="gatewise-serve")

    def app(self) -> Starlette:
        """Make the ASGI application."""
        pages: dict[str, tuple[str, Callable[[Request], Awaitable[Response]]]] = {
            "/v2": ("GET", self._server_page),
            "/v2/": ("GET", self._server_page),
            "/v2/health/live": ("GET", self._health_page),
            "/v2/health/ready": ("GET", self._health_page),
            "/predict": ("POST", self._predict),
            "/healthz": ("GET", self._health_page),
            "/metrics": ("GET", self._metrics_page),
            "/openapi.json": ("GET", self._openapi_document),
            "/docs": ("GET", self._documentation_page),
        }
        for model_path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            pages[model_path] = ("GET", self._model_page)
            pages[f"{model_path}/ready"] = ("GET", self._model_ready_page)
            pages[f"{model_path}/infer"] = ("POST", self._infer)
        routes = [Route(path, page, methods=[method]) for path, (method, page) in pages.items()]
        handlers = dict.fromkeys((InputError, msgspec.DecodeError, SensorError), _refuse_request)
        return Starlette(routes=routes, exception_handlers=handlers)

    # -- answers ---------------------------------------------------------------------------

    async def _answer_rows(self, rows: Sequence[Any]) -> list[Answer | Exception]:
        """Answer rows; the list contains the error for a row whose features cannot be read.

        Raises InputError if a row does not match the bundle. Several rows are answered together on
        one thread. A row whose cells are fetched needs a thread that waits for them. One row
        without a fetch takes a thread only if it is offloaded.
        """
        if self._fetch is not None:
            loop = asyncio.get_running_loop()
            fetched_rows = [self._make_fetched_row(row, loop) for row in rows]
            tasks = [
                loop.run_in_executor(self._threads, self._answer_row, row) for row in fetched_rows
            ]
            return list(await asyncio.gather(*tasks))
        if len(rows) > 1:
            answers: list[Answer | Exception]
            answers = await self._on_thread(self._device.answer_many, rows)
            return answers
        try:
            answer_or_pending = self._device.begin(rows[0])
            if isinstance(answer_or_pending, PendingInstance):
                answer_or_pending = await self._on_thread(self._device.finish, answer_or_pending)
        except SensorError as error:
            return [error]
        assert isinstance(answer_or_pending, Answer)
        return [answer_or_pending]

    def _answer_row(self, row: Any) -> Answer | Exception:
        try:
            return self._device.answer(row)
        except GatewiseError as error:
            return error

    def _make_fetched_row(self, row: Row, loop: asyncio.AbstractEventLoop) -> FetchedRow:
        """Make a row that gets its missing cells from the user's coroutine on the event loop."""
        fetch = self._fetch
        assert fetch is not None
        column_names = self._device.bundle.manifest.column_names
        if not isinstance(row, dict) and len(row) != len(column_names):
            raise InputError(
                f"a row of {len(row)} values; the bundle has {len(column_names)} columns"
            )
        cells = row if isinstance(row, dict) else dict(zip(column_names, row, strict=True))
        known_cells = dict(cells)

        def fetch_and_wait(
            absent_names: Sequence[str], timeout_seconds: float
        ) -> Mapping[str, Any]:
            future = asyncio.run_coroutine_threadsafe(fetch(absent_names, known_cells), loop)
            try:
                fetched_cells = future.result(timeout_seconds)
            except TimeoutError:
                future.cancel()
                raise
            known_cells.update(fetched_cells)
            return fetched_cells

        return FetchedRow(cells, fetch_and_wait)

    async def _on_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    # -- pages -----------------------------------------------------------------------------

    async def _infer(self, request: Request) -> Response:
        if (not_found := self._refuse_unserved_model(request)) is not None:
            return not_found
        message = _INFER_DECODER.decode(await _read_body(request))
        manifest = self._device.bundle.manifest
        rows = read_rows(message, manifest.column_names)
        answers = await self._answer_rows(rows) if rows else []
        # the Open Inference Protocol has one error for the whole response, not one for each row
        successful_answers = []
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
            successful_answers.append(answer)
        return _make_json_response(infer_response(message, manifest, successful_answers))

    async def _predict(self, request: Request) -> Response:
        rows = _PREDICT_DECODER.decode(await _read_body(request)).instances
        if len(rows) > MAX_ROWS:
            raise InputError(f"{len(rows)} instances; at most {MAX_ROWS} are allowed")
        answers = await self._answer_rows(rows) if rows else []
        feature_names = self._device.bundle.manifest.feature_names
        return _make_json_response(
            {"predictions": [_make_prediction(answer, feature_names) for answer in answers]}
        )

    async def _server_page(self, _: Request) -> Response:
        return _make_json_response({"name": "gatewise", "version": __version__, "extensions": []})

    async def _health_page(self, _: Request) -> Response:
        return _make_json_response({"live": True, "ready": True})

    async def _model_page(self, request: Request) -> Response:
        metadata = model_metadata(self._device.bundle.manifest)
        return self._refuse_unserved_model(request) or _make_json_response(metadata)

    async def _model_ready_page(self, request: Request) -> Response:
        name = self._device.bundle.manifest.name
        return self._refuse_unserved_model(request) or _make_json_response(
            {"name": name, "ready": True}
        )

    async def _metrics_page(self, _: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _openapi_document(self, _: Request) -> Response:
        return _make_json_response(openapi_document(self._device.bundle.manifest))

    async def _documentation_page(self, _: Request) -> Response:
        return HTMLResponse(openapi_page(openapi_document(self._device.bundle.manifest)))

    def _refuse_unserved_model(self, request: Request) -> Response | None:
        """Make the response for a model or version that is not served; None if it is served."""
        manifest = self._device.bundle.manifest
        model = {"name": manifest.name, "version": manifest.version}
        if all(model[key] == value for key, value in request.path_params.items()):
            return None
        error = f"this service has only the model {manifest.name}, version {manifest.version}"
        return _make_json_response({"error": error}, 404)


async def _read_body(request: Request) -> bytes:
    """Read the body of a request; InputError if it is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise InputError(f"the body of a request may have at most {MAX_BODY_BYTES} bytes")
    return bytes(body)


def _make_prediction(answer: Answer | Exception, feature_names: Sequence[str]) -> dict[str, Any]:
    if isinstance(answer, Exception):
        return {"error": str(answer)}
    answer_fields = msgspec.structs.asdict(answer)
    return answer_fields | {"acquired": [feature_names[feature] for feature in answer.acquired]}


def _make_json_response(document: Mapping[str, Any], status: int = 200) -> Response:
    return Response(_ENCODER.encode(document), status, media_type="application/json")


async def _refuse_request(_: Request, error: Exception) -> Response:
    return _make_json_response({"error": str(error)}, 400)
