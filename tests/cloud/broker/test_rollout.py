"""Rollouts in steps, which continue or stop depending on the reports of devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gatewise.errors import InputError
from gatewise_cloud.broker.abort_limits import AbortLimits, read_share
from gatewise_cloud.broker.rollout import _may_become_decided, planned_shares, roll_out
from gatewise_cloud.broker.rollout_report import RolloutReport
from gatewise_edge.link.topics import status_topic
from gatewise_export.repository.release import FULL_ROLLOUT
from gatewise_export.repository.repository import Repository
from tests.support.small_bundle import write_bundle


def make_metric_counts(n_devices, n_disagreeing):
    """Make counts of devices with 1,000 audited answers each; some of these disagree."""
    return {"errors": [], "fallbacks": [], "disagreement": [(n_disagreeing, 1000.0)] * n_devices}


def make_device_ids(n_devices, prefix="new"):
    return frozenset(f"{prefix}-{i}" for i in range(n_devices))


def make_report(
    n_running, n_refusing=0, n_disagreeing=20.0, n_other_disagreeing=20.0, n_others=190
):
    """Make the report of a fleet in which each device has answered 1,000 instances."""
    return RolloutReport(
        running_devices=make_device_ids(n_running),
        refusing_devices=make_device_ids(n_refusing, "bad"),
        other_devices=make_device_ids(n_refusing, "bad") | make_device_ids(n_others, "old"),
        offered_devices=make_device_ids(n_running) | make_device_ids(n_refusing, "bad"),
        release_counts=make_metric_counts(n_running, n_disagreeing),
        other_counts=make_metric_counts(n_others, n_other_disagreeing),
    )


def roll_out_shares(repository, shares, report_at, limits=AbortLimits(worse_by=0.01)):  # noqa: B008
    """Roll out small/8; return its end and the offered shares."""
    return _roll_out(
        repository,
        shares,
        limits,
        read_report=lambda offer: report_at(offer.rollout / FULL_ROLLOUT),
    )


def _roll_out(repository, shares, limits, **options):
    offered_shares = []
    end = roll_out(
        repository,
        "small/8",
        shares,
        limits,
        announce=lambda offer: offered_shares.append(offer.rollout / FULL_ROLLOUT),
        **options,
    )
    return end, offered_shares


@pytest.mark.parametrize("n_models", [1, 2])
def test_an_interrupted_rollout_of_a_good_release_can_be_completed(repository, tmp_path, n_models):
    if n_models == 2:  # a release of another model has the same serial and was offered before
        for version in ("a", "b"):
            repository.add(write_bundle(tmp_path / version, name="other", version=version).path)
            repository.publish(f"other/{version}")

    def interrupt_once(share):
        nonlocal is_interrupted
        if share == 0.25 and not is_interrupted:
            is_interrupted = True
            raise KeyboardInterrupt
        return make_report(50)

    is_interrupted = False
    with pytest.raises(KeyboardInterrupt):
        roll_out_shares(repository, (0.05, 0.25, 1.0), interrupt_once)
    end, offered_shares = roll_out_shares(repository, (0.05, 0.25, 1.0), interrupt_once)
    assert (end.abort_reason, end.offer.rollout, offered_shares) == (
        None,
        FULL_ROLLOUT,
        [0.25, 0.9, 1.0],
    )


@pytest.mark.parametrize(
    ("report", "limits", "reason", "expected_shares"),
    # 20 of 1,000 answers disagree with the other versions.
    [
        (
            make_report(10, n_disagreeing=70.0),
            {"worse_by": 0.01},
            "disagreement 7.0 %, 5.0 points more",
            [0.05, 0.0],
        ),
        (make_report(10, n_disagreeing=70.0), {"worse_by": 0.06}, None, [0.05, 0.9, 1.0]),
        (make_report(10, 4), {"failed": 0.2}, "failed on 4 of 14", [0.05, 0.0]),
        (make_report(10, 2), {"failed": 0.0}, None, [0.05, 1.0]),
    ],
)
def test_limits_and_missing_evidence_stop_a_rollout(
    repository, report, limits, reason, expected_shares
):
    limits = AbortLimits(**limits)
    end, offered_shares = roll_out_shares(repository, (0.05, 1.0), lambda _: report, limits)
    assert offered_shares == expected_shares
    if reason is None:
        assert (end.abort_reason, end.outcome) == (None, "done")
    else:
        assert reason in end.abort_reason
        assert end.outcome == "withdrawn"
        assert str(repository.preferred_release("small")) == "small/7"


class Fleet:
    """Statuses of devices that install a release at the first report after it is offered."""

    def __init__(self, n_devices, n_offline=0):
        self.statuses = {status_topic(f"pi-{i}"): "online small/7" for i in range(n_devices)}
        self.statuses |= {status_topic(f"away-{i}"): "offline" for i in range(n_offline)}
        self.n_reports = 0

    def install_offer(self, offer, status_with):
        """Install an offer on its devices, which get the status `status_with(offer)`."""
        self.n_reports += 1
        for topic, status in self.statuses.items():
            if status == "online small/7" and offer.is_for(topic.split("/")[2]):
                self.statuses[topic] = status_with(offer)
        return RolloutReport.from_statuses(self.statuses, offer)


def roll_out_to(repository, fleet, status_with, *, has_baseline=False):
    """Roll out small/8 to a fleet; return its end and the offered shares."""
    baseline = None
    if has_baseline:
        baseline = RolloutReport.from_statuses(fleet.statuses, repository.find("small/8"))
    return _roll_out(
        repository,
        (0.05, 0.25, 1.0),
        AbortLimits(failed=0.05),
        read_report=lambda offer: fleet.install_offer(offer, status_with),
        baseline=baseline,
    )


@pytest.mark.parametrize(
    ("status", "has_baseline"),
    # devices may also postpone the release, or have no bundle yet
    [("offline", False), ("offline", True), ("online small/7", False), ("online", False)],
)
def test_a_release_that_kills_its_process_stops_at_the_first_step(repository, status, has_baseline):
    fleet = Fleet(100)
    end, offered_shares = roll_out_to(
        repository, fleet, lambda _: status, has_baseline=has_baseline
    )
    assert (end.outcome, offered_shares) == ("no-evidence", [0.05, 0.0])
    assert "release runs on 0 devices" in end.abort_reason
    assert fleet.n_reports == 10  # after which there is no evidence


def test_devices_that_go_offline_with_a_release_count_as_failures(repository):
    fleet = Fleet(200)
    silent_topics = []

    def install_and_die(offer):
        # After one step with the release.
        if offer.rollout == 0.25 * FULL_ROLLOUT and not silent_topics:
            statuses = fleet.statuses.items()
            silent_topics.extend(topic for topic, status in statuses if status == f"online {offer}")
            fleet.statuses |= dict.fromkeys(silent_topics, "offline")
        return f"online {offer}"

    end, offered_shares = roll_out_to(repository, fleet, install_and_die)
    assert (end.outcome, offered_shares) == ("withdrawn", [0.05, 0.25, 0.0])
    assert f"{len(silent_topics)} of which fell silent" in end.abort_reason


@pytest.mark.parametrize(("n_devices", "n_offline"), [(70, 30), (8, 0), (1, 0)])
def test_a_rollout_ignores_devices_that_were_offline_before(repository, n_devices, n_offline):
    fleet = Fleet(n_devices, n_offline)
    end, offered_shares = roll_out_to(
        repository, fleet, lambda offer: f"online {offer}", has_baseline=True
    )
    assert (end.outcome, offered_shares, end.offer.rollout) == (
        "done",
        [0.05, 0.25, 1.0],
        FULL_ROLLOUT,
    )


@pytest.mark.parametrize("fleet", [Fleet(0), Fleet(0, 5)])
def test_a_fleet_without_reports_gives_no_evidence(repository, fleet):
    end, _ = roll_out_to(repository, fleet, lambda offer: f"online {offer}", has_baseline=True)
    assert end.outcome == "no-evidence"


@pytest.mark.parametrize(
    ("reports", "outcome", "expected_shares"),
    [
        ([None, None, make_report(10), None, make_report(200)], "done", [0.05, 1.0]),
        ([make_report(10), *[None] * 10], "no-evidence", [0.05, 1.0, 0.0]),
    ],
    ids=["for some reports", "for ten reports"],
)
def test_rollout_survives_a_broker_that_is_down_for_some_time(
    repository, reports, outcome, expected_shares
):
    pending_reports = iter(reports)
    end, offered_shares = roll_out_shares(
        repository, [0.05, 1.0], lambda share: next(pending_reports), AbortLimits(failed=0.05)
    )
    assert (end.outcome, offered_shares) == (outcome, expected_shares)
    assert next(pending_reports, "none left") == "none left"


def test_publishing_another_release_ends_the_rollout(repository, tmp_path):
    folder = repository.folder
    Repository(folder).add(write_bundle(tmp_path / "v9", version="9").path)

    def publish_another(offer):
        Repository(folder).publish("small/9")
        return f"online {offer}"

    end, offered_shares = roll_out_to(repository, Fleet(100), publish_another)
    assert (end.outcome, end.abort_reason) == ("superseded", "small/9 is offered in its place")
    assert offered_shares == [0.05]
    assert {offer.version: offer.rollout for offer in Repository(folder).offers()} == {
        "9": FULL_ROLLOUT, "8": 0.05 * FULL_ROLLOUT, "7": FULL_ROLLOUT,
    }  # fmt: skip


def test_adding_another_release_does_not_end_the_rollout(repository, tmp_path):
    folder = repository.folder
    paths_to_add = [write_bundle(tmp_path / "v9", version="9").path]

    def add_another(offer):
        if paths_to_add:
            Repository(folder).add(paths_to_add.pop())
        return f"online {offer}"

    assert roll_out_to(repository, Fleet(100), add_another)[0].outcome == "done"


def test_an_abort_withdraws_only_its_own_release(repository, tmp_path):
    """An operator withdraws the release or publishes another one just before the abort."""
    folder = repository.folder
    Repository(folder).add(write_bundle(tmp_path / "v9", version="9").path)

    def refuse_after(operator_action):
        def status_with(offer):
            operator_action()
            return f"online small/7 refused {offer.digest[:12]}"

        return status_with

    def withdraw():
        Repository(folder).rollback("small/8")

    end, _ = roll_out_to(repository, Fleet(100), refuse_after(withdraw))
    assert (end.outcome, end.offer.rollout) == ("withdrawn", 0)
    assert str(repository.preferred_release("small")) == "small/7"
    end, _ = roll_out_to(
        repository, Fleet(100), refuse_after(lambda: Repository(folder).publish("small/9"))
    )
    assert (end.outcome, str(end.offer)) == ("withdrawn", "small/8")
    assert str(repository.preferred_release("small")) == "small/9"


def test_invalid_shares_and_limits_are_refused(repository):
    with pytest.raises(InputError, match="must rise"):
        roll_out_shares(repository, (0.5, 0.1), lambda _: RolloutReport())
    with pytest.raises(InputError, match="must rise"):
        roll_out_shares(repository, (), lambda _: RolloutReport())
    with pytest.raises(InputError, match="a rollout of 100"):  # 100 instead of 100%
        roll_out_shares(repository, (0.3, 100.0), lambda _: RolloutReport())
    assert [offer.rollout for offer in repository.offers()] == [FULL_ROLLOUT, 0]
    with pytest.raises(InputError, match="failed: must be a number below 1"):
        AbortLimits(failed=1.5)


def test_planned_shares_start_below_half_and_leave_a_tenth_until_the_end():
    limits = AbortLimits(worse_by=0.01)
    assert planned_shares([0.05, 0.25, 1.0], limits) == [0.05, 0.25, 0.9, 1.0]
    assert planned_shares([1.0], limits) == [0.45, 0.9, 1.0]
    assert planned_shares([0.6, 1.0], limits) == [0.45, 0.6, 0.9, 1.0]
    assert planned_shares([0.1, 0.95, 1.0], limits) == [0.1, 0.95, 1.0]
    assert planned_shares([0.1, 0.2], limits) == [0.1, 0.2]
    assert planned_shares([1.0], AbortLimits(failed=0.05)) == [1.0]


@pytest.mark.parametrize(("text", "share"), [("10%", 0.1), ("0.1", 0.1), ("100%", 1.0)])
def test_a_share_is_read_from_a_percentage_or_a_number(text, share):
    assert read_share(text) == share
    with pytest.raises(InputError, match="is not a share"):
        read_share(f"{text} of all")


def test_the_answers_to_detect_a_loss_need_three_devices():
    limits = AbortLimits(worse_by=0.01)
    for n_devices, metrics in ((2, []), (3, ["disagreement"])):
        baseline = make_report(10, n_others=n_devices)
        assert list(limits.answers_to_detect(baseline)) == metrics


@pytest.mark.parametrize("half", [0.5, 0.6])
def test_an_undecided_comparison_ends_before_a_step_to_half_of_the_devices(repository, half):
    report = make_report(2, n_disagreeing=70.0)
    end, offered_shares = roll_out_shares(repository, (0.05, half), lambda _: report)
    assert (end.outcome, offered_shares) == ("undecided", [0.05, 0.45])


def test_devices_that_report_no_counts_give_no_evidence(repository):
    """If no other device reports figures either, the rollout completes without a comparison."""
    report_without_counts = replace(make_report(10), release_counts={})
    end, offered_shares = roll_out_shares(repository, (0.05, 1.0), lambda _: report_without_counts)
    assert (end.outcome, offered_shares) == ("no-evidence", [0.05, 0.0])
    assert "no evidence in 30 reports" in end.abort_reason
    end, _ = roll_out_shares(
        repository, (0.05, 1.0), lambda _: replace(report_without_counts, other_counts={})
    )
    assert end.outcome == "done"


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (make_report(2, n_disagreeing=70.0), "disagreement: 2 devices with the release"),
        (
            replace(
                make_report(40),
                release_counts={"disagreement": [(0.0, 500.0), (60.0, 500.0)] * 20},
            ),
            "disagreement: devices differ too much",
        ),
    ],
)
def test_an_undecided_comparison_keeps_the_release_below_half(repository, report, reason):
    end, offered_shares = roll_out_shares(repository, (0.05, 1.0), lambda _: report)
    assert (end.outcome, offered_shares) == ("undecided", [0.05, 0.45])
    assert end.offer.rollout == 0.45 * FULL_ROLLOUT
    assert reason in end.abort_reason
    limits = AbortLimits(worse_by=0.01, accept_undecided=True)
    end, offered_shares = roll_out_shares(repository, (0.05, 1.0), lambda _: report, limits)
    assert (end.outcome, offered_shares) == ("done", [0.9, 1.0])


def make_fractions(start, growth, n_reports):
    """Make the information fractions of reports, which grow linearly."""
    return [start + growth * i for i in range(n_reports)]


@pytest.mark.parametrize(
    ("fractions", "may_become_decided"),
    [
        ([0.5] * 9, True),  # fewer than 10 reports
        ([0.5] * 10, False),
        ([0.0] * 29, True),  # no device has reported yet
        ([0.0] * 30, False),
        ([0.0] + [0.6] * 9 + [0.5] * 10, False),
        (make_fractions(0.0, 0.01, 20), True),
        # From 30 reports on the end must be at most 400 reports away: 0.5 - 39 g = 400 g.
        (make_fractions(0.5, 0.5 / 438.9, 40), True),
        (make_fractions(0.5, 0.5 / 439.1, 40), False),
        (make_fractions(0.0, 0.004, 199), True),
        (make_fractions(0.0, 0.004, 200), False),  # 200 reports are too many
    ],
)
def test_a_comparison_may_end_while_its_information_grows(fractions, may_become_decided):
    assert _may_become_decided(fractions, 10) == may_become_decided


def test_undecided_metrics_have_reasons():
    limits = AbortLimits(worse_by=0.01)
    counts = {"errors": [(0.0, 1000.0)] * 60, "fallbacks": [(0.0, 1000.0)] * 60}
    report_without_audits = replace(make_report(60), release_counts=counts, other_counts=counts)
    reasons = limits.undecided_reasons(report_without_audits)
    assert list(reasons) == ["disagreement"]
    assert "0 devices with the release and 0 with other versions" in reasons["disagreement"]
    assert "gatewise edge --audit" in reasons["disagreement"]
    small_counts = {"errors": [(0.0, 20.0)] * 3, "fallbacks": [(0.0, 20.0)] * 3}
    reasons = limits.undecided_reasons(replace(report_without_audits, release_counts=small_counts))
    assert set(reasons) == {"errors", "fallbacks", "disagreement"}
    assert "to detect 2 points above the limit" in reasons["errors"]
    assert "2 devices with the release" in limits.undecided_reasons(make_report(2))["disagreement"]
    assert AbortLimits(failed=0.1).undecided_reasons(report_without_audits) == {}
