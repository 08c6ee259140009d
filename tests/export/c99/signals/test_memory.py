"""Placement of buffers, which may share memory unless a step needs both."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise_export.c99.signals.memory import Buffer, place_buffers


@pytest.mark.parametrize("seed", range(20))
def test_buffers_of_the_same_step_do_not_overlap(seed):
    rng = np.random.default_rng(seed)
    n_steps = 16
    n_reserved = 7  # floats at the start that no buffer may use
    buffers = [
        Buffer(f"b{i}", int(rng.integers(1, 99)), frozenset(rng.integers(0, n_steps, 3).tolist()))
        for i in range(30)
    ]
    offsets, n_floats = place_buffers(buffers, n_reserved)
    for step in range(n_steps):
        n_uses = np.zeros(n_floats, int)  # of each float in this step
        for buffer in buffers:
            if step in buffer.steps:
                n_uses[offsets[buffer.name] :][: buffer.size] += 1
        assert n_uses.max(initial=0) <= 1
        assert not n_uses[:n_reserved].any()
    # Buffers of different steps share memory.
    assert n_floats < n_reserved + sum(buffer.size for buffer in buffers)


def test_a_buffer_fills_a_gap_of_its_size():
    steps_of_buffer = {"a": {0}, "b": {0, 1}, "c": {1}}
    buffers = [Buffer(name, 8, frozenset(steps)) for name, steps in steps_of_buffer.items()]
    assert place_buffers(buffers) == ({"a": 0, "b": 8, "c": 0}, 16)
