"""After a kill or damage to its files a device starts, answers, and runs the published release.

The tests use real processes, forked from one that has loaded the code, and a real web server. A
device kills itself before its n-th change to the disk, or its parent kills it at a random moment,
or files of its store are truncated or get a flipped bit. GATEWISE_UPDATE_KILLS sets the numbers of
random kills and of damaged files, by default 24 each.
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

N_KILLS = int(os.environ.get("GATEWISE_UPDATE_KILLS", "24"))

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([killed_device.__name__])


@dataclass
class KilledDevice:
    """The process of a device, and the pipe with its reports."""

    process: ForkServerProcess
    pipe: Connection

    def line(self) -> str:
        """Wait for the next report; return an empty text after the last one."""
        try:
            return str(self.pipe.recv()) if self.pipe.poll(240) else "silent for 240 s"
        except EOFError:
            return ""

    def end(self) -> list[str]:
        """Wait for the end of the process; return its reports."""
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
        receiver, sender = _PROCESSES.Pipe(duplex=False)
        process = _PROCESSES.Process(target=killed_device.run, args=(settings, sender), daemon=True)
        process.start()
        sender.close()
        return KilledDevice(process, receiver)

    return launch


def run_to_version(launch, store, version):
    """Run a device until it has adopted the published version; return its reports."""
    device = launch(store, version)
    lines = device.end()
    assert device.process.exitcode == 0, lines
    assert lines[-1] == f"version {version}"
    return lines


@pytest.fixture
def seed(fleet, launch, tmp_path):
    """A store with version 8 after its trial, while version 9 is published."""
    fleet.publish("8")
    store = tmp_path / "seed"
    run_to_version(launch, store, "8")
    fleet.publish("9")
    return store


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_device_killed_before_any_change_to_the_disk_updates_on_its_next_start(
    launch, seed, tmp_path
):
    for changes in range(0, 400, max(1, 96 // N_KILLS)):
        store = tmp_path / f"store-{changes}"
        shutil.copytree(seed, store, symlinks=True)
        killed = launch(store, "9", changes=changes)
        lines = killed.end()
        if killed.process.exitcode == 0:
            break
        assert killed.process.exitcode == -signal.SIGKILL, lines
        # It never returns to the first bundle.
        assert run_to_version(launch, store, "9")[0] in ("started 8", "started 9")
    assert changes > 20


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_device_killed_at_random_moments_updates_on_its_next_start(launch, fleet, tmp_path):
    rng = random.Random(0)
    store = tmp_path / "store"
    n_killed = 0
    fleet.publish("7-1")
    device = launch(store, "7-1")
    assert device.line().startswith("started")
    began = time.monotonic()
    assert device.end() == ["version 7-1"]
    seconds = time.monotonic() - began  # duration of an update without a kill
    for number in range(N_KILLS):
        version = str(8 + number // 4)
        fleet.publish(version)
        device = launch(store, version)
        assert device.line().startswith("started")
        time.sleep(rng.uniform(0.0, seconds))
        device.process.kill()
        device.process.join(60)
        if device.process.exitcode == -signal.SIGKILL:
            n_killed += 1
        else:  # the update ended before the kill
            seconds *= 0.8
    assert n_killed >= N_KILLS // 3
    run_to_version(launch, store, version)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_device_with_any_damaged_file_in_its_store_updates(
    launch, fleet, server, seed, tmp_path, damage
):
    """If the file matters, it is repaired."""
    rng = random.Random(1)
    files = [p.relative_to(seed) for p in sorted(seed.rglob("*")) if p.is_file()]
    for number in range(N_KILLS):
        store = tmp_path / f"store-{number}"
        shutil.copytree(seed, store, symlinks=True)
        path = store / files[number % len(files)]
        content = bytearray(path.read_bytes())
        if damage == "flip" and content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content if damage == "flip" else b"")
        run_to_version(launch, store, "9")
