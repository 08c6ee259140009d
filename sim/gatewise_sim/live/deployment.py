"""Broker, cloud workers and link of a live run, and their outages on schedule.

Outages are real: a worker or a broker that goes down is killed and started again at the outage's
end, a link falls silent in its proxy. When each was really back is in :attr:`Deployment.faults`.
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

_READY_SECONDS: Final = 60.0
_CHECK_SECONDS: Final = 0.05
#: Environment variable from which commands read the broker's URL: it may hold a password.
BROKER_VARIABLE: Final = "GATEWISE_BROKER"


class WorkerProcess(ChildProcess):
    """A ``gatewise cloud``; its counters are known once it has ended in good order."""

    def __init__(self, number: int, words: Sequence[str], broker: str) -> None:
        self.counters: dict[str, Any] = {}
        self.is_ready = False
        self._reported = threading.Event()
        super().__init__(
            f"worker {number}",
            [sys.executable, "-m", "gatewise", "cloud", *words, "--json"],
            on_message=self._take,
            follows_input=False,
            environment={BROKER_VARIABLE: broker},
        )

    def wait_ready(self, seconds: float) -> None:
        """Wait until it takes requests; RunError if it ends instead, or takes too long."""
        self._reported.wait(max(0.0, seconds))
        if not self.is_ready:
            reason = self.failure() if self._reported.is_set() else "no sign of life; giving up"
            raise RunError(self.name, reason)

    def _take(self, _: ChildProcess, document: Mapping[str, Any] | None) -> None:
        if document is not None and "ready" in document:
            self.is_ready = True
        elif document is not None:
            self.counters = dict(document)
        self._reported.set()


class Deployment:
    """Broker, workers of a `bundle`, and link of a scenario's `devices`, which end with `stack`.

    Without `has_cloud` there are no workers. Devices find the broker at `url`, behind the emulated
    link. `faults`, with ``what``, ``up``, ``at`` (s), are outages as they really came, `troubles`
    what was not on the schedule.
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
        self._changes: list[float] = []
        self._down: set[str] = set()
        self._began = time.monotonic()
        if not self.broker.is_own:
            stack.callback(clear_status, self.broker.url, devices)
        self._words = self._worker_words(bundle, scenario)
        count = scenario.workers if has_cloud else 0
        self._workers = [self._start_worker(number + 1) for number in range(count)]
        deadline = time.monotonic() + _READY_SECONDS
        for worker in self._workers:
            worker.wait_ready(deadline - time.monotonic())
        #: Numbers of the workers that are killed, or not ready again.
        self._away: set[int] = set()
        self.url = self.broker.url
        self._proxy: DelayProxy | None = None
        link_fails = any(component == "link" for component, *_ in self._outages.faults())
        if scenario.link_profile.delays or link_fails:
            outages = self._outages if link_fails else None
            proxy = DelayProxy(self.url, scenario.link_profile, seed=scenario.seed, outages=outages)
            self._proxy = stack.enter_context(proxy)
            proxy.began = math.inf  # nothing is down while devices still connect
            self.url = proxy.url

    def _worker_words(self, bundle: Path, scenario: Scenario) -> list[str]:
        words = [str(bundle)]
        for name in ("queue", "max_batch", "wait_ms", "parallel"):
            words += [f"--{name.replace('_', '-')}", str(getattr(scenario, name))]
        if scenario.backend is not None:
            words += ["--backend", scenario.backend]
        if not self.broker.is_own:
            # A pool of this run's own: another's workers would take a share of its requests.
            words += ["--pool", f"gw-{secrets.token_hex(4)}"]
        elif scenario.workers == 1:
            # A single worker shares with no other, and the embedded broker could not.
            words.append("--plain-subscription")
        return words

    def _start_worker(self, number: int) -> WorkerProcess:
        worker = WorkerProcess(number, self._words, self.broker.url)
        self._stack.callback(worker.close)
        return worker

    # -- the schedule ------------------------------------------------------------------------

    def begin(self, began: float) -> None:
        """Begin: the outages' times count from `began`, on the monotonic clock."""
        self._began = began
        if self._proxy is not None:
            self._proxy.began = began
        self._changes = self._outages.changes()

    def tick(self, now: float) -> float:
        """Make the changes that are due at `now` seconds; returns when to be called again."""
        while self._changes and self._changes[0] <= now:
            # Not at `now`: a window that has passed meanwhile is still to be opened and closed.
            self._change(self._changes.pop(0))
        for number in sorted(self._away):
            self._check_successor(number)
        if "cloud" in self._down and not self._away:
            self._set_down("cloud", False)
        following = self._changes[0] if self._changes else math.inf
        return min(following, now + _CHECK_SECONDS) if self._away else following

    def _change(self, when: float) -> None:
        """Break and restart components by the schedule just behind `when`."""
        when = math.nextafter(when, math.inf)
        broker_down = self._outages.down("broker", when) is not None
        if broker_down and "broker" not in self._down:
            self.broker.fail()
        elif not broker_down and "broker" in self._down:
            self.broker.recover()
        self._set_down("broker", broker_down)
        self._set_down("link", self._outages.down("link", when) is not None)
        everyone = self._outages.down("cloud", when) is not None
        if everyone:
            self._set_down("cloud", True)
        n_down = len(self._workers) if everyone else self._outages.workers_down(when)
        killed = []
        for i, worker in enumerate(self._workers):
            if i < n_down and i not in self._away:
                self._check_alive(worker)
                worker.kill()
                killed.append(worker)
                self._away.add(i)
                self._report_worker(worker, up=False)
            # A worker that begins without a broker gives up at once.
            elif i >= n_down and i in self._away and not worker.alive and not broker_down:
                self._workers[i] = self._start_worker(i + 1)
        for worker in killed:  # once all are dead
            worker.close()

    def _check_successor(self, number: int) -> None:
        """Check whether a worker that was started again takes requests."""
        worker = self._workers[number]
        if worker.is_ready and worker.alive:
            self._away.discard(number)
            self._report_worker(worker, up=True)

    def _check_alive(self, worker: WorkerProcess) -> None:
        if not worker.alive:
            self.troubles.append(f"{worker.name}: {worker.failure()}")

    def _report_worker(self, worker: WorkerProcess, *, up: bool) -> None:
        if "cloud" not in self._down:
            self._report(worker.name, up)

    def _set_down(self, part: str, down: bool) -> None:
        if down != (part in self._down):
            self._down ^= {part}
            self._report(part, not down)

    def _report(self, part: str, up: bool) -> None:
        seconds = round(time.monotonic() - self._began, 3)
        self.faults.append({"what": part, "up": up, "at": seconds})

    def stop(self) -> dict[str, float]:
        """End all in good order; sums of the workers' counters since they were started last."""
        if "broker" not in self._down and self.broker.trouble is not None:
            self.troubles.append(self.broker.trouble)
        sums: dict[str, float] = {}
        for i, worker in enumerate(self._workers):
            if i not in self._away:
                self._check_alive(worker)
            worker.close()
            for name, count in _numbers(worker.counters).items():
                sums[name] = sums.get(name, 0.0) + count
        return sums


def _numbers(counters: Mapping[str, Any]) -> dict[str, float]:
    """Counters of a worker as numbers, under the names that virtual time has for them."""
    numbers: dict[str, float] = {
        name: value
        for name, value in counters.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if "model_us" not in numbers:
        return numbers
    audits = counters.get("audits", {}).values()
    return numbers | {
        "audits": sum(test["audits"] for test in audits),
        "audits_disagreed": sum(test["disagreed"] for test in audits),
        "busy": counters["errors"].get("busy", 0),
        "busy_seconds": numbers["model_us"] / 1e6,
        "queued_seconds": numbers["queue_us"] / 1e6,
    }
