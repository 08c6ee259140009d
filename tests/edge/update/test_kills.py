"""After a kill or damage to its files a device starts, answers, and runs the published release.

The tests use real processes, forked from one that has loaded the code, and a real web server. A
device kills itself before its n-th change to the disk, or its parent kills it at a random moment,
or files of its store are truncated or get a flipped bit. GATEWISE_UPDATE_KILLS sets the numbers of
random kills and of damaged files, by default 10 each.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

import pytest

from tests.edge.update import killed_device as device_program

#: Number of random kills, and of damaged files.
N_KILLS = int(os.environ.get("GATEWISE_UPDATE_KILLS", "10"))

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([device_program.__name__])

#: More changes to the disk than an update makes.
MAX_CHANGES = 400
#: Changes from one kill to the next: each ninth by default, each one from 96 kills on.
CHANGES_BETWEEN_KILLS = max(1, 96 // N_KILLS)
#: Seconds until a device must report: its own timeout of 120 s, twice for a loaded machine.
REPORT_TIMEOUT_S = 240
#: Seconds until a process that has reported or was killed must have ended.
END_TIMEOUT_S = 60


@dataclass
class KilledDevice:
    """The process of a device, and the pipe with its reports."""

    process: ForkServerProcess
    pipe: Connection

    def next_report(self) -> str:
        """Wait for the next report; return an empty text after the last one."""
        try:
            if not self.pipe.poll(REPORT_TIMEOUT_S):
                return f"silent for {REPORT_TIMEOUT_S} s"
            return str(self.pipe.recv())
        except EOFError:
            return ""

    def wait_for_reports(self) -> list[str]:
        """Wait for the end of the process; return its reports."""
        reports = list(iter(self.next_report, ""))
        self.process.join(END_TIMEOUT_S)
        return reports


@pytest.fixture
def launch_device(fleet, server, first_path):
    def launch(store, version, *, n_changes=-1):
        settings = {
            "store": str(store),
            "first": str(first_path),
            "url": server.url,
            "trust": str(fleet.trust),
            "version": version,
            "n_changes": n_changes,
            "timeout_s": 120,
        }
        receiver, sender = _PROCESSES.Pipe(duplex=False)
        process = _PROCESSES.Process(
            target=device_program.run_device, args=(settings, sender), daemon=True
        )
        process.start()
        sender.close()
        return KilledDevice(process, receiver)

    return launch


def run_to_version(launch_device, store, version):
    """Run a device until it has adopted the published version; return its reports."""
    device = launch_device(store, version)
    reports = device.wait_for_reports()
    assert device.process.exitcode == 0, reports
    assert reports[-1] == f"version {version}"
    return reports


@pytest.fixture
def seed_store(fleet, launch_device, tmp_path):
    """A store with version 8 after its trial, while version 9 is published."""
    fleet.publish("8")
    store = tmp_path / "seed"
    run_to_version(launch_device, store, "8")
    fleet.publish("9")
    return store


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_device_killed_before_any_change_to_the_disk_updates_on_its_next_start(
    launch_device, seed_store, tmp_path
):
    for n_changes in range(0, MAX_CHANGES, CHANGES_BETWEEN_KILLS):
        store = tmp_path / f"store-{n_changes}"
        shutil.copytree(seed_store, store, symlinks=True)
        device = launch_device(store, "9", n_changes=n_changes)
        reports = device.wait_for_reports()
        if device.process.exitcode == 0:
            break
        assert device.process.exitcode == -signal.SIGKILL, reports
        # It never returns to the first bundle.
        assert run_to_version(launch_device, store, "9")[0] in ("started 8", "started 9")
    assert n_changes > 20  # else the changes were not counted


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_device_killed_at_random_moments_updates_on_its_next_start(launch_device, fleet, tmp_path):
    rng = random.Random(0)
    store = tmp_path / "store"
    n_killed = 0
    fleet.publish("7-1")  # a version before those of the kills, which begin with 8
    device = launch_device(store, "7-1")
    assert device.next_report().startswith("started")
    started_at = time.monotonic()
    assert device.wait_for_reports() == ["version 7-1"]
    update_seconds = time.monotonic() - started_at  # duration of an update without a kill
    for number in range(N_KILLS):
        version = str(8 + number // 4)  # four kills during the update to a version
        fleet.publish(version)
        device = launch_device(store, version)
        assert device.next_report().startswith("started")
        time.sleep(rng.uniform(0.0, update_seconds))
        device.process.kill()
        device.process.join(END_TIMEOUT_S)
        if device.process.exitcode == -signal.SIGKILL:
            n_killed += 1
        else:  # the update ended before the kill
            update_seconds *= 0.8  # so that the next kill is more likely to be in time
    assert n_killed >= N_KILLS // 3
    run_to_version(launch_device, store, version)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_device_with_any_damaged_file_in_its_store_updates(
    launch_device, fleet, server, seed_store, tmp_path, damage
):
    """If the file matters, it is repaired."""
    rng = random.Random(1)
    file_paths = [
        path.relative_to(seed_store) for path in sorted(seed_store.rglob("*")) if path.is_file()
    ]
    for number in range(N_KILLS):
        store = tmp_path / f"store-{number}"
        shutil.copytree(seed_store, store, symlinks=True)
        path = store / file_paths[number % len(file_paths)]
        content = bytearray(path.read_bytes())
        if damage == "flip" and content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content if damage == "flip" else b"")
        run_to_version(launch_device, store, "9")
