"""An updater fetches releases from a repository, and rolls back if it must."""

from __future__ import annotations

import errno
import shutil
from types import SimpleNamespace

import pytest

from gatewise.errors import InputError
from gatewise_edge.update import store as store_module
from gatewise_export.bundle.signing import keygen
from gatewise_export.repository.client import RepositoryClient
from gatewise_export.repository.fetcher import BoundedFetcher
from gatewise_export.repository.release import Release, UpdateError
from tests.edge.device.test_installation import with_wrong_sample
from tests.edge.update.conftest import TIMEOUT_S
from tests.support.small_bundle import SURE_ROW, write_bundle
from tests.support.waiting import wait_until


def test_device_adopts_releases_and_returns_to_earlier_ones(run_device, fleet, server):
    """Only changed files are fetched, because the stages are those of the first bundle."""
    device = run_device(urls=[server.url])
    for version in ("8", "9"):
        fleet.publish(version)
        device.wait_for_version(version)
        assert device.store.state.is_on_trial
        device.pass_trial()
    assert server.requested_files("8") == ["release.json", "manifest.json"]
    file_names = {path.name for path in device.device.bundle.path.iterdir()}
    assert "stage_0.onnx" in file_names
    assert "cloud.onnx" not in file_names
    fleet.repository.rollback()
    device.wait_for_version("8")
    assert len(server.requested_files("8")) == 2  # the store still has it
    device.pass_trial()
    fleet.repository.rollback()
    device.wait_for_version("7")  # without an offer it runs the first bundle
    counters = device.updater.counters
    # It took 8, 9, and 8 again.
    assert (counters["adopted"], counters["passed"], counters["rolled_back"]) == (3, 3, 0)
    assert device.updater.trouble is None
    assert list(device.store.partial_folder.iterdir()) == []


def test_rollout_reaches_its_share_of_the_fleet_and_grows(run_device, fleet):
    offer = fleet.publish("8", rollout=0.1)
    device_ids = [f"pi-{i}" for i in range(4000)]
    first_devices = {device_id for device_id in device_ids if offer.is_for(device_id)}
    assert 300 < len(first_devices) < 500  # about a tenth; the ids are hashed
    offer = fleet.publish("8", rollout=0.3)
    assert first_devices < {device_id for device_id in device_ids if offer.is_for(device_id)}
    offer = fleet.publish("9", rollout=0.1)
    # The next release begins with other devices, of which about a tenth are the same.
    assert len({device_id for device_id in first_devices if offer.is_for(device_id)}) < 100
    fleet.publish("8")
    device_without_offer = next(
        device_id for device_id in device_ids if not offer.is_for(device_id)
    )
    device = run_device(device=device_without_offer)
    device.wait_for_version("8")
    device.wait_for_check()
    assert device.version == "8"
    fleet.publish("9")
    device.wait_for_version("9")


@pytest.mark.slow
@pytest.mark.parametrize("misfit", ["hardware", "features", "runtime", "model"])
def test_release_that_does_not_fit_is_not_fetched(
    run_device, fleet, server, tmp_path, monkeypatch, misfit
):
    device = run_device(urls=[server.url], features="abcde" if misfit == "features" else None)
    if misfit == "model":
        fleet.repository.add(write_bundle(tmp_path / "other", name="other", version="9").path)
        fleet.repository.publish("other/9")
    else:
        if misfit == "runtime":
            monkeypatch.setattr("gatewise_edge.update.updater.__version__", "0.0.9")
        fleet.add("9", **({"hardware": ["riscv128"]} if misfit == "hardware" else {}))
        fleet.publish("9")
    device.wait_for_check()
    assert device.version == "7"
    assert set(server.requested_files("9")) <= {"release.json"}
    if misfit == "hardware":  # it runs an older release that fits
        fleet.publish("8")
        fleet.publish("9")
        device.wait_for_version("8")


def test_release_that_fails_its_self_test_is_refused_for_good(
    run_device, fleet, make_bundle, server
):
    fleet.add("8", with_wrong_sample(make_bundle("bad", version="8")))
    fleet.publish("8")
    device = run_device(urls=[server.url])
    device.wait_for_count("self-test")
    assert "small/8 is refused" in device.updater.trouble
    assert (device.version, device.store.state.active) == ("7", "")
    assert device.device.answer(SURE_ROW).route == "edge"
    device.close()
    n_fetched = len(server.requested_files("8"))
    restarted_device = run_device(urls=[server.url])
    restarted_device.wait_for_check()
    assert (restarted_device.version, restarted_device.updater.trouble) == ("7", None)
    assert len(server.requested_files("8")) == n_fetched
    fleet.publish("9")
    restarted_device.wait_for_version("9")


def test_bundle_must_be_signed_if_the_device_has_a_key(run_device, fleet, tmp_path):
    private_key, public_key = keygen(tmp_path / "fleet")
    device = run_device(public_key=public_key)
    fleet.publish("8")
    device.wait_for_refusal("bundle", "7")
    fleet.add("9", private_key=private_key)
    fleet.publish("9")
    device.wait_for_version("9")


@pytest.mark.slow
def test_announcements_cause_few_checks_and_nothing_else(run_device, fleet):
    fleet.add("8")  # it is not published
    device = run_device(min_interval=0.5)
    device.wait_for_check()
    for payload in (b"\xff\x00 anything", b'{"version": "8", "serial": 999}') * 250:
        device.updater.receive_announcement(payload)
    device.wait_for_count("announced", 501)  # one came from `wait_for_check`
    # Without a bound there would be a check for nearly every announcement.
    assert device.updater.counters["checks"] <= 4
    assert (device.version, device.updater.counters["adopted"]) == ("7", 0)


def test_invalid_update_settings_are_refused(run_device, tmp_path):
    with pytest.raises(InputError, match="must begin with"):
        run_device(urls=["ftp://x"])
    for content in (b"", b"{}", b'{"signed": 1}'):
        (tmp_path / "root.json").write_bytes(content)
        with pytest.raises(InputError, match="not root metadata"):
            run_device(trust=tmp_path / "root.json")
    with pytest.raises(InputError, match="cannot be read"):
        run_device(trust=tmp_path / "none.json")


def test_stale_mirror_is_replaced_by_the_next_one(device_at_8, run_device, fleet):
    """Without its metadata the device recognises a stale mirror only by the versions seen."""
    stale_folder = shutil.copytree(fleet.folder, fleet.folder.with_name("stale"))
    fleet.publish("9")
    device_at_8.wait_for_version("9")
    device_at_8.close()
    shutil.rmtree(device_at_8.store.folder / "metadata")
    fleet.publish("10")
    restarted_device = run_device(urls=[stale_folder.as_uri(), fleet.folder.as_uri()])
    restarted_device.wait_for_count("metadata")
    assert f"{stale_folder.as_uri()}: timestamp" in restarted_device.updater.trouble
    restarted_device.wait_for_version("10")


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["missing", "disk full", "read-only"])
def test_device_leaves_a_withdrawn_release_despite_failures(
    device_at_8, fleet, server, monkeypatch, failure
):
    """Once, it continued if the next release was not available or the store not writable."""
    fleet.repository.rollback()
    fleet.publish("9")

    def raise_read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    if failure == "missing":
        release_folder = fleet.repository.folder / "targets" / "small" / "9"
        for path in release_folder.iterdir():
            server.handlers[f"/targets/small/9/{path.name}"] = lambda handler: handler.send_error(
                404
            )
    elif failure == "disk full":  # a release must leave 8 MiB free
        usage = SimpleNamespace(free=1 << 20)
        monkeypatch.setattr(store_module.shutil, "disk_usage", lambda _: usage)
    else:
        monkeypatch.setattr("gatewise_edge.update.state.replace_file", raise_read_only)
        metadata_path = device_at_8.store.folder / "metadata"
        shutil.rmtree(metadata_path)
        metadata_path.write_text("not a folder: nothing can be written in it")
    device_at_8.announce()
    wait_until(lambda: device_at_8.version == "7", "the rollback", TIMEOUT_S)
    assert device_at_8.device.answer(SURE_ROW).route == "edge"
    wait_until(lambda: device_at_8.updater.trouble, "the trouble", TIMEOUT_S)


def test_device_with_a_full_disk_asks_the_mirror_that_answers(fleet, tmp_path):
    """Once, the error of its own disk made it ask the other mirror for ever, which is down."""
    unusable_folder = tmp_path / "file"
    unusable_folder.write_text("not a folder: nothing can be written in it")
    client = RepositoryClient(
        [fleet.folder.as_uri(), (tmp_path / "down").as_uri()],
        unusable_folder,
        trust=fleet.repository.root_file,
        fetcher=BoundedFetcher(timeout_s=5.0),
    )
    _, seen_versions = client.refresh({})
    assert "timestamp" in seen_versions


# -- files on the disk ---------------------------------------------------------------------


def test_damaged_bundle_is_repaired(device_at_8, run_device, server):
    path = device_at_8.device.bundle.path / "manifest.json"
    content = path.read_bytes()
    path.write_bytes(b"")
    device_at_8.wait_for_check()
    assert device_at_8.updater.counters["repaired"] == 1
    assert path.read_bytes() == content
    path.write_bytes(content[:-7])  # cut off
    device_at_8.close()
    restarted_device = run_device(urls=[server.url])  # it starts with the release before
    restarted_device.wait_for_version("8")
    assert not restarted_device.store.state.is_on_trial


def test_withdrawn_release_does_not_replace_a_damaged_one(device_at_8, fleet):
    """The device returned from 9 to 8, which passed its trial again, so that 9 is withdrawn."""
    fleet.publish("9")
    device_at_8.wait_for_version("9")
    device_at_8.pass_trial()
    fleet.repository.rollback()
    device_at_8.wait_for_version("8")
    device_at_8.wait_for_check()
    device_at_8.pass_trial()
    device_at_8.close()
    (device_at_8.device.bundle.path / "manifest.json").write_bytes(b"")
    assert device_at_8.store.start() == []


@pytest.mark.parametrize("file_names", [["state.json"], ["state.json", "state.copy.json"]])
def test_flipped_bit_in_the_state_loses_no_release(device_at_8, run_device, server, file_names):
    """Once, it deleted both bundles and forgot the versions seen."""
    device_at_8.close()
    for file_name in file_names:
        path = device_at_8.store.folder / file_name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4  # any bit
        path.write_bytes(content)
    n_fetched = len(server.requested_files("8"))
    restarted_device = run_device(urls=[server.url])
    assert restarted_device.version == ("8" if len(file_names) == 1 else "7")
    restarted_device.wait_for_version("8")
    restarted_device.wait_for_check()
    assert len(server.requested_files("8")) == n_fetched


def test_proved_release_that_did_not_start_once_is_tried_again(device_at_8, run_device, fleet):
    """Once, a fleet that was started without an option needed a new version."""
    fleet.publish("9")
    device_at_8.wait_for_version("9")
    device_at_8.pass_trial()
    device_at_8.close()
    for n_skipped, version in ((1, "8"), (0, "9")):
        device = run_device(n_skipped=n_skipped)
        device.wait_for_check()
        assert (device.version, device.store.state.refused) == (version, ())
        assert not device.store.state.is_on_trial
        device.close()


def test_proved_release_that_runs_is_no_longer_refused(device_at_8, run_device):
    device_at_8.close()
    device_at_8.store.save(refused=("other", device_at_8.store.state.proved))
    device = run_device()
    device.wait_for_check()
    assert (device.version, device.store.state.refused) == ("8", ("other",))


def test_release_on_trial_that_did_not_start_is_refused(device_on_trial, run_device, server):
    refused_digest = device_on_trial.store.state.active
    device_on_trial.close()
    device = run_device(urls=[server.url], n_skipped=1)
    device.wait_for_check()
    assert (device.version, device.store.state.refused) == ("7", (refused_digest,))


def test_device_answers_while_the_store_cannot_be_written(
    device_on_trial, fleet, clock, monkeypatch
):
    """For example on a full disk during a trial."""

    def raise_full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("gatewise_edge.update.state.replace_file", raise_full)
    clock.now += 100.0  # so that the counts of the trial are due to be saved
    device_on_trial.updater.observe(device_on_trial.device.answer(SURE_ROW))
    device_on_trial.announce()
    wait_until(lambda: device_on_trial.updater.trouble is not None, "the trouble", TIMEOUT_S)
    assert "No space left" in device_on_trial.updater.trouble
    assert device_on_trial.device.answer(SURE_ROW).route == "edge"
    fleet.publish("9")
    device_on_trial.wait_for_check()
    assert device_on_trial.version == "8"
    monkeypatch.undo()
    device_on_trial.wait_for_version("9")
    wait_until(lambda: device_on_trial.updater.trouble is None, "the end of the trouble", TIMEOUT_S)


def test_remainder_of_another_release_is_removed(run_device, fleet, server, monkeypatch):
    """Its space is free before the disk is checked for the space of all new files together."""
    n_free_bytes = 0
    partial_names = []  # the content of the folder at each look at the free space

    def disk_usage(path):
        partial_names.append(sorted(entry.name for entry in device.store.partial_folder.iterdir()))
        return SimpleNamespace(free=n_free_bytes)

    device = run_device(urls=[server.url])
    remainder = device.store.partial_folder / "withdrawn"
    remainder.mkdir()
    (remainder / "stage_0.onnx").write_bytes(b"0")
    offer = fleet.publish("8")
    release_file = fleet.folder / f"targets/small/8/{offer.digest}.release.json"
    sizes = [spec.size for spec in Release.from_json(release_file.read_bytes()).files.values()]
    n_needed_bytes = sum(sizes) + store_module._SPARE_BYTES
    n_free_bytes = n_needed_bytes - 1  # enough for each file alone
    monkeypatch.setattr("gatewise_edge.update.store.shutil.disk_usage", disk_usage)
    device.wait_for_refusal("store", "7")
    assert f"in {device.store.folder}: its missing files have {sum(sizes)} bytes, and" in (
        device.updater.trouble
    )
    assert f"{n_free_bytes} are free" in device.updater.trouble
    assert partial_names[0] == [offer.digest]
    assert server.requested_files("8") == ["release.json"]
    n_free_bytes = n_needed_bytes
    device.wait_for_version("8")


def test_only_one_device_updates_from_a_store(run_device):
    first_device = run_device()
    first_device.wait_for_check()
    second_device = run_device()
    wait_until(lambda: second_device.updater.trouble is not None, "the trouble", TIMEOUT_S)
    assert "locked by another process" in second_device.updater.trouble
    with pytest.raises(UpdateError):
        second_device.store.lock()
    first_device.close()
    second_device.wait_for_check()
    assert second_device.updater.trouble is None
