"""The doctor's way to the broker: name, port, certificates, login. Each failure by its name."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterator
from typing import Final

from gatewise_edge.link.mqtt import Endpoint
from gatewise_sim.doctor.checkup import Finding, Patient, ok, problem
from gatewise_sim.doctor.tls import (
    no_handshake,
    own_certificate,
    refused_certificate,
    server_certificate,
)

__all__ = ["reach"]

_ALERT_SECONDS: Final = 0.5
_REFUSALS: Final = {
    1: ("protocol", "it does not speak MQTT 3.1.1", "use a broker that does: mosquitto 2"),
    2: ("client-id", "it refuses the client id", "give another --device"),
    3: ("unavailable", "it is not available", "look at its log; try again later"),
    4: ("login", "user or password is wrong", "correct mqtt://user:password@host"),
    5: (
        "login",
        "this client may not enter",
        "give user and password (mqtt://user:password@host) or the certificate that it expects",
    ),
}


def reach(patient: Patient) -> Iterator[Finding]:
    """Go up to the broker's greeting: own certificate, name, TCP, TLS, CONNECT."""
    assert patient.broker is not None
    if patient.cert_file is not None:
        own = own_certificate(patient)
        yield own
        if own.state == "problem":
            return
    endpoint = Endpoint(patient.broker, **patient.tls_files)
    try:
        socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        yield problem(
            "dns",
            "dns",
            f"the name {endpoint.host} is not known here ({error.strerror or error})",
            "correct the broker's name, or this machine's name server (/etc/resolv.conf)",
        )
        return
    yield ok("dns", f"{endpoint.host} is known")
    started = time.monotonic()
    try:
        connection = socket.create_connection((endpoint.host, endpoint.port), patient.timeout)
    except OSError as error:
        yield _no_connection(endpoint, error)
        return
    milliseconds = 1000 * (time.monotonic() - started)
    yield ok("tcp", f"port {endpoint.port} answers in {milliseconds:.1f} ms")
    with connection:
        connection.settimeout(patient.timeout)
        yield from _greet(patient, endpoint, connection)


def _no_connection(endpoint: Endpoint, error: OSError) -> Finding:
    if isinstance(error, ConnectionRefusedError):
        return problem(
            "tcp",
            "tcp-refused",
            f"nobody listens on {endpoint.host} port {endpoint.port}",
            "start the broker, or correct the port (1883; with TLS 8883)",
        )
    return problem(
        "tcp",
        "tcp-unreachable",
        f"{endpoint.host} port {endpoint.port} cannot be reached ({error.strerror or error})",
        "look at the network, and at firewalls on the way",
    )


def _greet(patient: Patient, endpoint: Endpoint, raw: socket.socket) -> Iterator[Finding]:
    connection, certificate = raw, None
    if endpoint.tls:
        context = ssl.create_default_context(cafile=patient.ca_file)
        if patient.cert_file is not None:
            context.load_cert_chain(patient.cert_file, patient.key_file)
        try:
            connection = context.wrap_socket(raw, server_hostname=endpoint.host)
        except (ssl.SSLError, OSError) as error:
            yield no_handshake(patient, endpoint, error)
            return
        certificate = connection.getpeercert()
    try:
        if endpoint.tls:
            _await_alert(connection, patient.timeout)
        code = _connect(connection, endpoint)
    except (ssl.SSLError, OSError) as error:
        yield _no_greeting(patient, endpoint, error)
        return
    finally:
        connection.close()
    if certificate:
        yield from server_certificate(certificate)
    if code:
        name, why, remedy = _REFUSALS.get(code, ("refused", f"code {code}", "look at its log"))
        yield problem("login", name, f"broker {endpoint.url}: {why}", remedy)
    else:
        yield ok("login", "the broker lets this client in")


def _await_alert(connection: socket.socket, timeout: float) -> None:
    """Let the broker refuse this client's certificate, which TLS 1.3 does after the handshake.

    What is sent meanwhile would be met by a reset, and the reason lost.
    """
    connection.settimeout(_ALERT_SECONDS)
    try:
        if connection.recv(1) == b"":
            raise ConnectionAbortedError("it closed the connection")
        raise ConnectionAbortedError("what answers is no MQTT broker")
    except TimeoutError:
        connection.settimeout(timeout)


def _connect(connection: socket.socket, endpoint: Endpoint) -> int:
    """Send CONNECT (MQTT 3.1.1, section 3.1) and give the return code of the CONNACK."""
    flags, fields = 0x02, b"\x00\x00"
    for bit, text in ((0x80, endpoint.user), (0x40, endpoint.password)):
        if text is not None:
            flags |= bit
            fields += struct.pack("!H", len(text.encode())) + text.encode()
    body = b"\x00\x04MQTT\x04" + bytes([flags]) + b"\x00\x0a" + fields
    size, length = len(body), b""
    while True:
        size, digit = divmod(size, 128)
        length += bytes([digit | (0x80 if size else 0)])
        if not size:
            break
    connection.sendall(b"\x10" + length + body)
    answer = b""
    while len(answer) < 4:
        more = connection.recv(4 - len(answer))
        if not more:
            raise ConnectionAbortedError("it closed the connection")
        answer += more
    if answer[:2] != b"\x20\x02":
        raise ConnectionAbortedError("what answers is no MQTT broker")
    connection.sendall(b"\xe0\x00")
    return answer[3]


def _no_greeting(patient: Patient, endpoint: Endpoint, error: OSError) -> Finding:
    refused = refused_certificate(patient, error)
    if refused is not None:
        return refused
    if endpoint.tls and patient.cert_file is None:
        hint = "give --cert-file and --key-file if the broker wants a certificate; read its log"
    elif endpoint.tls:
        hint = "look at the broker's log: it may refuse this certificate"
    else:
        hint = "is this a port with TLS (use mqtts://), or no MQTT broker at all?"
    if isinstance(error, TimeoutError):
        return problem(
            "login",
            "no-greeting",
            f"the broker does not answer CONNECT within {patient.timeout:g} s",
            hint,
        )
    why = str(getattr(error, "reason", None) or error.strerror or error)
    return problem("login", "no-greeting", f"the broker does not greet: {why}", hint)
