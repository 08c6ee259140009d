"""Certificate authority of a broker, which issues and revokes the certificates of clients.

The common name of a certificate is the name of its client. mosquitto uses it as the user name in
its access list (``use_identity_as_username``). Keys are elliptic-curve keys on P-256, and their
files have mode 0600.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gatewise.errors import InputError
from gatewise_export.bundle.storage import replace_file

#: Days until the authority's certificate expires.
CA_DAYS: Final = 3650
#: Days until a server's certificate expires, as the CA/Browser Forum advised in 2020.
SERVER_DAYS: Final = 397
#: Days until a client's certificate expires: more than a server's, because devices are hard to
#: reach. It is the CA/Browser Forum's limit before 2020.
CLIENT_DAYS: Final = 825
#: Mode of files that everyone may read.
PUBLIC_MODE: Final = 0o644
#: Mode of files that only the owner may read.
PRIVATE_MODE: Final = 0o600
#: Certificates are valid from this time before their issue, because the clock of a device may be
#: slow.
_CLOCK_TOLERANCE: Final = datetime.timedelta(days=1)
#: Longest common name (RFC 5280, appendix A.1); clients check the alternative names.
_MAX_COMMON_NAME: Final = 64
_KEY_USAGES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)

Clock = Callable[[], datetime.datetime]


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Paths of a certificate and of its private key."""

    certificate: Path
    key: Path

    def are_pair(self) -> bool:
        """Whether both files exist and the key is that of the certificate."""
        return (
            self.certificate.exists()
            and self.key.exists()
            and read_certificate(self.certificate).public_key() == _read_key(self.key).public_key()
        )


class Authority:
    """Certificate authority with the files ``ca.crt``, ``ca.key`` and ``ca.crl`` of a folder.

    The constructor makes a new authority if the folder has none. `clock` returns a time with its
    zone. Raises InputError if only the certificate or only its key exists, or if a file cannot be
    read.
    """

    def __init__(self, folder: Path, *, clock: Clock) -> None:
        self._clock = clock
        self._crl_file = folder / "ca.crl"
        files = CertificateFiles(folder / "ca.crt", folder / "ca.key")
        existing_files = [file for file in (files.certificate, files.key) if file.exists()]
        if len(existing_files) == 1:
            raise InputError(
                f"{existing_files[0]} exists, but the folder lacks ca.crt or ca.key: put both "
                "files of one authority into the folder, or remove the file to make a new authority"
            )
        if existing_files:
            self._key = _read_key(files.key)
            self.certificate = read_certificate(files.certificate)
            if self.certificate.public_key() != self._key.public_key():
                raise InputError(
                    f"{files.key} is not the key of {files.certificate}: restore both files"
                )
        else:
            self._key = _make_key(files.key)
            issuer = _make_distinguished_name("gatewise authority")
            now = clock()
            expiry = now + datetime.timedelta(days=CA_DAYS)
            public_key = self._key.public_key()
            builder = _begin_certificate(
                issuer, issuer, public_key, now, expiry, usages=("key_cert_sign", "crl_sign")
            )
            identifier = x509.SubjectKeyIdentifier.from_public_key(public_key)
            builder = builder.add_extension(identifier, critical=False)
            self.certificate = self._sign(files.certificate, builder)
        if not self._crl_file.exists():
            self._write_crl([])

    def issue_server(self, files: CertificateFiles, hosts: Sequence[str]) -> None:
        """Write a key and a certificate for a server with these host names or addresses."""
        # refuse an invalid name before the key of the present certificate is replaced
        alternative_names = [_make_general_name(host) for host in hosts]
        self._write_certificate(
            files.certificate,
            _make_distinguished_name(hosts[0][:_MAX_COMMON_NAME]),
            SERVER_DAYS,
            ExtendedKeyUsageOID.SERVER_AUTH,
            key=_make_key(files.key).public_key(),
            alternative_names=alternative_names,
        )

    def issue_client(self, files: CertificateFiles, name: str, role: str) -> None:
        """Write a key and a certificate for a client."""
        self.certify_client(files.certificate, _make_key(files.key).public_key(), name, role)

    def certify_client(
        self, path: Path, key: ec.EllipticCurvePublicKey, name: str, role: str
    ) -> None:
        """Write a certificate for a client that has made its own `key`."""
        subject = _make_distinguished_name(name, role)
        purpose = ExtendedKeyUsageOID.CLIENT_AUTH
        self._write_certificate(path, subject, CLIENT_DAYS, purpose, key=key)

    def revoke(self, certificate: x509.Certificate) -> None:
        """Add a certificate to the revocation list."""
        crl = x509.load_pem_x509_crl(self._crl_file.read_bytes())
        serial_number = certificate.serial_number
        if crl.get_revoked_certificate_by_serial_number(serial_number) is None:
            builder = x509.RevokedCertificateBuilder().serial_number(serial_number)
            self._write_crl([*crl, builder.revocation_date(self._clock()).build()])

    def _write_certificate(
        self,
        path: Path,
        subject: x509.Name,
        valid_days: int,
        purpose: x509.ObjectIdentifier,
        *,
        key: ec.EllipticCurvePublicKey,
        alternative_names: Sequence[x509.GeneralName] = (),
    ) -> None:
        now = self._clock()
        # a certificate is not valid after its authority has expired
        expiry = min(
            now + datetime.timedelta(days=valid_days), self.certificate.not_valid_after_utc
        )
        issuer = self.certificate.subject
        builder = _begin_certificate(
            subject, issuer, key, now, expiry, usages=("digital_signature",)
        )
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        if alternative_names:
            names = x509.SubjectAlternativeName(alternative_names)
            builder = builder.add_extension(names, critical=False)
        self._sign(path, builder)

    def _sign(self, path: Path, builder: x509.CertificateBuilder) -> x509.Certificate:
        certificate = builder.sign(self._key, hashes.SHA256())
        replace_file(path, certificate.public_bytes(serialization.Encoding.PEM), PUBLIC_MODE)
        return certificate

    def _write_crl(self, revoked_certificates: list[x509.RevokedCertificate]) -> None:
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(self._clock() - _CLOCK_TOLERANCE)
            # mosquitto refuses every client once the list has expired
            .next_update(self.certificate.not_valid_after_utc)
        )
        for certificate in revoked_certificates:
            builder = builder.add_revoked_certificate(certificate)
        crl = builder.sign(self._key, hashes.SHA256())
        replace_file(self._crl_file, crl.public_bytes(serialization.Encoding.PEM), PUBLIC_MODE)


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate from a PEM file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a certificate: {error}") from None


def host_names(certificate: x509.Certificate) -> set[str]:
    """Get the host names and addresses in a server's certificate."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def _begin_certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    expiry: datetime.datetime,
    *,
    usages: Sequence[str],
) -> x509.CertificateBuilder:
    """Begin a certificate; the usage ``key_cert_sign`` makes it the certificate of an authority."""
    is_authority = "key_cert_sign" in usages
    constraints = x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)
    key_usage = x509.KeyUsage(**{usage: usage in usages for usage in _KEY_USAGES})
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_TOLERANCE)
        .not_valid_after(expiry)
        .add_extension(constraints, critical=True)
        .add_extension(key_usage, critical=True)
    )


def _make_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    replace_file(path, pem, PRIVATE_MODE)
    return key


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read as a key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path} is not an elliptic-curve key")
    return key


def _make_distinguished_name(common_name: str, role: str | None = None) -> x509.Name:
    attributes = {NameOID.ORGANIZATION_NAME: "gatewise"}
    if role is not None:
        attributes[NameOID.ORGANIZATIONAL_UNIT_NAME] = role
    attributes[NameOID.COMMON_NAME] = common_name
    return x509.Name([x509.NameAttribute(*attribute) for attribute in attributes.items()])


def _make_general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise InputError(f"host {host!r} is not a name or an address: write it in ASCII") from None
