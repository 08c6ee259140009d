"""Certificates of test servers and devices that meet the strict checks of Python 3.13."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """A certificate authority with the certificate `folder`/`name`.pem.

    Its certificates name `address` and are valid for a day before and after `days` from now.
    """

    def __init__(
        self, folder: Path, name: str, *, days: float = 0.0, address: str = "127.0.0.1"
    ) -> None:
        self._folder = folder
        self._name = _make_name(name)
        self._address = x509.IPAddress(ipaddress.ip_address(address))
        self._validity_middle = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(
            self._make_certificate(self._name, self._key.public_key(), is_authority=True)
        )

    def issue(self, name: str) -> tuple[Path, Path]:
        """Write a certificate and its key to `name`.crt and `name`.key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate_file = self._folder / f"{name}.crt"
        key_file = self._folder / f"{name}.key"
        certificate_file.write_bytes(
            self._make_certificate(_make_name(name), key.public_key(), is_authority=False)
        )
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate_file, key_file

    def _make_certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool
    ) -> bytes:
        """Make a certificate with the extensions that Python's strict verification requires."""
        one_day = datetime.timedelta(days=1)
        issuer_key = self._key.public_key()
        denied_usages = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
             "encipher_only", "decipher_only"), False,
        )  # fmt: skip
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._validity_middle - one_day)
            .not_valid_after(self._validity_middle + one_day)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    key_cert_sign=is_authority,
                    crl_sign=is_authority,
                    **denied_usages,
                ),
                True,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
            )
            .add_extension(x509.SubjectAlternativeName([self._address]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def _make_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
