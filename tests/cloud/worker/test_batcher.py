"""Batcher in virtual time, compared with a simple model of its rules."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gatewise_cloud.worker.batcher import Admission, Batcher, Ticket

QUEUED = Admission(is_queued=True)
DUPLICATE = Admission(counter_name="duplicates")
# Names and versions of two models.
DIGITS = ("digits", "1")
WINE = ("wine", "2")


def make_ticket(number=0, *, n_rows=1, model=DIGITS, arrived_at=0.0, ttl_seconds=1.0, device="pi"):
    """Make a request with its number as id and cells."""
    return Ticket(
        device=device,
        id=number.to_bytes(16, "big"),
        digest=b"d",
        model=model,
        rows=np.full((n_rows, 3), number, np.float32),
        arrived_at=arrived_at,
        expires_at=arrived_at + ttl_seconds,
    )


def ticket_numbers(batch):
    return [int.from_bytes(ticket.id, "big") for ticket in batch.tickets]


def test_take_returns_queued_requests_up_to_the_largest_batch():
    batcher = Batcher(max_batch=16)
    for number in range(20):
        assert batcher.admit(make_ticket(number), 0.0) == QUEUED
    batch, expired = batcher.take_batch(0.0)
    assert (ticket_numbers(batch), expired, len(batcher)) == (list(range(16)), [], 4)
    assert ticket_numbers(batcher.take_batch(0.0)[0]) == [16, 17, 18, 19]
    assert batcher.take_batch(0.0) == (None, [])


def test_wait_ms_is_the_expected_time_of_the_queued_rows():
    batcher, parallel_batcher = Batcher(), Batcher(n_parallel=2)
    for tested_batcher in (batcher, parallel_batcher):
        tested_batcher.admit(make_ticket(1, n_rows=4), 0.0)
        assert tested_batcher.wait_ms == 1  # nothing has run yet
        assert tested_batcher.expected_seconds(DIGITS, 1) == np.inf
        for _ in range(3):
            tested_batcher.observe_run(DIGITS, 8, 0.4)  # 50 ms per instance
        assert tested_batcher.expected_seconds(DIGITS, 2) == pytest.approx(0.1)
    assert (batcher.wait_ms, parallel_batcher.wait_ms) == (200, 100)  # four rows of 50 ms
    batcher.admit(make_ticket(9, model=WINE), 0.0)
    assert batcher.wait_ms == 200  # the time of a model that has not run is unknown
    batcher.observe_run(WINE, 1, 0.0065)
    assert batcher.wait_ms == 207  # 6.5 ms more, rounded up
    for number in range(2, 40):
        batcher.admit(make_ticket(number, n_rows=50), 0.0)
    assert batcher.wait_ms == 30_000  # the largest wait; 1,900 rows would take 95 s
    while batcher.take_batch(0.0)[0]:
        pass
    assert batcher.wait_ms == 1


def test_pause_delays_a_request_only_with_a_wait_time():
    assert Batcher().seconds_to_batch(0.0) == 0.0
    batcher = Batcher(max_batch=4, wait_seconds=0.01)
    assert batcher.seconds_to_batch(0.0) == 0.0
    batcher.admit(make_ticket(0), 0.0)
    assert batcher.seconds_to_batch(0.0) == pytest.approx(0.01)
    assert batcher.seconds_to_batch(0.02) == 0.0
    batcher.admit(make_ticket(1, n_rows=2, arrived_at=0.001), 0.001)
    assert batcher.seconds_to_batch(0.002) == pytest.approx(0.008)  # from the oldest request on
    batcher.admit(make_ticket(2, arrived_at=0.002), 0.002)  # full
    assert batcher.seconds_to_batch(0.002) == 0.0
    assert len(batcher.take_batch(0.002)[0].rows) == 4
    batcher.admit(make_ticket(3, arrived_at=0.003, ttl_seconds=0.002), 0.003)
    assert batcher.seconds_to_batch(0.003) == pytest.approx(0.001)  # half of the request's time
    assert batcher.take_batch(0.004)[0] is not None


def test_requests_are_pending_until_they_are_finished_or_forgotten():
    batcher = Batcher()
    batcher.admit(make_ticket(0), 0.0)
    batcher.admit(make_ticket(1, ttl_seconds=0.5), 0.0)
    assert batcher.count_requests(DIGITS) == 2
    batch = batcher.take_batch(0.1)[0]
    assert batcher.count_requests(DIGITS) == 2
    batcher.finish(batch.tickets[0], b"", 0.1)
    batcher.forget(batch.tickets[1])
    batcher.forget(batch.tickets[1])
    assert batcher.count_requests(DIGITS) == 0


def test_documented_bounds_are_the_defaults():
    batcher = Batcher()
    queue_bounds = (batcher.capacity, batcher.device_rows, batcher.queue_bytes, batcher.max_batch)
    assert queue_bounds == (1024, 4096, 268_435_456, 16)
    answer_bounds = (batcher.max_answers, batcher.max_answer_bytes, batcher.max_answer_seconds)
    assert answer_bounds == (4096, 16_777_216, 60.0)


@pytest.mark.parametrize(("queue_bytes", "is_queued"), [(24, True), (23, False)])
def test_the_queue_holds_at_most_its_bytes(queue_bytes, is_queued):
    batcher = Batcher(queue_bytes=queue_bytes)
    assert batcher.admit(make_ticket(0, device="a"), 0.0).is_queued  # 12 bytes each
    assert batcher.admit(make_ticket(1, device="b"), 0.0).is_queued == is_queued


@pytest.mark.parametrize(("queue_bytes", "is_queued"), [(36, True), (35, False)])
def test_a_device_takes_at_most_half_of_the_bytes_that_are_left(queue_bytes, is_queued):
    """Of 36 bytes, 12 are left if the device takes 12 and then 12 more."""
    batcher = Batcher(queue_bytes=queue_bytes)
    assert batcher.admit(make_ticket(0), 0.0).is_queued
    assert batcher.admit(make_ticket(1), 0.0).is_queued == is_queued


def test_repeated_requests_get_the_stored_answer_within_bytes_and_time():
    batcher = Batcher(max_answer_bytes=4, max_answer_seconds=5.0)
    for number, answer in enumerate((b"1234", b"5")):  # five bytes, so that the first is dropped
        batcher.admit(make_ticket(number), 0.0)
        assert batcher.admit(make_ticket(number), 0.0) == DUPLICATE
        (ticket,) = batcher.take_batch(0.0)[0].tickets
        assert batcher.admit(make_ticket(number), 0.0) == DUPLICATE
        batcher.finish(ticket, answer, 0.0)
    assert batcher.admit(make_ticket(0), 0.0) == QUEUED
    assert batcher.admit(make_ticket(1), 4.9) == Admission(
        counter_name="repeated", answer_payload=b"5"
    )
    assert batcher.admit(make_ticket(1), 5.0) == QUEUED


def test_batches_have_one_model_and_the_oldest_runs_first():
    batcher = Batcher()
    for number, model in enumerate([WINE, DIGITS, WINE, DIGITS]):
        batcher.admit(make_ticket(number, model=model), 0.0)
    first_batch = batcher.take_batch(0.0)[0]
    second_batch = batcher.take_batch(0.0)[0]
    assert (first_batch.model, ticket_numbers(first_batch)) == (WINE, [0, 2])
    assert (second_batch.model, ticket_numbers(second_batch)) == (DIGITS, [1, 3])


def list_devices(batcher):
    """Take all requests from the queue; return their devices in this order."""
    devices = []
    while len(batcher):
        devices += [ticket.device for ticket in batcher.take_batch(0.0)[0].tickets]
    return devices


def test_a_noisy_device_does_not_delay_quiet_devices():
    batcher = Batcher(max_batch=1, device_rows=100_000)
    for number in range(50):
        batcher.admit(make_ticket(number, n_rows=500, device="noisy"), 0.0)
    batcher.take_batch(0.0)  # the first request of the noisy device runs
    for number in range(5):
        for device in ("quiet", "other"):
            batcher.admit(make_ticket(number, device=device), 0.0)
    assert list_devices(batcher)[:11] == ["quiet", "other"] * 5 + ["noisy"]


def test_devices_share_the_worker_by_rows_not_by_requests():
    batcher = Batcher(max_batch=1)
    for number in range(12):
        batcher.admit(make_ticket(number, n_rows=3, device="wide"), 0.0)
        batcher.admit(make_ticket(number, n_rows=1, device="narrow"), 0.0)
    # Of 12 requests, 3 with 3 rows and 9 with 1 row have 9 rows each.
    first_devices = list_devices(batcher)[:12]
    assert (first_devices.count("wide"), first_devices.count("narrow")) == (3, 9)


def test_noisy_devices_leave_capacity_for_others():
    batcher = Batcher(capacity=100, device_rows=40)

    def count_accepted(device, n_rows=1):
        return sum(
            batcher.admit(make_ticket(number, device=device, n_rows=n_rows), 0.0) == QUEUED
            for number in range(200)
        )

    assert count_accepted("wide", n_rows=15) == 2  # 30 of 40 rows
    assert count_accepted("large", n_rows=500) == 1  # the first request is always accepted
    assert count_accepted("noisy") == 40
    # A device with n requests gets another one while at least n of the 100 places are free: 43 are
    # taken, so 28 <= 100 - 43 - 28. Further devices each take about half of the rest.
    assert count_accepted("other") == 29
    assert [count_accepted(f"device-{number}") for number in range(5)] == [15, 7, 4, 2, 0]
    assert len(batcher) == 2 + 1 + 40 + 29 + 15 + 7 + 4 + 2
    list_devices(batcher)
    assert count_accepted("noisy") == 40


def test_devices_without_requests_are_forgotten():
    batcher = Batcher(capacity=10)
    for number in range(1000):
        batcher.admit(make_ticket(number, n_rows=4, device=f"device-{number}"), 0.0)
        batcher.take_batch(0.0)
    assert len(batcher._virtual_ends) <= 21  # it forgets idle devices above twice the capacity


def test_expired_requests_are_dropped_and_forgotten():
    batcher = Batcher()
    batcher.admit(make_ticket(0, ttl_seconds=1.0), 0.0)
    batcher.admit(make_ticket(1, ttl_seconds=3.0), 0.0)
    batch, expired = batcher.take_batch(1.0)
    assert ticket_numbers(batch) == [1]
    assert [ticket.id for ticket in expired] == [make_ticket(0).id]
    assert batcher.admit(make_ticket(0, arrived_at=1.0), 1.0) == QUEUED


@pytest.mark.parametrize(
    ("bounds", "n_answers"),
    # Each answer has ten bytes and comes a second after the one before.
    [
        ({"max_answers": 3}, 3),
        ({"max_answer_bytes": 25}, 2),
        ({"max_answer_bytes": 20}, 2),
        ({"max_answer_bytes": 19}, 1),
        ({"max_answer_seconds": 4.5}, 5),
    ],
)
def test_memory_is_bounded_by_count_bytes_and_age(bounds, n_answers):
    batcher = Batcher(**bounds)
    for number in range(10):
        batcher.admit(make_ticket(number, arrived_at=number), number)
        (ticket,) = batcher.take_batch(number)[0].tickets
        batcher.finish(ticket, b"ten bytes.", number)
    assert len(batcher._remembered_answers) == n_answers
    admissions = [batcher.admit(make_ticket(number, arrived_at=9.0), 9.0) for number in range(10)]
    repeated_admission = Admission(counter_name="repeated", answer_payload=b"ten bytes.")
    assert admissions == [QUEUED] * (10 - n_answers) + [repeated_admission] * n_answers


# Small bounds, which a few steps of the machine below reach.
CAPACITY = 5
MAX_BATCH = 4
MAX_ANSWERS = 3
MAX_ANSWER_SECONDS = 10.0


class BatcherMachine(RuleBasedStateMachine):
    """Any order of offers, takes, answers and waits, compared with lists and dicts."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.batcher = Batcher(
            capacity=CAPACITY,
            max_batch=MAX_BATCH,
            max_answers=MAX_ANSWERS,
            max_answer_seconds=MAX_ANSWER_SECONDS,
        )
        self.queued_tickets = {}  # by key, in order of arrival
        self.running_tickets = []
        self.stored_answers = {}  # time and answer by key, the oldest first

    @rule(
        number=st.integers(0, 7),
        device=st.sampled_from(["pi", "other"]),
        n_rows=st.integers(1, 6),
        model=st.sampled_from([DIGITS, WINE]),
        ttl_seconds=st.floats(0, 5),
    )
    def admit_request(self, number, device, n_rows, model, ttl_seconds):
        ticket = make_ticket(
            number,
            device=device,
            n_rows=n_rows,
            model=model,
            arrived_at=self.now,
            ttl_seconds=ttl_seconds,
        )
        n_queued_of_device = sum(
            queued_ticket.device == device for queued_ticket in self.queued_tickets.values()
        )
        self.stored_answers = {
            key: (answer_time, answer)
            for key, (answer_time, answer) in list(self.stored_answers.items())[-MAX_ANSWERS:]
            if self.now - answer_time < MAX_ANSWER_SECONDS
        }
        n_free_places = CAPACITY - len(self.queued_tickets)
        admission = self.batcher.admit(ticket, self.now)
        if ticket.key in self.queued_tickets or ticket.key in [
            queued_ticket.key for queued_ticket in self.running_tickets
        ]:
            assert admission == DUPLICATE
        elif ticket.key in self.stored_answers:
            assert admission == Admission(
                counter_name="repeated", answer_payload=self.stored_answers[ticket.key][1]
            )
        elif n_free_places == 0 or n_queued_of_device > n_free_places:
            assert admission == Admission(wait_ms=1)
        else:
            assert admission == QUEUED
            self.queued_tickets[ticket.key] = ticket

    @rule()
    def take_batch(self):
        batch, expired = self.batcher.take_batch(self.now)
        for expired_ticket in expired:
            assert expired_ticket.expires_at <= self.now
            assert self.queued_tickets.pop(expired_ticket.key) is expired_ticket
        if batch is None:
            assert not self.queued_tickets
            return
        live_tickets = [
            ticket for ticket in self.queued_tickets.values() if ticket.expires_at > self.now
        ]
        # The requests of each device run in the order of their arrival.
        first_ticket = batch.tickets[0]
        assert first_ticket is next(
            ticket for ticket in live_tickets if ticket.device == first_ticket.device
        )
        for device in ("pi", "other"):
            tickets_of_device = [ticket for ticket in batch.tickets if ticket.device == device]
            live_tickets_of_model = [
                ticket
                for ticket in live_tickets
                if (ticket.model, ticket.device) == (batch.model, device)
            ]
            assert tickets_of_device == live_tickets_of_model[: len(tickets_of_device)]
        # A batch may have one request with more rows than the largest batch.
        assert len(batch.tickets) == 1 or len(batch.rows) <= MAX_BATCH
        assert batch.rows.dtype == np.float32
        assert np.array_equal(batch.rows, np.concatenate([ticket.rows for ticket in batch.tickets]))
        for ticket in batch.tickets:
            del self.queued_tickets[ticket.key]
            self.running_tickets.append(ticket)

    @precondition(lambda self: self.running_tickets)
    @rule()
    def finish_request(self):
        ticket = self.running_tickets.pop(0)
        answer = b"%d" % len(self.stored_answers)
        self.batcher.finish(ticket, answer, self.now)
        self.stored_answers[ticket.key] = (self.now, answer)

    @precondition(lambda self: self.running_tickets)
    @rule()
    def forget_request(self):
        self.batcher.forget(self.running_tickets.pop())

    @rule(seconds=st.floats(0, 4))
    def advance_time(self, seconds):
        self.now += seconds

    @invariant()
    def queue_and_memory_are_bounded(self):
        assert len(self.batcher) == len(self.queued_tickets) <= CAPACITY
        assert len(self.batcher._remembered_answers) <= MAX_ANSWERS


TestBatcherMachine = BatcherMachine.TestCase
