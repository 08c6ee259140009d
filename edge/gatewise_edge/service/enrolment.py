"""A device's side of enrolment: its own key, and a certificate for a one-time token.

A token is ``NAME.SECRET.DIGEST``, where the digest is of the authority's certificate: it says which
server is the right one before any certificate is trusted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import ssl
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

#: Largest number of bytes of a request or a response.
MAX_BODY: Final = 16384
_TIMEOUT: Final = 20.0


def ca_digest(certificate: bytes) -> str:
    """Digest of an authority's certificate in PEM, as tokens hold it."""
    encoded = x509.load_pem_x509_certificate(certificate).public_bytes(serialization.Encoding.DER)
    return hashlib.sha256(encoded).hexdigest()


def write_token(name: str, secret: str, certificate: bytes) -> str:
    """Write the token of a device, for the authority with this certificate."""
    return f"{name}.{secret}.{ca_digest(certificate)}"


def enrol(url: str, token: str, folder: Path) -> dict[str, str]:
    """Make a key in a folder and get a certificate for it from the enrolment server at `url`.

    Writes ``ca.crt``, ``device.crt`` and ``device.key``, which never leaves the device; returns the
    device's name and the URL of its broker. InputError if the token or the URL is malformed or the
    folder has a key already; LinkError if the server cannot be reached, is not the token's, or
    refuses.
    """
    name, _, digest = token.rpartition(".")
    name = name.rpartition(".")[0]
    if not url.startswith("https://") or not name or len(digest) != 64:
        raise InputError("give the https:// URL of the enrolment server, and the whole token")
    key_file = folder / "device.key"
    if key_file.exists():
        raise InputError(f"{key_file} is there already: enrol into another folder")
    # No certificate is trusted yet: the digest in the token proves the authority.
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    authority = _fetch(f"{url}/ca.crt", unverified)
    try:
        is_known = hmac.compare_digest(ca_digest(authority), digest)
    except ValueError:
        is_known = False
    if not is_known:
        raise LinkError(url, f"{url} is not the enrolment server of this token")
    context = ssl.create_default_context(cadata=authority.decode())
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    csr = request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    body = json.dumps({"token": token, "csr": csr.decode()}).encode()
    answer: dict[str, Any] = json.loads(_fetch(f"{url}/enrol", context, body))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
    (folder / "device.crt").write_text(str(answer["certificate"]))
    (folder / "ca.crt").write_bytes(authority)
    return {"device": name, "broker": str(answer["broker"])}


def _fetch(url: str, context: ssl.SSLContext, body: bytes | None = None) -> bytes:
    try:
        request = urllib.request.Request(url, data=body)
        with urllib.request.urlopen(request, timeout=_TIMEOUT, context=context) as response:
            content: bytes = response.read(MAX_BODY)
            return content
    except urllib.error.HTTPError as error:
        with error:
            content = error.read(MAX_BODY)
        try:
            why = json.loads(content)["error"]
        except (ValueError, KeyError, TypeError):
            why = error.reason
        raise LinkError(url, f"{url} refuses: {why}") from None
    except OSError as error:
        raise LinkError(url, f"{url} cannot be reached: {error}") from None
