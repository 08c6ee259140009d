"""Minimum cuts compared with scipy's maximum flow, with all closures, and with their own flow.

A closure is a set of nodes that contains the parent of each of its nodes. `lam` is the price of a
unit of cost.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from gatewise_training.prune.presolve import Closure, Flow
from gatewise_training.prune.solvers.mincut import best_closure, first_flow

SEEDS = st.integers(0, 2**32 - 1)


def draw_closure(seed: int, max_nodes: int) -> Closure:
    """Draw trees of random shapes; profits and prices are integers, so that ties are common."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, max_nodes + 1))
    n_columns = int(rng.integers(0, 2 * max_nodes))
    parent = np.array([rng.integers(-1, node) if node else -1 for node in range(n)], np.int32)
    if rng.random() < 0.3:
        parent = np.arange(-1, n - 1, dtype=np.int32)  # a chain, which is as deep as possible
    is_used = rng.random((n, n_columns)) < rng.uniform(0.05, 0.6)
    is_used[0, rng.random(n_columns) < 0.3] = True  # the first root makes many acquisitions
    return Closure(
        parent,
        rng.integers(0, 9, n) * (rng.random(n) < 0.8).astype(float),
        rng.integers(0, 5, n) * (rng.random(n) < 0.3).astype(float),
        np.concatenate([[0], np.cumsum(is_used.sum(axis=1))]).astype(np.int64),
        np.nonzero(is_used)[1].astype(np.int32),
        rng.integers(1, 6, n_columns).astype(float),
    )


def list_edge_nodes(closure):
    """List the node of each edge from a node to a column."""
    return np.repeat(np.arange(closure.n_nodes), np.diff(closure.start))


def compute_maximum_flow(closure, lam):
    """Compute the maximum flow by scipy on the complete graph."""
    n = closure.n_nodes
    n_columns = len(closure.column_price)
    source = n + n_columns
    sink = source + 1
    capacity = np.zeros((sink + 1, sink + 1), np.int32)
    unlimited = int(closure.total_profit) + 1
    capacity[source, :n] = closure.profit
    capacity[:n, sink] = lam * closure.price
    capacity[n:source, sink] = lam * closure.column_price
    capacity[list_edge_nodes(closure), n + closure.columns] = unlimited
    children = np.flatnonzero(closure.parent >= 0)
    capacity[children, closure.parent[children]] = unlimited
    return maximum_flow(csr_array(capacity), source, sink).flow_value


def compute_gain(closure, is_kept, lam):
    cost = closure.price[is_kept].sum() + closure.column_price[closure.acquired(is_kept)].sum()
    return closure.profit[is_kept].sum() - lam * cost


@given(SEEDS, st.integers(0, 4))
@settings(max_examples=150, deadline=None)
def test_cut_value_equals_scipys_maximum_flow(seed, lam):
    closure = draw_closure(seed, 40)
    is_kept, cut_value, _ = best_closure(closure, float(lam))
    assert cut_value == pytest.approx(compute_maximum_flow(closure, lam), abs=1e-9)
    assert compute_gain(closure, is_kept, lam) == pytest.approx(
        closure.total_profit - cut_value, abs=1e-9
    )
    has_parent = closure.parent >= 0
    assert (is_kept[has_parent] <= is_kept[closure.parent[has_parent]]).all()


@given(SEEDS, st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_largest_of_the_best_closures_is_found(seed, lam):
    closure = draw_closure(seed, 8)
    children = np.flatnonzero(closure.parent >= 0)
    gain_of_closure = {}
    for closure_bits in itertools.product([False, True], repeat=closure.n_nodes):
        is_kept = np.array(closure_bits)
        if (is_kept[children] <= is_kept[closure.parent[children]]).all():
            gain_of_closure[closure_bits] = compute_gain(closure, is_kept, lam)
    best_gain = max(gain_of_closure.values())
    best_closures = [bits for bits, gain in gain_of_closure.items() if gain == best_gain]
    is_in_largest = np.any(best_closures, axis=0)  # the union of best closures is also best
    np.testing.assert_array_equal(best_closure(closure, float(lam))[0], is_in_largest)


@given(SEEDS)
@example(960143)  # a tie that was missed when surplus flow was taken back in proportion
@settings(max_examples=60, deadline=None)
def test_cuts_start_from_the_flow_at_another_price(seed):
    closure = draw_closure(seed, 40)
    flow = Flow.zero(closure)
    for lam in (1.0, 0.25, 3.0, 0.0, 0.5):
        is_kept_expected, expected_value, _ = best_closure(closure, lam)
        is_kept, cut_value, _ = best_closure(closure, lam, flow)
        np.testing.assert_array_equal(is_kept, is_kept_expected)
        assert cut_value == pytest.approx(expected_value, abs=1e-9)
        assert_maximum_flow(closure, lam, flow, is_kept, cut_value)


def assert_maximum_flow(closure, lam, flow, is_kept, cut_value):
    """Check that a flow is feasible, has the value of the cut, and does not cross the cut."""
    assert (flow.to_columns >= 0).all()
    assert (flow.to_parent >= 0).all()
    edge_nodes = list_edge_nodes(closure)
    has_parent = closure.parent >= 0
    column_flow = np.bincount(closure.columns, flow.to_columns, len(closure.column_price))
    assert (column_flow <= lam * closure.column_price + 1e-9).all()
    n_nodes = closure.n_nodes
    inflow = np.bincount(closure.parent[has_parent], flow.to_parent[has_parent], n_nodes)
    outflow = flow.to_parent + np.bincount(edge_nodes, flow.to_columns, n_nodes)
    excesses = closure.profit + inflow - outflow
    assert (excesses >= -1e-9).all()
    flow_to_sink = column_flow.sum() + np.minimum(excesses, lam * closure.price).sum()
    assert flow_to_sink == pytest.approx(cut_value, abs=1e-9)
    assert not flow.to_parent[has_parent & ~is_kept & is_kept[closure.parent]].any()
    assert not flow.to_columns[
        ~is_kept[edge_nodes] & closure.acquired(is_kept)[closure.columns]
    ].any()


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_parts_keep_the_flow_of_their_edges(seed):
    closure = draw_closure(seed, 40)
    flow = first_flow(closure, 1.0)
    is_kept, _, _ = best_closure(closure, 1.0, flow)
    is_paid = closure.acquired(is_kept)
    for is_chosen, is_unpaid in ((is_kept, np.ones_like(is_paid)), (~is_kept, ~is_paid)):
        part, part_flow = closure.restrict(is_chosen, is_unpaid, flow)
        assert part.total_profit == closure.profit[is_chosen].sum()
        acquired = closure.acquired(is_chosen) & is_unpaid
        assert part.cost == pytest.approx(
            closure.price[is_chosen].sum() + closure.column_price[acquired].sum()
        )
        assert part.acquired(np.ones(part.n_nodes, bool)).all()
        for lam in (0.25, 2.0):
            is_kept_expected, expected_value, _ = best_closure(part, lam)
            initial_flow = Flow(part_flow.to_columns.copy(), part_flow.to_parent.copy())
            is_part_kept, cut_value, _ = best_closure(part, lam, initial_flow)
            np.testing.assert_array_equal(is_part_kept, is_kept_expected)
            assert cut_value == pytest.approx(expected_value, abs=1e-9)


def test_empty_closure_has_an_empty_cut():
    floats = np.zeros(0)
    integers = np.zeros(0, np.int32)
    closure = Closure(integers, floats, floats, np.zeros(1, np.int64), integers, floats)
    is_kept, cut_value, _ = best_closure(closure, 1.0)
    assert is_kept.shape == (0,)
    assert cut_value == 0.0
