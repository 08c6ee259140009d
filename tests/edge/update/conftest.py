"""Keys, signed bundles, and an HTTPS server with a certificate of its own that can misbehave."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gatewise_edge.update.announcement import Announcement
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.repacking import repack
from gatewise_export.bundle.signing import keygen


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("keys")
    key, pub = keygen(folder / "fleet")
    other, other_pub = keygen(folder / "other")
    return SimpleNamespace(key=key, pub=pub, other=other, other_pub=other_pub)


@pytest.fixture
def make_gwb(
    make_bundle: Callable[..., Bundle], tmp_path: Path, keys: SimpleNamespace
) -> Callable[..., Path]:
    """A function that writes a version of the small bundle as devices get it."""

    def make(
        version: str, *, key: Path = keys.key, for_device: bool = True, **changes: Any
    ) -> Path:
        name = f"v{version}-{len(list(tmp_path.iterdir()))}"
        source = make_bundle(name, version=version, **changes)
        path = tmp_path / f"{name}.gwb"
        repack(source.path, path, sign=key, for_device=for_device)
        return path

    return make


def announced(path: Path, url: str, serial: int, **changes: Any) -> Announcement:
    content = path.read_bytes()
    manifest = Bundle.open(path, for_device=True).manifest
    fields = {
        "name": manifest.name,
        "version": manifest.version,
        "serial": serial,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        "url": url,
    }
    return Announcement(**(fields | changes))


def certificate(folder: Path, host: str = "127.0.0.1") -> Path:
    """Write a certificate, its own authority, and its key into one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bundles")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    path = folder / f"server-{host}.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@dataclass
class Place:
    """What the server does with a path."""

    content: bytes
    etag: str | None = '"one"'
    #: Bytes of the body after which the connection is cut, once each.
    cuts: list[int] = field(default_factory=list)
    redirect: str | None = None
    status: int = 200
    ranges: bool = True
    length: int | None = None
    extra: bytes = b""


class Server:
    """HTTPS on a free port of the loopback."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self.places: dict[str, Place] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.ca_file = certificate(folder, host)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca_file)
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def get_request(self) -> tuple[Any, Any]:
                taken, address = super().get_request()
                # the handshake comes with the first reading, on the connection's own thread
                wrapped = context.wrap_socket(
                    taken, server_side=True, do_handshake_on_connect=False
                )
                return wrapped, address

            def handle_error(self, *_: object) -> None:
                pass  # clients that refuse the certificate

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def url(self, path: str) -> str:
        return f"https://{self.host}{path}"

    def put(self, path: str, content: bytes, **how: Any) -> str:
        self.places[path] = Place(content, **how)
        return self.url(path)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        place = self.places.get(handler.path)
        wanted = handler.headers.get("Range")
        self.asked.append((handler.path, wanted))
        handler.close_connection = True
        if place is None or place.redirect is not None:
            handler.send_response(404 if place is None else 302)
            if place is not None:
                handler.send_header("Location", place.redirect)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        start = 0
        if wanted and place.ranges and handler.headers.get("If-Range") == place.etag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        body = place.content[start:] + place.extra
        handler.send_response(206 if start else place.status)
        if start:
            end = len(place.content) - 1
            handler.send_header("Content-Range", f"bytes {start}-{end}/{len(place.content)}")
        if place.etag is not None:
            handler.send_header("ETag", place.etag)
        if place.length != -1:
            length = len(body) if place.length is None else place.length
            handler.send_header("Content-Length", str(length))
        handler.end_headers()
        if place.cuts:
            body = body[: place.cuts.pop(0)]
        handler.wfile.write(body)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(host: str = "127.0.0.1") -> Server:
        folder = tmp_path / f"server-{len(made)}"
        folder.mkdir()
        made.append(Server(folder, host))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def announce() -> Callable[..., Announcement]:
    return announced
