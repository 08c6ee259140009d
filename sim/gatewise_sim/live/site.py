"""What devices of a run need: a broker, cloud workers, links; and what breaks on schedule.

Outages are real. A worker or a broker that goes down is killed (SIGKILL) and started again at the
outage's end, a link falls silent in its proxy. A worker's successor loads its libraries while the
outage lasts and its model only then; how long it really took is in :attr:`Site.faults`.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gatewise_cloud.service.worker_process import WorkerProcess
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.network.profiles import LinkProfile
from gatewise_sim.fleet.network.proxy import DelayProxy
from gatewise_sim.live.brokers import RunBroker, forget
from gatewise_sim.live.processes import failed, start_workers

__all__ = ["Site"]

_LOOK_SECONDS: Final = 0.05
OnFault = Callable[[str, bool, float], None]


@dataclass(slots=True, eq=False)
class _Place:
    """Where a worker is, was, or will be."""

    name: str
    worker: WorkerProcess
    up: bool = True
    #: Told to serve again, and not ready yet.
    coming: bool = False
    restarts: int = 0


class Site:
    """A broker, workers and links that end with `stack`.

    Parameters
    ----------
    stack : ExitStack
    bundle : Path
    broker : RunBroker
    devices : sequence of str
        Their names.
    workers : int
    options : mapping, optional
        Of the workers, beside bundle and broker, see
        :func:`gatewise_cloud.service.worker_process.make_worker`.
    link : LinkProfile
    seed : int
        Of the links.
    outages : Outages, optional
    on_fault : callable, optional
        Told what goes down or comes back, whether it is up, and the seconds since the run began.

    Attributes
    ----------
    url : str
        Where the devices find the broker.
    faults : list of dict
        ``what``, ``up``, ``at`` of every change that really happened; the cloud is back when its
        last worker is.
    troubles : list of str
        What went wrong without being on the schedule.

    Raises
    ------
    RunError
        If a worker does not get ready.
    InputError
        If there can be no proxy before the broker.
    """

    def __init__(
        self,
        stack: ExitStack,
        bundle: Path,
        broker: RunBroker,
        devices: Sequence[str],
        *,
        workers: int,
        options: Mapping[str, Any] | None = None,
        link: LinkProfile,
        seed: int,
        outages: Outages | None = None,
        on_fault: OnFault | None = None,
    ) -> None:
        self.broker = broker
        self.faults: list[dict[str, Any]] = []
        self.troubles: list[str] = []
        self._outages = outages or Outages()
        self._on_fault = on_fault
        self._down: set[str] = set()
        self._began = time.monotonic()
        if broker.is_own:
            # With one worker nobody has to share, and the embedded broker could not.
            pool: dict[str, Any] = {"shared": workers > 1}
        else:
            # A pool of this run's own: another's workers would take a share of its requests.
            pool = {"pool": f"gw-{secrets.token_hex(4)}"}
            stack.callback(forget, broker.url, devices)
        self._options = {
            "bundles": [str(bundle)],
            "broker": broker.url,
            **pool,
            **(options or {}),
        }
        self._stack = stack
        self._places = [
            _Place(worker.name, worker) for worker in start_workers(stack, workers, self._options)
        ]
        self._changes: list[float] = []
        self._proxy: DelayProxy | None = None
        self.url = broker.url
        shut = any(window.what == "link" for window in self._outages.windows)
        if link.delays or shut:
            proxy = DelayProxy(self.url, link, seed=seed, outages=self._outages if shut else None)
            self._proxy = stack.enter_context(proxy)
            proxy.began = math.inf  # nothing is down while devices still connect
            self.url = proxy.url

    @property
    def workers_up(self) -> int:
        """Workers that serve."""
        return sum(place.up and place.worker.alive for place in self._places)

    # -- the schedule ------------------------------------------------------------------------

    def go(self, began: float, seconds: float) -> None:
        """Begin: the outages' times count from `began` (monotonic), up to so many seconds."""
        self._began = began
        if self._proxy is not None:
            self._proxy.began = began
        self._changes = sorted({at for at, _ in self._outages.changes(seconds)})

    def tick(self, at: float) -> float:
        """Do what is due at `at` seconds; when to come again."""
        while self._changes and self._changes[0] <= at:
            # Not at `at`: a window that has passed meanwhile is still to be opened and closed.
            self._change(self._changes.pop(0))
        for place in self._places:
            if place.coming:
                self._look(place)
        if "cloud" in self._down and all(place.up for place in self._places):
            self._note("cloud", False)
        coming = any(place.coming for place in self._places)
        soon = at + _LOOK_SECONDS if coming else math.inf
        return min(soon, self._changes[0] if self._changes else math.inf)

    def _change(self, when: float) -> None:
        """Make it as the schedule has it just behind `when`."""
        outages = self._outages
        when = math.nextafter(when, math.inf)
        broker_down = outages.down("broker", when) is not None
        if broker_down and "broker" not in self._down:
            self.broker.fail()
        elif not broker_down and "broker" in self._down:
            self.broker.recover()
        self._note("broker", broker_down)
        self._note("link", outages.down("link", when) is not None)
        everyone = outages.down("cloud", when) is not None
        if everyone:
            self._note("cloud", True)
        some = outages.workers_down(when)
        fallen = []
        for i, place in enumerate(self._places):
            down = everyone or i < some
            if down and (place.up or place.coming):
                if not place.worker.alive:
                    self.troubles.append(str(failed(place.worker)))
                place.worker.kill()
                fallen.append(place)
            # One that begins without a broker gives up at once.
            elif not down and not broker_down and not place.up and not place.coming:
                place.worker.serve(self._options)
                place.coming = True
        for place in fallen:  # once all are dead
            place.worker.close()
            place.up = place.coming = False
            self._tell_of(place)
            place.worker = WorkerProcess(name=place.name, keep_errors=True)
            self._stack.callback(place.worker.close)

    def _look(self, place: _Place) -> None:
        """See whether a worker is back."""
        ready = place.worker.ready is not None
        if not ready and place.worker.alive:
            return
        place.coming, place.up = False, ready
        if ready:
            place.restarts += 1
            self._tell_of(place)
        else:
            self.troubles.append(f"{failed(place.worker)} (started again)")

    def _note(self, what: str, down: bool) -> None:
        if down != (what in self._down):
            self._down ^= {what}
            self._tell(what, not down)

    def _tell_of(self, place: _Place) -> None:
        """Name a worker, unless it is one of all."""
        if "cloud" not in self._down:
            self._tell(place.name.removeprefix("cloud "), place.up)

    def _tell(self, what: str, up: bool) -> None:
        at = time.monotonic() - self._began
        self.faults.append({"what": what, "up": up, "at": round(at, 3)})
        if self._on_fault is not None:
            self._on_fault(what, up, at)

    # -- the end -----------------------------------------------------------------------------

    def stop(self) -> list[dict[str, Any]]:
        """End the workers in good order; what each counted since it was started last."""
        if "broker" not in self._down and self.broker.trouble is not None:
            self.troubles.append(self.broker.trouble)
        counters = []
        for place in self._places:
            counted: dict[str, Any] = {}
            if place.up and not place.worker.alive:
                self.troubles.append(str(failed(place.worker)))
            place.worker.close()
            if place.up:
                counted = place.worker.counters or {}
            counters.append(counted | ({"restarts": place.restarts} if place.restarts else {}))
        return counters
