"""Steps one window of a plan and hands back its sums; pure, and so it may run in any process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise_sim.fleet.answers import Answers
from gatewise_sim.fleet.estimate.progress_reports import Running
from gatewise_sim.fleet.estimate.sampling import Plan, window_settings
from gatewise_sim.fleet.estimate.timeline import bins_of
from gatewise_sim.fleet.estimate.window_sums import RowFacts, Tally, WindowCounts
from gatewise_sim.fleet.joules import exchange_joules
from gatewise_sim.fleet.progress import ProgressListener
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.state import World

__all__ = ["step_window"]

_Counts = dict[str, float]


def step_window(
    routes: Routes,
    settings: FleetSettings,
    plan: Plan,
    number: int,
    facts: RowFacts,
    *,
    watch: ProgressListener | None = None,
) -> WindowCounts:
    """Step a window from its warm-up to the last answer.

    Parameters
    ----------
    routes : Routes
    settings : FleetSettings
        Of the whole run; instances come when they come.
    plan : Plan
    number : int
        Of the window.
    facts : RowFacts
        Of the routes.
    watch : ProgressListener, optional
        Looks on while it is stepped: of use for a run of one window.
    """
    window = plan.windows[number]
    own = settings if plan.whole else window_settings(settings, plan, number)
    world = World(routes, own)
    tally = Tally(bins_of(plan, window, settings.outages), facts, start=window.begin - window.warm)
    seen: list[tuple[_Counts, _Counts]] = []
    if not plan.whole:
        # What is counted at the end is what is there then: as much is on its way as at the begin.
        for when in (window.warm, own.seconds):
            world.clock.at(when, lambda: seen.append(_counted(world)))
    stayed, look = tally.stayed, None
    if watch is not None:
        running = Running(watch, world, facts, own.seconds)
        look = running.look

        def stayed(times: NDArray[np.float64], rows: NDArray[Any]) -> None:
            tally.stayed(times, rows)
            running.stayed(times, rows)

    with _no_collector():
        answers = Answers.join(world.run_open(stayed, look))
    if watch is not None:
        running.finish(answers)
    tally.add(answers, exchange_joules(answers, world.before(answers.row), own.link.radio))
    if plan.whole:
        seen = [({}, {}), _counted(world)]
    (devices_before, workers_before), (devices, workers) = seen
    return replace(
        tally.result(world.answers_here()),
        devices=_gained(devices, devices_before),
        workers=_gained(workers, workers_before),
        worker_seconds=(window.end - window.begin) * own.workers * own.parallel,
        events=world.clock.events,
    )


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


def _counted(world: World) -> tuple[_Counts, _Counts]:
    """What devices and workers counted up to now."""
    workers: _Counts = {}
    for worker in world.workers:
        for name, count in asdict(worker.counts).items():
            workers[name] = workers.get(name, 0) + count
    workers["unsubscribed"] = world.broker.unsubscribed
    return dict(world.device_counts), workers


def _gained(after: _Counts, before: _Counts) -> _Counts:
    return {name: float(count - before.get(name, 0)) for name, count in after.items()}
