"""Topics contain the device id, and invalid names are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise_edge.errors import WireError
from gatewise_edge.link import wire

#: Names without control characters, surrogates and MQTT's special characters, up to 64 bytes.
topic_levels = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="/+#"), min_size=1
).filter(lambda level: len(level.encode()) <= 64)


@given(device=topic_levels)
def test_device_of_reads_the_device_id_from_each_topic(device):
    if device in {"model", "dead"}:  # reserved for other topics
        return
    for make_topic in (wire.request_topic, wire.response_topic, wire.status_topic):
        assert wire.device_of(make_topic(device)) == device
        assert make_topic(device).count("/") <= 7  # AWS IoT Core allows seven slashes


@pytest.mark.parametrize(
    "device",
    ["", "a/b", "a+", "#", "a\0", "a\n", "\x85", "x" * 65, "é" * 33, "model", "dead", "\ud800"],
)
def test_invalid_device_id_is_refused(device):
    with pytest.raises(WireError):
        wire.check_device(device)


@pytest.mark.parametrize("topic", ["gw/v1/model/x/manifest", "gw/v2/a/req", "a", "gw/v1/dead/req"])
def test_topic_without_a_device_is_refused(topic):
    with pytest.raises(WireError):
        wire.device_of(topic)


def test_topics_of_models_dead_letters_and_shared_subscriptions():
    assert wire.manifest_topic("digits") == "gw/v1/model/digits/manifest"
    assert wire.dead_letter_topic("cbor") == "gw/v1/dead/cbor"
    assert wire.shared_subscription("gw") == "$share/gw/gw/v1/+/req"
    assert len(wire.new_id()) == 16  # bytes
    assert wire.new_id() != wire.new_id()
