"""A model rolled out to a running fleet and rolled back: nothing unanswered, nothing mixed."""

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
    """One version of the model, and what it says to every row."""

    def __init__(self, system, rows, folder, version):
        options = {"sample": rows[:16], "name": "digits", "version": version}
        self.name = f"digits/{version}"
        self.bundle = pack(system, folder / f"bundle-{version}", **options).path
        index = {c: i for i, c in enumerate(system.classes_)}
        self.label = np.array([index[c] for c in system.predict(rows)])
        self.stage, self.cost = system.exit_stage(rows), system.cost(rows)
        with Device(self.bundle, policy="edge-only") as device:
            self.alone = [device.answer(row).class_index for row in rows]

    def said(self, answer):
        """Whether an answer is wholly this version's."""
        row = answer["row"]
        if answer["route"] == "fallback":
            return answer["label"] == self.alone[row]
        wanted = (self.label[row], self.stage[row], self.cost[row])
        return (answer["label"], answer["stage"], answer["cost"]) == wanted


@pytest.mark.slow
def test_a_model_is_rolled_out_to_a_running_fleet_and_back(rig, packed, tmp_path):
    repository = Repository.init(tmp_path / "www")
    other = packed.system.at(budget=packed.system.operating_point_.cost * 0.6)
    one, two = (
        Version(system, packed.rows, tmp_path, version)
        for system, version in ((packed.system, "1"), (other, "2"))
    )
    apart = (one.stage != two.stage) | (one.label != two.label)
    for version in (one, two):
        repository.add(version.bundle)
    assert apart.mean() > 0.1  # else nothing would be seen to be mixed
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
        done = subprocess.run(rig.network.in_cloud(command), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def shown(device):
        """Versions in the order in which answers show them: once there, once back."""
        told_apart = (a for a in device.heard("answer") if one.said(a) != two.said(a))
        return [v for v, _ in itertools.groupby("1" if one.said(a) else "2" for a in told_apart)]

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
    assert all(one.said(a) or two.said(a) for a in answers)
    routes = Counter(a["route"] for a in answers)
    print(f"\n{len(answers)} answers: {dict(routes)}; each wholly of one version")
    assert routes["cloud"] > 0
