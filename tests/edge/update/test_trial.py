"""A release on trial: what makes it pass, and what makes a device leave it."""

from __future__ import annotations

import threading

import msgspec
import pytest

from gatewise.errors import InputError
from gatewise_edge import Answer, SensorError
from gatewise_edge.update.trial import Trial
from tests.edge.update.conftest import EASY, PATIENCE
from tests.edge.virtual_time import Clock
from tests.support.small_bundle import FakeLink
from tests.support.waiting import wait_until

# -- its verdict, from answers alone -------------------------------------------------------


def seen(trial, good=0, bad=0):
    """Verdict of a trial that has observed some answers in time, then some errors."""
    for _ in range(good):
        trial.observe(took(1.0))
    for _ in range(bad):
        trial.observe(ValueError())
    return trial.verdict


def took(latency_ms):
    fields = {"class_index": 0, "probabilities": None, "route": "edge", "stage": 0, "cost": 0.0}
    return Answer(
        label=0, **fields, feature_cost=0.0, latency_ms=latency_ms, reason="", acquired=()
    )


def begun_trial(answers=20, seconds=30.0, deadline_ms=100.0, **counts):
    clock = Clock()
    trial = Trial(answers, seconds, clock=clock)
    trial.deadline_ms = deadline_ms
    trial.begin(**counts)
    clock.now += 1.0  # answers after this began in the trial
    return trial, clock


def test_it_passes_after_enough_answers_and_enough_time():
    trial, clock = begun_trial()
    assert seen(trial, good=20) is None
    clock.now += 28.9
    assert trial.verdict is None
    clock.now += 0.2
    assert trial.verdict == "passed"
    trial.end()
    assert trial.verdict is None
    assert seen(begun_trial(seconds=1.0)[0], good=20) == "passed"  # just as long
    late, _ = begun_trial(seconds=0.0)
    assert seen(late, good=19) is None
    assert seen(late, good=1) == "passed"


@pytest.mark.parametrize(
    ("good", "bad", "verdict"),
    [(0, 2, None), (0, 3, "failed"), (12, 3, None), (11, 3, "failed"), (16, 4, None)],
)
def test_it_fails_from_the_third_bad_answer_on_if_they_are_more_than_a_fifth(good, bad, verdict):
    assert seen(begun_trial()[0], good, bad) == verdict


@pytest.mark.parametrize(("good", "bad", "verdict"), [(5, 15, None), (4, 13, "failed")])
def test_bad_answers_are_compared_with_those_of_the_version_before(good, bad, verdict):
    trial, _ = begun_trial(before=(10, 20))  # half of them were bad: three quarters may be
    assert trial.before == (10, 20)
    assert seen(trial, good, bad) == verdict


def test_answers_before_it_begins_are_of_the_version_before():
    trial = Trial(20, 30.0, clock=Clock())
    trial.deadline_ms = 100.0
    assert not trial.observe(took(100.0))
    assert not trial.observe(took(100.1))
    assert not trial.observe(SensorError("a", "dead"))
    assert trial.before == (2, 3)
    for _ in range(300):
        trial.observe(took(1.0))
    assert trial.before == (0, 200)
    trial.begin()
    assert trial.before == (0, 200)
    assert (trial.good, trial.bad, trial.verdict) == (0, 0, None)


def test_an_instance_begun_before_it_does_not_count():
    trial, _ = begun_trial(deadline_ms=5000.0)
    assert not trial.observe(took(1000.1))
    assert trial.observe(took(1000.0))  # the first good answer is to be noted
    assert not trial.observe(took(1.0))
    assert (trial.good, trial.bad) == (2, 0)


def test_it_goes_on_from_the_counts_of_a_start_before():
    trial, clock = begun_trial()
    trial.begin(good=7, bad=1, seconds=12.5)
    clock.now += 2.5
    assert trial.counts == {"good": 7, "bad": 1, "seconds": 15.0}
    trial.end()
    assert trial.seconds == 12.5


# -- of a device -------------------------------------------------------------------------------


def test_one_late_answer_and_sensors_that_failed_before_are_no_fault(run, fleet, clock):
    """A good update was lost to an answer 312 ms late."""
    device = run(clock=clock)
    for _ in range(50):
        device.updater.observe(SensorError("a", "dead"))
    fleet.publish("8")
    device.reaches("8")
    answer = device.device.answer(EASY)
    clock.now += 10.0
    device.updater.observe(msgspec.structs.replace(answer, latency_ms=5312.0))
    for _ in range(50):
        device.updater.observe(SensorError("a", "dead"))
    device.passes()
    assert device.version == "8"
    device.counts("passed")


@pytest.mark.parametrize("error", [InputError("no row"), SensorError("a", "dead"), ValueError()])
def test_version_that_fits_no_row_is_rolled_back(on_trial, error, run, server):
    """Errors of any class: 3,861 of 3,861 rows were errors and the trial went on."""
    for _ in range(5):
        on_trial.updater.observe(error)
    wait_until(lambda: on_trial.version == "7", "the way back", PATIENCE)
    on_trial.counts("rolled_back")
    on_trial.close()
    asked = server.fetched("8")
    again = run(urls=[server.url])
    again.settled()
    assert (again.version, server.fetched("8")) == ("7", asked)


def test_the_status_says_which_release_failed(run, fleet):
    """The operator's abort threshold counts these."""
    statuses = []
    link = FakeLink()
    link.watch = lambda topic, take: None
    link.set_status = statuses.append
    offer = fleet.publish("8")
    device = run(link=link)
    device.reaches("8")
    device.fails()
    assert statuses == ["small/7", "small/8", f"small/7 refused {offer.digest[:12]}"]
    device.close()
    run(link=link)
    assert statuses[-1] == statuses[-2]


def test_a_trial_goes_on_over_short_wake_ups(run, on_trial):
    """A device of 6 answers a wake-up never ended its trial."""
    device = on_trial
    for _ in range(6):
        for _ in range(6):
            device.device.answer(EASY)
        device.close()
        device = run(trial_answers=20)
        assert device.version == "8"
        if not device.store.state.on_trial:
            break
    wait_until(lambda: not device.store.state.on_trial, "the trial", PATIENCE)
    assert device.store.state.proved


def test_a_restart_does_not_forget_how_the_version_before_did(run, fleet, clock):
    """A device that is late for 40 % as a rule refused each release after a restart."""
    how = {"trial_answers": 20, "clock": clock}
    device = run(**how)
    answer = device.device.answer(EASY)

    def answers(number):
        for i in range(number):
            clock.now += 10.0
            late_ms = 5e3 * (i % 5 < 2)
            device.updater.observe(msgspec.structs.replace(answer, latency_ms=1.0 + late_ms))

    answers(100)
    fleet.publish("8")
    device.reaches("8")
    answers(10)
    device.close()
    device = run(**how)
    answers(25)
    device.counts("passed")
    assert device.version == "8"
    assert device.store.state.refused == ()


def test_time_without_running_does_not_count(run, fleet, clock):
    fleet.publish("8")
    how = {"trial_answers": 1, "trial_seconds": 30.0, "clock": clock}
    device = run(**how)
    device.reaches("8")
    device.device.answer(EASY)
    clock.now += 29.0
    device.updater.observe(device.device.answer(EASY))
    assert device.store.state.on_trial
    device.close()
    assert 29.0 <= device.store.state.seconds < 30.0
    clock.now += 1e6  # asleep
    again = run(**how)
    again.device.answer(EASY)
    assert again.store.state.on_trial
    clock.now += 2.0
    again.passes()


def test_starts_without_an_answer_put_a_release_off_and_not_away(run, on_trial, monkeypatch):
    """A broker that was away at boot used three starts up in ten seconds."""
    monkeypatch.setattr("gatewise_edge.update.updater._SAVE_SECONDS", 0.2)
    device = on_trial
    device.updater.close()  # before the store, which its thread would lock again
    for _ in range(6):  # killed: nothing is closed in good order
        device.store = type(device.store)(device.store.folder, pause=0.2)
        paths = device.store.start()
    assert paths == []
    assert device.store.state.waits == 1
    device.updater.store = device.store
    device.close()
    again = run(pause=0.2)
    assert again.version == "7"

    def tried_again():
        again.news()
        return again.version == "8"

    wait_until(tried_again, "version 8 once more", PATIENCE)
    again.passes()
    assert again.store.state.waits == 0


def test_it_goes_on_after_thousands_of_failures(run, fleet, server):
    """The pause doubled until the number was too large, and the thread ended."""
    server.behave[""] = lambda handler: handler.send_error(500)
    device = run(urls=[server.url])
    device.updater._n_failures = 5000
    device.settled()
    server.behave.clear()
    fleet.publish("8")
    device.reaches("8")


def test_a_version_not_proved_never_becomes_the_way_back(on_trial, fleet):
    on_trial.device.answer(EASY)
    fleet.publish("9")
    on_trial.reaches("9")
    on_trial.fails()
    assert (on_trial.version, on_trial.store.state.proved) == ("7", "")


def test_slow_server_does_not_delay_the_rollback_of_a_failed_version(on_trial, server):
    hangs, release = threading.Event(), threading.Event()
    server.behave[""] = lambda handler: (hangs.set(), release.wait(PATIENCE))
    on_trial.news()
    assert hangs.wait(PATIENCE)
    for _ in range(5):
        on_trial.updater.observe(ValueError())
    wait_until(lambda: on_trial.version == "7", "the way back", 5.0)
    release.set()
