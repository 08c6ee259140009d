"""Rollouts in steps, which the reports of devices continue or stop."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gatewise.cli import main
from gatewise.errors import InputError
from gatewise_cloud.broker.mqtt_client import publish_retained
from gatewise_cloud.broker.rollout import AbortLimits, _may_end, planned_shares, roll_out
from gatewise_cloud.broker.rollout_report import RolloutReport, read_statuses
from gatewise_edge.link.mqtt import Endpoint
from gatewise_edge.link.topics import status_topic
from gatewise_export.repository.repository import Repository
from tests.support.mosquitto import Mosquitto
from tests.support.small_bundle import write_bundle


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


def ids(n, kind="new"):
    return frozenset(f"{kind}-{i}" for i in range(n))


def reported(running, refused=0, own=20.0, others=20.0, elsewhere=190):
    """What devices report: ids and disagreement in 1,000 instances of each."""
    return RolloutReport(
        running=ids(running),
        refused=ids(refused, "bad"),
        elsewhere=ids(refused, "bad") | ids(elsewhere, "old"),
        offered=ids(running) | ids(refused, "bad"),
        figures=figures(running, own),
        others=figures(elsewhere, others),
    )


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
def test_a_good_release_reaches_all_devices_also_after_an_interruption(
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
        return reported(50)

    interrupted = []
    with pytest.raises(KeyboardInterrupt):
        rolled_out(repository, (0.05, 0.25, 1.0), good)
    end, steps = rolled_out(repository, (0.05, 0.25, 1.0), good)
    assert (end.aborted, end.offer.rollout, steps) == (None, 10_000, [0.25, 0.9, 1.0])


@pytest.mark.parametrize(
    ("report", "limits", "why"),
    [
        (reported(10, own=70.0), {"worse_by": 0.01}, "disagreement 7.0 %, 5.0 points more"),
        (reported(10, own=70.0), {"worse_by": 0.06}, None),
        (reported(10, 4), {"failed": 0.2}, "failed on 4 of 14"),
        (reported(10, 2), {"failed": 0.0}, None),
    ],
)
def test_limits_and_missing_evidence_stop_a_rollout(repository, report, limits, why):
    end, steps = rolled_out(repository, (0.05, 1.0), lambda _: report, AbortLimits(**limits))
    if why is None:
        held = [] if "failed" in limits else [0.9]
        assert (end.aborted, end.kind, steps) == (None, "done", [0.05, *held, 1.0])
    else:
        assert why in end.aborted
        assert (end.kind, steps) == ("withdrawn", [0.05, 0.0])
        assert str(repository.wanted("small")) == "small/7"


class Fleet:
    """Statuses of devices that take a release as soon as it is offered to them."""

    def __init__(self, n, away=0):
        self.statuses = {status_topic(f"pi-{i}"): "online small/7" for i in range(n)}
        self.statuses |= {status_topic(f"away-{i}"): "offline" for i in range(away)}
        self.looks = 0

    def take(self, offer, becomes):
        self.looks += 1
        for topic, status in self.statuses.items():
            if status == "online small/7" and offer.is_for(topic.split("/")[2]):
                self.statuses[topic] = becomes(offer)
        return RolloutReport.from_statuses(self.statuses, offer)


def watched(repository, fleet, becomes, *, baseline=False, limits=AbortLimits(failed=0.05)):  # noqa: B008
    before = None
    if baseline:
        before = RolloutReport.from_statuses(fleet.statuses, repository.find("small/8"))
    shares = []
    end = roll_out(
        repository,
        "small/8",
        (0.05, 0.25, 1.0),
        limits,
        announce=lambda offer: shares.append(offer.rollout / 1e4),
        report=lambda offer: fleet.take(offer, becomes),
        wait=lambda: None,
        progress=lambda offer, report: None,
        baseline=before,
    )
    return end, shares


@pytest.mark.parametrize("baseline", [False, True])
def test_a_release_that_kills_its_process_reaches_no_further_than_its_first_step(
    repository, baseline
):
    fleet = Fleet(100)
    end, shares = watched(repository, fleet, lambda _: "offline", baseline=baseline)
    assert (end.kind, shares) == ("no-evidence", [0.05, 0.0])
    assert "0 devices run it" in end.aborted
    assert fleet.looks == 10


@pytest.mark.parametrize("status", ["online small/7", "online"])
def test_devices_that_postpone_a_release_are_no_evidence(repository, status):
    end, shares = watched(repository, Fleet(100), lambda _: status)
    assert (end.kind, shares) == ("no-evidence", [0.05, 0.0])


def test_devices_that_fall_silent_with_a_release_count_as_failures(repository):
    fleet = Fleet(200)
    dead = []

    def take_and_die(offer):
        if offer.rollout == 2500 and not dead:  # those that have run it for a step
            dead.extend(topic for topic, s in fleet.statuses.items() if s == f"online {offer}")
            fleet.statuses |= dict.fromkeys(dead, "offline")
        return f"online {offer}"

    end, shares = watched(repository, fleet, take_and_die)
    assert (end.kind, shares) == ("withdrawn", [0.05, 0.25, 0.0])
    assert f"{len(dead)} of which fell silent" in end.aborted


@pytest.mark.parametrize(("devices", "away"), [(70, 30), (8, 0), (1, 0)])
def test_a_rollout_does_not_wait_for_devices_that_were_offline_before(repository, devices, away):
    fleet = Fleet(devices, away)
    end, shares = watched(repository, fleet, lambda offer: f"online {offer}", baseline=True)
    assert (end.kind, shares, end.offer.rollout) == ("done", [0.05, 0.25, 1.0], 10_000)


@pytest.mark.parametrize("fleet", [Fleet(0), Fleet(0, 5)])
def test_a_fleet_without_reports_is_no_evidence(repository, fleet):
    end, _ = watched(repository, fleet, lambda offer: f"online {offer}", baseline=True)
    assert end.kind == "no-evidence"


def test_publishing_another_release_ends_the_rollout(repository, tmp_path):
    folder = repository.folder
    Repository(folder).add(write_bundle(tmp_path / "v9", version="9").path)

    def becomes(offer):
        Repository(folder).publish("small/9")
        return f"online {offer}"

    end, shares = watched(repository, Fleet(100), becomes)
    assert (end.kind, end.aborted) == ("superseded", "small/9 is offered in its place")
    assert shares == [0.05]
    assert {o.version: o.rollout for o in Repository(folder).offers()} == {
        "9": 10_000, "8": 500, "7": 10_000,
    }  # fmt: skip


def test_adding_another_release_does_not_end_the_rollout(repository, tmp_path):
    folder = repository.folder
    added = [write_bundle(tmp_path / "v9", version="9").path]

    def becomes(offer):
        if added:
            Repository(folder).add(added.pop())
        return f"online {offer}"

    assert watched(repository, Fleet(100), becomes)[0].kind == "done"


def test_an_abort_withdraws_its_own_release_once(repository, tmp_path):
    """An operator withdraws it as well, or publishes another release, a moment before."""
    folder = repository.folder
    Repository(folder).add(write_bundle(tmp_path / "v9", version="9").path)

    def refused_and(act):
        def becomes(offer):
            act()
            return f"online small/7 refused {offer.digest[:12]}"

        return becomes

    def withdraw():
        Repository(folder).rollback("small/8")

    end, _ = watched(repository, Fleet(100), refused_and(withdraw))
    assert (end.kind, end.offer.rollout) == ("withdrawn", 0)
    assert str(repository.wanted("small")) == "small/7"
    end, _ = watched(
        repository, Fleet(100), refused_and(lambda: Repository(folder).publish("small/9"))
    )
    assert (end.kind, str(end.offer)) == ("withdrawn", "small/8")
    assert str(repository.wanted("small")) == "small/9"


def test_impossible_shares_and_limits_are_refused(repository):
    with pytest.raises(InputError, match="must rise"):
        rolled_out(repository, (0.5, 0.1), lambda _: RolloutReport())
    with pytest.raises(InputError, match="a rollout of 100"):  # a forgotten %
        rolled_out(repository, (0.3, 100.0), lambda _: RolloutReport())
    assert [offer.rollout for offer in repository.offers()] == [10_000, 0]
    with pytest.raises(InputError, match="failed: must be a number below 1"):
        AbortLimits(failed=1.5)


def test_a_comparison_begins_below_half_and_keeps_a_tenth_to_the_end():
    limits = AbortLimits(worse_by=0.01)
    assert planned_shares([0.05, 0.25, 1.0], limits) == [0.05, 0.25, 0.9, 1.0]
    assert planned_shares([1.0], limits) == [0.45, 0.9, 1.0]
    assert planned_shares([0.1, 0.95, 1.0], limits) == [0.1, 0.95, 1.0]
    assert planned_shares([0.1, 0.2], limits) == [0.1, 0.2]
    assert planned_shares([1.0], AbortLimits(failed=0.05)) == [1.0]


def test_devices_that_run_a_release_and_report_nothing_are_no_evidence(repository):
    """Where no other device reports either, there is nothing to wait for."""
    silent = replace(reported(10), figures={})
    end, steps = rolled_out(repository, (0.05, 1.0), lambda _: silent)
    assert (end.kind, steps) == ("no-evidence", [0.05, 0.0])
    assert "no evidence in 30 looks" in end.aborted
    end, _ = rolled_out(repository, (0.05, 1.0), lambda _: replace(silent, others={}))
    assert end.kind == "done"


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (reported(2, own=70.0), "disagreement: 2 devices with the release"),
        (replace(reported(40), figures={"disagreement": [(0.0, 500.0), (60.0, 500.0)] * 20}),
         "disagreement: devices differ too much"),
    ],
)  # fmt: skip
def test_a_comparison_without_an_end_holds_the_release_below_half(repository, report, reason):
    end, steps = rolled_out(repository, (0.05, 1.0), lambda _: report)
    assert (end.kind, steps, end.offer.rollout) == ("undecided", [0.05, 0.45], 4500)
    assert reason in end.aborted
    accepting = AbortLimits(worse_by=0.01, accept_undecided=True)
    end, steps = rolled_out(repository, (0.05, 1.0), lambda _: report, accepting)
    assert (end.kind, steps) == ("done", [0.9, 1.0])


def growing(start, growth, n_looks):
    return [start + growth * look for look in range(n_looks)]


@pytest.mark.parametrize(
    ("parts", "may_end"),
    [
        ([0.5] * 9, True),  # fewer than 10 looks
        ([0.5] * 10, False),
        ([0.0] * 29, True),  # nobody has reported yet
        ([0.0] * 30, False),
        ([0.0] + [0.6] * 9 + [0.5] * 10, False),
        (growing(0.0, 0.01, 20), True),
        # From 30 looks on the end must be at most 400 looks away: 0.5 - 39 g = 400 g.
        (growing(0.5, 0.5 / 438.9, 40), True),
        (growing(0.5, 0.5 / 439.1, 40), False),
        (growing(0.0, 0.004, 199), True),
        (growing(0.0, 0.004, 200), False),  # 200 looks are too many
    ],
)
def test_a_comparison_may_end_while_its_information_grows(parts, may_end):
    assert _may_end(parts, 10) == may_end


def test_a_figure_that_was_not_compared_is_named_with_the_reason():
    limits = AbortLimits(worse_by=0.01)
    seen = {"errors": [(0.0, 1000.0)] * 60, "fallbacks": [(0.0, 1000.0)] * 60}
    without_audits = replace(reported(60), figures=seen, others=seen)
    reasons = limits.not_compared(without_audits)
    assert list(reasons) == ["disagreement"]
    assert "0 devices with the release and 0 with other versions" in reasons["disagreement"]
    assert "gatewise edge --audit" in reasons["disagreement"]
    few = {"errors": [(0.0, 20.0)] * 3, "fallbacks": [(0.0, 20.0)] * 3}
    reasons = limits.not_compared(replace(without_audits, figures=few))
    assert set(reasons) == {"errors", "fallbacks", "disagreement"}
    assert "to detect 2 points above the limit" in reasons["errors"]
    assert "2 devices with the release" in limits.not_compared(reported(2))["disagreement"]
    assert AbortLimits(failed=0.1).not_compared(without_audits) == {}


@pytest.mark.slow
def test_a_rollout_without_audits_says_that_it_compared_no_disagreement(
    repository, endpoint, capsys
):
    for i in range(3):
        status = f"online small/8 seen=1000000,{i},20".encode()
        publish_retained(endpoint, status_topic(f"pi-{i}"), status)
        publish_retained(endpoint, status_topic(f"old-{i}"), status.replace(b"/8", b"/7"))
    words = ["repo", "publish", str(repository.folder), "small/8", "--every", "0.1"]
    assert main([*words, "--worse-by", "1%", "--broker", endpoint.url, "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["not_compared"] == ["disagreement"]
    assert "--worse-by did not compare disagreement: 0 devices with the release" in err
    n_answers = document["answers_to_find"]
    assert n_answers.keys() == {"errors", "fallbacks"}
    assert f"detects 3 points of errors within about {n_answers['errors']} answers" in err


@pytest.mark.slow
def test_status_counts_reports_and_rollback_withdraws_at_an_expected_version(
    repository, endpoint, capsys
):
    offer = repository.publish("small/8")
    statuses = {f"pi-{i}": f"online small/8 seen=1000,{i},20 audited=900,{i}.5" for i in range(8)}
    for i in range(2):
        statuses[f"bad-{i}"] = f"online small/7 refused {offer.digest[:12]}"
    statuses["old"] = "online small/7 refused 000000000000 seen=nan,-1,x audited=7"
    statuses["away"] = "offline"
    for device, status in statuses.items():
        publish_retained(endpoint, status_topic(device), status.encode())
    assert len(read_statuses(endpoint)) == 12
    assert main(["repo", "status", str(repository.folder), "--broker", endpoint.url, "--json"]) == 0
    latest, before = json.loads(capsys.readouterr().out)["releases"]
    assert (latest["running"], latest["refused"]) == (8, 2)
    shares = {"errors": 28 / 8000, "fallbacks": 0.02, "disagreement": 32 / 7200}
    assert latest.items() >= shares.items()
    assert (before["running"], before["refused"]) == (3, 0)
    # a withdrawal that was decided on another version of the repository is refused
    repository.rollback("small/7")
    version = repository.version
    words = ["repo", "rollback", str(repository.folder), "small/8", "--at-version"]
    assert main([*words, str(version - 1)]) == 2
    assert f"it is at version {version}, not {version - 1}" in capsys.readouterr().err
    assert main([*words, str(version)]) == 0
    assert "no release of small is offered now" in capsys.readouterr().err
