"""Estimate what a fleet of any size does, from the part of it that is stepped.

Each window of a :class:`~gatewise_sim.fleet.estimate.sampling.Plan` is stepped by itself, in a
process of its own if several jobs are asked for, and returns sums and histograms. A run that is
stepped whole is cut into parts as well: its intervals say what another such run would bring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gatewise.errors import InputError
from gatewise_sim.fleet.energy.device import DeviceEnergy
from gatewise_sim.fleet.estimate.intervals import Estimate
from gatewise_sim.fleet.estimate.progress_reports import WindowsDone, announce_faults
from gatewise_sim.fleet.estimate.result import FleetEstimate, combine
from gatewise_sim.fleet.estimate.sampling import Plan, plan
from gatewise_sim.fleet.estimate.window_sums import RowFacts, WindowCounts
from gatewise_sim.fleet.progress import ProgressListener
from gatewise_sim.fleet.routes import NO_LABEL, Routes
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.window import step_window

__all__ = ["Estimate", "FleetEstimate", "estimate_fleet"]


def estimate_fleet(
    routes: Routes,
    settings: FleetSettings,
    *,
    sampling: Plan | None = None,
    device_energy: DeviceEnergy | None = None,
    jobs: int = 1,
    watch: ProgressListener | None = None,
) -> FleetEstimate:
    """Estimate what a fleet does; a small one is stepped whole.

    Parameters
    ----------
    routes : Routes
    settings : FleetSettings
    sampling : Plan, optional
        By default :func:`gatewise_sim.fleet.estimate.sampling.plan`'s.
    device_energy : DeviceEnergy, optional
        Without it features and stages cost no joules.
    jobs : int, default 1
        Processes that step windows side by side; it changes no figure.
    watch : ProgressListener, optional
        Is told a few times a second how far it is.

    Raises
    ------
    InputError
        As :func:`gatewise_sim.fleet.run.simulate_fleet`; if no instance came, or `jobs` is no
        number of processes.
    """
    if jobs < 1:
        raise InputError(f"jobs is {jobs}; it must be at least 1")
    if watch is not None:
        announce_faults(watch, settings)
    if settings.in_turn is not None:
        return _in_turn(routes, settings, device_energy)
    chosen = plan(routes, settings) if sampling is None else sampling
    facts = RowFacts.of(routes, device_energy, cloud_only=settings.policy == "cloud-only")
    if chosen.whole:
        windows = [step_window(routes, settings, chosen, 0, facts, watch=watch)]
    else:
        judged = bool((facts.truth != NO_LABEL).any())
        done = None if watch is None else WindowsDone(watch, chosen, judged=judged)
        windows = _step_windows(routes, settings, chosen, facts, jobs, done)
    return combine(chosen, settings, windows)


def _in_turn(
    routes: Routes, settings: FleetSettings, device_energy: DeviceEnergy | None
) -> FleetEstimate:
    run = simulate_fleet(routes, settings)
    return FleetEstimate.of_run(
        routes,
        settings,
        run.answers,
        run.joules,
        device_energy=device_energy,
        devices=run.devices,
        workers=run.workers,
        events=run.events,
    )


def _step_windows(
    routes: Routes,
    settings: FleetSettings,
    plan: Plan,
    facts: RowFacts,
    jobs: int,
    done: WindowsDone | None,
) -> list[WindowCounts]:
    """Step all windows, in processes of their own if there are several jobs."""
    found: dict[int, WindowCounts] = {}
    # The longest first, so that none is left to be waited for.
    numbers = sorted(
        range(len(plan.windows)), key=lambda i: plan.windows[i].begin - plan.windows[i].end
    )
    for number, counts in _results(routes, settings, plan, facts, numbers, jobs):
        found[number] = counts
        if done is not None:
            done.add(number, counts)
    return [found[number] for number in range(len(numbers))]


def _results(
    routes: Routes,
    settings: FleetSettings,
    plan: Plan,
    facts: RowFacts,
    numbers: Sequence[int],
    jobs: int,
) -> Iterator[tuple[int, WindowCounts]]:
    if jobs == 1:
        for number in numbers:
            yield number, step_window(routes, settings, plan, number, facts)
        return
    import joblib

    parallel = joblib.Parallel(jobs, return_as="generator_unordered", max_nbytes=None)
    yield from parallel(
        joblib.delayed(_numbered)(routes, settings, plan, number, facts) for number in numbers
    )


def _numbered(
    routes: Routes, settings: FleetSettings, plan: Plan, number: int, facts: RowFacts
) -> tuple[int, WindowCounts]:
    return number, step_window(routes, settings, plan, number, facts)
