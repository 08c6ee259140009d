"""Descriptions of the link's trouble before, between and after its connections."""

from __future__ import annotations

from typing import Any

from gatewise_edge.errors import LinkError
from gatewise_edge.service.troubles import Troubles

NOT_CONNECTED = "broker mqtt://broker is not connected"


class FailingLink:
    """A link that fails in its first attempt to connect."""

    device = "pi-1"
    url = "mqtt://broker"
    trouble = None
    is_ready = False
    connection_number = 0

    def connect(self, timeout_s: float) -> None:
        raise LinkError(self.url, "the broker refused the password")


def test_error_of_the_first_attempt_describes_a_link_that_was_never_connected():
    link: Any = FailingLink()
    troubles = Troubles(link, {})
    assert troubles.by_part()["link"] == NOT_CONNECTED
    troubles.connect_link(1.0)
    assert troubles.by_part()["link"] == "the broker refused the password"


def test_error_of_the_first_attempt_is_not_repeated_after_a_connection():
    link: Any = FailingLink()
    troubles = Troubles(link, {})
    troubles.connect_link(1.0)
    # nobody reads the troubles while the link is connected
    link.connection_number = 1
    assert troubles.by_part()["link"] == NOT_CONNECTED


def test_text_lists_each_trouble_once():
    class FullDisk:
        trouble = "no space"

    troubles = Troubles(None, {"out": FullDisk(), "resume": FullDisk(), "store": None})
    assert str(troubles) == "; no space"
