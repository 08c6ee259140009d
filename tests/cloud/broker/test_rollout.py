"""Rollouts in steps, which continue or stop depending on the reports of devices."""

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
    repository = Repository.init(tmp_path / "repo")
    for version in ("7", "8"):
        repository.add(write_bundle(tmp_path / f"v{version}", version=version).path)
    repository.publish("small/7")
    return repository


@pytest.fixture
def endpoint(tmp_path):
    with Mosquitto(tmp_path) as broker:
        yield Endpoint(broker.url)


def figures(devices, disagreed):
    return {"errors": [], "fallbacks": [], "disagreement": [(disagreed, 1000.0)] * devices}


def ids(n_devices, kind="new"):
    return frozenset(f"{kind}-{i}" for i in range(n_devices))


def fleet_report(running, refused=0, disagreed=20.0, others=20.0, elsewhere=190):
    """Report of a fleet in which each device has answered 1,000 instances."""
    return RolloutReport(
        running=ids(running),
        refused=ids(refused, "bad"),
        elsewhere=ids(refused, "bad") | ids(elsewhere, "old"),
        offered=ids(running) | ids(refused, "bad"),
        figures=figures(running, disagreed),
        others=figures(elsewhere, others),
    )


def rollout_steps(repository, shares, reports, limits=AbortLimits(worse_by=0.01)):  # noqa: B008
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
def test_an_interrupted_rollout_of_a_good_release_can_be_completed(repository, tmp_path, models):
    if models == 2:  # a release of another model has the same serial and was offered before
        for version in ("a", "b"):
            repository.add(write_bundle(tmp_path / version, name="other", version=version).path)
            repository.publish(f"other/{version}")

    def interrupt_once(share):
        if share == 0.25 and not interrupted:
            interrupted.append(1)
            raise KeyboardInterrupt
        return fleet_report(50)

    interrupted = []
    with pytest.raises(KeyboardInterrupt):
        rollout_steps(repository, (0.05, 0.25, 1.0), interrupt_once)
    end, steps = rollout_steps(repository, (0.05, 0.25, 1.0), interrupt_once)
    assert (end.aborted, end.offer.rollout, steps) == (None, 10_000, [0.25, 0.9, 1.0])


@pytest.mark.parametrize(
    ("report", "limits", "reason"),
    [
        (
            fleet_report(10, disagreed=70.0),
            {"worse_by": 0.01},
            "disagreement 7.0 %, 5.0 points more",
        ),
        (fleet_report(10, disagreed=70.0), {"worse_by": 0.06}, None),
        (fleet_report(10, 4), {"failed": 0.2}, "failed on 4 of 14"),
        (fleet_report(10, 2), {"failed": 0.0}, None),
    ],
)
def test_limits_and_missing_evidence_stop_a_rollout(repository, report, limits, reason):
    end, steps = rollout_steps(repository, (0.05, 1.0), lambda _: report, AbortLimits(**limits))
    if reason is None:
        comparison_steps = [] if "failed" in limits else [0.9]
        assert (end.aborted, end.kind, steps) == (None, "done", [0.05, *comparison_steps, 1.0])
    else:
        assert reason in end.aborted
        assert (end.kind, steps) == ("withdrawn", [0.05, 0.0])
        assert str(repository.wanted("small")) == "small/7"


class Fleet:
    """Statuses of devices that install a release at the first look after it is offered."""

    def __init__(self, n_devices, offline=0):
        self.statuses = {status_topic(f"pi-{i}"): "online small/7" for i in range(n_devices)}
        self.statuses |= {status_topic(f"away-{i}"): "offline" for i in range(offline)}
        self.looks = 0

    def install(self, offer, new_status):
        self.looks += 1
        for topic, status in self.statuses.items():
            if status == "online small/7" and offer.is_for(topic.split("/")[2]):
                self.statuses[topic] = new_status(offer)
        return RolloutReport.from_statuses(self.statuses, offer)


def fleet_rollout(repository, fleet, new_status, *, baseline=False):
    before = None
    if baseline:
        before = RolloutReport.from_statuses(fleet.statuses, repository.find("small/8"))
    shares = []
    end = roll_out(
        repository,
        "small/8",
        (0.05, 0.25, 1.0),
        AbortLimits(failed=0.05),
        announce=lambda offer: shares.append(offer.rollout / 1e4),
        report=lambda offer: fleet.install(offer, new_status),
        wait=lambda: None,
        progress=lambda offer, report: None,
        baseline=before,
    )
    return end, shares


@pytest.mark.parametrize("baseline", [False, True])
def test_a_release_that_kills_its_process_stops_at_the_first_step(repository, baseline):
    fleet = Fleet(100)
    end, shares = fleet_rollout(repository, fleet, lambda _: "offline", baseline=baseline)
    assert (end.kind, shares) == ("no-evidence", [0.05, 0.0])
    assert "0 devices run it" in end.aborted
    assert fleet.looks == 10


@pytest.mark.parametrize("status", ["online small/7", "online"])
def test_devices_that_postpone_a_release_give_no_evidence(repository, status):
    end, shares = fleet_rollout(repository, Fleet(100), lambda _: status)
    assert (end.kind, shares) == ("no-evidence", [0.05, 0.0])


def test_devices_that_go_offline_with_a_release_count_as_failures(repository):
    fleet = Fleet(200)
    silent_topics = []

    def install_and_die(offer):
        if offer.rollout == 2500 and not silent_topics:  # after one step with the release
            installed = f"online {offer}"
            silent_topics.extend(t for t, status in fleet.statuses.items() if status == installed)
            fleet.statuses |= dict.fromkeys(silent_topics, "offline")
        return f"online {offer}"

    end, shares = fleet_rollout(repository, fleet, install_and_die)
    assert (end.kind, shares) == ("withdrawn", [0.05, 0.25, 0.0])
    assert f"{len(silent_topics)} of which fell silent" in end.aborted


@pytest.mark.parametrize(("devices", "offline"), [(70, 30), (8, 0), (1, 0)])
def test_a_rollout_ignores_devices_that_were_offline_before(repository, devices, offline):
    fleet = Fleet(devices, offline)
    end, shares = fleet_rollout(repository, fleet, lambda offer: f"online {offer}", baseline=True)
    assert (end.kind, shares, end.offer.rollout) == ("done", [0.05, 0.25, 1.0], 10_000)


@pytest.mark.parametrize("fleet", [Fleet(0), Fleet(0, 5)])
def test_a_fleet_without_reports_gives_no_evidence(repository, fleet):
    end, _ = fleet_rollout(repository, fleet, lambda offer: f"online {offer}", baseline=True)
    assert end.kind == "no-evidence"


def test_publishing_another_release_ends_the_rollout(repository, tmp_path):
    folder = repository.folder
    Repository(folder).add(write_bundle(tmp_path / "v9", version="9").path)

    def publish_another(offer):
        Repository(folder).publish("small/9")
        return f"online {offer}"

    end, shares = fleet_rollout(repository, Fleet(100), publish_another)
    assert (end.kind, end.aborted) == ("superseded", "small/9 is offered in its place")
    assert shares == [0.05]
    assert {offer.version: offer.rollout for offer in Repository(folder).offers()} == {
        "9": 10_000, "8": 500, "7": 10_000,
    }  # fmt: skip


def test_adding_another_release_does_not_end_the_rollout(repository, tmp_path):
    folder = repository.folder
    pending_paths = [write_bundle(tmp_path / "v9", version="9").path]

    def add_another(offer):
        if pending_paths:
            Repository(folder).add(pending_paths.pop())
        return f"online {offer}"

    assert fleet_rollout(repository, Fleet(100), add_another)[0].kind == "done"


def test_an_abort_withdraws_only_its_own_release(repository, tmp_path):
    """An operator withdraws the release or publishes another one just before the abort."""
    folder = repository.folder
    Repository(folder).add(write_bundle(tmp_path / "v9", version="9").path)

    def refuse_after(operator_action):
        def new_status(offer):
            operator_action()
            return f"online small/7 refused {offer.digest[:12]}"

        return new_status

    def withdraw():
        Repository(folder).rollback("small/8")

    end, _ = fleet_rollout(repository, Fleet(100), refuse_after(withdraw))
    assert (end.kind, end.offer.rollout) == ("withdrawn", 0)
    assert str(repository.wanted("small")) == "small/7"
    end, _ = fleet_rollout(
        repository, Fleet(100), refuse_after(lambda: Repository(folder).publish("small/9"))
    )
    assert (end.kind, str(end.offer)) == ("withdrawn", "small/8")
    assert str(repository.wanted("small")) == "small/9"


def test_invalid_shares_and_limits_are_refused(repository):
    with pytest.raises(InputError, match="must rise"):
        rollout_steps(repository, (0.5, 0.1), lambda _: RolloutReport())
    with pytest.raises(InputError, match="a rollout of 100"):  # 100 instead of 100%
        rollout_steps(repository, (0.3, 100.0), lambda _: RolloutReport())
    assert [offer.rollout for offer in repository.offers()] == [10_000, 0]
    with pytest.raises(InputError, match="failed: must be a number below 1"):
        AbortLimits(failed=1.5)


def test_planned_shares_start_below_half_and_leave_a_tenth_until_the_end():
    limits = AbortLimits(worse_by=0.01)
    assert planned_shares([0.05, 0.25, 1.0], limits) == [0.05, 0.25, 0.9, 1.0]
    assert planned_shares([1.0], limits) == [0.45, 0.9, 1.0]
    assert planned_shares([0.1, 0.95, 1.0], limits) == [0.1, 0.95, 1.0]
    assert planned_shares([0.1, 0.2], limits) == [0.1, 0.2]
    assert planned_shares([1.0], AbortLimits(failed=0.05)) == [1.0]


def test_devices_that_report_no_figures_give_no_evidence(repository):
    """If no other device reports figures either, the rollout completes without a comparison."""
    silent = replace(fleet_report(10), figures={})
    end, steps = rollout_steps(repository, (0.05, 1.0), lambda _: silent)
    assert (end.kind, steps) == ("no-evidence", [0.05, 0.0])
    assert "no evidence in 30 looks" in end.aborted
    end, _ = rollout_steps(repository, (0.05, 1.0), lambda _: replace(silent, others={}))
    assert end.kind == "done"


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (fleet_report(2, disagreed=70.0), "disagreement: 2 devices with the release"),
        (replace(fleet_report(40), figures={"disagreement": [(0.0, 500.0), (60.0, 500.0)] * 20}),
         "disagreement: devices differ too much"),
    ],
)  # fmt: skip
def test_an_undecided_comparison_keeps_the_release_below_half(repository, report, reason):
    end, steps = rollout_steps(repository, (0.05, 1.0), lambda _: report)
    assert (end.kind, steps, end.offer.rollout) == ("undecided", [0.05, 0.45], 4500)
    assert reason in end.aborted
    limits = AbortLimits(worse_by=0.01, accept_undecided=True)
    end, steps = rollout_steps(repository, (0.05, 1.0), lambda _: report, limits)
    assert (end.kind, steps) == ("done", [0.9, 1.0])


def linear_growth(start, growth, n_looks):
    return [start + growth * look for look in range(n_looks)]


@pytest.mark.parametrize(
    ("parts", "may_end"),
    [
        ([0.5] * 9, True),  # fewer than 10 looks
        ([0.5] * 10, False),
        ([0.0] * 29, True),  # no device has reported yet
        ([0.0] * 30, False),
        ([0.0] + [0.6] * 9 + [0.5] * 10, False),
        (linear_growth(0.0, 0.01, 20), True),
        # From 30 looks on the end must be at most 400 looks away: 0.5 - 39 g = 400 g.
        (linear_growth(0.5, 0.5 / 438.9, 40), True),
        (linear_growth(0.5, 0.5 / 439.1, 40), False),
        (linear_growth(0.0, 0.004, 199), True),
        (linear_growth(0.0, 0.004, 200), False),  # 200 looks are too many
    ],
)
def test_a_comparison_may_end_while_its_information_grows(parts, may_end):
    assert _may_end(parts, 10) == may_end


def test_not_compared_gives_each_figure_with_a_reason():
    limits = AbortLimits(worse_by=0.01)
    counts = {"errors": [(0.0, 1000.0)] * 60, "fallbacks": [(0.0, 1000.0)] * 60}
    without_audits = replace(fleet_report(60), figures=counts, others=counts)
    reasons = limits.not_compared(without_audits)
    assert list(reasons) == ["disagreement"]
    assert "0 devices with the release and 0 with other versions" in reasons["disagreement"]
    assert "gatewise edge --audit" in reasons["disagreement"]
    small_counts = {"errors": [(0.0, 20.0)] * 3, "fallbacks": [(0.0, 20.0)] * 3}
    reasons = limits.not_compared(replace(without_audits, figures=small_counts))
    assert set(reasons) == {"errors", "fallbacks", "disagreement"}
    assert "to detect 2 points above the limit" in reasons["errors"]
    assert "2 devices with the release" in limits.not_compared(fleet_report(2))["disagreement"]
    assert AbortLimits(failed=0.1).not_compared(without_audits) == {}


@pytest.mark.slow
def test_a_rollout_without_audits_reports_disagreement_as_not_compared(
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
def test_repo_status_counts_reports_and_rollback_checks_the_version(repository, endpoint, capsys):
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
    latest, previous = json.loads(capsys.readouterr().out)["releases"]
    assert (latest["running"], latest["refused"]) == (8, 2)
    shares = {"errors": 28 / 8000, "fallbacks": 0.02, "disagreement": 32 / 7200}
    assert latest.items() >= shares.items()
    assert (previous["running"], previous["refused"]) == (3, 0)
    # A rollback that names an earlier version of the repository is refused.
    repository.rollback("small/7")
    version = repository.version
    words = ["repo", "rollback", str(repository.folder), "small/8", "--at-version"]
    assert main([*words, str(version - 1)]) == 2
    assert f"it is at version {version}, not {version - 1}" in capsys.readouterr().err
    assert main([*words, str(version)]) == 0
    assert "no release of small is offered now" in capsys.readouterr().err
