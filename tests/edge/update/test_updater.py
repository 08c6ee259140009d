"""An updater fetches releases from a repository, and rolls back if it must."""

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


def test_device_adopts_releases_and_returns_to_earlier_ones(run, fleet, server):
    """Only changed files are fetched, because the stages are those of the first bundle."""
    device = run(urls=[server.url])
    for version in ("8", "9"):
        fleet.publish(version)
        device.wait_for_version(version)
        assert device.store.state.on_trial
        device.pass_trial()
    assert server.requested_files("8") == ["release.json", "manifest.json"]
    names = {path.name for path in device.device.bundle.path.iterdir()}
    assert "stage_0.onnx" in names
    assert "cloud.onnx" not in names
    fleet.repository.rollback()
    device.wait_for_version("8")
    assert len(server.requested_files("8")) == 2  # the store still has it
    device.pass_trial()
    fleet.repository.rollback()
    device.wait_for_version("7")  # without an offer it runs the first bundle
    counters = device.updater.counters
    assert (counters["taken"], counters["passed"], counters["rolled_back"]) == (3, 3, 0)
    assert device.updater.trouble is None
    assert list(device.store.partial.iterdir()) == []


def test_rollout_reaches_its_share_of_the_fleet_and_grows(run, fleet):
    offer = fleet.publish("8", rollout=0.1)
    devices = [f"pi-{i}" for i in range(4000)]
    first_devices = {d for d in devices if offer.is_for(d)}
    assert 300 < len(first_devices) < 500
    offer = fleet.publish("8", rollout=0.3)
    assert first_devices < {d for d in devices if offer.is_for(d)}
    offer = fleet.publish("9", rollout=0.1)
    # The next release begins with other devices.
    assert len({d for d in first_devices if offer.is_for(d)}) < 100
    fleet.publish("8")
    device_without_offer = next(d for d in devices if not offer.is_for(d))
    device = run(device=device_without_offer)
    device.wait_for_version("8")
    device.wait_for_check()
    assert device.version == "8"
    fleet.publish("9")
    device.wait_for_version("9")


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
    device.wait_for_check()
    assert device.version == "7"
    assert set(server.requested_files("9")) <= {"release.json"}
    if kind == "hardware":  # it runs an older release that fits
        fleet.publish("8")
        fleet.publish("9")
        device.wait_for_version("8")


def test_release_that_fails_its_self_test_is_refused_for_good(run, fleet, make_bundle, server):
    fleet.add("8", miscomputing(make_bundle("bad", version="8")))
    fleet.publish("8")
    device = run(urls=[server.url])
    device.wait_for_count("self-test")
    assert "small/8 is refused" in device.updater.trouble
    assert (device.version, device.store.state.active) == ("7", "")
    assert device.device.answer(EASY).route == "edge"
    device.close()
    n_fetched = len(server.requested_files("8"))
    restarted = run(urls=[server.url])
    restarted.wait_for_check()
    assert (restarted.version, restarted.updater.trouble) == ("7", None)
    assert len(server.requested_files("8")) == n_fetched
    fleet.publish("9")
    restarted.wait_for_version("9")


def test_bundle_must_be_signed_if_the_device_has_a_key(run, fleet, tmp_path):
    key, public = keygen(tmp_path / "fleet")
    device = run(public_key=public)
    fleet.publish("8")
    device.wait_for_refusal("bundle", "7")
    fleet.add("9", sign=key)
    fleet.publish("9")
    device.wait_for_version("9")


def test_announcements_cause_few_checks(run):
    device = run(min_interval=0.5)
    device.wait_for_check()
    for _ in range(500):
        device.updater.receive_announcement(b"\xff\x00 anything")
    device.wait_for_count("announced", 501)
    assert device.updater.counters["checks"] <= 4


def test_invalid_update_settings_are_refused(run, tmp_path):
    with pytest.raises(InputError, match="must begin with"):
        run(urls=["ftp://x"])
    for content in (b"", b"{}", b'{"signed": 1}'):
        (tmp_path / "root.json").write_bytes(content)
        with pytest.raises(InputError, match="not root metadata"):
            run(trust=tmp_path / "root.json")
    with pytest.raises(InputError, match="cannot be read"):
        run(trust=tmp_path / "none.json")


def test_stale_mirror_is_replaced_by_the_next_one(at_8, run, fleet):
    """Without its metadata the device recognises a stale mirror only by the versions seen."""
    stale = shutil.copytree(fleet.folder, fleet.folder.with_name("stale"))
    fleet.publish("9")
    at_8.wait_for_version("9")
    at_8.close()
    shutil.rmtree(at_8.store.folder / "metadata")
    fleet.publish("10")
    restarted = run(urls=[stale.as_uri(), fleet.folder.as_uri()])
    restarted.wait_for_count("metadata")
    assert f"{stale.as_uri()}: timestamp" in restarted.updater.trouble
    restarted.wait_for_version("10")


@pytest.mark.parametrize("case", ["missing", "no room", "read-only"])
def test_device_leaves_a_withdrawn_release_despite_failures(at_8, fleet, server, monkeypatch, case):
    """Once, it continued if the next release was not available or the store not writable."""
    fleet.repository.rollback()
    fleet.publish("9")

    def missing(handler) -> None:
        handler.send_error(404)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    if case == "missing":
        add = fleet.repository.folder / "targets" / "small" / "9"
        server.handlers |= {f"/targets/small/9/{path.name}": missing for path in add.iterdir()}
    elif case == "no room":
        monkeypatch.setattr(
            store_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20)
        )
    else:
        monkeypatch.setattr(store_module, "replace_file", refuse)
        folder = at_8.store.folder / "metadata"
        shutil.rmtree(folder)
        folder.write_text("not a folder: nothing can be written in it")
    at_8.announce()
    wait_until(lambda: at_8.version == "7", "the rollback", PATIENCE)
    assert at_8.device.answer(EASY).route == "edge"
    wait_until(lambda: at_8.updater.trouble, "the trouble", PATIENCE)


# -- files on the disk ---------------------------------------------------------------------


def test_damaged_bundle_is_repaired(at_8, run, server):
    path = at_8.device.bundle.path / "manifest.json"
    content = path.read_bytes()
    path.write_bytes(b"")
    at_8.wait_for_check()
    assert at_8.updater.counters["repaired"] == 1
    assert path.read_bytes() == content
    path.write_bytes(content[:-7])
    at_8.close()
    restarted = run(urls=[server.url])  # it starts with the release before
    restarted.wait_for_version("8")
    assert not restarted.store.state.on_trial


def test_withdrawn_release_does_not_replace_a_damaged_one(at_8, fleet):
    """The device returned from 9 to 8, which passed its trial again, so that 9 is withdrawn."""
    fleet.publish("9")
    at_8.wait_for_version("9")
    at_8.pass_trial()
    fleet.repository.rollback()
    at_8.wait_for_version("8")
    at_8.wait_for_check()
    at_8.pass_trial()
    at_8.close()
    (at_8.device.bundle.path / "manifest.json").write_bytes(b"")
    assert at_8.store.start() == []


@pytest.mark.parametrize("names", [["state.json"], ["state.json", "state.copy.json"]])
def test_flipped_bit_in_the_state_loses_no_release(at_8, run, server, names):
    """Once, it deleted both bundles and forgot the versions seen."""
    at_8.close()
    for name in names:
        content = bytearray((at_8.store.folder / name).read_bytes())
        content[len(content) // 2] ^= 4
        (at_8.store.folder / name).write_bytes(content)
    n_fetched = len(server.requested_files("8"))
    restarted = run(urls=[server.url])
    assert restarted.version == ("8" if len(names) == 1 else "7")
    restarted.wait_for_version("8")
    restarted.wait_for_check()
    assert len(server.requested_files("8")) == n_fetched


def test_proved_release_that_did_not_start_once_is_tried_again(at_8, run, fleet):
    """Once, a fleet that was started without an option needed a new version."""
    fleet.publish("9")
    at_8.wait_for_version("9")
    at_8.pass_trial()
    at_8.close()
    without_it = run(n_skipped=1)
    without_it.wait_for_check()
    assert (without_it.version, without_it.store.state.refused) == ("8", ())
    without_it.close()
    restarted = run()
    restarted.wait_for_check()
    assert (restarted.version, restarted.store.state.on_trial) == ("9", False)


def test_proved_release_that_runs_is_no_longer_refused(at_8, run):
    at_8.close()
    at_8.store.save(refused=("other", at_8.store.state.proved))
    restarted = run()
    restarted.wait_for_check()
    assert (restarted.version, restarted.store.state.refused) == ("8", ("other",))


def test_release_on_trial_that_did_not_start_is_refused(on_trial, run, server):
    active = on_trial.store.state.active
    on_trial.close()
    restarted = run(urls=[server.url], n_skipped=1)
    restarted.wait_for_check()
    assert (restarted.version, restarted.store.state.refused) == ("7", (active,))


def test_device_answers_while_the_store_cannot_be_written(on_trial, fleet, clock, monkeypatch):
    """For example on a full disk during a trial."""

    def raise_full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("gatewise_edge.update.store.replace_file", raise_full)
    clock.now += 100.0
    on_trial.updater.observe(on_trial.device.answer(EASY))
    on_trial.announce()
    wait_until(lambda: on_trial.updater.trouble is not None, "the trouble", PATIENCE)
    assert "No space left" in on_trial.updater.trouble
    assert on_trial.device.answer(EASY).route == "edge"
    fleet.publish("9")
    on_trial.wait_for_check()
    assert on_trial.version == "8"
    monkeypatch.undo()
    on_trial.wait_for_version("9")
    wait_until(lambda: on_trial.updater.trouble is None, "the end of the trouble", PATIENCE)


def test_remainder_of_another_release_is_removed(run, fleet, server, monkeypatch):
    """Its space is free before the disk is checked for the space of all new files together."""
    free = 0
    listings = []

    def usage(path):
        listings.append(sorted(entry.name for entry in device.store.partial.iterdir()))
        return SimpleNamespace(free=free)

    device = run(urls=[server.url])
    remainder = device.store.partial / "withdrawn"
    remainder.mkdir()
    (remainder / "stage_0.onnx").write_bytes(b"0")
    offer = fleet.publish("8")
    target = fleet.folder / f"targets/small/8/{offer.digest}.release.json"
    sizes = [spec.size for spec in Release.from_json(target.read_bytes()).files.values()]
    needed = sum(sizes) + store_module._SPARE_BYTES
    free = needed - 1  # enough for each file alone
    monkeypatch.setattr("gatewise_edge.update.store.shutil.disk_usage", usage)
    device.wait_for_refusal("store", "7")
    assert f"in {device.store.folder}: it needs {needed} bytes" in device.updater.trouble
    assert f"{free} bytes are free" in device.updater.trouble
    assert listings[0] == [offer.digest]
    assert server.requested_files("8") == ["release.json"]
    free = needed
    device.wait_for_version("8")


def test_only_one_device_updates_from_a_store(run):
    first = run()
    first.wait_for_check()
    second = run()
    wait_until(lambda: second.updater.trouble is not None, "the trouble", PATIENCE)
    assert "locked by another process" in second.updater.trouble
    with pytest.raises(UpdateError):
        second.store.lock()
    first.close()
    second.wait_for_check()
    assert second.updater.trouble is None
