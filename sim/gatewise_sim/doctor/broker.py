"""Check of the broker: its port, TLS and certificates, login, rights."""

from __future__ import annotations

import datetime
import secrets
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gatewise_edge.errors import LinkError
from gatewise_edge.link import wire
from gatewise_edge.link.broker_url import Endpoint
from gatewise_sim.doctor.findings import ACCESS_LIST, BROKER, SET_CLOCK, DeviceSettings, Finding
from gatewise_sim.doctor.probe import DENIED, FAILURE, NO_SUBSCRIBER, UNKNOWN, Probe

#: Seconds in which a broker may refuse this client's certificate after the handshake.
_ALERT_SECONDS: Final = 0.5
#: Time before a certificate's end from which on it is worth a note.
_ENDS_SOON: Final = datetime.timedelta(days=30)
_RENEW: Final = "renew it: gatewise broker init DIR --renew NAME"

_NAME_REMEDY: Final = "use a name that it lists, or add this one: gatewise broker init DIR --host"
_CA_REMEDY: Final = "give the ca.crt of this broker: --ca-file"
#: Code and remedy by OpenSSL's code of a failed verification (x509_vfy.h).
_UNVERIFIED: Final = {
    9: ("clock-behind", SET_CLOCK),
    10: (
        "tls-expired",
        "renew it (gatewise broker init DIR, restart the broker), or set the clock",
    ),
    **dict.fromkeys((62, 64), ("tls-host", _NAME_REMEDY)),
    **dict.fromkeys((18, 19, 20, 21), ("tls-unknown-ca", _CA_REMEDY)),
}
#: Words of a broker's TLS alert about this client's certificate.
_ALERTS: Final = ("UNKNOWN_CA", "REVOKED", "EXPIRED", "CERTIFICATE", "DECRYPT_ERROR")
#: Code of the finding, reason and remedy, by the reason code of a refused CONNECT.
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


def reach_broker(settings: DeviceSettings) -> Iterator[Finding]:
    """Check connection, TLS, login and this client's rights, up to the first step that fails."""
    for check in (_own_certificate, _tcp, _tls, _login_and_rights):
        failed = False
        for finding in check(settings):
            failed |= finding.state == "problem"
            yield finding
        if failed:
            return


def _own_certificate(settings: DeviceSettings) -> Iterator[Finding]:
    """Check that the client's own certificate loads, is valid, and names this device."""
    file = settings.cert_file
    if file is None:
        return
    try:
        ssl.create_default_context().load_cert_chain(file, settings.key_file)
        certificate = _read_certificate(file)
    except (ssl.SSLError, OSError, ValueError) as error:
        yield BROKER.problem(
            "own-certificate-unusable",
            f"{file} and its key do not load: {getattr(error, 'reason', error)}",
            "give the pair that `gatewise broker init` made for this device",
        )
        return
    begin = certificate.not_valid_before_utc
    end = certificate.not_valid_after_utc
    now = datetime.datetime.now(datetime.UTC)
    name = common_name(file)
    valid = f"{file} is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}"
    if not begin <= now <= end:
        text = f"{valid}; this machine says {now:%Y-%m-%d}"
        yield BROKER.problem("own-certificate-expired", text, f"{_RENEW}; or set the clock")
    elif name != settings.device:
        yield BROKER.problem(
            "own-certificate-name",
            f"{file} names {name!r}, not device {settings.device!r}: the access list uses the name "
            "in the certificate",
            "give this device's own certificate, or the --device that it names",
        )
    elif end - now < _ENDS_SOON:
        yield BROKER.note("own-certificate-ends", valid, _RENEW)


def common_name(path: Path) -> str:
    """Read the common name of a certificate; empty if it has none or cannot be read."""
    from cryptography.x509.oid import NameOID

    try:
        names = _read_certificate(path).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (OSError, ValueError):
        return ""
    return str(names[0].value) if names else ""


def _read_certificate(path: Path) -> Any:
    from cryptography import x509

    return x509.load_pem_x509_certificate(path.read_bytes())


def _tcp(settings: DeviceSettings) -> Iterator[Finding]:
    endpoint = settings.endpoint
    address = f"{endpoint.host} port {endpoint.port}"
    started = time.monotonic()
    try:
        socket.create_connection((endpoint.host, endpoint.port), settings.timeout).close()
    except socket.gaierror as error:
        yield BROKER.problem(
            "dns",
            f"the name {endpoint.host} is not known here ({error.strerror})",
            "correct the broker's name, or this machine's name server (/etc/resolv.conf)",
        )
    except ConnectionRefusedError:
        remedy = "start the broker, or correct the port (1883; with TLS 8883)"
        yield BROKER.problem("tcp-refused", f"no program listens on {address}", remedy)
    except OSError as error:
        text = f"{address} cannot be reached ({error.strerror or error})"
        remedy = "look at the network, and at firewalls on the way"
        yield BROKER.problem("tcp-unreachable", text, remedy)
    else:
        yield BROKER.ok(f"{address} answers in {1000 * (time.monotonic() - started):.1f} ms")


def _tls(settings: DeviceSettings) -> Iterator[Finding]:
    endpoint = settings.endpoint
    if not endpoint.tls:
        return
    context = ssl.create_default_context(cafile=settings.ca_file)
    if settings.cert_file is not None:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    try:
        raw = socket.create_connection((endpoint.host, endpoint.port), settings.timeout)
        with raw, context.wrap_socket(raw, server_hostname=endpoint.host) as connection:
            # TLS 1.3 sends the broker's refusal of this client's certificate late.
            connection.settimeout(_ALERT_SECONDS)
            connection.recv(1)
    except TimeoutError:
        yield BROKER.ok("TLS works: the broker's certificate is valid and names this host")
    except ssl.SSLCertVerificationError as error:
        code, remedy = _UNVERIFIED.get(error.verify_code, ("tls-verify", "look at its files"))
        text = f"the broker's certificate is not accepted: {error.verify_message}"
        yield BROKER.problem(code, text, remedy)
    except OSError as error:
        yield _failed_handshake(settings, endpoint, error)


def _failed_handshake(settings: DeviceSettings, endpoint: Endpoint, error: OSError) -> Finding:
    reason = str(getattr(error, "reason", None) or error)
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason:
        text = f"port {endpoint.port} does not speak TLS"
        return BROKER.problem("tls-none", text, "use mqtt:// there, or the port with TLS (8883)")
    if settings.cert_file is None and ("CERTIFICATE_REQUIRED" in reason or "HANDSHAKE" in reason):
        return BROKER.problem(
            "certificate-required",
            "the broker wants a client certificate",
            "give --cert-file and --key-file (gatewise broker init makes them)",
        )
    if any(word in reason for word in _ALERTS):
        return BROKER.problem(
            "certificate-refused",
            f"the broker refuses this client's certificate: {reason}",
            "give the pair that this broker's authority made (gatewise broker init --renew)",
        )
    text = f"the TLS handshake fails: {reason}"
    remedy = "look at the broker's log; an MQTT port without TLS wants mqtt://"
    return BROKER.problem("tls-handshake", text, remedy)


def _login_and_rights(settings: DeviceSettings) -> Iterator[Finding]:
    endpoint = settings.endpoint
    probe = Probe(endpoint, settings.timeout)
    try:
        with probe:
            yield BROKER.ok("the broker lets this client in")
            yield _presence(probe, settings.device or "")
            yield _worker_rights(probe, endpoint)
            if endpoint.tls:
                yield _pool_rights(probe)
    except LinkError:
        if probe.refusal is not None:
            code, reason, remedy = _REFUSALS.get(
                probe.refusal, ("refused", f"reason code {probe.refusal}", "look at its log")
            )
            yield BROKER.problem(code, f"broker {endpoint.url} refuses: {reason}", remedy)
            return
        hint = (
            "is this a port with TLS (use mqtts://), no MQTT broker at all, or one whose limit on "
            "packets is below 40 bytes (mosquitto: max_packet_size)?"
        )
        if endpoint.tls:
            hint = "look at the broker's log: it may refuse this certificate, or want one"
        text = f"no response to CONNECT within {settings.timeout:g} s, or the connection was closed"
        yield BROKER.problem("no-greeting", text, hint)


def _presence(probe: Probe, device: str) -> Finding:
    """Publish the device's status again, unchanged."""
    topic = wire.status_topic(device)
    probe.subscribe(topic)
    retained = probe.wait(lambda place, _, is_retained: place == topic and is_retained, 0.5)
    status = b"offline" if retained is None else retained[1]
    code = probe.publish(topic, status, retain=True)
    echo = None
    if code != DENIED:
        echo = probe.wait(lambda place, payload, _: (place, payload) == (topic, status), 1.0)
        if retained is None:  # leave nothing behind
            probe.publish(topic, b"", retain=True)
    if echo is None and code not in (0, NO_SUBSCRIBER):
        return BROKER.problem(
            "status-denied",
            f"this client may not write {topic}: the device's status stays unknown",
            f"let it, in {ACCESS_LIST}: pattern readwrite gw/v1/%u/status",
        )
    text = "nothing" if retained is None else status.decode(errors="replace")
    return BROKER.ok(f"{topic} can be written; it says {text}")


def _worker_rights(probe: Probe, endpoint: Endpoint) -> Finding:
    """Try to write a response, which only a worker may."""
    topic = wire.response_topic(f"doctor-{secrets.token_hex(6)}")
    code = probe.publish(topic, b"")
    if code == DENIED or (code == UNKNOWN and not probe.echoes(topic, 1.0)):
        return BROKER.ok("this client cannot answer in a worker's place")
    text = "any client of this broker may answer in a worker's place"
    if endpoint.tls:
        remedy = f"only workers may write gw/v1/+/rsp: {ACCESS_LIST}"
        return BROKER.problem("open-broker", text, remedy)
    return BROKER.note("open-broker", text, "fine for trying out; else: gatewise broker init")


def _pool_rights(probe: Probe) -> Finding:
    """Try to join a pool of workers under a new name, which no device should be able to."""
    if probe.subscribe(wire.shared(f"doctor-{secrets.token_hex(6)}")) >= FAILURE:
        return BROKER.ok("this client cannot join the workers")
    return BROKER.problem(
        "open-pool",
        "the broker grants every subscription: a client that knows the name of the workers' pool "
        "can take requests away from them",
        "mosquitto's dynamic security plugin (gatewise broker init --plugin)",
    )
