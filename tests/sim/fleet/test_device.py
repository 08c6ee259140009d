"""Tests of the virtual device against the real device on the same virtual clock, link and worker.

The real device encodes and decodes every message and runs its stages. The answers, times, bytes and
counters of both devices must be identical.
"""

import random
from dataclasses import replace

import numpy as np
import pytest

from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.device.audit_sampler import AuditSampler
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
from gatewise_sim.fleet.worker import VirtualTicket, VirtualWorker, WorkerContext
from gatewise_sim.scenario import Scenario
from gatewise_sim.timings import Timings
from tests.support.fleets import arrivals_at, write_link

#: Name of the device, as long as a name in the virtual fleet, so that topics have the same length.
NAME = "0" * 8
#: Timings of a worker alone, because the real device's stages take no virtual time.
TIMINGS = Timings(
    edge_ms=(0.0, 0.0), run_us=4000, instance_us=1000, message_us=0, broker_us=0, hop_ms=0
)


class LinkRequester:
    """A requester that sends the worker's response to the real device over the virtual link."""

    def __init__(self, link: "ClockLink", request: wire.Request) -> None:
        self.link = link
        self.request = request

    def reply(self, error_code: str | None, worker_us: int, wait_ms: int = 0) -> None:
        """Send the answer, or the refusal with `error_code`."""
        request = self.request
        if error_code is not None:
            refusal = wire.Response.refusal(request, error_code, "the queue is full")
            response = replace(refusal, wait_ms=wait_ms)
        else:
            labels, probabilities = self.link.cloud_model.answer(request.X)
            response = wire.Response(
                id=request.id,
                model=request.model,
                version=request.version,
                labels=labels,
                probabilities=probabilities,
                worker_us=worker_us,
            )
        payload = wire.encode_response(response)
        packet_bytes = publish_bytes(RESPONSE_TOPIC, len(payload))
        clock = self.link.clock
        clock.call_at(
            self.link.virtual_link.send(clock.now, packet_bytes, is_uplink=False),
            self.link.deliver_response,
            payload,
        )


class ClockLink:
    """A link that carries a real device's messages to a virtual worker in virtual time."""

    is_ready = True

    def __init__(self, clock, virtual_link, worker, cloud_model) -> None:
        self.clock, self.virtual_link, self.worker, self.cloud_model = (
            clock,
            virtual_link,
            worker,
            cloud_model,
        )
        self.on_response = lambda: None
        self.audits = []

    def open(self, receive) -> None:
        self.receive = receive

    def close(self) -> None:
        pass

    def send(self, payload: bytes) -> bool:
        audit_mark = wire.decode_request(payload).audit
        if audit_mark is not None:
            self.audits.append((self.clock.now, audit_mark.class_index))
        packet_bytes = publish_bytes(REQUEST_TOPIC, len(payload))
        self.clock.call_at(
            self.virtual_link.send(self.clock.now, packet_bytes, is_uplink=True),
            self.deliver_request,
            payload,
        )
        return True

    def deliver_request(self, payload: bytes) -> None:
        self.virtual_link.send(self.clock.now, PUBACK_BYTES, is_uplink=False)
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
            cloud_label=int(self.cloud_model.answer(request.X)[0][0]),
        )
        self.worker.receive(ticket)

    def deliver_response(self, payload: bytes) -> None:
        self.virtual_link.send(self.clock.now, PUBACK_BYTES, is_uplink=True)
        self.receive(payload)
        self.on_response()


def run_real_device(digits, scenario: Scenario, arrivals, outages, max_disagreement):
    """Run the real device; return its ordered answers, its counters, its audits and its worker."""
    clock = Clock()
    rng = random.Random(f"{scenario.seed}/system")
    virtual_link = VirtualLink(scenario.link_profile, rng)
    worker_context = WorkerContext(TIMINGS, scenario, b"", max_disagreement)
    worker = VirtualWorker(clock, worker_context)
    for begin, end in outages:
        clock.call_at(begin, worker.fail)
        clock.call_at(end, setattr, worker, "is_up", True)
    cloud_model = CloudModel.from_bundle(digits.bundle)
    link = ClockLink(clock, virtual_link, worker, cloud_model)
    answers = {}
    pending_answers = {}
    sampler = None
    if scenario.audit is not None:
        sampler = AuditSampler(scenario.audit, random.Random(audit_seed(scenario.seed, 0)))
    with Device(
        digits.bundle,
        link=link,
        deadline_ms=scenario.deadline_ms,
        offload_rules=OffloadRules(
            breaker=Breaker(draw=rng.random), max_offloads=scenario.max_offloads
        ),
        audit=sampler,
        clock=lambda: clock.now,
    ) as device:

        def store_outcome(position, outcome) -> None:
            if isinstance(outcome, PendingInstance):
                pending_answers[position] = outcome
                clock.call_at(outcome.wake_at, advance_instance, position)
            else:
                pending_answers.pop(position, None)
                answers[position] = outcome

        def advance_instance(position) -> None:
            if position in pending_answers:
                store_outcome(position, device.advance(pending_answers[position]))

        link.on_response = lambda: [
            advance_instance(position) for position in list(pending_answers)
        ]
        for position, (arrival_time, row) in enumerate(
            zip(arrivals.time.tolist(), arrivals.row, strict=True)
        ):
            clock.call_at(
                arrival_time,
                lambda position=position, row=row: store_outcome(
                    position, device.begin(digits.rows[row])
                ),
            )
        clock.run()
        cloud_model.close()
        counts = device.counters | device.gauges
    return (
        [answers[position] for position in range(len(arrivals.time))],
        counts,
        link.audits,
        worker_context,
    )


@pytest.mark.parametrize(
    ("link", "queue", "deadline_ms", "mean_gap", "outages", "audit"),
    [  # a link is (name, rtt_ms, jitter_ms, down_kbps, up_kbps, loss); "short" has a deadline near
        # its round trip, and "quick" a queue of one request
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
    digits, table, tmp_path, monkeypatch, link, queue, deadline_ms, mean_gap, outages, audit
):
    rng = np.random.default_rng(7)
    n_instances = 400  # enough that every case retries, refuses or times out often
    times = np.cumsum(rng.exponential(mean_gap, n_instances))
    rows = rng.integers(0, len(digits.rows), n_instances)
    if audit is not None:  # the device errs on half of the later rows
        is_wrong = ~table.is_offloaded & (table.local_label != table.cloud_label)
        rows[n_instances // 2 :: 2] = rng.choice(
            np.flatnonzero(is_wrong), len(rows[n_instances // 2 :: 2])
        )
    arrivals = arrivals_at(times, row_numbers=rows)
    field_names = ("name", "rtt_ms", "jitter_ms", "down_kbps", "up_kbps", "loss")
    scenario = Scenario(
        devices=1,
        time=f"{times[-1] + 1:.3f}s",
        link=write_link(tmp_path, **dict(zip(field_names, link, strict=False))),
        deadline_ms=deadline_ms,
        queue=queue,
        max_batch=4,
        outage=tuple(f"cloud:+{begin:g}s-+{end:g}s" for begin, end in outages),
        audit=audit,
        max_offloads="5/min" if link[0] == "bounded" else None,
    )
    policy = FleetPolicy(
        key="system", name="Gatewise", is_offloaded=table.is_offloaded, has_audits_and_limit=True
    )
    real_answers, real_counters, real_audits, worker_context = run_real_device(
        digits, scenario, arrivals, outages, table.max_disagreement
    )
    # a real device starts without an estimate of the round trip
    monkeypatch.setattr(VirtualFleet, "_measure_round_trip", lambda _: RoundTrip())
    fleet_run = run_fleet(table, scenario, policy, TIMINGS, arrivals=arrivals)
    virtual_answers = fleet_run.answers
    assert [ROUTES[route] for route in virtual_answers.route] == [
        answer.route for answer in real_answers
    ]
    reasons = [
        {"last-stage": "stopped"}.get(answer.reason, answer.reason) for answer in real_answers
    ]
    assert [REASONS[reason] for reason in virtual_answers.reason] == reasons
    assert virtual_answers.label.tolist() == [answer.class_index for answer in real_answers]
    assert virtual_answers.stage.tolist() == [answer.stage for answer in real_answers]
    assert virtual_answers.cost.tolist() == [answer.cost for answer in real_answers]
    assert virtual_answers.latency_ms.tolist() == [answer.latency_ms for answer in real_answers]
    assert virtual_answers.payload_bytes_up.sum() == real_counters["bytes_up"]
    assert virtual_answers.payload_bytes_down.sum() == real_counters["bytes_down"]
    assert {
        name: real_counters[name] for name in fleet_run.device_counts
    } == fleet_run.device_counts
    if link[0] == "bounded":
        assert reasons.count("offload-limit") > 10  # the limit matters in this case
    # both devices audit the same instances, and the worker's test raises the same alarms
    assert (
        list(
            zip(
                virtual_answers.time[virtual_answers.is_audited],
                virtual_answers.label[virtual_answers.is_audited],
                strict=True,
            )
        )
        == real_audits
    )
    assert list(fleet_run.instances_at_alarms) == worker_context.instances_at_alarms
    if audit is not None:
        # about 0.3 of the instances that stay on the device, most of which are wrong later on
        assert len(real_audits) > 50
        assert len(fleet_run.instances_at_alarms) == 1
