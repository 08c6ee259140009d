"""Broker, cloud workers and link of a live run, with scheduled outages.

In an outage of workers or of the broker, their processes are killed and later started again. In an
outage of the link, its proxy stops forwarding. :attr:`Deployment.faults` contains the times at
which each part was down and up again.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from gatewise_sim.live.brokers import RunBroker, clear_status
from gatewise_sim.live.proxy import DelayProxy
from gatewise_sim.live.workers import Workers
from gatewise_sim.scenario import Scenario

#: Time between two checks whether a restarted worker serves requests.
_CHECK_SECONDS: Final = 0.05


class Deployment:
    """Broker, workers and emulated link of a live run.

    Parameters
    ----------
    stack : ExitStack
        Stack that stops the processes when it is closed.
    bundle : Path
        Bundle of the workers.
    scenario : Scenario
        Deployment and outages.
    devices : sequence of str
        Ids of the devices.
    has_cloud : bool
        Whether the run needs workers.

    Attributes
    ----------
    url : str
        URL of the broker for devices, behind the emulated link.
    faults : list of dict
        Outages with their real times: ``what``, ``up`` and ``at`` (s).
    """

    def __init__(
        self,
        stack: ExitStack,
        bundle: Path,
        scenario: Scenario,
        devices: Sequence[str],
        *,
        has_cloud: bool,
    ) -> None:
        self.faults: list[dict[str, Any]] = []
        self._broker_troubles: list[str] = []
        self.broker = stack.enter_context(RunBroker(scenario.broker))
        self._outages = scenario.outages
        self._change_times: list[float] = []
        self._down_components: set[str] = set()
        self._start_time = time.monotonic()
        if not self.broker.is_own:
            stack.callback(clear_status, self.broker.url, devices)
        self._workers = Workers(
            stack,
            self._make_worker_options(bundle, scenario),
            self.broker.url,
            scenario.workers if has_cloud else 0,
        )
        self.url = self.broker.url
        self._proxy: DelayProxy | None = None
        has_link_outage = any(span.what == "link" for span in self._outages.spans_within_run())
        if scenario.link_profile.delays_messages or has_link_outage:
            outages = self._outages if has_link_outage else None
            proxy = DelayProxy(self.url, scenario.link_profile, seed=scenario.seed, outages=outages)
            self._proxy = stack.enter_context(proxy)
            proxy.start = math.inf  # no outage while devices connect
            self.url = proxy.url

    def _make_worker_options(self, bundle: Path, scenario: Scenario) -> list[str]:
        options = [str(bundle)]
        for name in ("queue", "max_batch", "wait_ms", "parallel"):
            options += [f"--{name.replace('_', '-')}", str(getattr(scenario, name))]
        if scenario.backend is not None:
            options += ["--backend", scenario.backend]
        if not self.broker.is_own:
            # Use a new pool, because workers of another run would take some of the requests.
            options += ["--pool", f"gw-{secrets.token_hex(4)}"]
        elif scenario.workers == 1:
            # The embedded broker does not support shared subscriptions.
            options.append("--plain-subscription")
        return options

    @property
    def troubles(self) -> list[str]:
        """Failures that were not scheduled."""
        return [*self._broker_troubles, *self._workers.troubles]

    # -- the schedule ------------------------------------------------------------------------

    def begin(self, start_time: float) -> None:
        """Start the schedule of outages at `start_time` of the monotonic clock."""
        self._start_time = start_time
        if self._proxy is not None:
            self._proxy.start = start_time
        self._change_times = self._outages.change_times()

    def tick(self, now: float) -> float:
        """Make the changes that are due at `now` (s); return the time (s) of the next call."""
        while self._change_times and self._change_times[0] <= now:
            # use the scheduled time, so that a late call still makes every change
            self._apply_changes(self._change_times.pop(0))
        for name in self._workers.note_ready():
            self._record_worker_fault(name, is_up=True)
        if "cloud" in self._down_components and self._workers.are_available:
            self._set_down("cloud", False)
        next_change = self._change_times[0] if self._change_times else math.inf
        if self._workers.are_available:
            return next_change
        return min(next_change, now + _CHECK_SECONDS)

    def _apply_changes(self, scheduled_time: float) -> None:
        """Stop and restart parts according to the schedule just after `scheduled_time` (s)."""
        now = math.nextafter(scheduled_time, math.inf)
        # the broker and the link
        is_broker_down = self._outages.recovery_time("broker", now) is not None
        if is_broker_down and "broker" not in self._down_components:
            self.broker.fail()
        elif not is_broker_down and "broker" in self._down_components:
            self.broker.recover()
        self._set_down("broker", is_broker_down)
        self._set_down("link", self._outages.recovery_time("link", now) is not None)
        # the workers
        is_cloud_down = self._outages.recovery_time("cloud", now) is not None
        if is_cloud_down:
            self._set_down("cloud", True)
        n_down = len(self._workers) if is_cloud_down else self._outages.n_workers_down(now)
        killed_processes = self._workers.kill_first(n_down)
        for process in killed_processes:
            self._record_worker_fault(process.name, is_up=False)
        if not is_broker_down:  # without a broker a restarted worker would end immediately
            self._workers.restart_from(n_down)
        # close them only after all of them are killed, because closing takes time
        for process in killed_processes:
            process.close()

    def _record_worker_fault(self, name: str, *, is_up: bool) -> None:
        if "cloud" not in self._down_components:
            self._record_fault(name, is_up)

    def _set_down(self, component: str, is_down: bool) -> None:
        if is_down != (component in self._down_components):
            self._down_components ^= {component}
            self._record_fault(component, not is_down)

    def _record_fault(self, component: str, is_up: bool) -> None:
        seconds = round(time.monotonic() - self._start_time, 3)
        self.faults.append({"what": component, "up": is_up, "at": seconds})

    def stop(self) -> dict[str, float]:
        """Stop the workers; return the sums of their counters since their latest start."""
        if "broker" not in self._down_components and self.broker.trouble is not None:
            self._broker_troubles.append(self.broker.trouble)
        return self._workers.stop()
