"""Instances that could not be offloaded reach the cloud later, over a real broker."""

from __future__ import annotations

import json
import random
import sqlite3

import numpy as np
import pytest

from gatewise_edge.device.device import Device
from gatewise_edge.device.late_requests import LateRequests
from gatewise_edge.device.unsent_store import UnsentStore
from gatewise_edge.link import wire
from gatewise_edge.link.mqtt_link import MqttLink
from gatewise_edge.link.offload_rules import OffloadRules
from gatewise_export.bundle.manifest_records import MissingSpec
from tests.support.mqtt_clients import MqttClient
from tests.support.processes import run_in_process
from tests.support.small_bundle import HARD_ROW, SURE_ROW, FakeLink, answer_to, cloud_answers
from tests.support.waiting import holds_within, wait_until


@pytest.fixture
def make_late_requests(tmp_path):
    """Function that makes the late requests of a device; all of a test share a store."""

    def make_late_requests(on_correction=None):
        # The bounds are far above the size and the age of the requests of a test.
        store = UnsentStore(tmp_path / "unsent", max_bytes=100_000, max_age_s=3600)
        return LateRequests(store, on_correction)

    return make_late_requests


def make_recorder(requests):
    """Make the answers of a peer: a function that adds each request to `requests`."""

    def answer_request(request):
        requests.append(request)
        return [answer_to(request)]

    return answer_request


@pytest.mark.slow
@pytest.mark.usefixtures("quick_reconnects")
def test_fallbacks_and_audits_of_an_outage_are_sent_after_it(
    bundle, broker, make_peer, make_late_requests
):
    corrections = []
    link = MqttLink(broker.url)
    late_requests = make_late_requests(corrections.append)
    with Device(
        bundle, link=link, deadline_ms=5000, audit=1.0, late_requests=late_requests
    ) as device:
        link.connect(60)
        broker.kill()
        wait_until(lambda: not link.is_ready)
        # Different values of feature e, which only the cloud reads, distinguish the requests.
        rows = [[*HARD_ROW[:4], feature_e, 0] for feature_e in (-1.0, -2.0, -3.0)]
        fallbacks = [device.answer(row) for row in rows]
        edge_answer = device.answer(SURE_ROW)
        assert {answer.reason for answer in fallbacks} == {"link-down"}
        assert edge_answer.route == "edge"
        # Three fallbacks, and the answer of the edge, which is audited.
        wait_until(lambda: device.gauges["unsent"] == 4, "four stored instances")
        assert device.counters["late_kept"] == 4
        broker.start()
        requests: list[wire.Request] = []
        make_peer(make_recorder(requests))
        wait_until(lambda: device.counters["late_sent"] == 4, "late answers")
        counters = device.counters
    # No answer was changed or counted twice.
    assert [counters[route] for route in ("edge", "cloud", "fallback")] == [1, 0, 3]
    assert counters["late_dropped"] == counters["late_lost"] == 0
    # The lateness of a request is rounded up to 1 s because 0 marks a live request.
    assert min(request.late_s for request in requests) >= 1
    request_by_id = {request.id.hex(): request for request in requests}
    assert len(request_by_id) == 4
    correction_by_id = {correction["request"]: correction for correction in corrections}
    for answer in fallbacks:
        request = request_by_id[answer.request]
        check_late_fallback(answer, request, correction_by_id[answer.request], bundle)
    # Nobody waits for a correction of an answer of the edge.
    assert edge_answer.request == ""


def check_late_fallback(answer, request, correction, bundle):
    """Check that the request audits the answer, and that the correction has the cloud's label."""
    assert request.audit.class_index == answer.class_index
    assert request.audit.probability == 1.0
    assert correction["answered"] == answer.label
    cloud_labels, _ = cloud_answers(request.X)
    assert correction["label"] == bundle.manifest.classes[int(cloud_labels[0])]


def test_only_fallbacks_have_corrections(bundle, make_late_requests):
    """An audit of each answer has the probability of a fallback, 1."""
    corrections = []
    link = FakeLink()
    link.is_ready = False
    late_requests = make_late_requests(corrections.append)
    with Device(bundle, link=link, audit=1.0, late_requests=late_requests) as device:
        fallback = device.answer(HARD_ROW)
        assert device.answer(SURE_ROW).route == "edge"
        wait_until(lambda: device.gauges["unsent"] == 2, "two stored instances")
        link.is_ready = True
        wait_until(lambda: device.counters["late_sent"] == 2, "late answers")
    assert [correction["request"] for correction in corrections] == [fallback.request]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_reconnects")
def test_request_that_workers_refuse_permanently_is_removed_from_the_store(
    bundle, broker, make_peer, make_late_requests
):
    """Late requests are private if live ones are."""
    broker.kill()
    link = MqttLink(broker.url)
    rules = OffloadRules(private=True)
    with Device(
        bundle, link=link, deadline_ms=3000, offload_rules=rules, late_requests=make_late_requests()
    ) as device:
        device.answer(HARD_ROW)
        wait_until(lambda: device.gauges["unsent"] == 1)
        requests: list[wire.Request] = []

        def refuse_late(request):
            requests.append(request)
            if request.late_s:
                # BAD_REQUEST is not retryable
                return [wire.Response.refusal(request, wire.BAD_REQUEST, "no late requests")]
            return [answer_to(request)]

        broker.start()
        make_peer(refuse_late)
        wait_until(lambda: link.is_ready)
        assert device.answer(HARD_ROW).route == "cloud"
        wait_until(lambda: device.counters["late_refused"] == 1, "the refusal")
        assert device.gauges["unsent"] == 0
    assert all(request.is_private for request in requests)


@pytest.mark.slow
def test_late_request_waits_until_no_live_request_is_in_flight(bundle, make_late_requests):
    silent_link = FakeLink(lambda payload, receive: None)  # it answers no request by itself
    with Device(
        bundle, link=silent_link, deadline_ms=60_000, late_requests=make_late_requests()
    ) as device:
        silent_link.is_ready = False
        device.answer(HARD_ROW)
        wait_until(lambda: device.gauges["unsent"] == 1)
        silent_link.is_ready = True
        live_instance = device.begin(HARD_ROW)
        # The thread of late requests checks the link every 0.2 s, five times in this second.
        assert not holds_within(lambda: device.counters["sent"] > 1, timeout_s=1.0)
        live_request = wire.decode_request(silent_link.sent_payloads[0])
        silent_link.deliver(wire.encode_response(answer_to(live_request)))
        assert device.finish(live_instance).route == "cloud"
        wait_until(lambda: device.counters["sent"] == 2, "the late request")
        assert wire.decode_request(silent_link.sent_payloads[1]).late_s >= 1


def test_fallback_without_probabilities_is_answered_and_stored(make_bundle, make_late_requests):
    bundle = make_bundle(missing=MissingSpec(stages="allowed", cloud="allowed"))
    link = FakeLink()
    link.is_ready = False
    with Device(bundle, link=link, late_requests=make_late_requests()) as device:
        answer = device.answer([np.nan] * 6)  # margins of missing values are NaN
        assert (answer.route, answer.reason) == ("fallback", "link-down")
        assert np.isnan(answer.probabilities).all()
        wait_until(lambda: device.counters["late_kept"] == 1, "a stored request")


def test_full_disk_is_logged_once(bundle, tmp_path, monkeypatch, caplog):
    def fail(payload: bytes, answered_at: float, *, is_fallback: bool) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    link = FakeLink()
    link.is_ready = False
    store = UnsentStore(tmp_path / "unsent", max_bytes=10**6, max_age_s=60)
    with Device(bundle, link=link, late_requests=LateRequests(store)) as device:
        with monkeypatch.context() as full_disk:
            full_disk.setattr(store, "add", fail)
            for _ in range(3):
                device.answer(HARD_ROW)
            wait_until(lambda: device.counters["late_lost"] == 3, "the losses")
        device.answer(HARD_ROW)
        wait_until(lambda: device.counters["late_kept"] == 1, "a stored request")
    assert caplog.text.count("cannot be stored for a late request: database or disk is full") == 1


def test_requests_of_a_full_store_state_the_probability_of_being_there(bundle, tmp_path):
    silent_link = FakeLink()
    silent_link.is_ready = False
    corrections = []
    store = UnsentStore(tmp_path / "unsent", max_bytes=2000, max_age_s=3600, rng=random.Random(1))
    late_requests = LateRequests(store, corrections.append)
    with Device(
        bundle, link=silent_link, deadline_ms=60_000, late_requests=late_requests
    ) as device:
        while device.counters["late_dropped"] == 0 or device.gauges["unsent"] == 0:
            counts_before = dict(store.counts)
            device.answer(HARD_ROW)
            wait_until(lambda before=counts_before: store.counts != before, "a stored request")
        stored_probability = store.next_request(0).stored_probability
        assert stored_probability < 1
        silent_link.is_ready = True
        n_sent = device.gauges["unsent"]
        wait_until(lambda: device.gauges["unsent"] == 0, "the late requests")
    requests = [wire.decode_request(payload) for payload in silent_link.sent_payloads]
    assert {request.audit.probability for request in requests} == {stored_probability}
    # they are fallbacks, and so have corrections
    assert len(corrections) == len(requests) == n_sent


@pytest.mark.slow
def test_command_publishes_late_answers_on_the_topic_of_corrections(
    bundle, broker, command, make_peer, tmp_path
):
    """It also publishes the answer of an instance that an earlier process stored."""
    broker.kill()
    topic = "gw/v1/pi/corrections"
    settings_path = tmp_path / "edge.toml"
    settings_path.write_text(f'corrections = "{topic}"\n')
    options = (
        "--broker", broker.url, "--device", "pi", "--keep-unsent", tmp_path / "unsent",
        "--settings", settings_path,
    )  # fmt: skip
    line = json.dumps(HARD_ROW) + "\n"
    completed = run_in_process("edge", bundle.path, *options, stdin_text=line)
    stored_line = json.loads(completed.stdout)
    edge_command = command("edge", bundle.path, *options, folder=tmp_path)
    edge_command.write(line)
    answer_line = json.loads(edge_command.read_line())
    assert answer_line["route"] == stored_line["route"] == "fallback"
    assert len(answer_line["request"]) == 32  # an id of 16 bytes in hexadecimal digits
    broker.start()
    make_peer()
    client = MqttClient(broker.url, topic)
    wait_until(lambda: len(client.messages) == 2, "the corrections")
    corrections = [json.loads(payload) for _, payload, _ in client.messages]
    assert {correction["request"] for correction in corrections} == {
        answer_line["request"],
        stored_line["request"],
    }
    assert corrections[0]["answered"] == answer_line["label"]
    # The probabilities are rounded to six decimals.
    np.testing.assert_allclose(sum(corrections[0]["probabilities"]), 1.0, atol=1e-5)
    client.close()
