"""Run a bundle for real: broker, workers and devices in processes of their own, over MQTT.

The same rows go through the same devices and the same links once per policy, one pass after
the other. Everything is waited for by its own sign of life and a deadline; everything ends
with the block that started it, on success, on an error and on Ctrl-C.
"""

from __future__ import annotations

import queue
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gatewise_cloud.broker import EmbeddedBroker
from gatewise_cloud.client import shared_subscriptions_work
from gatewise_edge.mqtt import Endpoint
from gatewise_sim.children import Child
from gatewise_sim.errors import RunError
from gatewise_sim.network import DelayProxy, LinkProfile
from gatewise_sim.outcome import Outcome
from gatewise_sim.report import POLICIES, Leg
from gatewise_training.console import Progress
from gatewise_training.errors import InputError

__all__ = ["Run", "Settings", "check", "run"]

_READY_SECONDS = 60.0
_SILENCE_SECONDS = 30.0
_MOST_PROCESSES = 4

_Word = TypeVar("_Word")


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
        By the keys of :data:`gatewise_sim.report.POLICIES`.
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


@dataclass(frozen=True)
class _Event:
    """Something that a child said; None that it will say no more."""

    child: Child
    document: Mapping[str, Any] | None


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
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gatewise-run-")))
        url = settings.broker or stack.enter_context(EmbeddedBroker()).url
        report(0, 1, "cloud")
        workers = _start_workers(stack, bundle, url, settings)
        near = url
        if settings.link.delays:
            near = stack.enter_context(DelayProxy(url, settings.link, seed=settings.seed)).url
        report(0, 1, "devices")
        jobs = _jobs(bundle, rows, near, settings, folder)
        fleet = _Fleet(stack, jobs, settings.deadline_ms, len(rows), report)
        legs = {key: fleet.run_pass(policy) for key, policy in POLICIES.items()}
        counters = [worker.stop(fleet.troubles) for worker in workers]
    return Run(legs, counters, len(jobs), fleet.troubles)


# -- the cloud -----------------------------------------------------------------------------


class _Worker:
    """A cloud worker: ``gatewise cloud`` in a process of its own."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self._said: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self.child = Child(
            name, "gatewise_sim.tether", arguments, lambda _, document: self._said.put(document)
        )

    def wait_ready(self, deadline: float) -> None:
        if _heard(self._said, deadline, self.child) is None:
            raise self.child.failure()

    def stop(self, troubles: list[str]) -> dict[str, Any]:
        """End it in good order; its counters, empty if it ended before by itself."""
        if self.child.ended:
            troubles.append(str(self.child.failure()))
        self.child.close()
        last: dict[str, Any] = {}
        while (document := self._said.get()) is not None:
            last = dict(document)
        return last


def _start_workers(stack: ExitStack, bundle: Path, url: str, settings: Settings) -> list[_Worker]:
    arguments = ["cloud", str(bundle), "--broker", url, "--json"]
    if settings.broker is None:
        arguments.append("--plain-subscription")
    else:
        # A pool of this run's own: another's workers would take a share of its requests.
        arguments += ["--pool", f"gw-{secrets.token_hex(4)}"]
    workers = []
    for i in range(settings.workers):
        workers.append(_Worker(f"cloud worker {i + 1}", arguments))
        stack.callback(workers[-1].child.close)
    deadline = time.monotonic() + _READY_SECONDS
    for worker in workers:
        worker.wait_ready(deadline)
    return workers


# -- the devices ---------------------------------------------------------------------------


def _jobs(
    bundle: Path, rows: NDArray[np.float32], url: str, settings: Settings, folder: Path
) -> list[dict[str, Any]]:
    """Deal the rows out to the devices and the devices to processes."""
    table = folder / "rows.npy"
    np.save(table, rows)
    run_id = secrets.token_hex(3)
    names = [f"demo-{run_id}-{i + 1}" for i in range(settings.devices)]
    dealt = {name: list(range(i, len(rows), settings.devices)) for i, name in enumerate(names)}
    processes = min(settings.devices, _MOST_PROCESSES)
    return [
        {
            "bundle": str(bundle),
            "rows": str(table),
            "broker": url,
            "deadline_ms": settings.deadline_ms,
            "devices": {name: dealt[name] for name in names[p::processes]},
        }
        for p in range(processes)
    ]


class _Fleet:
    """The device processes, and what they say."""

    def __init__(
        self,
        stack: ExitStack,
        jobs: Sequence[Mapping[str, Any]],
        deadline_ms: float,
        rows: int,
        report: Progress,
    ) -> None:
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._silence = _SILENCE_SECONDS + deadline_ms / 1e3
        self._rows = rows
        self._report = report
        self._answers = 0
        self.troubles: list[str] = []
        self._alive: list[Child] = []
        for i, job in enumerate(jobs):
            child = Child(f"device process {i + 1}", "gatewise_sim.device_process", (), self._hear)
            self._alive.append(stack.enter_context(child))
            child.tell(job)

    def run_pass(self, policy: str) -> Leg:
        """Let every device answer its rows once."""
        for child in self._alive:
            child.tell({"policy": policy})
        waiting = set(self._alive)
        deadline = time.monotonic() + _READY_SECONDS
        while waiting:
            event = _heard(self._events, deadline, *waiting)
            if event.document is None:
                raise event.child.failure()
            waiting.discard(event.child)
        started = time.monotonic()
        for child in self._alive:
            child.tell({"go": True})
        outcomes: list[Outcome] = []
        counts = {"late": 0, "retries": 0}
        running = set(self._alive)
        while running:
            event = _heard(self._events, time.monotonic() + self._silence, *running)
            document = event.document
            if document is None:
                # Its rows are lost; the others go on.
                self._alive.remove(event.child)
                running.discard(event.child)
                self.troubles.append(str(event.child.failure()))
            elif document["event"] == "answer":
                outcomes.append(Outcome(*document["answer"]))
                self._answers += 1
                self._report(self._answers, len(POLICIES) * self._rows, policy)
            elif document["event"] == "failed":
                self.troubles.append(f"row {document['row']}: {document['message']}")
            else:
                running.discard(event.child)
                for name in counts:
                    counts[name] += document[name]
        seconds = time.monotonic() - started
        return Leg(outcomes, self._rows, counts["late"], counts["retries"], seconds)

    def _hear(self, child: Child, document: Mapping[str, Any] | None) -> None:
        self._events.put(_Event(child, document))


def _heard(said: queue.SimpleQueue[_Word], deadline: float, *silent: Child) -> _Word:
    """Wait for the next word until `deadline`; name those it should have come from."""
    try:
        return said.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        names = " and ".join(sorted(child.name for child in silent))
        raise RunError(names, "no sign of life; giving up") from None
