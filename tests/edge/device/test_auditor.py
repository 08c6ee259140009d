"""The audits of a device: the requests that it sends, and its counts."""

from __future__ import annotations

import threading
from random import Random

import pytest

from gatewise.errors import InputError
from gatewise_edge.device.audit_sampler import AuditSampler
from gatewise_edge.device.device import Device
from gatewise_edge.link import wire
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.link.offload_rules import OffloadRules
from gatewise_edge.sensors.sensors import Sensors
from tests.support.small_bundle import (
    HARD_ROW,
    NAMES,
    SURE_ROW,
    FakeLink,
    cloud_answers,
    respond,
    sample_rows,
)
from tests.support.waiting import wait_until


class RecordingLink(InProcessLink):
    """A link that records the requests and answers each with class `label`."""

    def __init__(self, label: int) -> None:
        probabilities = [1.0 - label, float(label)]
        super().__init__(lambda X: ([label] * len(X), [probabilities] * len(X)))
        self.requests: list[wire.Request] = []

    def send(self, payload: bytes) -> bool:
        self.requests.append(wire.decode_request(payload))
        return super().send(payload)


def test_audits_have_the_answers_of_the_stages(bundle):
    link = RecordingLink(1)
    with Device(bundle, link=link, audit=1.0) as device:
        answers = [device.answer(row) for row in (SURE_ROW, HARD_ROW, SURE_ROW)]
        gauges = device.gauges
        link.close()  # without a connection nothing is audited
        assert device.answer(SURE_ROW).route == "edge"
        assert device.gauges["audit_instances"] == gauges["audit_instances"] == 3.0
    assert [answer.route for answer in answers] == ["edge", "cloud", "edge"]
    marks = [request.audit for request in link.requests]
    assert marks[1] is None
    assert [(mark.class_index, mark.probability) for mark in marks[::2]] == [(1, 1.0)] * 2
    assert gauges["audit_weighted"] == 0.0
    assert answers[0].cost == 1.5  # the features of the audit are not charged to the answer
    assert gauges["audit_cost"] > 0


def test_share_of_the_answers_is_audited_and_answers_do_not_change(bundle):
    rows = sample_rows(400)
    with Device(bundle, link=InProcessLink(cloud_answers)) as device:
        answers_without_audits = device.answer_many(rows)
        n_offloads = device.counters["sent"]
    with Device(
        bundle, link=InProcessLink(cloud_answers), audit=AuditSampler(0.1, Random(1))
    ) as device:
        answers = device.answer_many(rows)
        n_audits = device.counters["sent"] - n_offloads
    assert [(answer.label, answer.route, answer.cost) for answer in answers] == [
        (answer.label, answer.route, answer.cost) for answer in answers_without_audits
    ]
    n_local = sum(answer.route == "edge" for answer in answers_without_audits)
    # Around the share of 0.1, with its random variation.
    assert 0.03 * n_local < n_audits < 0.25 * n_local


def test_no_instance_waits_for_features_that_only_an_audit_reads(bundle):
    link = RecordingLink(1)
    reads = []
    may_return = threading.Event()

    def read_slowly() -> float:
        reads.append("e")
        may_return.wait(30)
        return 1.0

    sure_sensors = {
        name: lambda cell=cell: cell for name, cell in zip(NAMES, SURE_ROW, strict=True)
    }
    sensors = Sensors(sure_sensors | {"e": read_slowly})
    with Device(bundle, link=link, sensors=sensors, audit=1.0, deadline_ms=5000) as device:
        first_answer = device.answer()
        wait_until(lambda: reads == ["e"])
        later_answers = [device.answer() for _ in range(3)]  # while the sensor blocks
        assert not link.requests
        may_return.set()
        wait_until(lambda: device.gauges["audit_instances"] == 1)
        assert device.gauges["audit_cost"] > 0
    assert {(answer.route, answer.acquired) for answer in (first_answer, *later_answers)} == {
        ("edge", (0, 1))
    }
    assert reads == ["e"]


def test_no_answer_counts_while_features_of_an_audit_are_read(bundle):
    """Offloads alone would dilute the share of disagreements."""
    is_reading = threading.Event()
    may_return = threading.Event()

    def read_slowly() -> float:
        is_reading.set()
        may_return.wait(30)
        return 1.0

    sure_sensors = {
        name: lambda cell=cell: cell for name, cell in zip(NAMES, SURE_ROW, strict=True)
    }
    sensors = Sensors(sure_sensors | {"e": read_slowly})
    link = RecordingLink(0)
    with Device(bundle, link=link, sensors=sensors, audit=1.0, deadline_ms=5000) as device:
        device.answer()
        wait_until(is_reading.is_set)
        assert device.answer(HARD_ROW).route == "cloud"
        assert device.gauges["audit_instances"] == 0
        may_return.set()
        wait_until(lambda: device.gauges["audit_instances"] == 1)
        assert device.gauges["audit_weighted"] == 1


def test_nothing_is_acquired_or_sent_for_an_audit_while_the_cloud_is_silent(bundle):
    link = FakeLink(lambda payload, receive: None)
    row = list(HARD_ROW)
    reads = []
    sensor_functions = {
        name: lambda position=position: row[position] for position, name in enumerate(NAMES)
    }
    sensors = Sensors(sensor_functions | {"e": lambda: reads.append("e") or 1.0})
    with Device(bundle, link=link, sensors=sensors, audit=1.0, deadline_ms=250) as device:
        while not device.gauges["breaker_open"]:
            assert device.answer().route == "fallback"
        n_sent = len(link.sent_payloads)
        row[:] = SURE_ROW
        reads.clear()
        assert {device.answer().route for _ in range(20)} == {"edge"}
        assert (len(link.sent_payloads), reads) == (n_sent, [])
        assert device.gauges["audit_cost"] == 0
        assert device.gauges["audit_instances"] == 0


def test_audits_in_flight_do_not_count_against_the_bound_on_requests(bundle):
    link = FakeLink(lambda payload, receive: None)
    with Device(
        bundle, link=link, offload_rules=OffloadRules(max_in_flight=1), audit=1.0
    ) as device:
        for _ in range(6):
            device.answer(SURE_ROW)
        assert len(link.sent_payloads) == 4  # the largest number of audits in flight
        link.handle_payload = respond
        assert device.answer(HARD_ROW).route == "cloud"


def test_sampler_that_fails_ends_no_answer(bundle, caplog):
    class FaultySampler(AuditSampler):
        def choose(self, *_: object) -> None:
            raise ValueError("a bug in the sampler")

    with Device(bundle, link=RecordingLink(1), audit=FaultySampler(1.0)) as device:
        assert device.answer(SURE_ROW).route == "edge"
    assert "a bug in the sampler" in caplog.text


def test_audit_needs_a_link_and_a_share_up_to_1(bundle):
    for options, message in (({"audit": 0}, "audit"), ({"audit": 1.1}, "audit")):
        with pytest.raises(InputError, match=message):
            Device(bundle, link=RecordingLink(1), **options)
    with pytest.raises(InputError, match="link"):
        Device(bundle, audit=1.0)


def test_weighted_disagreements_estimate_those_of_all_instances(bundle):
    with Device(bundle, link=RecordingLink(0), audit=AuditSampler(0.5, Random(0))) as device:
        for _ in range(200):
            device.answer(SURE_ROW)
        gauges = device.gauges
    # The cloud disagrees with each of the 200 answers. The estimates vary because half are audited.
    assert gauges["audit_instances"] == pytest.approx(200, rel=0.2)
    assert gauges["audit_weighted"] == pytest.approx(200, rel=0.2)
