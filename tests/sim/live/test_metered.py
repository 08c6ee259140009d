import numpy as np
import pytest

from gatewise_edge.link.messages import MAX_SKIPPED, AuditMark, new_id
from gatewise_edge.link.wire import (
    Request,
    Response,
    encode_request,
    encode_response,
    request_topic,
    response_topic,
)
from gatewise_sim.fleet.messages import PUBACK_BYTES, publish_bytes
from gatewise_sim.live.metered import AnswerBox, InstanceTraffic, LiveAnswer, MeteredLink
from tests.support.small_bundle import FakeLink

NAME = "0123abcd"
ANSWER = LiveAnswer(7, 0.0, "cloud", 2, 1, "offloaded", 5.0, 1.0, cost=3.0)


def request(name: bytes) -> bytes:
    X = np.zeros((1, 5), np.float32)
    return encode_request(Request(id=name, model="m", version="1", ttl_ms=500, X=X))


def response(name: bytes, worker_us: int = 700) -> bytes:
    return encode_response(
        Response(
            id=name,
            model="m",
            version="1",
            labels=np.zeros(1, np.int64),
            probabilities=np.full((1, 2), 0.5, np.float32),
            worker_us=worker_us,
        )
    )


def up(payload: bytes) -> tuple[int, int, int, int]:
    return publish_bytes(request_topic(NAME), len(payload)), PUBACK_BYTES, len(payload), 0


def down(payload: bytes) -> tuple[int, int, int, int]:
    return PUBACK_BYTES, publish_bytes(response_topic(NAME), len(payload)), 0, len(payload)


def plus(*weights) -> tuple[int, ...]:
    return tuple(np.sum(weights, axis=0).tolist())


@pytest.fixture
def box() -> AnswerBox:
    return AnswerBox()


def metered(wire: FakeLink, box: AnswerBox, rung: list[str] | None = None) -> MeteredLink:
    bell = [] if rung is None else rung
    return MeteredLink(wire, NAME, box, lambda: bell.append("rung"))


@pytest.fixture
def sending(box):
    """A link whose device is at work on an instance, the wire under it, and the traffic."""
    wire, traffic = FakeLink(lambda *_: None), InstanceTraffic(7)
    link = metered(wire, box)
    link.open(lambda payload: None)
    link.current = traffic
    return link, wire, traffic


def test_each_response_is_booked_to_the_instance_that_asked(box):
    wire, seen, rung = FakeLink(lambda *_: None), [], []
    link = metered(wire, box, rung)
    link.open(seen.append)
    traffics, payloads, replies = [InstanceTraffic(0), InstanceTraffic(1)], [], []
    for traffic in traffics:
        link.current = traffic
        payloads.append(request(new_id()))
        assert link.send(payloads[-1])
    assert link.awaited == 2
    for payload, us in zip(reversed(payloads), (20, 70_000), strict=True):
        replies.append(response(payload[8:24], us))
        wire.deliver(replies[-1])
    assert seen == replies
    assert rung == ["rung", "rung"]
    assert link.awaited == 0
    assert traffics[0].bytes == plus(up(payloads[0]), down(replies[1]))
    assert traffics[1].bytes == plus(up(payloads[1]), down(replies[0]))


def test_a_response_to_an_audit_is_booked_too(sending):
    link, wire, traffic = sending
    name = new_id()
    mark = AuditMark(class_index=60_000, probability=0.02, skipped=MAX_SKIPPED)
    X = np.zeros((1, 5), np.float32)
    asked = Request(id=name, model="m", version="1", ttl_ms=9999, X=X, audit=mark)
    payload, reply = encode_request(asked), response(name)
    link.send(payload)
    wire.deliver(reply)
    assert link.awaited == 0
    assert traffic.bytes == plus(up(payload), down(reply))


def test_a_copy_weighs_as_much_again_and_what_the_link_did_not_take_nothing(sending):
    link, wire, traffic = sending
    payload = request(new_id())
    assert link.send(payload)
    assert link.send(payload)
    wire.takes = False
    assert not link.send(request(new_id()))
    # Nor does what is no response to an instance.
    for strange in (b"", b"\xa0", b"nonsense", response(new_id())):
        wire.deliver(strange)
    assert link.awaited == 2
    assert traffic.bytes == plus(up(payload), up(payload))


def test_what_comes_after_the_outcome_counts_apart(box, sending):
    link, wire, traffic = sending
    payload = request(new_id())
    link.send(payload)
    box.add(ANSWER, traffic)
    late = response(payload[8:24])
    wire.deliver(late)
    answers, more = box.take()
    assert answers == [ANSWER._replace(bytes=up(payload))]
    assert more == [(7, down(late))]
    assert box.take() == ([], [])


def test_the_ids_of_long_ago_are_forgotten(sending):
    link, wire, _ = sending
    payloads = [request(new_id()) for _ in range(300)]
    traffics = []
    for number, payload in enumerate(payloads):
        traffics.append(InstanceTraffic(number))
        link.current = traffics[-1]
        link.send(payload)
    wire.deliver(response(payloads[0][8:24]))
    wire.deliver(response(payloads[-1][8:24]))
    assert traffics[0].bytes[3] == 0
    assert traffics[-1].bytes[3] > 0
