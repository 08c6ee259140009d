"""The way to the broker: own certificate, name, TCP, TLS, login. Each failure by its name."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from typing import Final

from gatewise_cloud.broker.mqtt_client import connect_reason
from gatewise_edge.link.mqtt import Endpoint
from gatewise_sim.doctor.certificates import (
    failed_handshake,
    own_certificate,
    refused_certificate,
    server_certificate,
)
from gatewise_sim.doctor.findings import DeviceSettings, Finding, ok, problem

_ALERT_SECONDS: Final = 0.5
#: By the reason codes that paho gives to the return codes of a CONNACK.
_REFUSALS: Final = {
    132: ("protocol", "it does not speak MQTT 3.1.1", "use a broker that does: mosquitto 2"),
    133: ("client-id", "it refuses the client id", "give another --device"),
    134: ("login", "user or password is wrong", "correct mqtt://user:password@host"),
    135: (
        "login",
        "this client may not enter",
        "give user and password (mqtt://user:password@host) or the expected certificate",
    ),
    136: ("unavailable", "it is not available", "look at its log; try again later"),
}


def reach(settings: DeviceSettings) -> Iterator[Finding]:
    """Check the way up to the broker's CONNACK; end at the first problem."""
    if settings.cert_file is not None:
        own = own_certificate(settings)
        yield own
        if own.state == "problem":
            return
    endpoint = settings.endpoint
    for check in (_name, _tcp, _tls, _login):
        for finding in check(settings, endpoint):
            yield finding
            if finding.state == "problem":
                return


def _name(_: DeviceSettings, endpoint: Endpoint) -> Iterator[Finding]:
    try:
        socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        yield problem(
            "dns",
            "dns",
            f"the name {endpoint.host} is not known here ({error.strerror or error})",
            "correct the broker's name, or this machine's name server (/etc/resolv.conf)",
        )
    else:
        yield ok("dns", f"{endpoint.host} is known")


def _tcp(settings: DeviceSettings, endpoint: Endpoint) -> Iterator[Finding]:
    started = time.monotonic()
    where = f"{endpoint.host} port {endpoint.port}"
    try:
        socket.create_connection((endpoint.host, endpoint.port), settings.timeout).close()
    except ConnectionRefusedError:
        remedy = "start the broker, or correct the port (1883; with TLS 8883)"
        yield problem("tcp", "tcp-refused", f"nobody listens on {where}", remedy)
    except OSError as error:
        says = f"{where} cannot be reached ({error.strerror or error})"
        remedy = "look at the network, and at firewalls on the way"
        yield problem("tcp", "tcp-unreachable", says, remedy)
    else:
        milliseconds = 1000 * (time.monotonic() - started)
        yield ok("tcp", f"port {endpoint.port} answers in {milliseconds:.1f} ms")


def _tls(settings: DeviceSettings, endpoint: Endpoint) -> Iterator[Finding]:
    if not endpoint.tls:
        return
    context = ssl.create_default_context(cafile=settings.ca_file)
    if settings.cert_file is not None:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    try:
        raw = socket.create_connection((endpoint.host, endpoint.port), settings.timeout)
        with raw, context.wrap_socket(raw, server_hostname=endpoint.host) as connection:
            certificate = connection.getpeercert()
            refused = _alert(settings, connection)
    except OSError as error:
        yield failed_handshake(settings, endpoint, error)
        return
    if refused is not None:
        yield refused
    elif certificate:
        yield server_certificate(certificate)


def _alert(settings: DeviceSettings, connection: ssl.SSLSocket) -> Finding | None:
    """Wait for the broker's refusal of this client's certificate, which TLS 1.3 sends late."""
    connection.settimeout(_ALERT_SECONDS)
    try:
        connection.recv(1)
    except TimeoutError:
        pass
    except OSError as error:
        return refused_certificate(settings, error)
    return None


def _login(settings: DeviceSettings, endpoint: Endpoint) -> Iterator[Finding]:
    reason = connect_reason(endpoint, settings.timeout)
    if reason is None:
        if endpoint.tls and settings.cert_file is None:
            hint = "give --cert-file and --key-file if the broker wants a certificate"
        elif endpoint.tls:
            hint = "look at the broker's log: it may refuse this certificate"
        else:
            hint = "is this a port with TLS (use mqtts://), or no MQTT broker at all?"
        says = f"no response to CONNECT within {settings.timeout:g} s, or the connection was closed"
        yield problem("login", "no-greeting", says, hint)
    elif reason.is_failure:
        code, why, remedy = _REFUSALS.get(reason.value, ("refused", str(reason), "look at its log"))
        yield problem("login", code, f"broker {endpoint.url}: {why}", remedy)
    else:
        yield ok("login", "the broker lets this client in")
