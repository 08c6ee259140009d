"""TLS with client certificates, against a real mosquitto."""

from __future__ import annotations

import datetime
import ipaddress
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gatewise_edge.errors import LinkError
from gatewise_edge.link.mqtt import MqttLink


class Authority:
    """A certificate authority that lives for one test."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        certificate = self._certificate(self._name, self._key.public_key(), ca=True)
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        cert_file, key_file = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        certificate = self._certificate(subject, key.public_key(), ca=False)
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return cert_file, key_file

    def _certificate(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey, *, ca: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        hour = datetime.timedelta(hours=1)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - hour)
            .not_valid_after(now + hour)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )


# paho leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_tls_with_client_certificates(tmp_path, tools):
    authority = Authority(tmp_path, "authority")
    server_cert, server_key = authority.issue("server")
    cert_file, key_file = authority.issue("pi-1")
    broker = tools.Mosquitto(
        tmp_path,
        f"cafile {authority.file}\ncertfile {server_cert}\nkeyfile {server_key}\n"
        "require_certificate true",
    )
    url = broker.url.replace("mqtt://", "mqtts://")
    try:
        link = MqttLink(
            url, device="pi-1", ca_file=authority.file, cert_file=cert_file, key_file=key_file
        )
        link.connect(60)
        assert link.ready
        link.close()
        for files in (
            {"ca_file": authority.file},
            {"ca_file": Authority(tmp_path, "stranger").file},
            {},
        ):
            link = MqttLink(url, **files)
            with pytest.raises(LinkError, match="cannot be used"):
                link.connect(60)
            link.close()
    finally:
        broker.kill()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_tls_with_user_and_password(tmp_path, tools):
    authority = Authority(tmp_path, "authority")
    server_cert, server_key = authority.issue("server")
    passwords = tmp_path / "passwords"
    command = ["mosquitto_passwd", "-b", "-c", str(passwords), "pi-1", "p:w/1"]
    subprocess.run(command, check=True, capture_output=True)
    broker = tools.Mosquitto(
        tmp_path,
        f"cafile {authority.file}\ncertfile {server_cert}\nkeyfile {server_key}\n"
        f"allow_anonymous false\npassword_file {passwords}",
    )
    try:
        for credentials, allowed in (
            ("pi-1:p%3Aw%2F1@", True),
            ("pi-1:wrong@", False),
            ("pi-2:p%3Aw%2F1@", False),
            ("", False),
        ):
            url = broker.url.replace("mqtt://", f"mqtts://{credentials}")
            link = MqttLink(url, ca_file=authority.file)
            if allowed:
                link.connect(60)
                assert link.ready
                assert "p:w" not in link.url
            else:
                with pytest.raises(LinkError, match="cannot be used") as refused:
                    link.connect(60)
                assert "w%2F1" not in str(refused.value)
            link.close()
    finally:
        broker.kill()
