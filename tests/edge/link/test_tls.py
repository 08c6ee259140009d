"""Connections over TLS with user and password; tests/security tests client certificates."""

from __future__ import annotations

import subprocess

import pytest

from gatewise_edge.errors import LinkError
from gatewise_edge.link.mqtt_link import MqttLink
from tests.support.certificates import Authority
from tests.support.mosquitto import Mosquitto


# paho does not close the socket of a failed handshake, which the garbage collector then reports.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_link_over_tls_needs_the_right_user_and_password(tmp_path):
    authority = Authority(tmp_path, "authority")
    server_cert, server_key = authority.issue("server")
    passwords = tmp_path / "passwords"
    # A password with two characters that must be encoded in a URL.
    command = ["mosquitto_passwd", "-b", "-c", str(passwords), "pi-1", "p:w/1"]
    subprocess.run(command, check=True, capture_output=True)
    broker = Mosquitto(
        tmp_path,
        f"cafile {authority.file}\ncertfile {server_cert}\nkeyfile {server_key}\n"
        f"allow_anonymous false\npassword_file {passwords}",
    )
    try:
        for credentials, is_allowed in (
            ("pi-1:p%3Aw%2F1@", True),
            ("pi-1:wrong@", False),
            ("pi-2:p%3Aw%2F1@", False),
            ("", False),
        ):
            url = broker.url.replace("mqtt://", f"mqtts://{credentials}")
            link = MqttLink(url, ca_file=authority.file)
            if is_allowed:
                link.connect(60)
                assert link.is_ready
                assert "p:w" not in link.url
            else:
                with pytest.raises(LinkError, match="cannot be used: Not authorized") as error_info:
                    link.connect(60)
                assert "w%2F1" not in str(error_info.value)
            link.close()
    finally:
        broker.kill()
