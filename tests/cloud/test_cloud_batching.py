"""The batch that a model gets is the one that its times call for."""

import numpy as np
import pytest

from gatewise_cloud.worker.batch_sizes import SIZES, BatchPlans, Timing, measure
from gatewise_cloud.worker.batcher import Batcher, Plan, Ticket

KEY = ("m", "1")


def timing(fixed, each):
    return Timing({n: fixed + each * n for n in SIZES})


@pytest.mark.parametrize(
    ("times", "best"),
    [
        (timing(0.0, 37e-6), 1),
        (timing(1e-6, 37e-6), 1),
        (timing(40e-6, 50e-6), 8),
        (timing(1e-3, 1e-6), 32),
        (Timing({1: 37e-6, 2: 90e-6, 4: 200e-6}), 1),
        (Timing({1: 1.0}), 16),
        (Timing({}), 16),
    ],
    ids=["forest", "almost", "svm", "fixed", "worse-in-company", "slow", "unknown"],
)
def test_the_smallest_batch_within_a_tenth_of_the_best(times, best):
    assert times.best == best


class Clock:
    def __init__(self, fixed, each):
        self.now, self.fixed, self.each, self.runs = 0.0, fixed, each, []

    def __call__(self):
        return self.now

    def run(self, X):
        self.runs.append(len(X))
        self.now += self.fixed + self.each * len(X)


def test_measuring_keeps_to_its_time():
    quick, slow = Clock(40e-6, 50e-6), Clock(0.3, 0.0)
    rows = np.zeros((3, 2), np.float32)
    assert measure(quick.run, rows, clock=quick).seconds == pytest.approx(
        timing(40e-6, 50e-6).seconds
    )
    assert sorted(set(quick.runs)) == list(SIZES)
    times = measure(slow.run, rows, clock=slow)
    assert times.seconds == {1: pytest.approx(0.3)}
    assert slow.runs == [1, 1]


def test_runs_correct_the_choice():
    plans = BatchPlans()
    plans.add(KEY, timing(1e-3, 1e-6))
    assert plans.plan(KEY) == Plan(32, 0.0)
    for _ in range(100):  # the machine changed: an instance costs the same in any company
        for n in SIZES:
            plans.learn(KEY, n, 37e-6 * n)
    assert plans.plan(KEY).max_batch == 1
    assert plans.as_json(KEY)["run_us"]["32"] == pytest.approx(37 * 32, rel=0.05)
    plans.drop(KEY)
    assert plans.plan(KEY).max_batch == 16


def test_a_fixed_batch_stays_and_waiting_must_pay():
    plans = BatchPlans(4, wait_ms=2.0)
    plans.add(KEY, timing(1e-3, 1e-6))
    assert plans.plan(KEY) == Plan(4, 0.002)
    plans.add(KEY, timing(1e-6, 1e-3))
    assert plans.plan(KEY) == Plan(4, 0.0)
    assert not BatchPlans(4).measures
    assert BatchPlans(wait_ms=1.0).measures


def ticket(arrived, n=1, expires=1e9):
    rows = np.zeros((n, 2), np.float32)
    id_ = np.random.default_rng().bytes(16)
    return Ticket(
        device="d", id=id_, digest=b"", model=KEY, rows=rows, arrived=arrived, expires=expires
    )


def test_a_batcher_waits_for_company_only_as_planned():
    batcher = Batcher(plan=lambda model: Plan(4, 0.01))
    assert batcher.pause(0.0) == 0.0
    batcher.offer(ticket(0.0), 0.0)
    assert batcher.pause(0.0) == pytest.approx(0.01)
    assert batcher.pause(0.02) == 0.0
    batcher.offer(ticket(0.001, 2), 0.001)
    assert batcher.pause(0.002) == pytest.approx(0.008)
    batcher.offer(ticket(0.002), 0.002)  # full
    assert batcher.pause(0.002) == 0.0
    assert len(batcher.take(0.002)[0].rows) == 4
    batcher.offer(ticket(0.003, expires=0.005), 0.003)
    assert batcher.pause(0.003) == pytest.approx(0.002)  # not beyond its life


def test_requests_are_known_until_they_are_done():
    batcher = Batcher()
    first, second = ticket(0.0), ticket(0.0, expires=0.5)
    batcher.offer(first, 0.0)
    batcher.offer(second, 0.0)
    assert batcher.pending(KEY) == 2
    batch = batcher.take(0.1)[0]
    assert batcher.pending(KEY) == 2
    batcher.finish(batch.tickets[0], b"", 0.1)
    batcher.forget(batch.tickets[1])
    batcher.forget(batch.tickets[1])
    assert batcher.pending(KEY) == 0
