"""The link in the same process takes and refuses what a worker would."""

from __future__ import annotations

import numpy as np

from gatewise_edge.link import wire
from gatewise_edge.link.link import InProcessLink
from tests.support.small_bundle import cloud_says


def payload(X) -> bytes:
    request = wire.Request(id=bytes(16), model="m", version="1", ttl_ms=9, X=np.float32(X))
    return wire.encode_request(request)


def opened(answer, **settings) -> tuple[InProcessLink, list[wire.Response]]:
    got: list[wire.Response] = []
    link = InProcessLink(answer, **settings)
    link.open(lambda p: got.append(wire.decode_response(p)))
    return link, got


def test_answers_before_send_returns():
    link, got = opened(cloud_says)
    assert link.ready
    assert link.send(payload([[0, 0, 1], [0, 0, -1]]))
    assert got[0].labels.tolist() == [1, 0]
    assert (got[0].model, got[0].version, got[0].error) == ("m", "1", None)


def test_closed_link_sends_nothing():
    link = InProcessLink(cloud_says)
    assert not link.ready
    assert not link.send(payload([[1]]))
    link, got = opened(cloud_says)
    link.close()
    assert not link.ready
    assert not link.send(payload([[1]]))
    assert got == []


def test_errors_are_responses():
    link, got = opened(cloud_says)
    link.send(payload([[np.nan, 0, 0]]))
    link.send(b"junk")
    assert [(r.error, r.model) for r in got] == [("bad-request", "")]
    link, got = opened(lambda X: ([5], [[0.5, 0.5]]))
    link.send(payload([[1]]))
    assert got[0].error == "failed"
    link, got = opened(cloud_says, allow_missing=True)
    link.send(payload([[np.nan, 0, 1]]))
    assert got[0].labels.tolist() == [1]
