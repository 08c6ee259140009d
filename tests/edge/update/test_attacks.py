"""The attacks in the specification of The Update Framework are refused while the device answers.

A malicious mirror, or somebody with a stolen key, serves files over a real HTTP server. The device
must keep its release, report that updates do not work, and run the published release after the
attack. Before a further release, tests pass the trial of the running one (`pass_trial`), as a
device in use mostly has.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from tuf.api.metadata import Metadata

from gatewise.errors import InputError
from gatewise_export.repository import repository as repository_module
from gatewise_export.repository.repository import LIFETIME_DAYS, Repository, read_signer
from tests.edge.update.conftest import TIMEOUT_S, Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # attacks wait for timeouts


def copy_repository(fleet, name):
    """Copy the files that the server offers; return the folder of the copy."""
    return shutil.copytree(fleet.folder, fleet.folder.with_name(name))


def copy_roots(fleet, folder):
    """Copy the fleet's root metadata, so that devices accept a repository at its newest root."""
    for path in (fleet.folder / "metadata").glob("*.root.json"):
        shutil.copy(path, folder / "metadata")


def find_newest_targets(folder):
    """Find the file of the newest targets in a repository; its name begins with its version."""
    paths = (folder / "metadata").glob("*.targets.json")
    return max(paths, key=lambda path: int(path.name.split(".")[0]))


def set_version(path, version, key_path):
    """Set the version of a metadata file, and sign it with a key."""
    metadata = Metadata.from_file(str(path))
    metadata.signed.version = version
    metadata.signatures.clear()
    metadata.sign(read_signer(key_path), append=True)
    metadata.to_file(str(path))


@pytest.mark.parametrize("damaged_pattern", [None, "snapshot.json", "*"])
def test_rollback_to_older_metadata_is_refused(device_at_8, fleet, server, damaged_pattern):
    """Also if the device's own metadata is damaged, which once made older metadata count as new."""
    old_folder = copy_repository(fleet, "old")
    fleet.publish("9")
    device_at_8.wait_for_version("9")
    device_at_8.pass_trial()
    fleet.repository.rollback()
    device_at_8.wait_for_version("8")
    metadata_folder = device_at_8.store.folder / "metadata"
    for path in metadata_folder.glob(damaged_pattern) if damaged_pattern else ():
        if path.is_file():  # not for the folder of the roots
            path.write_bytes(path.read_bytes()[:-20])  # without its end it is no valid JSON
    server.folder = old_folder
    device_at_8.wait_for_refusal("metadata", "8")
    server.folder = fleet.folder
    fleet.publish("10")
    device_at_8.wait_for_version("10")


def test_freeze_by_a_mirror_that_never_changes_is_detected(device_at_8, fleet, server, monkeypatch):
    """The metadata of the mirror expires."""
    # four seconds in days, in which a check of the unexpired metadata succeeds
    monkeypatch.setitem(LIFETIME_DAYS, "timestamp", 4.0 / 86400)
    fleet.repository.refresh()
    expired_at = time.monotonic() + 4.5  # the time of expiry is rounded to seconds
    device_at_8.wait_for_check()
    assert device_at_8.updater.trouble is None
    time.sleep(max(0.0, expired_at - time.monotonic()))
    device_at_8.wait_for_refusal("metadata", "8")
    assert "expired" in device_at_8.updater.trouble
    monkeypatch.undo()
    fleet.repository.refresh()
    device_at_8.wait_for_check()
    assert device_at_8.updater.trouble is None


def test_mix_of_two_states_is_refused(device_at_8, fleet, server):
    """The targets of one state are served with the snapshot of another."""
    old_folder = copy_repository(fleet, "old")
    fleet.publish("9")
    old_targets = find_newest_targets(old_folder).read_bytes()
    find_newest_targets(fleet.folder).write_bytes(old_targets)
    device_at_8.wait_for_refusal("metadata", "8")


def test_forged_files_are_refused(device_at_8, fleet, server, tmp_path):
    """The server has somebody else's repository, and then files that are not the signed ones."""
    foreign_repository = Repository.init(tmp_path / "other")
    for _ in range(20):  # so that its versions are higher than those of the fleet
        foreign_repository.refresh()
    server.folder = foreign_repository.folder
    device_at_8.wait_for_refusal("metadata", "8")
    server.folder = fleet.folder
    fleet.publish("9")
    (manifest_path,) = (fleet.folder / "targets/small/9").glob("*.manifest.json")
    manifest_bytes = manifest_path.read_bytes()
    # of the same length, so that only the hash differs
    manifest_path.write_bytes(manifest_bytes.replace(b'"9"', b'"6"'))
    device_at_8.wait_for_refusal("fetch", "8")
    manifest_path.write_bytes(manifest_bytes)
    device_at_8.wait_for_version("9")


def test_stolen_timestamp_key_cannot_fast_forward_a_device_for_good(device_at_8, fleet, server):
    """The attacker signs a huge version with the stolen key; rotating this key ends the attack."""
    keys_folder = fleet.repository.keys
    stolen_key_path = keys_folder.with_name("stolen.key")
    shutil.copy(keys_folder / "timestamp-1.key", stolen_key_path)
    evil_folder = copy_repository(fleet, "evil")
    huge_version = 1 << 40  # more than the fleet will ever publish
    set_version(evil_folder / "metadata/timestamp.json", huge_version, stolen_key_path)
    server.folder = evil_folder
    device_at_8.wait_for_check()
    server.folder = fleet.folder
    fleet.publish("9")
    device_at_8.wait_for_refusal("metadata", "8")  # the true metadata has a smaller version
    fleet.repository.rotate_key("timestamp")
    device_at_8.wait_for_version("9")
    # Signatures of the stolen key are now invalid.
    set_version(evil_folder / "metadata/timestamp.json", huge_version + 1, stolen_key_path)
    copy_roots(fleet, evil_folder)
    server.folder = evil_folder
    device_at_8.pass_trial()
    device_at_8.wait_for_refusal("metadata", "9")


def write_targets(repository, version):
    """Write targets of a version, which only somebody with the keys can, by private methods."""
    with repository._locked():
        repository._metadata["targets"].signed.version = version - 1  # writing adds 1
        repository._write_metadata("targets", "snapshot", "timestamp")


def test_huge_version_of_targets_is_recovered_by_rotating_the_snapshot_key(device_at_8, fleet):
    """The keys of targets need no rotation, because the snapshot has their version."""
    repository = fleet.repository
    true_version = repository._metadata["targets"].signed.version
    write_targets(repository, true_version + 100)
    device_at_8.wait_for_check()
    write_targets(repository, true_version + 1)
    fleet.publish("9")
    device_at_8.wait_for_refusal("metadata", "8")
    repository.rotate_key("snapshot")
    device_at_8.wait_for_version("9")


def test_rotation_ends_an_attack_with_all_online_keys(device_at_8, fleet, server, tmp_path):
    """The operator, who has the root key, replaces the stolen keys."""
    stolen_keys_folder = tmp_path / "stolen"
    shutil.copytree(fleet.repository.keys, stolen_keys_folder)
    evil_folder = copy_repository(fleet, "evil")
    for role in ("targets", "snapshot", "timestamp"):
        fleet.repository.rotate_key(role)
    device_at_8.wait_for_check()
    thief_repository = Repository(evil_folder, stolen_keys_folder)
    for _ in range(5):  # so that its versions are higher than those of the fleet
        thief_repository.publish("small/8", 0.5)
    copy_roots(fleet, evil_folder)
    server.folder = evil_folder
    device_at_8.wait_for_refusal("metadata", "8")
    server.folder = fleet.folder
    fleet.publish("9")
    device_at_8.wait_for_version("9")


def test_root_keys_have_a_threshold_and_are_replaced(
    run_device, tmp_path, first_path, make_bundle, server
):
    repository = Repository.init(tmp_path / "three", n_root_keys=3, threshold=2)
    trust_path = tmp_path / "trust.json"  # the first root, which the device has from the start
    shutil.copy(repository.root_file, trust_path)
    for _ in range(4):  # more than three, so that no key of the first root is left
        repository.rotate_key("root")
    # Keys 5 to 7 are the current ones. Two of the three are enough.
    (repository.keys / "root-7.key").unlink()
    repository.rotate_key("timestamp")
    repository.add(make_bundle("v8", version="8").path)
    repository.publish("small/8")
    server.folder = repository.folder
    device = run_device(urls=[server.url], trust=trust_path)
    device.wait_for_version("8")
    (repository.keys / "root-6.key").unlink()  # only key 5 is left
    with pytest.raises(InputError, match="must sign"):
        repository.rotate_key("timestamp")


# -- endless, slow and invalid responses ---------------------------------------------------


def send_endless_body(handler):
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)  # many bytes, to reach a limit on their number soon


def repeat_forever(handler, content, pause_s):
    """Send some bytes again and again.

    The pauses are shorter than the second after which a read of the device times out, so that only
    a limit on the whole time ends the request.
    """
    while True:
        handler.wfile.write(content)
        time.sleep(pause_s)


def send_endless_headers(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    repeat_forever(handler, b"x", 0.05)


def send_endless_continue(handler):
    repeat_forever(handler, b"HTTP/1.1 100 Continue\r\n\r\n", 0.01)


def send_slowly(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")  # takes 250 s at 0.05 s a byte
    handler.end_headers()
    repeat_forever(handler, b"{", 0.05)


def send_redirect(handler):
    handler.send_response(302)
    handler.send_header("Location", "http://127.0.0.1:1/elsewhere")  # nobody listens on port 1
    handler.end_headers()


def send_garbage(handler):
    handler.wfile.write(b"\x00\xff not HTTP at all\r\n\r\n")


def send_nothing(handler):
    time.sleep(TIMEOUT_S)  # longer than every timeout of the device


def test_updates_succeed_after_a_server_with_faults(device_at_8, fleet, server, monkeypatch):
    """Once, slow headers and 100 Continue blocked the updater for ever."""
    faults = (
        *(send_endless_body, send_endless_headers, send_endless_continue, send_slowly),
        *(send_redirect, send_garbage, send_nothing),
    )
    for number, send_fault in enumerate(faults, 9):
        fleet.publish(str(number))
        (manifest_path,) = (fleet.folder / f"targets/small/{number}").glob("*.manifest.json")
        with monkeypatch.context() as patch:
            # Shorter than the minutes of a real device, so that the test is short.
            patch.setattr("gatewise_export.repository.client._METADATA_SECONDS", 0.5)
            server.handlers = {"/metadata/timestamp.json": send_fault}
            device_at_8.wait_for_refusal("fetch", str(number - 1))
        with monkeypatch.context() as patch:
            patch.setattr("gatewise_export.repository.client._RELEASE_SECONDS", 0.5)
            server.handlers = {f"/targets/small/{number}/{manifest_path.name}": send_fault}
            device_at_8.wait_for_refusal("fetch", str(number - 1))
        server.handlers = {}
        device_at_8.wait_for_version(str(number))
        device_at_8.pass_trial()


@pytest.mark.parametrize("send_fault", [send_endless_headers, send_nothing])
def test_closing_does_not_wait_for_a_slow_server(device_at_8, server, send_fault):
    server.handlers[""] = send_fault
    n_requests_before = len(server.requested_paths)
    device_at_8.announce()
    wait_until(lambda: len(server.requested_paths) > n_requests_before, "a check", TIMEOUT_S)
    started_at = time.monotonic()
    device_at_8.updater.close()
    # closing gives up after 5 s, and otherwise ends at once, here on a busy machine
    assert time.monotonic() - started_at < 3.0
    assert device_at_8.updater._thread is None


def test_mirror_is_used_after_a_failure(run_device, fleet, server):
    broken_server = Server(fleet.folder)
    broken_server.handlers[""] = send_redirect
    with contextlib.closing(broken_server):
        device = run_device(urls=[broken_server.url, server.url])
        fleet.publish("8")
        device.wait_for_version("8")


# -- publishers ----------------------------------------------------------------------------


def test_two_publishers_do_not_split_a_fleet(run_device, fleet, make_bundle):
    """Each change has its own version; once, two changes could have the same serial number."""
    for version in ("8", "9"):
        fleet.add(version)
    publishers = fleet.repository, Repository(fleet.folder)
    release_names = ("small/8", "small/9")
    # both at once
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda publisher, name: publisher.publish(name), publishers, release_names))
    offers = Repository(fleet.folder).offers()
    assert sorted(offer.serial for offer in offers) == [1, 2]
    device = run_device()
    device.wait_for_version(offers[0].version)


def test_publisher_with_a_clock_ten_years_fast_can_publish_again(device_at_8, fleet, monkeypatch):
    """Once, the serial number that it wrote made every later announcement older."""

    class FastDatetime(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=3650)  # ten years

    monkeypatch.setattr(repository_module, "datetime", FastDatetime)
    fleet.publish("9")
    monkeypatch.undo()
    device_at_8.wait_for_version("9")
    device_at_8.pass_trial()
    fleet.publish("10")
    device_at_8.wait_for_version("10")
