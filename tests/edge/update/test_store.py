"""The store: its state, releases named by their hashes, and failures of the disk."""

from __future__ import annotations

import hashlib
import shutil
from collections import namedtuple

import pytest
from msgspec.structs import replace

from gatewise_edge.update import Store
from gatewise_edge.update.state import State, read_state, write_state
from gatewise_export.bundle.manifest_records import FileSpec
from gatewise_export.repository.release import RELEASE_FILE, Release, UpdateError


def test_store_that_lost_both_copies_removes_no_release(tmp_path):
    write_state(tmp_path, State(active="a"))
    for name in ("state.json", "state.copy.json"):
        (tmp_path / name).write_bytes(b"")
    state, is_lost = read_state(tmp_path)
    assert is_lost
    assert state.active == ""
    release_folder = tmp_path / "bundles" / "0"
    release_folder.mkdir(parents=True)
    store = Store(tmp_path)
    store.save(active="1")
    store.remove_old_releases()
    assert release_folder.exists()  # it may be the one that passed its trial


def test_newer_copy_is_read(tmp_path):
    write_state(tmp_path, State(n_good=1))
    old_content = (tmp_path / "state.copy.json").read_bytes()
    store = Store(tmp_path)
    assert store.save(n_good=7)
    (tmp_path / "state.copy.json").write_bytes(old_content)  # as if killed between the two writes
    assert Store(tmp_path).state.n_good == 7


def test_starts_of_a_trial_are_counted_and_put_the_release_off(tmp_path):
    store = Store(tmp_path, first_pause_s=100.0)
    assert store.start() == []
    assert store.state.n_starts == 0
    store.save(active="1", proved="0")
    for _ in range(5):  # the most starts without an answer
        store.start()
    assert (store.state.active, store.state.n_starts) == ("1", 5)
    store.start()
    assert (store.state.active, store.state.postponed, store.state.postponed_s) == ("0", "1", 100.0)
    store.save(active="1", n_starts=5)
    store.start()
    assert store.state.postponed_s == 200.0  # twice the first pause


def test_folder_that_cannot_be_made_is_logged_once_and_stops_nothing(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "store")
    assert "cannot be written" in store.trouble
    assert store.start() == []
    assert not store.save(active="1")
    assert store.state.active == "1"  # in memory
    store.lock()  # a store that cannot be written needs no lock
    assert "cannot be written" in store.trouble
    store.remove_old_releases()
    assert len(caplog.records) == 1


def test_only_one_process_can_lock_the_store(tmp_path):
    first_store = Store(tmp_path)
    second_store = Store(tmp_path)
    first_store.lock()
    first_store.lock()
    with pytest.raises(UpdateError, match="another process"):
        second_store.lock()
    first_store.unlock()
    first_store.unlock()
    second_store.lock()


def test_state_has_the_latest_sixteen_refused_releases(tmp_path):
    store = Store(tmp_path)
    for number in range(20):
        store.refuse(str(number), active="x")
    assert store.state.refused == tuple(str(number) for number in range(4, 20))
    assert store.state.active == "x"


def test_store_is_readable_by_its_owner_only(tmp_path):
    store = Store(tmp_path / "store")
    store.lock()
    paths = [store.folder, store.bundle_folder, store.partial_folder]
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o700] * 3
    assert (store.folder / "lock").stat().st_mode & 0o777 == 0o600
    store.unlock()


# -- releases ------------------------------------------------------------------------------


def begin_release(store, **contents):
    """Begin a release of some files with its `release.json`; return its digest and record.

    The key ``a_npz`` of `contents` stands for the file ``a.npz``.
    """
    files = {
        name.replace("_", "."): FileSpec(hashlib.sha256(content).hexdigest(), len(content))
        for name, content in contents.items()
    }
    release = Release(
        release=1, model="m", version=str(len(files)), files=files, features=("a",),
        runtime="0.1.0", hardware=(),
    )  # fmt: skip
    content = release.to_json()
    digest = hashlib.sha256(content).hexdigest()
    (store.partial_folder / digest).mkdir()
    (store.partial_folder / digest / RELEASE_FILE).write_bytes(content)
    return digest, release


def complete_release(store, first_path=None, **contents):
    """Complete a release; return its digest and the names of the fetched files."""
    digest, release = begin_release(store, **contents)
    fetched_names = []

    def fetch(name, path):
        fetched_names.append(name)
        path.write_bytes(contents[name.replace(".", "_")])

    store.complete_release(digest, release, first_path, fetch)
    return digest, fetched_names


def test_files_of_another_release_are_not_fetched_again(tmp_path):
    store = Store(tmp_path)
    (store.partial_folder / "stale").mkdir()
    first_digest, fetched_names = complete_release(store, a_npz=b"a", b_npz=b"b")
    assert fetched_names == ["a.npz", "b.npz"]
    assert store.is_complete(first_digest)
    assert list(store.partial_folder.iterdir()) == []
    second_digest, fetched_names = complete_release(store, a_npz=b"a", b_npz=b"other", c_npz=b"c")
    assert fetched_names == ["b.npz", "c.npz"]
    assert (store.path(second_digest) / "a.npz").read_bytes() == b"a"
    assert store.read_release(second_digest).version == "3"
    assert store.digest_of(store.path(second_digest)) == second_digest
    assert store.digest_of(tmp_path / second_digest) == ""


def test_files_of_the_first_bundle_are_not_fetched(tmp_path, bundle):
    """The first bundle of a device may lack the high-cost model."""
    first_path = tmp_path / "first"
    shutil.copytree(bundle.path, first_path)
    (first_path / "cloud.onnx").unlink()
    content = (first_path / "stage_0.npz").read_bytes()
    store = Store(tmp_path / "store")
    digest, release = begin_release(store)
    spec = FileSpec(hashlib.sha256(content).hexdigest(), len(content))
    release = replace(release, files={"stage_0.npz": spec})
    store.complete_release(digest, release, first_path, fetch=lambda *_: pytest.fail("fetched"))
    assert (store.path(digest) / "stage_0.npz").read_bytes() == content


def test_damaged_release_is_completed_again(tmp_path, caplog):
    store = Store(tmp_path)
    digest, _ = complete_release(store, a_npz=b"a", b_npz=b"b")
    assert not store.is_complete("0" * 64)
    (store.path(digest) / "b.npz").write_bytes(b"x")
    assert not store.is_complete(digest)
    assert "b.npz is damaged" in caplog.text
    assert complete_release(store, a_npz=b"a", b_npz=b"b") == (digest, ["b.npz"])
    assert store.is_complete(digest)


def test_release_with_a_damaged_file_is_refused(tmp_path):
    store = Store(tmp_path)
    digest, release = begin_release(store, a_npz=b"a")
    with pytest.raises(UpdateError, match="damaged on the disk"):
        store.complete_release(digest, release, None, lambda name, path: path.write_bytes(b"b"))
    assert not store.path(digest).exists()


@pytest.mark.parametrize("n_lacking_bytes", [0, 1])
def test_release_needs_disk_space_for_its_files_and_8_mib(tmp_path, monkeypatch, n_lacking_bytes):
    # The file below has three bytes.
    usage = namedtuple("Usage", "free")((8 << 20) + 3 - n_lacking_bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    store = Store(tmp_path)
    if n_lacking_bytes:
        with pytest.raises(UpdateError, match="its missing files have 3 bytes, and 8388608"):
            complete_release(store, a_npz=b"abc")
    else:
        assert complete_release(store, a_npz=b"abc")[1] == ["a.npz"]


def test_removal_keeps_two_releases_and_removes_incomplete_ones(tmp_path):
    store = Store(tmp_path)
    digests = [complete_release(store, **{f"{name}_npz": b"a"})[0] for name in "abc"]
    begin_release(store, d_npz=b"d")
    store.save(active=digests[2], proved=digests[2], previous=digests[0])
    store.remove_old_releases()
    assert {path.name for path in store.bundle_folder.iterdir()} == {digests[0], digests[2]}
    assert list(store.partial_folder.iterdir()) == []
    assert store.start() == [store.path(digests[2]), store.path(digests[0])]
