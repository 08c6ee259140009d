"""A running device is updated from a repository, and goes back by itself when it must."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from gatewise.errors import InputError
from gatewise_edge import SensorError
from gatewise_export.repository.release import UpdateError
from tests.edge.device.test_installed import miscomputing, reordered
from tests.edge.update.conftest import EASY, PATIENCE
from tests.support.small_bundle import FakeLink, write_bundle
from tests.support.waiting import wait_until


def test_a_release_is_taken_proved_and_left_again(run, fleet, server):
    device = run(urls=[server.url])
    for version in ("8", "9"):
        fleet.publish(version)
        device.reaches(version)
        assert device.store.state.on_trial
        device.passes()
    asked = len(server.fetched("8"))
    fleet.repository.rollback()
    device.reaches("8")
    assert len(server.fetched("8")) == asked  # it is still there
    device.passes()
    fleet.repository.rollback()
    device.reaches("7")  # nothing is offered: the bundle that it was set up with
    counters = device.updater.counters
    assert (counters["taken"], counters["passed"], counters["rolled_back"]) == (3, 3, 0)
    assert device.updater.trouble is None
    assert list(device.store.partial.iterdir()) == []


def test_only_files_that_changed_are_fetched(run, fleet, server):
    """The stages and the sample are those of the first bundle: their hashes say so."""
    device = run(urls=[server.url])
    fleet.publish("8")
    device.reaches("8")
    assert server.fetched("8") == ["release.json", "manifest.json"]
    held = {path.name for path in device.device.bundle.path.iterdir()}
    assert "cloud.onnx" not in held
    assert "stage_0.onnx" in held


def test_a_rollout_reaches_its_share_of_the_fleet_and_grows(fleet):
    offer = fleet.publish("8", rollout=0.1)
    devices = [f"pi-{i}" for i in range(4000)]
    first = {d for d in devices if offer.is_for(d)}
    assert 300 < len(first) < 500
    offer = fleet.publish("8", rollout=0.3)
    assert first < {d for d in devices if offer.is_for(d)}
    offer = fleet.publish("9", rollout=0.1)
    assert len({d for d in first if offer.is_for(d)}) < 100  # others begin with the next release
    offer = fleet.publish("9")
    assert all(offer.is_for(d) for d in devices)


def test_a_device_outside_a_rollout_stays_at_the_release_before(run, fleet):
    fleet.publish("8")
    device = run()
    device.reaches("8")
    offer = fleet.publish("9", rollout=0.5)
    name = next(f"pi-{i}" for i in range(99) if not offer.is_for(f"pi-{i}"))
    device.updater._id = name
    device.settled()
    assert device.version == "8"
    fleet.publish("9")
    device.reaches("9")


@pytest.mark.parametrize("kind", ["hardware", "features", "runtime", "model"])
def test_what_does_not_fit_is_not_fetched(run, fleet, server, tmp_path, monkeypatch, kind):
    device = run(urls=[server.url], features="abcde" if kind == "features" else None)
    how = {"hardware": ["riscv128"]} if kind == "hardware" else {}
    if kind == "model":
        fleet.repository.add(write_bundle(tmp_path / "other", name="other", version="9").path)
        fleet.repository.publish("other/9")
    else:
        if kind == "runtime":
            monkeypatch.setattr("gatewise_edge.update.updater.__version__", "0.0.9")
        fleet.add("9", **how)
        fleet.publish("9")
    device.settled()
    assert device.version == "7"
    assert set(server.fetched("9")) <= {"release.json"}
    if kind == "hardware":  # an older one that fits is taken instead
        fleet.publish("8")
        fleet.publish("9")
        device.reaches("8")


def test_features_in_another_order_are_matched_by_name(run, fleet, make_bundle):
    device = run()
    rows = [EASY, [-1.0, 0, 0, 0, 0, 0], [0.1, 0, 1.0, 0, 0, 0]]
    before = [device.device.answer(row).label for row in rows]
    fleet.add("8", reordered(make_bundle("turned", version="8")))
    fleet.publish("8")
    device.reaches("8")
    assert [device.device.answer(row).label for row in rows] == before


def test_a_release_that_fails_its_self_test_is_refused_for_good(run, fleet, make_bundle, server):
    fleet.add("8", miscomputing(make_bundle("bad", version="8")))
    fleet.publish("8")
    device = run(urls=[server.url])
    wait_until(lambda: device.updater.counters["self-test"] == 1, "the refusal", PATIENCE)
    assert "small/8 is refused" in device.updater.trouble
    assert (device.version, device.store.state.active) == ("7", "")
    assert device.device.answer(EASY).route == "edge"
    device.close()
    asked = len(server.fetched("8"))
    again = run(urls=[server.url])
    again.settled()
    assert (again.version, again.updater.trouble) == ("7", None)
    assert len(server.fetched("8")) == asked
    fleet.publish("9")
    again.reaches("9")


def test_a_bundle_must_be_signed_where_the_device_has_a_key(run, fleet, make_bundle, tmp_path):
    from gatewise_export.bundle.signing import keygen

    key, public = keygen(tmp_path / "fleet")
    device = run(public_key=public)
    fleet.publish("8")
    device.news()
    wait_until(lambda: device.updater.counters["bundle"] == 1, "the refusal", PATIENCE)
    assert device.version == "7"
    fleet.add("9", sign=key)
    fleet.publish("9")
    device.reaches("9")


def test_a_message_brings_a_check_and_no_storm(run, fleet):
    device = run(gap=0.5)
    device.settled()
    for _ in range(500):
        device.updater.take(b"\xff\x00 anything")
    wait_until(lambda: device.updater.counters["announced"] >= 501, "the messages")
    assert device.updater.counters["checks"] <= 4


def test_what_cannot_be_configured(run, fleet, tmp_path):
    with pytest.raises(InputError, match="must begin with"):
        run(urls=["ftp://x"])
    for content in (b"", b"{}", b'{"signed": 1}'):
        (tmp_path / "root.json").write_bytes(content)
        with pytest.raises(InputError, match="no root metadata"):
            run(trust=tmp_path / "root.json")
    with pytest.raises(InputError, match="cannot be read"):
        run(trust=tmp_path / "none.json")


# -- the trial -----------------------------------------------------------------------------


@pytest.fixture
def on_trial(run, fleet):
    fleet.publish("8")
    device = run(trial_answers=20)
    device.reaches("8")
    return device


def test_one_late_answer_fails_nothing(on_trial):
    """A good update was lost to an answer 312 ms late."""
    answer = on_trial.device.answer(EASY)
    on_trial.updater._trial._began -= 10.0
    on_trial.updater.observe(dataclasses.replace(answer, latency_ms=5312.0))
    on_trial.passes()
    assert on_trial.version == "8"
    wait_until(lambda: on_trial.updater.counters["passed"] == 1, "its count")


@pytest.mark.parametrize("error", [InputError("no row"), SensorError("a", "dead"), ValueError()])
def test_a_version_that_fits_no_row_goes(on_trial, error, run, server):
    """Errors of any class: 3,861 of 3,861 rows were errors and the trial went on."""
    for _ in range(5):
        on_trial.updater.observe(error)
    wait_until(lambda: on_trial.version == "7", "the way back", PATIENCE)
    wait_until(lambda: on_trial.updater.counters["rolled_back"] == 1, "its end", PATIENCE)
    on_trial.close()
    again = run(urls=[server.url])
    again.settled()
    assert (again.version, server.fetched("8")) == ("7", [])


def test_the_status_says_which_release_failed(run, fleet, make_bundle):
    """The operator's abort threshold counts these."""
    statuses = []
    link = FakeLink()
    link.watch = lambda topic, take: None
    link.set_status = statuses.append
    offer = fleet.publish("8")
    device = run(link=link)
    device.reaches("8")
    for _ in range(5):
        device.updater.observe(ValueError())
    wait_until(lambda: device.updater.counters["rolled_back"] == 1, "the way back", PATIENCE)
    assert statuses == ["small/7", "small/8", f"small/7 refused {offer.digest[:12]}"]
    device.close()
    run(link=link)
    assert statuses[-1] == statuses[-2]


def test_sensors_that_failed_before_are_no_fault_of_a_version(run, fleet):
    device = run()
    for _ in range(50):
        device.updater.observe(SensorError("a", "dead"))
    fleet.publish("8")
    device.reaches("8")
    for _ in range(50):
        device.updater.observe(SensorError("a", "dead"))
    device.passes()
    assert device.version == "8"


def test_a_trial_goes_on_over_short_wake_ups(run, fleet):
    """A device of 6 answers a wake-up never ended its trial."""
    fleet.publish("8")
    device = run(trial_answers=20)
    device.reaches("8")
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


def test_time_without_running_does_not_count(run, fleet):
    fleet.publish("8")
    clock = {"now": 1000.0}
    device = run(trial_answers=1, trial_seconds=30.0, clock=lambda: clock["now"])
    device.reaches("8")
    device.device.answer(EASY)
    clock["now"] += 29.0
    device.updater.observe(device.device.answer(EASY))
    assert device.store.state.on_trial
    device.close()
    assert 29.0 <= device.store.state.seconds < 30.0
    clock["now"] += 1e6  # asleep
    again = run(trial_answers=1, trial_seconds=30.0, clock=lambda: clock["now"])
    again.device.answer(EASY)
    assert again.store.state.on_trial
    clock["now"] += 2.0
    again.passes()


def test_starts_without_an_answer_put_a_release_off_and_not_away(run, fleet):
    """A broker that was away at boot used three starts up in ten seconds."""
    fleet.publish("8")
    device = run()
    device.reaches("8")
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
    device.updater._failures = 5000
    device.settled()
    server.behave.clear()
    fleet.publish("8")
    device.reaches("8")


def test_a_version_not_proved_never_becomes_the_way_back(run, fleet):
    fleet.publish("8")
    device = run(trial_answers=10**6)
    device.reaches("8")
    device.device.answer(EASY)
    fleet.publish("9")
    device.reaches("9")
    for _ in range(5):
        device.updater.observe(ValueError())
    wait_until(lambda: device.updater.counters["rolled_back"] == 1, "the way back", PATIENCE)
    assert device.store.state.proved == ""


def test_a_slow_server_does_not_keep_a_failed_version(run, fleet, server):
    fleet.publish("8")
    device = run(urls=[server.url], trial_answers=10**6)
    device.reaches("8")
    release = threading.Event()
    server.behave["/metadata/timestamp.json"] = lambda handler: release.wait(PATIENCE)
    asked = len(server.asked)
    device.news()
    wait_until(lambda: len(server.asked) > asked + 1, "a check that hangs", PATIENCE)
    for _ in range(5):
        device.updater.observe(ValueError())
    wait_until(lambda: device.version == "7", "the way back", 5.0)
    release.set()


# -- what lies on the disk -----------------------------------------------------------------


def test_a_damaged_bundle_is_repaired(run, fleet, server):
    fleet.publish("8")
    device = run(urls=[server.url])
    device.reaches("8")
    device.passes()
    path = device.device.bundle.path / "manifest.json"
    whole = path.read_bytes()
    path.write_bytes(b"")
    device.settled()
    assert device.updater.counters["repaired"] == 1
    assert path.read_bytes() == whole
    path.write_bytes(whole[:-7])
    device.close()
    again = run(urls=[server.url])  # the one before it answers meanwhile
    again.reaches("8")
    assert not again.store.state.on_trial


@pytest.mark.parametrize("names", [["state.json"], ["state.json", "state.copy.json"]])
def test_a_flipped_bit_in_the_state_forgets_nothing(run, fleet, server, names):
    """It deleted both bundles and forgot the serial."""
    fleet.publish("8")
    device = run(urls=[server.url])
    device.reaches("8")
    device.passes()
    device.close()
    for name in names:
        content = bytearray((device.store.folder / name).read_bytes())
        content[len(content) // 2] ^= 4
        (device.store.folder / name).write_bytes(content)
    asked = len(server.fetched("8"))
    again = run(urls=[server.url])
    assert again.version == ("8" if len(names) == 1 else "7")
    again.reaches("8")
    again.settled()
    assert len(server.fetched("8")) == asked


def test_a_store_that_cannot_be_written_stops_no_answers(run, fleet, monkeypatch):
    """As on a full disk during a trial."""
    fleet.publish("8")
    device = run(trial_answers=10**6)
    device.reaches("8")

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("gatewise_edge.update.state.replace_file", full)
    device.updater._accounted -= 100.0
    device.updater.observe(device.device.answer(EASY))
    device.news()
    wait_until(lambda: device.updater.trouble is not None, "the trouble", PATIENCE)
    assert "No space left" in device.updater.trouble
    assert device.device.answer(EASY).route == "edge"
    fleet.publish("9")
    device.settled()
    assert device.version == "8"
    monkeypatch.undo()
    device.reaches("9")
    wait_until(lambda: device.updater.trouble is None, "the end of the trouble", PATIENCE)


def test_another_process_keeps_the_store(run):
    one = run()
    one.settled()
    two = run()
    wait_until(lambda: two.updater.trouble is not None, "the trouble", PATIENCE)
    assert "kept by another process" in two.updater.trouble
    with pytest.raises(UpdateError):
        two.store.lock()
    one.close()
    two.settled()
    assert two.updater.trouble is None
