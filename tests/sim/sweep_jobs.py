"""Made-up jobs and reports for the tests of sweeps and comparisons; see the fixture ``jobs``."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gatewise.errors import InputError
from gatewise_sim.experiment.scenario import Scenario

BAD, DEADLY, BUGGY, SLOW, LOUD = 13, 66, 99, 7, 8


def simulation(
    *, accuracy: float = 0.9, half: float = 0.01, cost: float = 10.0, p95: float = 50.0,
    money: float | None = None, **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """A report of a simulation with the keys that comparisons read."""

    def about(value: float, half: float) -> dict[str, float]:
        return {"value": value, "low": value - half, "high": value + half}

    bill = None if money is None else {"currency": "EUR", "data": money, "total": money}
    leg = {
        "key": "system",
        "accuracy": about(accuracy, half),
        "offload_rate": about(0.2, 0.05),
        "cost": about(cost, 0.1),
        "feature_cost": about(cost, 0.1),
        "latency_ms": {q: about(p95, 1.0) for q in ("p50", "p95", "p99", "offloaded_p95")},
        "bytes": {"up": about(100.0, 1.0), "down": about(50.0, 1.0)},
        "joules": {"radio": 1.0, "features": 0.5, "stages": 0.25},
        "battery_days": None,
        "utilisation": 0.1,
        "money": bill,
    }
    return {
        "kind": "gatewise-simulation",
        "dataset": "rows",
        "method": "m/1",
        "instances": 1000,
        "offload_rate": 0.2,
        "accuracy": {"system": accuracy},
        "feature_cost": {"system": cost},
        "cost_reduction": None,
        "bytes": {"system": 150_000},
        "latency_ms": {"system": dict.fromkeys(("p50", "p95", "p99"), p95)},
        "answers": {"edge": 800, "cloud": 200, "fallback": 0, "error": 0, "late": 0, "lost": 0},
        "transport": {"kind": "virtual", "broker": "simulated", "link": "4g"},
        "engine": "virtual",
        "legs": [leg, {"key": "cloud_only", "accuracy": about(0.95, half)}],
        "money": bill,
        "settings": {"seconds": 3600.0, **settings},
    }


@dataclass(frozen=True)
class Made:
    """A job whose number of devices says what becomes of it; it writes down that it ran."""

    log: str  # without its .txt: what it writes must not count as what it reads
    scenario: Scenario = field(default_factory=Scenario)

    def run(self) -> dict[str, Any]:
        devices = self.scenario.devices
        with Path(f"{self.log}.txt").open("a") as log:
            log.write(f"{devices}\n")
        if devices == BAD:
            raise InputError("thirteen\ndevices")
        if devices == BUGGY:
            raise ZeroDivisionError
        if devices == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        if devices == LOUD:
            print("loud", flush=True)
        while devices == SLOW and not Path(f"{self.log}.go").exists():
            time.sleep(0.02)
        return simulation(accuracy=1 - 1 / (1 + devices), cost=float(devices), devices=devices)


if __name__ == "__main__":  # a sweep as a process of its own: LOG FOLDER SWEEP...
    import sys

    from gatewise_sim.experiment.sweep.run import run_sweep

    run_sweep(Made(sys.argv[1]), sys.argv[3:], folder=sys.argv[2], jobs=2)
