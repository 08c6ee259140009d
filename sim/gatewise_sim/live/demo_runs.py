"""Run a bundle for real: broker, workers and devices in processes of their own, over MQTT.

The same rows go through the same devices and the same links once per policy, one pass after
the other. Everything is waited for by its own sign of life and a deadline; everything ends
with the block that started it, on success, on an error and on Ctrl-C.
"""

from __future__ import annotations

import secrets
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.console import Progress
from gatewise.errors import InputError
from gatewise_cloud.broker.client import shared_subscriptions_work
from gatewise_edge.link.mqtt import Endpoint
from gatewise_sim.fleet.network.proxy import DelayProxy, LinkProfile
from gatewise_sim.live.brokers import RunBroker
from gatewise_sim.live.outcome import Outcome
from gatewise_sim.live.processes import Fleet, Pass
from gatewise_sim.live.scheduler import Schedule
from gatewise_sim.live.site import Site
from gatewise_sim.report.legs import POLICIES, Leg

__all__ = ["Run", "Settings", "check", "run"]

_MOST_PROCESSES: Final = 4
#: Beyond all deadlines, for a busy machine.
_GRACE_SECONDS: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a bundle is deployed.

    Attributes
    ----------
    devices : int
        Devices; the rows are dealt out to them in turn.
    workers : int
        Cloud workers; more than one needs a broker that shares subscriptions.
    broker : str or None
        URL of a broker that runs already; None starts the embedded one.
    link : LinkProfile
        Between devices and broker.
    deadline_ms : float
        For each answer.
    seed : int
        Of the link's jitter and loss.
    """

    devices: int
    workers: int
    broker: str | None
    link: LinkProfile
    deadline_ms: float
    seed: int

    @property
    def broker_name(self) -> str:
        """The URL of the broker given, without user and password, or "embedded"."""
        return "embedded" if self.broker is None else Endpoint(self.broker).url


@dataclass(frozen=True)
class Run:
    """What a run brought.

    Attributes
    ----------
    legs : dict of str to Leg
        By the keys of :data:`gatewise_sim.report.legs.POLICIES`.
    workers : list of dict
        Each worker's counters.
    processes : int
        Processes that the devices ran in.
    troubles : list of str
        What went wrong on the way: processes that ended, rows that could not be answered.
    """

    legs: dict[str, Leg]
    workers: list[dict[str, Any]]
    processes: int
    troubles: list[str]


def check(settings: Settings) -> None:
    """Find out what would not work before anything is trained or started.

    Raises
    ------
    InputError
        If there is no device or no worker, or the broker cannot serve so many workers.
    LinkError
        If the broker that was given cannot be reached.
    """
    if settings.devices < 1 or settings.workers < 1:
        raise InputError("a run needs at least one device and one worker")
    if settings.broker is None:
        if settings.workers > 1:
            raise InputError(
                "the embedded broker serves one worker only: "
                "start a mosquitto and give its URL as --broker"
            )
        return
    if settings.link.delays:
        DelayProxy(settings.broker, settings.link)
    if shared_subscriptions_work(settings.broker) is False and settings.workers > 1:
        raise InputError(
            f"broker {settings.broker_name} does not serve shared subscriptions: run one worker"
        )


def run(bundle: Path, rows: NDArray[np.float32], settings: Settings, report: Progress) -> Run:
    """Deploy a bundle and let the devices answer the rows once under each policy.

    Parameters
    ----------
    bundle : Path
    rows : ndarray of float32, shape (n, n_features)
    settings : Settings
    report : Progress
        Told (answers, answers to come, what).

    Returns
    -------
    Run
        Rows that a device did not answer are missing from its legs.

    Raises
    ------
    RunError
        If a worker or a device does not get ready; the message is its own last line.
    BrokerError
        If the embedded broker does not start.
    """
    names = [f"demo-{secrets.token_hex(4)}-{i + 1}" for i in range(settings.devices)]
    teams = [names[p::_MOST_PROCESSES] for p in range(min(len(names), _MOST_PROCESSES))]
    turns = [_turns(p, team, settings.devices, len(rows)) for p, team in enumerate(teams)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gatewise-run-")))
        np.save(folder / "rows.npy", rows)
        report(0, 1, "cloud")
        site = Site(
            stack,
            bundle,
            stack.enter_context(RunBroker(settings.broker, embedded=True)),
            names,
            workers=settings.workers,
            link=settings.link,
            seed=settings.seed,
        )
        report(0, 1, "devices")
        job = {
            "bundle": str(bundle),
            "rows": str(folder / "rows.npy"),
            "broker": site.url,
            "options": {"deadline_ms": settings.deadline_ms},
            "pace": None,
        }
        fleet = Fleet(stack, folder, job, teams)
        longest = max(len(turn.number) / len(team) for turn, team in zip(turns, teams, strict=True))
        limit = (longest + 1.0) * settings.deadline_ms / 1000.0 + _GRACE_SECONDS
        legs, troubles = {}, site.troubles
        for before, (key, policy) in enumerate(POLICIES.items()):

            def hear(
                made: Pass, new: list[Outcome], *, before: int = before, policy: str = policy
            ) -> None:
                done = before * len(rows) + len(made.outcomes)
                report(done, len(POLICIES) * len(rows), policy)

            made = fleet.run_pass(policy, turns, limit=limit, hear=hear)
            legs[key] = _leg(made, len(rows), troubles)
        counters = site.stop()
    return Run(legs, counters, len(teams), [*fleet.troubles, *troubles])


def _turns(process: int, team: list[str], devices: int, rows: int) -> Schedule:
    """Deal the rows out to the devices in turn; those of a process's devices."""
    dealt = [np.arange(process + i * _MOST_PROCESSES, rows, devices) for i in range(len(team))]
    which = np.concatenate(dealt)
    seat = np.repeat(np.arange(len(team)), [len(some) for some in dealt])
    return Schedule(number=which, device=seat, row=which, time=None)


def _leg(made: Pass, rows: int, troubles: list[str]) -> Leg:
    """A row that could not be answered is missing, and told."""
    outcomes = []
    for outcome in made.outcomes.values():
        if outcome.route == "error":
            troubles.append(f"row {outcome.row}: {outcome.reason}")
        else:
            outcomes.append(outcome)
    counters = made.counters
    return Leg(outcomes, rows, counters["late"], counters["retries"], made.seconds)
