"""Tests that a roll-out to a running fleet and its withdrawal lose or mix no answers."""

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

N_DEVICES = 8
INSTANCES_PER_SECOND = 20.0
#: A busy machine must not delay answers beyond it, because late answers fail the trial of a
#: release. The devices adopt a release, and test it, at the same time.
DEADLINE_MS = 10_000.0
#: Seconds in which all devices adopt a release on a busy machine.
ADOPT_SECONDS = 180
SERVER_PROGRAM = Path(__file__).with_name("https_main.py")


class PackedVersion:
    """A version of the model, and its outcome for every row."""

    def __init__(self, system, rows, folder, version):
        options = {"sample": rows[:16], "name": "digits", "version": version}
        self.name = f"digits/{version}"
        self.bundle = pack(system, folder / f"bundle-{version}", **options).path
        index_by_label = {label: class_index for class_index, label in enumerate(system.classes_)}
        self.class_indices = np.array([index_by_label[label] for label in system.predict(rows)])
        self.stages = system.exit_stage(rows)
        self.costs = system.cost(rows)
        with Device(self.bundle, policy="edge-only") as device:
            self.edge_class_indices = [device.answer(row).class_index for row in rows]

    def has_given(self, answer):
        """Tell whether all fields of an answer are those of this version."""
        row = answer["row"]
        if answer["route"] == "fallback":
            return answer["label"] == self.edge_class_indices[row]
        expected_decisions = (self.class_indices[row], self.stages[row], self.costs[row])
        return (answer["label"], answer["stage"], answer["cost"]) == expected_decisions


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_model_is_rolled_out_to_a_running_fleet_and_back(fleet, feature_system, tmp_path):
    repository = Repository.init(tmp_path / "www")
    cheaper_system = feature_system.system.at(
        # a budget that changes the outcome of many rows
        budget=feature_system.system.operating_point_.cost * 0.6
    )
    first_version, second_version = (
        PackedVersion(system, feature_system.rows, tmp_path, version)
        for system, version in ((feature_system.system, "1"), (cheaper_system, "2"))
    )
    is_different = (first_version.stages != second_version.stages) | (
        first_version.class_indices != second_version.class_indices
    )
    for version in (first_version, second_version):
        repository.add(version.bundle)
    assert is_different.mean() > 0.1  # otherwise mixed versions could not be detected
    fleet.start_broker()
    for number in range(2):
        fleet.start_worker(number, first_version.bundle, second_version.bundle)
    host = fleet.network.url.removeprefix("mqtt://").partition(":")[0]
    authority = Authority(tmp_path, "authority", address=host)
    server_arguments = (*authority.issue("models"), tmp_path / "www")
    fleet.start_program([str(SERVER_PROGRAM), host, "8443", *map(str, server_arguments)])

    rng = np.random.default_rng(1)
    devices = [
        fleet.start_device(
            f"pi-{number}", first_version.bundle, feature_system.rows,
            rng.permutation(len(feature_system.rows)).tolist(),
            rate=INSTANCES_PER_SECOND, repeats=True, deadline_ms=DEADLINE_MS,
            update={
                "store": str(tmp_path / f"store-{number}"), "trust": str(repository.root_file),
                "url": f"https://{host}:8443", "ca_file": str(authority.file),
            },
        )
        for number in range(N_DEVICES)
    ]  # fmt: skip
    fleet.start_answering(devices)

    def publish(version):
        """Publish a version and announce it."""
        arguments = ["repo", "publish", str(repository.folder), version.name]
        arguments += ["--broker", fleet.network.worker_url]
        command = [sys.executable, "-m", "gatewise", *arguments]
        process = subprocess.run(
            fleet.network.cloud_command(command), capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr

    def list_versions(device):
        """List the runs of versions in the order of the answers.

        An answer that both versions would give tells nothing.
        """
        telling_answers = (
            answer
            for answer in device.find_events("answer")
            if first_version.has_given(answer) != second_version.has_given(answer)
        )
        return [
            version_name
            for version_name, _ in itertools.groupby(
                "1" if first_version.has_given(answer) else "2" for answer in telling_answers
            )
        ]

    def wait_for_versions(versions):
        wait_until(
            lambda: all(
                not device.is_done and list_versions(device) == versions for device in devices
            ),
            f"the versions {versions}",
            ADOPT_SECONDS,
        )

    wait_for_versions(["1"])
    publish(second_version)
    wait_for_versions(["1", "2"])
    publish(first_version)
    wait_for_versions(["1", "2", "1"])
    fleet.stop_devices(devices)

    answers = []
    for device in devices:
        answers += device.read_answers()
        done_event = device.find_events("done")[0]
        assert (done_event["version"], done_event["update"]["adopted"]) == ("1", 2)
        assert list_versions(device) == ["1", "2", "1"]
        assert device.split_late_answers()[1] == []
    assert all(
        first_version.has_given(answer) or second_version.has_given(answer) for answer in answers
    )
    routes = Counter(answer["route"] for answer in answers)
    print(f"\n{len(answers)} answers: {dict(routes)}; each of one version")
    assert routes["cloud"] > 0
