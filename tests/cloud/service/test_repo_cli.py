"""The command ``gatewise repo``: watched rollouts, statuses and expected versions."""

from __future__ import annotations

import json
import time

import pytest

from gatewise.cli import main
from gatewise_cloud.broker.mqtt_client import publish_retained
from gatewise_cloud.broker.rollout_report import read_statuses
from gatewise_edge.link.topics import status_topic
from tests.support.mosquitto import Mosquitto


def test_publish_reports_a_broker_that_stops_and_goes_on(repository, tmp_path, capsys, monkeypatch):
    """The command watches on, and withdraws the release without evidence."""
    waits = []

    def wait_and_kill_broker(seconds):
        waits.append(seconds)
        if len(waits) == 1:
            broker.kill()

    with Mosquitto(tmp_path) as broker:
        monkeypatch.setattr(time, "sleep", wait_and_kill_broker)
        arguments = ["--rollout", "100%", "--every", "1", "--above", "5%", "--broker", broker.url]
        status = main(["repo", "publish", str(repository.folder), "small/8", *arguments])
    assert status == 3
    output = capsys.readouterr()
    assert output.err.count("no report: broker") == 10
    assert "small/8 at 0% is not announced" in output.err
    assert "small/8 is withdrawn: no evidence in 10 reports" in output.out
    assert repository.find("small/8").rollout == 0


@pytest.mark.slow
def test_a_rollout_without_audits_reports_disagreement_as_not_compared(
    repository, endpoint, capsys
):
    for device_number in range(3):
        status = f"online small/8 seen=1000000,{device_number},20 trial".encode()
        publish_retained(endpoint, status_topic(f"pi-{device_number}"), status)
        publish_retained(
            endpoint, status_topic(f"old-{device_number}"), status.replace(b"/8", b"/7")
        )
    command = ["repo", "publish", str(repository.folder), "small/8", "--every", "0.1"]
    assert main([*command, "--worse-by", "1%", "--broker", endpoint.url, "--json"]) == 0
    output, notes = capsys.readouterr()
    document = json.loads(output)
    assert document["not_compared"] == ["disagreement"]
    # the devices may still reject the release
    assert (document["running"], document["on_trial"]) == (3, 3)
    assert "3 devices may still reject small/8" in notes
    assert "--worse-by did not compare disagreement: 0 devices with the release" in notes
    n_answers_by_metric = document["answers_to_find"]
    assert n_answers_by_metric.keys() == {"errors", "fallbacks"}
    n_answers = n_answers_by_metric["errors"]
    assert f"detects 3 points of errors within about {n_answers} answers" in notes


@pytest.mark.slow
def test_repo_status_counts_reports_and_rollback_checks_the_version(repository, endpoint, capsys):
    offer = repository.publish("small/8")
    statuses = {f"pi-{i}": f"online small/8 seen=1000,{i},20 audited=900,{i}.5" for i in range(8)}
    statuses["pi-0"] += " trial"
    for device_number in range(2):
        statuses[f"bad-{device_number}"] = f"online small/7 refused {offer.digest[:12]}"
    statuses["old"] = "online small/7 refused 000000000000 seen=nan,-1,x audited=7"
    statuses["away"] = "offline"
    for device, status in statuses.items():
        publish_retained(endpoint, status_topic(device), status.encode())
    assert len(read_statuses(endpoint)) == 12
    assert main(["repo", "status", str(repository.folder), "--broker", endpoint.url, "--json"]) == 0
    row_of_release, row_of_previous = json.loads(capsys.readouterr().out)["releases"]
    assert (row_of_release["running"], row_of_release["on_trial"]) == (8, 1)
    assert row_of_release["refused"] == 2
    # 0 + 1 + ... + 7 = 28 errors, and half a disagreement more on each device.
    shares = {"errors": 28 / 8000, "fallbacks": 0.02, "disagreement": 32 / 7200}
    assert row_of_release.items() >= shares.items()
    assert (row_of_previous["running"], row_of_previous["refused"]) == (3, 0)
    # A rollback that names an earlier version of the repository is refused.
    repository.rollback("small/7")
    version = repository.version
    command = ["repo", "rollback", str(repository.folder), "small/8", "--at-version"]
    assert main([*command, str(version - 1)]) == 2
    assert f"it is at version {version}, not {version - 1}" in capsys.readouterr().err
    assert main([*command, str(version)]) == 0
    assert "no release of small is offered now" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["small/8", "--every", "0.1"]])
def test_publish_refuses_a_version_that_it_would_not_check(repository, options, capsys):
    command = ["repo", "publish", str(repository.folder), *options, "--at-version", "1"]
    assert main(command) == 2
    assert "--at-version needs a release" in capsys.readouterr().err
