"""InProcessLink: responses, error codes and closed links."""

from __future__ import annotations

import numpy as np

from gatewise_edge.link import wire
from gatewise_edge.link.encoding import write_map
from gatewise_edge.link.link import InProcessLink
from tests.support.small_bundle import cloud_answers


def encode_request(X) -> bytes:
    request = wire.Request(id=bytes(16), model="m", version="1", ttl_ms=9, X=np.float32(X))
    return wire.encode_request(request)


def open_link(answer) -> tuple[InProcessLink, list[wire.Response]]:
    """Open a link; return it and the list to which it adds responses."""
    responses: list[wire.Response] = []
    link = InProcessLink(answer)
    link.open(lambda payload: responses.append(wire.decode_response(payload)))
    return link, responses


def test_link_answers_before_send_returns():
    link, responses = open_link(cloud_answers)
    assert link.is_ready
    assert link.send(encode_request([[0, 0, 1], [0, 0, -1]]))
    assert responses[0].labels.tolist() == [1, 0]
    assert (responses[0].model, responses[0].version, responses[0].error) == ("m", "1", None)


def test_closed_link_sends_nothing():
    link = InProcessLink(cloud_answers)
    assert not link.is_ready
    assert not link.send(encode_request([[1]]))
    link, responses = open_link(cloud_answers)
    link.close()
    assert not link.is_ready
    assert not link.send(encode_request([[1]]))
    assert responses == []


def test_link_responds_with_error_codes():
    link, responses = open_link(cloud_answers)
    link.send(write_map({"v": 1, "id": bytes(16)}))
    link.send(b"junk")  # gets no response
    assert [(response.error, response.model) for response in responses] == [("bad-request", "")]
    link, responses = open_link(lambda X: ([5], [[0.5, 0.5]]))  # label 5 of two classes
    link.send(encode_request([[1]]))
    assert responses[0].error == "failed"
