"""Runs of a fleet in virtual time.

Requests are simulated event by event, with the same decision code as real devices and workers.
Instances that a device answers are computed together, because they wait for nothing. The same
scenario gives the same answers, bit for bit. Instances of a device do not slow each other down.

All devices of a fleet of up to 20,000 are simulated, unless the run is very long or busy
(:func:`choose_n_devices`). In a larger fleet, a part of the devices is simulated, but the workers
have the load of the whole fleet. Waits and refusals are then drawn from a simulation of one worker
under that load (:class:`~gatewise_sim.fleet.fleet_load.FleetLoad`).
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
from gatewise_sim.fleet.broker import Availability, VirtualBroker
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.device import FleetContext, StepColumns, VirtualDevice
from gatewise_sim.fleet.fleet_load import FleetLoad
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
    BoolArray,
    FleetRun,
    RowTable,
    fill_costs,
    fill_joules,
    queue_means,
)
from gatewise_sim.fleet.worker import SampledWorker, VirtualWorker, WorkerContext
from gatewise_sim.fleet.workload import Arrivals
from gatewise_sim.scenario import Scenario
from gatewise_sim.timings import Timings

#: Largest number of simulated devices. A run that reaches this bound and the next two takes about a
#: minute and 500 MB.
MAX_DEVICES: Final = 20_000
#: Largest number of simulated instances.
MAX_INSTANCES: Final = 1_250_000
#: Largest number of simulated requests. A fleet within the other two bounds is simulated completely
#: even if it sends up to twice as many.
MAX_REQUESTS: Final = 250_000
#: Number of round trips that a device is assumed to have measured. With the gain 1 / 8, the first
#: of them has a weight of only (7 / 8) ** 31, about 2 %, in the smoothed time.
_N_ROUND_TRIPS: Final = 32
#: A worker's time in microseconds, on which the size of a typical response depends.
_TYPICAL_WORKER_US: Final = 1000
#: Time before its deadline at which a device stops waiting, as in gatewise_edge.device.device, but
#: at most a tenth of the deadline.
_RESERVED_SECONDS: Final = 0.005
#: Number of instances between two reports of progress.
_REPORT_INTERVAL: Final = 5_000


@dataclass(frozen=True, eq=False, kw_only=True)
class FleetPolicy:
    """Choice of the instances that a fleet offloads.

    Parameters
    ----------
    key, name : str
        Name in the keys and in the text of reports.
    is_offloaded : ndarray of shape (n_rows,)
        Whether the instances of each row are offloaded.
    random_share : float
        Share of the other instances that are offloaded at random.
    is_cloud_first : bool
        Whether stages run only if the cloud does not answer.
    has_audits_and_limit : bool
        Whether the scenario's audits and its bound on offloads apply.
    """

    key: str
    name: str
    is_offloaded: BoolArray
    random_share: float = 0.0
    is_cloud_first: bool = False
    has_audits_and_limit: bool = False

    def expected_offload_rate(self, table: RowTable) -> float:
        """Compute the expected offload rate if the rows of `table` are equally likely."""
        is_other = table.can_offload & ~self.is_offloaded
        return float(self.is_offloaded.mean() + self.random_share * is_other.mean())


def choose_n_devices(
    table: RowTable, scenario: Scenario, policy: FleetPolicy, *, max_requests: int = MAX_REQUESTS
) -> int:
    """Choose the number of devices to simulate: all, unless the run exceeds the bounds."""
    instances_per_device = scenario.arrival_process.mean_rate * scenario.seconds
    audit_rate = scenario.audit if policy.has_audits_and_limit and scenario.audit else 0.0
    requests_per_device = instances_per_device * (policy.expected_offload_rate(table) + audit_rate)
    is_small = scenario.devices <= min(MAX_DEVICES, MAX_INSTANCES / instances_per_device)
    if is_small and scenario.devices * requests_per_device <= 2 * max_requests:
        return scenario.devices
    device_bounds = [MAX_DEVICES, MAX_INSTANCES / instances_per_device]
    if requests_per_device:
        device_bounds.append(max_requests / requests_per_device)
    return max(1, min(scenario.devices, int(min(device_bounds))))


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
        self._stage_seconds = seconds_by_stage[np.maximum(table.last_stage, 0)]
        self._worker_context = WorkerContext(
            timings,
            scenario,
            bytes(self._sizes.response(_TYPICAL_WORKER_US)),
            table.max_disagreement,
        )
        self._counts = OffloadCounts()
        self._fleet_load = FleetLoad(
            scenario, self._worker_context, self._counts, policy.expected_offload_rate(table)
        )
        self.workers = [self._make_worker() for _ in range(scenario.workers)]
        self._availability = Availability(self._clock, scenario.outages, self.workers)

    def _make_worker(self) -> VirtualWorker:
        if self._n_devices == self._scenario.devices:
            return VirtualWorker(self._clock, self._worker_context)
        return SampledWorker(
            self._clock, self._worker_context, self._fleet_load.sample_at, self._rng
        )

    # -- running --------------------------------------------------------------------------------

    def run(
        self, arrivals: Arrivals, on_progress: Callable[[float, int], object] | None = None
    ) -> FleetRun:
        """Answer the instances; `on_progress` gets the time (s) and the number of instances."""
        policy = self._policy
        is_offloaded = self._choose_offloads(arrivals.row)
        has_audits = policy.has_audits_and_limit and bool(self._scenario.audit)
        # simulate only instances that may need a request; with audits, this is any instance
        positions = np.flatnonzero(is_offloaded | has_audits)
        step_columns = StepColumns(len(positions))
        fleet_context = self._make_context(step_columns)
        instances = arrivals.subset(positions)
        with _disable_garbage_collector():
            self._run_requests(fleet_context, instances, is_offloaded[positions], on_progress)
            self._clock.run()
        answers = self._make_answers(arrivals, positions, step_columns)
        return self._make_fleet_run(answers, fleet_context)

    def _choose_offloads(self, rows: NDArray[np.int32]) -> BoolArray:
        policy = self._policy
        table = self._table
        is_offloaded = policy.is_offloaded[rows]
        if policy.random_share:
            # Only the choice of the instances is random, not their number. The second part of the
            # seed separates these draws from the draws of the arrivals.
            rng = np.random.default_rng([self._scenario.seed, 4])
            other_instances = np.flatnonzero(table.can_offload[rows] & ~is_offloaded)
            # Adding a number from [0, 1) rounds a fraction f up with the probability f.
            n_chosen = int(policy.random_share * len(other_instances) + rng.random())
            is_offloaded[rng.permutation(other_instances)[:n_chosen]] = True
        return np.asarray(is_offloaded, np.bool_)

    def _make_context(self, step_columns: StepColumns) -> FleetContext:
        table = self._table
        scenario = self._scenario
        deadline_s = scenario.deadline_ms / 1000.0
        return FleetContext(
            clock=self._clock,
            availability=self._availability,
            broker=VirtualBroker(
                self._clock, self._availability, self.workers, self._worker_context
            ),
            scenario=scenario,
            table=table,
            sizes=self._sizes,
            columns=step_columns,
            rng=self._rng,
            stage_seconds=self._stage_seconds.tolist(),
            can_offload=table.can_offload.tolist(),
            local_label=table.local_label.tolist(),
            confidence=table.confidence.tolist(),
            is_cloud_first=self._policy.is_cloud_first,
            deadline_s=deadline_s,
            reserved_s=min(_RESERVED_SECONDS, scenario.deadline_ms / 1e4),
            usual_round_trip=self._compute_usual_round_trip(),
            offload_counts=self._counts,
        )

    def _find_or_make_device(
        self, fleet_context: FleetContext, device_number: int
    ) -> VirtualDevice:
        device = self._devices.get(device_number)
        if device is None:
            device = VirtualDevice(
                fleet_context, device_number, has_audits_and_limit=self._policy.has_audits_and_limit
            )
            self._devices[device_number] = device
        return device

    def _run_requests(
        self,
        fleet_context: FleetContext,
        instances: Arrivals,
        is_offloaded: BoolArray,
        on_progress: Callable[[float, int], object] | None,
    ) -> None:
        """Offload or audit each instance at the time at which its stages have finished."""
        clock = self._clock
        columns = fleet_context.columns
        stage_ends = instances.time.copy()
        if not self._policy.is_cloud_first:
            stage_ends += self._stage_seconds[instances.row]
        due_times = stage_ends.tolist()
        arrival_times = instances.time.tolist()
        rows = instances.row.tolist()
        devices = instances.device.tolist()
        offload_flags = is_offloaded.tolist()
        for n_started, position in enumerate(np.argsort(stage_ends, kind="stable").tolist()):
            clock.run(due_times[position])
            device = self._find_or_make_device(fleet_context, devices[position])
            row = rows[position]
            if offload_flags[position]:
                device.offload_instance(position, row, arrival_times[position])
            else:
                columns.end[position] = due_times[position]
                device.audit_instance(position, row)
            if on_progress is not None and n_started % _REPORT_INTERVAL == 0:
                on_progress(clock.now, n_started)

    def _compute_usual_round_trip(self) -> RoundTrip:
        """Compute the smoothed round trip of a device for requests without other traffic."""
        round_trip = RoundTrip()
        if not self._table.has_cloud:
            return round_trip
        timings = self._timings
        link = VirtualLink(self._scenario.link_profile, random.Random(self._scenario.seed))
        # Request and response pass through the broker and its connection to the worker.
        cloud_seconds = 2 * (timings.broker_us * 1e-6 + timings.hop_ms * 1e-3)
        cloud_seconds += self._worker_context.run_seconds(1, 1)
        request_bytes = self._sizes.request(int(self._scenario.deadline_ms))
        bytes_up = publish_bytes(REQUEST_TOPIC, request_bytes)
        bytes_down = publish_bytes(RESPONSE_TOPIC, self._sizes.response(_TYPICAL_WORKER_US))
        for trip_index in range(_N_ROUND_TRIPS):
            sent_at = 1000.0 * (trip_index + 1)  # late enough that the link is free again
            arrival = link.send(sent_at, bytes_up, is_uplink=True)
            link.send(arrival, PUBACK_BYTES, is_uplink=False)
            response_arrival = link.send(arrival + cloud_seconds, bytes_down, is_uplink=False)
            round_trip.add_round_trip(response_arrival - sent_at)
        return round_trip

    # -- answers --------------------------------------------------------------------------------

    def _make_answers(
        self, arrivals: Arrivals, positions: NDArray[Any], step_columns: StepColumns
    ) -> Answers:
        """Make the columns of all answers, given the columns of the instances at `positions`."""
        table = self._table
        n_instances = len(arrivals.time)
        rows = arrivals.row
        stage_ms = 1000.0 * self._stage_seconds[rows]
        local_route = table.local_route[rows]
        # A policy may leave to the device an instance that its stages would offload.
        stop_reason = np.where(table.is_offloaded[rows], REASON["edge-only"], REASON["stopped"])
        local_reason = np.where(local_route > EDGE, REASON["value"], stop_reason)

        def place_values(values: Any, dtype: Any) -> NDArray[Any]:
            column = np.zeros(n_instances, dtype)
            column[positions] = values
            return column

        # routes of the simulated instances; -1 if the device answers
        simulated_route = np.full(n_instances, -1, np.int8)
        simulated_route[positions] = step_columns.route
        is_device_answer = simulated_route < 0
        route = np.where(is_device_answer, local_route, simulated_route).astype(np.int8)
        reason = np.where(
            is_device_answer, local_reason, place_values(step_columns.reason, np.int8)
        )
        end = arrivals.time + stage_ms / 1000.0
        end[positions] = step_columns.end
        end = np.where(is_device_answer & np.isnan(end), np.inf, end)
        is_cloud = route == CLOUD
        device_ms = np.where(is_cloud & self._policy.is_cloud_first, 0.0, stage_ms)
        answers = Answers(
            time=arrivals.time,
            device=arrivals.device,
            row=rows,
            route=route,
            reason=reason.astype(np.int8),
            stage=np.where(is_cloud, table.n_stages, table.last_stage[rows]).astype(np.int8),
            label=np.where(is_cloud, table.cloud_label[rows], table.local_label[rows]).astype(
                np.int32
            ),
            cost=np.zeros(n_instances),
            feature_cost=np.zeros(n_instances),
            latency_ms=1000.0 * (end - arrivals.time),
            device_ms=device_ms.astype(np.float32),
            cloud_ms=place_values(step_columns.cloud_ms, np.float32),
            bytes_up=place_values(step_columns.bytes_up, np.int32),
            bytes_down=place_values(step_columns.bytes_down, np.int32),
            payload_bytes_up=place_values(step_columns.payload_bytes_up, np.int32),
            payload_bytes_down=place_values(step_columns.payload_bytes_down, np.int32),
            radio_joules=np.zeros(n_instances, np.float32),
            is_requested=place_values(step_columns.is_requested, np.bool_),
            is_audited=place_values(step_columns.is_audited, np.bool_),
        )
        fill_costs(answers, table, is_cloud_first=self._policy.is_cloud_first)
        fill_joules(answers, self._scenario, is_cloud_first=self._policy.is_cloud_first)
        return answers

    def _make_fleet_run(self, answers: Answers, fleet_context: FleetContext) -> FleetRun:
        scenario = self._scenario
        scale = scenario.devices / self._n_devices
        worker_counts = {
            name: count * scale for name, count in asdict(self._worker_context.counts).items()
        }
        worker_counts |= queue_means(worker_counts, scenario)
        worker_counts |= self._fleet_load.mean_outcomes()
        del worker_counts["queued_seconds"]  # reported as its mean, `wait_ms`
        return FleetRun(
            answers=answers,
            seconds=scenario.seconds,
            n_devices=self._n_devices,
            device_counts=asdict(fleet_context.offload_counts)
            | asdict(fleet_context.breaker_counts),
            worker_counts=worker_counts,
            scale=scale,
            sampling=self._describe_sampling(),
            is_cloud_first=self._policy.is_cloud_first,
            audit_cost=fleet_context.audit_cost,
            instances_at_alarms=tuple(self._worker_context.instances_at_alarms),
        )

    def _describe_sampling(self) -> str:
        scenario = self._scenario
        run_length = duration(scenario.seconds)
        if self._n_devices == scenario.devices:
            return f"all of {plural(scenario.devices, 'device')} for {run_length}"
        return (
            f"{self._n_devices:,} of {plural(scenario.devices, 'device')} for {run_length}, "
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
    on_progress: Callable[[float, int], object] | None = None,
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
        Number of devices to simulate; by default :func:`choose_n_devices` chooses it.
    on_progress : callable, optional
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
    if len(timings.edge_ms) < int(table.last_stage.max()) + 1:
        raise InputError(
            f"timings: edge_ms has {plural(len(timings.edge_ms), 'time')}: give one for each stage"
        )
    if n_devices is None:
        n_devices = choose_n_devices(table, scenario, policy)
    if arrivals is None:
        arrivals = scenario.draw_fleet_arrivals(len(table), table.truth, n_devices=n_devices)
    fleet = VirtualFleet(table, scenario, policy, timings, n_devices=n_devices)
    return fleet.run(arrivals, on_progress)


@contextmanager
def _disable_garbage_collector() -> Iterator[None]:
    """Disable the garbage collector, which is slow with many objects, within the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)  # all objects of the run are in the youngest generation
        if was_enabled:
            gc.enable()
