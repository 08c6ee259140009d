"""Rollout to 60 real devices with updaters over a real broker."""

from __future__ import annotations

import json
import random
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from gatewise.cli import main
from gatewise.operating_point import OperatingPoint
from gatewise_cloud.worker.worker import Worker
from gatewise_edge.device.device import Device
from gatewise_edge.link.mqtt_link import MqttLink
from gatewise_edge.update import Store, Updater, UpdateSettings
from gatewise_export.repository.repository import Repository
from tests.support.mosquitto import Mosquitto
from tests.support.small_bundle import write_bundle

#: So many that the first step of 5 % has at least the three devices of a comparison. Hashes of the
#: devices' names give four of them the first step, and seven the second.
N_DEVICES = 60
#: Share of the rows that need the cloud.
HARD_SHARE = 0.1


@dataclass
class FleetDevice:
    """Device of the fleet with its updater and the versions that it has run."""

    device: Device
    updater: Updater
    versions: set[str]

    def answer_rows(self, rows) -> None:
        """Answer rows, and record the version that runs."""
        for row in rows:
            self.device.answer(row)
            self.versions.add(self.device.bundle.manifest.version)


class Traffic:
    """Threads that give rows to the devices; a tenth of the rows needs the cloud."""

    def __init__(self, fleet: list[FleetDevice]) -> None:
        self._fleet = fleet
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._answer_rows, args=(fleet[thread_number::4], thread_number)
            )
            for thread_number in range(4)
        ]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _answer_rows(self, fleet: list[FleetDevice], seed: int) -> None:
        rng = random.Random(seed)
        for turn in count():
            for fleet_device in fleet:
                has_release = fleet_device.device.bundle.manifest.version == "8"
                if self._is_over.is_set():
                    return
                if not turn or has_release:  # one turn suffices for the old version's figures
                    fleet_device.answer_rows([_draw_row(rng) for _ in range(40)])
            self._is_over.wait(0.1)  # leave processor time to the devices and the worker


def _draw_row(rng: random.Random) -> list[float]:
    """Draw a hard row, which only the cloud classifies right, or a row for which stage 0 stops."""
    sign = rng.choice((-1.0, 1.0))
    if rng.random() < HARD_SHARE:
        return [0.1 * sign, 0, 0.1, 0, rng.choice((-1.0, 1.0)), 0]
    return [sign, 0, 0.1, 0, sign, 0]


@pytest.mark.slow
def test_a_release_five_points_worse_stops_below_15_percent_of_the_fleet(
    tmp_path, capsys, monkeypatch
):
    """Version 8 answers the hard tenth of the rows on the device, half of them wrongly."""
    monkeypatch.setattr("gatewise_edge.service.release_status._FIRST_PAUSE_SECONDS", 1.0)
    first_bundle = write_bundle(tmp_path / "v7", version="7")
    last_threshold = first_bundle.manifest.operating_points[0].thresholds[1]
    # With this threshold stage 0 stops for the hard rows, whose score is 4 * 0.1.
    worse_points = (OperatingPoint((0.05, last_threshold), 5.0, 0.9, 0.2),)
    bundles = [
        first_bundle,
        write_bundle(tmp_path / "v8", version="8", operating_points=worse_points),
    ]
    repository = Repository.init(tmp_path / "repo")
    for bundle in bundles:
        repository.add(bundle.path)
    repository.publish("small/7")
    with ExitStack() as stack:
        broker = stack.enter_context(Mosquitto(tmp_path))
        stack.enter_context(Worker(bundles, broker.url))
        fleet = [
            _make_fleet_device(
                stack, f"device-{i}", first_bundle.path, repository, broker.url, tmp_path
            )
            for i in range(N_DEVICES)
        ]
        with Traffic(fleet):
            arguments = ["repo", "publish", str(repository.folder), "small/8"]
            arguments += ["--rollout", "5%,10%,25%,50%,100%", "--every", "3", "--worse-by", "1%"]
            exit_status = main([*arguments, "--broker", broker.url, "--json"])
    output, progress = capsys.readouterr()
    print(progress)
    end_document = json.loads(output)
    n_installed = sum("8" in fleet_device.versions for fleet_device in fleet)
    print(f"{n_installed} of {N_DEVICES} devices ran it; {end_document['aborted']}")
    assert (exit_status, end_document["rollout"]) == (1, 0.0)
    assert "disagreement" in end_document["aborted"]
    assert 3 <= n_installed < 0.15 * N_DEVICES


def _make_fleet_device(
    stack: ExitStack, name: str, first_path: Path, repository: Repository, url: str, folder: Path
) -> FleetDevice:
    link = MqttLink(url, device=name)
    updater = Updater(
        Store(folder / f"store-{name}", first_pause_s=600.0),
        UpdateSettings(
            urls=[repository.folder.as_uri()],
            trust=repository.root_file,
            first_bundle=first_path,
            device=name,
            min_interval=2.0,
            trial_seconds=0.0,
        ),
        link=link,
    )
    audit_share = 0.2  # more than in use, so that the test is short
    device = stack.enter_context(
        Device(
            first_path, link=link, observe=updater.observe, audit=audit_share, deadline_ms=10_000
        )
    )
    stack.enter_context(updater)
    updater.start(device)
    link.connect(60)
    return FleetDevice(device, updater, set())
