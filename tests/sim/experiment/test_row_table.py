"""Tests of the outcomes of rows against the packed estimator."""

import numpy as np
import pytest

from gatewise_export import pack
from gatewise_sim.experiment.row_table import make_row_table
from gatewise_sim.fleet.results import EDGE, ERROR, FALLBACK, NO_LABEL
from gatewise_sim.timings import Timings
from gatewise_training import StagedCascade
from tests.support.refused import assert_refused


@pytest.mark.slow
def test_outcomes_equal_those_of_the_estimator(digits, table):
    system, rows = digits.system, digits.rows
    table_labels = np.where(table.is_offloaded, table.cloud_label, table.local_label)
    table_costs = np.where(
        table.is_offloaded, table.request_cost + table.offload_price, table.local_cost
    )
    assert np.array_equal(system.classes_[table_labels], system.predict(rows))
    assert np.array_equal(table_costs, system.cost(rows))
    assert np.array_equal(table.is_offloaded, system.offload(rows))
    assert (table.local_route == EDGE).all()
    assert table.classes == tuple(map(str, system.classes_))
    # the price of the features that a row acquires is its cost, without and with a request
    costs = digits.bundle.manifest.feature_costs()
    for row in (0, 1, 17):  # any rows
        local_set = table.feature_sets[table.local_set_index[row]]
        request_set = table.feature_sets[table.request_set_index[row]]
        assert costs.price(local_set) == table.local_cost[row]
        assert costs.price(request_set) == table.request_cost[row]
    # the last set has the features of a request without those of the stages
    assert costs.price(table.feature_sets[-1]) == table.request_only_cost


@pytest.mark.slow
def test_models_are_timed_and_other_times_are_assumed(digits, table):
    # few rows, because the timing is repeated anyway
    _, timings = make_row_table(digits.bundle, digits.rows[:60], digits.truth[:60])
    assert len(timings.edge_ms) == table.n_stages == 2
    # a small model takes far more than a microsecond, and less than 50 ms on a busy machine
    assert all(0.001 < milliseconds < 50 for milliseconds in timings.edge_ms)
    assert 1 < timings.run_us + timings.instance_us < 50_000
    assert timings.assumed == ("message_us", "broker_us", "hop_ms")


@pytest.mark.slow
def test_times_without_a_measurement_are_assumed(digits):
    # stages refuse infinite values, so that no model runs
    infinite_rows = np.full((1, digits.rows.shape[1]), np.inf, np.float32)
    _, timings = make_row_table(digits.bundle, infinite_rows)
    assert timings.assumed[:3] == ("edge_ms", "run_us", "instance_us")


def test_given_timings_replace_the_measurement_and_fit_the_stages(digits):
    timings = Timings(edge_ms=(0.5, 0.25), run_us=100.0, instance_us=20.0)
    rows = digits.rows[:20]
    assert make_row_table(digits.bundle, rows, timings=timings)[1] is timings
    one_stage = Timings(edge_ms=(0.5,), run_us=100.0, instance_us=20.0)
    message = "timings: edge_ms has 1 time; give one for each of the 2 stages"
    assert_refused(make_row_table, digits.bundle, rows, timings=one_stage, message=message)


@pytest.fixture(scope="module")
def strict_system():
    """A system that accepts no missing values on the device or in the cloud, with its rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] > 0).astype(int)  # no linear stage solves this, so rows are offloaded
    system = StagedCascade(
        n_stages=2, families=("linear",), offload_rate=0.5, effort="low", random_state=0
    ).fit(X, y)
    return system, X


@pytest.mark.slow
def test_hard_rows_with_implausible_values_are_offloaded(strict_system, tmp_path):
    system, X = strict_system
    bundle = pack(system, tmp_path / "bundle", sample=X[:16])
    _, upper_limits = bundle.ranges().features.limits()
    rows = X[:40].copy()
    rows[:, 2] = 1.01 * upper_limits[2]
    is_offloaded = system.offload(rows)
    assert is_offloaded.any()
    table, _ = make_row_table(bundle, rows)
    assert np.array_equal(table.is_offloaded, is_offloaded)


@pytest.mark.slow
def test_rows_with_invalid_values_become_fallbacks_or_errors(strict_system, tmp_path):
    system, X = strict_system
    bundle = pack(system, tmp_path / "bundle", sample=X[:16])
    rows = X[:40].copy()
    rows[0] = np.nan
    rows[1] = np.inf
    table, _ = make_row_table(bundle, rows)
    assert table.cloud_label[:2].tolist() == [NO_LABEL, NO_LABEL]
    assert not table.is_offloaded[:2].any()
    # a fallback if a stage before the invalid value has answered, and otherwise an error
    assert set(table.local_route[:2].tolist()) <= {FALLBACK, ERROR}
    assert (table.local_route[2:] == EDGE).all()


def test_rows_of_wrong_shape_are_refused(digits):
    bundle, rows = digits.bundle, digits.rows
    assert_refused(make_row_table, bundle, rows[:, :5], message="the bundle has 64 columns")
    assert_refused(make_row_table, bundle, rows[:0], message="rows of shape (0, 64)")
    labels = [1]
    message = "labels of shape (1,) for 2 rows"
    assert_refused(make_row_table, bundle, rows[:2], labels, message=message)
