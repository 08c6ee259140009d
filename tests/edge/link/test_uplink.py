"""Rows share a message, and yet each has its own deadline and exactly one answer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gatewise.costs import request_bytes
from gatewise.errors import InputError
from gatewise_edge.device.answer import DecisionPoint
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import Pending
from gatewise_edge.errors import SensorError
from gatewise_edge.link import uplink, wire
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.link.messages import MAX_TTL_MS, MOST_SHARED, most_rows
from gatewise_edge.link.offload import Offloads, RoundTrip
from gatewise_edge.link.uplink import as_matrix
from gatewise_edge.link.wire import MAX_PAYLOAD
from tests.edge.virtual_time import Clock
from tests.support.small_bundle import HARD, FakeLink, cloud_says, respond
from tests.support.waiting import wait_until

EASY = [1.0, 0, 0, 0, 0, 0]


def hard(e: float) -> list[float]:
    return [0.1, 0, 0.1, 0, e, 0]


def joined(offloads, now, deadline, model="m", version="1", **more):
    return offloads.join(
        np.zeros(2, np.float32),
        **{"model": model, "version": version, "most": 4, "now": now, "deadline": deadline} | more,
    )


def test_without_a_wait_a_row_goes_at_once_and_alone():
    offloads = Offloads()
    for now in (0.0, 0.0, 1.0):
        flight, due = joined(offloads, now, now + 1)
        assert due == [flight]
        assert flight.rows == len(flight.values) == 1
    assert offloads.take() == []


def test_a_request_that_nobody_came_back_for_takes_no_further_row():
    offloads = Offloads()
    first, _ = joined(offloads, 0.0, 1.0, hold=True)
    assert joined(offloads, 0.25, 1.25, hold=True) == (first, [])
    second, due = joined(offloads, 2.0, 3.0, hold=True)
    assert (due, second.earliest, second.rows) == ([first], 3.0, 1)


def test_a_request_goes_when_its_wait_is_over_or_it_is_full():
    offloads = Offloads(share_wait=0.01)
    for k in range(3):
        flight, due = joined(offloads, 0.001 * k, 1.0 + 0.1 * k)
        assert flight.rows == k + 1
        assert due == []
    # The first row's wait counts, and the earliest and latest deadlines are known.
    assert flight.wake_at == pytest.approx(0.01)
    assert (flight.earliest, flight.deadline) == (1.0, 1.2)
    last, due = joined(offloads, 0.004, 1.0)
    assert last is flight
    assert due == [flight]
    other, due = joined(offloads, 0.005, 1.0)
    assert other is not flight
    assert due == []
    assert offloads.take(flight) == []
    assert offloads.take(other) == [other]


def test_as_many_rows_as_request_and_response_can_hold():
    assert most_rows(10, 2) == MOST_SHARED
    for columns, classes in ((3000, 2), (10, 5000), (32000, 2), (2, 30000)):
        rows = most_rows(columns, classes)
        assert 1 <= rows < MOST_SHARED
        assert request_bytes(columns, rows=rows) <= MAX_PAYLOAD
        response = wire.Response(
            id=bytes(16),
            model="m" * 64,
            version="v" * 64,
            labels=np.zeros(rows, np.int64),
            probabilities=np.ones((rows, classes), np.float32),
            exits=np.zeros(rows, np.int64),
            worker_us=2**40,
        )
        assert len(wire.encode_response(response)) <= MAX_PAYLOAD


def test_halves_where_they_can_hold_the_values():
    fits = np.array([0.1, 65504.0, -3.0, np.nan], np.float32)
    sent = as_matrix([fits], float16=True)
    assert sent.dtype == np.float16
    np.testing.assert_allclose(sent[0].astype(np.float32), fits, rtol=2**-11)
    for large in (65520.0, -1e9):
        both = as_matrix([fits, np.full(4, large, np.float32)], float16=True)
        assert both.dtype == np.float32
    assert as_matrix([fits], float16=False).dtype == np.float32


# -- in a device ---------------------------------------------------------------------------


def test_threads_share_messages_and_get_their_own_answers(bundle):
    link = InProcessLink(cloud_says)
    sizes = []
    send = link.send

    def weigh(payload):
        sizes.append(wire.decode_request(payload).rows)
        return send(payload)

    link.send = weigh
    ready = threading.Barrier(8)

    def ask(seed):
        ready.wait()
        for e in np.random.default_rng(seed).choice([-1.0, 1.0], 20):
            answer = device.answer(hard(e))
            assert (answer.route, answer.class_index) == ("cloud", e > 0)

    options = {"link": link, "deadline_ms": 20_000, "coalesce_ms": 20}
    with Device(bundle, **options) as device, ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
        counters = device.counters
    assert (counters["cloud"], sum(sizes)) == (160, 160)
    assert counters["sent"] == len(sizes) < 80
    assert max(sizes) > 1


def test_one_id_the_smallest_time_one_outcome(bundle):
    clock, held = Clock(), []
    link = FakeLink(lambda *a: held.append(a))
    with Device(bundle, link=link, deadline_ms=1000, coalesce_ms=50, clock=clock) as device:
        steps = []
        for e in (-1.0, 1.0, -1.0):
            steps.append(device.begin(hard(e)))
            clock.now += 0.01
        assert all(isinstance(step, Pending) for step in steps)
        assert not held
        clock.now = steps[0].wake_at
        assert clock.now == pytest.approx(1000.05)
        assert device.advance(steps[1]) is steps[1]  # whoever wakes first sends
        (payload, receive) = held[0]
        request = wire.decode_request(payload)
        assert request.rows == 3
        assert request.ttl_ms in (944, 945)  # the first row's, rounded down
        respond(payload, receive)
        answers = [device.advance(step) for step in steps]
        assert [a.label for a in answers] == ["no", "yes", "no"]
        assert {a.cost for a in answers} == {17.5 + 0.25 + 0.5 + 0.001 * request_bytes(3)}
        assert (device.counters["sent"], device.counters["answered"]) == (1, 1)
    assert len(held) == 1


def test_a_response_may_be_in_time_for_one_row_and_late_for_another(bundle):
    clock, held = Clock(), []
    link = FakeLink(lambda *a: held.append(a))
    with Device(bundle, link=link, deadline_ms=1000, coalesce_ms=100, clock=clock) as device:
        first = device.begin(hard(-1.0))
        clock.now += 0.08
        second = device.begin(hard(1.0))
        clock.now += 0.1
        assert device.advance(first) is first
        clock.now = 1000.0 + 0.995 + 0.01  # the first's deadline is past, the second's is not
        respond(*held[0])
        late, timely = device.advance(first), device.advance(second)
    assert (late.route, late.reason) == ("fallback", "timeout")
    assert (timely.route, timely.label) == ("cloud", "yes")


def test_many_rows_at_once(bundle):
    link = InProcessLink(cloud_says)
    rows = np.random.default_rng(0).normal(0, 0.4, (700, 6)).astype(np.float32)
    rows[5, 0] = np.nan
    with Device(bundle, link=link, deadline_ms=20_000, breaker=False) as device:
        together = device.answer_many(rows)
        counters = device.counters
    assert isinstance(together[5], SensorError)
    with Device(bundle, link=InProcessLink(cloud_says), deadline_ms=20_000) as device:
        for k, answer in enumerate(together):
            if k != 5:
                alone = device.answer(rows[k])
                told = (answer.label, answer.route, answer.stage, answer.cost, answer.reason)
                assert told == (alone.label, alone.route, alone.stage, alone.cost, alone.reason)
                np.testing.assert_array_equal(answer.probabilities, alone.probabilities)
    assert counters["cloud"] > 8 * counters["sent"] > 0
    assert counters["errors"] == 1


def test_many_rows_are_checked_before_any_is_begun(bundle):
    link = FakeLink()
    with Device(bundle, link=link) as device:
        for rows in ([[0.0] * 5], HARD, "text"):
            with pytest.raises(InputError):
                device.answer_many(rows)
        assert device.answer_many(np.empty((0, 6))) == []
        assert link.sent == []
    for wait in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="coalesce_ms"):
            Device(bundle, coalesce_ms=wait)


def test_a_row_that_fails_ends_no_other_and_leaves_no_request_behind(bundle):
    rows = np.array([HARD, hard(1.0), HARD, EASY, hard(1.0)], np.float32)
    points = iter(range(99))

    def policy(point: DecisionPoint) -> str:
        if next(points) == 2:
            raise ZeroDivisionError
        return "stop" if point.stops else "offload"

    with Device(bundle, link=FakeLink(), policy=policy) as device:
        found = device.answer_many(rows)
        assert isinstance(found.pop(2), ZeroDivisionError)
        assert [(a.route, a.label) for a in found] == [
            ("cloud", "no"), ("cloud", "yes"), ("edge", "yes"), ("cloud", "yes"),
        ]  # fmt: skip
        counters = device.counters
    assert (counters["errors"], counters["cloud"], counters["sent"]) == (1, 3, 1)


def test_many_rows_wait_for_each_other_where_requests_may_not_be_out_together(bundle, monkeypatch):
    monkeypatch.setattr(uplink, "most_rows", lambda *_: 1)  # as of rows of more than 64 KB
    held = []
    with Device(
        bundle, link=FakeLink(lambda *given: held.append(given)), outstanding=3, deadline_ms=20_000
    ) as device, ThreadPoolExecutor(1) as pool:  # fmt: skip
        together = pool.submit(device.answer_many, [HARD] * 8)
        for n in (3, 3, 2):
            wait_until(lambda n=n: len(held) == n)
            while held:
                respond(*held.pop())
        assert {(a.route, a.reason) for a in together.result()} == {("cloud", "offloaded")}
        assert device.counters["full"] == 0


def test_a_deadline_may_be_days_away(bundle):
    link = FakeLink()
    with Device(bundle, link=link, deadline_ms=2 * MAX_TTL_MS) as device:
        assert device.answer(HARD).route == "cloud"
    assert wire.decode_request(link.sent[0]).ttl_ms == MAX_TTL_MS


def test_a_refusal_wakes_the_waiting_thread_for_the_retry(bundle):
    def behave(payload, receive):
        if len(link.sent) > 1:
            respond(payload, receive)
            return
        busy = wire.Response.refusal(wire.decode_request(payload), "busy")
        threading.Timer(0.02, receive, [wire.encode_response(busy)]).start()

    link = FakeLink(behave)
    with Device(bundle, link=link, deadline_ms=5000) as device:
        # So uneven that no retry was planned when the request was sent.
        device._uplink._offloads.round_trip = RoundTrip(smoothed=0.05, deviation=9.0)
        assert device.answer(HARD).route == "cloud"
    assert len(link.sent) == 2


def test_a_device_sends_halves_if_asked_to(bundle):
    link = FakeLink()
    with Device(bundle, link=link, float16=True) as device:
        assert device.answer(HARD).label == "no"
        assert device.answer([0.1, 0, 0.1, 0, 1e6, 0]).label == "yes"
    first, second = (wire.decode_request(payload).X for payload in link.sent)
    assert (first.dtype, second.dtype) == (np.float16, np.float32)
    assert first[0].tolist() == np.array([0.1, 0.1, -1.0], np.float16).tolist()
    assert len(link.sent[1]) - len(link.sent[0]) == 6


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("wait", [0.0, 5.0, 60.0])
@pytest.mark.parametrize("breaker", [False, True])
def test_whatever_the_cloud_does_each_row_has_one_answer_by_its_deadline(
    bundle, seed, wait, breaker
):
    rng = np.random.default_rng(seed)
    clock, flying = Clock(), []

    def behave(payload, receive):
        copies = rng.choice([0, 1, 1, 1, 2])  # lost, answered, answered twice
        delays = rng.exponential(0.05, copies)
        flying.extend((clock.now + d, rng.random(), payload, receive) for d in delays)

    def deliver(payload, receive, luck):
        request = wire.decode_request(payload)
        if luck < 0.2:
            code = "busy" if luck < 0.1 else "failed"
            receive(wire.encode_response(wire.Response.refusal(request, code)))
        else:
            respond(payload, receive)

    ends = []
    options = {"deadline_ms": 100, "coalesce_ms": wait, "breaker": breaker, "outstanding": 4}
    with Device(
        bundle, link=FakeLink(behave), clock=clock, observe=ends.append, **options
    ) as device:
        arrivals = list(1000.0 + np.cumsum(rng.exponential(0.01, 60)))
        signs = rng.choice([-1.0, 1.0], 60)
        steps, started = {}, {}
        while arrivals or any(isinstance(s, Pending) for s in steps.values()):
            pending = [s.wake_at for s in steps.values() if isinstance(s, Pending)]
            due = [f[0] for f in flying]
            clock.now = max(clock.now, min([*arrivals[:1], *pending, *due]))
            if arrivals and arrivals[0] <= clock.now:
                arrivals.pop(0)
                k = len(steps)
                started[k] = clock.now
                steps[k] = device.begin(hard(signs[k]))
            for flight in [f for f in flying if f[0] <= clock.now]:
                flying.remove(flight)
                deliver(flight[2], flight[3], flight[1])
            for k, step in steps.items():
                if isinstance(step, Pending):
                    steps[k] = device.advance(step)
                    assert clock.now <= started[k] + 0.095 + 1e-9
        counters = device.counters
    assert len(ends) == 60 == counters["cloud"] + counters["fallback"]
    for k, answer in steps.items():
        assert answer.class_index == (signs[k] > 0 if answer.route == "cloud" else 1)
    settled = sum(counters[name] for name in ("answered", "refused", "timeouts", "unsent"))
    assert settled == counters["sent"]
