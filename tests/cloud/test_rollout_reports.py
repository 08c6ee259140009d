"""A rollout that fails on its devices is withdrawn by what they report."""

from __future__ import annotations

import json

import pytest

from gatewise.cli import main
from gatewise_cloud.broker.mqtt_client import publish_retained
from gatewise_cloud.broker.rollout import AbortLimits, RolloutReport, read_statuses
from gatewise_edge.link.broker_url import Endpoint
from gatewise_edge.link.topics import status_topic
from gatewise_export.repository.repository import Repository
from tests.support.mosquitto import Mosquitto
from tests.support.small_bundle import write_bundle


@pytest.fixture
def endpoint(tmp_path):
    with Mosquitto(tmp_path) as broker:
        yield Endpoint(broker.url)


def test_an_abort_threshold_withdraws_a_release(tmp_path, endpoint, capsys):
    repository = Repository.init(tmp_path / "repo")
    for version in ("8", "9"):
        repository.add(write_bundle(tmp_path / f"v{version}", version=version).path)
        offer = repository.publish(f"small/{version}")

    def report(device, status):
        publish_retained(endpoint, status_topic(device), status.encode())

    def rollback():
        words = ["repo", "rollback", str(repository.folder), "--above", "20%"]
        assert main([*words, "--broker", endpoint.url, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    for i in range(8):
        report(f"pi-{i}", f"online small/9 seen=1000,{i},20 audited=900,{i}.5")
    for i in range(2):
        report(f"bad-{i}", f"online small/8 refused {offer.digest[:12]}")
    report("old", "online small/8 refused 000000000000 seen=nan,-1,x audited=7")
    report("away", "offline")
    assert len(read_statuses(endpoint)) == 12
    shares = {"errors": 28 / 8000, "fallbacks": 0.02, "disagreement": 32 / 7200}
    assert rollback() == {"release": "small/9", "running": 8, "refused": 2, **shares}
    assert main(["repo", "status", str(repository.folder), "--broker", endpoint.url, "--json"]) == 0
    latest, before = json.loads(capsys.readouterr().out)["releases"]
    assert (latest["running"], latest["refused"]) == (8, 2)
    assert (before["running"], before["refused"]) == (3, 0)
    report("pi-0", f"online small/8 refused {offer.digest[:12]}")
    assert rollback()["rollout"] == 0.0
    assert str(Repository(repository.folder).latest()) == "small/8"


def test_a_step_waits_for_devices_that_have_yet_to_take_the_release():
    """Slow devices have shown nothing, whose others report; where too few will come, it goes on."""
    others = {what: [(2.0, 100.0)] * 150 for what in ("errors", "fallbacks", "disagreement")}
    limits = AbortLimits(worse_by=0.05)
    assert limits.is_vague(RolloutReport(1, 0, {}, others, offered=10.0))
    assert not limits.is_vague(RolloutReport(1, 0, {}, others, offered=2.0))
    assert not limits.is_vague(RolloutReport(1, 0, {}, {}, offered=10.0))  # nor do others report
    shown = {what: entries[:10] for what, entries in others.items()}
    assert not limits.is_vague(RolloutReport(10, 0, shown, others, offered=10.0))


def test_shares_of_none():
    assert RolloutReport(0, 0).failed == 0.0
    assert RolloutReport(3, 1).failed == 0.25
