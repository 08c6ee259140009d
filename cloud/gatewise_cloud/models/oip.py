"""Backend that calls a server of the Open Inference Protocol, version 2, over HTTP.

Such servers are Triton, KServe, MLServer and OpenVINO Model Server. Source:
https://github.com/kserve/open-inference-protocol. The binary form is the protocol's extension
"binary tensor data". Triton and OpenVINO accept it over HTTP, but MLServer does not. Not every
server lists its extensions, so that a backend tries the binary form once.
"""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Mapping
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, quote, urlsplit

import numpy as np
import urllib3
from numpy.typing import NDArray

from gatewise.errors import InputError, one_line
from gatewise_cloud.errors import BackendBusy, ModelError
from gatewise_cloud.models.backends import Backend, cloud_spec

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

#: Largest response that is read into memory.
_MAX_RESPONSE_BYTES: Final = 64 << 20
#: Number of connections to keep open, one for each call at the same time.
_MAX_CONNECTIONS: Final = 64
#: HTTP statuses of a server that may answer later: timeouts, overload and a gateway's errors.
_BUSY_STATUSES: Final = frozenset({408, 429, 502, 503, 504})
#: Header with the size of the JSON before binary arrays.
_JSON_SIZE_HEADER: Final = "Inference-Header-Content-Length"
#: Numpy type of each datatype of the protocol; binary arrays are little-endian.
DTYPES: Final = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}


class _TimedReader(io.RawIOBase):
    """Socket reader with one deadline for all reads; a socket's own timeout limits each read."""

    def __init__(self, stream: Any, connected_socket: Any, deadline: float) -> None:
        self._stream = stream
        self._socket = connected_socket
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:
        remaining_seconds = self._deadline - time.monotonic()
        if remaining_seconds <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(remaining_seconds)
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _TimedResponse(HTTPResponse):
    """HTTP response with one timeout for its header and its body together."""

    def __init__(self, connected_socket: Any, *options: Any, **named_options: Any) -> None:
        super().__init__(connected_socket, *options, **named_options)
        deadline = time.monotonic() + connected_socket.gettimeout()
        stream = _TimedReader(self.fp.detach(), connected_socket, deadline)
        self.fp: Any = io.BufferedReader(stream)


class OipBackend(Backend):
    """Backend that runs a model on a server; thread-safe.

    Parameters
    ----------
    url : str
        ``http[s]://host[:port]/v2/models/NAME[/versions/VERSION]``.
    n_inputs : int
        Number of columns.
    kind : {"margins", "classifier"}
        Outputs of the model: a matrix of margins, or class indices (integers) and probabilities
        (floats).
    model : str
        Name of the model in error messages.
    timeout : float, default 5.0
        Timeout of a call in seconds.

    Raises
    ------
    InputError
        If the URL is not valid.
    ModelError
        If the server cannot be reached or lacks the model, or if the model takes other inputs.
    """

    is_local = False

    def __init__(
        self,
        url: str,
        *,
        n_inputs: int,
        kind: str,
        model: str,
        timeout: float = 5.0,
    ) -> None:
        url_parts = _split_url(url)
        self._path = url_parts.path.rstrip("/")
        try:
            self._pool = urllib3.connection_from_url(
                url, maxsize=_MAX_CONNECTIONS, timeout=urllib3.Timeout(total=timeout), retries=False
            )
        except urllib3.exceptions.LocationParseError as error:
            raise InputError(f"backend {url}: {error}") from None
        connection_class = self._pool.ConnectionCls
        self._pool.ConnectionCls = type(
            "TimedConnection", (connection_class,), {"response_class": _TimedResponse}
        )
        self.url = f"{url_parts.scheme}://{self._pool.host}:{self._pool.port}{self._path}"
        self._model = model
        self._last_failure: str | None = None
        self._kind = kind
        try:
            self._input_name = self._read_input_name(n_inputs)
            self._is_binary = self._accepts_binary_form(n_inputs)
        except BaseException:
            self.close()
            raise

    @property
    def trouble(self) -> str | None:
        """Error of the last call if the server did not answer or was overloaded, or None."""
        return self._last_failure

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def run(self, X: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Run the model on `X`, float32 (n, n_inputs); see :meth:`.Backend.run`."""
        encode = self._encode_binary if self._is_binary else self._encode_json
        status, headers, body = self._request_inference(*encode(X))
        if status != 200:
            raise self._make_model_error(f"it answered {status} {_excerpt(body)}")
        try:
            outputs = _read_outputs(body, headers.get(_JSON_SIZE_HEADER))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise self._make_model_error(
                f"its answer does not follow the protocol: {one_line(error)}"
            ) from None
        return self._sort_outputs(outputs, len(X))

    # -- the server ------------------------------------------------------------------------

    def _accepts_binary_form(self, n_inputs: int) -> bool:
        """Return whether the server answers a row of zeros in binary form."""
        status, _, _ = self._request_inference(
            *self._encode_binary(np.zeros((1, n_inputs), np.float32))
        )
        return status == 200

    def _encode_json(self, X: NDArray[np.float32]) -> tuple[bytes, dict[str, str]]:
        """Make the body and the headers of a request in JSON."""
        if np.isnan(X).any():
            raise self._make_model_error(
                "JSON cannot express missing values, and the server refused the binary form"
            )
        request = {"inputs": [self._describe_input(X) | {"data": X.reshape(-1).tolist()}]}
        return json.dumps(request).encode(), {"Content-Type": "application/json"}

    def _encode_binary(self, X: NDArray[np.float32]) -> tuple[bytes, dict[str, str]]:
        """Make the body and the headers of a request in binary form."""
        tensor_bytes = np.ascontiguousarray(X, "<f4").tobytes()
        tensor = self._describe_input(X)
        tensor["parameters"] = {"binary_data_size": len(tensor_bytes)}
        request = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        request_json = json.dumps(request).encode()
        headers = {
            "Content-Type": "application/octet-stream",
            _JSON_SIZE_HEADER: str(len(request_json)),
        }
        return request_json + tensor_bytes, headers

    def _describe_input(self, X: NDArray[np.float32]) -> dict[str, Any]:
        return {"name": self._input_name, "shape": list(X.shape), "datatype": "FP32"}

    def _request_inference(
        self, body: bytes, headers: dict[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        return self._call("POST", f"{self._path}/infer", body, headers)

    def _read_input_name(self, n_inputs: int) -> str:
        """Check the model's metadata, and return the name of its input."""
        status, _, body = self._call("GET", self._path, b"", {})
        if status != 200:
            raise self._make_model_error(f"it answered {status} {_excerpt(body)}")
        try:
            inputs = json.loads(body)["inputs"]
            (tensor,) = inputs
            name = str(tensor["name"])
            datatype = tensor["datatype"]
            shape = list(tensor["shape"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._make_model_error(
                f"its metadata do not describe exactly one input: {one_line(error)}"
            ) from None
        if datatype != "FP32" or len(shape) != 2 or shape[-1] not in (-1, n_inputs):
            raise self._make_model_error(f"it takes {datatype} {shape}, not FP32 [-1, {n_inputs}]")
        return name

    def _sort_outputs(self, outputs: list[NDArray[Any]], n_rows: int) -> list[NDArray[Any]]:
        """Check the outputs for n instances, and put class indices before probabilities."""
        wrong_shapes = [array.shape for array in outputs if not array.ndim or len(array) != n_rows]
        if wrong_shapes:
            raise self._make_model_error(
                f"it gave outputs of shape {wrong_shapes} for {n_rows} instances"
            )
        integer_arrays = [array for array in outputs if array.dtype.kind in "iu"]
        float_arrays = [array for array in outputs if array.dtype.kind == "f" and array.ndim == 2]
        if self._kind == "margins" and len(outputs) == 1 and float_arrays:
            return [np.asarray(float_arrays[0], np.float32)]
        if (
            self._kind == "classifier"
            and len(integer_arrays) == len(float_arrays) == 1
            and integer_arrays[0].size == n_rows
        ):
            return [integer_arrays[0].reshape(-1), float_arrays[0]]
        output_forms = [f"{array.dtype} {array.shape}" for array in outputs]
        expected_form = "class indices and probabilities"
        if self._kind == "margins":
            expected_form = "one matrix of margins"
        raise self._make_model_error(f"it gave {output_forms}, not {expected_form}")

    def _call(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        try:
            response = self._pool.urlopen(
                method, path, body or None, headers, preload_content=False
            )
            response_body = response.read(_MAX_RESPONSE_BYTES + 1)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._make_busy_error(error) from None
        if len(response_body) > _MAX_RESPONSE_BYTES:
            response.close()
            raise self._make_model_error(f"its answer is larger than {_MAX_RESPONSE_BYTES} bytes")
        response.release_conn()
        if response.status in _BUSY_STATUSES:
            raise self._make_busy_error(f"it answered {response.status} {_excerpt(response_body)}")
        self._last_failure = None
        return response.status, response.headers, response_body

    def _make_model_error(self, problem: str) -> ModelError:
        return ModelError(self._model, f"backend {self.url} of model {self._model}: {problem}")

    def _make_busy_error(self, cause: Exception | str) -> BackendBusy:
        cause_text = one_line(cause) if isinstance(cause, Exception) else cause
        self._last_failure = (
            f"backend {self.url} cannot answer now: {cause_text or type(cause).__name__}"
        )
        return BackendBusy(self._model, self._last_failure)


def oip_backend_factory(url: str) -> Callable[[Manifest], OipBackend]:
    """Make a function that creates the backend on a server for a bundle's manifest.

    ``{name}`` and ``{version}`` in `url` are replaced by the bundle's name and version.
    """
    _split_url(url)

    def make_backend(manifest: Manifest) -> OipBackend:
        cloud = cloud_spec(manifest)
        model_url = url.replace("{name}", quote(manifest.name, safe=""))
        return OipBackend(
            model_url.replace("{version}", quote(manifest.version, safe="")),
            n_inputs=len(cloud.inputs),
            kind=cloud.kind,
            model=manifest.title,
        )

    return make_backend


def _excerpt(body: bytes) -> str:
    """Return the first words of a response for an error message."""
    return " ".join(body[:200].decode("utf-8", "replace").split())


def _split_url(url: str) -> SplitResult:
    """Split the URL of a model into its parts; InputError if it is not valid."""
    try:
        url_parts = urlsplit(url)
    except ValueError as error:  # such as an unbalanced bracket
        raise InputError(f"backend {url}: {error}") from None
    is_http = url_parts.scheme in ("http", "https") and url_parts.hostname and not url_parts.query
    if not is_http or "/v2/models/" not in url_parts.path:
        raise InputError(
            f"backend {url}: give python:module:attribute or "
            "http[s]://host[:port]/v2/models/NAME[/versions/VERSION]"
        )
    return url_parts


def _read_outputs(body: bytes, json_size_text: str | None) -> list[NDArray[Any]]:
    """Read the arrays of a response, which are in JSON or in binary form.

    `json_size_text` holds the size of the JSON if binary arrays follow it.
    """
    json_size = len(body) if json_size_text is None else int(json_size_text)
    # binary arrays follow the JSON in the order of the outputs
    offset = json_size
    arrays: list[NDArray[Any]] = []
    for output in json.loads(body[:json_size])["outputs"]:
        dtype = DTYPES[output["datatype"]]
        shape = [int(length) for length in output["shape"]]
        if any(length < 0 for length in shape):
            raise ValueError(f"shape {shape}")
        n_numbers = math.prod(shape)
        binary_size = (output.get("parameters") or {}).get("binary_data_size")
        if binary_size is None:
            array = np.array(output["data"], dtype).reshape(-1)
        else:
            if binary_size != n_numbers * dtype.itemsize or offset + binary_size > len(body):
                raise ValueError(f"{binary_size} bytes for shape {shape}")
            array = np.frombuffer(body, dtype, n_numbers, offset)
            offset += binary_size
        if array.size != n_numbers:
            raise ValueError(f"{array.size} numbers for shape {shape}")
        arrays.append(array.reshape(shape))
    return arrays
