"""Batcher in virtual time, compared with a simple model of its rules."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gatewise_cloud.worker.batcher import Batcher, Offer, Ticket

QUEUED = Offer(queued=True)
DUPLICATE = Offer(counter="duplicates")
DIGITS, WINE = ("digits", "1"), ("wine", "2")


def ticket(
    number=0, *, rows=1, model=DIGITS, arrived=0.0, ttl=1.0, device="pi", digest=b"d", value=None
):
    return Ticket(
        device=device,
        id=number.to_bytes(16, "big"),
        digest=digest,
        model=model,
        rows=np.full((rows, 3), number if value is None else value, np.float32),
        arrived=arrived,
        expires=arrived + ttl,
    )


def numbers(batch):
    return [int.from_bytes(queued.id, "big") for queued in batch.tickets]


def test_take_returns_queued_requests_up_to_the_largest_batch():
    batcher = Batcher(max_batch=16)
    for number in range(20):
        assert batcher.offer(ticket(number), 0.0) == QUEUED
    batch, expired = batcher.take(0.0)
    assert numbers(batch) == list(range(16))
    assert expired == []
    assert len(batcher) == 4
    assert numbers(batcher.take(0.0)[0]) == [16, 17, 18, 19]
    assert batcher.take(0.0) == (None, [])


def test_a_batch_holds_the_rows_of_its_requests_in_order():
    batcher = Batcher()
    for number, rows in enumerate([2, 1, 3]):
        batcher.offer(ticket(number, rows=rows), 0.0)
    batch = batcher.take(0.0)[0]
    assert batch.rows.dtype == np.float32
    assert batch.rows[:, 0].tolist() == [0, 0, 1, 2, 2, 2]
    assert batch.rows.shape == (6, 3)


def test_wait_ms_is_the_expected_time_of_the_queued_rows():
    batcher, parallel_batcher = Batcher(), Batcher(parallel=2)
    for each_batcher in (batcher, parallel_batcher):
        each_batcher.offer(ticket(1, rows=4), 0.0)
        assert each_batcher.wait_ms == 1  # nothing has run yet
        assert each_batcher.expected_seconds(DIGITS, 1) == np.inf
        for _ in range(3):
            each_batcher.observe_run(DIGITS, 8, 0.4)  # 50 ms per instance
        assert each_batcher.expected_seconds(DIGITS, 2) == pytest.approx(0.1)
    assert (batcher.wait_ms, parallel_batcher.wait_ms) == (200, 100)
    batcher.offer(ticket(9, model=WINE), 0.0)
    batcher.observe_run(WINE, 1, 0.0065)
    assert batcher.wait_ms == 207
    for number in range(2, 40):
        batcher.offer(ticket(number, rows=50), 0.0)
    assert batcher.wait_ms == 30_000
    while batcher.take(0.0)[0]:
        pass
    assert batcher.wait_ms == 1


def test_pause_delays_a_request_only_with_a_wait_time():
    assert Batcher().pause(0.0) == 0.0
    batcher = Batcher(max_batch=4, wait=0.01)
    assert batcher.pause(0.0) == 0.0
    batcher.offer(ticket(0), 0.0)
    assert batcher.pause(0.0) == pytest.approx(0.01)
    assert batcher.pause(0.02) == 0.0
    batcher.offer(ticket(1, rows=2, arrived=0.001), 0.001)
    assert batcher.pause(0.002) == pytest.approx(0.008)
    batcher.offer(ticket(2, arrived=0.002), 0.002)  # full
    assert batcher.pause(0.002) == 0.0
    assert len(batcher.take(0.002)[0].rows) == 4
    batcher.offer(ticket(3, arrived=0.003, ttl=0.002), 0.003)
    assert batcher.pause(0.003) == pytest.approx(0.002)  # not after the request expires


def test_requests_are_pending_until_they_are_finished_or_forgotten():
    batcher = Batcher()
    batcher.offer(ticket(0), 0.0)
    batcher.offer(ticket(1, ttl=0.5), 0.0)
    assert batcher.pending(DIGITS) == 2
    batch = batcher.take(0.1)[0]
    assert batcher.pending(DIGITS) == 2
    batcher.finish(batch.tickets[0], b"", 0.1)
    batcher.forget(batch.tickets[1])
    batcher.forget(batch.tickets[1])
    assert batcher.pending(DIGITS) == 0


def test_documented_bounds_are_the_defaults():
    batcher = Batcher()
    bounds = (batcher.capacity, batcher.device_rows, batcher.queue_bytes, batcher.max_batch)
    assert bounds == (1024, 4096, 268_435_456, 16)
    memory = (batcher.memory, batcher.memory_bytes, batcher.memory_seconds)
    assert memory == (4096, 16_777_216, 60.0)


@pytest.mark.parametrize(("queue_bytes", "fits"), [(24, True), (23, False)])
def test_the_queue_holds_at_most_its_bytes(queue_bytes, fits):
    batcher = Batcher(queue_bytes=queue_bytes)
    assert batcher.offer(ticket(0, device="a"), 0.0).queued  # 12 bytes each
    assert batcher.offer(ticket(1, device="b"), 0.0).queued == fits


def test_repeated_requests_get_the_stored_answer_within_bytes_and_time():
    batcher = Batcher(memory_bytes=4, memory_seconds=5.0)
    for number, answer in enumerate((b"1234", b"5")):
        batcher.offer(ticket(number), 0.0)
        batcher.take(0.0)
        batcher.finish(ticket(number), answer, 0.0)
    assert batcher.offer(ticket(0), 0.0) == QUEUED
    assert batcher.offer(ticket(1), 4.9) == Offer(counter="repeated", answer=b"5")
    assert batcher.offer(ticket(1), 5.0) == QUEUED


def test_batches_have_one_model_and_the_oldest_runs_first():
    batcher = Batcher()
    for number, model in enumerate([WINE, DIGITS, WINE, DIGITS]):
        batcher.offer(ticket(number, model=model), 0.0)
    first = batcher.take(0.0)[0]
    second = batcher.take(0.0)[0]
    assert (first.model, numbers(first)) == (WINE, [0, 2])
    assert (second.model, numbers(second)) == (DIGITS, [1, 3])


def take_all_devices(batcher):
    """Take all requests and return their devices in order."""
    devices = []
    while len(batcher):
        devices += [queued.device for queued in batcher.take(0.0)[0].tickets]
    return devices


def test_a_noisy_device_does_not_delay_quiet_devices():
    batcher = Batcher(max_batch=1, device_rows=100_000)
    for number in range(50):
        batcher.offer(ticket(number, rows=500, device="noisy"), 0.0)
    batcher.take(0.0)
    for number in range(5):
        for device in ("quiet", "other"):
            batcher.offer(ticket(number, device=device), 0.0)
    assert take_all_devices(batcher)[:11] == ["quiet", "other"] * 5 + ["noisy"]


def test_devices_share_the_worker_by_rows_not_by_requests():
    batcher = Batcher(max_batch=1)
    for number in range(12):
        batcher.offer(ticket(number, rows=3, device="wide"), 0.0)
        batcher.offer(ticket(number, rows=1, device="narrow"), 0.0)
    first = take_all_devices(batcher)[:12]
    assert (first.count("wide"), first.count("narrow")) == (3, 9)


def test_noisy_devices_leave_capacity_for_others():
    batcher = Batcher(capacity=100, device_rows=40)

    def count_accepted(device, rows=1):
        return sum(
            batcher.offer(ticket(n, device=device, rows=rows), 0.0) == QUEUED for n in range(200)
        )

    assert count_accepted("wide", rows=15) == 2
    assert count_accepted("large", rows=500) == 1  # the first request is always accepted
    assert count_accepted("noisy") == 40
    assert count_accepted("other") == 29
    assert [count_accepted(f"device-{n}") for n in range(5)] == [15, 7, 4, 2, 0]
    assert batcher.rows == 30 + 500 + 40 + 29 + 15 + 7 + 4 + 2
    take_all_devices(batcher)
    assert count_accepted("noisy") == 40


def test_devices_without_requests_are_forgotten():
    batcher = Batcher(capacity=10)
    for number in range(1000):
        batcher.offer(ticket(number, rows=4, device=f"device-{number}"), 0.0)
        batcher.take(0.0)
    assert len(batcher._ends) <= 21


def test_expired_requests_are_dropped_and_forgotten():
    batcher = Batcher()
    batcher.offer(ticket(0, ttl=1.0), 0.0)
    batcher.offer(ticket(1, ttl=3.0), 0.0)
    batch, expired = batcher.take(1.0)
    assert numbers(batch) == [1]
    assert [t.id for t in expired] == [ticket(0).id]
    assert batcher.offer(ticket(0, arrived=1.0), 1.0) == QUEUED


def test_a_duplicate_is_dropped_before_the_answer_and_repeated_after_it():
    batcher = Batcher()
    batcher.offer(ticket(7), 0.0)
    assert batcher.offer(ticket(7), 0.1) == DUPLICATE
    (taken,) = batcher.take(0.2)[0].tickets
    assert batcher.offer(ticket(7), 0.3) == DUPLICATE
    batcher.finish(taken, b"answer", 0.4)
    assert batcher.offer(ticket(7), 0.5) == Offer(counter="repeated", answer=b"answer")


@pytest.mark.parametrize(
    ("bounds", "n_answers"),
    [
        ({"memory": 3}, 3),
        ({"memory_bytes": 25}, 2),
        ({"memory_seconds": 4.5}, 5),
    ],
)
def test_memory_is_bounded_by_count_bytes_and_age(bounds, n_answers):
    batcher = Batcher(**bounds)
    for number in range(10):
        batcher.offer(ticket(number, arrived=number), number)
        (taken,) = batcher.take(number)[0].tickets
        batcher.finish(taken, b"ten bytes.", number)
    assert len(batcher._answers) == n_answers
    offers = [batcher.offer(ticket(number, arrived=9.0), 9.0) for number in range(10)]
    repeated = Offer(counter="repeated", answer=b"ten bytes.")
    assert offers == [QUEUED] * (10 - n_answers) + [repeated] * n_answers


class BatcherMachine(RuleBasedStateMachine):
    """Any order of offers, takes, answers and waits, compared with lists and dicts."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.batcher = Batcher(capacity=5, max_batch=4, memory=3, memory_seconds=10.0)
        self.queued = {}  # key -> ticket, in order of arrival
        self.running = []
        self.answers = {}  # key -> (time, answer), oldest first

    @rule(
        number=st.integers(0, 7),
        device=st.sampled_from(["pi", "other"]),
        rows=st.integers(1, 6),
        model=st.sampled_from([DIGITS, WINE]),
        ttl=st.floats(0, 5),
    )
    def offer(self, number, device, rows, model, ttl):
        offered = ticket(number, device=device, rows=rows, model=model, arrived=self.now, ttl=ttl)
        n_of_device = sum(t.device == device for t in self.queued.values())
        self.answers = {
            key: (when, answer)
            for key, (when, answer) in list(self.answers.items())[-3:]
            if self.now - when < 10.0
        }
        outcome = self.batcher.offer(offered, self.now)
        if offered.key in self.queued or offered.key in [t.key for t in self.running]:
            assert outcome == DUPLICATE
        elif offered.key in self.answers:
            assert outcome == Offer(counter="repeated", answer=self.answers[offered.key][1])
        elif len(self.queued) == 5 or n_of_device > 5 - len(self.queued):
            assert outcome == Offer(wait_ms=1)
        else:
            assert outcome == QUEUED
            self.queued[offered.key] = offered

    @rule()
    def take(self):
        batch, expired = self.batcher.take(self.now)
        for old in expired:
            assert old.expires <= self.now
            assert self.queued.pop(old.key) is old
        if batch is None:
            assert not self.queued
            return
        alive = [t for t in self.queued.values() if t.expires > self.now]
        first = batch.tickets[0]
        assert first is next(t for t in alive if t.device == first.device)
        for device in ("pi", "other"):
            taken = [t for t in batch.tickets if t.device == device]
            same = [t for t in alive if (t.model, t.device) == (batch.model, device)]
            assert taken == same[: len(taken)]
        assert len(batch.tickets) == 1 or len(batch.rows) <= 4
        assert (batch.rows == np.concatenate([t.rows for t in batch.tickets])).all()
        for taken in batch.tickets:
            del self.queued[taken.key]
            self.running.append(taken)

    @precondition(lambda self: self.running)
    @rule()
    def finish(self):
        done = self.running.pop(0)
        answer = b"%d" % len(self.answers)
        self.batcher.finish(done, answer, self.now)
        self.answers[done.key] = (self.now, answer)

    @precondition(lambda self: self.running)
    @rule()
    def forget(self):
        self.batcher.forget(self.running.pop())

    @rule(seconds=st.floats(0, 4))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def queue_and_memory_are_bounded(self):
        assert len(self.batcher) == len(self.queued) <= 5
        assert len(self.batcher._answers) <= 3


TestBatcherMachine = BatcherMachine.TestCase
