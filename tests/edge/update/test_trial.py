"""The trial of a release: when it passes, and when the device rolls it back."""

from __future__ import annotations

import re
import threading

import msgspec
import pytest

from gatewise.errors import InputError
from gatewise_edge import Answer, SensorError
from gatewise_edge.update.trial import Trial
from gatewise_export.bundle.errors import BundleError
from tests.edge.update.conftest import N_FAILING_ERRORS, TIMEOUT_S
from tests.edge.virtual_time import Clock
from tests.support.small_bundle import SURE_ROW, FakeLink
from tests.support.waiting import wait_until

# -- the verdict ---------------------------------------------------------------------------


def verdict_after(trial, n_good=0, n_bad=0):
    """Return the verdict of a trial after `n_good` answers in time and `n_bad` errors."""
    for _ in range(n_good):
        trial.observe(make_answer(1.0))
    for _ in range(n_bad):
        trial.observe(ValueError())
    return trial.verdict


def make_answer(latency_ms):
    return Answer(
        label=0, class_index=0, probabilities=None, route="edge", stage=0, cost=0.0,
        feature_cost=0.0, latency_ms=latency_ms, reason="", acquired=(),
    )  # fmt: skip


def begin_trial(min_answers=20, min_seconds=30.0, deadline_ms=100.0, **counts):
    """Begin a trial one second ago; return it and its clock."""
    clock = Clock()
    trial = Trial(min_answers, min_seconds, clock=clock)
    trial.deadline_ms = deadline_ms
    trial.begin(**counts)
    clock.now += 1.0  # so that answers of up to 1 s began within the trial
    return trial, clock


def test_trial_passes_after_enough_answers_and_enough_time():
    trial, clock = begin_trial()  # it needs 20 answers and 30 s, of which 1 s has passed
    assert verdict_after(trial, n_good=20) is None
    clock.now += 28.9
    assert trial.verdict is None
    clock.now += 0.2
    assert trial.verdict == "passed"
    trial.end()
    assert trial.verdict is None
    trial, _ = begin_trial(min_seconds=1.0)  # exactly the time that has passed
    assert verdict_after(trial, n_good=20) == "passed"
    trial, _ = begin_trial(min_seconds=0.0)
    assert verdict_after(trial, n_good=19) is None
    assert verdict_after(trial, n_good=1) == "passed"


@pytest.mark.parametrize(
    ("n_good", "n_bad", "previous_counts", "verdict"),
    [
        (0, 2, (0, 0), None),
        (0, 3, (0, 0), "failed"),
        (12, 3, (0, 0), None),  # 3 of 15 are a fifth
        (11, 3, (0, 0), "failed"),
        (16, 4, (0, 0), None),  # 4 of 20 are a fifth
        # Half of the previous answers were bad. 1.5 times as many, 75 %, are tolerated.
        (5, 15, (10, 20), None),  # 75 %
        (4, 13, (10, 20), "failed"),  # 76 %
    ],
)
def test_trial_fails_with_three_bad_answers_if_their_share_is_too_large(
    n_good, n_bad, previous_counts, verdict
):
    trial, _ = begin_trial(previous_counts=previous_counts)
    assert trial.previous_counts == previous_counts
    assert verdict_after(trial, n_good, n_bad) == verdict


def test_answers_before_the_trial_count_for_the_previous_release():
    trial = Trial(20, 30.0, clock=Clock())
    trial.deadline_ms = 100.0
    assert not trial.observe(make_answer(100.0))
    assert not trial.observe(make_answer(100.1))
    assert not trial.observe(SensorError("a", "dead"))
    assert trial.previous_counts == (2, 3)
    for _ in range(300):
        trial.observe(make_answer(1.0))
    assert trial.previous_counts == (0, 200)  # of the latest 200 answers
    trial.begin()
    assert trial.previous_counts == (0, 200)
    assert (trial.n_good, trial.n_bad, trial.verdict) == (0, 0, None)


def test_instance_that_began_before_the_trial_does_not_count():
    trial, _ = begin_trial(deadline_ms=5000.0)
    # The trial began 1000 ms ago.
    assert not trial.observe(make_answer(1000.1))
    assert trial.observe(make_answer(1000.0))  # the updater acts on the first good answer
    assert not trial.observe(make_answer(1.0))
    assert (trial.n_good, trial.n_bad) == (2, 0)


def test_trial_continues_with_the_counts_of_an_earlier_start():
    trial, clock = begin_trial()
    trial.begin(n_good=7, n_bad=1, trial_seconds=12.5)
    clock.now += 2.5
    assert trial.counts == {"n_good": 7, "n_bad": 1, "trial_seconds": 15.0}
    trial.end()
    assert trial.seconds == 12.5


# -- in a device ---------------------------------------------------------------------------


def test_release_passes_despite_one_late_answer_and_sensors_that_failed_before(
    run_device, fleet, clock
):
    """Regression: an answer 312 ms late used to roll back a good release."""
    updated_device = run_device(clock=clock)
    for _ in range(50):  # far more than the three bad answers that fail a trial
        updated_device.updater.observe(SensorError("a", "dead"))
    fleet.publish("8")
    updated_device.wait_for_version("8")
    answer = updated_device.device.answer(SURE_ROW)
    clock.now += 10.0  # so that the late answer, whose deadline was 5 s, began within the trial
    updated_device.updater.observe(msgspec.structs.replace(answer, latency_ms=5312.0))
    for _ in range(50):
        updated_device.updater.observe(SensorError("a", "dead"))
    updated_device.pass_trial()
    assert updated_device.version == "8"
    updated_device.wait_for_count("passed")


@pytest.mark.parametrize("error", [InputError("no row"), SensorError("a", "dead"), ValueError()])
def test_version_with_only_errors_is_rolled_back(
    device_on_trial, error, run_device, server, caplog
):
    """Regression: a release on which all 3,861 rows failed once got no verdict."""
    for _ in range(N_FAILING_ERRORS):
        device_on_trial.updater.observe(error)
    wait_until(lambda: device_on_trial.version == "7", "the rollback", TIMEOUT_S)
    device_on_trial.wait_for_count("rolled_back")
    assert re.search(r"failed its trial: (\d+) of \1 answers were errors or late", caplog.text)
    device_on_trial.close()
    fetched_files = server.requested_files("8")
    restarted_device = run_device(urls=[server.url])
    restarted_device.wait_for_check()
    assert (restarted_device.version, server.requested_files("8")) == ("7", fetched_files)


@pytest.fixture
def statuses():
    return []


@pytest.fixture
def link(statuses):
    """A link that appends each status of the device to `statuses`."""
    link = FakeLink()
    link.watch = lambda topic, handle: None
    link.set_status = statuses.append
    return link


def test_status_names_the_release_that_failed(run_device, fleet, link, statuses):
    """A rollout counts these failures against its limit."""
    offer = fleet.publish("8")
    updated_device = run_device(link=link)
    updated_device.wait_for_version("8")
    updated_device.fail_trial()
    assert statuses == ["small/7", "small/8 trial", f"small/7 refused {offer.digest[:12]}"]
    updated_device.close()
    run_device(link=link)
    assert statuses[-1] == statuses[-2]


def test_status_says_when_a_trial_has_ended(run_device, fleet, link, statuses):
    fleet.publish("8")
    updated_device = run_device(link=link)
    updated_device.wait_for_version("8")
    updated_device.pass_trial()
    updated_device.wait_for_count("passed")
    assert statuses[1] == "small/8 trial"
    assert statuses[-1].startswith("small/8 seen=")
    assert "trial" not in statuses[-1]


def test_trial_continues_over_short_runs(run_device, device_on_trial):
    """Regression: a device with 6 answers per run never ended its trial."""
    updated_device = device_on_trial  # it needs 20 answers
    for _ in range(6):
        for _ in range(6):
            updated_device.device.answer(SURE_ROW)
        updated_device.close()
        updated_device = run_device(trial_answers=20)
        assert updated_device.version == "8"
        if not updated_device.store.state.is_on_trial:
            break
    wait_until(lambda: not updated_device.store.state.is_on_trial, "the trial", TIMEOUT_S)
    assert updated_device.store.state.proved


def test_restart_keeps_the_counts_of_the_previous_release(run_device, fleet, clock):
    """Regression: a device with 40 % late answers refused each release after a restart."""
    run_options = {"trial_answers": 20, "clock": clock}
    updated_device = run_device(**run_options)
    answer = updated_device.device.answer(SURE_ROW)

    def observe_answers(n_answers):
        """Observe answers; two in five of them are late."""
        for answer_number in range(n_answers):
            clock.now += 10.0  # so that each late answer began within the trial
            latency_ms = 5001.0 if answer_number % 5 < 2 else 1.0  # the deadline is 5000 ms
            updated_device.updater.observe(msgspec.structs.replace(answer, latency_ms=latency_ms))

    observe_answers(100)
    fleet.publish("8")
    updated_device.wait_for_version("8")
    observe_answers(10)
    updated_device.close()
    updated_device = run_device(**run_options)
    observe_answers(25)
    updated_device.wait_for_count("passed")
    assert updated_device.version == "8"
    assert updated_device.store.state.refused == ()


def test_time_without_running_does_not_count(run_device, fleet, clock):
    fleet.publish("8")
    run_options = {"trial_answers": 1, "trial_seconds": 30.0, "clock": clock}
    updated_device = run_device(**run_options)
    updated_device.wait_for_version("8")
    updated_device.device.answer(SURE_ROW)
    clock.now += 29.0  # of the 30 s of a trial
    updated_device.updater.observe(updated_device.device.answer(SURE_ROW))
    assert updated_device.store.state.is_on_trial
    updated_device.close()
    assert 29.0 <= updated_device.store.state.trial_seconds < 30.0
    clock.now += 1e6  # the device is off
    restarted_device = run_device(**run_options)
    restarted_device.device.answer(SURE_ROW)
    assert restarted_device.store.state.is_on_trial
    clock.now += 2.0
    restarted_device.pass_trial()


def test_release_without_an_answer_in_several_starts_is_put_off_and_tried_again(
    run_device, device_on_trial, monkeypatch
):
    """Regression: a broker that was down at boot used up three starts in ten seconds."""
    monkeypatch.setattr("gatewise_edge.update.updater._SAVE_SECONDS", 0.2)
    updated_device = device_on_trial
    updated_device.updater.close()  # its thread would lock the new store
    # The sixth start without an answer puts the release off. Each start is killed, so that nothing
    # is closed.
    for _ in range(6):
        updated_device.store = type(updated_device.store)(
            updated_device.store.folder, first_pause_s=0.2
        )
        paths = updated_device.store.start()
    assert paths == []
    assert updated_device.store.state.n_postponements == 1
    updated_device.updater.store = updated_device.store
    updated_device.close()
    restarted_device = run_device(first_pause_s=0.2)
    assert restarted_device.version == "7"

    def runs_version_8():
        restarted_device.announce()
        return restarted_device.version == "8"

    wait_until(runs_version_8, "version 8 to be tried again", TIMEOUT_S)
    restarted_device.pass_trial()
    assert restarted_device.store.state.n_postponements == 0


def test_updater_continues_after_thousands_of_failures(run_device, fleet, server):
    """Regression: doubling the pause overflowed, which ended the thread."""
    server.handlers[""] = lambda handler: handler.send_error(500)
    updated_device = run_device(urls=[server.url])
    updated_device.updater._schedule.n_failures = 5000  # 2.0 ** 5000 is larger than any float
    updated_device.wait_for_check()
    server.handlers.clear()
    fleet.publish("8")
    updated_device.wait_for_version("8")


def test_answers_while_another_release_is_refused_do_not_count_for_the_previous_one(
    device_on_trial, fleet, monkeypatch
):
    updater = device_on_trial.updater
    previous_counts = updater._trial.previous_counts

    def observe_an_error_and_fail(digest):
        updater.observe(ValueError())
        raise BundleError("damaged")

    monkeypatch.setattr(updater._release, "_open_bundle", observe_an_error_and_fail)
    fleet.publish("9")
    device_on_trial.wait_for_refusal("bundle", "8")
    assert updater._trial.is_running
    assert updater._trial.previous_counts == previous_counts


def test_rollback_never_returns_to_a_release_that_has_not_passed(device_on_trial, fleet):
    device_on_trial.device.answer(SURE_ROW)
    fleet.publish("9")
    device_on_trial.wait_for_version("9")
    device_on_trial.fail_trial()
    assert (device_on_trial.version, device_on_trial.store.state.proved) == ("7", "")


def test_slow_server_does_not_delay_the_rollback_of_a_failed_version(device_on_trial, server):
    is_hanging = threading.Event()
    may_return = threading.Event()
    server.handlers[""] = lambda handler: (is_hanging.set(), may_return.wait(TIMEOUT_S))
    device_on_trial.announce()
    assert is_hanging.wait(TIMEOUT_S)
    for _ in range(N_FAILING_ERRORS):
        device_on_trial.updater.observe(ValueError())
    # 5 s are less than the 20 s after which a fetch ends by itself.
    wait_until(lambda: device_on_trial.version == "7", "the rollback", 5.0)
    may_return.set()
