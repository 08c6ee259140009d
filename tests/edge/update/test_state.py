"""The state of a device's updates: two copies, either of which may be damaged."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from gatewise_edge.update.state import State, read_state, write_state

#: A state in which each field differs from its default.
STATE = State(
    revision=3, device="d", active="a", proved="b", previous="c", n_good=1, n_bad=2,
    trial_seconds=1.5, n_starts=1, n_bad_before=3, n_answers_before=9, postponed="w",
    postponed_s=2.5, n_postponements=1, refused=("x", "y"), seen_versions={"root": (4, "k,l")},
)  # fmt: skip


def test_state_is_read_as_it_was_written(tmp_path):
    assert read_state(tmp_path)[0].active == ""
    for state in (STATE, replace(STATE, trial_seconds=7, postponed_s=9)):  # whole seconds
        write_state(tmp_path, state)
        assert read_state(tmp_path) == (state, False)


@pytest.mark.parametrize("file_name", ["state.json", "state.copy.json"])
def test_other_copy_is_read_after_a_flipped_bit_or_a_cut(tmp_path, file_name):
    write_state(tmp_path, STATE)
    content = (tmp_path / file_name).read_bytes()
    rng = random.Random(0)
    for _ in range(200):  # random bits of a file of a few hundred bytes
        damaged_content = bytearray(content)
        damaged_content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (tmp_path / file_name).write_bytes(damaged_content)
        assert read_state(tmp_path) == (STATE, False)
    for length in (0, 1, len(content) // 2, len(content) - 2):
        (tmp_path / file_name).write_bytes(content[:length])
        assert read_state(tmp_path) == (STATE, False)


def test_new_state_has_a_random_device_and_no_releases():
    assert len(State().device) == 16  # 8 random bytes in hexadecimal digits
    state = State(device="d")
    assert (state.is_on_trial, state.digests, state.n_starts, state.refused) == (False, [], 0, ())
    assert replace(state, active="1", proved="0", previous="9").digests == ["1", "0"]
    assert replace(state, active="1", proved="1", previous="9").digests == ["1", "9"]


# One byte more than 64 KiB is read, so that a longer file is recognised by its cut content.
@pytest.mark.parametrize(("n_bytes", "is_read"), [((64 << 10) + 1, True), ((64 << 10) + 2, False)])
def test_copy_longer_than_64_kib_is_not_read(tmp_path, n_bytes, is_read):
    write_state(tmp_path, STATE)
    content = (tmp_path / "state.json").read_bytes().rstrip()
    for name in ("state.json", "state.copy.json"):
        (tmp_path / name).write_bytes(content.rjust(n_bytes))
    state, is_lost = read_state(tmp_path)
    assert (state == STATE, is_lost) == (is_read, not is_read)
