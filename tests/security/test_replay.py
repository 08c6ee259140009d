"""Tests that valid responses to other requests are refused and counted."""

from __future__ import annotations

import threading

import pytest

from gatewise_edge.device.device import Device
from gatewise_edge.link import wire
from gatewise_edge.link.mqtt_link import MqttLink
from tests.support.small_bundle import HARD_ROW, answer_to
from tests.support.waiting import wait_until


@pytest.fixture
def device(secure_broker, bundle):
    """A connected device."""
    link = MqttLink(
        secure_broker.url, device="pi-1", **secure_broker.broker_folder.client_arguments("pi-1")
    )
    with Device(bundle, link=link, deadline_ms=30_000) as device:
        link.connect(60)  # seconds, for a busy machine
        yield device


def answer_on_thread(device, row):
    """Answer an instance on a thread; return the list that gets the answer, and the thread."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(device.answer(row)))
    thread.start()
    return answers, thread


def test_a_response_counts_only_for_its_request(connect_client, device):
    worker = connect_client("w-1", wire.REQUEST_TOPICS)
    answers, thread = answer_on_thread(device, HARD_ROW)
    topic, payload = worker.get()
    assert topic == "gw/v1/pi-1/req"
    request = wire.decode_request(payload)
    forged_responses = [
        {"id": wire.new_id()},
        {"model": "other"},
        {"version": "8"},
        {"labels": [0, 1], "probabilities": [[0.5, 0.5]] * 2},
    ]
    for forged_response in forged_responses:
        worker.publish(
            "gw/v1/pi-1/rsp", wire.encode_response(answer_to(request, **forged_response))
        )
    wait_until(lambda: device.counters["mismatched"] == 3, "all but the first")
    assert device.counters["unknown"] == 1
    assert answers == []
    true_response = wire.encode_response(answer_to(request))
    worker.publish("gw/v1/pi-1/rsp", true_response)
    thread.join(20)  # seconds, for a busy machine
    assert [(answer.route, answer.class_index) for answer in answers] == [("cloud", 0)]

    # the same response again, before and after the next request
    worker.publish("gw/v1/pi-1/rsp", true_response)
    wait_until(lambda: device.counters["duplicates"] == 1, "the replay")
    answers, thread = answer_on_thread(device, [0.1, 0, 0.1, 0, 1.0, 0])
    _, payload = worker.get()
    worker.publish("gw/v1/pi-1/rsp", true_response)
    wait_until(lambda: device.counters["duplicates"] == 2, "the replay")
    assert answers == []
    response = answer_to(wire.decode_request(payload))
    worker.publish("gw/v1/pi-1/rsp", wire.encode_response(response))
    thread.join(20)
    assert [(answer.route, answer.class_index) for answer in answers] == [("cloud", 1)]
    assert device.counters["answered"] == 2
