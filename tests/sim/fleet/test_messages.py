"""Bytes of a message on the wire."""

from hypothesis import given
from hypothesis import strategies as st

from gatewise_sim.fleet.messages import publish_bytes


@given(st.integers(0, 40), st.integers(0, 200_000))
def test_publish_bytes_is_what_paho_would_write(topic, payload):
    name = "t" * topic
    rest = 2 + len(name) + 2 + payload
    length, value = 0, rest
    while True:  # the variable-length integer of MQTT 3.1.1, section 2.2.3
        length += 1
        value //= 128
        if not value:
            break
    assert publish_bytes(name, payload) == 1 + length + rest
