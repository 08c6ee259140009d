"""Made-up jobs for the tests of sweeps; see the fixture ``jobs``."""

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
        from tests.sim.report.reports import simulation

        return simulation(accuracy=1 - 1 / (1 + devices), cost=float(devices), devices=devices)


if __name__ == "__main__":  # a sweep as a process of its own: LOG FOLDER SWEEP...
    import sys

    sys.path.append(str(Path(__file__).parents[2]))  # for the package `tests`
    from gatewise_sim.experiment.sweep.run import run_sweep

    run_sweep(Made(sys.argv[1]), sys.argv[3:], folder=sys.argv[2], jobs=2)
