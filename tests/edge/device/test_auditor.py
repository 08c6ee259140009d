"""A device audits its own answers: what is sent, what is counted, what an alarm does."""

from __future__ import annotations

import threading
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.device.auditor import Audit, disagreement_bound, safer_point
from gatewise_edge.device.device import Device
from gatewise_edge.link import wire
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.sensors.sensors import Sensors
from tests.support.small_bundle import NAMES, FakeLink, cloud_says, respond, sample_rows
from tests.support.waiting import wait_until

EASY = [1.0, 0, 0, 0, 0, 0]  # stage 0 is sure: yes
HARD = [0.1, 0, 0.1, 0, -1.0, 0]  # goes to the cloud
ALL = Audit(share=1.0, bound=0.05)


class RecordingLink(InProcessLink):
    """Keeps the requests; answers each with class `label`."""

    def __init__(self, label: int) -> None:
        p = [1.0 - label, float(label)]
        super().__init__(lambda X: ([label] * len(X), [p] * len(X)))
        self.requests: list[wire.Request] = []

    def send(self, payload: bytes) -> bool:
        self.requests.append(wire.decode_request(payload))
        return super().send(payload)


def test_answers_of_stages_are_sent_with_what_was_answered(bundle):
    link = RecordingLink(1)
    with Device(bundle, link=link, audit=ALL, seed=0) as device:
        first, second, third = (device.answer(row) for row in (EASY, HARD, EASY))
        counters, gauges = device.counters, device.gauges
    assert (first.route, second.route, third.route) == ("edge", "cloud", "edge")
    marks = [request.audit for request in link.requests]
    assert marks[1] is None
    assert [(m.class_index, m.probability) for m in (marks[0], marks[2])] == [(1, 1.0), (1, 1.0)]
    assert [m.skipped for m in (marks[0], marks[2])] == [0, 1]
    assert (counters["audits"], counters["audits_disagreed"]) == (2, 0)
    assert counters["edge"] == 2
    assert first.cost == 1.5  # the audit's features are not the answer's
    assert gauges["audit_cost"] > 0
    assert gauges["audit_alarm"] == 0


def test_a_share_is_audited_and_answers_stay_the_same(bundle):
    rows = sample_rows(400)
    with Device(bundle, link=InProcessLink(cloud_says)) as device:
        plain = device.answer_many(rows)
    audit = Audit(share=0.1, bound=0.5)
    with Device(bundle, link=InProcessLink(cloud_says), audit=audit, seed=1) as device:
        audited = device.answer_many(rows)
        counters = device.counters
    assert [(a.label, a.route, a.cost) for a in plain] == [
        (a.label, a.route, a.cost) for a in audited
    ]
    local = sum(a.route == "edge" for a in plain)
    assert 0.03 * local < counters["audits"] < 0.25 * local


def test_without_a_link_up_nothing_is_evidence(bundle):
    link = RecordingLink(1)
    with Device(bundle, link=link, audit=ALL, seed=0) as device:
        link.close()
        assert device.answer(EASY).route == "edge"
        assert device.counters["audits"] == 0
        assert device.gauges["audit_evidence"] == 1.0


def test_features_for_an_audit_alone_keep_no_instance_waiting(bundle):
    link, reads, release = RecordingLink(1), [], threading.Event()

    def blocks() -> float:
        reads.append("e")
        release.wait(30)
        return 1.0

    easy = {name: lambda v=v: v for name, v in zip(NAMES, EASY, strict=True)}
    sensors = Sensors(easy | {"e": blocks})
    with Device(bundle, link=link, sensors=sensors, audit=ALL, deadline_ms=5000) as device:
        first = device.answer()
        wait_until(lambda: reads == ["e"])
        others = [device.answer() for _ in range(3)]  # while the sensor blocks
        assert not link.requests
        release.set()
        wait_until(lambda: device.counters["audits"] == 1)
        assert device.gauges["audit_cost"] > 0
    assert {(a.route, a.acquired) for a in (first, *others)} == {("edge", (0, 1))}
    assert reads == ["e"]


def test_nothing_is_acquired_or_sent_for_an_audit_while_the_cloud_is_silent(bundle):
    link, row, reads = FakeLink(lambda payload, receive: None), list(HARD), []
    sensed = {name: lambda k=k: row[k] for k, name in enumerate(NAMES)}
    sensors = Sensors(sensed | {"e": lambda: reads.append("e") or 1.0})
    with Device(bundle, link=link, sensors=sensors, audit=ALL, deadline_ms=20) as device:
        while not device.gauges["breaker_open"]:
            assert device.answer().route == "fallback"
        sent, row[:] = len(link.sent), EASY
        reads.clear()
        assert {device.answer().route for _ in range(20)} == {"edge"}
        assert (len(link.sent), reads) == (sent, [])
        assert device.gauges["audit_cost"] == 0
        assert device.gauges["audit_instances"] == 0  # none of them is evidence


def test_audits_that_are_out_take_no_place_of_requests(bundle):
    link = FakeLink(lambda payload, receive: None)
    with Device(bundle, link=link, outstanding=1, audit=ALL) as device:
        for _ in range(6):
            device.answer(EASY)
        assert len(link.sent) == 4  # audits at a time
        link.behave = respond
        assert device.answer(HARD).route == "cloud"


def test_an_alarm_is_reported_once_and_changes_nothing_by_default(bundle, caplog):
    with Device(bundle, link=RecordingLink(0), audit=ALL, seed=0) as device:
        routes = {device.answer(EASY).route for _ in range(60)}
        assert device.gauges["audit_alarm"] == 1
        assert device.counters["audits_disagreed"] == 60
    assert routes == {"edge"}
    assert sum("audit" in record.message for record in caplog.records) == 1


def test_an_alarm_may_offload_every_instance_until_another_version_comes(bundle):
    audit = replace(ALL, action="offload")
    with Device(bundle, link=RecordingLink(0), audit=audit, seed=0) as device:
        first, *_, last = (device.answer(EASY) for _ in range(60))
        assert first.route == "edge"
        assert (last.route, last.reason, last.label) == ("cloud", "audit", "no")
        device.adopt(bundle)
        assert device.answer(EASY).route == "edge"


def test_offloading_all_still_answers_without_a_cloud(bundle):
    link = RecordingLink(0)
    with Device(bundle, link=link, audit=replace(ALL, action="offload"), seed=0) as device:
        for _ in range(60):
            device.answer(EASY)
        link.close()
        answer = device.answer(EASY)
    assert (answer.route, answer.reason, answer.label) == ("fallback", "link-down", "yes")


def points_of(bundle, *agreements):
    """The small bundle's manifest with an operating point for each agreement, costs rising."""
    point = bundle.manifest.operating_points[0]
    return tuple(
        msgspec.structs.replace(point, agreement=a, cost=float(i)) for i, a in enumerate(agreements)
    )


def test_an_alarm_may_move_to_a_safer_point(bundle, make_bundle):
    safer = msgspec.structs.replace(bundle.manifest.operating_points[1], agreement=0.999, cost=7.0)
    points = (msgspec.structs.replace(bundle.manifest.operating_points[0], agreement=0.9), safer)
    made = make_bundle(operating_points=points)
    audit = Audit(share=1.0, action="safer")
    with Device(made, link=RecordingLink(0), audit=audit, seed=0) as device:
        assert device.bundle.manifest.active == 0
        for _ in range(1000):  # the alarm itself is over with the point that raised it
            device.answer(EASY)
            if device.bundle.manifest.active == 1:
                break
        wait_until(lambda: device.bundle.manifest.active == 1)
        assert device.gauges["audit_alarm"] == 0  # the safer point has a bound of its own


def test_an_alarm_of_a_bundle_that_was_replaced_moves_no_other(bundle, make_bundle):
    safer = msgspec.structs.replace(bundle.manifest.operating_points[1], agreement=0.999, cost=7.0)
    points = (msgspec.structs.replace(bundle.manifest.operating_points[0], agreement=0.9), safer)
    made, audit = make_bundle(operating_points=points), Audit(share=1.0, action="safer")
    with Device(made, link=RecordingLink(0), audit=audit, seed=0) as device:
        old = device._active.installed.auditor
        device.adopt(made)
        new = device._active.installed
        other = {"labels": np.array([0]), "probabilities": np.array([[1.0, 0.0]])}
        response = wire.Response(id=bytes(16), model="small", version="7", **other)
        while not old.test.alarm:  # responses to what was sent before
            old.compare(wire.AuditMark(1, 1.0, 0), response)
        for thread in threading.enumerate():
            if "_move_to_safer_point" in thread.name:
                thread.join()
        assert device._active.installed is new
        assert not new.auditor.offload_all


def test_the_safer_point_is_the_cheapest_that_disagrees_half_as_often(bundle):
    manifest = msgspec.structs.replace(
        bundle.manifest, operating_points=points_of(bundle, 0.98, 0.985, 0.991, 1.0)
    )
    assert safer_point(manifest) == 2
    certified = msgspec.structs.replace(manifest.operating_points[3], guarantee={"bound": 0.01})
    manifest = msgspec.structs.replace(
        manifest, operating_points=(*manifest.operating_points[:3], certified)
    )
    assert safer_point(manifest) == 3
    assert safer_point(msgspec.structs.replace(manifest, active=3)) is None


def test_the_bound_is_a_point_above_what_validation_rows_showed(bundle):
    manifest = msgspec.structs.replace(bundle.manifest, operating_points=points_of(bundle, 0.98))
    assert disagreement_bound(manifest) == pytest.approx(0.03)
    assert disagreement_bound(bundle.manifest) is None
    with pytest.raises(InputError, match="bound"):
        Device(bundle, link=RecordingLink(1), audit=Audit())


@pytest.mark.parametrize(
    "wrong", [{"share": 0}, {"bound": 1.0}, {"level": 0}, {"action": "stop"}], ids=str
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InputError, match="audit"):
        Audit(**wrong)


def test_an_audit_needs_a_link(bundle):
    with pytest.raises(InputError, match="link"):
        Device(bundle, audit=ALL)


def test_the_mark_travels():
    request = wire.Request(
        id=bytes(16), model="m", version="1", ttl_ms=5, X=np.ones((1, 2)),
        audit=wire.AuditMark(3, 0.12, 77),
    )  # fmt: skip
    back = wire.decode_request(wire.encode_request(request)).audit
    assert back == wire.AuditMark(3, 0.12, 77)
