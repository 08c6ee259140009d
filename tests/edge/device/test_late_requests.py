"""Instances that could not be offloaded reach the cloud later, over a real broker."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gatewise_edge.device.device import Device
from gatewise_edge.device.late_requests import LateRequests
from gatewise_edge.device.unsent_store import UnsentStore
from gatewise_edge.link import wire
from gatewise_edge.link.mqtt import MqttLink
from gatewise_edge.link.offload_rules import OffloadRules
from tests.support.mqtt_clients import MqttClient
from tests.support.small_bundle import HARD, FakeLink, answer_to, cloud_says
from tests.support.waiting import holds_within, wait_until

EASY = [1.0, 0, 0, 0, 0, 0]


@pytest.fixture
def make_late(tmp_path):
    def make(correct=None, max_bytes=100_000):
        store = UnsentStore(tmp_path / "unsent", max_bytes=max_bytes, max_age=3600)
        return LateRequests(store, correct)

    return make


def record_and_answer(requests):
    def behave(request):
        requests.append(request)
        return [answer_to(request)]

    return behave


@pytest.mark.slow
def test_fallbacks_and_audits_of_an_outage_are_sent_after_it(bundle, broker, make_peer, make_late):
    corrections = []
    link = MqttLink(broker.url)
    late = make_late(corrections.append)
    with Device(bundle, link=link, deadline_ms=5000, audit=1.0, late=late) as device:
        link.connect(60)
        broker.kill()
        wait_until(lambda: not link.ready)
        rows = [[*HARD[:4], x, 0] for x in (-1.0, -2.0, -3.0)]
        fallbacks = [device.answer(row) for row in rows]
        easy = device.answer(EASY)
        assert ({a.reason for a in fallbacks}, easy.route) == ({"link-down"}, "edge")
        wait_until(lambda: device.gauges["unsent"] == 4, "four stored instances")
        counters_before = {**device.counters}
        broker.start()
        requests: list[wire.Request] = []
        make_peer(record_and_answer(requests))
        wait_until(lambda: device.counters["late_sent"] == 4, "late answers")
        counters = device.counters
    # No answer was changed or counted twice.
    assert [counters[route] for route in ("edge", "cloud", "fallback")] == [1, 0, 3]
    assert counters_before["late_kept"] == 4
    assert counters["late_dropped"] == counters["late_lost"] == 0
    # The late requests have the device's answer, the probability 1, and their lateness.
    assert {r.late_s >= 1 for r in requests} == {True}
    audits = {r.id.hex(): r.audit for r in requests}
    for answer in fallbacks:
        audit = audits[answer.request]
        assert (audit.class_index, audit.probability) == (answer.class_index, 1.0)
    assert easy.request == ""
    by_request = {correction["request"]: correction for correction in corrections}
    classes = bundle.manifest.classes
    for answer in fallbacks:
        correction = by_request[answer.request]
        assert correction["answered"] == answer.label
        request = next(r for r in requests if r.id.hex() == answer.request)
        assert correction["label"] == classes[int(cloud_says(request.X)[0][0])]


@pytest.mark.slow
def test_instances_stored_before_a_restart_are_sent_after_it(bundle, broker, make_peer, make_late):
    broker.kill()
    with Device(bundle, link=MqttLink(broker.url), late=make_late()) as device:
        answer = device.answer(HARD)
        wait_until(lambda: device.gauges["unsent"] == 1)
    broker.start()
    requests: list[wire.Request] = []
    make_peer(record_and_answer(requests))
    corrections = []
    with Device(bundle, link=MqttLink(broker.url), late=make_late(corrections.append)) as device:
        wait_until(lambda: device.counters["late_sent"] == 1)
        assert device.gauges["unsent"] == 0
    assert [correction["request"] for correction in corrections] == [answer.request]
    assert len(requests) == 1


@pytest.mark.slow
def test_request_that_workers_refuse_permanently_is_removed_from_the_store(
    bundle, broker, make_peer, make_late
):
    broker.kill()
    link = MqttLink(broker.url)
    rules = OffloadRules(private=True)
    with Device(bundle, link=link, deadline_ms=3000, offloading=rules, late=make_late()) as device:
        device.answer(HARD)
        wait_until(lambda: device.gauges["unsent"] == 1)
        requests: list[wire.Request] = []

        def refuse_late(request):
            requests.append(request)
            if request.late_s:
                return [wire.Response.refusal(request, wire.BAD_REQUEST, "no late requests")]
            return [answer_to(request)]

        broker.start()
        make_peer(refuse_late)
        wait_until(lambda: link.ready)
        assert device.answer(HARD).route == "cloud"
        wait_until(lambda: device.counters["late_refused"] == 1, "the refusal")
        assert device.gauges["unsent"] == 0
    assert all(request.private for request in requests)


def test_late_request_waits_until_no_live_request_is_in_flight(bundle, make_late):
    link = FakeLink(lambda payload, receive: None)  # it answers no request
    with Device(bundle, link=link, deadline_ms=60_000, late=make_late()) as device:
        link.ready = False
        device.answer(HARD)
        wait_until(lambda: device.gauges["unsent"] == 1)
        link.ready = True
        live = device.begin(HARD)
        # The thread checks the link five times in this second.
        assert not holds_within(lambda: device.counters["sent"] > 1, seconds=1.0)
        link.deliver(wire.encode_response(answer_to(wire.decode_request(link.sent[0]))))
        assert device.finish(live).route == "cloud"
        wait_until(lambda: device.counters["sent"] == 2, "the late request")
        assert wire.decode_request(link.sent[1]).late_s >= 1


@pytest.mark.slow
def test_command_publishes_late_answers_on_the_topic_of_corrections(
    bundle, broker, command, make_peer, tmp_path
):
    broker.kill()
    topic = "gw/v1/pi/corrections"
    edge = command(
        "edge", bundle.path, "--broker", broker.url, "--device", "pi", "--keep-unsent",
        tmp_path / "unsent", "--corrections", topic, folder=tmp_path,
    )  # fmt: skip
    edge.process.stdin.write(json.dumps(HARD) + "\n")
    edge.process.stdin.flush()
    line = json.loads(edge.line())
    assert (line["route"], len(line["request"])) == ("fallback", 32)
    broker.start()
    make_peer()
    client = MqttClient(broker.url, topic)
    wait_until(lambda: client.got, "a correction")
    correction = json.loads(client.got[0][1])
    assert correction["request"] == line["request"]
    assert correction["answered"] == line["label"]
    np.testing.assert_allclose(sum(correction["probabilities"]), 1.0, atol=1e-5)
    client.close()
