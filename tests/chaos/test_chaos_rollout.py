"""A roll-out to a running fleet and its withdrawal lose no answer and mix no versions."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gatewise_edge import Device
from gatewise_export import pack
from gatewise_export.repository.repository import Repository
from tests.support.certificates import Authority
from tests.support.waiting import wait_until

DEVICES = 20
RATE = 20.0
SERVER = Path(__file__).with_name("https_main.py")


class Version:
    """A version of the model, and its outcome for every row."""

    def __init__(self, system, rows, folder, version):
        options = {"sample": rows[:16], "name": "digits", "version": version}
        self.name = f"digits/{version}"
        self.bundle = pack(system, folder / f"bundle-{version}", **options).path
        index = {c: i for i, c in enumerate(system.classes_)}
        self.label = np.array([index[c] for c in system.predict(rows)])
        self.stage = system.exit_stage(rows)
        self.cost = system.cost(rows)
        with Device(self.bundle, policy="edge-only") as device:
            self.alone = [device.answer(row).class_index for row in rows]

    def matches(self, answer):
        """Whether all fields of an answer are those of this version."""
        row = answer["row"]
        if answer["route"] == "fallback":
            return answer["label"] == self.alone[row]
        expected = (self.label[row], self.stage[row], self.cost[row])
        return (answer["label"], answer["stage"], answer["cost"]) == expected


@pytest.mark.slow
def test_a_model_is_rolled_out_to_a_running_fleet_and_back(rig, packed, tmp_path):
    repository = Repository.init(tmp_path / "www")
    other = packed.system.at(budget=packed.system.operating_point_.cost * 0.6)
    one, two = (
        Version(system, packed.rows, tmp_path, version)
        for system, version in ((packed.system, "1"), (other, "2"))
    )
    differs = (one.stage != two.stage) | (one.label != two.label)
    for version in (one, two):
        repository.add(version.bundle)
    assert differs.mean() > 0.1  # otherwise mixed versions could not be detected
    rig.start_broker()
    for number in range(2):
        rig.start_worker(number, one.bundle, two.bundle)
    host = rig.network.url.removeprefix("mqtt://").partition(":")[0]
    authority = Authority(tmp_path, "authority", address=host)
    served = (*authority.issue("models"), tmp_path / "www")
    rig.start_server([str(SERVER), host, "8443", *map(str, served)])

    rng = np.random.default_rng(1)
    devices = [
        rig.start_device(
            f"pi-{i}", one.bundle, packed.rows,
            rng.permutation(len(packed.rows)).tolist(), rate=RATE, until_told=True,
            update={
                "store": str(tmp_path / f"store-{i}"), "trust": str(repository.root_file),
                "url": f"https://{host}:8443", "ca_file": str(authority.file),
            },
        )
        for i in range(DEVICES)
    ]  # fmt: skip
    rig.go(devices)

    def publish(version):
        words = ["repo", "publish", str(repository.folder), version.name]
        words += ["--broker", rig.network.worker_url]
        command = [sys.executable, "-m", "gatewise", *words]
        process = subprocess.run(rig.network.in_cloud(command), capture_output=True, text=True)
        assert process.returncode == 0, process.stderr

    def shown(device):
        """Versions in the order of the answers, without repetitions."""
        distinct = (a for a in device.heard("answer") if one.matches(a) != two.matches(a))
        return [v for v, _ in itertools.groupby("1" if one.matches(a) else "2" for a in distinct)]

    def wait_for(versions):
        wait_until(lambda: all(not d.done and shown(d) == versions for d in devices), versions, 60)

    wait_for(["1"])
    publish(two)
    wait_for(["1", "2"])
    publish(one)
    wait_for(["1", "2", "1"])
    rig.end(devices)

    answers = []
    for device in devices:
        answers += device.answers()
        done = device.heard("done")[0]
        assert (done["version"], done["update"]["taken"]) == ("1", 2)
        assert shown(device) == ["1", "2", "1"]
        assert device.late()[1] == []
    assert all(one.matches(a) or two.matches(a) for a in answers)
    routes = Counter(a["route"] for a in answers)
    print(f"\n{len(answers)} answers: {dict(routes)}; each of one version")
    assert routes["cloud"] > 0
