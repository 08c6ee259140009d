"""A release grows over a fleet step by step, and stops by what its devices report."""

from __future__ import annotations

import json
import random
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from gatewise.cli import main
from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint
from gatewise_cloud.broker.mqtt_client import publish_retained
from gatewise_cloud.broker.rollout import AbortLimits, RolloutReport, read_statuses, roll_out
from gatewise_cloud.worker.worker import Worker
from gatewise_edge.device.auditor import Audit
from gatewise_edge.device.device import Device
from gatewise_edge.link.mqtt import Endpoint, MqttLink
from gatewise_edge.link.topics import status_topic
from gatewise_edge.update import Store, Updater
from gatewise_export.repository.repository import Repository
from tests.support.mosquitto import Mosquitto
from tests.support.small_bundle import write_bundle

DEVICES = 200
HARD_SHARE = 0.1


@pytest.fixture
def repository(tmp_path):
    made = Repository.init(tmp_path / "repo")
    for version in ("7", "8"):
        made.add(write_bundle(tmp_path / f"v{version}", version=version).path)
    made.publish("small/7")
    return made


@pytest.fixture
def endpoint(tmp_path):
    with Mosquitto(tmp_path) as broker:
        yield Endpoint(broker.url)


def figures(devices, disagreed):
    return {"errors": [], "fallbacks": [], "disagreement": [(disagreed, 1000.0)] * devices}


def rolled_out(repository, shares, reports, limits=AbortLimits(worse_by=0.01)):  # noqa: B008
    steps = []
    end = roll_out(
        repository,
        "small/8",
        shares,
        limits,
        announce=lambda offer: steps.append(offer.rollout / 1e4),
        report=lambda offer: reports(offer.rollout / 1e4),
        wait=lambda: None,
        progress=lambda offer, report: None,
    )
    return end, steps


@pytest.mark.parametrize("models", [1, 2])
def test_a_good_release_reaches_all_and_an_interrupted_rollout_goes_on(
    repository, tmp_path, models
):
    if models == 2:  # another model's release has as high a serial, and was offered before
        for version in ("a", "b"):
            repository.add(write_bundle(tmp_path / version, name="other", version=version).path)
            repository.publish(f"other/{version}")

    def good(share):
        if share == 0.25 and not interrupted:
            interrupted.append(1)
            raise KeyboardInterrupt
        return RolloutReport(50, 0, figures(50, 20.0), figures(150, 20.0))

    interrupted = []
    with pytest.raises(KeyboardInterrupt):
        rolled_out(repository, (0.05, 0.25, 1.0), good)
    end, steps = rolled_out(repository, (0.05, 0.25, 1.0), good)
    assert (end.aborted, end.offer.rollout, steps) == (None, 10_000, [0.25, 1.0])


@pytest.mark.parametrize(
    ("report", "limits", "why"),
    [
        (RolloutReport(10, 0, figures(10, 70.0), figures(190, 20.0)), {"worse_by": 0.01}, "disag"),
        (RolloutReport(10, 0, figures(10, 70.0), figures(190, 20.0)), {"worse_by": 0.06}, None),
        (RolloutReport(2, 0, figures(2, 70.0), figures(190, 20.0)), {"worse_by": 0.01}, None),
        (RolloutReport(10, 4), {"failed": 0.2}, "failed on 4 of 14"),
        (RolloutReport(10, 2), {"failed": 0.0}, None),
    ],
)
def test_what_stops_a_rollout(repository, report, limits, why):
    end, steps = rolled_out(repository, (0.05, 1.0), lambda _: report, AbortLimits(**limits))
    if why is None:
        assert (end.aborted, steps) == (None, [0.05, 1.0])
    else:
        assert why in end.aborted
        assert steps == [0.05, 0.0]
        assert str(repository.latest()) == "small/7"


def test_shares_and_limits_that_cannot_be(repository):
    with pytest.raises(InputError, match="must rise"):
        rolled_out(repository, (0.5, 0.1), lambda _: RolloutReport(0, 0))
    with pytest.raises(InputError, match="a rollout of 100"):  # a forgotten %
        rolled_out(repository, (0.3, 100.0), lambda _: RolloutReport(0, 0))
    assert [offer.rollout for offer in repository.offers()] == [10_000, 0]
    with pytest.raises(InputError, match="give a share"):
        AbortLimits(failed=1.5)


def test_an_abort_threshold_withdraws_a_release(repository, endpoint, capsys):
    offer = repository.publish("small/8")

    def report(device, status):
        publish_retained(endpoint, status_topic(device), status.encode())

    def rollback():
        words = ["repo", "rollback", str(repository.folder), "--above", "20%"]
        assert main([*words, "--broker", endpoint.url, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    for i in range(8):
        report(f"pi-{i}", f"online small/8 seen=1000,{i},20 audited=900,{i}.5")
    for i in range(2):
        report(f"bad-{i}", f"online small/7 refused {offer.digest[:12]}")
    report("old", "online small/7 refused 000000000000 seen=nan,-1,x audited=7")
    report("away", "offline")
    assert len(read_statuses(endpoint)) == 12
    shares = {"errors": 28 / 8000, "fallbacks": 0.02, "disagreement": 32 / 7200}
    assert rollback() == {"release": "small/8", "running": 8, "refused": 2, **shares}
    assert main(["repo", "status", str(repository.folder), "--broker", endpoint.url, "--json"]) == 0
    latest, before = json.loads(capsys.readouterr().out)["releases"]
    assert (latest["running"], latest["refused"]) == (8, 2)
    assert (before["running"], before["refused"]) == (3, 0)
    report("pi-0", f"online small/7 refused {offer.digest[:12]}")
    assert rollback()["rollout"] == 0.0
    assert str(Repository(repository.folder).latest()) == "small/7"
    repository.rollback()
    assert main(["repo", "publish", str(repository.folder), "small/8"]) == 0
    assert main(["repo", "rollback", str(repository.folder)]) == 0
    assert "no release of small is offered now" in capsys.readouterr().err


def test_a_step_waits_for_devices_that_have_yet_to_take_the_release():
    """Slow devices have shown nothing, whose others report; where too few will come, it goes on."""
    others = {what: [(2.0, 100.0)] * 150 for what in ("errors", "fallbacks", "disagreement")}
    limits = AbortLimits(worse_by=0.05)
    assert limits.is_vague(RolloutReport(1, 0, {}, others, offered=10.0))
    assert not limits.is_vague(RolloutReport(1, 0, {}, others, offered=2.0))
    assert not limits.is_vague(RolloutReport(1, 0, {}, {}, offered=10.0))  # nor do others report
    shown = {what: entries[:10] for what, entries in others.items()}
    assert not limits.is_vague(RolloutReport(10, 0, shown, others, offered=10.0))


def test_no_accident_stops_a_rollout():
    """Equal versions, looked at 20 times: at most 1 of 100 is withdrawn."""
    rng = np.random.default_rng(0)
    limits, aborted = AbortLimits(worse_by=0.0), 0
    for _ in range(100):
        totals = np.zeros((60, 2))
        for _ in range(20):
            n = rng.integers(20, 200, 60)
            totals += np.column_stack([50.0 * rng.binomial(n, 0.03 * 0.02), n])
            pairs = [tuple(row) for row in totals]
            found = {"errors": [], "fallbacks": []}
            report = RolloutReport(
                20,
                0,
                found | {"disagreement": pairs[:20]},
                found | {"disagreement": pairs[20:]},
            )
            if limits.reason_to_abort(report):
                aborted += 1
                break
    assert aborted <= 1


@dataclass
class Member:
    """A device of the fleet with its updater, and the versions that it has run."""

    device: Device
    updater: Updater
    ran: set[str]

    def answer(self, rows) -> None:
        for row in rows:
            self.device.answer(row)
            self.ran.add(self.device.bundle.manifest.version)


class Traffic:
    """Rows whose hard tenth goes to the cloud: their features a and e have nothing in common."""

    def __init__(self, fleet: list[Member]) -> None:
        self._fleet, self._over = fleet, threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(fleet[i::4], i)) for i in range(4)
        ]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, fleet: list[Member], seed: int) -> None:
        rng = random.Random(seed)
        for turn in count():
            for member in fleet:
                new = member.device.bundle.manifest.version == "8"
                if self._over.is_set():
                    return
                if not turn or new:  # the old version's figures are soon known
                    member.answer([_row(rng) for _ in range(40)])
            self._over.wait(0.1)  # the processor is the devices' and the worker's, too


def _row(rng: random.Random) -> list[float]:
    sign = rng.choice((-1.0, 1.0))
    if rng.random() < HARD_SHARE:
        return [0.1 * sign, 0, 0.1, 0, rng.choice((-1.0, 1.0)), 0]
    return [sign, 0, 0.1, 0, sign, 0]


@pytest.mark.slow
def test_a_model_that_is_five_points_worse_stops_below_15_percent(tmp_path, capsys):
    """200 devices; version 8 answers the hard tenth by itself, half of it wrongly."""
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
            for i in range(DEVICES)
        ]
        with Traffic(fleet):
            words = ["repo", "publish", str(repository.folder), "small/8"]
            words += ["--rollout", "5%,10%,25%,50%,100%", "--every", "6", "--worse-by", "1%"]
            status = main([*words, "--broker", broker.url, "--json"])
    out, err = capsys.readouterr()
    print(err)
    end = json.loads(out)
    took = sum("8" in member.ran for member in fleet)
    print(f"{took} of {DEVICES} devices ran it; {end['aborted']}")
    assert (status, end["rollout"]) == (1, 0.0)
    assert "disagreement" in end["aborted"]
    assert 3 <= took < 0.15 * DEVICES


def _member(
    stack: ExitStack, name: str, first: Path, repository: Repository, url: str, folder: Path
) -> Member:
    link = MqttLink(url, device=name)
    updater = Updater(
        Store(folder / f"store-{name}", pause=600.0),
        urls=[repository.folder.as_uri()],
        trust=repository.root_file,
        first=first,
        link=link,
        device=name,
        gap=0.2,
        trial_seconds=0.0,
        report=1.0,
    )
    audit = Audit(share=0.2, bound=0.5)
    device = stack.enter_context(
        Device(first, link=link, observe=updater.observe, audit=audit, deadline_ms=10_000)
    )
    stack.enter_context(updater)
    updater.start(device)
    link.connect(60)
    return Member(device, updater, set())
