"""Estimate what a fleet of any size does, from the part of it that is stepped.

Each window of the plan is stepped by itself, in a process of its own with several jobs,
and returns sums and histograms. A run that is stepped whole is cut into parts as well: its
intervals say what another such run would bring.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_sim.fleet.answers import AlarmCount, Answers
from gatewise_sim.fleet.energy import DeviceEnergy
from gatewise_sim.fleet.estimate.plan import SamplingPlan, cut_window
from gatewise_sim.fleet.estimate.progress_reports import RunReports, WindowReports
from gatewise_sim.fleet.estimate.result import FleetEstimate, combine, count_alarms
from gatewise_sim.fleet.estimate.sampling import choose_plan, window_settings
from gatewise_sim.fleet.estimate.window_sums import RowFacts, WindowCounts, WindowSums
from gatewise_sim.fleet.progress import ProgressListener
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.run import VirtualFleet, simulate_fleet
from gatewise_sim.fleet.settings import FleetSettings

_Counts = dict[str, float]


def estimate_fleet(
    routes: Routes,
    settings: FleetSettings,
    *,
    sampling: SamplingPlan | None = None,
    device_energy: DeviceEnergy | None = None,
    jobs: int = 1,
    watch: ProgressListener | None = None,
) -> FleetEstimate:
    """Estimate what a fleet of `settings` does by `routes`; a small one is stepped whole.

    `sampling` is by default :func:`gatewise_sim.fleet.estimate.sampling.choose_plan`'s. Without
    `device_energy` features and stages cost no joules. `jobs` processes step windows side by side,
    which changes no figure; `watch` is told of the progress. InputError as
    :func:`gatewise_sim.fleet.run.simulate_fleet`, and if no instance came.
    """
    if jobs < 1:
        raise InputError(f"jobs is {jobs}; it must be at least 1")
    listener = watch or ProgressListener()
    settings.outages.announce(listener.fault, settings.seconds)
    if settings.in_turn is not None:
        run = simulate_fleet(routes, settings)
        return FleetEstimate.from_run(routes, settings, run, device_energy=device_energy)
    plan = choose_plan(routes, settings) if sampling is None else sampling
    facts = RowFacts.from_routes(routes, device_energy, cloud_only=settings.policy == "cloud-only")
    if plan.whole:
        _, counts, alarms = _step(facts, settings, plan, 0, listener)
        return combine(plan, settings, [counts], alarms)
    reports = WindowReports(listener, plan)
    # The longest first, so that none is left to be waited for.
    numbers = sorted(
        range(len(plan.windows)), key=lambda i: plan.windows[i].begin - plan.windows[i].end
    )
    import joblib

    found: dict[int, WindowCounts] = {}
    parallel = joblib.Parallel(jobs, return_as="generator_unordered", max_nbytes=None)
    for number, counts, _ in parallel(
        joblib.delayed(_step)(facts, settings, plan, i, ProgressListener()) for i in numbers
    ):
        found[number] = counts
        reports.add(number, counts)
    return combine(plan, settings, [found[number] for number in range(len(numbers))])


def _step(
    facts: RowFacts,
    settings: FleetSettings,
    plan: SamplingPlan,
    number: int,
    listener: ProgressListener,
) -> tuple[int, WindowCounts, tuple[AlarmCount, ...]]:
    """Step a window from its warm-up to the last answer; alarms of audits if it is all there is."""
    window = plan.windows[number]
    own = settings if plan.whole else window_settings(settings, plan, number)
    fleet = VirtualFleet(facts.routes, own)
    rules, clock = fleet.state.rules, fleet.state.clock
    bins = cut_window(plan, window, settings.outages)
    sums = WindowSums(bins, facts, start=window.begin - window.warm)
    seen: list[tuple[_Counts, _Counts]] = []
    if not plan.whole:
        # What is counted at the end is what is there then: as much is on its way as at the begin.
        for when in (window.warm, own.seconds):
            clock.at(when, lambda: seen.append(_counters(fleet)))
    reports = RunReports(listener, fleet.state, own.seconds)

    def add_local(times: NDArray[np.float64], rows: NDArray[Any]) -> None:
        sums.add_local(times, rows)
        reports.add_local(rows)

    with _no_collector():
        parts = fleet.run_open(add_local, reports.advance)
        answers = Answers.join(parts)
    reports.finish(answers)
    sums.add(answers, fleet.joules(answers))
    if plan.whole:
        seen = [({}, {}), _counters(fleet)]
    (devices_before, workers_before), (devices, workers) = seen
    found = replace(
        sums.result(rules.local_answers()),
        devices=_gained(devices, devices_before),
        workers=_gained(workers, workers_before),
        worker_seconds=(window.end - window.begin) * own.workers * own.parallel,
        events=clock.events,
    )
    return number, found, count_alarms(fleet.alarms if plan.whole else None, answers, own)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keep Python from looking for cycles again and again among millions of objects."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _counters(fleet: VirtualFleet) -> tuple[_Counts, _Counts]:
    """Sums of the counters of devices and of workers up to now."""
    workers: _Counts = {}
    for worker in fleet.workers:
        for name, count in asdict(worker.counts).items():
            workers[name] = workers.get(name, 0) + count
    workers["unsubscribed"] = fleet.unsubscribed
    return dict(fleet.device_counts), workers


def _gained(after: _Counts, before: _Counts) -> _Counts:
    return {name: float(count - before.get(name, 0)) for name, count in after.items()}
