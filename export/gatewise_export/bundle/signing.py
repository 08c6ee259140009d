"""Ed25519 signatures of bundles.

``SIGNATURE``, next to ``manifest.json``, is ASCII text::

    gatewise signature 1
    ed25519 9f86d081884c7d65 <sha256 of the manifest> <base64 of 64 bytes>

The second word is the key's id: the first 8 bytes, in hexadecimal digits, of the SHA-256 of the
public key's 32 bytes (RFC 8032). The signed content is a context (:data:`MANIFEST_CONTEXT`)
followed by the manifest's bytes, which contain the hash of every other file. The context makes the
signature invalid for any other purpose. While the manifest of a directory is being replaced, the
file has two signatures, one of which is valid (:meth:`.Storage.write_manifest`).

Keys are PEM files: NAME.key (PKCS #8, not encrypted, readable only by its owner) and NAME.pub.
The ``cryptography`` library is loaded only when a key is used.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gatewise.errors import InputError
from gatewise_export.bundle.errors import SignatureError

SIGNATURE: Final = "SIGNATURE"
MANIFEST_CONTEXT: Final = b"gatewise manifest signature, version 1\0"
#: Largest size of a SIGNATURE file; two signatures take 379 bytes.
MAX_SIGNATURE_BYTES: Final = 512

_HEADER: Final = "gatewise signature 1"
#: Part of a key file that is read, in case the path names a large file by mistake.
_MAX_KEY_BYTES: Final = 16 << 10


@dataclass(frozen=True)
class Signature:
    """One line of a SIGNATURE file.

    Attributes
    ----------
    key_id : str
        Id of the key, 16 hexadecimal digits.
    digest : str
        SHA-256 of the signed content in hexadecimal digits. It tells which content is signed, but
        only `value` proves it.
    value : bytes
        The 64 bytes of the Ed25519 signature.
    """

    key_id: str
    digest: str
    value: bytes

    def covers(self, content: bytes) -> bool:
        """Whether the digest is that of `content`; the signature itself is not checked."""
        return self.digest == hashlib.sha256(content).hexdigest()


class PublicKey:
    """A public key that checks signatures.

    Parameters
    ----------
    source : str, Path or bytes
        A PEM file, its content, or the 32 bytes of the key.

    Attributes
    ----------
    raw : bytes
        The 32 bytes of the key.
    key_id : str
        16 hexadecimal digits.

    Raises
    ------
    InputError
        If the key cannot be read, or is not an Ed25519 public key.
    """

    def __init__(self, source: str | Path | bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        content = source if isinstance(source, bytes) else _read_key_file(source)
        label = "the public key" if isinstance(source, bytes) else f"public key {source}"
        if len(content) == 32:
            key: object = Ed25519PublicKey.from_public_bytes(content)
        else:
            key = _load_pem_key(
                load_pem_public_key, content, label, expected_kind="public", other_kind="private"
            )
        if not isinstance(key, Ed25519PublicKey):
            raise InputError(
                f"{label} is not an Ed25519 key: make one with openssl genpkey -algorithm ed25519"
            )
        self._key = key
        self.raw = key.public_bytes_raw()
        self.key_id = hashlib.sha256(self.raw).hexdigest()[:16]

    def check(
        self, signatures: list[Signature], context: bytes, content: bytes, label: str
    ) -> None:
        """Check that this key has signed `content`, which error messages call `label`."""
        from cryptography.exceptions import InvalidSignature

        own_signatures = [signature for signature in signatures if signature.key_id == self.key_id]
        if not own_signatures:
            signers = ", ".join(signature.key_id for signature in signatures)
            raise SignatureError(f"{label} is signed by key {signers}, not by {self.key_id}")
        for signature in own_signatures:
            if signature.covers(content):
                try:
                    self._key.verify(signature.value, context + content)
                except InvalidSignature:
                    break
                return
        raise SignatureError(
            f"{label}: the signature by key {self.key_id} is invalid: it was altered, or signs "
            "other content"
        )


class Signer:
    """A private key from the file NAME.key, which signs content.

    Raises InputError if the file cannot be read, is encrypted, or is not an Ed25519 private key.
    """

    def __init__(self, path: str | Path) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        content = _read_key_file(path)
        label = f"key {path}"
        load = functools.partial(load_pem_private_key, password=None)
        key = _load_pem_key(load, content, label, expected_kind="private", other_kind="public")
        if not isinstance(key, Ed25519PrivateKey):
            raise InputError(
                f"{label} is not an Ed25519 key: make one with openssl genpkey -algorithm ed25519"
            )
        self.key = key
        self.public = PublicKey(key.public_key().public_bytes_raw())

    def sign(self, context: bytes, content: bytes) -> Signature:
        """Sign `content` for the purpose that `context` names."""
        digest = hashlib.sha256(content).hexdigest()
        return Signature(self.public.key_id, digest, self.key.sign(context + content))


def keygen(name: str | Path) -> tuple[Path, Path]:
    """Make a key pair: `name`.key, readable only by its owner, and `name`.pub.

    Returns both paths. Raises InputError if a file exists or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private_content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public_content = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    paths = Path(f"{name}.key"), Path(f"{name}.pub")
    for path in paths:
        if path.exists() or path.is_symlink():
            raise InputError(f"{path} exists and is not overwritten: choose another name")
    made_paths: list[Path] = []
    for path, content, mode in zip(
        paths, (private_content, public_content), (0o600, 0o644), strict=True
    ):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            made_paths.append(path)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            for made_path in made_paths:  # half of a pair would block the name
                made_path.unlink()
            raise InputError(f"{path} cannot be written: {error.strerror}") from None
    return paths


def write_signatures(*signatures: Signature) -> bytes:
    """Write the content of a SIGNATURE file with one or two signatures."""
    lines = [
        f"ed25519 {signature.key_id} {signature.digest} "
        + base64.b64encode(signature.value).decode()
        for signature in signatures
    ]
    return "\n".join([_HEADER, *lines, ""]).encode()


def read_signatures(content: bytes) -> list[Signature]:
    """Read the content of a SIGNATURE file."""
    refusal = SignatureError(f"{SIGNATURE} is not a signature file of a known format")
    try:
        header, *lines, remainder = content[: MAX_SIGNATURE_BYTES + 1].decode("ascii").split("\n")
        signatures = [
            Signature(key_id, digest, base64.b64decode(value, validate=True))
            for _, key_id, digest, value in (line.split(" ") for line in lines)
        ]
    except ValueError:  # also UnicodeDecodeError and binascii.Error
        raise refusal from None
    # accept only the exact form, because a signature must have a single possible file
    is_well_formed = header == _HEADER and not remainder and 1 <= len(signatures) <= 2
    is_well_formed = is_well_formed and all(
        _is_hex(signature.key_id, 16)
        and _is_hex(signature.digest, 64)
        and len(signature.value) == 64
        for signature in signatures
    )
    if not is_well_formed or write_signatures(*signatures) != content:
        raise refusal
    return signatures


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and set(text) <= set("0123456789abcdef")


def _load_pem_key(
    load: Callable[[bytes], object],
    content: bytes,
    label: str,
    *,
    expected_kind: str,
    other_kind: str,
) -> object:
    """Load the PEM text of a key of the expected kind; error messages call it `label`."""
    try:
        return load(content)
    except TypeError:
        raise InputError(f"{label} is encrypted: give a key without a password") from None
    except Exception:  # the library's errors have no common base class
        if f"{other_kind.upper()} KEY".encode() in content:
            ending = "key" if expected_kind == "private" else "pub"
            raise InputError(f"{label} is a {other_kind} key: give NAME.{ending}") from None
        raise InputError(f"{label} is not a PEM file with a {expected_kind} key") from None


def _read_key_file(path: str | Path) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MAX_KEY_BYTES)
    except OSError as error:
        raise InputError(f"key {path} cannot be read: {error.strerror}") from None
