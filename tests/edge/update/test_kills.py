"""kill -9, cut files and flipped bits: the device starts, answers, and gets what is published.

Real processes, forked from one that has loaded the code, and a real web server. A device kills
itself before its n-th change to the disk; one is killed at random moments by its parent; files of
its store are cut to zero or get a flipped bit. GATEWISE_UPDATE_KILLS sets how many random kills
and damages there are, by default 24 each.
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

from tests.edge.update import killed_device

NUMBER = int(os.environ.get("GATEWISE_UPDATE_KILLS", "24"))

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([killed_device.__name__])


@dataclass
class KilledDevice:
    """A device's process and what it reports."""

    process: ForkServerProcess
    pipe: Connection

    def line(self) -> str:
        """Wait for its next report; empty once there are no more."""
        try:
            return str(self.pipe.recv()) if self.pipe.poll(240) else "silent for 240 s"
        except EOFError:
            return ""

    def end(self) -> list[str]:
        """Wait for its end; what it reported."""
        lines = list(iter(self.line, ""))
        self.process.join(60)
        return lines


@pytest.fixture
def launch(fleet, server, first):
    def launch(store, version, *, changes=-1):
        settings = {
            "store": str(store),
            "first": str(first),
            "url": server.url,
            "trust": str(fleet.trust),
            "version": version,
            "changes": changes,
            "wait": 120,
        }
        ours, its = _PROCESSES.Pipe(duplex=False)
        process = _PROCESSES.Process(target=killed_device.run, args=(settings, its), daemon=True)
        process.start()
        its.close()
        return KilledDevice(process, ours)

    return launch


def reach(launch, store, version):
    """Run a device to its end: it starts, answers, and gets the published version."""
    device = launch(store, version)
    lines = device.end()
    assert device.process.exitcode == 0, lines
    assert lines[-1] == f"version {version}"
    return lines


@pytest.fixture
def seed(fleet, launch, tmp_path):
    """A store at version 8, proved, where 9 is published."""
    fleet.publish("8")
    store = tmp_path / "seed"
    reach(launch, store, "8")
    fleet.publish("9")
    return store


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_before_each_change_to_the_disk(launch, seed, tmp_path):
    for changes in range(0, 400, max(1, 96 // NUMBER)):
        store = tmp_path / f"store-{changes}"
        shutil.copytree(seed, store, symlinks=True)
        killed = launch(store, "9", changes=changes)
        lines = killed.end()
        if killed.process.exitcode == 0:
            break
        assert killed.process.exitcode == -signal.SIGKILL, lines
        # Never back to the first bundle.
        assert reach(launch, store, "9")[0] in ("started 8", "started 9")
    assert changes > 20


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_killed_at_random_moments(launch, fleet, tmp_path):
    rng, store, kills = random.Random(0), tmp_path / "store", 0
    fleet.publish("7-1")
    device = launch(store, "7-1")
    assert device.line().startswith("started")
    began = time.monotonic()
    assert device.end() == ["version 7-1"]
    span = time.monotonic() - began  # of an update that is not killed
    for number in range(NUMBER):
        version = str(8 + number // 4)
        fleet.publish(version)
        device = launch(store, version)
        assert device.line().startswith("started")
        time.sleep(rng.uniform(0.0, span))
        device.process.kill()
        device.process.join(60)
        if device.process.exitcode == -signal.SIGKILL:
            kills += 1
        else:  # it was done before
            span *= 0.8
    assert kills >= NUMBER // 3
    reach(launch, store, version)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_files_cut_to_zero_and_flipped_bits(launch, fleet, server, seed, tmp_path, damage):
    """Any one file of the store is damaged; where it mattered it is put right."""
    rng = random.Random(1)
    files = [p.relative_to(seed) for p in sorted(seed.rglob("*")) if p.is_file()]
    for number in range(NUMBER):
        store = tmp_path / f"store-{number}"
        shutil.copytree(seed, store, symlinks=True)
        path = store / files[number % len(files)]
        content = bytearray(path.read_bytes())
        if damage == "flip" and content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content if damage == "flip" else b"")
        reach(launch, store, "9")
