"""Tests of virtual workers against queueing theory, and of workers under a larger load."""

import random

import numpy as np
import pytest

from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.results import CLOUD, FALLBACK, REASON
from gatewise_sim.fleet.worker import (
    QueueSample,
    SampledWorker,
    VirtualTicket,
    WorkerContext,
    sample_queue,
)
from gatewise_sim.fleet.workload import Poisson, draw_arrivals
from gatewise_sim.timings import Timings
from tests.support.fleets import arrivals_at, make_scenario, make_table, run_policy


def make_timings(run_us: float = 10_000, instance_us: float = 0, **changes: float) -> Timings:
    """Make timings of a worker, in which everything else takes no time."""
    fields = {"message_us": 0, "broker_us": 0, "hop_ms": 0}
    return Timings(edge_ms=(0.0,), run_us=run_us, instance_us=instance_us, **fields | changes)


def test_simultaneous_requests_run_in_batches():
    """The first request runs alone; the other nine queue and run in batches of 4, 4 and 1."""
    fleet = run_policy(
        make_table(),
        make_scenario(max_batch=4),
        make_timings(10_000, 1000),
        arrivals=arrivals_at(np.zeros(10)),
    )
    # a run takes 10 ms and 1 ms per instance
    ends = np.cumsum([11.0, 14.0, 14.0, 11.0])
    assert fleet.answers.latency_ms == pytest.approx(np.repeat(ends, [1, 4, 4, 1]))
    assert fleet.worker_counts["batches"] == 4
    assert fleet.worker_counts["batch"] == 2.5  # 10 requests in 4 runs


def test_wait_ms_fills_a_batch():
    """The worker waits for the second request for 5 ms, and runs a full batch at once."""
    arrivals = arrivals_at([0.0, 0.005, 1.0, 1.0])
    fleet = run_policy(make_table(), make_scenario(wait_ms=8.0, max_batch=2), arrivals=arrivals)
    assert fleet.answers.latency_ms == pytest.approx([15.0, 10.0, 10.0, 10.0])
    assert fleet.worker_counts["batches"] == 2


@pytest.mark.slow
def test_mean_wait_matches_the_formula_for_m_d_1():
    """The mean wait of M/D/1 is rho * s / (2 (1 - rho)); its standard error here is 1.5 %.

    The utilisation and the latency vary less, so their tolerances are narrower.
    """
    utilisation, service_s = 0.6, 0.010
    fleet = run_policy(
        make_table(),
        make_scenario(devices=100, time="250s", workload="poisson:0.6/s", max_batch=1, queue=10**5),
        make_timings(),
        n_devices=100,
    )
    wait_s = fleet.worker_counts["wait_ms"] / 1000
    assert wait_s == pytest.approx(utilisation * service_s / (2 * (1 - utilisation)), rel=0.06)
    assert fleet.worker_counts["utilisation"] == pytest.approx(utilisation, rel=0.03)
    assert fleet.answers.latency_ms.mean() == pytest.approx(1000 * (wait_s + service_s), rel=0.02)


def test_worker_with_a_full_queue_refuses_requests():
    """One request runs, one expires in the queue, and two are refused too late for a retry."""
    fleet = run_policy(
        make_table(),
        make_scenario(queue=1, deadline_ms=3_900.0),
        make_timings(2_000_000),
        arrivals=arrivals_at(np.zeros(4)),
    )
    assert fleet.answers.route.tolist() == [CLOUD, FALLBACK, FALLBACK, FALLBACK]
    assert fleet.worker_counts["busy"] == 2
    reasons = fleet.answers.reason.tolist()
    assert reasons[1:] == [REASON["timeout"], REASON["cloud:busy"], REASON["cloud:busy"]]


def test_duplicate_is_computed_once_and_answered_twice():
    """A device retries before its answer arrives, and the worker recognises the duplicate."""
    fleet = run_policy(
        make_table(),
        make_scenario(deadline_ms=60_000.0, max_batch=1),
        make_timings(1_000_000),
        arrivals=arrivals_at(np.arange(6) * 0.01),
    )
    assert fleet.device_counts["retries"] > 0
    assert (
        fleet.worker_counts["duplicates"] + fleet.worker_counts["repeated"]
        == fleet.device_counts["retries"]
    )
    assert fleet.worker_counts["answered"] == 6
    assert (fleet.answers.route == CLOUD).all()


def test_requests_of_a_failing_worker_are_lost_and_retried():
    fleet = run_policy(
        make_table(),
        make_scenario(deadline_ms=10_000.0, outage=("workers:1:+2s-+3s",), workers=2),
        make_timings(1_500_000),
        arrivals=arrivals_at([1.0]),
    )
    assert fleet.worker_counts["lost"] == 1
    assert fleet.device_counts["retries"] == 1
    assert fleet.answers.route.tolist() == [CLOUD]


# -- under the load of a larger fleet -------------------------------------------------------------


def make_context(**changes) -> WorkerContext:
    """Make the context of a worker that runs one request at a time, without a queue's limit."""
    return WorkerContext(make_timings(), make_scenario(max_batch=1, queue=10**5, **changes), b"x")


@pytest.mark.slow
def test_sampled_queue_has_the_waits_of_a_simulated_queue():
    """The sample omits the first fifth of an M/D/1 queue, whose mean wait has a formula."""
    utilisation = 0.6
    arrivals = draw_arrivals(Poisson(utilisation / 0.010), 1, 500.0, n_rows=1)
    sample = sample_queue(make_context(), arrivals, ttl_s=100.0)
    # 10 ms of service after a wait of 0.6 * 10 ms / (2 * 0.4) = 7.5 ms
    assert np.mean(sample.answer_seconds) == pytest.approx(0.010 + 0.0075, rel=0.06)
    assert sample.utilisation == pytest.approx(utilisation, rel=0.03)
    assert sample.mean_batch == 1.0


def test_requests_expire_in_an_overloaded_queue():
    arrivals = draw_arrivals(Poisson(200.0), 1, 100.0, n_rows=1)
    sample = sample_queue(make_context(), arrivals, ttl_s=0.5)
    expired_share = np.isnan(sample.answer_seconds).mean()
    # the worker can serve 100 of the 200 requests per second
    assert expired_share == pytest.approx(0.5, abs=0.02)
    assert sample.utilisation == pytest.approx(1.0, abs=1e-3)


class RecordingRequester:
    """A requester that records its replies."""

    def __init__(self) -> None:
        self.replies = []

    def reply(self, error_code, worker_us, wait_ms=0) -> None:
        self.replies.append((error_code, worker_us))


@pytest.mark.parametrize(
    ("answer_seconds", "replies"),
    # an answer after 250,000 us, a refusal (negative), an expired request (NaN), and an answer
    # after the request has expired
    [(0.25, [(None, 250_000)]), (-1.0, [("busy", 0)]), (float("nan"), []), (9.0, [])],
)
def test_sampled_worker_replies_with_the_sampled_outcome(answer_seconds, replies):
    clock = Clock()
    sample = QueueSample([answer_seconds], utilisation=0.5, mean_batch=1.0, mean_wait_s=0.0)
    worker = SampledWorker(clock, make_context(), lambda now: sample, random.Random(0))
    requester = RecordingRequester()
    ticket = VirtualTicket(
        device="d", id=b"1" * 16, digest=b"", model=("m", "1"), rows=np.zeros((1, 0)),
        arrived_at=0.0, expires_at=1.0, requester=requester,
    )  # fmt: skip
    worker.receive(ticket)
    clock.run()
    assert requester.replies == replies
    # a duplicate of an answered request gets the stored answer; another outcome is drawn again
    worker.receive(ticket)
    clock.run()
    assert len(requester.replies) == 2 * len(replies)
