"""Enrolment of devices: a one-time token and a request for a certificate, over HTTPS.

An operator makes a token for a name. The device makes its key, which never leaves it, and sends the
token with a request that the key has signed; the server returns a certificate for the token's name,
whatever name the request has. A token is good once and for a day, and only a hash of it is kept. It
holds the digest of the authority as well: the device knows the server before it trusts anything.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from gatewise.documents import Record, decode_json, encode_json
from gatewise.errors import InputError
from gatewise_cloud.broker.authority import PRIVATE, Authority, Clock
from gatewise_cloud.broker.broker_init import BrokerFolder, init_broker, register_device
from gatewise_edge.link.enrolment import MAX_BODY, write_token
from gatewise_export.bundle.storage import replace_file

_LOG = logging.getLogger("gatewise_cloud")
_FILE: Final = "enrolments.json"
_LIFE_SECONDS: Final = 86400.0
_SILENCE_SECONDS: Final = 10.0


class Enrolment(Record, frozen=True):
    """A token that was not used: the hash of its secret, and when it ends, in Unix seconds."""

    sha256: str
    expires: float


def make_token(folder: Path, name: str) -> str:
    """Make a one-time token for a device; an older one for that name ends."""
    roster = init_broker(folder).roster
    if name in roster.clients:
        raise InputError(f"client {name!r} has a certificate: revoke it first")
    secret = secrets.token_hex(16)
    tokens = _read_tokens(folder)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    tokens[name] = Enrolment(sha256=digest, expires=time.time() + _LIFE_SECONDS)
    _write_tokens(folder, tokens)
    return write_token(name, secret, (folder / "ca.crt").read_bytes())


class EnrolmentServer:
    """Serves enrolments for the folder of a broker; a context manager.

    ``GET /ca.crt`` gives the authority, ``POST /enrol`` takes ``{"token": ..., "csr": ...}`` and
    returns ``{"certificate": ..., "broker": ...}``. `enrolled` is called with the folder and the
    name of each device, for instance to give it rights in a broker that runs.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str,
        port: int,
        enrolled: Callable[[BrokerFolder, str], None],
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._enrolled = enrolled
        self._clock = clock
        self._lock = threading.Lock()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        self._server = ThreadingHTTPServer((host, port), self._make_handler())
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> EnrolmentServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _enrol(self, token: str, csr: bytes) -> dict[str, str]:
        """Use a token up, and issue a certificate; InputError if either is not valid."""
        name, _, rest = token.rpartition(".")[0].rpartition(".")
        with self._lock:
            tokens = _read_tokens(self._folder)
            enrolment = tokens.get(name)
            digest = hashlib.sha256(rest.encode()).hexdigest()
            if (
                enrolment is None
                or not hmac.compare_digest(enrolment.sha256, digest)
                or enrolment.expires < self._clock().timestamp()
            ):
                raise InputError("the token is not valid, was used before or has expired")
            key = _requested_key(csr)
            del tokens[name]
            _write_tokens(self._folder, tokens)
            authority = Authority(self._folder, clock=self._clock)
            path = self._folder / "clients" / f"{name}.crt"
            authority.certify(path, key, name, "devices")
            broker = register_device(self._folder, name)
        self._enrolled(broker, name)
        roster = broker.roster
        return {
            "certificate": path.read_text(),
            "broker": f"mqtts://{roster.hosts[0]}:{roster.port}",
        }

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _SILENCE_SECONDS

            def do_GET(self) -> None:
                if self.path != "/ca.crt":
                    self.send_error(404)
                    return
                self._respond(200, (server._folder / "ca.crt").read_bytes())

            def do_POST(self) -> None:
                try:
                    length = int(self.headers.get("Content-Length", ""))
                    if self.path != "/enrol" or not 0 <= length <= MAX_BODY:
                        raise InputError("no enrolment")
                    document = json.loads(self.rfile.read(length))
                    answer = server._enrol(str(document["token"]), str(document["csr"]).encode())
                except (InputError, ValueError, KeyError, TypeError) as error:
                    _LOG.warning("an enrolment was refused: %s", error)
                    why = str(error) if isinstance(error, InputError) else "a malformed request"
                    self._respond(403, json.dumps({"error": why}).encode())
                    return
                self._respond(200, json.dumps(answer).encode())

            def _respond(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def _requested_key(csr: bytes) -> ec.EllipticCurvePublicKey:
    """Get the key of a request that this key has signed; InputError if it is of another kind."""
    try:
        request = x509.load_pem_x509_csr(csr)
        key = request.public_key()
    except ValueError:
        raise InputError("the request for a certificate cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not request.is_signature_valid:
        raise InputError("the request is not signed by an elliptic-curve key of its own")
    return key


def _read_tokens(folder: Path) -> dict[str, Enrolment]:
    path = folder / _FILE
    if not path.exists():
        return {}
    return decode_json(path.read_bytes(), dict[str, Enrolment], str(path))


def _write_tokens(folder: Path, tokens: dict[str, Enrolment]) -> None:
    replace_file(folder / _FILE, encode_json(tokens, indent=1), PRIVATE)
