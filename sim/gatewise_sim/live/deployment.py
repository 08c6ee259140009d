"""Broker, cloud workers and links of a live run, and what breaks on schedule.

Outages are real. A worker or a broker that goes down is killed (SIGKILL) and started again at the
outage's end, a link falls silent in its proxy. A worker's successor loads its libraries while the
outage lasts and its model only then; how long it really took is in :attr:`Deployment.faults`.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gatewise_cloud.child_process import ChildProcess
from gatewise_sim.errors import RunError
from gatewise_sim.fleet.network.proxy import DelayProxy
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.live.brokers import RunBroker, clear_status
from gatewise_sim.live.worker_process import WorkerProcess

_READY_SECONDS: Final = 60.0
_CHECK_SECONDS: Final = 0.05
_WORKER_OPTIONS: Final = ("queue", "max_batch", "wait_ms", "parallel")


def start_workers(stack: ExitStack, options: Sequence[Mapping[str, Any]]) -> list[WorkerProcess]:
    """Start workers that end with `stack`, and wait until they take requests.

    The options of each are those of :class:`gatewise_cloud.service.cli.CloudSettings`;
    RunError if a worker ends instead.
    """
    workers = []
    for i, each in enumerate(options, 1):
        workers.append(WorkerProcess(each, name=f"cloud worker {i}", keep_errors=True))
        stack.callback(workers[-1].close)
    deadline = time.monotonic() + _READY_SECONDS
    for worker in workers:
        if not worker.wait_ready(deadline - time.monotonic()):
            if time.monotonic() < deadline:
                raise _failure(worker)
            raise RunError(worker.name, "no sign of life; giving up")
    return workers


def backend_option(backend: str | None) -> dict[str, Any]:
    """Option of a worker with this backend, if any."""
    return {} if backend is None else {"backend": backend}


def _failure(child: ChildProcess) -> RunError:
    """The error of a child that ended by itself, with its last lines."""
    return RunError(child.name, child.failure())


@dataclass(slots=True, eq=False)
class _WorkerSlot:
    """A worker, or its successor; `starting`: serving again, and not ready yet."""

    worker: WorkerProcess
    options: Mapping[str, Any]
    up: bool = True
    starting: bool = False
    restarts: int = 0


class Deployment:
    """Broker, workers and link that end with `stack`, for devices of these names.

    `faults` are those that really happened (the cloud is back when its last worker is), `troubles`
    what went wrong without being on the schedule, `url` where the devices find the broker.
    """

    def __init__(
        self,
        stack: ExitStack,
        bundle: Path,
        broker: RunBroker,
        devices: Sequence[str],
        settings: FleetSettings,
        *,
        workers: int,
    ) -> None:
        self.broker = broker
        self.faults: list[dict[str, Any]] = []
        self.troubles: list[str] = []
        self._outages = settings.outages
        self._down: set[str] = set()
        self._began = time.monotonic()
        if broker.is_own:
            # A single worker shares with no other, and the embedded broker could not.
            pool: dict[str, Any] = {"shared": workers > 1}
        else:
            # A pool of this run's own: another's workers would take a share of its requests.
            pool = {"pool": f"gw-{secrets.token_hex(4)}"}
            stack.callback(clear_status, broker.url, devices)
        serving = {
            "bundles": [str(bundle)],
            **{name: getattr(settings, name) for name in _WORKER_OPTIONS},
        }
        cloud = {**serving, "broker": broker.url, **pool, **backend_option(settings.backend)}
        self._stack = stack
        self._slots = [
            _WorkerSlot(worker, cloud) for worker in start_workers(stack, [cloud] * workers)
        ]
        self._changes: list[float] = []
        self._proxy: DelayProxy | None = None
        self.url = broker.url
        shut = any(window.what == "link" for window in self._outages.windows)
        if settings.link.delays or shut:
            outages = self._outages if shut else None
            proxy = DelayProxy(broker.url, settings.link, seed=settings.seed, outages=outages)
            self._proxy = stack.enter_context(proxy)
            proxy.began = math.inf  # nothing is down while devices still connect
            self.url = proxy.url

    # -- the schedule ------------------------------------------------------------------------

    def begin(self, began: float, seconds: float) -> None:
        """Begin: the outages' times count from `began` (monotonic), up to so many seconds."""
        self._began = began
        if self._proxy is not None:
            self._proxy.began = began
        self._changes = self._outages.changes(seconds)

    def tick(self, at: float) -> float:
        """Do what is due at `at` seconds; returns when to be called again."""
        while self._changes and self._changes[0] <= at:
            # Not at `at`: a window that has passed meanwhile is still to be opened and closed.
            self._change(self._changes.pop(0))
        for slot in self._slots:
            if slot.starting:
                self._check_successor(slot)
        if "cloud" in self._down and all(slot.up for slot in self._slots):
            self._set_down("cloud", False)
        coming = any(slot.starting for slot in self._slots)
        soon = at + _CHECK_SECONDS if coming else math.inf
        return min(soon, self._changes[0] if self._changes else math.inf)

    def _change(self, when: float) -> None:
        """Break and restart what the schedule has just behind `when`."""
        outages = self._outages
        when = math.nextafter(when, math.inf)
        broker_down = outages.down("broker", when) is not None
        if broker_down and "broker" not in self._down:
            self.broker.fail()
        elif not broker_down and "broker" in self._down:
            self.broker.recover()
        self._set_down("broker", broker_down)
        self._set_down("link", outages.down("link", when) is not None)
        everyone = outages.down("cloud", when) is not None
        if everyone:
            self._set_down("cloud", True)
        some = outages.workers_down(when)
        fallen = []
        for i, slot in enumerate(self._slots):
            down = everyone or i < some
            if down and (slot.up or slot.starting):
                if not slot.worker.alive:
                    self.troubles.append(str(_failure(slot.worker)))
                slot.worker.kill()
                fallen.append(slot)
            # One that begins without a broker gives up at once.
            elif not down and not broker_down and not slot.up and not slot.starting:
                slot.worker.serve(slot.options)
                slot.starting = True
        for slot in fallen:  # once all are dead
            slot.worker.close()
            slot.up = slot.starting = False
            self._report_worker(slot)
            slot.worker = WorkerProcess(name=slot.worker.name, keep_errors=True)
            self._stack.callback(slot.worker.close)

    def _check_successor(self, slot: _WorkerSlot) -> None:
        """Check whether a worker's successor serves."""
        ready = slot.worker.ready is not None
        if not ready and slot.worker.alive:
            return
        slot.starting, slot.up = False, ready
        if ready:
            slot.restarts += 1
            self._report_worker(slot)
        else:
            self.troubles.append(f"{_failure(slot.worker)} (started again)")

    def _set_down(self, what: str, down: bool) -> None:
        if down != (what in self._down):
            self._down ^= {what}
            self._report(what, not down)

    def _report_worker(self, slot: _WorkerSlot) -> None:
        """Report a worker, unless all are down."""
        if "cloud" not in self._down:
            self._report(slot.worker.name.removeprefix("cloud "), slot.up)

    def _report(self, what: str, up: bool) -> None:
        at = time.monotonic() - self._began
        self.faults.append({"what": what, "up": up, "at": round(at, 3)})

    # -- the end -----------------------------------------------------------------------------

    def stop(self) -> list[dict[str, Any]]:
        """End all in good order; counters of each worker since it was started last."""
        if "broker" not in self._down and self.broker.trouble is not None:
            self.troubles.append(self.broker.trouble)
        counters = []
        for slot in self._slots:
            counted: dict[str, Any] = {}
            if slot.up and not slot.worker.alive:
                self.troubles.append(str(_failure(slot.worker)))
            slot.worker.close()
            if slot.up:
                counted = slot.worker.counters or {}
            counters.append(counted | ({"restarts": slot.restarts} if slot.restarts else {}))
        return counters
