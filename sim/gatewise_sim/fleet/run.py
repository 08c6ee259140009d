"""Runs of a fleet in virtual time.

Requests are simulated event by event, by the objects that decide on a device and in a worker.
Instances that a device answers are computed together, because they wait for nothing. The same
scenario gives the same answers, bit for bit. Instances of a device do not slow each other down.

Up to 20,000 devices are all simulated, unless the run is very long or busy
(:func:`choose_devices`). Of a larger fleet a part is simulated, with workers under the load of the
whole fleet: waits and refusals are drawn from a simulation of one worker under that load
(:func:`~gatewise_sim.fleet.worker.sample_queue`).
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

#: Largest numbers of simulated devices, instances and requests. A fleet within the first two bounds
#: may send up to twice the number of requests.
MAX_DEVICES: Final = 20_000
MAX_INSTANCES: Final = 1_250_000
MAX_REQUESTS: Final = 250_000
#: Number of requests in the simulation of a worker under the load of a larger fleet.
_SAMPLED_REQUESTS: Final = 20_000
#: Number of levels of the load, and of the share of retries, for which a worker is simulated.
_N_LEVELS: Final = 8
#: Smallest number of requests by which the share of retries is estimated.
_MIN_REQUESTS_FOR_RETRIES: Final = 1000
#: Largest number of workers among which the requests of a sample are dealt.
_MAX_SAMPLED_WORKERS: Final = 16
#: Number of round trips that a device is assumed to have measured.
_N_TRIPS: Final = 32
#: Seconds before its deadline at which a device stops waiting; at most a tenth of the deadline.
_GUARD_SECONDS: Final = 0.005
#: Number of instances between two reports of progress.
_REPORT_INTERVAL: Final = 5_000


@dataclass(frozen=True, eq=False, kw_only=True)
class FleetPolicy:
    """Choice of the instances that a fleet offloads.

    Parameters
    ----------
    key, name : str
        Name in the keys and in the text of reports.
    offload : ndarray of shape (n_rows,)
        Rows whose instances are offloaded.
    chance : float
        Share of the other instances that are offloaded at random.
    request_first : bool
        Whether stages run only if the cloud does not answer.
    limited : bool
        Whether the scenario's audits and its bound on offloads apply.
    """

    key: str
    name: str
    offload: BoolArray
    chance: float = 0.0
    request_first: bool = False
    limited: bool = False

    def request_share(self, table: RowTable) -> float:
        """Expected offload rate if the rows of `table` are equally likely."""
        others = table.can_offload & ~self.offload
        return float(self.offload.mean() + self.chance * others.mean())


def choose_devices(
    table: RowTable, scenario: Scenario, policy: FleetPolicy, *, max_requests: int = MAX_REQUESTS
) -> int:
    """Choose the number of devices to simulate: all, unless the run exceeds the bounds."""
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
    """A fleet for one run in virtual time."""

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
        seconds_by_stage = np.asarray(timings.edge_ms) / 1000.0
        self._stage_seconds = seconds_by_stage[np.maximum(table.exit, 0)]
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
        """Get outcomes of a worker under the load of the whole fleet at `now` (s)."""
        scenario = self._scenario
        process = scenario.arrival_process
        load = 0
        if isinstance(process, Diurnal):
            share = float(process.rate_at(np.array([now]))[0]) / (process.rate * 2)
            load = round(_N_LEVELS * share)
            process = Poisson(max(process.rate * 2 * load / _N_LEVELS, 1e-9))
        # A retry that reaches another worker is an additional request.
        n_sent = max(self._counts.sent, _MIN_REQUESTS_FOR_RETRIES)
        retries = round(_N_LEVELS * self._counts.retries / n_sent)
        if (load, retries) not in self._samples:
            rng = np.random.default_rng([scenario.seed, 5, load, retries])
            share = self._policy.request_share(self._table)
            share *= 1 + retries / _N_LEVELS * (1 - 1 / scenario.workers)
            # The broker sends requests to n workers in turn, so one worker gets every n-th request.
            n_workers = min(scenario.workers, _MAX_SAMPLED_WORKERS)
            requesters = share * scenario.devices * n_workers / scenario.workers
            n_devices = max(1, round(requesters))
            seconds = _SAMPLED_REQUESTS * n_workers / (process.mean_rate * n_devices)
            events = process.draw(n_devices, max(seconds, 1.0 / process.mean_rate), rng)
            received = np.argsort(events.time, kind="stable")[::n_workers]
            device = events.device[received].astype(np.int32)
            arrivals = Arrivals(events.time[received], device, np.zeros_like(device))
            ttl = scenario.deadline_ms / 1000.0
            self._samples[load, retries] = sample_queue(self._model, arrivals, ttl)
        return self._samples[load, retries]

    # -- running --------------------------------------------------------------------------------

    def run(
        self, arrivals: Arrivals, watch: Callable[[float, int], object] | None = None
    ) -> FleetRun:
        """Answer the instances; `watch` gets the time (s) and the number of instances so far."""
        policy = self._policy
        offloads = self._choose_offloads(arrivals.row)
        audits = policy.limited and bool(self._scenario.audit)
        positions = np.flatnonzero(offloads | audits)
        columns = StepColumns(len(positions))
        state = self._make_state(columns)
        instances = arrivals.subset(positions)
        with _no_collector():
            self._step(state, instances, offloads[positions], watch)
            self._clock.run()
        answers = self._answers(arrivals, positions, columns)
        return self._fleet_run(answers, state)

    def _choose_offloads(self, row: NDArray[np.int32]) -> BoolArray:
        policy = self._policy
        table = self._table
        offloads = policy.offload[row]
        if policy.chance:
            # Only the choice of the instances is random, not their number.
            rng = np.random.default_rng([self._scenario.seed, 4])
            others = np.flatnonzero(table.can_offload[row] & ~offloads)
            n_chosen = int(policy.chance * len(others) + rng.random())
            offloads[rng.permutation(others)[:n_chosen]] = True
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
            guard=min(_GUARD_SECONDS, scenario.deadline_ms / 1e4),
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
        """Offload or audit each instance at the time at which its stages have finished."""
        clock = self._clock
        columns = state.columns
        due = instances.time.copy()
        if not self._policy.request_first:
            due += self._stage_seconds[instances.row]
        times = due.tolist()
        arrival_times = instances.time.tolist()
        rows = instances.row.tolist()
        devices = instances.device.tolist()
        offloaded = offloads.tolist()
        for count, number in enumerate(np.argsort(due, kind="stable").tolist()):
            clock.run(times[number])
            device = self._device(state, devices[number])
            row = rows[number]
            if offloaded[number]:
                device.offload(number, row, arrival_times[number])
            else:
                columns.end[number] = times[number]
                device.audit(number, row)
            if watch is not None and count % _REPORT_INTERVAL == 0:
                watch(clock.now, count)

    def _usual_trip(self) -> RoundTrip:
        """Compute the smoothed round trip of a device for requests without other traffic."""
        trip = RoundTrip()
        if not self._table.has_cloud:
            return trip
        timings = self._timings
        link = VirtualLink(self._scenario.link_profile, random.Random(self._scenario.seed))
        cloud_seconds = 2e-6 * timings.broker_us + 2e-3 * timings.hop_ms
        cloud_seconds += self._model.run_seconds(1, 1)
        request = self._sizes.request(int(self._scenario.deadline_ms))
        bytes_up = publish_bytes(REQUEST_TOPIC, request)
        bytes_down = publish_bytes(RESPONSE_TOPIC, self._sizes.response(1000))
        for number in range(_N_TRIPS):
            begin = 1000.0 * (number + 1)
            arrival = link.send(begin, bytes_up, True)
            link.send(arrival, PUBACK_BYTES, False)
            trip.update(link.send(arrival + cloud_seconds, bytes_down, False) - begin)
        return trip

    # -- answers --------------------------------------------------------------------------------

    def _answers(
        self, arrivals: Arrivals, positions: NDArray[Any], columns: StepColumns
    ) -> Answers:
        """Make the columns of all answers; `columns` has those of the instances at `positions`."""
        table = self._table
        n = len(arrivals.time)
        row = arrivals.row
        stage_ms = 1000.0 * self._stage_seconds[row]
        local = table.local_route[row]
        stopped = np.where(table.offload[row], REASON["edge-only"], REASON["stopped"])
        local_reason = np.where(local > EDGE, REASON["value"], stopped)

        def full_column(values: Any, dtype: Any) -> NDArray[Any]:
            column = np.zeros(n, dtype)
            column[positions] = values
            return column

        # routes of the simulated instances; -1 if the device answers
        simulated_route = np.full(n, -1, np.int8)
        simulated_route[positions] = columns.route
        by_device = simulated_route < 0
        route = np.where(by_device, local, simulated_route).astype(np.int8)
        reason = np.where(by_device, local_reason, full_column(columns.reason, np.int8))
        end = arrivals.time + stage_ms / 1000.0
        end[positions] = columns.end
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
            cloud_ms=full_column(columns.cloud_ms, np.float32),
            up=full_column(columns.up, np.int32),
            down=full_column(columns.down, np.int32),
            payload_up=full_column(columns.payload_up, np.int32),
            payload_down=full_column(columns.payload_down, np.int32),
            joules=np.zeros(n, np.float32),
            requested=full_column(columns.requested, np.bool_),
            audited=full_column(columns.audited, np.bool_),
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
        scenario = self._scenario
        length = duration(scenario.seconds)
        if self._n_devices == scenario.devices:
            return f"all of {plural(scenario.devices, 'device')} for {length}"
        return (
            f"{self._n_devices:,} of {plural(scenario.devices, 'device')} for {length}, "
            "with workers under the load of the whole fleet"
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
    """Run a fleet in virtual time.

    Parameters
    ----------
    table : RowTable
        Outcomes of the rows.
    scenario : Scenario
        Deployment and workload.
    policy : FleetPolicy
        Choice of the instances to offload.
    timings : Timings
        Service times of stages, broker and workers.
    arrivals : Arrivals, optional
        Instances sorted by time; by default those of the scenario.
    n_devices : int, optional
        Number of devices to simulate; by default :func:`choose_devices` chooses it.
    watch : callable, optional
        Called regularly with the time (s) and the number of instances so far.

    Returns
    -------
    FleetRun
        Answers of the instances, and counts of devices and workers.

    Raises
    ------
    InputError
        If the timings have fewer stages than the table.
    """
    if len(timings.edge_ms) < int(table.exit.max()) + 1:
        raise InputError(f"timings: edge_ms has {len(timings.edge_ms)} entries, fewer than stages")
    if n_devices is None:
        n_devices = choose_devices(table, scenario, policy)
    if arrivals is None:
        arrivals = scenario.arrivals(len(table), table.truth, n_devices=n_devices)
    fleet = VirtualFleet(table, scenario, policy, timings, n_devices=n_devices)
    return fleet.run(arrivals, watch)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Disable Python's cycle collector, which is slow with millions of objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)  # all objects of the run are in the youngest generation
        if was_enabled:
            gc.enable()
