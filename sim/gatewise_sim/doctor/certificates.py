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

#: By OpenSSL's codes of a verification that failed (x509_vfy.h).
_UNVERIFIED: Final = {
    9: "clock-behind the certificate",
    10: "tls-expired",
    **dict.fromkeys((62, 64), "tls-host"),
    **dict.fromkeys((18, 19, 20, 21), "tls-unknown-ca"),
}
#: By words of the broker's alert.
_REFUSALS: Final = {
    "UNKNOWN_CA": "was signed by another authority",
    "REVOKED": "was revoked",
    "EXPIRED": "has expired",
    "BAD_CERTIFICATE": "is of the wrong kind",
    "UNSUPPORTED_CERTIFICATE": "is of the wrong kind",
    "CERTIFICATE_UNKNOWN": "is not accepted",
    "DECRYPT_ERROR": "was signed by another authority of the same name",
}
_SOON: Final = datetime.timedelta(days=30)


def own_certificate(settings: DeviceSettings) -> Finding:
    """Check the client's own certificate: that it loads, is valid, and names this device."""
    assert settings.cert_file is not None
    try:
        ssl.create_default_context().load_cert_chain(settings.cert_file, settings.key_file)
        certificate = _read(settings.cert_file)
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        return problem("own-certificate-unusable", file=settings.cert_file, why=why)
    now = datetime.datetime.now(datetime.UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    name = common_name(settings.cert_file)
    facts = {"file": settings.cert_file, "begin": begin, "end": end, "device": settings.name}
    if not begin <= now <= end:
        return problem("own-certificate-expired", now=now, **facts)
    if name != settings.name:
        return problem("own-certificate-name", name=name, **facts)
    if end - now < _SOON:
        return note("own-certificate-ends", **facts)
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
        return problem(
            _UNVERIFIED.get(error.verify_code, "tls-verify"),
            host=endpoint.host,
            why=error.verify_message,
            among=f"in {settings.ca_file}" if settings.ca_file else "among this machine's",
            **_shown_certificate(settings, endpoint),
        )
    no_tls = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
    if isinstance(error, ssl.SSLError) and error.reason in no_tls:
        return problem("tls-none", port=endpoint.port)
    why = getattr(error, "reason", None) or error
    return refused_certificate(settings, error) or problem("tls-handshake", why=why)


def _shown_certificate(settings: DeviceSettings, endpoint: Endpoint) -> dict[str, str]:
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
        return dict.fromkeys(("begin", "end", "names"), "")
    try:
        kind = x509.SubjectAlternativeName
        alternatives = certificate.extensions.get_extension_for_class(kind).value
        names = ", ".join(str(name.value) for name in alternatives)
    except x509.ExtensionNotFound:
        names = ""
    return {
        "begin": f" (from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC)",
        "end": f" (on {certificate.not_valid_after_utc:%Y-%m-%d})",
        "names": f", but for {names or 'no name at all'}",
    }


def refused_certificate(settings: DeviceSettings, error: OSError) -> Finding | None:
    """Read an alert of the broker about this client's certificate (TLS 1.3 sends it late)."""
    reason = str(getattr(error, "reason", "") or "")
    if settings.cert_file is None and ("CERTIFICATE_REQUIRED" in reason or "HANDSHAKE" in reason):
        return problem("certificate-required")
    for word, why in _REFUSALS.items():
        if word in reason:
            return problem("certificate-refused", why=why)
    return None


def server_certificate(certificate: dict[str, Any]) -> Finding:
    """Check how long a certificate that holds (``getpeercert``) will still hold."""
    seconds = ssl.cert_time_to_seconds(certificate["notAfter"])
    end = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    if end - datetime.datetime.now(datetime.UTC) >= _SOON:
        return ok("tls", f"the broker's certificate holds, and does until {end:%Y-%m-%d}")
    return note("tls-ends", end=end)
