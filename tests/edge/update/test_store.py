"""The store: two copies of its state, releases known by their hashes, and no trouble that stops."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections import namedtuple

import pytest
from msgspec.structs import replace

from gatewise_edge.update import Store
from gatewise_edge.update.store import State, read_state, write_state
from gatewise_export.bundle.manifest_records import FileSpec
from gatewise_export.repository.release import RELEASE, Release, UpdateError

STATE = State(
    number=3, device="d", active="a", proved="b", previous="c", good=1, bad=2, seconds=1.5,
    starts=1, bad_before=3, answers_before=9, waiting="w", wait=2.5, waits=1,
    refused=("x", "y"), seen={"root": (4, "k,l")},
)  # fmt: skip


def test_the_state_is_read_as_it_was_written(tmp_path):
    assert read_state(tmp_path)[0].active == ""
    write_state(tmp_path, STATE)
    assert read_state(tmp_path) == (STATE, False)


def test_whole_seconds_are_read_as_they_were_written(tmp_path):
    write_state(tmp_path, replace(STATE, seconds=7, wait=9))
    assert read_state(tmp_path) == (replace(STATE, seconds=7.0, wait=9.0), False)


@pytest.mark.parametrize("name", ["state.json", "state.copy.json"])
def test_any_flipped_bit_or_cut_leaves_the_other_copy(tmp_path, name):
    write_state(tmp_path, STATE)
    content, rng = (tmp_path / name).read_bytes(), random.Random(0)
    for _ in range(200):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (tmp_path / name).write_bytes(damaged)
        assert read_state(tmp_path) == (STATE, False)
    for length in (0, 1, len(content) // 2, len(content) - 2):
        (tmp_path / name).write_bytes(content[:length])
        assert read_state(tmp_path) == (STATE, False)


def test_both_copies_lost_is_known(tmp_path):
    write_state(tmp_path, STATE)
    for name in ("state.json", "state.copy.json"):
        (tmp_path / name).write_bytes(b"")
    state, lost = read_state(tmp_path)
    assert lost
    assert state.active == ""
    kept = tmp_path / "bundles" / "0"
    kept.mkdir(parents=True)
    store = Store(tmp_path)
    store.save(active="1")
    store.tidy()
    assert kept.exists()  # which one was proved is not known any more


def test_the_newer_copy_counts(tmp_path):
    write_state(tmp_path, STATE)
    old = (tmp_path / "state.copy.json").read_bytes()
    store = Store(tmp_path)
    assert store.save(good=7)
    (tmp_path / "state.copy.json").write_bytes(old)  # killed between the two
    assert Store(tmp_path).state.good == 7


def test_starts_count_only_while_a_trial_has_no_answer(tmp_path):
    store = Store(tmp_path, pause=100.0)
    assert store.start() == []
    assert store.state.starts == 0
    store.save(active="1", proved="0")
    for _ in range(5):
        store.start()
    assert (store.state.active, store.state.starts) == ("1", 5)
    store.start()
    assert (store.state.active, store.state.waiting, store.state.wait) == ("0", "1", 100.0)
    store.save(active="1", starts=5)
    store.start()
    assert store.state.wait == 200.0


def test_a_folder_that_cannot_be_made_is_said_and_nothing_more(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "store")
    assert "cannot be written" in store.trouble
    assert store.start() == []
    assert not store.save(active="1")
    assert store.state.active == "1"  # in memory
    store.lock()  # what cannot be written has no other writer
    assert "cannot be written" in store.trouble
    store.tidy()
    assert len(caplog.records) == 1  # once


def test_one_process_updates(tmp_path):
    one, two = Store(tmp_path), Store(tmp_path)
    one.lock()
    one.lock()
    with pytest.raises(UpdateError, match="another process"):
        two.lock()
    one.unlock()
    one.unlock()
    two.lock()


def test_a_new_state_has_seen_nothing():
    state = State(device="d")
    assert state == State(
        number=0, device="d", active="", proved="", previous="", good=0, bad=0, seconds=0.0,
        starts=0, bad_before=0, answers_before=0, waiting="", wait=0.0, waits=0, refused=(),
        seen={},
    )  # fmt: skip
    assert len(State().device) == 16
    assert not state.on_trial
    assert state.digests == []
    assert replace(state, active="1", proved="0", previous="9").digests == ["1", "0"]
    assert replace(state, active="1", proved="1", previous="9").digests == ["1", "9"]


@pytest.mark.parametrize(("size", "is_read"), [((64 << 10) + 1, True), ((64 << 10) + 2, False)])
def test_a_copy_longer_than_64_kib_is_not_used(tmp_path, size, is_read):
    write_state(tmp_path, STATE)
    content = (tmp_path / "state.json").read_bytes().rstrip()
    for name in ("state.json", "state.copy.json"):
        (tmp_path / name).write_bytes(content.rjust(size))
    state, lost = read_state(tmp_path)
    assert (state == STATE, lost) == (is_read, not is_read)


def test_the_latest_sixteen_refusals_are_kept(tmp_path):
    store = Store(tmp_path)
    for number in range(20):
        store.refuse(str(number), active="x")
    assert store.state.refused == tuple(str(n) for n in range(4, 20))
    assert store.state.active == "x"


def test_only_its_owner_reads_a_store(tmp_path):
    store = Store(tmp_path / "store")
    store.lock()
    paths = [store.folder, store.bundles, store.partial]
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o700] * 3
    assert (store.folder / "lock").stat().st_mode & 0o777 == 0o600
    store.unlock()


# -- releases ------------------------------------------------------------------------------


def begun(store, **contents):
    """Digest and record of a release of some files, of which `release.json` is there."""
    files = {
        name.replace("_", "."): FileSpec(hashlib.sha256(content).hexdigest(), len(content))
        for name, content in contents.items()
    }
    release = Release(1, "m", str(len(files)), files, ("a",), "0.1.0", ())
    content = release.to_json()
    digest = hashlib.sha256(content).hexdigest()
    (store.partial / digest).mkdir()
    (store.partial / digest / RELEASE).write_bytes(content)
    return digest, release


def filled(store, first=None, **contents):
    """Digest of a release that was completed, and the names of the files that were fetched."""
    digest, release = begun(store, **contents)
    names = []

    def fetch(name, path):
        names.append(name)
        path.write_bytes(contents[name.replace(".", "_")])

    store.fill(digest, release, first, fetch)
    return digest, names


def test_files_that_another_release_holds_are_not_fetched_again(tmp_path):
    store = Store(tmp_path)
    (store.partial / "stale").mkdir()
    one, names = filled(store, a_npz=b"a", b_npz=b"b")
    assert names == ["a.npz", "b.npz"]
    assert store.is_whole(one)
    assert list(store.partial.iterdir()) == []
    two, names = filled(store, a_npz=b"a", b_npz=b"other", c_npz=b"c")
    assert names == ["b.npz", "c.npz"]
    assert (store.path(two) / "a.npz").read_bytes() == b"a"
    assert store.release(two).version == "3"
    assert store.digest(store.path(two)) == two
    assert store.digest(tmp_path / two) == ""


def test_files_of_the_first_bundle_are_not_fetched(tmp_path, bundle):
    """Devices hold bundles without the high-cost model."""
    first = tmp_path / "first"
    shutil.copytree(bundle.path, first)
    (first / "cloud.onnx").unlink()
    content = (first / "stage_0.npz").read_bytes()
    store = Store(tmp_path / "store")
    digest, release = begun(store)
    spec = FileSpec(hashlib.sha256(content).hexdigest(), len(content))
    release = replace(release, files={"stage_0.npz": spec})
    store.fill(digest, release, first, fetch=lambda *_: pytest.fail("fetched"))
    assert (store.path(digest) / "stage_0.npz").read_bytes() == content


def test_a_release_that_is_not_whole_is_completed_again(tmp_path, caplog):
    store = Store(tmp_path)
    digest, _ = filled(store, a_npz=b"a", b_npz=b"b")
    assert not store.is_whole("0" * 64)
    (store.path(digest) / "b.npz").write_bytes(b"x")
    assert not store.is_whole(digest)
    assert "b.npz is damaged" in caplog.text
    assert filled(store, a_npz=b"a", b_npz=b"b") == (digest, ["b.npz"])
    assert store.is_whole(digest)


def test_a_release_damaged_on_its_way_to_the_disk_is_refused(tmp_path):
    store = Store(tmp_path)
    digest, release = begun(store, a_npz=b"a")
    with pytest.raises(UpdateError, match="damaged on the disk"):
        store.fill(digest, release, None, lambda name, path: path.write_bytes(b"b"))
    assert not store.path(digest).exists()


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_release_needs_room_for_its_files_and_8_mib_to_spare(tmp_path, monkeypatch, lacking):
    usage = namedtuple("Usage", "free")((8 << 20) + 3 - lacking)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    store = Store(tmp_path)
    if lacking:
        with pytest.raises(UpdateError, match="it needs 8388611 bytes"):
            filled(store, a_npz=b"abc")
    else:
        assert filled(store, a_npz=b"abc")[1] == ["a.npz"]


def test_two_releases_are_kept_and_nothing_that_was_begun(tmp_path):
    store = Store(tmp_path)
    digests = [filled(store, **{f"{name}_npz": b"a"})[0] for name in "abc"]
    begun(store, d_npz=b"d")
    store.save(active=digests[2], proved=digests[2], previous=digests[0])
    store.tidy()
    assert {path.name for path in store.bundles.iterdir()} == {digests[0], digests[2]}
    assert list(store.partial.iterdir()) == []
    assert store.start() == [store.path(digests[2]), store.path(digests[0])]
