"""Responses and requests that are real, but not for here and now: refused and counted."""

from __future__ import annotations

import threading

import pytest

from gatewise_cloud.worker.worker import Worker
from gatewise_edge.device.device import Device
from gatewise_edge.link import wire
from gatewise_edge.link.mqtt import MqttLink


@pytest.fixture
def device(secure, bundle):
    link = MqttLink(secure.url, device="pi-1", **secure.made.client("pi-1"))
    with Device(bundle, link=link, deadline_ms=30_000) as device:
        link.connect(60)
        yield device


def ask(device, row):
    """Ask on a thread of its own: the answer comes into the list."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(device.answer(row)))
    thread.start()
    return answers, thread


def test_a_response_counts_only_for_its_request(enter, device, tools):
    """What a worker that lies, or a broker's stranger with its key, may try."""
    worker = enter("w-1", wire.REQUESTS)
    answers, thread = ask(device, tools.HARD)
    topic, payload = worker.get()
    assert topic == "gw/v1/pi-1/req"
    request = wire.decode_request(payload)
    lies = [
        {"id": wire.new_id()},
        {"model": "other"},
        {"version": "8"},
        {"labels": [0, 1], "probabilities": [[0.5, 0.5]] * 2},
    ]
    for lie in lies:
        worker.publish("gw/v1/pi-1/rsp", wire.encode_response(tools.answer_to(request, **lie)))
    tools.until(lambda: device.counters["mismatched"] == 3, "the lies")
    assert device.counters["unknown"] == 1
    assert answers == []
    true = wire.encode_response(tools.answer_to(request))
    worker.publish("gw/v1/pi-1/rsp", true)
    thread.join(20)
    assert [(a.route, a.class_index) for a in answers] == [("cloud", 0)]

    # The same response again, and again while the next request is out.
    worker.publish("gw/v1/pi-1/rsp", true)
    tools.until(lambda: device.counters["duplicates"] == 1, "the replay")
    answers, thread = ask(device, [0.1, 0, 0.1, 0, 1.0, 0])
    _, payload = worker.get()
    worker.publish("gw/v1/pi-1/rsp", true)
    tools.until(lambda: device.counters["duplicates"] == 2, "the replay")
    assert answers == []
    response = tools.answer_to(wire.decode_request(payload))
    worker.publish("gw/v1/pi-1/rsp", wire.encode_response(response))
    thread.join(20)
    assert [(a.route, a.class_index) for a in answers] == [("cloud", 1)]
    assert device.counters["answered"] == 2


def test_another_devices_request_and_response_stay_its_own(secure, enter, device, tools):
    """A device that forges answers is stopped by the broker, not by luck."""
    worker, thief = enter("w-1", wire.REQUESTS), enter("pi-2")
    answers, thread = ask(device, tools.HARD)
    _, payload = worker.get()
    request = wire.decode_request(payload)
    wrong = wire.encode_response(tools.answer_to(request, labels=[1]))
    thief.publish("gw/v1/pi-1/rsp", wrong)
    secure.wait_for_line(r"Denied PUBLISH from pi-2 .*'gw/v1/pi-1/rsp'")
    worker.publish("gw/v1/pi-1/rsp", wire.encode_response(tools.answer_to(request)))
    thread.join(20)
    assert [(a.route, a.class_index) for a in answers] == [("cloud", 0)]
    counters = device.counters
    assert sum(counters[n] for n in ("duplicates", "unknown", "mismatched", "invalid")) == 0


def test_a_retained_request_is_dead_and_a_replayed_one_answered_from_memory(
    secure, enter, bundle, tools
):
    boss = enter("boss", "gw/v1/dead/+")
    sender = enter("pi-1", "gw/v1/pi-1/rsp")
    X = [[0.1, 0.1, -1.0]]
    request = wire.Request(id=wire.new_id(), model="small", version="7", ttl_ms=30_000, X=X)
    payload = wire.encode_request(request)
    sender.publish("gw/v1/pi-1/req", payload, retain=True)
    with Worker(bundle, secure.url, shared=False, **secure.made.client("w-1")) as worker:
        assert boss.get() == ("gw/v1/dead/retained", payload)
        responses = []
        for _ in range(2):
            sender.publish("gw/v1/pi-1/req", payload)
            responses.append(sender.get()[1])
        tools.until(lambda: worker.counters["received"] == 3, "three requests")
        counters = worker.counters
    assert responses[0] == responses[1]
    assert counters["dead"] == {"retained": 1}
    assert (counters["answered"], counters["repeated"]) == (1, 1)


def test_a_request_whose_time_is_over_is_dropped_and_counted(secure, enter, bundle, tools):
    sender = enter("pi-1", "gw/v1/pi-1/rsp")

    def ask(ttl_ms):
        X = [[0.1, 0.1, -1.0]]
        request = wire.Request(id=wire.new_id(), model="small", version="7", ttl_ms=ttl_ms, X=X)
        sender.publish("gw/v1/pi-1/req", wire.encode_request(request))
        return request.id

    with Worker(bundle, secure.url, **secure.made.worker("w-1")) as worker:
        for _ in range(20):
            ask(0)
            # One at a time: whichever thread of the worker takes it up.
            kept = ask(30_000)
            assert wire.decode_response(sender.get()[1]).id == kept
        tools.until(lambda: worker.counters["expired"] == 20, "all that expired")
        assert worker.counters["answered"] == 20
