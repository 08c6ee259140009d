"""kill -9 at every step: the device always starts with a whole, verified bundle.

Real processes, a real broker, a real HTTPS server. A device kills itself before its n-th change
to the disk, for n = 0, 1, 2, ... until it gets through; another is killed at random moments by
its parent, over and over on one store.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gatewise_edge.link.broker_url import Endpoint
from gatewise_edge.update import Store, publish
from gatewise_export.bundle.bundle import Bundle

PROGRAM = Path(__file__).with_name("killed_device.py")


@pytest.fixture
def launch(tmp_path, broker, server, keys, make_gwb):
    first = make_gwb("7")

    def launch(store, *, changes=-1):
        settings = {
            "store": str(store),
            "first": str(first),
            "broker": broker.url,
            "host": server.host,
            "ca_file": str(server.ca_file),
            "pub": str(keys.pub),
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


def whole(store, keys):
    """Version that a device would start with: proved whole, or the first bundle."""
    path = Store(store, public_key=keys.pub).active()
    if path is None:
        return "7"
    return Bundle.open(path, public_key=keys.pub, for_device=True).manifest.version


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_before_each_change_to_the_disk(launch, make_gwb, server, keys, broker, tmp_path):
    path, seed = make_gwb("8"), tmp_path / "seed"
    publish(path, server.put("/8", path.read_bytes()), keys.key, Endpoint(broker.url))
    done = launch(seed)
    out, err = done.communicate(timeout=120)
    assert "version 8" in out, err
    path = make_gwb("9")
    publish(path, server.put("/9", path.read_bytes()), keys.key, Endpoint(broker.url))
    found = []
    for changes in range(100):
        store = tmp_path / f"store-{changes}"
        shutil.copytree(seed, store)
        killed = launch(store, changes=changes)
        out, err = killed.communicate(timeout=120)
        found.append(whole(store, keys))
        if killed.returncode == 0:
            assert "version 9" in out
            break
        assert killed.returncode == -signal.SIGKILL, err
        if changes % 3 == 2:  # and the next start ends what was begun
            resumed = launch(store)
            out, err = resumed.communicate(timeout=120)
            assert resumed.returncode == 0, err
            assert "version 9" in out
            assert whole(store, keys) == "9"
            assert len(list((store / "bundles").iterdir())) == 2
            assert not list((store / "partial").iterdir())
    assert len(found) > 10
    print(f"killed before each of {len(found) - 1} changes: {''.join(found)}")
    # before some change the old one is in force, from then on the new one
    turn = found.index("9")
    assert set(found[:turn]) == {"8"}
    assert set(found[turn:]) == {"9"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_random_moments(launch, make_gwb, server, keys, broker, tmp_path):
    rng, store = random.Random(0), tmp_path / "store"
    made = {v: make_gwb(v) for v in ("8", "9")}
    began, kills, seen = time.monotonic(), 0, set()
    for number in range(32):
        version = ("8", "9")[number % 2]
        content = made[version].read_bytes()
        cuts = [len(content) // 2] if rng.random() < 0.3 else []
        url = server.put(f"/{version}", content, cuts=cuts)
        publish(made[version], url, keys.key, Endpoint(broker.url))
        device = launch(store)
        try:
            line = device.stdout.readline()  # "started", or a step that came before it
            assert line, device.stderr.read()
            time.sleep(rng.uniform(0.0, 0.15))
            kills += device.poll() is None
            device.kill()
        finally:
            device.communicate(timeout=240)
        seen.add(whole(store, keys))
    assert kills >= 16, f"only {kills} were still running when they were killed"
    assert seen <= {"7", "8", "9"}
    last = launch(store)
    out, err = last.communicate(timeout=120)
    assert last.returncode == 0, err
    assert f"version {version}" in out
    assert whole(store, keys) == version
    print(f"{kills} kills in {time.monotonic() - began:.0f} s, versions seen: {sorted(seen)}")
