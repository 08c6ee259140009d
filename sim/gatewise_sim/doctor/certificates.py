"""Certificates: the device's own, the broker's, and why either is refused."""

from __future__ import annotations

import datetime
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gatewise_edge.link.mqtt import Endpoint
from gatewise_sim.doctor.findings import DeviceSettings, Finding, note, ok, problem

if TYPE_CHECKING:
    from cryptography import x509

__all__ = [
    "common_name",
    "failed_handshake",
    "own_certificate",
    "refused_certificate",
    "server_certificate",
]

# OpenSSL's codes of a verification that failed (x509_vfy.h).
_NOT_YET, _EXPIRED, _HOST, _ADDRESS = 9, 10, 62, 64
_UNKNOWN: Final = (18, 19, 20, 21)
_SOON: Final = datetime.timedelta(days=30)


def own_certificate(settings: DeviceSettings) -> Finding:
    """Check the client's own certificate: that it loads, is valid, and names this device."""
    assert settings.cert_file is not None
    try:
        ssl.create_default_context().load_cert_chain(settings.cert_file, settings.key_file)
        certificate = _read(settings.cert_file)
    except (ssl.SSLError, OSError, ValueError) as error:
        return problem(
            "certificate",
            "own-certificate-unusable",
            f"{settings.cert_file} and its key do not load: {getattr(error, 'reason', error)}",
            "give the pair that `gatewise broker init` made for this device",
        )
    now = datetime.datetime.now(datetime.UTC)
    end = certificate.not_valid_after_utc
    if not certificate.not_valid_before_utc <= now <= end:
        return problem(
            "certificate",
            "own-certificate-expired",
            f"{settings.cert_file} is valid from {certificate.not_valid_before_utc:%Y-%m-%d} to "
            f"{end:%Y-%m-%d}; this machine says {now:%Y-%m-%d}",
            "renew it (gatewise broker init DIR --renew NAME), or set the clock",
        )
    name = common_name(settings.cert_file)
    if name != settings.name:
        return problem(
            "certificate",
            "own-certificate-name",
            f"{settings.cert_file} is that of {name!r}, not of device {settings.name!r}: the "
            "access list goes by the certificate's name",
            "give this device's own certificate, or the --device that it names",
        )
    if end - now < _SOON:
        return note(
            "certificate",
            "own-certificate-ends",
            f"{settings.cert_file} ends on {end:%Y-%m-%d}",
            "renew it: gatewise broker init DIR --renew " + settings.name,
        )
    return ok("certificate", f"that of {name}, good until {end:%Y-%m-%d}")


def common_name(path: Path) -> str:
    """Read the common name of a certificate; empty if it has none or cannot be read."""
    from cryptography.x509.oid import NameOID

    try:
        names = _read(path).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (OSError, ValueError):
        return ""
    return str(names[0].value) if names else ""


def _read(path: Path) -> x509.Certificate:
    from cryptography import x509

    return x509.load_pem_x509_certificate(path.read_bytes())


def failed_handshake(settings: DeviceSettings, endpoint: Endpoint, error: OSError) -> Finding:
    """Find out why a TLS handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        begin, end, names = _shown_certificate(settings, endpoint)
        if code == _EXPIRED:
            return problem(
                "tls",
                "tls-expired",
                f"the broker's certificate has expired{end}",
                "renew it (gatewise broker init DIR, restart the broker); or this clock is ahead",
            )
        if code == _NOT_YET:
            return problem(
                "tls",
                "clock-behind",
                f"the broker's certificate is not valid yet{begin}: this machine's clock is behind",
                "set the clock: timedatectl set-ntp true, or add a clock with a battery",
            )
        if code in (_HOST, _ADDRESS):
            return problem(
                "tls",
                "tls-host",
                f"the broker's certificate is not for {endpoint.host}{names}",
                "use a name that it lists, or add this one: gatewise broker init DIR --host NAME",
            )
        if code in _UNKNOWN:
            what = f"not in {settings.ca_file}" if settings.ca_file else "not among this machine's"
            return problem(
                "tls",
                "tls-unknown-ca",
                f"the authority that signed the broker's certificate is {what}",
                "give the ca.crt of this broker: --ca-file",
            )
        return problem("tls", "tls-verify", error.verify_message, "look at the broker's files")
    if isinstance(error, ssl.SSLError) and error.reason in (
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
    ):
        return problem(
            "tls",
            "tls-none",
            f"port {endpoint.port} does not speak TLS",
            "use mqtt:// there, or the port with TLS (8883)",
        )
    refused = refused_certificate(settings, error)
    return refused or problem(
        "tls",
        "tls-handshake",
        f"the TLS handshake fails: {getattr(error, 'reason', None) or error}",
        "look at the broker's log; an MQTT port without TLS wants mqtt://",
    )


def _shown_certificate(settings: DeviceSettings, endpoint: Endpoint) -> tuple[str, str, str]:
    """Read the broker's certificate without trusting it: its begin, its end, its names, as text."""
    from cryptography import x509

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        raw = socket.create_connection((endpoint.host, endpoint.port), settings.timeout)
        with raw, context.wrap_socket(raw) as connection:
            certificate = x509.load_der_x509_certificate(connection.getpeercert(True) or b"")
    except (OSError, ValueError):
        return "", "", ""
    try:
        kind = x509.SubjectAlternativeName
        alternatives = certificate.extensions.get_extension_for_class(kind).value
        names = ", ".join(str(name.value) for name in alternatives)
    except x509.ExtensionNotFound:
        names = ""
    return (
        f" (from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC)",
        f" (on {certificate.not_valid_after_utc:%Y-%m-%d})",
        f", but for {names or 'no name at all'}",
    )


def refused_certificate(settings: DeviceSettings, error: OSError) -> Finding | None:
    """Read an alert of the broker about this client's certificate (TLS 1.3 sends it late)."""
    reason = str(getattr(error, "reason", "") or "")
    if settings.cert_file is None and ("CERTIFICATE_REQUIRED" in reason or "HANDSHAKE" in reason):
        return problem(
            "login",
            "certificate-required",
            "the broker wants a client certificate",
            "give --cert-file and --key-file (gatewise broker init makes them)",
        )
    for word, why in {
        "UNKNOWN_CA": "it was signed by another authority",
        "REVOKED": "it was revoked",
        "EXPIRED": "it has expired",
        "BAD_CERTIFICATE": "it is of the wrong kind",
        "UNSUPPORTED_CERTIFICATE": "it is of the wrong kind",
        "CERTIFICATE_UNKNOWN": "it is not accepted",
        "DECRYPT_ERROR": "it was signed by another authority of the same name",
    }.items():
        if word in reason:
            return problem(
                "login",
                "certificate-refused",
                f"the broker refuses this client's certificate: {why}",
                "give the pair that this broker's authority made (gatewise broker init --renew)",
            )
    return None


def server_certificate(certificate: dict[str, Any]) -> Finding:
    """Check how long a certificate that holds (``getpeercert``) will still hold."""
    seconds = ssl.cert_time_to_seconds(certificate["notAfter"])
    end = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    if end - datetime.datetime.now(datetime.UTC) >= _SOON:
        return ok("tls", f"the broker's certificate holds, and does until {end:%Y-%m-%d}")
    return note(
        "tls",
        "tls-ends",
        f"the broker's certificate ends on {end:%Y-%m-%d}",
        "renew it: gatewise broker init DIR, then restart the broker",
    )
