"""Tests of the virtual device against the real device on the same virtual clock, link and worker.

The answers, times, bytes and counters of both devices must be identical.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from gatewise_edge.link.offload import RoundTrip
from gatewise_sim.fleet.results import REASONS, ROUTES
from gatewise_sim.fleet.run import FleetPolicy, VirtualFleet, run_fleet
from gatewise_sim.scenario import Scenario
from tests.sim.fleet.real_device import TIMINGS, run_real_device
from tests.support.fleets import arrivals_at, write_link

#: Enough instances that every case retries, refuses or times out often.
N_INSTANCES = 400


@dataclass(frozen=True)
class Case:
    """A link, a load and faults."""

    name: str
    link: dict[str, float]
    deadline_ms: float
    mean_gap: float  # seconds between instances
    queue: int = 1024  # requests that the worker holds
    outages: tuple[tuple[float, float], ...] = ()  # begin and end in seconds
    audit: float | None = None
    max_offloads: str | None = None

    def draw_arrivals(self, table):
        """Draw times and rows; with audits, the device errs on half of the later rows."""
        rng = np.random.default_rng(7)
        times = np.cumsum(rng.exponential(self.mean_gap, N_INSTANCES))
        rows = rng.integers(0, len(table.is_offloaded), N_INSTANCES)
        if self.audit is not None:
            is_wrong = ~table.is_offloaded & (table.local_label != table.cloud_label)
            later_rows = rows[N_INSTANCES // 2 :: 2]
            later_rows[:] = rng.choice(np.flatnonzero(is_wrong), len(later_rows))
        return arrivals_at(times, row_numbers=rows)

    def make_scenario(self, folder, last_time):
        return Scenario(
            devices=1,
            time=f"{last_time + 1:.3f}s",
            link=write_link(folder, name=self.name, **self.link),
            deadline_ms=self.deadline_ms,
            queue=self.queue,
            max_batch=4,
            outage=tuple(f"cloud:+{begin:g}s-+{end:g}s" for begin, end in self.outages),
            audit=self.audit,
            max_offloads=self.max_offloads,
        )


GOOD_LINK = {"rtt_ms": 45, "jitter_ms": 15, "down_kbps": 100_000, "up_kbps": 50_000}
FAST_LINK = {"rtt_ms": 2, "jitter_ms": 1}
LOSSY_LINK = {"rtt_ms": 200, "jitter_ms": 150, "down_kbps": 300, "up_kbps": 100, "loss": 0.15}
SLOW_LINK = {"rtt_ms": 700, "jitter_ms": 100, "down_kbps": 64, "up_kbps": 32, "loss": 0.02}
FAIR_LINK = {"rtt_ms": 60, "jitter_ms": 20, "down_kbps": 1e5, "up_kbps": 1e5, "loss": 0.01}
CASES = (
    Case("fine", GOOD_LINK, deadline_ms=500.0, mean_gap=0.05),
    Case("lossy", LOSSY_LINK, deadline_ms=600.0, mean_gap=0.1),
    Case("slow", SLOW_LINK, deadline_ms=800.0, mean_gap=0.3),
    Case("one-request-queue", FAST_LINK, deadline_ms=60.0, mean_gap=0.004, queue=1),
    Case(
        "deadline-near-round-trip",
        {"rtt_ms": 12, "jitter_ms": 2},
        deadline_ms=20.0,
        mean_gap=0.01,
    ),
    Case(
        "outages", FAIR_LINK, deadline_ms=400.0, mean_gap=0.1, outages=((5.0, 12.0), (20.0, 21.0))
    ),
    Case("bounded-offloads", GOOD_LINK, deadline_ms=500.0, mean_gap=0.05, max_offloads="5/min"),
    Case("audits", GOOD_LINK, deadline_ms=500.0, mean_gap=0.05, audit=0.3),
    Case("refused-audits", FAST_LINK, deadline_ms=60.0, mean_gap=0.004, queue=1, audit=0.5),
    Case(
        "audits-in-an-outage",
        FAIR_LINK,
        deadline_ms=400.0,
        mean_gap=0.1,
        outages=((5.0, 25.0),),
        audit=0.3,
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_virtual_device_has_exactly_the_outcomes_of_the_real_device(
    digits, table, tmp_path, monkeypatch, case
):
    arrivals = case.draw_arrivals(table)
    scenario = case.make_scenario(tmp_path, arrivals.time[-1])
    policy = FleetPolicy(
        key="system", name="Gatewise", is_offloaded=table.is_offloaded, has_audits_and_limit=True
    )
    real_run = run_real_device(digits, scenario, arrivals, case.outages, table.max_disagreement)
    # a real device starts without an estimate of the round trip
    monkeypatch.setattr(VirtualFleet, "_compute_usual_round_trip", lambda _: RoundTrip())
    virtual_run = run_fleet(table, scenario, policy, TIMINGS, arrivals=arrivals)
    check_answers(real_run, virtual_run)
    check_audits(real_run, virtual_run)
    # the limit and the audits matter in their cases
    if case.max_offloads is not None:
        n_limited = sum(answer.reason == "offload-limit" for answer in real_run.answers)
        assert n_limited > 10
    if case.audit is not None:
        # about 0.3 of the instances that stay on the device, most of which are wrong later on
        assert len(real_run.audits) > 50
        assert len(real_run.instances_at_alarms) == 1


def check_answers(real_run, virtual_run):
    """Check that answers, bytes and counters are equal."""
    virtual_answers, real_answers = virtual_run.answers, real_run.answers
    reasons = [
        {"last-stage": "stopped"}.get(answer.reason, answer.reason) for answer in real_answers
    ]
    assert [REASONS[reason] for reason in virtual_answers.reason] == reasons
    assert [ROUTES[route] for route in virtual_answers.route] == [
        answer.route for answer in real_answers
    ]
    assert virtual_answers.label.tolist() == [answer.class_index for answer in real_answers]
    for name in ("stage", "cost", "latency_ms"):
        assert getattr(virtual_answers, name).tolist() == [
            getattr(answer, name) for answer in real_answers
        ]
    assert virtual_answers.payload_bytes_up.sum() == real_run.counts["bytes_up"]
    assert virtual_answers.payload_bytes_down.sum() == real_run.counts["bytes_down"]
    device_counts = virtual_run.device_counts
    assert {name: real_run.counts[name] for name in device_counts} == device_counts


def check_audits(real_run, virtual_run):
    """Check that both devices audit the same instances, and the worker raises the same alarms."""
    answers = virtual_run.answers
    virtual_audits = zip(
        answers.time[answers.is_audited], answers.label[answers.is_audited], strict=True
    )
    assert list(virtual_audits) == real_run.audits
    assert list(virtual_run.instances_at_alarms) == real_run.instances_at_alarms
