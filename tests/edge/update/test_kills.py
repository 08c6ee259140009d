"""kill -9, cut files and flipped bits: the device starts, answers, and gets what is published.

Real processes and a real web server. A device kills itself before its n-th change to the disk; one
is killed at random moments by its parent; files of its store are cut to zero or get a flipped bit.
GATEWISE_UPDATE_KILLS sets how many random kills and damages there are, by default 24 each.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("killed_device.py")
NUMBER = int(os.environ.get("GATEWISE_UPDATE_KILLS", "24"))


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
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return launch


def reach(launch, store, version):
    """Run a device to its end: it starts, answers, and gets the published version."""
    device = launch(store, version)
    out, err = device.communicate(timeout=240)
    assert device.returncode == 0, err
    assert f"version {version}" in out
    return out


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
        _, err = killed.communicate(timeout=240)
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL, err
        out = reach(launch, store, "9")
        assert "started 8" in out or "started 9" in out  # never back to the first bundle
    assert changes > 20


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_killed_at_random_moments(launch, fleet, tmp_path):
    rng, store, kills = random.Random(0), tmp_path / "store", 0
    for number in range(NUMBER):
        version = str(8 + number // 4)
        fleet.publish(version)
        device = launch(store, version)
        assert device.stdout is not None
        line = device.stdout.readline()
        assert line.startswith("started"), device.stderr.read()
        time.sleep(rng.uniform(0.0, 0.3))
        kills += device.poll() is None
        device.kill()
        device.communicate(timeout=60)
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
