"""Backend that calls a server of the Open Inference Protocol, version 2, over HTTP.

Such servers are Triton, KServe, MLServer and OpenVINO Model Server. Source:
https://github.com/kserve/open-inference-protocol. The binary form is the protocol's extension
"binary tensor data". Triton and OpenVINO support it over HTTP, but MLServer does not.
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
from gatewise_cloud.models.backends import Backend, cloud_of

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

_MAX_BYTES: Final = 64 << 20
_MAX_CONNECTIONS: Final = 64
_BUSY_STATUSES: Final = frozenset({408, 429, 502, 503, 504})
_HEADER: Final = "Inference-Header-Content-Length"
_DTYPES: Final = {
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

    def __init__(self, raw: Any, sock: Any, deadline: float) -> None:
        self._raw = raw
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(remaining)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(HTTPResponse):
    """HTTP response with one timeout for its header and its body together."""

    def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        deadline = time.monotonic() + sock.gettimeout()
        self.fp: Any = io.BufferedReader(_TimedReader(self.fp.detach(), sock, deadline))


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
    binary : bool, default False
        Whether to exchange numbers in binary form. JSON cannot express missing values (NaN).

    Raises
    ------
    InputError
        If the URL is not valid.
    ModelError
        If the server cannot be reached or lacks the model, or if the model takes other inputs.
    """

    local = False

    def __init__(
        self,
        url: str,
        *,
        n_inputs: int,
        kind: str,
        model: str,
        timeout: float = 5.0,
        binary: bool = False,
    ) -> None:
        address = _check_url(url)
        self._path = address.path.rstrip("/")
        try:
            self._pool = urllib3.connection_from_url(
                url,
                maxsize=_MAX_CONNECTIONS,
                timeout=urllib3.Timeout(total=timeout),
                retries=False,
            )
        except urllib3.exceptions.LocationParseError as error:
            raise InputError(f"backend {url}: {error}") from None
        connection = self._pool.ConnectionCls
        self._pool.ConnectionCls = type(
            "TimedConnection", (connection,), {"response_class": _TimedResponse}
        )
        self.url = f"{address.scheme}://{self._pool.host}:{self._pool.port}{self._path}"
        self._model = model
        self._last_failure: str | None = None
        self._kind = kind
        self._binary = binary
        try:
            self._input = self._input_name(n_inputs)
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
        # send the request in binary form or in JSON
        tensor: dict[str, Any] = {"name": self._input, "shape": list(X.shape), "datatype": "FP32"}
        request: dict[str, Any] = {"inputs": [tensor]}
        if self._binary:
            raw = np.ascontiguousarray(X, "<f4").tobytes()
            tensor["parameters"] = {"binary_data_size": len(raw)}
            request["parameters"] = {"binary_data_output": True}
            text = json.dumps(request).encode()
            status, headers, body = self._call(
                "POST",
                f"{self._path}/infer",
                text + raw,
                {"Content-Type": "application/octet-stream", _HEADER: str(len(text))},
            )
        else:
            if np.isnan(X).any():
                raise self._model_error("JSON cannot express missing values: use --backend-binary")
            tensor["data"] = X.reshape(-1).tolist()
            text = json.dumps(request).encode()
            status, headers, body = self._call(
                "POST", f"{self._path}/infer", text, {"Content-Type": "application/json"}
            )
        # read the response
        if status != 200:
            raise self._model_error(f"it answered {status} {_excerpt(body)}")
        try:
            outputs = _read_outputs(body, headers.get(_HEADER))
        except (ValueError, KeyError, TypeError) as error:
            raise self._model_error(
                f"its answer does not follow the protocol: {one_line(error)}"
            ) from None
        return self._sort_outputs(outputs, len(X))

    # -- the server ------------------------------------------------------------------------

    def _input_name(self, n_inputs: int) -> str:
        """Check the model's metadata, and return the name of its input."""
        status, _, body = self._call("GET", self._path, b"", {})
        if status != 200:
            raise self._model_error(f"it answered {status} {_excerpt(body)}")
        try:
            inputs = json.loads(body)["inputs"]
            (tensor,) = inputs
            name = str(tensor["name"])
            datatype = tensor["datatype"]
            shape = list(tensor["shape"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._model_error(
                f"its metadata do not describe exactly one input: {one_line(error)}"
            ) from None
        if datatype != "FP32" or len(shape) != 2 or shape[-1] not in (-1, n_inputs):
            raise self._model_error(f"it takes {datatype} {shape}, not FP32 [-1, {n_inputs}]")
        return name

    def _sort_outputs(self, outputs: list[NDArray[Any]], n: int) -> list[NDArray[Any]]:
        """Check the outputs for n instances, and put class indices before probabilities."""
        wrong_shapes = [a.shape for a in outputs if not a.ndim or len(a) != n]
        if wrong_shapes:
            raise self._model_error(f"it gave outputs of shape {wrong_shapes} for {n} instances")
        integers = [a for a in outputs if a.dtype.kind in "iu"]
        floats = [a for a in outputs if a.dtype.kind == "f" and a.ndim == 2]
        if self._kind == "margins" and len(outputs) == 1 and floats:
            return [np.asarray(floats[0], np.float32)]
        if (
            self._kind == "classifier"
            and len(integers) == len(floats) == 1
            and integers[0].size == n
        ):
            return [integers[0].reshape(-1), floats[0]]
        kinds = [f"{a.dtype} {a.shape}" for a in outputs]
        expected = "class indices and probabilities"
        if self._kind == "margins":
            expected = "one matrix of margins"
        raise self._model_error(f"it gave {kinds}, not {expected}")

    def _call(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        try:
            answer = self._pool.urlopen(method, path, body or None, headers, preload_content=False)
            content = answer.read(_MAX_BYTES + 1)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._busy_error(error) from None
        if len(content) > _MAX_BYTES:
            answer.close()
            raise self._model_error(f"its answer is larger than {_MAX_BYTES} bytes")
        answer.release_conn()
        if answer.status in _BUSY_STATUSES:
            raise self._busy_error(f"it answered {answer.status} {_excerpt(content)}")
        self._last_failure = None
        return answer.status, answer.headers, content

    def _model_error(self, problem: str) -> ModelError:
        return ModelError(self._model, f"backend {self.url} of model {self._model}: {problem}")

    def _busy_error(self, cause: Exception | str) -> BackendBusy:
        text = one_line(cause) if isinstance(cause, Exception) else cause
        self._last_failure = f"backend {self.url} does not answer: {text or type(cause).__name__}"
        return BackendBusy(self._model, self._last_failure)


def backend_at(
    url: str, *, timeout: float = 5.0, binary: bool = False
) -> Callable[[Manifest], OipBackend]:
    """Make a function that creates the backend on a server for a bundle's manifest.

    ``{name}`` and ``{version}`` in `url` are replaced by the bundle's name and version. For the
    other parameters see :class:`OipBackend`.
    """
    _check_url(url)

    def make(manifest: Manifest) -> OipBackend:
        cloud = cloud_of(manifest)
        model_url = url.replace("{name}", quote(manifest.name, safe=""))
        return OipBackend(
            model_url.replace("{version}", quote(manifest.version, safe="")),
            n_inputs=len(cloud.inputs),
            kind=cloud.kind,
            model=manifest.title,
            timeout=timeout,
            binary=binary,
        )

    return make


def _excerpt(body: bytes) -> str:
    """Return the first words of a response for an error message."""
    return " ".join(body[:200].decode("utf-8", "replace").split())


def _check_url(url: str) -> SplitResult:
    """Split the URL of a model into its parts; InputError if it is not valid."""
    try:
        address = urlsplit(url)
    except ValueError as error:  # such as an unbalanced bracket
        raise InputError(f"backend {url}: {error}") from None
    is_http = address.scheme in ("http", "https") and address.hostname and not address.query
    if not is_http or "/v2/models/" not in address.path:
        raise InputError(
            f"backend {url}: give python:module:attribute or "
            "http[s]://host[:port]/v2/models/NAME[/versions/VERSION]"
        )
    return address


def _read_outputs(body: bytes, header: str | None) -> list[NDArray[Any]]:
    """Read the arrays of a response, which are in JSON or in binary form.

    `header` holds the size of the JSON if binary arrays follow it.
    """
    json_size = len(body) if header is None else int(header)
    # binary arrays follow the JSON in the order of the outputs
    offset = json_size
    arrays: list[NDArray[Any]] = []
    for output in json.loads(body[:json_size])["outputs"]:
        dtype = _DTYPES[output["datatype"]]
        shape = [int(n) for n in output["shape"]]
        if any(n < 0 for n in shape):
            raise ValueError(f"shape {shape}")
        count = math.prod(shape)
        binary_size = (output.get("parameters") or {}).get("binary_data_size")
        if binary_size is None:
            array = np.array(output["data"], dtype).reshape(-1)
        else:
            if binary_size != count * dtype.itemsize or offset + binary_size > len(body):
                raise ValueError(f"{binary_size} bytes for shape {shape}")
            array = np.frombuffer(body, dtype, count, offset)
            offset += binary_size
        if array.size != count:
            raise ValueError(f"{array.size} numbers for shape {shape}")
        arrays.append(array.reshape(shape))
    return arrays
