"""Every instance gets exactly one answer in time, at the cost of its acquired features."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from gatewise.costs import request_bytes
from gatewise.errors import InputError
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import Pending
from gatewise_edge.errors import SensorError
from gatewise_edge.link import wire
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.link.offload_rules import OffloadRules
from gatewise_edge.sensors.sensors import Sensors
from gatewise_export.bundle.manifest_records import MissingSpec
from tests.edge.virtual_time import Clock, answer_in_virtual_time
from tests.support.small_bundle import FakeLink, answer_sample, answer_to, cloud_says, respond
from tests.support.waiting import wait_until

EASY = [1.0, 0, 0, 0, 0, 0]  # stage 0 is sure and answers yes
LATER = [0.1, 0, -1.0, 0, 0, 0]  # stage 1 is sure and answers no
HARD = [0.1, 0, 0.1, 0, -1.0, 0]  # no stage is sure; stage 1 tends to yes, the cloud answers no
NAN = float("nan")
OFFLOAD = 0.25 + 0.5 + 0.001 * request_bytes(3)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def routes(device: Device) -> dict[str, int]:
    return {k: device.counters[k] for k in ("edge", "cloud", "fallback", "errors")}


def test_answer_comes_from_the_edge_the_cloud_or_as_a_fallback(bundle):
    with Device(bundle, link=InProcessLink(cloud_says)) as device:
        first, second, third = (device.answer(row) for row in (EASY, LATER, HARD))
        assert routes(device) == {"edge": 2, "cloud": 1, "fallback": 0, "errors": 0}
    assert (first.label, first.class_index, first.route, first.stage) == ("yes", 1, "edge", 0)
    assert (first.reason, first.acquired, first.cost) == ("stopped", (0, 1), 1.5)
    assert (second.label, second.route, second.stage) == ("no", "edge", 1)
    assert (second.acquired, second.cost) == ((0, 1, 2), 13.5)
    assert (third.label, third.route, third.stage) == ("no", "cloud", 2)
    assert (third.reason, third.acquired) == ("offloaded", (0, 1, 2, 4))
    assert (third.feature_cost, third.cost) == (17.5, 17.5 + OFFLOAD)
    np.testing.assert_allclose(third.probabilities, [1 / (1 + np.exp(-10)), 4.54e-5], rtol=1e-3)
    assert 0 < third.latency_ms < 500


def test_rows_may_be_tables_series_and_mappings_by_name(bundle):
    with Device(bundle) as device:
        names = list(device.bundle.manifest.feature_names)
        frame = pd.DataFrame([EASY, LATER], columns=names)
        expected = [(a.label, a.acquired) for a in device.answer_many([EASY, LATER])]
        reversed_frame = frame[names[::-1]]
        unnamed_frame = frame.set_axis(range(len(names)), axis=1)
        for rows in (reversed_frame, reversed_frame.to_dict("records"), unnamed_frame):
            assert [(a.label, a.acquired) for a in device.answer_many(rows)] == expected
        for row in (reversed_frame.iloc[0], dict(reversed_frame.iloc[0]), pd.Series(EASY)):
            assert device.answer(row).label == expected[0][0]
        partial_row = dict(zip(names[:2], EASY, strict=False))
        assert device.answer(partial_row).label == expected[0][0]
        with pytest.raises(InputError, match="none of the features, such as"):
            device.answer({"foo": 1.0})


def test_device_gives_the_answers_of_the_bundles_sample(bundle):
    for point in (0, 1):
        with Device(bundle.with_active(point), link=InProcessLink(cloud_says)) as device:
            answer_sample(device)


@pytest.mark.parametrize(
    ("state", "reason", "cost"), [("none", "no-link", 13.5), ("down", "link-down", 13.5),
                                  ("full", "unsent", 17.5)]
)  # fmt: skip
def test_last_stage_answers_if_no_request_can_be_sent(bundle, state, reason, cost):
    """The cloud's feature e is acquired only if a request is tried; no offload is charged."""
    link = None if state == "none" else FakeLink()
    if link is not None:
        link.ready, link.takes = state != "down", False
    with Device(bundle, link=link) as device:
        answer = device.answer(HARD)
        assert (device.counters["unsent"], device.counters["bytes_up"]) == (state == "full", 0)
    assert (answer.label, answer.route, answer.stage) == ("yes", "fallback", 1)
    assert (answer.reason, answer.cost) == (reason, cost)


@pytest.mark.parametrize(
    ("policy", "has_link", "row", "expected"),
    [
        ("edge-only", True, HARD, ("yes", "edge", "edge-only", (0, 1, 2), 13.5)),
        ("cloud-only", True, EASY, ("no", "cloud", "cloud-only", (0, 2, 4), 17.0 + OFFLOAD)),
        ("cloud-only", False, EASY, ("yes", "fallback", "no-link", (0, 1), 1.5)),
    ],
)
def test_policies_edge_only_and_cloud_only(bundle, policy, has_link, row, expected):
    link = InProcessLink(cloud_says) if has_link else None
    with Device(bundle, link=link, policy=policy) as device:
        answer = device.answer(row)
    assert (answer.label, answer.route, answer.reason, answer.acquired, answer.cost) == expected


def test_instance_falls_back_at_its_deadline_when_the_cloud_is_silent(bundle, clock):
    link = FakeLink(lambda payload, receive: None)
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        answer = answer_in_virtual_time(device, clock)
        counters = device.counters
    assert (answer.label, answer.route, answer.reason) == ("yes", "fallback", "timeout")
    assert answer.latency_ms == pytest.approx(95.0)
    # The request was sent twice with the same bytes.
    assert len(link.sent) == 2
    assert link.sent[0] == link.sent[1]
    assert (counters["sent"], counters["retries"], counters["timeouts"]) == (1, 1, 1)
    assert counters["bytes_up"] == 2 * len(link.sent[0])
    assert answer.cost == pytest.approx(17.5 + 0.25 + 0.001 * request_bytes(3))


def test_second_answer_to_a_retried_request_is_a_duplicate(bundle, clock):
    payloads: list[bytes] = []

    def respond_twice_to_retry(payload, receive):
        payloads.append(payload)
        if len(payloads) == 2:
            respond(payload, receive)
            respond(payload, receive)

    link = FakeLink(respond_twice_to_retry)
    with Device(bundle, link=link, deadline_ms=200, clock=clock) as device:
        answer = answer_in_virtual_time(device, clock)
        counters = device.counters
    assert (answer.label, answer.route) == ("no", "cloud")
    assert answer.latency_ms == pytest.approx(195 / 2)
    assert answer.cost == 17.5 + OFFLOAD
    assert (counters["answered"], counters["duplicates"], counters["retries"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("changes", "counter"),
    [
        ({"version": "8"}, "mismatched"),
        ({"model": "other"}, "mismatched"),
        ({"labels": [0, 0], "probabilities": [[0.5, 0.5]] * 2}, "mismatched"),
        ({"id": bytes(16)}, "unknown"),
    ],
)
def test_response_of_another_request_is_not_used(bundle, clock, changes, counter):
    def respond_wrongly(payload, receive):
        request = wire.decode_request(payload)
        receive(wire.encode_response(answer_to(request, **changes)))

    with Device(bundle, link=FakeLink(respond_wrongly), clock=clock) as device:
        answer = answer_in_virtual_time(device, clock)
        assert device.counters[counter] == 2
    assert (answer.route, answer.reason) == ("fallback", "timeout")


def test_malformed_responses_and_other_classes_are_not_used(bundle):
    def respond_with_noise(payload, receive):
        for noise in (b"", b"\xff\x00", payload):
            receive(noise)
        request = wire.decode_request(payload)
        three_classes = answer_to(request, labels=[2], probabilities=[[0, 0, 1]])
        receive(wire.encode_response(three_classes))

    with Device(bundle, link=FakeLink(respond_with_noise)) as device:
        assert device.answer(HARD).reason == "cloud:classes"
        assert device.counters["invalid"] == 3


@pytest.mark.parametrize(("code", "n_sent"), [("busy", 2), ("no-model", 2), ("failed", 1)])
def test_error_of_the_cloud_gives_a_fallback_with_its_code(bundle, clock, caplog, code, n_sent):
    def refuse(payload, receive):
        refusal = wire.Response.refusal(wire.decode_request(payload), code)
        receive(wire.encode_response(refusal))

    link = FakeLink(refuse)
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        answer = answer_in_virtual_time(device, clock)
    assert (answer.route, answer.reason) == ("fallback", f"cloud:{code}")
    assert len(link.sent) == n_sent
    assert answer.latency_ms == pytest.approx(95 / 4 if n_sent == 2 else 0.0)
    # It is logged once, although the request was refused twice.
    assert caplog.text.count("no worker serves small 7") == (code == "no-model")


def test_missing_model_is_logged_only_when_no_worker_has_it(bundle, clock, caplog):
    def refuse_first_copy(payload, receive):
        request = wire.decode_request(payload)
        refusal = wire.Response.refusal(request, "no-model")
        receive(wire.encode_response(refusal if len(link.sent) == 1 else answer_to(request)))

    link = FakeLink(refuse_first_copy)
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        answer = answer_in_virtual_time(device, clock)
    assert (answer.route, len(link.sent)) == ("cloud", 2)
    assert "no worker serves" not in caplog.text


def test_bundle_without_a_cloud_answers_on_the_device(make_bundle):
    with Device(make_bundle(cloud=False)) as device:
        answer = device.answer(HARD)
    assert (answer.label, answer.route, answer.stage) == ("yes", "edge", 1)


MISSING_A = [NAN, 0, 1.0, 0, 1.0, 0]
MISSING_C = [0.1, 0, NAN, 0, 1.0, 0]
MISSING_E = [0.1, 0, 0.1, 0, NAN, 0]


def allowing(make_bundle, stages: str, cloud: str):
    return make_bundle(f"{stages}-{cloud}", missing=MissingSpec(stages, cloud))


def test_missing_value_that_no_model_allows_ends_the_stages(bundle):
    with Device(bundle, link=InProcessLink(cloud_says)) as device:
        with pytest.raises(SensorError, match="column 'a' is missing"):
            device.answer(MISSING_A)
        later = device.answer(MISSING_C)
        last = device.answer(MISSING_E)
        assert routes(device) == {"edge": 0, "cloud": 0, "fallback": 2, "errors": 1}
    assert (later.route, later.reason, later.stage) == ("fallback", "missing:c", 0)
    assert later.cost == 13.5  # c was read and is charged
    assert (last.route, last.reason, last.stage) == ("fallback", "missing:e", 1)
    assert last.cost == 17.5


def test_missing_value_that_only_the_cloud_allows_is_offloaded(make_bundle):
    bundle = allowing(make_bundle, "refused", "allowed")
    link = InProcessLink(lambda X: cloud_says(np.nan_to_num(X)), allow_missing=True)
    with Device(bundle, link=link) as device:
        answers = [device.answer(row) for row in (MISSING_A, MISSING_C, MISSING_E)]
    assert [a.route for a in answers] == ["cloud"] * 3
    assert [a.reason for a in answers] == ["missing", "missing", "offloaded"]
    with Device(bundle) as device_without_link:
        with pytest.raises(SensorError):
            device_without_link.answer(MISSING_A)
        assert device_without_link.answer(MISSING_C).stage == 0


def test_stages_that_allow_a_missing_value_run_with_it(make_bundle):
    bundle = allowing(make_bundle, "allowed", "refused")
    with Device(bundle, link=InProcessLink(cloud_says)) as device:
        # With a NaN the margin of stage 0 is NaN, so that it does not stop; stage 1 is sure.
        answer = device.answer(MISSING_A)
        assert (answer.route, answer.stage, answer.label) == ("edge", 1, "yes")
        # No stage is sure, and the cloud does not allow NaN.
        answer = device.answer(MISSING_C)
        assert (answer.route, answer.reason) == ("fallback", "missing:c")


def test_infinite_value_is_refused_by_stages_and_cloud(make_bundle):
    bundle = allowing(make_bundle, "allowed", "allowed")
    with Device(bundle, link=InProcessLink(cloud_says)) as device:
        with pytest.raises(SensorError, match="'a' is infinite"):
            device.answer([np.inf, 0, 0, 0, 0, 0])
        answer = device.answer([0, 0, -np.inf, 0, 0, 0])
        assert (answer.route, answer.reason, answer.stage) == ("fallback", "infinite:c", 0)
        answer = device.answer([0, 0, 0, 0, 1e300, 0])
        assert (answer.route, answer.reason, answer.stage) == ("fallback", "infinite:e", 1)
        # Features that are not acquired are not checked.
        assert device.answer([1, 0, np.inf, np.inf, np.inf, np.inf]).route == "edge"


def test_sensors_are_read_only_as_far_as_needed(bundle):
    reads: list[str] = []

    def sensor(name, value):
        return lambda: reads.append(name) or value

    sensors = Sensors(
        {n: sensor(n, v) for n, v in zip("abe", [1.0, 0.0, 1.0], strict=True)},
        groups={"blood": sensor("blood", [0.0, 0.0])},
    )
    with Device(bundle, link=InProcessLink(cloud_says), sensors=sensors) as device:
        assert device.answer().route == "edge"
        assert reads == ["a", "b"]
        reads.clear()
        assert device.answer(HARD).route == "cloud"
        assert reads == []


def test_blocking_sensor_does_not_delay_the_answer_past_its_deadline(bundle):
    gate = threading.Event()
    sensors = Sensors({"a": lambda: 0.1, "b": lambda: 0.0, "c": lambda: float(gate.wait(60))})
    with Device(bundle, sensors=sensors, deadline_ms=60) as device:
        started = time.monotonic()
        answer = device.answer()
        assert time.monotonic() - started < 30
        assert (answer.route, answer.reason, answer.stage) == ("fallback", "sensor-late:c", 0)
        assert answer.cost == 1.5
        # The sensor still blocks, but the first stage has its features.
        for _ in range(3):
            answer = device.answer()
            assert (answer.route, answer.reason) == ("fallback", "sensor-late:c")
        gate.set()
        wait_until(lambda: not sensors.hung, "the sensor", 60)
        assert device.answer().stage == 1


def test_settings_are_checked(bundle, make_bundle):
    for settings in (
        {"deadline_ms": 0},
        {"deadline_ms": NAN},
        {"deadline_ms": "1"},
        {"policy": "cloud"},
        {"sensors": Sensors({"a": lambda: 1.0})},
        {"sensors": Sensors({"pulse": lambda: 1.0})},
    ):
        with pytest.raises(InputError):
            Device(bundle, **settings)
    for rules in ({"outstanding": 0}, {"max_offloads": "60"}, {"implausible": "never"}):
        with pytest.raises(InputError):
            OffloadRules(**rules)
    with pytest.raises(InputError, match="no cloud model"):
        Device(make_bundle(cloud=False), policy="cloud-only")
    with Device(bundle) as device:
        for row in (None, [1.0] * 5, "text"):
            with pytest.raises(InputError):
                device.answer(row)


def test_several_threads_can_share_a_device(bundle):
    # Another thread delivers the responses, in another order than the requests.
    queue: list[tuple] = []
    stop = threading.Event()

    def deliver_responses():
        while not stop.is_set() or queue:
            if queue:
                respond(*queue.pop())
            else:
                stop.wait(0.001)

    def ask(seed: int) -> None:
        for e in np.random.default_rng(seed).choice([-1.0, 1.0], 40):
            answer = device.answer([0, 0, 0, 0, e, 0])
            assert (answer.route, answer.class_index) == ("cloud", e > 0)

    link = FakeLink(lambda *a: queue.append(a))
    with Device(bundle, link=link, deadline_ms=5000) as device, ThreadPoolExecutor(5) as pool:
        worker = pool.submit(deliver_responses)
        list(pool.map(ask, range(4)))
        stop.set()
        worker.result()
        assert routes(device) == {"edge": 0, "cloud": 160, "fallback": 0, "errors": 0}


def test_requests_in_flight_are_bounded(bundle):
    link = FakeLink(lambda *a: None)
    with Device(bundle, link=link, offloading=OffloadRules(outstanding=1)) as device:
        pending = device.begin(HARD)
        assert isinstance(pending, Pending)
        answer = device.answer(HARD)
        assert (answer.route, answer.reason, answer.cost) == ("fallback", "full", 13.5)
        assert device.counters["full"] == 1


def test_offloads_beyond_the_bound_are_fallbacks_with_their_own_reason(bundle, clock):
    link = FakeLink()
    with Device(
        bundle, link=link, offloading=OffloadRules(max_offloads="2/h"), clock=clock
    ) as device:
        answers = [device.answer(HARD) for _ in range(3)]
        clock.now += 1799.0
        answers.append(device.answer(HARD))
        clock.now += 1.0
        answers.append(device.answer(HARD))
    assert [a.route for a in answers] == ["cloud", "cloud", "fallback", "fallback", "cloud"]
    assert (answers[2].reason, answers[2].cost) == ("offload-limit", 13.5)  # e is not acquired
    assert len(link.sent) == 3


def test_offload_that_is_not_made_does_not_count_against_the_bound(bundle, clock):
    with Device(
        bundle, link=FakeLink(), offloading=OffloadRules(max_offloads="1/h"), clock=clock
    ) as device:
        assert device.answer([*HARD[:4], NAN, 0]).reason == "missing:e"
        assert device.answer(HARD).route == "cloud"
        assert device.answer(HARD).reason == "offload-limit"


def test_device_runs_on_a_virtual_clock(bundle, clock):
    messages: list[tuple] = []
    link = FakeLink(lambda *message: messages.append(message))
    with Device(bundle, link=link, deadline_ms=1000, clock=clock) as device:
        assert isinstance(device.begin(EASY), Answer)
        pending = device.begin(HARD)
        assert isinstance(pending, Pending)
        assert pending.wake_at == pytest.approx(1000.0 + 0.995 / 2)
        clock.now = pending.wake_at
        assert device.advance(pending) is pending
        assert len(messages) == 2
        assert pending.wake_at == pytest.approx(1000.995)
        clock.now = 1000.75
        respond(*messages[0])
        answer = device.advance(pending)
        assert isinstance(answer, Answer)
        assert (answer.route, answer.latency_ms) == ("cloud", pytest.approx(750.0))


def test_labels_have_the_type_of_the_training_data(make_bundle):
    bundle = make_bundle(classes=(False, True))
    with Device(bundle, link=InProcessLink(cloud_says)) as device:
        assert device.answer(EASY).label is True
