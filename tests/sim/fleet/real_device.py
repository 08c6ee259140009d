"""The real device on a virtual clock and link, with a virtual worker.

It encodes and decodes every message and runs its stages.
"""

import random
from dataclasses import dataclass, replace

from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.audit_sampler import AuditSampler
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import PendingInstance
from gatewise_edge.link import wire
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
from gatewise_sim.fleet.worker import VirtualTicket, VirtualWorker, WorkerContext
from gatewise_sim.scenario import Scenario
from gatewise_sim.timings import Timings

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


@dataclass(frozen=True)
class RealRun:
    """What the real device and the worker did."""

    answers: list[Answer]  # in the order of the arrivals
    counts: dict[str, int]
    audits: list[tuple[float, int]]  # time and class of each audited instance
    instances_at_alarms: list[int]


def run_real_device(digits, scenario: Scenario, arrivals, outages, max_disagreement) -> RealRun:
    """Run the real device until all its instances have answers."""
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
        offload_rules=OffloadRules(max_offloads=scenario.max_offloads),
        audit=sampler,
        clock=lambda: clock.now,
    ) as device:
        device._uplink._breaker.draw = rng.random

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
    return RealRun(
        answers=[answers[position] for position in range(len(arrivals.time))],
        counts=counts,
        audits=link.audits,
        instances_at_alarms=list(worker_context.instances_at_alarms),
    )
