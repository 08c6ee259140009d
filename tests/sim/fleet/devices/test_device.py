"""The virtual device against the real one, both on the same virtual clock, link and worker.

The real one encodes and decodes every message and runs its stages; the answers, times, bytes and
counters of the virtual one must be the same to the last bit.
"""

import random
from dataclasses import replace

import numpy as np
import pytest

from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_cloud.worker.fleet_audit import disagreement_bound
from gatewise_edge.device.answer import DecisionPoint
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import Pending
from gatewise_edge.link import wire
from gatewise_edge.link.breaker import Breaker
from gatewise_sim.fleet.answers import REASONS, ROUTES
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.devices.audits import audit_seed
from gatewise_sim.fleet.devices.decisions import routes_by_stage
from gatewise_sim.fleet.messages import PUBACK_BYTES, publish_bytes
from gatewise_sim.fleet.network.link import DeviceDraws, LinkProfile, VirtualLink
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import ServiceTime, VirtualTicket, VirtualWorker

NAME = "0" * 8
SERVICE = ServiceTime(0.004, 0.001)
SEED = 0


class Reply:
    def __init__(self, link: "ClockLink", request: wire.Request) -> None:
        self.link, self.request = link, request

    def reply(
        self, error: str | None, worker_us: int, *, stood_in: bool = False, wait_ms: int = 0
    ) -> None:
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
        size = publish_bytes(wire.response_topic(NAME), len(payload))
        clock = self.link.clock
        clock.at(self.link.way.send(clock.now, size, False), self.link.arrive, payload)


class ClockLink:
    """A device's link whose messages travel on the virtual clock to a virtual worker."""

    ready = True

    def __init__(self, clock, way, worker, model) -> None:
        self.clock, self.way, self.worker, self.model = clock, way, worker, model
        self.came = lambda: None
        self.audits = []

    def open(self, receive) -> None:
        self.receive = receive

    def close(self) -> None:
        pass

    def send(self, payload: bytes) -> bool:
        mark = wire.decode_request(payload).audit
        if mark is not None:
            self.audits.append((self.clock.now, mark.class_index))
        size = publish_bytes(wire.request_topic(NAME), len(payload))
        self.clock.at(self.way.send(self.clock.now, size, True), self.at_worker, payload)
        return True

    def at_worker(self, payload: bytes) -> None:
        self.way.send(self.clock.now, PUBACK_BYTES, False)
        request = wire.decode_request(payload)
        now = self.clock.now
        label = int(self.model.answer(request.X)[0][0])
        ticket = VirtualTicket(
            device=NAME,
            id=request.id,
            digest=b"",
            model=(request.model, request.version),
            rows=request.X,
            arrived=now,
            expires=now + request.ttl_ms / 1000.0,
            requester=Reply(self, request),
            audit=request.audit,
            label=label,
        )
        if self.worker.up:
            self.worker.receive(ticket)

    def arrive(self, payload: bytes) -> None:
        self.way.send(self.clock.now, PUBACK_BYTES, True)
        self.receive(payload)
        self.came()


def real(small, settings: FleetSettings, down):
    """Answers of the real device, in the order of the instances; its counts, audits, the worker."""
    ((times, _, rows),) = settings.chunks(len(small.rows))
    clock = Clock()
    rng = DeviceDraws(SEED, 0)
    way = VirtualLink(settings.link, rng, back=rng)
    worker = VirtualWorker(
        clock,
        SERVICE,
        capacity=settings.queue,
        max_batch=4,
        wait=0.0,
        parallel=1,
        payload=b"",
        rng=random.Random(0),
        promised=disagreement_bound(small.bundle.manifest),
    )
    for begin, end in down:
        clock.at(begin, worker.fail)
        clock.at(end, setattr, worker, "up", True)
    model = CloudModel.from_bundle(small.bundle)
    clock_link = ClockLink(clock, way, worker, model)
    answered, open_ = {}, {}
    with Device(
        small.bundle,
        link=clock_link,
        deadline_ms=settings.deadline_ms,
        breaker=Breaker(draw=rng.random),
        audit=settings.audit,
        seed=audit_seed(SEED, 0),
        policy=settings.policy,
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
        for i, (when, row) in enumerate(zip(times.tolist(), rows, strict=True)):
            clock.at(when, lambda i=i, row=row: step(i, device.begin(small.rows[row])))
        clock.run()
        model.close()
        counts = device.counters | device.gauges
        return [answered[i] for i in range(len(times))], counts, clock_link.audits, worker


def looks_at_everything(point: DecisionPoint) -> str:
    """Decide by all that a device knows, so that a difference in any of it shows."""
    best, second = sorted(point.probabilities)[:-3:-1]
    sure = point.stops if point.last else best - second > 0.15
    if sure or point.outstanding > 1 or point.left_ms < 1.1 * point.round_trip_ms:
        return "stop"
    return "offload" if best < 0.28 and point.cost < 40 and point.connected else "continue"


@pytest.mark.parametrize(
    ("link", "queue", "deadline_ms", "gap", "down", "audit"),
    [
        (LinkProfile("fine", 45, 15, 100_000, 50_000), 1024, 500.0, 0.05, (), None),
        (LinkProfile("lossy", 200, 150, 300, 100, 0.15), 1024, 600.0, 0.1, (), None),
        (LinkProfile("slow", 700, 100, 64, 32, 0.02), 1024, 800.0, 0.3, (), None),
        (LinkProfile("quick", 2, 1), 1, 60.0, 0.004, (), None),
        # A policy of one's own, on a good link and on one that is often too slow.
        (LinkProfile("own", 45, 15, 100_000, 50_000), 1024, 500.0, 0.05, (), None),
        (LinkProfile("own, slow", 400, 250, 300, 100, 0.05), 1024, 500.0, 0.1, (), None),
        # Audits: of a good link, of one whose worker refuses many, and of one without responses.
        (LinkProfile("audited", 45, 15, 100_000, 50_000), 1024, 500.0, 0.05, (), 0.3),
        (LinkProfile("busy", 2, 1), 1, 60.0, 0.004, (), 0.5),
        (LinkProfile("deaf", 60, 20, 1e5, 1e5, 0.01), 1024, 400.0, 0.1, ((5.0, 25.0),), 0.3),
        (
            LinkProfile("gone", 60, 20, 1e5, 1e5, 0.01),
            1024,
            400.0,
            0.1,
            ((5.0, 12.0), (20.0, 21.0)),
            None,
        ),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_it_does_what_the_real_one_does(small, routes, link, queue, deadline_ms, gap, down, audit):
    rng = np.random.default_rng(7)
    n = 400
    times = np.cumsum(rng.exponential(gap, n))
    rows = rng.integers(0, len(small.rows), n)
    if audit is not None:  # the data change: of what the device answers itself, much is wrong
        wrong = ~routes.offload & (routes.local_label != routes.cloud_label)
        rows[n // 2 :: 2] = rng.choice(np.flatnonzero(wrong), len(rows[n // 2 :: 2]))
    policy = looks_at_everything if link.name.startswith("own") else "system"
    if callable(policy):
        routes = routes_by_stage(small.bundle, small.rows, routes)
    outages = ",".join(f"cloud:+{b:g}s-+{e:g}s" for b, e in down)
    settings = FleetSettings(
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
        audit=audit,
        policy=policy,
        seed=SEED,
    )
    answers, counters, audits, worker = real(small, settings, down)
    run = simulate_fleet(routes, settings)
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
    if link.name == "busy":  # a refusal had said when to ask again
        assert a.held.any()
    if callable(policy):  # each kind of decision was taken
        stage, sent = np.divmod(a.row, len(small.rows))[0], a.payload_up > 0
        assert len(set(zip(stage.tolist(), sent.tolist(), strict=True))) == 4
    if audit is None:
        assert run.alarms is None
        return
    # The same instances are audited, and the worker's tests raise the same alarms.
    assert len(audits) > 50
    assert list(zip(a.time[a.audited], a.label[a.audited], strict=True)) == audits
    (fleet,) = worker.audits.snapshot().values()
    assert run.alarms == [fleet["alarm_at"]]
