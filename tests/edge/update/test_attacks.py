"""The attacks of The Update Framework's specification: refused, and answers go on.

A mirror or a thief of a key serves what it likes over a real HTTP server. The device must keep what
it has, say that updates do not work, and reach the published release once the attack is over.
"""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from tuf.api.metadata import Metadata

from gatewise_export.repository import repository as repository_module
from gatewise_export.repository.repository import LIFETIMES, Repository, read_signer
from tests.edge.update.conftest import PATIENCE, Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # attacks take their time


def copy(fleet, name):
    return shutil.copytree(fleet.folder, fleet.folder.with_name(name))


def signed(path, *keys):
    """Sign changed metadata again with some keys."""
    metadata = Metadata.from_file(str(path))

    def sign(change):
        change(metadata.signed)
        metadata.signatures.clear()
        for key in keys:
            metadata.sign(read_signer(key), append=True)
        metadata.to_file(str(path))

    return sign


@pytest.mark.parametrize("damaged", ["", "timestamp.json", "snapshot.json", "targets.json", "*"])
def test_rollback(at_8, fleet, server, damaged):
    """An older state as it was signed; a flipped bit in trusted metadata made it count as new."""
    old = copy(fleet, "old")
    fleet.publish("9")
    at_8.reaches("9")
    at_8.passes()
    fleet.repository.rollback()
    at_8.reaches("8")
    for path in (at_8.store.folder / "metadata").glob(damaged) if damaged else ():
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-20])
    server.folder = old
    at_8.refuses("metadata", "8")
    server.folder = fleet.folder
    fleet.publish("10")
    at_8.reaches("10")


def test_freeze(at_8, fleet, server, monkeypatch):
    """A mirror that never changes: what it shows expires."""
    monkeypatch.setitem(LIFETIMES, "timestamp", 2.0 / 86400)
    fleet.repository.refresh()
    at_8.settled()
    assert at_8.updater.trouble is None
    time.sleep(2.5)
    at_8.refuses("metadata", "8")
    assert "expired" in at_8.updater.trouble
    monkeypatch.undo()
    fleet.repository.refresh()
    at_8.settled()
    assert at_8.updater.trouble is None


def test_mix_and_match(at_8, fleet, server):
    """Targets of one state under the snapshot of another."""
    old = copy(fleet, "old")
    fleet.publish("9")
    names = sorted(path.name for path in (fleet.folder / "metadata").glob("*.targets.json"))
    newest = max(names, key=lambda name: int(name.split(".")[0]))
    (fleet.folder / "metadata" / newest).write_bytes(
        max((old / "metadata").glob("*.targets.json")).read_bytes()
    )
    at_8.refuses("metadata", "8")


def test_forged_files(at_8, fleet, server, tmp_path):
    """A repository of somebody else's, and files that are not the signed ones."""
    other = Repository.init(tmp_path / "other")
    for _ in range(20):
        other.refresh()
    server.folder = other.folder
    at_8.refuses("metadata", "8")
    server.folder = fleet.folder
    fleet.publish("9")
    for path in (fleet.folder / "targets/small/9").glob("*.manifest.json"):
        good = path.read_bytes()
        path.write_bytes(good.replace(b'"9"', b'"6"'))
    at_8.refuses("fetch", "8")
    path.write_bytes(good)
    at_8.reaches("9")


def test_stolen_timestamp_key_cannot_fast_forward_a_device_for_good(at_8, fleet, server):
    """Versions near the end of all numbers, signed by a stolen key; rotation ends it."""
    keys = fleet.repository.keys
    stolen = keys / "timestamp-1.key", keys / "snapshot-1.key"
    kept = [path.read_bytes() for path in stolen]
    evil = copy(fleet, "evil")
    thief = [keys.with_name("a.key"), keys.with_name("b.key")]
    for path, content in zip(thief, kept, strict=True):
        path.write_bytes(content)
    far = 1 << 40

    def forward(signed_part):
        signed_part.version = far

    signed(evil / "metadata/timestamp.json", thief[0])(forward)
    server.folder = evil
    at_8.settled()
    server.folder = fleet.folder
    fleet.publish("9")
    at_8.refuses("metadata", "8")  # the honest metadata are older now
    fleet.repository.rotate_key("timestamp")
    fleet.repository.rotate_key("snapshot")
    at_8.reaches("9")
    # What the thief signs counts for nothing any more.
    signed(evil / "metadata/timestamp.json", thief[0])(lambda s: setattr(s, "version", far + 1))
    for path in (fleet.folder / "metadata").glob("*.root.json"):
        shutil.copy(path, evil / "metadata")
    server.folder = evil
    at_8.passes()
    at_8.refuses("metadata", "9")


def test_targets_that_jumped_ahead_are_recovered_by_rotating_snapshot_keys(at_8, fleet):
    """The keys of targets stay: the snapshot is what remembers their version."""
    repository = fleet.repository
    restored = repository._signed["targets"].signed.version
    for version in (restored + 100, restored):
        with repository._changing():
            repository._signed["targets"].signed.version = version
            repository._write("targets", "snapshot", "timestamp")
        if version > restored:
            at_8.settled()
    fleet.publish("9")
    at_8.refuses("metadata", "8")
    repository.rotate_key("snapshot")
    repository.rotate_key("timestamp")
    at_8.reaches("9")


def test_a_thief_of_all_online_keys_is_locked_out_by_rotation(at_8, fleet, server, tmp_path):
    """The operator, who has the root key, replaces what was stolen."""
    stolen = tmp_path / "stolen"
    shutil.copytree(fleet.repository.keys, stolen)
    evil = copy(fleet, "evil")
    for role in ("targets", "snapshot", "timestamp"):
        fleet.repository.rotate_key(role)
    at_8.settled()
    thief = Repository(evil, stolen)
    for _ in range(5):
        thief.publish("small/8", 0.5)
    for path in (fleet.folder / "metadata").glob("*.root.json"):
        shutil.copy(path, evil / "metadata")
    server.folder = evil
    at_8.refuses("metadata", "8")
    server.folder = fleet.folder
    fleet.publish("9")
    at_8.reaches("9")


def test_root_keys_have_a_threshold_and_are_replaced(run, tmp_path, first, make_bundle, server):
    repository = Repository.init(tmp_path / "three", root_keys=3, threshold=2)
    trust = repository.root_file.read_bytes()
    (tmp_path / "trust.json").write_bytes(trust)
    for _ in range(4):
        repository.rotate_key("root")
    (repository.keys / "root-7.key").unlink()  # one is lost: two are enough
    repository.rotate_key("timestamp")
    repository.add(make_bundle("v8", version="8").path)
    repository.publish("small/8")
    server.folder = repository.folder
    device = run(urls=[server.url], trust=tmp_path / "trust.json")
    device.reaches("8")
    for path in list(repository.keys.glob("root-*.key"))[1:]:
        path.unlink()
    with pytest.raises(Exception, match="must sign"):
        repository.rotate_key("timestamp")


# -- endless, slow, broken -----------------------------------------------------------------


def endless_body(handler):
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)


def repeat(handler, content, pause):
    while True:
        handler.wfile.write(content)
        time.sleep(pause)


def endless_headers(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    repeat(handler, b"x", 0.05)


def endless_continue(handler):
    repeat(handler, b"HTTP/1.1 100 Continue\r\n\r\n", 0.01)


def trickle(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    repeat(handler, b"{", 0.05)


def redirect(handler):
    handler.send_response(302)
    handler.send_header("Location", "http://127.0.0.1:1/elsewhere")
    handler.end_headers()


def garbage(handler):
    handler.wfile.write(b"\x00\xff not HTTP at all\r\n\r\n")


def silent(handler):
    time.sleep(PATIENCE)


@pytest.mark.parametrize(
    "behave",
    [endless_body, endless_headers, endless_continue, trickle, redirect, garbage, silent],
)
def test_bad_servers_burn_nothing(at_8, fleet, server, behave, monkeypatch):
    """A bad redirect burnt a serial; slow headers and 100 Continue held the updater for ever."""
    fleet.publish("9")
    server.behave["/metadata/timestamp.json"] = behave
    with monkeypatch.context() as patch:
        patch.setattr("gatewise_export.repository.client._METADATA_SECONDS", 0.5)
        at_8.refuses("fetch", "8")
    server.behave.clear()
    at_8.reaches("9")
    # The same with a file of a release.
    at_8.passes()
    fleet.publish("10")
    path = next((fleet.folder / "targets/small/10").glob("*.manifest.json"))
    server.behave[f"/targets/small/10/{path.name}"] = behave
    with monkeypatch.context() as patch:
        patch.setattr(at_8.updater._client, "_longest", 0.5)
        at_8.refuses("fetch", "9")
    server.behave.clear()
    at_8.reaches("10")


@pytest.mark.parametrize("behave", [endless_headers, endless_continue, trickle, silent])
def test_closing_does_not_wait_for_a_slow_server(at_8, server, behave):
    server.behave[""] = behave
    asked = len(server.asked)
    at_8.news()
    wait_until(lambda: len(server.asked) > asked, "a check", PATIENCE)
    began = time.monotonic()
    at_8.updater.close()
    assert time.monotonic() - began < 3.0
    assert at_8.updater._thread is None


def test_another_place_is_used_after_a_failure(run, fleet, server):
    broken = Server(fleet.folder)
    broken.behave[""] = redirect
    try:
        device = run(urls=[broken.url, server.url])
        fleet.publish("8")
        device.reaches("8")
    finally:
        broken.close()


# -- publishers ----------------------------------------------------------------------------


def test_two_publishers_do_not_split_a_fleet(run, fleet, make_bundle):
    """Two with one serial did; here each change is a version of its own."""
    for version in ("8", "9"):
        fleet.add(version)
    two = fleet.repository, Repository(fleet.folder)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one, name: one.publish(name), two, ("small/8", "small/9")))
    offers = Repository(fleet.folder).offers()
    assert sorted(offer.serial for offer in offers) == [1, 2]
    device = run()
    device.reaches(offers[0].version)


def test_publisher_with_a_clock_in_2036_can_publish_again(at_8, fleet, monkeypatch):
    """Its serial made every later announcement an old one."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=3650)

    monkeypatch.setattr(repository_module, "datetime", Ahead)
    fleet.publish("9")
    monkeypatch.undo()
    assert datetime.now(UTC).year < 2030
    at_8.reaches("9")
    at_8.passes()
    fleet.publish("10")
    at_8.reaches("10")
