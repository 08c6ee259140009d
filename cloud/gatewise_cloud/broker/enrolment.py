"""Enrolment of devices over HTTPS with one-time tokens.

An operator makes a token for the name of a device. The device makes a key, which never leaves it,
and sends the token with a certificate request that it has signed with the key. The server returns a
certificate for the token's name. A token is valid once and for one day, and the server stores only
its hash. The token also contains the digest of the authority, so that the device can verify the
server.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from gatewise.documents import Record, decode_json, encode_json
from gatewise.errors import GatewiseError, InputError
from gatewise.file_lock import lock_file
from gatewise_cloud.broker.authority import PRIVATE_MODE, Authority, Clock
from gatewise_cloud.broker.broker_files import read_client_names
from gatewise_cloud.broker.broker_init import BrokerFolder, read_roster, register_devices
from gatewise_cloud.broker.mqtt_client import broker_url
from gatewise_edge.service.enrolment import MAX_BODY_BYTES, format_token
from gatewise_export.bundle.storage import replace_file

_LOG = logging.getLogger("gatewise_cloud")
_TOKENS_FILE: Final = "enrolments.json"
_LOCK_FILE: Final = "enrolments.lock"
#: A token is valid for a day: long enough to install devices, and short if it is lost.
_TOKEN_LIFETIME_SECONDS: Final = 86400.0
#: Longest silence of a connection, which holds one of the server's threads.
_SOCKET_TIMEOUT_SECONDS: Final = 10.0
#: Time for which the server collects requests before it enrols them together.
_COLLECT_SECONDS: Final = 0.2
#: Largest number of connections at the same time; each has a thread.
_MAX_CONNECTIONS: Final = 64


class _UnusedToken(Record, frozen=True):
    """Stored part of an unused token: the hash of its secret, and its expiry in Unix seconds."""

    sha256: str
    expires: float

    def admits(self, secret: str, now: float) -> bool:
        """Return whether `secret` belongs to this token and the token has not expired."""
        return hmac.compare_digest(self.sha256, _hash_secret(secret)) and now <= self.expires


def make_tokens(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Make a one-time token for each device name; older tokens of these names become invalid."""
    names = read_client_names(names)
    authority_certificate = (folder / "ca.crt").read_bytes()
    expiry = time.time() + _TOKEN_LIFETIME_SECONDS
    tokens = {}
    with _change_tokens(folder) as unused_tokens:
        clients = read_roster(folder).clients
        for name in names:
            if name in clients:
                raise InputError(f"client {name!r} has a certificate: revoke it first")
            secret = secrets.token_hex(16)
            unused_tokens[name] = _UnusedToken(sha256=_hash_secret(secret), expires=expiry)
            tokens[name] = format_token(name, secret, authority_certificate)
    return tokens


class _EnrolmentRequest(NamedTuple):
    """Request of a device: name and secret of its token, its key, and its future certificate."""

    name: str
    secret: str
    public_key: ec.EllipticCurvePublicKey
    certificate_future: Future[str]


class EnrolmentServer(ThreadingHTTPServer):
    """HTTPS server that enrols devices into the folder of a broker; a context manager.

    ``GET /ca.crt`` returns the authority's certificate. ``POST /enrol`` receives
    ``{"token": ..., "csr": ...}`` and returns ``{"certificate": ..., "broker": ...}``. The server
    enrols devices in groups. It writes the roster of all devices and connects to the broker only
    once for each group.

    Parameters
    ----------
    folder : Path
        Folder of :func:`.init_broker`.
    host : str
        Address to listen on.
    port : int
        TCP port; 0 selects a free port.
    grant_rights : callable
        Called with the folder and the names of new devices, to give them rights in a running
        broker. If it raises an error, the tokens of these devices stay valid.
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
        grant_rights: Callable[[BrokerFolder, Sequence[str]], None],
        clock: Clock,
    ) -> None:
        self.folder = folder
        self._grant_rights = grant_rights
        self._clock = clock
        self._free_threads = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        #: Requests of devices, and None as the last element.
        self._requests: queue.SimpleQueue[_EnrolmentRequest | None] = queue.SimpleQueue()
        self._is_closing = False
        self._queue_lock = threading.Lock()  # guards the field above and the order of the queue
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        super().__init__((host, port), _EnrolmentHandler)
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = int(self.server_address[1])
        self._service_threads = [
            threading.Thread(target=run, daemon=True)
            for run in (self.serve_forever, self._enrol_requests)
        ]

    def __enter__(self) -> Self:
        for thread in self._service_threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        with self._queue_lock:
            self._is_closing = True
            self._requests.put(None)
        for thread in self._service_threads:
            thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a new thread, after waiting until a thread is free."""
        self._free_threads.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and count its thread as free afterwards."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_threads.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an enrolment that failed."""
        _LOG.warning("an enrolment failed: %s", sys.exc_info()[1])

    def enrol(self, token: str, csr: bytes) -> str:
        """Enrol a device and return its certificate in PEM.

        Raises InputError if the token or the certificate request is not valid, or if the server is
        closing.
        """
        # a token is NAME.SECRET.DIGEST, and a name may contain dots
        name, _, secret = token.rpartition(".")[0].rpartition(".")
        request = _EnrolmentRequest(name, secret, _read_requested_key(csr), Future())
        with self._queue_lock:
            if self._is_closing:
                raise InputError("the server is closing: try again later")
            self._requests.put(request)
        return request.certificate_future.result()

    def _enrol_requests(self) -> None:
        """Enrol devices in groups until the server closes and every request is answered."""
        is_last_group = False
        while not is_last_group and (request := self._requests.get()) is not None:
            time.sleep(_COLLECT_SECONDS)
            requests = [request]
            while not self._requests.empty() and len(requests) < _MAX_CONNECTIONS:
                if (request := self._requests.get()) is None:
                    is_last_group = True
                    break
                requests.append(request)
            try:
                self._certify_devices(requests)
            except Exception as error:  # any error, because the thread must serve later devices
                is_expected = isinstance(error, GatewiseError | OSError)
                _LOG.error("enrolments failed: %s", error, exc_info=not is_expected)
                failure = InputError("the enrolment cannot be completed now: try again later")
                for request in requests:
                    if not request.certificate_future.done():
                        request.certificate_future.set_exception(failure)

    def _certify_devices(self, requests: Sequence[_EnrolmentRequest]) -> None:
        # certify the devices with valid tokens
        unused_tokens = _read_tokens(self.folder)
        now = self._clock().timestamp()
        authority = Authority(self.folder, clock=self._clock)
        certificate_paths: dict[str, Path] = {}
        accepted_requests: list[_EnrolmentRequest] = []
        for request in requests:
            name = request.name
            token = unused_tokens.get(name)
            is_used = name in certificate_paths
            if token is None or is_used or not token.admits(request.secret, now):
                refusal = InputError("the token is not valid, was used before or has expired")
                request.certificate_future.set_exception(refusal)
                continue
            path = self.folder / "clients" / f"{name}.crt"
            authority.certify_client(path, request.public_key, name, "devices")
            certificate_paths[name] = path
            accepted_requests.append(request)
        if not accepted_requests:
            return
        # give them rights, and only then delete their tokens: after an interruption, a device can
        # use its token again
        names = list(certificate_paths)
        self._grant_rights(register_devices(self.folder, names), names)
        with _change_tokens(self.folder) as unused_tokens:
            for name in names:
                unused_tokens.pop(name, None)
        for request in accepted_requests:
            certificate = certificate_paths[request.name].read_text()
            request.certificate_future.set_result(certificate)


class _EnrolmentHandler(BaseHTTPRequestHandler):
    server: EnrolmentServer
    timeout = _SOCKET_TIMEOUT_SECONDS

    def do_GET(self) -> None:
        if self.path != "/ca.crt":
            self.send_error(404)
            return
        self._respond(200, (self.server.folder / "ca.crt").read_bytes())

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", ""))
            if self.path != "/enrol" or not 0 <= length <= MAX_BODY_BYTES:
                raise InputError("not an enrolment request")
            request = json.loads(self.rfile.read(length))
            certificate = self.server.enrol(str(request["token"]), str(request["csr"]).encode())
        except (InputError, ValueError, KeyError, TypeError) as error:
            _LOG.warning("an enrolment was refused: %s", error)
            reason = str(error) if isinstance(error, InputError) else "a malformed request"
            self._respond(403, json.dumps({"error": reason}).encode())
            return
        roster = read_roster(self.server.folder)
        url = broker_url("mqtts", roster.hosts[0], roster.port)
        response = {"certificate": certificate, "broker": url}
        self._respond(200, json.dumps(response).encode())

    def _respond(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because `grant_rights` logs enrolments."""


def _read_requested_key(csr: bytes) -> ec.EllipticCurvePublicKey:
    """Get the public key of a certificate request.

    Raises InputError if it is not an elliptic-curve key, or if it did not sign the request.
    """
    try:
        request = x509.load_pem_x509_csr(csr)
        key = request.public_key()
    except ValueError:
        raise InputError("the certificate request cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not request.is_signature_valid:
        raise InputError("the certificate request is not signed by its own elliptic-curve key")
    return key


def _hash_secret(secret: str) -> str:
    # a malformed secret in JSON may have surrogates, and belongs to no token
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _read_tokens(folder: Path) -> dict[str, _UnusedToken]:
    path = folder / _TOKENS_FILE
    if not path.exists():
        return {}
    return decode_json(path.read_bytes(), dict[str, _UnusedToken], str(path))


@contextmanager
def _change_tokens(folder: Path) -> Iterator[dict[str, _UnusedToken]]:
    """Read the tokens, and write them again after changes unless the block raises.

    No other process can change them meanwhile: an operator may make tokens while the server runs.
    """
    with (folder / _LOCK_FILE).open("ab") as file:
        lock_file(file.fileno())
        tokens = _read_tokens(folder)
        yield tokens
        replace_file(folder / _TOKENS_FILE, encode_json(tokens, indent=1), PRIVATE_MODE)
