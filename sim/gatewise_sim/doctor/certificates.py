"""Certificates: the device's own, the broker's, and why either is refused."""

from __future__ import annotations

import datetime
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gatewise_edge.link.mqtt import Endpoint
from gatewise_sim.doctor.findings import SET_CLOCK, DeviceSettings, Finding, note, ok, problem

if TYPE_CHECKING:
    from cryptography import x509

#: OpenSSL's codes of a verification that failed (x509_vfy.h).
_NOT_YET, _EXPIRED, _OTHER_NAME, _UNKNOWN_CA = 9, 10, (62, 64), (18, 19, 20, 21)
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
    check, file = "certificate", settings.cert_file
    try:
        ssl.create_default_context().load_cert_chain(file, settings.key_file)
        certificate = _read(file)
    except (ssl.SSLError, OSError, ValueError) as error:
        return problem(
            check,
            "own-certificate-unusable",
            f"{file} and its key do not load: {getattr(error, 'reason', error)}",
            "give the pair that `gatewise broker init` made for this device",
        )
    now = datetime.datetime.now(datetime.UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    name = common_name(file)
    if not begin <= now <= end:
        return problem(
            check,
            "own-certificate-expired",
            f"{file} is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}; this machine says "
            f"{now:%Y-%m-%d}",
            "renew it (gatewise broker init DIR --renew NAME), or set the clock",
        )
    if name != settings.name:
        return problem(
            check,
            "own-certificate-name",
            f"{file} is that of {name!r}, not of device {settings.name!r}: the access list goes by "
            "the certificate's name",
            "give this device's own certificate, or the --device that it names",
        )
    if end - now < _SOON:
        remedy = f"renew it: gatewise broker init DIR --renew {settings.name}"
        return note(check, "own-certificate-ends", f"{file} ends on {end:%Y-%m-%d}", remedy)
    return ok(check, f"that of {name}, good until {end:%Y-%m-%d}")


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
        return _unverified(settings, endpoint, error)
    no_tls = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
    if isinstance(error, ssl.SSLError) and error.reason in no_tls:
        return problem(
            "tls",
            "tls-none",
            f"port {endpoint.port} does not speak TLS",
            "use mqtt:// there, or the port with TLS (8883)",
        )
    return refused_certificate(settings, error) or problem(
        "tls",
        "tls-handshake",
        f"the TLS handshake fails: {getattr(error, 'reason', None) or error}",
        "look at the broker's log; an MQTT port without TLS wants mqtt://",
    )


def _unverified(
    settings: DeviceSettings, endpoint: Endpoint, error: ssl.SSLCertVerificationError
) -> Finding:
    """Name what is wrong with the broker's certificate."""
    shown, code = _shown_certificate(settings, endpoint), error.verify_code
    if code == _NOT_YET:
        begin = shown and f" (from {shown.not_valid_before_utc:%Y-%m-%d %H:%M} UTC)"
        says = f"the broker's certificate is not valid yet{begin or ''}: this machine's clock is "
        return problem("tls", "clock-behind", f"{says}behind", SET_CLOCK)
    if code == _EXPIRED:
        end = shown and f" (on {shown.not_valid_after_utc:%Y-%m-%d})"
        return problem(
            "tls",
            "tls-expired",
            f"the broker's certificate has expired{end or ''}",
            "renew it (gatewise broker init DIR, restart the broker); or this clock is ahead",
        )
    if code in _OTHER_NAME:
        names = shown and f", but for {_alternative_names(shown) or 'no name at all'}"
        return problem(
            "tls",
            "tls-host",
            f"the broker's certificate is not for {endpoint.host}{names or ''}",
            "use a name that it lists, or add this one: gatewise broker init DIR --host NAME",
        )
    if code in _UNKNOWN_CA:
        among = f"in {settings.ca_file}" if settings.ca_file else "among this machine's"
        return problem(
            "tls",
            "tls-unknown-ca",
            f"the authority that signed the broker's certificate is not {among}",
            "give the ca.crt of this broker: --ca-file",
        )
    return problem("tls", "tls-verify", error.verify_message, "look at the broker's files")


def _shown_certificate(settings: DeviceSettings, endpoint: Endpoint) -> x509.Certificate | None:
    """Read the broker's certificate without trusting it."""
    from cryptography import x509

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        raw = socket.create_connection((endpoint.host, endpoint.port), settings.timeout)
        with raw, context.wrap_socket(raw) as connection:
            return x509.load_der_x509_certificate(connection.getpeercert(True) or b"")
    except (OSError, ValueError):
        return None


def _alternative_names(certificate: x509.Certificate) -> str:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ""
    return ", ".join(str(name.value) for name in found.value)


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
    for word, why in _REFUSALS.items():
        if word in reason:
            return problem(
                "login",
                "certificate-refused",
                f"the broker refuses this client's certificate: it {why}",
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
