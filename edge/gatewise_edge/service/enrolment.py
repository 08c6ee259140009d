"""Enrolment of a device, which makes a key and gets a certificate for a one-time token.

A token is ``NAME.SECRET.DIGEST``. The digest is the SHA-256 of the authority's certificate, with
which the device recognises the right server before it trusts any certificate.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import re
import ssl
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gatewise.errors import InputError
from gatewise_edge.errors import LinkError

#: Largest size of a request's or a response's body, in bytes; a certificate has about 1000.
MAX_BODY_BYTES: Final = 16384
#: A token, with groups for name and digest; a certificate's common name has 1 to 64 characters.
_TOKEN_PATTERN: Final = re.compile(r"(.{1,64})\.[0-9a-f]+\.([0-9a-f]{64})")
#: Longest silence of the server, in seconds. The authority may run on a slow machine.
_TIMEOUT_SECONDS: Final = 20.0


def ca_digest(authority_certificate: bytes) -> str:
    """Compute the digest of an authority's certificate (PEM) for a token."""
    encoded_certificate = x509.load_pem_x509_certificate(authority_certificate).public_bytes(
        serialization.Encoding.DER
    )
    return hashlib.sha256(encoded_certificate).hexdigest()


def format_token(name: str, secret: str, authority_certificate: bytes) -> str:
    """Format the one-time token of a device; the authority's certificate is in PEM."""
    return f"{name}.{secret}.{ca_digest(authority_certificate)}"


def enrol(url: str, token: str, folder: Path) -> dict[str, str]:
    """Make a key in a folder and get a certificate for it from the enrolment server at `url`.

    Writes ``ca.crt``, ``device.crt`` and ``device.key`` to the folder; the key never leaves the
    device. Returns the device's name and the URL of its broker. Raises InputError if the token or
    the URL is malformed, or the folder already has a key or cannot be written, and LinkError if the
    server cannot be reached, does not match the token, refuses, or sends a malformed response.
    """
    token_match = _TOKEN_PATTERN.fullmatch(token)
    if not url.startswith("https://") or token_match is None:
        raise InputError("give the https:// URL of the enrolment server, and the whole token")
    name, digest = token_match.groups()
    key_file = folder / "device.key"
    if key_file.exists():
        raise InputError(f"{key_file} already exists: enrol into another folder")
    authority_certificate = _fetch_authority_certificate(url, digest)
    key = ec.generate_private_key(ec.SECP256R1())
    # The request uses the token up, so first make sure that the folder can be written.
    is_new_folder = not folder.exists()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from None
    try:
        certificate, broker_url = _request_certificate(url, token, name, key, authority_certificate)
    except BaseException:
        if is_new_folder:
            folder.rmdir()
        raise
    # Write the files last, because a key would block another try.
    encoded_key = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(encoded_key)
    (folder / "device.crt").write_text(certificate)
    (folder / "ca.crt").write_bytes(authority_certificate)
    return {"device": name, "broker": broker_url}


def _fetch_authority_certificate(url: str, digest: str) -> bytes:
    """Get the authority's certificate (PEM) over an unverified connection, and verify its digest.

    No certificate is trusted yet. The digest in the token proves that it is the right one.
    """
    unverified_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified_context.check_hostname = False
    unverified_context.verify_mode = ssl.CERT_NONE
    content = _fetch(f"{url}/ca.crt", unverified_context)
    try:
        has_digest_of_token = hmac.compare_digest(ca_digest(content), digest)
    except ValueError:
        has_digest_of_token = False
    if not has_digest_of_token:
        raise LinkError(url, f"{url} is not the server that made this token: check both")
    # Trust only the first certificate, because the digest does not cover what follows it.
    return x509.load_pem_x509_certificate(content).public_bytes(serialization.Encoding.PEM)


def _request_certificate(
    url: str,
    token: str,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority_certificate: bytes,
) -> tuple[str, str]:
    """Request a certificate (PEM) for a key; return it with the URL of the broker."""
    verified_context = ssl.create_default_context(cadata=authority_certificate.decode())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signing_request = (
        x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    )
    encoded_request = signing_request.public_bytes(serialization.Encoding.PEM).decode()
    request_body = json.dumps({"token": token, "csr": encoded_request}).encode()
    content = _fetch(f"{url}/enrol", verified_context, request_body)
    try:
        response: dict[str, Any] = json.loads(content)
        certificate = str(response["certificate"])
        broker_url = str(response["broker"])
        x509.load_pem_x509_certificate(certificate.encode())
    except (ValueError, KeyError, TypeError):
        raise LinkError(url, f"{url} sends a malformed response") from None
    return certificate, broker_url


def _fetch(url: str, tls_context: ssl.SSLContext, request_body: bytes | None = None) -> bytes:
    """Send a request and return the body of the response; raise LinkError if that fails."""
    try:
        request = urllib.request.Request(url, data=request_body)
        with urllib.request.urlopen(
            request, timeout=_TIMEOUT_SECONDS, context=tls_context
        ) as response:
            content: bytes = response.read(MAX_BODY_BYTES)
            return content
    except urllib.error.HTTPError as error:
        with error:
            content = error.read(MAX_BODY_BYTES)
        try:
            reason = json.loads(content)["error"]
        except (ValueError, KeyError, TypeError):
            reason = error.reason
        raise LinkError(url, f"{url} refuses: {reason}") from None
    except (ValueError, http.client.InvalidURL) as error:
        raise InputError(f"{url} is not a URL: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        raise LinkError(url, f"{url} cannot be reached: {error}") from None
