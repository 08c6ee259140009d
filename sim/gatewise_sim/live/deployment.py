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
from gatewise_cloud.service.worker_process import WorkerProcess
from gatewise_sim.errors import RunError
from gatewise_sim.fleet.network.proxy import DelayProxy
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.live.brokers import RunBroker, clear_status

_READY_SECONDS: Final = 60.0
_CHECK_SECONDS: Final = 0.05
_WORKER_OPTIONS: Final = ("queue", "max_batch", "wait_ms", "parallel")


def start_workers(
    stack: ExitStack, options: Sequence[Mapping[str, Any]], *, what: str = "cloud worker"
) -> list[WorkerProcess]:
    """Start workers that end with `stack`, and wait until they take requests.

    The options of each are those of :func:`gatewise_cloud.service.worker_process.make_worker`;
    RunError if a worker ends instead.
    """
    workers = []
    for i, each in enumerate(options, 1):
        workers.append(WorkerProcess(each, name=f"{what} {i}", keep_errors=True))
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
    return {} if backend is None else {"backend": {"url": backend}}


def _failure(child: ChildProcess) -> RunError:
    """The error of a child that ended by itself, with its last lines."""
    return RunError(child.name, child.failure())


def _await_uplinks(gateways: Sequence[WorkerProcess]) -> None:
    """Wait until gateways are connected to the cloud's broker."""
    deadline = time.monotonic() + _READY_SECONDS
    for gateway in gateways:
        while "uplink_connected 1" not in gateway.page("/metrics")[1]:
            if time.monotonic() > deadline:
                raise RunError(gateway.name, "no connection to the cloud's broker; giving up")
            time.sleep(_CHECK_SECONDS)


@dataclass(slots=True, eq=False)
class _WorkerSlot:
    """A worker or gateway, or its successor; `starting`: serving again, and not ready yet."""

    worker: WorkerProcess
    options: Mapping[str, Any]
    up: bool = True
    starting: bool = False
    restarts: int = 0

    @property
    def is_gateway(self) -> bool:
        """Whether it is a gateway."""
        return "uplink" in self.options


class Deployment:
    """Brokers, workers, gateways and links that end with `stack`, for devices of these names.

    `faults` are those that really happened (the cloud is back when its last worker is), `troubles`
    what went wrong without being on the schedule, `urls` where the devices find their brokers,
    dealt out in turn: `broker`, or those beside the gateways.
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
        gateways: int = 0,
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
        self._brokers = [broker]
        if gateways:
            self._brokers = [stack.enter_context(RunBroker()) for _ in range(gateways)]
            self._start_gateways(serving, settings)
        self._changes: list[float] = []
        self._proxies: list[DelayProxy] = []
        self.urls = [each.url for each in self._brokers]
        shut = any(window.what == "link" for window in self._outages.windows)
        if settings.link.delays or shut:
            for i, url in enumerate(self.urls):
                proxy = DelayProxy(
                    url,
                    settings.link,
                    seed=settings.seed + i,
                    outages=self._outages if shut else None,
                )
                self._proxies.append(stack.enter_context(proxy))
                proxy.began = math.inf  # nothing is down while devices still connect
                self.urls[i] = proxy.url

    def _start_gateways(self, serving: Mapping[str, Any], settings: FleetSettings) -> None:
        """Start a gateway beside each broker of the devices, with a link to the cloud's."""
        above = self.broker.url
        if settings.uplink.delays:
            proxy = DelayProxy(above, settings.uplink, seed=settings.seed)
            above = self._stack.enter_context(proxy).url
        options = [
            {
                **serving,
                "broker": broker.url,
                "shared": False,  # it is its broker's only one
                "tier": "gateway",
                "uplink": {"url": above},
                "metrics": True,
            }
            for broker in self._brokers
        ]
        gateways = start_workers(self._stack, options, what="gateway")
        _await_uplinks(gateways)
        self._slots += map(_WorkerSlot, gateways, options)

    @property
    def _in_cloud(self) -> list[_WorkerSlot]:
        return [slot for slot in self._slots if not slot.is_gateway]

    # -- the schedule ------------------------------------------------------------------------

    def begin(self, began: float, seconds: float) -> None:
        """Begin: the outages' times count from `began` (monotonic), up to so many seconds."""
        self._began = began
        for proxy in self._proxies:
            proxy.began = began
        self._changes = self._outages.changes(seconds)

    def tick(self, at: float) -> float:
        """Do what is due at `at` seconds; returns when to be called again."""
        while self._changes and self._changes[0] <= at:
            # Not at `at`: a window that has passed meanwhile is still to be opened and closed.
            self._change(self._changes.pop(0))
        for slot in self._slots:
            if slot.starting:
                self._check_successor(slot)
        if "cloud" in self._down and all(slot.up for slot in self._in_cloud):
            self._set_down("cloud", False)
        if "gateway" in self._down and all(slot.up for slot in self._slots if slot.is_gateway):
            self._set_down("gateway", False)
        coming = any(slot.starting for slot in self._slots)
        soon = at + _CHECK_SECONDS if coming else math.inf
        return min(soon, self._changes[0] if self._changes else math.inf)

    def _change(self, when: float) -> None:
        """Break and restart what the schedule has just behind `when`."""
        outages = self._outages
        when = math.nextafter(when, math.inf)
        broker_down = outages.down("broker", when) is not None
        for broker in self._brokers:
            if broker_down and "broker" not in self._down:
                broker.fail()
            elif not broker_down and "broker" in self._down:
                broker.recover()
        self._set_down("broker", broker_down)
        self._set_down("link", outages.down("link", when) is not None)
        everyone = outages.down("cloud", when) is not None
        if everyone:
            self._set_down("cloud", True)
        gateways = outages.down("gateway", when) is not None
        if gateways:
            self._set_down("gateway", True)
        some = outages.workers_down(when)
        fallen = []
        for i, slot in enumerate(self._slots):  # cloud workers come first
            down = gateways if slot.is_gateway else everyone or i < some
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
        """Report a worker, unless all of its kind are down."""
        if ("gateway" if slot.is_gateway else "cloud") not in self._down:
            self._report(slot.worker.name.removeprefix("cloud "), slot.up)

    def _report(self, what: str, up: bool) -> None:
        at = time.monotonic() - self._began
        self.faults.append({"what": what, "up": up, "at": round(at, 3)})

    # -- the end -----------------------------------------------------------------------------

    def stop(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """End all in good order; counters of each worker, and gateway, since it was started last.

        Gateways end first: what they have sent up is answered.
        """
        if "broker" not in self._down:
            brokers = dict.fromkeys([self.broker, *self._brokers])
            self.troubles += [each.trouble for each in brokers if each.trouble is not None]
        found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        for slot in reversed(self._slots):
            counted: dict[str, Any] = {}
            if slot.up and not slot.worker.alive:
                self.troubles.append(str(_failure(slot.worker)))
            slot.worker.close()
            if slot.up:
                counted = slot.worker.counters or {}
            counted = counted | ({"restarts": slot.restarts} if slot.restarts else {})
            found[slot.is_gateway].insert(0, counted)
        return found
