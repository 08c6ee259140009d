"""Bytes as a third price: which stages stay, and points within so many bytes."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.errors import InputError, TooLargeError
from gatewise.operating_point import OperatingPoint
from gatewise_training.operating_points.cascade_parts import stages_within
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.packed_size import PackedSizes
from gatewise_training.operating_points.thresholds import CascadeRecord

SIZES = st.lists(st.integers(1, 3000), min_size=1, max_size=4)


def record_of(sizes, seed=0, n=60):
    rng = np.random.default_rng(seed)
    stages = len(sizes)
    skill = np.sort(rng.random(stages) * 0.3 + 0.6)
    right = rng.random((stages, n)) < skill[:, None]
    scores = (right + rng.normal(size=(stages, n)) * 0.5).astype(np.float32)
    correct = np.vstack([right, np.ones(n)]).astype(float)
    costs = np.cumsum(rng.uniform(0.5, 3, stages + 1))
    return CascadeRecord(scores, correct, costs, np.ones(n), packed=PackedSizes.plain(sizes))


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, most=st.integers(1, 8000), seed=st.integers(0, 99))
def test_choices_of_stages_fit_and_exist_if_a_stage_fits(sizes, most, seed) -> None:
    choices = stages_within(record_of(sizes, seed), most)
    assert bool(choices) == (min(sizes) <= most)
    for kept in choices:
        assert kept
        assert list(kept) == sorted(set(kept))
        assert sum(sizes[s] for s in kept) <= most
    if sum(sizes) <= most:
        assert choices == [tuple(range(len(sizes)))]
    for s, size in enumerate(sizes):  # what leaves no other a place is tried alone
        if size <= most < 2 * size and sum(sizes) > most:
            assert (s,) in choices


def test_confidently_wrong_stages_are_dropped_first() -> None:
    record = record_of([500, 500, 500], n=400)
    scores, correct = record.scores.copy(), record.correct.copy()
    correct[0], scores[0] = 0.0, 5.0
    correct[1], scores[1] = 1.0, 5.0
    choices = stages_within(replace(record, scores=scores, correct=correct), 1000)
    assert choices
    assert not any(0 in kept for kept in choices)


def test_stages_beyond_the_device_take_nothing_and_stay() -> None:
    record = record_of([900, 900, 0])
    assert all(2 in kept for kept in stages_within(record, 1000) if len(kept) > 1)
    assert PackedSizes.plain((900, 900, 0)).bytes_on_device((0, 2)) == 900
    assert PackedSizes.plain((900, 1000, 0)).bytes_on_device(()) == 900


POINTS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 50), st.integers(1, 6000)), min_size=1, max_size=40
)


def points_of(figures):
    return [
        OperatingPoint((0.5,), cost=float(c), accuracy=a / 50, offload_rate=0.1, bytes=b, chain=i)
        for i, (c, a, b) in enumerate(figures)
    ]


@settings(max_examples=150, deadline=None)
@given(figures=POINTS, most=st.integers(1, 9000), budget=st.integers(1, 30))
def test_a_point_within_bytes_and_budget_is_as_good_as_any_half_as_large(
    figures, most, budget
) -> None:
    points = points_of(figures)
    frontier = Frontier.from_points(points, reference_accuracy=1.0).with_small(points)
    smallest = min(p.bytes for p in points)
    if most < smallest:
        with pytest.raises(TooLargeError) as refused:
            frontier.at(max_bytes=most, budget=budget)
        unpickled = pickle.loads(pickle.dumps(refused.value))
        for error in (refused.value, unpickled):
            assert (error.smallest, error.max_bytes) == (smallest, most)
            assert str(smallest) in str(error)
        return
    rivals = [p for p in points if p.cost <= budget and (3 * p.bytes + 2) // 2 <= most]
    if not rivals:
        return
    chosen = frontier.at(max_bytes=most, budget=budget)
    assert chosen.bytes <= most
    assert chosen.cost <= budget
    assert chosen.accuracy >= max(p.accuracy for p in rivals)
    cheap = frontier.at(max_bytes=most, max_loss=1.0)
    assert cheap.bytes <= most
    assert cheap.cost <= min(p.cost for p in points if (3 * p.bytes + 2) // 2 <= most)


RATES = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 50), st.integers(0, 10)), min_size=1, max_size=40
)


@settings(max_examples=150, deadline=None)
@given(figures=RATES, most=st.integers(0, 10))
def test_no_point_that_offloads_as_little_is_better_than_that_of_a_rate(figures, most) -> None:
    points = [
        OperatingPoint((0.5,), cost=float(c), accuracy=a / 50, offload_rate=r / 10, chain=i)
        for i, (c, a, r) in enumerate(figures)
    ]
    plain = Frontier.from_points(points, reference_accuracy=1.0)
    frontier = plain.with_less_offload(points)
    assert frontier.points == plain.points
    rivals = [p for p in points if p.offload_rate <= most / 10]
    if not rivals:
        with pytest.raises(InputError, match="no operating point offloads at most"):
            frontier.at(offload_rate=most / 10)
        return
    chosen = frontier.at(offload_rate=most / 10)
    assert chosen.offload_rate <= most / 10
    assert chosen.accuracy == max(p.accuracy for p in rivals)
    same = [p for p in rivals if p.accuracy == chosen.accuracy]
    least = min(p.offload_rate for p in same)  # of equals the frontier has that of the lowest rate
    assert chosen.cost <= min(p.cost for p in same if p.offload_rate == least)
