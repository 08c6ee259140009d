"""The store: two copies of its state, releases known by their hashes, and no trouble that stops."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from gatewise_edge.update import Store
from gatewise_edge.update.store import State, read_state, write_state
from gatewise_export.repository.release import UpdateError

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
