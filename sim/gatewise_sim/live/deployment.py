"""Broker, cloud workers and link of a live run, with scheduled outages.

In an outage of workers or of the broker, their processes are killed and later started again. In an
outage of the link, its proxy stops forwarding. :attr:`Deployment.faults` contains the times at
which each part was down and up again.
"""

from __future__ import annotations

import math
import secrets
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from gatewise_cloud.child_process import ChildProcess
from gatewise_sim.errors import RunError
from gatewise_sim.live.brokers import RunBroker, clear_status
from gatewise_sim.live.proxy import DelayProxy
from gatewise_sim.scenario import Scenario

#: Longest time in which all workers start; they load their libraries at the same time.
_READY_SECONDS: Final = 60.0
#: Time between two checks whether a restarted worker serves requests.
_CHECK_SECONDS: Final = 0.05
#: Environment variable for the broker's URL, because a password must not be in a command line.
BROKER_VARIABLE: Final = "GATEWISE_BROKER"


class WorkerProcess(ChildProcess):
    """A process of ``gatewise cloud``.

    `counters` is filled when the process ends normally.
    """

    def __init__(self, worker_number: int, arguments: Sequence[str], broker: str) -> None:
        self.counters: dict[str, Any] = {}
        self.is_ready = False
        self._has_reported = threading.Event()
        super().__init__(
            f"worker {worker_number}",
            [sys.executable, "-m", "gatewise", "cloud", *arguments, "--json"],
            on_message=self._receive,
            follows_input=False,
            environment={BROKER_VARIABLE: broker},
        )

    def wait_ready(self, seconds: float) -> None:
        """Wait until the worker serves requests; RunError if it ends first or takes too long."""
        self._has_reported.wait(max(0.0, seconds))
        if not self.is_ready:
            problem = "it did not start in time"
            if self._has_reported.is_set():
                problem = self.wait_for_failure()
            raise RunError(self.name, problem)

    def _receive(self, _: ChildProcess, document: Mapping[str, Any] | None) -> None:
        if document is not None and "ready" in document:
            self.is_ready = True
        elif document is not None:
            self.counters = dict(document)
        self._has_reported.set()


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
    troubles : list of str
        Failures that were not scheduled.
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
        self.troubles: list[str] = []
        self.broker = stack.enter_context(RunBroker(scenario.broker))
        self._stack = stack
        self._outages = scenario.outages
        self._change_times: list[float] = []
        self._down_components: set[str] = set()
        self._start_time = time.monotonic()
        if not self.broker.is_own:
            stack.callback(clear_status, self.broker.url, devices)
        self._worker_options = self._make_worker_options(bundle, scenario)
        n_workers = scenario.workers if has_cloud else 0
        self._workers = [
            self._start_worker(worker_number + 1) for worker_number in range(n_workers)
        ]
        deadline = time.monotonic() + _READY_SECONDS
        for worker in self._workers:
            worker.wait_ready(deadline - time.monotonic())
        #: Indices of the workers that are killed, or started again but not yet ready.
        self._unavailable_workers: set[int] = set()
        self.url = self.broker.url
        self._proxy: DelayProxy | None = None
        has_link_outage = any(span.component == "link" for span in self._outages.spans_within_run())
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

    def _start_worker(self, worker_number: int) -> WorkerProcess:
        worker = WorkerProcess(worker_number, self._worker_options, self.broker.url)
        self._stack.callback(worker.close)
        return worker

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
        for index in sorted(self._unavailable_workers):
            self._check_restarted(index)
        if "cloud" in self._down_components and not self._unavailable_workers:
            self._set_down("cloud", False)
        next_change = self._change_times[0] if self._change_times else math.inf
        return min(next_change, now + _CHECK_SECONDS) if self._unavailable_workers else next_change

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
        killed_workers = []
        for index, worker in enumerate(self._workers):
            if index < n_down and index not in self._unavailable_workers:
                self._check_alive(worker)
                worker.kill()
                killed_workers.append(worker)
                self._unavailable_workers.add(index)
                self._report_worker(worker, is_up=False)
            # restart it only while the broker is up, because otherwise it would end immediately
            elif (
                index >= n_down
                and index in self._unavailable_workers
                and not worker.is_alive
                and not is_broker_down
            ):
                self._workers[index] = self._start_worker(index + 1)
        # close them only after all of them are killed, because closing takes time
        for worker in killed_workers:
            worker.close()

    def _check_restarted(self, index: int) -> None:
        """Check whether a restarted worker serves requests."""
        worker = self._workers[index]
        if worker.is_ready and worker.is_alive:
            self._unavailable_workers.discard(index)
            self._report_worker(worker, is_up=True)

    def _check_alive(self, worker: WorkerProcess) -> None:
        if not worker.is_alive:
            self.troubles.append(f"{worker.name}: {worker.wait_for_failure()}")

    def _report_worker(self, worker: WorkerProcess, *, is_up: bool) -> None:
        if "cloud" not in self._down_components:
            self._record_fault(worker.name, is_up)

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
            self.troubles.append(self.broker.trouble)
        counter_sums: dict[str, float] = {}
        for index, worker in enumerate(self._workers):
            if index not in self._unavailable_workers:
                self._check_alive(worker)
            worker.close()
            for name, count in _convert_counters(worker.counters).items():
                counter_sums[name] = counter_sums.get(name, 0.0) + count
        return counter_sums


def _convert_counters(counters: Mapping[str, Any]) -> dict[str, float]:
    """Convert a worker's counters to numbers with the names of the virtual engine."""
    numbers: dict[str, float] = {
        name: counter
        for name, counter in counters.items()
        if isinstance(counter, int | float) and not isinstance(counter, bool)
    }
    if "model_us" not in numbers:
        return numbers
    audits = counters.get("audits", {}).values()
    return numbers | {
        "audits": sum(audit_test["audits"] for audit_test in audits),
        "audits_disagreed": sum(audit_test["disagreed"] for audit_test in audits),
        "busy": counters["errors"].get("busy", 0),
        "busy_seconds": numbers["model_us"] / 1e6,
        "queued_seconds": numbers["queue_us"] / 1e6,
    }
