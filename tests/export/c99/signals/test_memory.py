"""Placement of buffers, which may share memory unless a step needs both."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise_export.c99.signals.memory import Buffer, place_buffers


@pytest.mark.parametrize("seed", range(20))
def test_buffers_of_the_same_step_do_not_overlap(seed):
    rng = np.random.default_rng(seed)
    buffers = [
        Buffer(f"b{i}", int(rng.integers(1, 99)), frozenset(rng.integers(0, 16, 3).tolist()))
        for i in range(30)
    ]
    offsets, n_floats = place_buffers(buffers, 7)
    for step in range(20):
        n_buffers = np.zeros(n_floats, int)
        for buffer in buffers:
            if step in buffer.steps:
                n_buffers[offsets[buffer.name] :][: buffer.size] += 1
        assert n_buffers.max(initial=0) <= 1
        assert not n_buffers[:7].any()
    assert n_floats < 7 + sum(buffer.size for buffer in buffers)


def test_a_buffer_fills_a_gap_of_its_size():
    steps = {"a": {0}, "b": {0, 1}, "c": {1}}
    buffers = [Buffer(name, 8, frozenset(numbers)) for name, numbers in steps.items()]
    assert place_buffers(buffers) == ({"a": 0, "b": 8, "c": 0}, 16)
