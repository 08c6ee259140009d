"""Every instance gets exactly one answer in time, also during failures."""

from __future__ import annotations

import threading
import time
from collections import Counter

import numpy as np
import pytest

from tests.support.waiting import wait_until

DEVICES = 20
#: Instances per second of a device.
RATE = 20.0
SECONDS = 25.0


class Trouble(threading.Thread):
    """Thread that kills a worker every 2 s and the broker twice, and cuts the link for 5 s."""

    def __init__(self, rig, *bundles):
        super().__init__(daemon=True)
        self.rig = rig
        self.bundles = bundles
        self.failure = None

    def run(self):
        try:
            self._run()
        except BaseException as error:
            self.failure = error

    def _run(self):
        begin = time.monotonic()
        n_kills = 0
        events = [
            (4.0, self.rig.kill_broker), (5.0, self.rig.start_broker),
            (9.0, self.rig.network.cut), (14.0, self.rig.network.mend),
            (18.0, self.rig.kill_broker), (19.0, self.rig.start_broker),
        ]  # fmt: skip
        while (now := time.monotonic() - begin) < SECONDS:
            time.sleep(0.05)
            while events and now >= events[0][0]:
                events.pop(0)[1]()
            if now >= 2.0 * (n_kills + 1):
                self.rig.kill_worker(n_kills % 2)
                self.rig.start_worker(n_kills % 2, *self.bundles)
                n_kills += 1


@pytest.mark.slow
def test_killed_workers_a_killed_broker_and_a_cut_link(rig, packed, packed_windows):
    """One device sends raw windows, and the others send features."""
    rig.start_broker()
    bundles = packed.bundle, packed_windows.bundle
    for number in range(2):
        rig.start_worker(number, *bundles)
    rng = np.random.default_rng(0)
    kinds = [packed_windows, *[packed] * (DEVICES - 1)]
    devices = [
        rig.start_device(
            f"pi-{i}", kind.bundle, kind.rows,
            rng.permutation(len(kind.rows)).tolist(), rate=RATE, until_told=True,
        )
        for i, kind in enumerate(kinds)
    ]  # fmt: skip
    rig.go(devices)
    trouble = Trouble(rig, *bundles)
    trouble.start()
    trouble.join(150)
    assert not trouble.is_alive()
    assert trouble.failure is None
    rig.end(devices)
    assert rig.killed["broker"] == 2
    assert rig.killed["worker"] >= 9

    answers, excused, blamed = [], 0, []
    for device in devices:
        mine = device.answers()
        counters = device.heard("done")[0]["counters"]
        assert sum(counters[r] for r in ("edge", "cloud", "fallback")) == len(mine)
        assert counters["mismatched"] == counters["invalid"] == counters["unknown"] == 0
        answers += mine
        late = device.late()
        excused += len(late[0])
        blamed += [(device.name, a["route"], a["late_ms"]) for a in late[1]]

    of_windows = devices[0].answers()
    of_rows = answers[len(of_windows) :]
    parts = [(packed_windows, of_windows), (packed, of_rows)]
    assert [kind.differing(mine) for kind, mine in parts] == [[], []]
    sent = Counter(a["route"] for a in of_windows)
    assert min(sent["edge"], sent["cloud"], sent["fallback"]) > 0
    row = np.array([a["row"] for a in answers])
    label = np.array([a["label"] for a in answers])
    classes = packed.system.classes_
    got = np.mean(classes[label] == packed.truth[row])
    edge = [kind.edge_only()[[a["row"] for a in mine]] for kind, mine in parts]
    alone = np.mean(classes[np.concatenate(edge)] == packed.truth[row])
    routes = Counter(a["route"] for a in answers)
    reasons = Counter(a["reason"] for a in answers if a["route"] == "fallback")
    print(
        f"\n{len(answers)} answers: {dict(routes)}; fallbacks {dict(reasons)}; "
        f"killed {rig.killed}; {excused} more than 50 ms late, each while the control timer was; "
        f"accuracy {got:.4f}, edge alone {alone:.4f}; raw windows: {dict(sent)}"
    )
    assert blamed == []
    # The failures had an effect, and the cloud still answered some hard instances.
    assert routes["fallback"] > 0
    hard = sum(
        kind.system.offload(kind.rows)[[a["row"] for a in mine]].sum() for kind, mine in parts
    )
    assert routes["cloud"] > hard // 4
    assert got >= alone


@pytest.mark.slow
def test_a_link_that_stops_forwarding(proxied_rig, packed):
    """A proxy cuts the link, so that the test needs no root."""
    rig = proxied_rig
    rig.start_broker()
    rig.start_worker(0, packed.bundle)
    offloaded = np.flatnonzero(packed.system.offload(packed.rows))[:40]
    device = rig.start_device(
        "pi-1", packed.bundle, packed.rows, np.tile(offloaded, 3).tolist(), rate=20.0
    )
    rig.go([device])
    wait_until(
        lambda: any(a["route"] == "cloud" for a in device.heard("answer")), "a cloud answer", 30
    )
    rig.network.cut()
    before = len(device.heard("answer"))
    wait_until(lambda: len(device.heard("answer")) > before + 20, "answers without a cloud", 60)
    rig.network.mend()
    wait_until(lambda: device.done, "the last answer", 120)
    answers = device.heard("answer")
    assert len(answers) == 3 * len(offloaded)
    assert device.late()[1] == []
    assert {a["route"] for a in answers} == {"cloud", "fallback"}
