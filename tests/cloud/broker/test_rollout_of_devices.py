"""Rollout to 200 real devices with updaters over a real broker."""

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
from gatewise_edge.link.mqtt import MqttLink
from gatewise_edge.update import Store, Updater, UpdateSettings
from gatewise_export.repository.repository import Repository
from tests.support.mosquitto import Mosquitto
from tests.support.small_bundle import write_bundle

N_DEVICES = 200
HARD_SHARE = 0.1


@dataclass
class Member:
    """Device of the fleet with its updater and the versions that it has run."""

    device: Device
    updater: Updater
    versions: set[str]

    def answer(self, rows) -> None:
        for row in rows:
            self.device.answer(row)
            self.versions.add(self.device.bundle.manifest.version)


class Traffic:
    """Threads that give rows to the devices; a tenth of the rows needs the cloud."""

    def __init__(self, fleet: list[Member]) -> None:
        self._fleet = fleet
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(fleet[i::4], i)) for i in range(4)
        ]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self, fleet: list[Member], seed: int) -> None:
        rng = random.Random(seed)
        for turn in count():
            for member in fleet:
                has_release = member.device.bundle.manifest.version == "8"
                if self._stop.is_set():
                    return
                if not turn or has_release:  # one turn suffices for the old version's figures
                    member.answer([_row(rng) for _ in range(40)])
            self._stop.wait(0.1)  # leave processor time to the devices and the worker


def _row(rng: random.Random) -> list[float]:
    sign = rng.choice((-1.0, 1.0))
    if rng.random() < HARD_SHARE:
        return [0.1 * sign, 0, 0.1, 0, rng.choice((-1.0, 1.0)), 0]
    return [sign, 0, 0.1, 0, sign, 0]


@pytest.mark.slow
def test_a_release_five_points_worse_stops_below_15_percent_of_the_fleet(tmp_path, capsys):
    """Version 8 answers the hard tenth of the rows on the device, half of them wrongly."""
    first = write_bundle(tmp_path / "v7", version="7")
    last = first.manifest.operating_points[0].thresholds[1]
    worse = (OperatingPoint((0.05, last), 5.0, 0.9, 0.2),)
    bundles = [first, write_bundle(tmp_path / "v8", version="8", operating_points=worse)]
    repository = Repository.init(tmp_path / "repo")
    for bundle in bundles:
        repository.add(bundle.path)
    repository.publish("small/7")
    with ExitStack() as stack:
        broker = stack.enter_context(Mosquitto(tmp_path))
        stack.enter_context(Worker(bundles, broker.url))
        fleet = [
            _member(stack, f"pi-{i}", first.path, repository, broker.url, tmp_path)
            for i in range(N_DEVICES)
        ]
        with Traffic(fleet):
            words = ["repo", "publish", str(repository.folder), "small/8"]
            words += ["--rollout", "5%,10%,25%,50%,100%", "--every", "6", "--worse-by", "1%"]
            status = main([*words, "--broker", broker.url, "--json"])
    out, err = capsys.readouterr()
    print(err)
    end = json.loads(out)
    n_installed = sum("8" in member.versions for member in fleet)
    print(f"{n_installed} of {N_DEVICES} devices ran it; {end['aborted']}")
    assert (status, end["rollout"]) == (1, 0.0)
    assert "disagreement" in end["aborted"]
    assert 3 <= n_installed < 0.15 * N_DEVICES


def _member(
    stack: ExitStack, name: str, first: Path, repository: Repository, url: str, folder: Path
) -> Member:
    link = MqttLink(url, device=name)
    updater = Updater(
        Store(folder / f"store-{name}", pause=600.0),
        UpdateSettings(
            urls=[repository.folder.as_uri()],
            trust=repository.root_file,
            first=first,
            device=name,
            min_interval=0.2,
            trial_seconds=0.0,
            first_report_delay=1.0,
        ),
        link=link,
    )
    audit = 0.2
    device = stack.enter_context(
        Device(first, link=link, observe=updater.observe, audit=audit, deadline_ms=10_000)
    )
    stack.enter_context(updater)
    updater.start(device)
    link.connect(60)
    return Member(device, updater, set())
