"""Outcomes of requests at the workers of a large fleet, estimated from one simulated worker.

A run simulates only some devices of the fleet, but the workers have the load of all devices.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gatewise_edge.link.offload import OffloadCounts
from gatewise_sim.fleet.worker import QueueSample, WorkerContext, sample_queue
from gatewise_sim.fleet.workload import Arrivals, Diurnal, Poisson
from gatewise_sim.scenario import Scenario

#: Number of requests in the simulation of a worker.
_SAMPLED_REQUESTS: Final = 20_000
#: Number of levels of the load, and of the share of retries, for which a worker is simulated.
_N_LOAD_LEVELS: Final = 8
#: Smallest number of requests from which the share of retries is estimated. Estimates from
#: the first few requests would choose a wrong level.
_MIN_REQUESTS_FOR_RETRIES: Final = 1000
#: Largest number of workers among which the requests of a sample are dealt. More workers would take
#: more time, and the arrivals at one worker would hardly become more regular.
_MAX_SAMPLED_WORKERS: Final = 16
#: Smallest rate of a device's instances per second, because a process cannot have the rate 0.
_MIN_RATE: Final = 1e-9
#: Largest rate of a day, as a multiple of its mean; the rate follows a cosine.
_PEAK_FACTOR: Final = 2
#: Second part of the seed, so that these draws do not depend on the other draws of a run.
_SEED_PART: Final = 5


class FleetLoad:
    """Samples of one worker's outcomes, each simulated when a load occurs for the first time.

    `offload_counts` are the counts of the simulated devices, and `offload_rate` is the expected
    share of instances that are offloaded.
    """

    def __init__(
        self,
        scenario: Scenario,
        worker_context: WorkerContext,
        offload_counts: OffloadCounts,
        offload_rate: float,
    ) -> None:
        self._scenario = scenario
        self._worker_context = worker_context
        self._offload_counts = offload_counts
        self._offload_rate = offload_rate
        #: Samples by the level of the load and that of the retries.
        self._samples: dict[tuple[int, int], QueueSample] = {}

    def sample_at(self, now: float) -> QueueSample:
        """Find or simulate the sample for the load at `now` (s)."""
        arrival_process = self._scenario.arrival_process
        load_level = 0  # the only level of a process with a constant rate
        if isinstance(arrival_process, Diurnal):
            peak_rate = arrival_process.rate * _PEAK_FACTOR
            relative_rate = float(arrival_process.rate_at(np.array([now]))[0]) / peak_rate
            load_level = round(_N_LOAD_LEVELS * relative_rate)
        n_sent = max(self._offload_counts.sent, _MIN_REQUESTS_FOR_RETRIES)
        retry_level = round(_N_LOAD_LEVELS * self._offload_counts.retries / n_sent)
        if (load_level, retry_level) not in self._samples:
            self._samples[load_level, retry_level] = self._simulate_worker(load_level, retry_level)
        return self._samples[load_level, retry_level]

    def _simulate_worker(self, load_level: int, retry_level: int) -> QueueSample:
        scenario = self._scenario
        arrival_process = scenario.arrival_process
        if isinstance(arrival_process, Diurnal):
            peak_rate = arrival_process.rate * _PEAK_FACTOR
            arrival_process = Poisson(max(peak_rate * load_level / _N_LOAD_LEVELS, _MIN_RATE))
        # A retry that reaches another worker, with probability 1 - 1 / workers, is an additional
        # request.
        retry_share = retry_level / _N_LOAD_LEVELS
        request_rate = self._offload_rate * (1 + retry_share * (1 - 1 / scenario.workers))
        # The broker sends requests to n workers in turn, so one worker gets every n-th request.
        n_workers = min(scenario.workers, _MAX_SAMPLED_WORKERS)
        n_devices = max(1, round(request_rate * scenario.devices * n_workers / scenario.workers))
        seconds = _SAMPLED_REQUESTS * n_workers / (arrival_process.mean_rate * n_devices)
        rng = np.random.default_rng([scenario.seed, _SEED_PART, load_level, retry_level])
        events = arrival_process.draw(n_devices, max(seconds, 1.0 / arrival_process.mean_rate), rng)
        received_events = np.argsort(events.time, kind="stable")[::n_workers]
        devices = events.device[received_events].astype(np.int32)
        arrivals = Arrivals(events.time[received_events], devices, np.zeros_like(devices))
        return sample_queue(self._worker_context, arrivals, scenario.deadline_ms / 1000.0)

    def mean_outcomes(self) -> dict[str, float]:
        """Average utilisation, batch and wait over the samples; return {} without a sample."""
        samples = list(self._samples.values())
        if not samples:
            return {}
        return {
            "utilisation": float(np.mean([sample.utilisation for sample in samples])),
            "batch": float(np.mean([sample.mean_batch for sample in samples])),
            "wait_ms": 1000.0 * float(np.mean([sample.mean_wait_s for sample in samples])),
        }
