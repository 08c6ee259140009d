"""Tests of a fleet with a hostile device, jumping clocks, and stores that cannot be written."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gatewise_export.repository.repository import Repository
from tests.support.waiting import wait_until

#: A multiple of four: every second device has a jumping clock and every fourth a bad store.
N_DEVICES = 8
N_INSTANCES = 200
INSTANCES_PER_SECOND = 20.0
#: Pool of the workers; the hostile device subscribes to the default pool.
POOL_NAME = "a-name-that-is-not-known"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hostile_device_jumping_clocks_and_read_only_stores(fleet, feature_system, tmp_path):
    """The hostile device sends 75,000 rows per second, damaged messages and random bytes."""
    update = make_impossible_update(feature_system.bundle, tmp_path)
    fleet.start_broker()
    for number in range(2):
        start_worker(fleet, number, feature_system.bundle)
    devices = start_devices(fleet, feature_system, update)
    attack_counts = attack_while_devices_answer(fleet, feature_system.bundle, devices)

    answers = []
    n_excused = 0
    for device in devices:
        excused_answers, late_answers = device.split_late_answers()
        assert late_answers == []
        n_excused += len(excused_answers)
        answers += device.read_answers(N_INSTANCES)
    routes = Counter(answer["route"] for answer in answers)
    n_hard = feature_system.system.offload(feature_system.rows)[
        [answer["row"] for answer in answers]
    ].sum()
    print(f"\n{len(answers)} answers: {dict(routes)} of {n_hard} hard; {n_excused} excused")
    print(f"hostile device: {attack_counts}")
    # This broker has no access list, so the hostile device gets copies of requests. The workers are
    # in a pool with another name, and still get every request (see also tests/security).
    assert attack_counts["taken"] > 0
    # The device attacked for most of the 200 / 20 = 10 s of the run, in which it planned 1,875
    # requests and 125 connections.
    assert min(attack_counts["requests"], attack_counts["messages"]) > 500
    assert attack_counts["connections"] > 20
    # The other devices still get most of their answers from the cloud; a worker was killed.
    assert routes["cloud"] > 0.7 * n_hard


def make_impossible_update(bundle, folder):
    """Publish the bundle; return a device's settings of an update whose store cannot be made."""
    repository = Repository.init(folder / "www")
    repository.add(bundle)
    repository.publish(repository.offers()[0].version)
    (folder / "file").write_text("")  # no folder can be created below a file
    return {
        "store": str(folder / "file" / "store"), "trust": str(repository.root_file),
        "url": repository.folder.as_uri(), "ca_file": None,
    }  # fmt: skip


def start_worker(fleet, number, bundle):
    fleet.start_worker(number, bundle, options=("--pool", POOL_NAME))


def start_devices(fleet, feature_system, update):
    """Start the devices and wait until they are ready to answer."""
    rng = np.random.default_rng(0)
    devices = [
        fleet.start_device(
            f"pi-{number}", feature_system.bundle, feature_system.rows,
            rng.integers(0, len(feature_system.rows), N_INSTANCES).tolist(),
            rate=INSTANCES_PER_SECOND,
            clock_jumps=number % 2 == 0, **({"update": update} if number % 4 == 0 else {}),
        )
        for number in range(N_DEVICES)
    ]  # fmt: skip
    fleet.wait_for_devices(devices)
    return devices


def attack_while_devices_answer(fleet, bundle, devices):
    """Attack until the last answer, and kill a worker after half of the answers.

    Returns how often the hostile device did each of its actions.
    """
    hostile_device = fleet.start_hostile(bundle)
    for device in devices:
        device.start_answering()
    wait_until(
        lambda: len(devices[0].find_events("answer")) > N_INSTANCES // 2, "half of the answers", 60
    )
    fleet.kill_worker(0)
    start_worker(fleet, 0, bundle)
    wait_until(lambda: all(device.is_done for device in devices), "the last answer", 120)
    hostile_device.send({"end": True})
    wait_until(lambda: hostile_device.find_events("done"), "the hostile device's end", 30)
    return hostile_device.find_events("done")[0]
