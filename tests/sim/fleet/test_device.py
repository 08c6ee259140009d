"""The virtual device against the real one, both on the same virtual clock, link and worker.

The real one encodes and decodes every message and runs its stages; the answers, times, bytes and
counters of the virtual one must be the same to the last bit.
"""

import random

import numpy as np
import pytest

from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_cloud.worker.batcher import Plan
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import Pending
from gatewise_edge.link import wire
from gatewise_edge.link.breaker import Breaker
from gatewise_sim.fleet.answers import REASONS
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.messages import PUBACK_BYTES, publish_bytes
from gatewise_sim.fleet.network.link import DeviceDraws, LinkProfile, VirtualLink
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.routes import ROUTES, Routes
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import ServiceTime, VirtualTicket, VirtualWorker

NAME = "0" * 8
SERVICE = ServiceTime(0.004, 0.001)


class Reply:
    def __init__(self, link: "ClockLink", request: wire.Request) -> None:
        self.link, self.request = link, request

    def reply(self, error: str | None, worker_us: int) -> None:
        request = self.request
        if error is not None:
            response = wire.Response.refusal(request, error, "the queue is full")
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
        size = publish_bytes(wire.response_topic(NAME), len(payload))
        clock = self.link.clock
        clock.at(self.link.way.send(clock.now, size, False), self.link.arrive, payload)


class ClockLink:
    """A device's link whose messages travel on the virtual clock to a virtual worker."""

    ready = True

    def __init__(self, clock, way, worker, model) -> None:
        self.clock, self.way, self.worker, self.model = clock, way, worker, model
        self.came = lambda: None

    def open(self, receive) -> None:
        self.receive = receive

    def close(self) -> None:
        pass

    def send(self, payload: bytes) -> bool:
        size = publish_bytes(wire.request_topic(NAME), len(payload))
        self.clock.at(self.way.send(self.clock.now, size, True), self.at_worker, payload)
        return True

    def at_worker(self, payload: bytes) -> None:
        self.way.send(self.clock.now, PUBACK_BYTES, False)
        request = wire.decode_request(payload)
        now = self.clock.now
        ticket = VirtualTicket(
            device=NAME,
            id=request.id,
            digest=b"",
            model=(request.model, request.version),
            rows=request.X,
            arrived=now,
            expires=now + request.ttl_ms / 1000.0,
            requester=Reply(self, request),
        )
        if self.worker.up:
            self.worker.receive(ticket)

    def arrive(self, payload: bytes) -> None:
        self.way.send(self.clock.now, PUBACK_BYTES, True)
        self.receive(payload)
        self.came()


def real(small, times, rows, link, *, queue, deadline_ms, down):
    """Answers of the real device, in the order of the instances; and its counters."""
    clock = Clock()
    rng = DeviceDraws(0, 0)
    way = VirtualLink(link, rng, back=rng)
    worker = VirtualWorker(
        clock,
        SERVICE,
        capacity=queue,
        plan=Plan(4),
        parallel=1,
        payload=b"",
        rng=random.Random(0),
    )
    for begin, end in down:
        clock.at(begin, worker.fail)
        clock.at(end, worker.recover)
    model = CloudModel.from_bundle(small.bundle)
    clock_link = ClockLink(clock, way, worker, model)
    answered, open_ = {}, {}
    with Device(
        small.bundle,
        link=clock_link,
        deadline_ms=deadline_ms,
        breaker=Breaker(draw=rng.random),
        check=False,
        clock=clock,
    ) as device:

        def step(i, made) -> None:
            if isinstance(made, Pending):
                open_[i] = made
                clock.at(made.wake_at, advance, i)
            else:
                open_.pop(i, None)
                answered[i] = made

        def advance(i) -> None:
            if i in open_:
                step(i, device.advance(open_[i]))

        clock_link.came = lambda: [advance(i) for i in list(open_)]
        for i, (when, row) in enumerate(zip(times, rows, strict=True)):
            clock.at(when, lambda i=i, row=row: step(i, device.begin(small.rows[row])))
        clock.run()
        model.close()
        return [answered[i] for i in range(len(times))], device.counters


@pytest.mark.parametrize(
    ("link", "queue", "deadline_ms", "gap", "down"),
    [
        (LinkProfile("fine", 45, 15, 100_000, 50_000), 1024, 500.0, 0.05, ()),
        (LinkProfile("lossy", 200, 150, 300, 100, 0.15), 1024, 600.0, 0.1, ()),
        (LinkProfile("slow", 700, 100, 64, 32, 0.02), 1024, 800.0, 0.3, ()),
        (LinkProfile("quick", 2, 1), 1, 60.0, 0.004, ()),
        (
            LinkProfile("gone", 60, 20, 1e5, 1e5, 0.01),
            1024,
            400.0,
            0.1,
            ((5.0, 12.0), (20.0, 21.0)),
        ),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_it_does_what_the_real_one_does(small, link, queue, deadline_ms, gap, down):
    rng = np.random.default_rng(7)
    n = 400
    times = np.cumsum(rng.exponential(gap, n))
    rows = rng.integers(0, len(small.rows), n)
    answers, counters = real(
        small, times.tolist(), rows, link, queue=queue, deadline_ms=deadline_ms, down=down
    )
    outages = ",".join(f"cloud:+{b:g}s-+{e:g}s" for b, e in down)
    run = simulate_fleet(
        Routes.from_bundle(small.bundle, small.rows, small.truth),
        FleetSettings(
            devices=1,
            seconds=float(times[-1]) + 1,
            arrivals=lambda devices, seconds, rng: [(times, np.zeros(n), rows)],
            link=link,
            service=SERVICE,
            deadline_ms=deadline_ms,
            queue=queue,
            max_batch=4,
            edge_ms=0.0,
            broker_us=0.0,
            outages=Outages.parse(outages),
        ),
    )
    a = run.answers
    assert [ROUTES[r] for r in a.route] == [x.route for x in answers]
    reasons = [{"last-stage": "stopped"}.get(x.reason, x.reason) for x in answers]
    assert [REASONS[r] for r in a.reason] == reasons
    assert a.label.tolist() == [x.class_index for x in answers]
    assert a.stage.tolist() == [x.stage for x in answers]
    assert a.cost.tolist() == [x.cost for x in answers]
    assert a.latency_ms.tolist() == [x.latency_ms for x in answers]
    assert a.payload_up.sum() == counters["bytes_up"]
    assert a.payload_down.sum() == counters["bytes_down"]
    assert {k: counters[k] for k in run.devices} == run.devices
