"""Enrolment of devices: a one-time token and a request for a certificate, over HTTPS.

An operator makes a token for a name. The device makes a key, which never leaves it, and sends the
token with a request that the key has signed. The server returns a certificate for the token's name.
A token is valid once and for a day, and the server keeps a hash of it. The token also contains the
digest of the authority, so that the device can verify the server.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import queue
import secrets
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from gatewise.documents import Record, decode_json, encode_json
from gatewise.errors import GatewiseError, InputError
from gatewise_cloud.broker.authority import PRIVATE, Authority, Clock
from gatewise_cloud.broker.broker_init import BrokerFolder, read_roster, register_devices
from gatewise_edge.service.enrolment import MAX_BODY, write_token
from gatewise_export.bundle.storage import replace_file

_LOG = logging.getLogger("gatewise_cloud")
_FILE: Final = "enrolments.json"
_LIFE_SECONDS: Final = 86400.0
_SILENCE_SECONDS: Final = 10.0
#: Seconds for which requests are collected, to be enrolled together.
_GATHER_SECONDS: Final = 0.2
#: Number of connections served at the same time, each on a thread.
_MAX_CONNECTIONS: Final = 64


class Enrolment(Record, frozen=True):
    """An unused token: the hash of its secret, and its expiry in Unix seconds."""

    sha256: str
    expires: float

    def admits(self, secret: str, now: float) -> bool:
        """Whether `secret` belongs to this token, and the token has not expired."""
        return hmac.compare_digest(self.sha256, _hash(secret)) and now <= self.expires


def make_tokens(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Make a one-time token for each device, by its name; older tokens become invalid."""
    clients = read_roster(folder).clients
    authority = (folder / "ca.crt").read_bytes()
    expires = time.time() + _LIFE_SECONDS
    enrolments = _read_tokens(folder)
    tokens = {}
    for name in names:
        if name in clients:
            raise InputError(f"client {name!r} has a certificate: revoke it first")
        secret = secrets.token_hex(16)
        enrolments[name] = Enrolment(sha256=_hash(secret), expires=expires)
        tokens[name] = write_token(name, secret, authority)
    _write_tokens(folder, enrolments)
    return tokens


class _Request(NamedTuple):
    """A device that waits for its certificate: the name and secret of its token, and its key."""

    name: str
    secret: str
    key: ec.EllipticCurvePublicKey
    certificate: Future[str]


class EnrolmentServer(ThreadingHTTPServer):
    """Server of enrolments for the folder of a broker; a context manager.

    ``GET /ca.crt`` returns the authority's certificate. ``POST /enrol`` takes
    ``{"token": ..., "csr": ...}`` and returns ``{"certificate": ..., "broker": ...}``. Requests are
    enrolled in groups, because each group writes the roster of all devices and connects to the
    broker once.

    Parameters
    ----------
    folder : Path
        Folder of :func:`.init_broker`.
    host : str
        Address to listen on.
    port : int
        TCP port; 0 takes a free one.
    apply : callable
        Gives rights in a running broker to devices, by the folder and their names. If it raises,
        their tokens stay valid.
    clock : callable
        Returns the time with its zone.
    """

    daemon_threads = True
    block_on_close = False
    #: Number of connections that may wait for a thread.
    request_queue_size = 128

    def __init__(
        self,
        folder: Path,
        *,
        host: str,
        port: int,
        apply: Callable[[BrokerFolder, Sequence[str]], None],
        clock: Clock,
    ) -> None:
        self.folder = folder
        self._apply = apply
        self._clock = clock
        self._threads_left = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        super().__init__((host, port), _EnrolmentHandler)
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = int(self.server_address[1])
        self._services = [
            threading.Thread(target=run, daemon=True)
            for run in (self.serve_forever, self._enrol_requests)
        ]

    def __enter__(self) -> Self:
        for thread in self._services:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._requests.put(None)
        for thread in self._services:
            thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread once the number of threads allows it."""
        self._threads_left.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, then release its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._threads_left.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an enrolment that failed."""
        _LOG.warning("an enrolment failed: %s", sys.exc_info()[1])

    def enrol(self, token: str, csr: bytes) -> str:
        """Use a token, and return the certificate in PEM; InputError if either is not valid."""
        name, _, secret = token.rpartition(".")[0].rpartition(".")
        request = _Request(name, secret, _requested_key(csr), Future())
        self._requests.put(request)
        return request.certificate.result()

    def _enrol_requests(self) -> None:
        """Enrol devices in groups until the server closes."""
        while (request := self._requests.get()) is not None:
            time.sleep(_GATHER_SECONDS)
            requests = [request]
            while not self._requests.empty() and len(requests) < _MAX_CONNECTIONS:
                if (request := self._requests.get()) is None:
                    return
                requests.append(request)
            try:
                self._certify(requests)
            except Exception as error:  # of any kind, because later devices must be served
                is_usual = isinstance(error, GatewiseError | OSError)
                _LOG.error("enrolments failed: %s", error, exc_info=not is_usual)
                failure = InputError("the enrolment cannot be completed now: try again later")
                for request in requests:
                    if not request.certificate.done():
                        request.certificate.set_exception(failure)

    def _certify(self, requests: Sequence[_Request]) -> None:
        enrolments = _read_tokens(self.folder)
        now = self._clock().timestamp()
        authority = Authority(self.folder, clock=self._clock)
        certificates: dict[str, Path] = {}
        accepted: list[_Request] = []
        for request in requests:
            name = request.name
            enrolment = enrolments.get(name)
            if (
                enrolment is None
                or name in certificates
                or not enrolment.admits(request.secret, now)
            ):
                refusal = InputError("the token is not valid, was used before or has expired")
                request.certificate.set_exception(refusal)
                continue
            path = self.folder / "clients" / f"{name}.crt"
            authority.certify(path, request.key, name, "devices")
            certificates[name] = path
            accepted.append(request)
        if not accepted:
            return
        self._apply(register_devices(self.folder, certificates), list(certificates))
        # Last, so that a device whose enrolment was interrupted can use its token again.
        for name in certificates:
            del enrolments[name]
        _write_tokens(self.folder, enrolments)
        for request in accepted:
            request.certificate.set_result(certificates[request.name].read_text())


class _EnrolmentHandler(BaseHTTPRequestHandler):
    server: EnrolmentServer
    timeout = _SILENCE_SECONDS

    def do_GET(self) -> None:
        if self.path != "/ca.crt":
            self.send_error(404)
            return
        self._respond(200, (self.server.folder / "ca.crt").read_bytes())

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", ""))
            if self.path != "/enrol" or not 0 <= length <= MAX_BODY:
                raise InputError("no enrolment")
            request = json.loads(self.rfile.read(length))
            certificate = self.server.enrol(str(request["token"]), str(request["csr"]).encode())
        except (InputError, ValueError, KeyError, TypeError) as error:
            _LOG.warning("an enrolment was refused: %s", error)
            reason = str(error) if isinstance(error, InputError) else "a malformed request"
            self._respond(403, json.dumps({"error": reason}).encode())
            return
        roster = read_roster(self.server.folder)
        broker = f"mqtts://{roster.hosts[0]}:{roster.port}"
        response = {"certificate": certificate, "broker": broker}
        self._respond(200, json.dumps(response).encode())

    def _respond(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because `apply` reports enrolments."""


def _requested_key(csr: bytes) -> ec.EllipticCurvePublicKey:
    """Get the key of a request that is signed by it; InputError if it is of another kind."""
    try:
        request = x509.load_pem_x509_csr(csr)
        key = request.public_key()
    except ValueError:
        raise InputError("the request for a certificate cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not request.is_signature_valid:
        raise InputError("the request is not signed by an elliptic-curve key of its own")
    return key


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _read_tokens(folder: Path) -> dict[str, Enrolment]:
    path = folder / _FILE
    if not path.exists():
        return {}
    return decode_json(path.read_bytes(), dict[str, Enrolment], str(path))


def _write_tokens(folder: Path, tokens: dict[str, Enrolment]) -> None:
    replace_file(folder / _FILE, encode_json(tokens, indent=1), PRIVATE)
