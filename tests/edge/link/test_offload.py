"""Each request has exactly one outcome, and each response without a use is counted."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gatewise_edge.link.offload import Offload, OffloadTable, RoundTrip
from gatewise_edge.link.wire import BUSY, FAILED, Response, new_id


def make_answer(request_id: bytes, **changes: object) -> Response:
    fields = {"model": "m", "version": "1", "labels": [0], "probabilities": [[0.5, 0.5]]}
    return Response(id=request_id, **(fields | changes))


def make_refusal(request_id: bytes, error: str = BUSY, **fields: object) -> Response:
    return Response(id=request_id, model="m", version="1", error=error, **fields)


def open_request(offloads: OffloadTable, now: float = 0.0, deadline: float = 1.0) -> Offload:
    offload = offloads.open(new_id(), "m", "1", now=now, deadline=deadline, payload=b"payload")
    assert offload is not None
    return offload


def make_table_with_round_trip(round_trip_s: float) -> OffloadTable:
    """Make offloads with a measured round trip of `round_trip_s`."""
    offloads = OffloadTable()
    for _ in range(50):  # until the deviation is almost 0
        offloads.round_trip.add_round_trip(round_trip_s)
    return offloads


def test_answer_in_time_settles_its_request():
    offloads = OffloadTable()
    offload = open_request(offloads)
    assert not offloads.poll(offload, 0.1)
    assert offloads.receive(make_answer(offload.id), 0.2) is offload
    assert (offload.state, offload.settled_at, offload.payload) == ("answered", 0.2, b"")
    assert not offloads.poll(offload, 0.3)
    assert len(offloads) == 0
    assert offloads.round_trip.smoothed_s == 0.2


@pytest.mark.parametrize("answered_at", [1.0, 1.5])
def test_deadline_settles_a_request_and_its_late_answer_is_counted(answered_at):
    offloads = OffloadTable()
    offload = open_request(offloads, deadline=1.0)
    if answered_at > 1.0:
        assert not offloads.poll(offload, 1.0)
        assert offload.state == "timeout"
    settled_offload = offloads.receive(make_answer(offload.id), answered_at)
    assert settled_offload is (offload if answered_at == 1.0 else None)
    assert (offload.state, offloads.counts.timeouts, offloads.counts.late) == ("timeout", 1, 1)
    # The late answer is measured, so that the next retry is planned for a slow link.
    assert offloads.round_trip.smoothed_s == answered_at


@pytest.mark.parametrize(("round_trip_s", "retry_at"), [(0.1, 0.2), (0.0005, 0.02), (None, 0.5)])
def test_one_retry_after_twice_the_round_trip(round_trip_s, retry_at):
    """On a fast link it waits at least 20 ms, and without a measurement for half the deadline."""
    offloads = OffloadTable() if round_trip_s is None else make_table_with_round_trip(round_trip_s)
    offload = open_request(offloads)
    assert not offloads.poll(offload, retry_at - 0.001)
    assert offloads.poll(offload, retry_at)
    assert not any(offloads.poll(offload, now) for now in (0.6, 0.8, 0.99))
    offloads.receive(make_answer(offload.id), 0.995)
    offloads.receive(make_answer(offload.id), 0.996)
    counts = offloads.counts
    assert (counts.retries, counts.answered, counts.duplicates) == (1, 1, 1)


def test_no_request_is_sent_for_the_time_that_a_busy_worker_states():
    offloads = make_table_with_round_trip(0.01)
    offload = open_request(offloads)
    assert offloads.receive(make_refusal(offload.id, wait_ms=400), 0.02) is None
    assert offloads.pause_until == pytest.approx(0.42)  # 0.02 + 0.4 s
    assert not offloads.poll(offload, 0.41)
    assert offloads.poll(offload, 0.43)
    second_offload = open_request(offloads, 0.5)
    offloads.receive(make_refusal(second_offload.id, wait_ms=10**6), 0.6)
    assert second_offload.state == "refused"  # no retry fits before the deadline
    assert offloads.pause_until == pytest.approx(30.6)  # at most 30 s


def test_request_that_gets_busy_twice_is_refused():
    """There is time for a third copy, but a request has at most two."""
    offloads = make_table_with_round_trip(0.01)
    offload = open_request(offloads)
    refusal = make_refusal(offload.id, wait_ms=50)
    assert offloads.receive(refusal, 0.02) is None
    assert not offloads.poll(offload, 0.0699)  # the worker asked for 0.02 + 0.05 s
    assert offloads.poll(offload, 0.0701)
    assert offloads.receive(refusal, 0.09) is offload
    assert (offload.state, offload.settled_at) == ("refused", 0.09)
    assert not any(offloads.poll(offload, hundredths / 100) for hundredths in range(10, 100))
    assert (offloads.counts.retries, offloads.counts.refused) == (1, 1)


# A retry after two round trips needs a third one until the deadline of 1 s.
@pytest.mark.parametrize(("round_trip_s", "has_retry"), [(0.3, True), (0.34, False), (2.0, False)])
def test_retry_is_made_only_if_it_fits_before_the_deadline(round_trip_s, has_retry):
    offloads = make_table_with_round_trip(round_trip_s)
    offload = open_request(offloads)
    is_retry_due = [offloads.poll(offload, hundredths / 100) for hundredths in range(100)]
    assert any(is_retry_due) == has_retry


def test_retry_waits_longer_on_a_link_with_varying_round_trips():
    offloads = OffloadTable()
    for _ in range(100):
        offloads.round_trip.add_round_trip(0.02)
        offloads.round_trip.add_round_trip(0.18)
    offload = open_request(offloads)
    # Twice the mean of 0.1 s would be 0.2 s. With the deviation of 0.08 s it is about 0.42 s.
    assert not offloads.poll(offload, 0.25)
    assert offloads.poll(offload, 0.5)


def test_busy_for_one_copy_does_not_settle_the_request_but_other_errors_do():
    offloads = make_table_with_round_trip(0.1)
    offload = open_request(offloads)
    assert offloads.poll(offload, 0.2)
    assert offloads.receive(make_refusal(offload.id), 0.3) is None
    assert offloads.receive(make_answer(offload.id), 0.4) is offload
    second_offload = open_request(offloads)
    failure = Response(id=second_offload.id, model="", version="", error=FAILED)  # of no model
    assert offloads.receive(failure, 0.1) is second_offload
    assert second_offload.state == "refused"


def test_retry_that_the_link_refuses_is_no_copy():
    offloads = make_table_with_round_trip(0.1)
    offload = open_request(offloads)
    assert offloads.poll(offload, 0.2)
    offloads.withdraw_retry(offload, 0.2)
    assert (offload.state, offload.is_resent, offloads.counts.retries) == ("sent", False, 0)
    # once the first copy is refused, another retry may be sent
    assert offloads.receive(make_refusal(offload.id), 0.3) is None
    assert offloads.poll(offload, 0.4)
    offloads.withdraw_retry(offload, 0.4)
    assert (offload.state, offload.settled_at) == ("refused", 0.4)
    assert (offloads.counts.retries, offloads.counts.refused) == (0, 1)


def test_an_answer_beside_a_refused_second_copy_may_belong_to_the_first():
    offloads = make_table_with_round_trip(0.1)
    offload = open_request(offloads)
    assert offloads.poll(offload, 0.2)  # the second copy, which another worker refuses
    assert offloads.receive(make_refusal(offload.id), 0.3) is None
    assert offloads.receive(make_answer(offload.id), 0.35) is offload
    # not the 0.15 s since the second copy
    reference_offloads = make_table_with_round_trip(0.1)
    reference_offloads.round_trip.add_retried_round_trip(0.35, 0.35 - 0.2)
    assert offloads.round_trip == reference_offloads.round_trip


def test_response_must_match_its_request():
    offloads = OffloadTable()
    offload = open_request(offloads)
    two_answers = {"labels": [0, 1], "probabilities": [[0.5, 0.5]] * 2}
    for changes in ({"model": "other"}, {"version": "2"}, two_answers):
        assert offloads.receive(make_answer(offload.id, **changes), 0.1) is None
    assert offloads.receive(make_answer(new_id()), 0.1) is None
    counts = offloads.counts
    assert (counts.mismatched, counts.unknown, offload.is_settled) == (3, 1, False)
    offloads.receive(make_answer(offload.id), 0.1)
    # Also after it is settled.
    assert offloads.receive(make_answer(offload.id, model="other"), 0.2) is None
    assert (counts.mismatched, counts.duplicates) == (4, 0)
    assert offloads.receive(make_answer(offload.id), 0.3) is None
    assert (counts.mismatched, counts.duplicates) == (4, 1)


def test_numbers_of_requests_in_flight_and_of_settled_requests_are_bounded():
    offloads = OffloadTable(max_in_flight=2)
    first_offload, _ = open_request(offloads), open_request(offloads)
    assert offloads.open(new_id(), "m", "1", now=0.0, deadline=1.0) is None
    assert offloads.counts.full == 1
    all_offloads = []
    for _ in range(257):  # it remembers the latest 256, so that the first one is forgotten
        all_offloads.append(first_offload)
        offloads.abandon(first_offload, 0.1)
        first_offload = open_request(offloads)
    assert offloads.counts.unsent == 257
    for offload, counts in ((all_offloads[0], (1, 0)), (all_offloads[1], (1, 1))):
        offloads.receive(make_answer(offload.id), 0.2)
        assert (offloads.counts.unknown, offloads.counts.late) == counts


def simulate_requests(
    offloads: OffloadTable, round_trip_s: float, *, n_lost: int, n_requests: int
) -> list[float]:
    """Send requests one after the other; return their latencies.

    The first `n_lost` copies of each are lost. Each other copy gets its response after
    `round_trip_s`.
    """
    latencies = []
    for request_number in range(n_requests):
        started_at = 10.0 * request_number  # long after the end of the request before
        offload = open_request(offloads, now=started_at, deadline=started_at + 0.5)
        copy_times = [started_at]
        now = started_at
        while True:
            if offloads.poll(offload, now):
                copy_times.append(now)
            if offload.is_settled:
                break
            arrivals = [
                sent_at + round_trip_s
                for sent_at in copy_times[n_lost:]
                if sent_at + round_trip_s > now
            ]
            now = min([offload.wake_at, *arrivals])
            if now in arrivals:
                offloads.receive(make_answer(offload.id), now)
        latencies.append(now - started_at)
    return latencies


@pytest.mark.parametrize("round_trip_s", [0.021, 0.05, 0.1, 0.24, 0.4])
def test_link_that_became_slower_is_measured_after_few_retries(round_trip_s):
    offloads = make_table_with_round_trip(0.001)
    latencies = simulate_requests(offloads, round_trip_s, n_lost=0, n_requests=100)
    assert latencies == pytest.approx([round_trip_s] * 100)
    # Each ambiguous answer doubles the next delay, so that soon an answer comes before its retry.
    assert offloads.counts.retries <= 4
    assert offloads.round_trip.smoothed_s == pytest.approx(round_trip_s, rel=0.01)


def test_retries_stay_fast_while_every_first_copy_is_lost():
    offloads = make_table_with_round_trip(0.005)
    latencies = simulate_requests(offloads, 0.005, n_lost=1, n_requests=100)
    assert offloads.counts.answered == 100
    # The largest backoff times the shortest wait before a retry, and a round trip.
    assert max(latencies) < 4 * 0.02 + 0.006


class OffloadHistory(RuleBasedStateMachine):
    """Requests, responses, polls and failures in any order and at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.offloads = OffloadTable(max_in_flight=4, n_remembered=1000)
        self.now = 0.0
        self.all_offloads: list[Offload] = []
        self.outcomes: dict[bytes, object] = {}
        self.n_responses = 0

    @rule(time_left_s=st.floats(0.01, 2.0))
    def send_request(self, time_left_s: float) -> None:
        deadline = self.now + time_left_s
        offload = self.offloads.open(new_id(), "m", "1", now=self.now, deadline=deadline)
        if offload is not None:
            self.all_offloads.append(offload)

    @rule(seconds=st.floats(0, 1.0))
    def advance_time(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.all_offloads)
    @rule(data=st.data())
    def poll_request(self, data: st.DataObject) -> None:
        offload = data.draw(st.sampled_from(self.all_offloads))
        is_retry_due = self.offloads.poll(offload, self.now)
        assert not is_retry_due or self.now < offload.deadline
        if is_retry_due and data.draw(st.booleans()):
            self.offloads.withdraw_retry(offload, self.now)
        assert offload.is_settled or self.now < offload.wake_at <= offload.deadline

    @precondition(lambda self: self.all_offloads)
    @rule(data=st.data(), error=st.sampled_from([None, None, BUSY, FAILED]))
    def receive_response(self, data: st.DataObject, error: str | None) -> None:
        offload = data.draw(st.sampled_from(self.all_offloads))
        was_settled = offload.is_settled
        self.n_responses += 1
        response = make_refusal(offload.id, error) if error else make_answer(offload.id)
        settled_offload = self.offloads.receive(response, self.now)
        assert settled_offload is None or (settled_offload is offload and not was_settled)

    @precondition(lambda self: self.all_offloads)
    @rule(data=st.data())
    def lose_link(self, data: st.DataObject) -> None:
        self.offloads.abandon(data.draw(st.sampled_from(self.all_offloads)), self.now)

    @invariant()
    def each_request_has_one_outcome(self) -> None:
        for offload in self.all_offloads:
            if offload.is_settled:
                outcome = (offload.state, offload.settled_at, offload.response)
                assert self.outcomes.setdefault(offload.id, outcome) == outcome
        unsettled_offloads = [offload for offload in self.all_offloads if not offload.is_settled]
        assert len(self.offloads) == len(unsettled_offloads) <= 4
        counts = self.offloads.counts
        n_settled = counts.answered + counts.refused + counts.timeouts + counts.unsent
        assert counts.sent == len(self.all_offloads) == n_settled + len(unsettled_offloads)
        # Each response is used or counted, except for a "busy" that causes a retry.
        n_used = counts.answered + counts.refused
        n_unused = counts.late + counts.duplicates + counts.unknown + counts.mismatched
        assert n_used + n_unused <= self.n_responses
        assert min(asdict(counts).values()) >= 0


TestOffloadHistory = pytest.mark.slow(OffloadHistory.TestCase)
TestOffloadHistory.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_round_trip_is_smoothed_like_in_rfc_6298():
    # RFC 6298, 2.2 and 2.3: SRTT = R and RTTVAR = R / 2 after the first measurement R. After each
    # other one RTTVAR = 3/4 RTTVAR + 1/4 |SRTT - R| and SRTT = 7/8 SRTT + 1/8 R.
    round_trip = RoundTrip()
    round_trip.add_round_trip(1.0)
    assert (round_trip.smoothed_s, round_trip.deviation_s) == (1.0, 0.5)
    round_trip.add_round_trip(2.0)
    assert (round_trip.smoothed_s, round_trip.deviation_s) == (1.125, 0.625)
    assert round_trip.retry_delay_s(9.0) == 1.125 + 4 * 0.625
    assert RoundTrip().expected_s(2.0) == 0.5  # a quarter of the deadline, before a measurement


@pytest.mark.parametrize(
    ("since_retry_s", "is_ambiguous"), [(0.5, True), (2.0, True), (0.49, False), (2.5, False)]
)
def test_answer_from_half_to_twice_the_round_trip_after_a_retry_is_ambiguous(
    since_retry_s, is_ambiguous
):
    round_trip = RoundTrip(smoothed_s=1.0)
    round_trip.add_retried_round_trip(since_first_s=8.0, since_retry_s=since_retry_s)
    # An answer that is not ambiguous belongs to the first copy: 7/8 * 1 + 1/8 * 8 = 1.875.
    assert (round_trip.smoothed_s, round_trip.backoff) == ((1.0, 2) if is_ambiguous else (1.875, 1))


def test_audit_is_admitted_when_workers_are_not_busy_and_fewer_than_4_are_in_flight():
    offloads = OffloadTable(pause_until=5.0)
    assert not offloads.admit_audit(4.9)
    assert offloads.admit_audit(5.0)
    for _ in range(4):
        assert offloads.admit_audit(5.0)
        offloads.open(new_id(), "m", "1", now=5.0, deadline=9.0, on_answer=print)
    assert not offloads.admit_audit(5.0)
    assert offloads.admit_audit(9.0)  # the others are past their deadline
    assert len(offloads) == 0
