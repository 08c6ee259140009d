"""Check of the broker: port, TLS, certificates, login and access rights."""

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
from gatewise_edge.link.endpoint import Endpoint
from gatewise_sim.doctor.findings import ACCESS_LIST, BROKER, SET_CLOCK, Finding
from gatewise_sim.doctor.probe import DENIED, FAILURE, NO_SUBSCRIBER, UNKNOWN, BrokerProbe
from gatewise_sim.doctor.settings import DeviceSettings

#: Time after the TLS handshake in which a broker may refuse this client's certificate: the round
#: trip of a slow link.
_ALERT_SECONDS: Final = 0.5
#: Remaining validity below which a certificate gets a note, in time to renew it by hand.
_RENEWAL_PERIOD: Final = datetime.timedelta(days=30)
_RENEW: Final = "renew it: gatewise broker init DIR --renew NAME"

_NAME_REMEDY: Final = (
    "use a host name of the certificate, or add this one: gatewise broker init DIR --host"
)
_CA_REMEDY: Final = "give --ca-file the ca.crt of this broker"
#: Finding code and remedy for each OpenSSL verification error (x509_vfy.h).
_VERIFICATION_ERRORS: Final = {
    9: ("clock-behind", SET_CLOCK),
    10: (
        "tls-expired",
        "renew it (gatewise broker init DIR, restart the broker), or set the clock",
    ),
    **dict.fromkeys((62, 64), ("tls-host", _NAME_REMEDY)),
    **dict.fromkeys((18, 19, 20, 21), ("tls-unknown-ca", _CA_REMEDY)),
}
#: Words in OpenSSL's name of a TLS alert about this client's certificate.
_ALERTS: Final = ("UNKNOWN_CA", "REVOKED", "EXPIRED", "CERTIFICATE", "DECRYPT_ERROR")
#: Finding code, reason and remedy for each MQTT reason code of a refused CONNECT.
_REFUSALS: Final = {
    132: ("protocol", "it does not speak MQTT 3.1.1", "use another broker, such as mosquitto 2"),
    133: ("client-id", "it refuses the client id", "choose another --device"),
    134: ("login", "user or password is wrong", "correct mqtt://user:password@host"),
    135: (
        "login",
        "this client is not authorised",
        "give user and password (mqtt://user:password@host) or the expected certificate",
    ),
    136: ("unavailable", "it is not available", "read its log, and try again later"),
}


def check_broker(settings: DeviceSettings) -> Iterator[Finding]:
    """Check connection, TLS, login and access rights; stop after the first step that fails."""
    for check in (_check_own_certificate, _check_tcp, _check_tls, _check_login_and_rights):
        has_problem = False
        for finding in check(settings):
            has_problem |= finding.state == "problem"
            yield finding
        if has_problem:
            return


def _check_own_certificate(settings: DeviceSettings) -> Iterator[Finding]:
    """Check that the client's own certificate loads, is valid, and names this device."""
    cert_file = settings.cert_file
    if cert_file is None:
        return
    try:
        ssl.create_default_context().load_cert_chain(cert_file, settings.key_file)
        certificate = _read_certificate(cert_file)
    except (ssl.SSLError, OSError, ValueError) as error:
        yield BROKER.problem(
            "own-certificate-unusable",
            f"{cert_file} and its key cannot be loaded: {getattr(error, 'reason', error)}",
            "use the files that `gatewise broker init` made for this device",
        )
        return
    valid_from = certificate.not_valid_before_utc
    valid_until = certificate.not_valid_after_utc
    now = datetime.datetime.now(datetime.UTC)
    certificate_name = common_name(cert_file)
    validity_text = f"{cert_file} is valid from {valid_from:%Y-%m-%d} to {valid_until:%Y-%m-%d}"
    if not valid_from <= now <= valid_until:
        problem_text = f"{validity_text}; the date of this machine is {now:%Y-%m-%d}"
        yield BROKER.problem("own-certificate-expired", problem_text, f"{_RENEW}, or set the clock")
    elif certificate_name != settings.device:
        yield BROKER.problem(
            "own-certificate-name",
            f"{cert_file} is for {certificate_name!r}, not for device {settings.device!r}; the "
            "broker's access list uses the name in the certificate",
            "use this device's own certificate, or the --device that it names",
        )
    elif valid_until - now < _RENEWAL_PERIOD:
        yield BROKER.note("own-certificate-ends", validity_text, _RENEW)


def common_name(path: Path) -> str:
    """Read the common name of a certificate; empty if it has none or cannot be read."""
    from cryptography.x509.oid import NameOID

    try:
        name_attributes = _read_certificate(path).subject.get_attributes_for_oid(
            NameOID.COMMON_NAME
        )
    except (OSError, ValueError):
        return ""
    return str(name_attributes[0].value) if name_attributes else ""


def _read_certificate(path: Path) -> Any:
    from cryptography import x509

    return x509.load_pem_x509_certificate(path.read_bytes())


def _check_tcp(settings: DeviceSettings) -> Iterator[Finding]:
    endpoint = settings.endpoint
    address = f"{endpoint.host} port {endpoint.port}"
    start_time = time.monotonic()
    try:
        socket.create_connection((endpoint.host, endpoint.port), settings.timeout).close()
    except socket.gaierror as error:
        yield BROKER.problem(
            "dns",
            f"the host name {endpoint.host} cannot be resolved ({error.strerror})",
            "correct the host name, or the name server of this machine (/etc/resolv.conf)",
        )
    except ConnectionRefusedError:
        remedy = "start the broker, or correct the port (1883, or 8883 with TLS)"
        yield BROKER.problem("tcp-refused", f"no program listens on {address}", remedy)
    except OSError as error:
        problem_text = f"{address} cannot be reached ({error.strerror or error})"
        remedy = "check the network, and the firewalls between this machine and the broker"
        yield BROKER.problem("tcp-unreachable", problem_text, remedy)
    else:
        yield BROKER.ok(f"{address} answers in {1000 * (time.monotonic() - start_time):.1f} ms")


def _check_tls(settings: DeviceSettings) -> Iterator[Finding]:
    endpoint = settings.endpoint
    if not endpoint.uses_tls:
        return
    tls_context = ssl.create_default_context(cafile=settings.ca_file)
    if settings.cert_file is not None:
        tls_context.load_cert_chain(settings.cert_file, settings.key_file)
    try:
        tcp_socket = socket.create_connection((endpoint.host, endpoint.port), settings.timeout)
        with (
            tcp_socket,
            tls_context.wrap_socket(tcp_socket, server_hostname=endpoint.host) as connection,
        ):
            # With TLS 1.3 the broker refuses a client certificate only after the handshake. If it
            # accepts the certificate, it waits for the first packet.
            connection.settimeout(_ALERT_SECONDS)
            try:
                connection.recv(1)
            except TimeoutError:
                yield BROKER.ok("TLS works: the broker's certificate is valid and names this host")
    except ssl.SSLCertVerificationError as error:
        code, remedy = _VERIFICATION_ERRORS.get(
            error.verify_code, ("tls-verify", "check the broker's certificate files")
        )
        problem_text = f"the broker's certificate is not accepted: {error.verify_message}"
        yield BROKER.problem(code, problem_text, remedy)
    except OSError as error:
        yield _explain_failed_handshake(settings, endpoint, error)


def _explain_failed_handshake(
    settings: DeviceSettings, endpoint: Endpoint, error: OSError
) -> Finding:
    error_text = str(getattr(error, "reason", None) or error)
    if "WRONG_VERSION_NUMBER" in error_text or "RECORD_LAYER_FAILURE" in error_text:
        problem_text = f"port {endpoint.port} does not speak TLS"
        return BROKER.problem(
            "tls-none", problem_text, "use mqtt:// for this port, or the port with TLS (8883)"
        )
    if settings.cert_file is None and (
        "CERTIFICATE_REQUIRED" in error_text or "HANDSHAKE" in error_text
    ):
        return BROKER.problem(
            "certificate-required",
            "the broker requires a client certificate",
            "give --cert-file and --key-file (gatewise broker init makes them)",
        )
    if any(alert in error_text for alert in _ALERTS):
        return BROKER.problem(
            "certificate-refused",
            f"the broker refuses this client's certificate: {error_text}",
            "use a certificate of this broker's authority (gatewise broker init --renew)",
        )
    problem_text = f"the TLS handshake fails: {error_text}"
    remedy = "read the broker's log; a port without TLS needs mqtt://"
    return BROKER.problem("tls-handshake", problem_text, remedy)


def _check_login_and_rights(settings: DeviceSettings) -> Iterator[Finding]:
    endpoint = settings.endpoint
    probe = BrokerProbe(endpoint, settings.timeout)
    try:
        with probe:
            yield BROKER.ok("the broker accepts this client")
            yield _check_status_topic(probe, settings.device or "")
            yield _check_response_rights(probe, endpoint)
            if endpoint.uses_tls:
                yield _check_pool_rights(probe)
    except LinkError:
        if probe.refusal is not None:
            code, reason, remedy = _REFUSALS.get(
                probe.refusal, ("refused", f"reason code {probe.refusal}", "read its log")
            )
            yield BROKER.problem(
                code, f"broker {endpoint.url} refuses the connection: {reason}", remedy
            )
            return
        remedy = (
            "if the port uses TLS, use mqtts://; otherwise check that it is an MQTT broker, and "
            "that it accepts packets of 40 bytes (mosquitto: max_packet_size)"
        )
        if endpoint.uses_tls:
            remedy = "read the broker's log: it may refuse or require a certificate"
        problem_text = (
            f"no response to CONNECT within {settings.timeout:g} s, or the connection was closed"
        )
        yield BROKER.problem("no-greeting", problem_text, remedy)


def _check_status_topic(probe: BrokerProbe, device: str) -> Finding:
    """Check that the device may write its status topic, and leave the status unchanged."""
    topic = wire.status_topic(device)
    probe.subscribe(topic)
    # A broker sends a retained message right after the SUBACK (MQTT 3.1.1, section 3.3.1.3).
    retained_message = probe.wait_for_message(
        lambda message: message.topic == topic and message.is_retained, 0.5
    )
    payload = b"offline" if retained_message is None else retained_message.payload
    reason_code = probe.publish(topic, payload, retain=True)
    own_message = None
    if reason_code != DENIED:
        own_message = probe.wait_for_message(
            lambda message: (message.topic, message.payload) == (topic, payload), 1.0
        )
        if retained_message is None:  # delete the status that this check published
            probe.publish(topic, b"", retain=True)
    if own_message is None and reason_code not in (0, NO_SUBSCRIBER):
        return BROKER.problem(
            "status-denied",
            f"this client may not write {topic}, so the device's status stays unknown",
            f"allow it in {ACCESS_LIST}: pattern readwrite gw/v1/%u/status; add a revoked client "
            "again with gatewise broker add",
        )
    status_text = "empty" if retained_message is None else payload.decode(errors="replace")
    return BROKER.ok(f"this client may write {topic}; its value is {status_text}")


def _check_response_rights(probe: BrokerProbe, endpoint: Endpoint) -> Finding:
    """Check that this client may not write responses, which only workers may."""
    topic = wire.response_topic(f"doctor-{secrets.token_hex(6)}")
    reason_code = probe.publish(topic, b"")
    if reason_code == DENIED or (
        reason_code == UNKNOWN and not probe.receives_own_message(topic, 1.0)
    ):
        return BROKER.ok("this client cannot send responses as a worker")
    problem_text = "any client of this broker may send responses as a worker"
    if endpoint.uses_tls:
        remedy = f"let only workers write gw/v1/+/rsp, in {ACCESS_LIST}"
        return BROKER.problem("open-broker", problem_text, remedy)
    return BROKER.note(
        "open-broker",
        problem_text,
        "acceptable for a trial; for anything else run gatewise broker init",
    )


def _check_pool_rights(probe: BrokerProbe) -> Finding:
    """Check that this client may not subscribe as a member of a new pool of workers."""
    if probe.subscribe(wire.shared_subscription(f"doctor-{secrets.token_hex(6)}")) >= FAILURE:
        return BROKER.ok("this client cannot join a pool of workers")
    return BROKER.problem(
        "open-pool",
        "the broker grants every subscription, so a client that knows the name of the workers' "
        "pool can take their requests",
        "use mosquitto's dynamic security plugin (gatewise broker init --plugin)",
    )
