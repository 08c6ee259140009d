"""A fleet with a hostile device, jumping clocks, and stores that cannot be written."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gatewise_export.repository.repository import Repository
from tests.support.waiting import wait_until

DEVICES = 12
INSTANCES = 250
RATE = 20.0
POOL = "a-name-that-is-not-known"


@pytest.mark.slow
def test_a_hostile_device_jumping_clocks_and_read_only_stores(rig, packed, tmp_path):
    """The hostile device sends 75,000 rows per second, damaged messages and random bytes."""
    repository = Repository.init(tmp_path / "www")
    repository.add(packed.bundle)
    repository.publish(repository.offers()[0].version)
    (tmp_path / "file").write_text("")
    update = {
        "store": str(tmp_path / "file" / "store"), "trust": str(repository.root_file),
        "url": repository.folder.as_uri(), "ca_file": None,
    }  # fmt: skip
    rig.start_broker()
    for number in range(2):
        rig.start_worker(number, packed.bundle, options=("--pool", POOL))
    rng = np.random.default_rng(0)
    devices = [
        rig.start_device(
            f"pi-{i}", packed.bundle, packed.rows,
            rng.integers(0, len(packed.rows), INSTANCES).tolist(), rate=RATE,
            clock_jumps=i % 2 == 0, **({"update": update} if i % 4 == 0 else {}),
        )
        for i in range(DEVICES)
    ]  # fmt: skip
    wait_until(lambda: all(d.ready for d in devices), "the fleet", 120)
    hostile = rig.start_hostile(packed.bundle)
    for device in devices:
        device.go()
    wait_until(lambda: len(devices[0].heard("answer")) > INSTANCES // 2, "half of the answers", 60)
    rig.kill_worker(0)
    rig.start_worker(0, packed.bundle, options=("--pool", POOL))
    wait_until(lambda: all(d.done for d in devices), "the last answer", 120)
    hostile.send({"end": True})
    wait_until(lambda: hostile.heard("done"), "the hostile device's end", 30)
    counts = hostile.heard("done")[0]

    answers = []
    n_excused = 0
    for device in devices:
        excused, late = device.late()
        assert late == []
        n_excused += len(excused)
        answers += device.answers(INSTANCES)
    routes = Counter(a["route"] for a in answers)
    hard = packed.system.offload(packed.rows)[[a["row"] for a in answers]].sum()
    print(f"\n{len(answers)} answers: {dict(routes)} of {hard} hard; {n_excused} excused")
    print(f"hostile device: {counts}")
    # This broker has no access list, so the hostile device gets copies of requests. The workers are
    # in a pool with another name, and still get every request (see also tests/security).
    assert counts["taken"] > 0
    assert min(counts["requests"], counts["messages"]) > 500
    assert counts["connections"] > 20
    # The other devices still get most of their answers from the cloud.
    assert routes["cloud"] > 0.7 * hard
