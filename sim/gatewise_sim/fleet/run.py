"""A fleet in virtual time: devices, links, a broker, workers and one clock.

Requests are stepped event by event, by the objects that decide on a device and in a worker.
Instances that never leave their device wait for nothing and are answered in bulk. The same scenario
gives the same answers, bit for bit. Two instances of one device do not share its processor.

Every instance is stepped up to 20,000 devices, unless the run is very long or busy
(:func:`choose_devices`). A larger fleet is stepped in proportion: some of its devices meet workers
under the load of all devices. Waits and refusals are drawn from a worker that is stepped under that
load (:func:`~gatewise_sim.fleet.worker.sample_queue`).
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.formats import duration, plural
from gatewise_edge.link.offload import OffloadCounts, RoundTrip
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.device import FleetState, StepColumns, VirtualDevice
from gatewise_sim.fleet.link import (
    PUBACK_BYTES,
    REQUEST_TOPIC,
    RESPONSE_TOPIC,
    MessageSizes,
    VirtualLink,
    publish_bytes,
)
from gatewise_sim.fleet.results import (
    CLOUD,
    EDGE,
    REASON,
    Answers,
    FleetRun,
    RowTable,
    fill_costs,
    fill_joules,
    queue_means,
)
from gatewise_sim.fleet.worker import (
    Availability,
    QueueSample,
    SampledWorker,
    VirtualBroker,
    VirtualWorker,
    WorkerModel,
    sample_queue,
)
from gatewise_sim.fleet.workload import Arrivals, Diurnal, Poisson
from gatewise_sim.scenario import Scenario
from gatewise_sim.timings import Timings

BoolArray = NDArray[np.bool_]

#: Bounds on a run: devices, instances and requests that are stepped. A fleet within the first two
#: may make twice as many requests before it is stepped in proportion.
MAX_DEVICES: Final = 20_000
MAX_INSTANCES: Final = 1_250_000
MAX_REQUESTS: Final = 250_000
#: Requests of a worker under the load of a larger fleet.
_SAMPLED_REQUESTS: Final = 20_000
#: Steps of the load, and of the share of retries, for which a worker is sampled.
_LOADS: Final = 8
_REQUESTS_FOR_RETRIES: Final = 1000
_MAX_TURNS: Final = 16
_TRIPS: Final = 32
#: Seconds that a device keeps before its deadline, or a tenth of that.
_GUARD: Final = 0.005
#: Instances from one report of progress to the next.
_REPORT_EVERY: Final = 5_000


@dataclass(frozen=True, eq=False, kw_only=True)
class FleetPolicy:
    """The choice of the instances that a fleet offloads.

    Reports call it `key` in keys and `name` in words. Rows of `offload`, shape (n_rows,), are
    offloaded, and a share `chance` of the other instances. With `request_first` stages run only
    where the cloud does not answer. The scenario's bound on offloads and its audits hold only for a
    `limited` policy.
    """

    key: str
    name: str
    offload: BoolArray
    chance: float = 0.0
    request_first: bool = False
    limited: bool = False

    def request_share(self, table: RowTable) -> float:
        """Expected offload rate if the rows of `table` come equally often."""
        possible = table.can_offload & ~self.offload
        return float(self.offload.mean() + self.chance * possible.mean())


def choose_devices(
    table: RowTable, scenario: Scenario, policy: FleetPolicy, *, max_requests: int = MAX_REQUESTS
) -> int:
    """Choose how many devices to step: all, or as many as keep the run small."""
    per_device = scenario.arrival_process.mean_rate * scenario.seconds
    audits = scenario.audit if policy.limited and scenario.audit else 0.0
    requests = per_device * (policy.request_share(table) + audits)
    is_small = scenario.devices <= min(MAX_DEVICES, MAX_INSTANCES / per_device)
    if is_small and scenario.devices * requests <= 2 * max_requests:
        return scenario.devices
    limits = [MAX_DEVICES, MAX_INSTANCES / per_device]
    if requests:
        limits.append(max_requests / requests)
    return max(1, min(scenario.devices, int(min(limits))))


class VirtualFleet:
    """A fleet that answers its instances in virtual time, once."""

    def __init__(
        self,
        table: RowTable,
        scenario: Scenario,
        policy: FleetPolicy,
        timings: Timings,
        *,
        n_devices: int,
    ) -> None:
        self._table = table
        self._scenario = scenario
        self._policy = policy
        self._timings = timings
        self._n_devices = n_devices
        self._devices: dict[int, VirtualDevice] = {}
        self._clock = Clock()
        self._rng = random.Random(f"{scenario.seed}/{policy.key}")
        self._sizes = MessageSizes(
            model=table.model,
            version=table.version,
            n_values=table.n_values,
            n_classes=len(table.classes),
            dtype=table.dtype,
        )
        by_stage = np.asarray(timings.edge_ms) / 1000.0
        self._stage_seconds = by_stage[np.maximum(table.exit, 0)]
        self._model = WorkerModel(
            timings, scenario, bytes(self._sizes.response(1000)), table.promised
        )
        self._counts = OffloadCounts()
        self._samples: dict[tuple[int, int], QueueSample] = {}
        self.workers = [self._make_worker() for _ in range(scenario.workers)]
        self._availability = Availability(self._clock, scenario.outages, self.workers)

    def _make_worker(self) -> VirtualWorker:
        if self._n_devices == self._scenario.devices:
            return VirtualWorker(self._clock, self._model)
        return SampledWorker(self._clock, self._model, self._queue_sample, self._rng)

    def _queue_sample(self, now: float) -> QueueSample:
        """Outcomes at a worker under the load that the whole fleet brings at `now` (s)."""
        scenario = self._scenario
        process = scenario.arrival_process
        load = 0
        if isinstance(process, Diurnal):
            share = float(process.rate_at(np.array([now]))[0]) / (process.rate * 2)
            load = round(_LOADS * share)
            process = Poisson(max(process.rate * 2 * load / _LOADS, 1e-9))
        # A retry that another worker gets is a further request.
        n_sent = max(self._counts.sent, _REQUESTS_FOR_RETRIES)
        retries = round(_LOADS * self._counts.retries / n_sent)
        if (load, retries) not in self._samples:
            rng = np.random.default_rng([scenario.seed, 5, load, retries])
            share = self._policy.request_share(self._table)
            share *= 1 + retries / _LOADS * (1 - 1 / scenario.workers)
            # The broker deals in turn: a worker gets every n-th request of n workers' devices.
            n_workers = min(scenario.workers, _MAX_TURNS)
            requesters = share * scenario.devices * n_workers / scenario.workers
            n_devices = max(1, round(requesters))
            seconds = _SAMPLED_REQUESTS * n_workers / (process.mean_rate * n_devices)
            events = process.draw(n_devices, max(seconds, 1.0 / process.mean_rate), rng)
            dealt = np.argsort(events.time, kind="stable")[::n_workers]
            device = events.device[dealt].astype(np.int32)
            arrivals = Arrivals(events.time[dealt], device, np.zeros_like(device))
            ttl = scenario.deadline_ms / 1000.0
            self._samples[load, retries] = sample_queue(self._model, arrivals, ttl)
        return self._samples[load, retries]

    # -- running --------------------------------------------------------------------------------

    def run(
        self, arrivals: Arrivals, watch: Callable[[float, int], object] | None = None
    ) -> FleetRun:
        """Answer the instances; `watch` gets the time (s) and the instances so far."""
        policy = self._policy
        offloads = self._choose_offloads(arrivals.row)
        audits = policy.limited and bool(self._scenario.audit)
        numbers = np.flatnonzero(offloads | audits)
        columns = StepColumns(len(numbers))
        state = self._make_state(columns)
        instances = arrivals.subset(numbers)
        with _no_collector():
            self._step(state, instances, offloads[numbers], watch)
            self._clock.run()
        answers = self._answers(arrivals, numbers, columns)
        return self._fleet_run(answers, state)

    def _choose_offloads(self, row: NDArray[np.int32]) -> BoolArray:
        policy = self._policy
        table = self._table
        offloads = policy.offload[row]
        if policy.chance:
            # The number is fixed by the chance; the instances are drawn.
            rng = np.random.default_rng([self._scenario.seed, 4])
            possible = np.flatnonzero(table.can_offload[row] & ~offloads)
            n_chosen = int(policy.chance * len(possible) + rng.random())
            offloads[rng.permutation(possible)[:n_chosen]] = True
        return np.asarray(offloads, np.bool_)

    def _make_state(self, columns: StepColumns) -> FleetState:
        table = self._table
        scenario = self._scenario
        deadline = scenario.deadline_ms / 1000.0
        return FleetState(
            clock=self._clock,
            availability=self._availability,
            broker=VirtualBroker(self._clock, self._availability, self.workers, self._model),
            scenario=scenario,
            table=table,
            sizes=self._sizes,
            columns=columns,
            rng=self._rng,
            stage_seconds=self._stage_seconds.tolist(),
            can_offload=table.can_offload.tolist(),
            local_label=table.local_label.tolist(),
            confidence=table.confidence.tolist(),
            request_first=self._policy.request_first,
            deadline=deadline,
            guard=min(_GUARD, scenario.deadline_ms / 1e4),
            usual_trip=self._usual_trip(),
            counts=self._counts,
        )

    def _device(self, state: FleetState, number: int) -> VirtualDevice:
        device = self._devices.get(number)
        if device is None:
            device = VirtualDevice(state, number, limited=self._policy.limited)
            self._devices[number] = device
        return device

    def _step(
        self,
        state: FleetState,
        instances: Arrivals,
        offloads: BoolArray,
        watch: Callable[[float, int], object] | None,
    ) -> None:
        """Offload or audit each instance at the time when its stages have run."""
        clock = self._clock
        columns = state.columns
        due = instances.time.copy()
        if not self._policy.request_first:
            due += self._stage_seconds[instances.row]
        times = due.tolist()
        came = instances.time.tolist()
        rows = instances.row.tolist()
        devices = instances.device.tolist()
        offloaded = offloads.tolist()
        for count, number in enumerate(np.argsort(due, kind="stable").tolist()):
            clock.run(times[number])
            device = self._device(state, devices[number])
            row = rows[number]
            if offloaded[number]:
                device.offload(number, row, came[number])
            else:
                columns.end[number] = times[number]
                device.audit(number, row)
            if watch is not None and count % _REPORT_EVERY == 0:
                watch(clock.now, count)

    def _usual_trip(self) -> RoundTrip:
        """Compute the round trip that a device has learnt from requests that met no others."""
        trip = RoundTrip()
        if not self._table.has_cloud:
            return trip
        timings = self._timings
        link = VirtualLink(self._scenario.link_profile, random.Random(self._scenario.seed))
        cloud = 2e-6 * timings.broker_us + 2e-3 * timings.hop_ms + self._model.run_seconds(1, 1)
        request = self._sizes.request(int(self._scenario.deadline_ms))
        bytes_up = publish_bytes(REQUEST_TOPIC, request)
        bytes_down = publish_bytes(RESPONSE_TOPIC, self._sizes.response(1000))
        for number in range(_TRIPS):
            begin = 1000.0 * (number + 1)
            arrival = link.send(begin, bytes_up, True)
            link.send(arrival, PUBACK_BYTES, False)
            trip.update(link.send(arrival + cloud, bytes_down, False) - begin)
        return trip

    # -- answers --------------------------------------------------------------------------------

    def _answers(self, arrivals: Arrivals, numbers: NDArray[Any], columns: StepColumns) -> Answers:
        """Lay out all answers: the devices' own, and the outcomes of the instances stepped."""
        table = self._table
        n = len(arrivals.time)
        row = arrivals.row
        stage_ms = 1000.0 * self._stage_seconds[row]
        local = table.local_route[row]
        stopped = np.where(table.offload[row], REASON["edge-only"], REASON["stopped"])
        local_reason = np.where(local > EDGE, REASON["value"], stopped)

        def spread(values: Any, dtype: Any) -> NDArray[Any]:
            column = np.zeros(n, dtype)
            column[numbers] = values
            return column

        # outcomes of the stepped instances; -1 where the device answered
        stepped_route = np.full(n, -1, np.int8)
        stepped_route[numbers] = columns.route
        by_device = stepped_route < 0
        route = np.where(by_device, local, stepped_route).astype(np.int8)
        reason = np.where(by_device, local_reason, spread(columns.reason, np.int8))
        end = arrivals.time + stage_ms / 1000.0
        end[numbers] = columns.end
        end = np.where(by_device & np.isnan(end), np.inf, end)
        cloud = route == CLOUD
        device_ms = np.where(cloud & self._policy.request_first, 0.0, stage_ms)
        answers = Answers(
            time=arrivals.time,
            device=arrivals.device,
            row=row,
            route=route,
            reason=reason.astype(np.int8),
            stage=np.where(cloud, table.n_stages, table.exit[row]).astype(np.int8),
            label=np.where(cloud, table.cloud_label[row], table.local_label[row]).astype(np.int32),
            cost=np.zeros(n),
            feature_cost=np.zeros(n),
            latency_ms=1000.0 * (end - arrivals.time),
            device_ms=device_ms.astype(np.float32),
            cloud_ms=spread(columns.cloud_ms, np.float32),
            up=spread(columns.up, np.int32),
            down=spread(columns.down, np.int32),
            payload_up=spread(columns.payload_up, np.int32),
            payload_down=spread(columns.payload_down, np.int32),
            joules=np.zeros(n, np.float32),
            requested=spread(columns.requested, np.bool_),
            audited=spread(columns.audited, np.bool_),
        )
        fill_costs(answers, table, request_first=self._policy.request_first)
        fill_joules(answers, self._scenario, request_first=self._policy.request_first)
        return answers

    def _fleet_run(self, answers: Answers, state: FleetState) -> FleetRun:
        scenario = self._scenario
        scale = scenario.devices / self._n_devices
        workers = {name: value * scale for name, value in asdict(self._model.counts).items()}
        workers |= queue_means(workers, scenario)
        samples = list(self._samples.values())
        if samples:
            for name in ("utilisation", "batch"):
                workers[name] = float(np.mean([getattr(sample, name) for sample in samples]))
            workers["wait_ms"] = 1000.0 * float(np.mean([sample.wait for sample in samples]))
        del workers["queued_seconds"]
        return FleetRun(
            answers=answers,
            seconds=scenario.seconds,
            devices=self._n_devices,
            counts=asdict(state.counts) | asdict(state.breaker_counts),
            workers=workers,
            scale=scale,
            sampling=self._sampling(),
            request_first=self._policy.request_first,
            audit_cost=state.audit_cost,
            alarms=tuple(self._model.alarms),
            events=self._clock.events,
        )

    def _sampling(self) -> str:
        scenario, length = self._scenario, duration(self._scenario.seconds)
        if self._n_devices == scenario.devices:
            return f"all of {plural(scenario.devices, 'device')} for {length}"
        return (
            f"in proportion: {self._n_devices:,} of {plural(scenario.devices, 'device')} for "
            f"{length}, at workers under the load of all"
        )


def run_fleet(
    table: RowTable,
    scenario: Scenario,
    policy: FleetPolicy,
    timings: Timings,
    *,
    arrivals: Arrivals | None = None,
    n_devices: int | None = None,
    watch: Callable[[float, int], object] | None = None,
) -> FleetRun:
    """Let a fleet answer in virtual time.

    Parameters
    ----------
    table : RowTable
        Outcomes of the rows.
    scenario : Scenario
        The deployment.
    policy : FleetPolicy
        Choice of the instances to offload.
    timings : Timings
        Service times of stages, broker and workers.
    arrivals : Arrivals, optional
        All instances, by time; the scenario's by default.
    n_devices : int, optional
        Devices to step; chosen by :func:`choose_devices` by default.
    watch : callable, optional
        Called from time to time with the time (s) and the number of instances so far.
    """
    if len(timings.edge_ms) < int(table.exit.max()) + 1:
        raise InputError(f"timings: edge_ms has {len(timings.edge_ms)} entries, too few for stages")
    if n_devices is None:
        n_devices = choose_devices(table, scenario, policy)
    if arrivals is None:
        arrivals = scenario.arrivals(len(table), table.truth, n_devices=n_devices)
    fleet = VirtualFleet(table, scenario, policy, timings, n_devices=n_devices)
    return fleet.run(arrivals, watch)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Switch off Python's search for cycles, which millions of objects would slow down."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)  # nothing of the run has left the youngest generation
        if was_on:
            gc.enable()
