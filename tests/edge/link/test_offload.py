"""Each request has exactly one outcome, and each response without a use is counted."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gatewise_edge.link.offload import InFlight, Offloads, RoundTrip
from gatewise_edge.link.wire import BUSY, FAILED, Response, new_id


def answer(request_id: bytes, **changes: object) -> Response:
    fields = {"model": "m", "version": "1", "labels": [0], "probabilities": [[0.5, 0.5]]}
    return Response(id=request_id, **(fields | changes))


def open_request(offloads: Offloads, now: float = 0.0, deadline: float = 1.0) -> InFlight:
    item = offloads.open(new_id(), "m", "1", now=now, deadline=deadline, payload=b"payload")
    assert item is not None
    return item


def with_round_trip(seconds: float) -> Offloads:
    """Make offloads with a measured round trip of `seconds`."""
    offloads = Offloads()
    for _ in range(50):
        offloads.round_trip.update(seconds)
    return offloads


def test_answer_in_time_settles_its_request():
    offloads = Offloads()
    item = open_request(offloads)
    assert not offloads.poll(item, 0.1)
    assert offloads.receive(answer(item.id), 0.2) is item
    assert (item.state, item.settled_at, item.payload) == ("answered", 0.2, b"")
    assert not offloads.poll(item, 0.3)
    assert len(offloads) == 0
    assert offloads.round_trip.smoothed == 0.2


def test_deadline_settles_a_request_and_its_late_answer_is_counted():
    offloads = Offloads()
    item = open_request(offloads)
    assert not offloads.poll(item, 1.0)
    assert item.state == "timeout"
    assert offloads.receive(answer(item.id), 1.5) is None
    assert offloads.counts.late == 1
    # The late answer is measured, so that the next retry is planned for a slow link.
    assert offloads.round_trip.smoothed == 1.5


@pytest.mark.parametrize(("round_trip", "retry_at"), [(0.1, 0.2), (0.0005, 0.02), (None, 0.5)])
def test_one_retry_after_twice_the_round_trip(round_trip, retry_at):
    """On a fast link it waits at least 20 ms, and without a measurement for half the deadline."""
    offloads = Offloads() if round_trip is None else with_round_trip(round_trip)
    item = open_request(offloads)
    assert not offloads.poll(item, retry_at - 0.001)
    assert offloads.poll(item, retry_at)
    assert not any(offloads.poll(item, t) for t in (0.6, 0.8, 0.99))
    offloads.receive(answer(item.id), 0.995)
    offloads.receive(answer(item.id), 0.996)
    counts = offloads.counts
    assert (counts.retries, counts.answered, counts.duplicates) == (1, 1, 1)


def test_no_request_is_sent_for_the_time_that_a_busy_worker_states():
    offloads = with_round_trip(0.01)
    item = open_request(offloads)
    busy = Response(id=item.id, model="m", version="1", error=BUSY, wait_ms=400)
    assert offloads.receive(busy, 0.02) is None
    assert offloads.hold_until == pytest.approx(0.42)
    assert not offloads.poll(item, 0.41)
    assert offloads.poll(item, 0.43)
    second = open_request(offloads, 0.5)
    very_busy = Response(id=second.id, model="m", version="1", error=BUSY, wait_ms=10**6)
    offloads.receive(very_busy, 0.6)
    assert second.state == "refused"  # no retry fits before the deadline
    assert offloads.hold_until == pytest.approx(30.6)  # at most 30 s


def test_request_that_gets_busy_twice_is_refused():
    """There is time for a third copy, but a request has at most two."""
    offloads = with_round_trip(0.01)
    item = open_request(offloads)
    busy = Response(id=item.id, model="m", version="1", error=BUSY, wait_ms=50)
    assert offloads.receive(busy, 0.02) is None
    assert not offloads.poll(item, 0.0699)
    assert offloads.poll(item, 0.0701)
    assert offloads.receive(busy, 0.09) is item
    assert (item.state, item.settled_at) == ("refused", 0.09)
    assert not any(offloads.poll(item, t / 100) for t in range(10, 100))
    assert (offloads.counts.retries, offloads.counts.refused) == (1, 1)


@pytest.mark.parametrize(("round_trip", "has_retry"), [(0.3, True), (0.34, False), (2.0, False)])
def test_retry_is_made_only_if_it_fits_before_the_deadline(round_trip, has_retry):
    offloads = with_round_trip(round_trip)
    item = open_request(offloads)
    polls = [offloads.poll(item, t / 100) for t in range(100)]
    assert any(polls) == has_retry


def test_retry_waits_longer_on_a_link_with_varying_round_trips():
    offloads = Offloads()
    for _ in range(100):
        offloads.round_trip.update(0.02)
        offloads.round_trip.update(0.18)
    item = open_request(offloads)
    assert not offloads.poll(item, 0.25)
    assert offloads.poll(item, 0.5)


def test_busy_for_one_copy_does_not_settle_the_request():
    offloads = with_round_trip(0.1)
    item = open_request(offloads)
    assert offloads.poll(item, 0.2)
    assert offloads.receive(Response(id=item.id, model="m", version="1", error=BUSY), 0.3) is None
    assert offloads.receive(answer(item.id), 0.4) is item


def test_other_errors_settle_a_request_at_once_even_without_a_model():
    offloads = Offloads()
    item = open_request(offloads)
    assert offloads.receive(Response(id=item.id, model="", version="", error=FAILED), 0.1) is item
    assert item.state == "refused"


def test_response_must_match_its_request():
    offloads = Offloads()
    item = open_request(offloads)
    two = {"labels": [0, 1], "probabilities": [[0.5, 0.5]] * 2}
    for changes in ({"model": "other"}, {"version": "2"}, two):
        assert offloads.receive(answer(item.id, **changes), 0.1) is None
    assert offloads.receive(answer(new_id()), 0.1) is None
    assert (offloads.counts.mismatched, offloads.counts.unknown) == (3, 1)
    assert not item.settled


def test_numbers_of_requests_in_flight_and_of_settled_requests_are_bounded():
    offloads = Offloads(limit=2, remember=3)
    first, _ = open_request(offloads), open_request(offloads)
    assert offloads.open(new_id(), "m", "1", now=0.0, deadline=1.0) is None
    assert offloads.counts.full == 1
    for i in range(5):
        offloads.abandon(first, 0.1)
        first = open_request(offloads, now=0.1 * i)
    assert offloads.counts.unsent == 5
    assert len(offloads._settled) == 3


def simulate(offloads: Offloads, seconds: float, *, n_lost: int, n_requests: int) -> list[float]:
    """Send requests one after the other; return their latencies.

    The first `n_lost` copies of each are lost. Each other copy gets its response after `seconds`.
    """
    latencies = []
    for i in range(n_requests):
        start = 10.0 * i
        item = open_request(offloads, now=start, deadline=start + 0.5)
        copies, now = [start], start
        while True:
            if offloads.poll(item, now):
                copies.append(now)
            if item.settled:
                break
            arrivals = [sent + seconds for sent in copies[n_lost:] if sent + seconds > now]
            now = min([item.wake_at, *arrivals])
            if now in arrivals:
                offloads.receive(answer(item.id), now)
        latencies.append(now - start)
    return latencies


@pytest.mark.parametrize("seconds", [0.021, 0.05, 0.1, 0.24, 0.4])
def test_link_that_became_slower_is_measured_after_few_retries(seconds):
    offloads = with_round_trip(0.001)
    latencies = simulate(offloads, seconds, n_lost=0, n_requests=100)
    assert latencies == pytest.approx([seconds] * 100)
    assert offloads.counts.retries <= 4
    assert offloads.round_trip.smoothed == pytest.approx(seconds, rel=0.01)


def test_retries_stay_fast_while_every_first_copy_is_lost():
    offloads = with_round_trip(0.005)
    latencies = simulate(offloads, 0.005, n_lost=1, n_requests=100)
    assert offloads.counts.answered == 100
    assert max(latencies) < 4 * 0.02 + 0.006


class AnyHistory(RuleBasedStateMachine):
    """Requests, responses, polls and failures in any order and at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.offloads = Offloads(limit=4, remember=1000)
        self.now = 0.0
        self.items: list[InFlight] = []
        self.outcomes: dict[bytes, object] = {}
        self.n_responses = 0

    @rule(budget=st.floats(0.01, 2.0))
    def send(self, budget: float) -> None:
        deadline = self.now + budget
        item = self.offloads.open(new_id(), "m", "1", now=self.now, deadline=deadline)
        if item is not None:
            self.items.append(item)

    @rule(seconds=st.floats(0, 1.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def poll(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.items))
        is_retry_due = self.offloads.poll(item, self.now)
        assert not is_retry_due or self.now < item.deadline
        assert item.settled or self.now < item.wake_at <= item.deadline

    @precondition(lambda self: self.items)
    @rule(data=st.data(), error=st.sampled_from([None, None, BUSY, FAILED]))
    def respond(self, data: st.DataObject, error: str | None) -> None:
        item = data.draw(st.sampled_from(self.items))
        was_settled = item.settled
        self.n_responses += 1
        response = (
            answer(item.id)
            if error is None
            else Response(id=item.id, model="m", version="1", error=error)
        )
        settled = self.offloads.receive(response, self.now)
        assert settled is None or (settled is item and not was_settled)

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def lose_link(self, data: st.DataObject) -> None:
        self.offloads.abandon(data.draw(st.sampled_from(self.items)), self.now)

    @invariant()
    def each_request_has_one_outcome(self) -> None:
        for item in self.items:
            if item.settled:
                outcome = (item.state, item.settled_at, item.response)
                assert self.outcomes.setdefault(item.id, outcome) == outcome
        open_items = [i for i in self.items if not i.settled]
        assert len(self.offloads) == len(open_items) <= 4
        counts = self.offloads.counts
        ended = counts.answered + counts.refused + counts.timeouts + counts.unsent
        assert counts.sent == len(self.items) == ended + len(open_items)
        n_used = counts.answered + counts.refused
        n_unused = counts.late + counts.duplicates + counts.unknown + counts.mismatched
        assert n_used + n_unused <= self.n_responses
        assert min(asdict(counts).values()) >= 0


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_round_trip_is_smoothed_like_in_rfc_6298():
    round_trip = RoundTrip()
    round_trip.update(1.0)
    assert (round_trip.smoothed, round_trip.deviation) == (1.0, 0.5)
    round_trip.update(2.0)
    assert (round_trip.smoothed, round_trip.deviation) == (1.125, 0.625)
    assert round_trip.patience(9.0) == 1.125 + 4 * 0.625
    assert RoundTrip().expected(2.0) == 0.5


@pytest.mark.parametrize(
    ("since_retry", "is_ambiguous"), [(0.5, True), (2.0, True), (0.49, False), (2.5, False)]
)
def test_answer_from_half_to_twice_the_round_trip_after_a_retry_is_ambiguous(
    since_retry, is_ambiguous
):
    round_trip = RoundTrip(smoothed=1.0)
    round_trip.update_retried(since_first=8.0, since_retry=since_retry)
    assert (round_trip.smoothed, round_trip.backoff) == ((1.0, 2) if is_ambiguous else (1.875, 1))


def test_audit_is_admitted_when_workers_are_not_busy_and_fewer_than_4_are_in_flight():
    offloads = Offloads(hold_until=5.0)
    assert not offloads.admit_audit(4.9)
    assert offloads.admit_audit(5.0)
    for _ in range(4):
        assert offloads.admit_audit(5.0)
        offloads.open(new_id(), "m", "1", now=5.0, deadline=9.0, on_answer=print)
    assert not offloads.admit_audit(5.0)
    assert offloads.admit_audit(9.0)  # the others are past their deadline
    assert len(offloads) == 0


def test_answer_at_the_deadline_is_late():
    offloads = Offloads()
    item = open_request(offloads, deadline=1.0)
    assert offloads.receive(answer(item.id), 1.0) is item
    assert (item.state, offloads.counts.timeouts, offloads.counts.late) == ("timeout", 1, 1)


def test_response_of_another_model_to_a_settled_request_is_mismatched():
    offloads = Offloads()
    item = open_request(offloads)
    offloads.receive(answer(item.id), 0.1)
    assert offloads.receive(answer(item.id, model="n"), 0.2) is None
    assert (offloads.counts.mismatched, offloads.counts.duplicates) == (1, 0)
    assert offloads.receive(answer(item.id), 0.3) is None
    assert (offloads.counts.mismatched, offloads.counts.duplicates) == (1, 1)


def test_offloads_remember_the_latest_256_settled_requests():
    offloads = Offloads()
    items = []
    for _ in range(257):
        items.append(open_request(offloads))
        offloads.receive(answer(items[-1].id), 0.1)
    offloads.receive(answer(items[0].id), 0.2)
    assert (offloads.counts.unknown, offloads.counts.duplicates) == (1, 0)
    offloads.receive(answer(items[1].id), 0.2)
    assert (offloads.counts.unknown, offloads.counts.duplicates) == (1, 1)


def test_counts_start_at_zero():
    assert set(asdict(Offloads().counts).values()) == {0}
