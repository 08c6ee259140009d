"""A fleet in virtual time: devices, links, a broker, workers and one clock.

Who waits for whom is stepped event by event, by the very objects that decide it on a device and
in a worker (:mod:`gatewise_sim.fleet.device`, :mod:`gatewise_sim.fleet.worker`). Instances
that never leave their device wait for nobody: they are answered in bulk. The same settings give
the same answers, bit for bit.

Not simulated: gateways, requests of several rows, TCP's and MQTT's handshakes, and that two
instances of one device share its processor.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from gatewise_sim.fleet.answers import Answers
from gatewise_sim.fleet.joules import exchange_joules
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.settings import Arrivals, FleetSettings
from gatewise_sim.fleet.state import World

__all__ = ["Arrivals", "FleetRun", "FleetSettings", "simulate_fleet"]


@dataclass(frozen=True, eq=False)
class FleetRun:
    """What a fleet did.

    Attributes
    ----------
    answers : Answers
        One entry an instance, by time of arrival (of rows in turn: device after device).
    joules : ndarray of float64, shape (n,)
        What each instance's messages cost its device's radio
        (:func:`gatewise_sim.fleet.energy.meter.radio_joules`); an exchange ends with its answer.
    devices : dict of str to int
        Sums over the devices of :class:`gatewise_edge.link.offload.OffloadCounts` and
        :class:`gatewise_edge.link.breaker.BreakerCounts`.
    workers : list of dict
        Each worker's :class:`gatewise_sim.fleet.worker.WorkerCounts`.
    unsubscribed : int
        Requests that the broker dropped since no worker was there.
    seconds : float
        When the last answer was given, in virtual time.
    events : int
        Events stepped.
    """

    answers: Answers
    joules: NDArray[np.float64]
    devices: dict[str, int]
    workers: list[dict[str, float]]
    unsubscribed: int
    seconds: float
    events: int


def simulate_fleet(routes: Routes, settings: FleetSettings) -> FleetRun:
    """Let a fleet answer its instances in virtual time.

    Parameters
    ----------
    routes : Routes
        The rows that instances are.
    settings : FleetSettings

    Raises
    ------
    InputError
        If the settings do not fit the routes.
    """
    world = World(routes, settings)
    parts = world.run_in_turn() if settings.in_turn is not None else world.run_open()
    answers = Answers.join(parts)
    ends = answers.time + answers.latency_ms / 1000.0
    return FleetRun(
        answers=answers,
        joules=exchange_joules(answers, world.before(answers.row), settings.link.radio),
        devices=world.device_counts,
        workers=[asdict(worker.counts) for worker in world.workers],
        unsubscribed=world.broker.unsubscribed,
        seconds=float(ends.max(initial=0.0)),
        events=world.clock.events,
    )
