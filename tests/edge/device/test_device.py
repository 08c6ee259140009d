"""Every instance gets exactly one answer in time, at the cost of its acquired features."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pandas as pd
import pytest

from gatewise.costs import request_bytes
from gatewise.errors import InputError
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import PendingInstance
from gatewise_edge.errors import SensorError
from gatewise_edge.link import wire
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.link.offload_rules import OffloadRules
from gatewise_edge.sensors.sensors import Sensors
from gatewise_export.bundle.manifest_records import MissingSpec
from tests.edge.virtual_time import answer_in_virtual_time
from tests.support.small_bundle import (
    HARD_ROW,
    SURE_ROW,
    FakeLink,
    answer_sample,
    answer_to,
    cloud_answers,
    refuse,
    respond,
)

SECOND_STAGE_ROW = [0.1, 0, -1.0, 0, 0, 0]  # stage 1 is sure and answers no
NAN = float("nan")
#: Prices of a request, of an evaluation of the high-cost model, and of a request's bytes.
OFFLOAD_PRICE = 0.25 + 0.5 + 0.001 * request_bytes(3)

# Costs in these tests: a 1 and b 0.5 are 1.5, with c 2 and its group's 10 they are 13.5, and with
# e 4 they are 17.5. A device reserves 5 ms of each deadline, so that 100 ms end after 95 ms.


def count_routes(device: Device) -> dict[str, int]:
    return {route: device.counters[route] for route in ("edge", "cloud", "fallback", "errors")}


def test_answer_comes_from_the_edge_or_the_cloud(bundle):
    with Device(bundle, link=InProcessLink(cloud_answers)) as device:
        answers = [device.answer(row) for row in (SURE_ROW, SECOND_STAGE_ROW, HARD_ROW)]
        assert count_routes(device) == {"edge": 2, "cloud": 1, "fallback": 0, "errors": 0}
    assert [
        (answer.label, answer.class_index, answer.route, answer.stage, answer.reason)
        for answer in answers
    ] == [
        ("yes", 1, "edge", 0, "stopped"),
        ("no", 0, "edge", 1, "stopped"),
        ("no", 0, "cloud", 2, "offloaded"),
    ]
    assert [(answer.acquired, answer.feature_cost, answer.cost) for answer in answers] == [
        ((0, 1), 1.5, 1.5),
        ((0, 1, 2), 13.5, 13.5),
        ((0, 1, 2, 4), 17.5, 17.5 + OFFLOAD_PRICE),
    ]
    # The margin of the high-cost model is 10 e = -10.
    expected_probabilities = [1 / (1 + np.exp(-10)), 1 / (1 + np.exp(10))]
    np.testing.assert_allclose(answers[2].probabilities, expected_probabilities, rtol=1e-3)
    assert 0 < answers[2].latency_ms < 500  # the default deadline


def test_rows_may_be_tables_series_and_mappings_by_name(bundle):
    names = list(bundle.manifest.feature_names)
    frame = pd.DataFrame([SURE_ROW, SECOND_STAGE_ROW], columns=names)
    reversed_frame = frame[names[::-1]]
    unnamed_frame = frame.set_axis(range(len(names)), axis=1)
    with Device(bundle) as device:
        series = [row for _, row in reversed_frame.iterrows()]
        for rows in (reversed_frame, reversed_frame.to_dict("records"), unnamed_frame, series):
            assert [(answer.label, answer.acquired) for answer in device.answer_many(rows)] == [
                ("yes", (0, 1)),
                ("no", (0, 1, 2)),
            ]
        partial_row = dict(zip(names[:2], SURE_ROW, strict=False))
        for row in (reversed_frame.iloc[0], pd.Series(SURE_ROW), partial_row):
            assert device.answer(row).label == "yes"
        with pytest.raises(InputError, match="none of the features, such as"):
            device.answer({"foo": 1.0})


def test_device_gives_the_answers_of_the_bundles_sample(bundle):
    for point in (0, 1):
        with Device(bundle.with_active(point), link=InProcessLink(cloud_answers)) as device:
            answer_sample(device)


@pytest.mark.parametrize(
    ("link_state", "reason", "cost"), [("none", "no-link", 13.5), ("down", "link-down", 13.5),
                                  ("full", "unsent", 17.5)]
)  # fmt: skip
def test_last_stage_answers_if_no_request_can_be_sent(bundle, link_state, reason, cost):
    """The cloud's feature e is acquired only if a request is tried; no offload is charged."""
    link = None if link_state == "none" else FakeLink()
    if link is not None:
        link.is_ready, link.accepts = link_state != "down", False
    with Device(bundle, link=link) as device:
        answer = device.answer(HARD_ROW)
        assert (device.counters["unsent"], device.counters["bytes_up"]) == (link_state == "full", 0)
    assert (answer.label, answer.route, answer.stage) == ("yes", "fallback", 1)
    assert (answer.reason, answer.cost) == (reason, cost)


@pytest.mark.parametrize(
    ("policy", "has_link", "row", "expected_fields"),
    [
        ("edge-only", True, HARD_ROW, ("yes", "edge", "edge-only", (0, 1, 2), 13.5)),
        (
            "cloud-only",
            True,
            SURE_ROW,
            ("no", "cloud", "cloud-only", (0, 2, 4), 17.0 + OFFLOAD_PRICE),
        ),
        ("cloud-only", False, SURE_ROW, ("yes", "fallback", "no-link", (0, 1), 1.5)),
    ],
)
def test_policies_edge_only_and_cloud_only(bundle, policy, has_link, row, expected_fields):
    link = InProcessLink(cloud_answers) if has_link else None
    with Device(bundle, link=link, policy=policy) as device:
        answer = device.answer(row)
    fields = (answer.label, answer.route, answer.reason, answer.acquired, answer.cost)
    assert fields == expected_fields


def test_instance_falls_back_at_its_deadline_when_the_cloud_is_silent(bundle, clock):
    link = FakeLink(lambda payload, receive: None)
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        answer = answer_in_virtual_time(device, clock)
        counters = device.counters
    assert (answer.label, answer.route, answer.reason) == ("yes", "fallback", "timeout")
    assert answer.latency_ms == pytest.approx(95.0)
    # The request was sent twice with the same bytes.
    assert len(link.sent_payloads) == 2
    assert link.sent_payloads[0] == link.sent_payloads[1]
    assert (counters["sent"], counters["retries"], counters["timeouts"]) == (1, 1, 1)
    assert counters["bytes_up"] == 2 * len(link.sent_payloads[0])
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
    assert answer.latency_ms == pytest.approx(195 / 2)  # the retry is due after half of the time
    assert answer.cost == 17.5 + OFFLOAD_PRICE
    assert (counters["answered"], counters["duplicates"], counters["retries"]) == (1, 1, 1)


def test_malformed_responses_and_other_classes_are_not_used(bundle):
    def respond_with_noise(payload, receive):
        for noise in (b"", b"\xff\x00", payload):
            receive(noise)
        request = wire.decode_request(payload)
        three_classes = answer_to(request, labels=[2], probabilities=[[0, 0, 1]])
        receive(wire.encode_response(three_classes))

    with Device(bundle, link=FakeLink(respond_with_noise)) as device:
        assert device.answer(HARD_ROW).reason == "cloud:classes"
        assert device.counters["invalid"] == 3


@pytest.mark.parametrize(("code", "n_sent"), [("busy", 2), ("no-model", 2), ("failed", 1)])
def test_error_of_the_cloud_gives_a_fallback_with_its_code(bundle, clock, caplog, code, n_sent):
    link = FakeLink(partial(refuse, code=code))
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        answer = answer_in_virtual_time(device, clock)
    assert (answer.route, answer.reason) == ("fallback", f"cloud:{code}")
    assert len(link.sent_payloads) == n_sent
    # The retry is due after the expected round trip, a quarter of the time before a measurement.
    assert answer.latency_ms == pytest.approx(95 / 4 if n_sent == 2 else 0.0)
    # It is logged once, although the request was refused twice.
    assert caplog.text.count("does not serve small 7") == (code == "no-model")


def test_bundle_without_a_cloud_answers_on_the_device(make_bundle):
    with Device(make_bundle(has_cloud=False)) as device:
        answer = device.answer(HARD_ROW)
    assert (answer.label, answer.route, answer.stage) == ("yes", "edge", 1)


MISSING_A = [NAN, 0, 1.0, 0, 1.0, 0]
MISSING_C = [0.1, 0, NAN, 0, 1.0, 0]
MISSING_E = [0.1, 0, 0.1, 0, NAN, 0]


def make_bundle_with_missing(make_bundle, stages: str, cloud: str):
    return make_bundle(f"{stages}-{cloud}", missing=MissingSpec(stages, cloud))


def test_missing_value_that_no_model_allows_ends_the_stages(bundle):
    with Device(bundle, link=InProcessLink(cloud_answers)) as device:
        with pytest.raises(SensorError, match="column 'a' is missing"):
            device.answer(MISSING_A)
        answer_without_c = device.answer(MISSING_C)
        answer_without_e = device.answer(MISSING_E)
        assert count_routes(device) == {"edge": 0, "cloud": 0, "fallback": 2, "errors": 1}
    assert (answer_without_c.route, answer_without_c.reason) == ("fallback", "missing:c")
    assert (answer_without_c.stage, answer_without_c.cost) == (0, 13.5)  # c was read
    assert (answer_without_e.route, answer_without_e.reason) == ("fallback", "missing:e")
    assert (answer_without_e.stage, answer_without_e.cost) == (1, 17.5)


def test_missing_value_that_only_the_cloud_allows_is_offloaded(make_bundle):
    bundle = make_bundle_with_missing(make_bundle, "refused", "allowed")
    link = InProcessLink(lambda X: cloud_answers(np.nan_to_num(X)))
    with Device(bundle, link=link) as device:
        answers = [device.answer(row) for row in (MISSING_A, MISSING_C, MISSING_E)]
    assert [answer.route for answer in answers] == ["cloud"] * 3
    assert [answer.reason for answer in answers] == ["missing", "missing", "offloaded"]
    with Device(bundle) as device_without_link:
        with pytest.raises(SensorError):
            device_without_link.answer(MISSING_A)
        assert device_without_link.answer(MISSING_C).stage == 0


def test_stages_that_allow_a_missing_value_run_with_it(make_bundle):
    bundle = make_bundle_with_missing(make_bundle, "allowed", "refused")
    with Device(bundle, link=InProcessLink(cloud_answers)) as device:
        # With a NaN the margin of stage 0 is NaN, so that it does not stop; stage 1 is sure.
        answer = device.answer(MISSING_A)
        assert (answer.route, answer.stage, answer.label) == ("edge", 1, "yes")
        # No stage is sure, and the cloud does not allow NaN.
        answer = device.answer(MISSING_C)
        assert (answer.route, answer.reason) == ("fallback", "missing:c")


def test_infinite_value_is_refused_by_stages_and_cloud(make_bundle):
    bundle = make_bundle_with_missing(make_bundle, "allowed", "allowed")
    with Device(bundle, link=InProcessLink(cloud_answers)) as device:
        with pytest.raises(SensorError, match="'a' is infinite"):
            device.answer([np.inf, 0, 0, 0, 0, 0])
        answer = device.answer([0, 0, -np.inf, 0, 0, 0])
        assert (answer.route, answer.reason, answer.stage) == ("fallback", "infinite:c", 0)
        answer = device.answer([0, 0, 0, 0, 1e300, 0])
        assert (answer.route, answer.reason, answer.stage) == ("fallback", "infinite:e", 1)
        # Features that are not acquired are not checked.
        assert device.answer([1, 0, np.inf, np.inf, np.inf, np.inf]).route == "edge"


def test_given_row_is_answered_without_reading_a_sensor(bundle):
    reads: list[str] = []
    sensors = Sensors({name: lambda name=name: reads.append(name) or 1.0 for name in "abce"})
    with Device(bundle, link=InProcessLink(cloud_answers), sensors=sensors) as device:
        assert device.answer(HARD_ROW).route == "cloud"
        assert reads == []
        assert device.answer().route == "edge"
        assert reads == ["a", "b"]


def test_settings_out_of_range_are_refused(bundle, make_bundle):
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
    for rules in ({"max_in_flight": 0}, {"max_offloads": "60"}, {"implausible": "never"}):
        with pytest.raises(InputError):
            OffloadRules(**rules)
    with pytest.raises(InputError, match="no high-cost model"):
        Device(make_bundle(has_cloud=False), policy="cloud-only")
    with Device(bundle) as device:
        for row in (None, [1.0] * 5, "text"):
            with pytest.raises(InputError):
                device.answer(row)


def test_several_threads_can_share_a_device(bundle):
    """Another thread delivers the responses, in another order than the requests."""
    pending_calls: list[tuple] = []
    is_over = threading.Event()

    def deliver_responses():
        while not is_over.wait(0.001) or pending_calls:
            while pending_calls:
                respond(*pending_calls.pop())

    def answer_rows(seed: int) -> None:
        for feature_e in np.random.default_rng(seed).choice([-1.0, 1.0], 40):
            answer = device.answer([0, 0, 0, 0, feature_e, 0])
            assert (answer.route, answer.class_index) == ("cloud", feature_e > 0)

    link = FakeLink(lambda *arguments: pending_calls.append(arguments))
    with Device(bundle, link=link, deadline_ms=20_000) as device, ThreadPoolExecutor(5) as pool:
        responder = pool.submit(deliver_responses)
        list(pool.map(answer_rows, range(4)))
        is_over.set()
        responder.result()
        assert count_routes(device) == {"edge": 0, "cloud": 160, "fallback": 0, "errors": 0}


def test_requests_in_flight_are_bounded(bundle):
    link = FakeLink(lambda *arguments: None)
    with Device(bundle, link=link, offload_rules=OffloadRules(max_in_flight=1)) as device:
        instance = device.begin(HARD_ROW)
        assert isinstance(instance, PendingInstance)
        answer = device.answer(HARD_ROW)
        assert (answer.route, answer.reason, answer.cost) == ("fallback", "full", 13.5)
        assert device.counters["full"] == 1


def test_offloads_beyond_the_bound_are_fallbacks_with_their_own_reason(bundle, clock):
    link = FakeLink()
    rules = OffloadRules(max_offloads="2/h")
    with Device(bundle, link=link, offload_rules=rules, clock=clock) as device:
        answers = [device.answer(HARD_ROW) for _ in range(3)]
        for seconds in (1799.0, 1.0):  # one of two offloads per hour is allowed again after 1800 s
            clock.now += seconds
            answers.append(device.answer(HARD_ROW))
    routes = [answer.route for answer in answers]
    assert routes == ["cloud", "cloud", "fallback", "fallback", "cloud"]
    assert (answers[2].reason, answers[2].cost) == ("offload-limit", 13.5)  # e is not acquired
    assert len(link.sent_payloads) == 3


def test_offload_that_is_not_made_does_not_count_against_the_bound(bundle, clock):
    rules = OffloadRules(max_offloads="1/h")
    with Device(bundle, link=FakeLink(), offload_rules=rules, clock=clock) as device:
        assert device.answer([*HARD_ROW[:4], NAN, 0]).reason == "missing:e"
        assert device.answer(HARD_ROW).route == "cloud"
        assert device.answer(HARD_ROW).reason == "offload-limit"


def test_labels_have_the_type_of_the_training_data(make_bundle):
    bundle = make_bundle(classes=(False, True))
    with Device(bundle, link=InProcessLink(cloud_answers)) as device:
        assert device.answer(SURE_ROW).label is True
