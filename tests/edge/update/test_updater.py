"""A running device is updated from a repository, and goes back by itself when it must."""

from __future__ import annotations

import errno
import shutil
from types import SimpleNamespace

import pytest

from gatewise.errors import InputError
from gatewise_edge.update import store as store_module
from gatewise_export.bundle.signing import keygen
from gatewise_export.repository.release import Release, UpdateError
from tests.edge.device.test_installed import miscomputing
from tests.edge.update.conftest import EASY, PATIENCE
from tests.support.small_bundle import write_bundle
from tests.support.waiting import wait_until


def test_a_release_is_taken_proved_and_left_again(run, fleet, server):
    """Only files that changed are fetched: the stages' hashes are those of the first bundle."""
    device = run(urls=[server.url])
    for version in ("8", "9"):
        fleet.publish(version)
        device.reaches(version)
        assert device.store.state.on_trial
        device.passes()
    assert server.fetched("8") == ["release.json", "manifest.json"]
    held = {path.name for path in device.device.bundle.path.iterdir()}
    assert "stage_0.onnx" in held
    assert "cloud.onnx" not in held
    fleet.repository.rollback()
    device.reaches("8")
    assert len(server.fetched("8")) == 2  # it is still there
    device.passes()
    fleet.repository.rollback()
    device.reaches("7")  # nothing is offered: the bundle that it was set up with
    counters = device.updater.counters
    assert (counters["taken"], counters["passed"], counters["rolled_back"]) == (3, 3, 0)
    assert device.updater.trouble is None
    assert list(device.store.partial.iterdir()) == []


def test_a_rollout_reaches_its_share_of_the_fleet_and_grows(run, fleet):
    offer = fleet.publish("8", rollout=0.1)
    devices = [f"pi-{i}" for i in range(4000)]
    first = {d for d in devices if offer.is_for(d)}
    assert 300 < len(first) < 500
    offer = fleet.publish("8", rollout=0.3)
    assert first < {d for d in devices if offer.is_for(d)}
    offer = fleet.publish("9", rollout=0.1)
    assert len({d for d in first if offer.is_for(d)}) < 100  # others begin with the next release
    fleet.publish("8")
    outside = next(d for d in devices if not offer.is_for(d))
    device = run(device=outside)
    device.reaches("8")
    device.settled()
    assert device.version == "8"
    fleet.publish("9")
    device.reaches("9")


@pytest.mark.parametrize("kind", ["hardware", "features", "runtime", "model"])
def test_release_that_does_not_fit_is_not_fetched(run, fleet, server, tmp_path, monkeypatch, kind):
    device = run(urls=[server.url], features="abcde" if kind == "features" else None)
    if kind == "model":
        fleet.repository.add(write_bundle(tmp_path / "other", name="other", version="9").path)
        fleet.repository.publish("other/9")
    else:
        if kind == "runtime":
            monkeypatch.setattr("gatewise_edge.update.updater.__version__", "0.0.9")
        fleet.add("9", **({"hardware": ["riscv128"]} if kind == "hardware" else {}))
        fleet.publish("9")
    device.settled()
    assert device.version == "7"
    assert set(server.fetched("9")) <= {"release.json"}
    if kind == "hardware":  # an older one that fits is taken instead
        fleet.publish("8")
        fleet.publish("9")
        device.reaches("8")


def test_a_release_that_fails_its_self_test_is_refused_for_good(run, fleet, make_bundle, server):
    fleet.add("8", miscomputing(make_bundle("bad", version="8")))
    fleet.publish("8")
    device = run(urls=[server.url])
    device.counts("self-test")
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


def test_a_bundle_must_be_signed_where_the_device_has_a_key(run, fleet, tmp_path):
    key, public = keygen(tmp_path / "fleet")
    device = run(public_key=public)
    fleet.publish("8")
    device.refuses("bundle", "7")
    fleet.add("9", sign=key)
    fleet.publish("9")
    device.reaches("9")


def test_a_message_brings_a_check_and_no_storm(run):
    device = run(gap=0.5)
    device.settled()
    for _ in range(500):
        device.updater.receive_announcement(b"\xff\x00 anything")
    device.counts("announced", 501)
    assert device.updater.counters["checks"] <= 4


def test_wrong_update_settings_are_refused(run, tmp_path):
    with pytest.raises(InputError, match="must begin with"):
        run(urls=["ftp://x"])
    for content in (b"", b"{}", b'{"signed": 1}'):
        (tmp_path / "root.json").write_bytes(content)
        with pytest.raises(InputError, match="no root metadata"):
            run(trust=tmp_path / "root.json")
    with pytest.raises(InputError, match="cannot be read"):
        run(trust=tmp_path / "none.json")


def test_a_stale_mirror_gives_way_to_the_next_place(at_8, run, fleet):
    """The device's metadata was lost, so that only the versions seen tell that it is stale."""
    stale = shutil.copytree(fleet.folder, fleet.folder.with_name("stale"))
    fleet.publish("9")
    at_8.reaches("9")
    at_8.close()
    shutil.rmtree(at_8.store.folder / "metadata")
    fleet.publish("10")
    again = run(urls=[stale.as_uri(), fleet.folder.as_uri()])
    again.counts("metadata")
    assert f"{stale.as_uri()}: timestamp" in again.updater.trouble
    again.reaches("10")


@pytest.mark.parametrize("case", ["missing", "no room", "read-only"])
def test_a_withdrawn_release_is_left_whatever_else_fails(at_8, fleet, server, monkeypatch, case):
    """Devices ran it on where its successor could not be fetched, or the store not be written."""
    fleet.repository.rollback()
    fleet.publish("9")

    def missing(handler) -> None:
        handler.send_error(404)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    if case == "missing":
        add = fleet.repository.folder / "targets" / "small" / "9"
        server.behave |= {f"/targets/small/9/{path.name}": missing for path in add.iterdir()}
    elif case == "no room":
        monkeypatch.setattr(
            store_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20)
        )
    else:
        monkeypatch.setattr(store_module, "replace_file", refuse)
        folder = at_8.store.folder / "metadata"
        shutil.rmtree(folder)
        folder.write_text("not a folder: nothing can be written in it")
    at_8.news()
    wait_until(lambda: at_8.version == "7", "the way back", PATIENCE)
    assert at_8.device.answer(EASY).route == "edge"
    wait_until(lambda: at_8.updater.trouble, "the failure's name", PATIENCE)


# -- what lies on the disk -----------------------------------------------------------------


def test_a_damaged_bundle_is_repaired(at_8, run, server):
    path = at_8.device.bundle.path / "manifest.json"
    whole = path.read_bytes()
    path.write_bytes(b"")
    at_8.settled()
    assert at_8.updater.counters["repaired"] == 1
    assert path.read_bytes() == whole
    path.write_bytes(whole[:-7])
    at_8.close()
    again = run(urls=[server.url])  # the one before it answers meanwhile
    again.reaches("8")
    assert not again.store.state.on_trial


def test_a_withdrawn_release_does_not_replace_a_damaged_one(at_8, fleet):
    """The device had come back to 8, which passed its trial again; 9 was the one before it."""
    fleet.publish("9")
    at_8.reaches("9")
    at_8.passes()
    fleet.repository.rollback()
    at_8.reaches("8")
    at_8.settled()
    at_8.passes()
    at_8.close()
    (at_8.device.bundle.path / "manifest.json").write_bytes(b"")
    assert at_8.store.start() == []


@pytest.mark.parametrize("names", [["state.json"], ["state.json", "state.copy.json"]])
def test_a_flipped_bit_in_the_state_forgets_nothing(at_8, run, server, names):
    """It deleted both bundles and forgot the serial."""
    at_8.close()
    for name in names:
        content = bytearray((at_8.store.folder / name).read_bytes())
        content[len(content) // 2] ^= 4
        (at_8.store.folder / name).write_bytes(content)
    asked = len(server.fetched("8"))
    again = run(urls=[server.url])
    assert again.version == ("8" if len(names) == 1 else "7")
    again.reaches("8")
    again.settled()
    assert len(server.fetched("8")) == asked


def test_a_proved_release_that_did_not_start_once_is_tried_again(at_8, run, fleet):
    """A fleet started once with a forgotten option needed a new version."""
    fleet.publish("9")
    at_8.reaches("9")
    at_8.passes()
    at_8.close()
    once = run(failed=1)
    once.settled()
    assert (once.version, once.store.state.refused) == ("8", ())
    once.close()
    again = run()
    again.settled()
    assert (again.version, again.store.state.on_trial) == ("9", False)


def test_a_release_that_runs_and_is_proved_is_no_longer_refused(at_8, run):
    at_8.close()
    at_8.store.save(refused=("other", at_8.store.state.proved))
    again = run()
    again.settled()
    assert (again.version, again.store.state.refused) == ("8", ("other",))


def test_a_release_on_trial_that_did_not_start_is_refused(on_trial, run, server):
    active = on_trial.store.state.active
    on_trial.close()
    again = run(urls=[server.url], failed=1)
    again.settled()
    assert (again.version, again.store.state.refused) == ("7", (active,))


def test_a_store_that_cannot_be_written_stops_no_answers(on_trial, fleet, clock, monkeypatch):
    """As on a full disk during a trial."""

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("gatewise_edge.update.store.replace_file", full)
    clock.now += 100.0
    on_trial.updater.observe(on_trial.device.answer(EASY))
    on_trial.news()
    wait_until(lambda: on_trial.updater.trouble is not None, "the trouble", PATIENCE)
    assert "No space left" in on_trial.updater.trouble
    assert on_trial.device.answer(EASY).route == "edge"
    fleet.publish("9")
    on_trial.settled()
    assert on_trial.version == "8"
    monkeypatch.undo()
    on_trial.reaches("9")
    wait_until(lambda: on_trial.updater.trouble is None, "the end of the trouble", PATIENCE)


def test_remainder_of_another_release_is_removed(run, fleet, server, monkeypatch):
    """As a release that was withdrawn while it was fetched; all files together must find room."""
    free, asked = 0, []

    def usage(path):
        asked.append(sorted(entry.name for entry in device.store.partial.iterdir()))
        return SimpleNamespace(free=free)

    device = run(urls=[server.url])
    left = device.store.partial / "withdrawn"
    left.mkdir()
    (left / "stage_0.onnx").write_bytes(b"0")
    offer = fleet.publish("8")
    target = fleet.folder / f"targets/small/8/{offer.digest}.release.json"
    sizes = [spec.size for spec in Release.from_json(target.read_bytes()).files.values()]
    needed = sum(sizes) + store_module._SPARE_BYTES
    free = needed - 1  # enough for each file by itself
    monkeypatch.setattr("gatewise_edge.update.store.shutil.disk_usage", usage)
    device.refuses("store", "7")
    assert f"in {device.store.folder}: it needs {needed} bytes" in device.updater.trouble
    assert f"{free} bytes are free" in device.updater.trouble
    assert asked[0] == [offer.digest]
    assert server.fetched("8") == ["release.json"]
    free = needed
    device.reaches("8")


def test_another_process_keeps_the_store(run):
    one = run()
    one.settled()
    two = run()
    wait_until(lambda: two.updater.trouble is not None, "the trouble", PATIENCE)
    assert "locked by another process" in two.updater.trouble
    with pytest.raises(UpdateError):
        two.store.lock()
    one.close()
    two.settled()
    assert two.updater.trouble is None
