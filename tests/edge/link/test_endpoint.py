"""The URL of a broker, the credentials in it, and TLS files."""

from __future__ import annotations

import pytest

from gatewise.errors import InputError
from gatewise_edge.link.endpoint import Endpoint


@pytest.mark.parametrize(
    "url",
    [
        *("http://host", "host:1883", "mqtt://", "mqtt://host/path", "mqtt://host?x=1"),
        *("mqtt://host:port", "mqtt://host:99999", "mqtt://host:0"),
        *("mqtt://user:secret@[::1", "mqtt://[fe80::zz]:1883", "mqtt://broker..example"),
        f"mqtt://{'b' * 64}.example",  # a label has at most 63 characters
    ],
)
def test_malformed_url_is_refused(url):
    with pytest.raises(InputError, match="broker") as error_info:
        Endpoint(url)
    assert "secret" not in str(error_info.value)


def test_endpoint_reads_host_port_and_credentials_from_the_url():
    endpoint = Endpoint("mqtt://us%40er:p%2F%23w@broker.example:1234")
    assert (endpoint.host, endpoint.port) == ("broker.example", 1234)
    assert (endpoint.user, endpoint.password) == ("us@er", "p/#w")
    assert endpoint.url == "mqtt://broker.example:1234"
    assert (Endpoint("mqtt://h").port, Endpoint("mqtts://h").port) == (1883, 8883)
    assert Endpoint("mqtt://[::1]").url == "mqtt://[::1]:1883"


@pytest.mark.parametrize("password", ["p#ss", "p/ss", "p?ss", "#", "p[ss", "1#2/3"])
def test_error_says_that_a_password_must_be_encoded(password):
    with pytest.raises(InputError, match="in a user or password write # as %23") as error_info:
        Endpoint(f"mqtt://user:{password}@h")
    assert password not in str(error_info.value).split(";")[0]


def test_unusable_tls_files_are_refused(tmp_path):
    invalid_file = tmp_path / "invalid.pem"
    invalid_file.write_text("not a certificate")
    for url, tls_files, message in (
        ("mqtt://h", {"ca_file": invalid_file}, "must begin with mqtts"),
        ("mqtts://h", {"ca_file": tmp_path / "none.pem"}, "does not exist"),
        ("mqtts://h", {"ca_file": invalid_file}, "cannot be used"),
        ("mqtts://h", {"cert_file": invalid_file, "key_file": invalid_file}, "cannot be used"),
        ("mqtts://h", {"key_file": invalid_file}, "needs a cert_file"),
    ):
        with pytest.raises(InputError, match=message):
            Endpoint(url, **tls_files)
