"""Tests of the virtual device against the real device on the same virtual clock, link and worker.

The real device encodes and decodes every message and runs its stages. The answers, times, bytes and
counters of both devices must be identical.
"""

import random
from dataclasses import replace

import numpy as np
import pytest

from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.device.audit import AuditSampler
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import PendingInstance
from gatewise_edge.link import wire
from gatewise_edge.link.breaker import Breaker
from gatewise_edge.link.offload import RoundTrip
from gatewise_edge.link.offload_rules import OffloadRules
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.device import audit_seed
from gatewise_sim.fleet.link import (
    PUBACK_BYTES,
    REQUEST_TOPIC,
    RESPONSE_TOPIC,
    VirtualLink,
    publish_bytes,
)
from gatewise_sim.fleet.results import REASONS, ROUTES
from gatewise_sim.fleet.run import FleetPolicy, VirtualFleet, run_fleet
from gatewise_sim.fleet.worker import VirtualTicket, VirtualWorker, WorkerModel
from gatewise_sim.scenario import Scenario
from gatewise_sim.timings import Timings
from tests.support.fleets import at_times, write_link

NAME = "0" * 8
TIMINGS = Timings(
    edge_ms=(0.0, 0.0), run_us=4000, instance_us=1000, message_us=0, broker_us=0, hop_ms=0
)


class LinkRequester:
    """A requester that sends the worker's response to the real device over the virtual link."""

    def __init__(self, link: "ClockLink", request: wire.Request) -> None:
        self.link = link
        self.request = request

    def reply(self, error: str | None, worker_us: int, wait_ms: int = 0) -> None:
        request = self.request
        if error is not None:
            refusal = wire.Response.refusal(request, error, "the queue is full")
            response = replace(refusal, wait_ms=wait_ms)
        else:
            labels, probabilities = self.link.model.answer(request.X)
            response = wire.Response(
                id=request.id,
                model=request.model,
                version=request.version,
                labels=labels,
                probabilities=probabilities,
                worker_us=worker_us,
            )
        payload = wire.encode_response(response)
        size = publish_bytes(RESPONSE_TOPIC, len(payload))
        clock = self.link.clock
        clock.at(
            self.link.virtual_link.send(clock.now, size, False), self.link.deliver_response, payload
        )


class ClockLink:
    """A link that carries a real device's messages to a virtual worker in virtual time."""

    ready = True

    def __init__(self, clock, virtual_link, worker, model) -> None:
        self.clock, self.virtual_link, self.worker, self.model = clock, virtual_link, worker, model
        self.on_response = lambda: None
        self.audits = []

    def open(self, receive) -> None:
        self.receive = receive

    def close(self) -> None:
        pass

    def send(self, payload: bytes) -> bool:
        mark = wire.decode_request(payload).audit
        if mark is not None:
            self.audits.append((self.clock.now, mark.class_index))
        size = publish_bytes(REQUEST_TOPIC, len(payload))
        self.clock.at(
            self.virtual_link.send(self.clock.now, size, True), self.deliver_request, payload
        )
        return True

    def deliver_request(self, payload: bytes) -> None:
        self.virtual_link.send(self.clock.now, PUBACK_BYTES, False)
        request = wire.decode_request(payload)
        now = self.clock.now
        ticket = VirtualTicket(
            device=NAME,
            id=request.id,
            digest=b"",
            model=(request.model, request.version),
            rows=request.X,
            arrived_at=now,
            expires_at=now + request.ttl_ms / 1000.0,
            requester=LinkRequester(self, request),
            audit=request.audit,
            label=int(self.model.answer(request.X)[0][0]),
        )
        self.worker.receive(ticket)

    def deliver_response(self, payload: bytes) -> None:
        self.virtual_link.send(self.clock.now, PUBACK_BYTES, True)
        self.receive(payload)
        self.on_response()


def run_real(small, scenario: Scenario, arrivals, outages, promised):
    """Run the real device; return its ordered answers, its counters, its audits and its worker."""
    clock = Clock()
    rng = random.Random(f"{scenario.seed}/system")
    virtual_link = VirtualLink(scenario.link_profile, rng)
    model = WorkerModel(TIMINGS, scenario, b"", promised)
    worker = VirtualWorker(clock, model)
    for begin, end in outages:
        clock.at(begin, worker.fail)
        clock.at(end, setattr, worker, "up", True)
    cloud = CloudModel.from_bundle(small.bundle)
    link = ClockLink(clock, virtual_link, worker, cloud)
    answers = {}
    pending = {}
    sampler = None
    if scenario.audit is not None:
        sampler = AuditSampler(scenario.audit, random.Random(audit_seed(scenario.seed, 0)))
    with Device(
        small.bundle,
        link=link,
        deadline_ms=scenario.deadline_ms,
        offload_rules=OffloadRules(
            breaker=Breaker(draw=rng.random), max_offloads=scenario.max_offloads
        ),
        audit=sampler,
        clock=lambda: clock.now,
    ) as device:

        def record(i, outcome) -> None:
            if isinstance(outcome, PendingInstance):
                pending[i] = outcome
                clock.at(outcome.wake_at, advance, i)
            else:
                pending.pop(i, None)
                answers[i] = outcome

        def advance(i) -> None:
            if i in pending:
                record(i, device.advance(pending[i]))

        link.on_response = lambda: [advance(i) for i in list(pending)]
        for i, (time, row) in enumerate(zip(arrivals.time.tolist(), arrivals.row, strict=True)):
            clock.at(time, lambda i=i, row=row: record(i, device.begin(small.rows[row])))
        clock.run()
        cloud.close()
        counts = device.counters | device.gauges
    return [answers[i] for i in range(len(arrivals.time))], counts, link.audits, model


@pytest.mark.parametrize(
    ("link", "queue", "deadline_ms", "mean_gap", "outages", "audit"),
    [
        (("fine", 45, 15, 100_000, 50_000), 1024, 500.0, 0.05, (), None),
        (("lossy", 200, 150, 300, 100, 0.15), 1024, 600.0, 0.1, (), None),
        (("slow", 700, 100, 64, 32, 0.02), 1024, 800.0, 0.3, (), None),
        (("quick", 2, 1), 1, 60.0, 0.004, (), None),
        (("short", 12, 2), 1024, 20.0, 0.01, (), None),
        # audits over a good link, with a worker that refuses requests, and without responses
        (("audited", 45, 15, 100_000, 50_000), 1024, 500.0, 0.05, (), 0.3),
        (("busy", 2, 1), 1, 60.0, 0.004, (), 0.5),
        (("silent", 60, 20, 1e5, 1e5, 0.01), 1024, 400.0, 0.1, ((5.0, 25.0),), 0.3),
        (("down", 60, 20, 1e5, 1e5, 0.01), 1024, 400.0, 0.1, ((5.0, 12.0), (20.0, 21.0)), None),
        # a bound on the rate of offloads
        (("bounded", 45, 15, 100_000, 50_000), 1024, 500.0, 0.05, (), None),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) and value else "",
)
def test_virtual_device_has_exactly_the_outcomes_of_the_real_device(
    small, table, tmp_path, monkeypatch, link, queue, deadline_ms, mean_gap, outages, audit
):
    rng = np.random.default_rng(7)
    n = 400
    time = np.cumsum(rng.exponential(mean_gap, n))
    row = rng.integers(0, len(small.rows), n)
    if audit is not None:  # the device errs on half of the later rows
        wrong = ~table.offload & (table.local_label != table.cloud_label)
        row[n // 2 :: 2] = rng.choice(np.flatnonzero(wrong), len(row[n // 2 :: 2]))
    arrivals = at_times(time, rows=row)
    names = ("name", "rtt_ms", "jitter_ms", "down_kbps", "up_kbps", "loss")
    scenario = Scenario(
        devices=1,
        time=f"{time[-1] + 1:.3f}s",
        link=write_link(tmp_path, **dict(zip(names, link, strict=False))),
        deadline_ms=deadline_ms,
        queue=queue,
        max_batch=4,
        outage=tuple(f"cloud:+{begin:g}s-+{end:g}s" for begin, end in outages),
        audit=audit,
        max_offloads="5/min" if link[0] == "bounded" else None,
    )
    policy = FleetPolicy(key="system", name="Gatewise", offload=table.offload, limited=True)
    answers, counts, audits, model = run_real(small, scenario, arrivals, outages, table.promised)
    # a real device starts without an estimate of the round trip
    monkeypatch.setattr(VirtualFleet, "_usual_trip", lambda _: RoundTrip())
    fleet = run_fleet(table, scenario, policy, TIMINGS, arrivals=arrivals)
    virtual = fleet.answers
    assert [ROUTES[route] for route in virtual.route] == [answer.route for answer in answers]
    reasons = [{"last-stage": "stopped"}.get(a.reason, a.reason) for a in answers]
    assert [REASONS[reason] for reason in virtual.reason] == reasons
    assert virtual.label.tolist() == [answer.class_index for answer in answers]
    assert virtual.stage.tolist() == [answer.stage for answer in answers]
    assert virtual.cost.tolist() == [answer.cost for answer in answers]
    assert virtual.latency_ms.tolist() == [answer.latency_ms for answer in answers]
    assert virtual.payload_up.sum() == counts["bytes_up"]
    assert virtual.payload_down.sum() == counts["bytes_down"]
    assert {name: counts[name] for name in fleet.counts} == fleet.counts
    if link[0] == "bounded":
        assert reasons.count("offload-limit") > 10
    # both devices audit the same instances, and the worker's test raises the same alarms
    assert list(
        zip(virtual.time[virtual.audited], virtual.label[virtual.audited], strict=True)
    ) == (audits)
    assert list(fleet.alarms) == model.alarms
    if audit is not None:
        assert len(audits) > 50
        assert len(fleet.alarms) == 1
