from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from gatewise.errors import InputError
from gatewise_edge.update.store import State, Store, Version
from gatewise_export.repository.errors import UpdateError


@pytest.fixture
def store(tmp_path, keys):
    return Store(tmp_path / "store", public_key=keys.pub)


@pytest.fixture
def put(store, make_gwb, announce):
    """A function that puts a version into the store and in force."""

    def put(version, serial):
        source = make_gwb(version)
        made = Version.from_announcement(announce(source, "https://x/y", serial))
        store.keep(shutil.copy(source, store.partial / "x.part"), made.sha256)
        store.switch(made)
        return made

    return put


def test_an_empty_store(store):
    assert store.active() is store.start() is None
    assert store.state() == State()
    assert store.roll_back() is None


def test_the_last_two_versions_are_kept(store, put):
    store.lock()
    made = [put(str(v), v) for v in (8, 9, 10)]
    store.tidy()
    assert store.active() == store.path(made[2].sha256)
    assert {p.stem for p in store.bundles.iterdir()} == {v.sha256 for v in made[1:]}
    assert store.roll_back() == made[1]
    assert store.active() == store.path(made[1].sha256)
    assert store.state().refused == (made[2],)
    assert store.state().serial == 10
    assert store.roll_back() is None
    assert store.active() is None


def test_a_damaged_bundle_is_not_given(store, put, keys):
    old, new = put("8", 1), put("9", 2)
    path = store.path(new.sha256)
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert store.active() == store.path(old.sha256)
    path.unlink()
    assert store.active() == store.path(old.sha256)
    store.path(old.sha256).write_bytes(b"")
    assert store.active() is None


def test_a_bundle_by_another_key_is_not_given(store, put, keys):
    put("8", 1)
    assert store.active() is not None
    assert Store(store.folder, public_key=keys.other_pub).active() is None
    assert Store(store.folder).active() == store.active()


@pytest.mark.parametrize("text", ["", "{}", "[]", "x" * 100_000, '{"store": 2}'])
def test_a_state_that_cannot_be_read_is_an_empty_one(store, put, text):
    put("8", 1)
    (store.folder / "state.json").write_text(text)
    assert store.state() == State()
    assert store.active() is None


def test_a_state_that_leaves_the_folder_is_refused(store, put):
    put("8", 1)
    document = json.loads((store.folder / "state.json").read_text())
    document["current"]["sha256"] = "../" * 20 + "etc/"
    (store.folder / "state.json").write_text(json.dumps(document))
    assert store.active() is None


def test_one_process_alone_updates(store):
    store.lock()
    probe = (
        "import sys; from gatewise_edge.update import Store, UpdateError\n"
        "try: Store(sys.argv[1]).lock()\n"
        "except UpdateError as error: sys.exit(str(error))"
    )
    command = [sys.executable, "-c", probe, str(store.folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "is kept by another process" in done.stderr
    store.unlock()
    store.unlock()
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_what_a_killed_process_left_is_removed(store, put):
    kept = put("8", 1)
    (store.bundles / ("0" * 64 + ".gwb")).write_bytes(b"left over")
    (store.folder / ".state.json.77").write_text("half")
    (store.partial / "abc.part").write_bytes(b"to go on with")
    store.lock()
    assert [p.stem for p in store.bundles.iterdir()] == [kept.sha256]
    assert not list(store.folder.glob(".state*"))
    assert (store.partial / "abc.part").exists()


def test_a_version_that_ends_its_process_goes_after_three_starts(store, put):
    old = put("8", 1)
    store.passed()
    new = put("9", 2)
    for _ in range(3):
        assert store.start() == store.path(new.sha256)
    assert store.start() == store.path(old.sha256)
    assert store.state().refused == (new,)
    for _ in range(5):
        assert store.start() == store.path(old.sha256)


def test_a_process_that_ends_in_good_order_does_not_count(store, put):
    put("8", 1)
    new = put("9", 2)
    for _ in range(5):
        assert store.start() == store.path(new.sha256)
        store.stopped()
    store.passed()
    for _ in range(5):
        assert store.start() == store.path(new.sha256)


def test_a_disk_that_cannot_be_written(store, put, tmp_path):
    put("8", 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        Store(tmp_path / "file" / "store")
    before = store.state()
    (store.folder / "state.json").unlink()
    (store.folder / "state.json").mkdir()
    with pytest.raises(UpdateError, match="cannot be written"):
        store.passed()
    assert before.trial
