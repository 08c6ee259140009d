"""The attacks in the specification of The Update Framework are refused while the device answers.

A malicious mirror, or somebody with a stolen key, serves files over a real HTTP server. The device
must keep its release, report that updates do not work, and run the published release after the
attack.
"""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from tuf.api.metadata import Metadata

from gatewise_export.repository import repository as repository_module
from gatewise_export.repository.repository import LIFETIME_DAYS, Repository, read_signer
from tests.edge.update.conftest import TIMEOUT_S, Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # attacks wait for timeouts


def copy_repository(fleet, name):
    return shutil.copytree(fleet.folder, fleet.folder.with_name(name))


def set_version(path, version, key):
    """Set the version of a metadata file, and sign it with a key."""
    metadata = Metadata.from_file(str(path))
    metadata.signed.version = version
    metadata.signatures.clear()
    metadata.sign(read_signer(key), append=True)
    metadata.to_file(str(path))


@pytest.mark.parametrize(
    "damaged_pattern", ["", "timestamp.json", "snapshot.json", "targets.json", "*"]
)
def test_rollback_to_older_metadata_is_refused(device_at_8, fleet, server, damaged_pattern):
    """Once, a flipped bit in the trusted metadata made older metadata count as new."""
    old_folder = copy_repository(fleet, "old")
    fleet.publish("9")
    device_at_8.wait_for_version("9")
    device_at_8.pass_trial()
    fleet.repository.rollback()
    device_at_8.wait_for_version("8")
    metadata_folder = device_at_8.store.folder / "metadata"
    for path in metadata_folder.glob(damaged_pattern) if damaged_pattern else ():
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-20])  # cut off, so that it is no valid JSON
    server.folder = old_folder
    device_at_8.wait_for_refusal("metadata", "8")
    server.folder = fleet.folder
    fleet.publish("10")
    device_at_8.wait_for_version("10")


def test_freeze_by_a_mirror_that_never_changes_is_detected(device_at_8, fleet, server, monkeypatch):
    """The metadata of the mirror expires."""
    monkeypatch.setitem(LIFETIME_DAYS, "timestamp", 2.0 / 86400)  # two seconds
    fleet.repository.refresh()
    device_at_8.wait_for_check()
    assert device_at_8.updater.trouble is None
    time.sleep(2.5)  # until the timestamp has expired
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
    file_names = sorted(path.name for path in (fleet.folder / "metadata").glob("*.targets.json"))
    newest_name = max(file_names, key=lambda name: int(name.split(".")[0]))
    (fleet.folder / "metadata" / newest_name).write_bytes(
        max((old_folder / "metadata").glob("*.targets.json")).read_bytes()
    )
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
    for path in (fleet.folder / "targets/small/9").glob("*.manifest.json"):
        content = path.read_bytes()
        path.write_bytes(content.replace(b'"9"', b'"6"'))  # of the same length
    device_at_8.wait_for_refusal("fetch", "8")
    path.write_bytes(content)
    device_at_8.wait_for_version("9")


def test_stolen_timestamp_key_cannot_fast_forward_a_device_for_good(device_at_8, fleet, server):
    """The attacker signs a huge version with the stolen key; rotating the key ends the attack."""
    keys = fleet.repository.keys
    stolen_key = keys.with_name("stolen.key")
    shutil.copy(keys / "timestamp-1.key", stolen_key)
    evil_folder = copy_repository(fleet, "evil")
    huge_version = 1 << 40
    set_version(evil_folder / "metadata/timestamp.json", huge_version, stolen_key)
    server.folder = evil_folder
    device_at_8.wait_for_check()
    server.folder = fleet.folder
    fleet.publish("9")
    device_at_8.wait_for_refusal("metadata", "8")  # the true metadata has a smaller version
    fleet.repository.rotate_key("timestamp")
    fleet.repository.rotate_key("snapshot")
    device_at_8.wait_for_version("9")
    # Signatures of the stolen key are now invalid.
    set_version(evil_folder / "metadata/timestamp.json", huge_version + 1, stolen_key)
    for path in (fleet.folder / "metadata").glob("*.root.json"):
        shutil.copy(path, evil_folder / "metadata")
    server.folder = evil_folder
    device_at_8.pass_trial()
    device_at_8.wait_for_refusal("metadata", "9")


def test_huge_version_of_targets_is_recovered_by_rotating_the_snapshot_key(device_at_8, fleet):
    """The keys of targets need no rotation, because the snapshot has their version."""
    repository = fleet.repository
    true_version = repository._metadata["targets"].signed.version
    for version in (true_version + 100, true_version):
        with repository._locked():
            repository._metadata["targets"].signed.version = version
            repository._write_metadata("targets", "snapshot", "timestamp")
        if version > true_version:
            device_at_8.wait_for_check()
    fleet.publish("9")
    device_at_8.wait_for_refusal("metadata", "8")
    repository.rotate_key("snapshot")
    repository.rotate_key("timestamp")
    device_at_8.wait_for_version("9")


def test_rotation_ends_an_attack_with_all_online_keys(device_at_8, fleet, server, tmp_path):
    """The operator, who has the root key, replaces the stolen keys."""
    stolen_keys = tmp_path / "stolen"
    shutil.copytree(fleet.repository.keys, stolen_keys)
    evil_folder = copy_repository(fleet, "evil")
    for role in ("targets", "snapshot", "timestamp"):
        fleet.repository.rotate_key(role)
    device_at_8.wait_for_check()
    thief_repository = Repository(evil_folder, stolen_keys)
    for _ in range(5):  # so that its versions are higher than those of the fleet
        thief_repository.publish("small/8", 0.5)
    for path in (fleet.folder / "metadata").glob("*.root.json"):
        shutil.copy(path, evil_folder / "metadata")
    server.folder = evil_folder
    device_at_8.wait_for_refusal("metadata", "8")
    server.folder = fleet.folder
    fleet.publish("9")
    device_at_8.wait_for_version("9")


def test_root_keys_have_a_threshold_and_are_replaced(
    run_device, tmp_path, first_path, make_bundle, server
):
    repository = Repository.init(tmp_path / "three", root_keys=3, threshold=2)
    trust = repository.root_file.read_bytes()
    (tmp_path / "trust.json").write_bytes(trust)
    for _ in range(4):
        repository.rotate_key("root")
    # Keys 5 to 7 are the current ones after four rotations. Two of the three are enough.
    (repository.keys / "root-7.key").unlink()
    repository.rotate_key("timestamp")
    repository.add(make_bundle("v8", version="8").path)
    repository.publish("small/8")
    server.folder = repository.folder
    device = run_device(urls=[server.url], trust=tmp_path / "trust.json")
    device.wait_for_version("8")
    for path in list(repository.keys.glob("root-*.key"))[1:]:  # all but one
        path.unlink()
    with pytest.raises(Exception, match="must sign"):
        repository.rotate_key("timestamp")


# -- endless, slow and invalid responses ---------------------------------------------------


def send_endless_body(handler):
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)


# The pauses are shorter than the timeout of a read, so that only a limit on the whole time ends
# the request.


def repeat_forever(handler, content, pause_s):
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
    handler.send_header("Content-Length", "5000")  # takes 250 s
    handler.end_headers()
    repeat_forever(handler, b"{", 0.05)


def send_redirect(handler):
    handler.send_response(302)
    handler.send_header("Location", "http://127.0.0.1:1/elsewhere")
    handler.end_headers()


def send_garbage(handler):
    handler.wfile.write(b"\x00\xff not HTTP at all\r\n\r\n")


def send_nothing(handler):
    time.sleep(TIMEOUT_S)


@pytest.mark.parametrize(
    "send_fault",
    [
        send_endless_body,
        send_endless_headers,
        send_endless_continue,
        send_slowly,
        send_redirect,
        send_garbage,
        send_nothing,
    ],
)
def test_update_succeeds_after_a_server_with_faults(
    device_at_8, fleet, server, send_fault, monkeypatch
):
    """Once, slow headers and 100 Continue blocked the updater for ever."""
    fleet.publish("9")
    server.handlers["/metadata/timestamp.json"] = send_fault
    with monkeypatch.context() as patch:
        # Shorter than the 60 s of a real device, so that the test is short.
        patch.setattr("gatewise_export.repository.client._METADATA_SECONDS", 0.5)
        device_at_8.wait_for_refusal("fetch", "8")
    server.handlers.clear()
    device_at_8.wait_for_version("9")
    # The same fault for a file of a release.
    device_at_8.pass_trial()
    fleet.publish("10")
    path = next((fleet.folder / "targets/small/10").glob("*.manifest.json"))
    server.handlers[f"/targets/small/10/{path.name}"] = send_fault
    with monkeypatch.context() as patch:
        patch.setattr(device_at_8.updater._client, "_max_fetch_s", 0.5)
        device_at_8.wait_for_refusal("fetch", "9")
    server.handlers.clear()
    device_at_8.wait_for_version("10")


@pytest.mark.parametrize(
    "send_fault", [send_endless_headers, send_endless_continue, send_slowly, send_nothing]
)
def test_closing_does_not_wait_for_a_slow_server(device_at_8, server, send_fault):
    server.handlers[""] = send_fault
    n_requests_before = len(server.requested_paths)
    device_at_8.announce()
    wait_until(lambda: len(server.requested_paths) > n_requests_before, "a check", TIMEOUT_S)
    started_at = time.monotonic()
    device_at_8.updater.close()
    assert time.monotonic() - started_at < 3.0  # closing gives up after 5 s
    assert device_at_8.updater._thread is None


def test_mirror_is_used_after_a_failure(run_device, fleet, server):
    broken_server = Server(fleet.folder)
    broken_server.handlers[""] = send_redirect
    try:
        device = run_device(urls=[broken_server.url, server.url])
        fleet.publish("8")
        device.wait_for_version("8")
    finally:
        broken_server.close()


# -- publishers ----------------------------------------------------------------------------


def test_two_publishers_do_not_split_a_fleet(run_device, fleet, make_bundle):
    """Each change has its own version; once, two changes could have the same serial number."""
    for version in ("8", "9"):
        fleet.add(version)
    publishers = fleet.repository, Repository(fleet.folder)
    release_names = ("small/8", "small/9")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda publisher, name: publisher.publish(name), publishers, release_names))
    offers = Repository(fleet.folder).offers()
    assert sorted(offer.serial for offer in offers) == [1, 2]
    device = run_device()
    device.wait_for_version(offers[0].version)


def test_publisher_with_a_clock_in_2036_can_publish_again(device_at_8, fleet, monkeypatch):
    """Once, its serial number made every later announcement older."""

    class DatetimeIn2036(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=3650)  # ten years

    monkeypatch.setattr(repository_module, "datetime", DatetimeIn2036)
    fleet.publish("9")
    monkeypatch.undo()
    assert datetime.now(UTC).year < 2030
    device_at_8.wait_for_version("9")
    device_at_8.pass_trial()
    fleet.publish("10")
    device_at_8.wait_for_version("10")
