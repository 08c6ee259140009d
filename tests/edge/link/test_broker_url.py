"""The URL of a broker, and the encoding of passwords in it."""

from __future__ import annotations

import pytest

from gatewise.errors import InputError
from gatewise_edge.link.broker_url import Endpoint


@pytest.mark.parametrize("password", ["p#ss", "p/ss", "p?ss", "#", "p[ss", "1#2/3"])
def test_error_says_that_a_password_must_be_encoded(password: str) -> None:
    with pytest.raises(InputError, match="in a user or password write # as %23") as error_info:
        Endpoint(f"mqtt://user:{password}@h")
    assert password not in str(error_info.value).split(";")[0]


def test_encoded_credentials_are_read() -> None:
    endpoint = Endpoint("mqtt://us%40er:p%23s%2Fs@host:1884")
    assert (endpoint.user, endpoint.password) == ("us@er", "p#s/s")
    assert endpoint.url == "mqtt://host:1884"
    with pytest.raises(InputError, match="port is not a number"):
        Endpoint("mqtt://host:port")
