"""Test the methods of the Adapt family and their baselines against their equations.

The symbols are those of the paper (NIPS 2017): f0 and f1 are the high-cost and the low-cost model,
g is the gate's margin, q are the free offload probabilities, whose mean is at most `p_full`, and
gamma is the weight of the penalty. z are the features, scaled to mean 0 and variance 1.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from gatewise_training import FeatureCosts, L1Cascade
from gatewise_training.adapt import base
from gatewise_training.adapt.alternation import alternate, set_up_m_step
from gatewise_training.adapt.gated_trees import grow_gated_trees
from gatewise_training.adapt.prox_newton import solve as solve_m_step
from gatewise_training.adapt.qstep import LogOdds
from gatewise_training.adapt.sample import Sample
from gatewise_training.learners.growth_settings import Growth, tree_settings
from gatewise_training.learners.losses import log_loss
from tests.support.budgeted_methods import N_FEATURES, load_table, make_method


def test_l1_fits_f1_and_then_the_gate_on_the_chosen_features():
    X, _, y, _ = load_table()
    system = make_method("l1", X, y, stop="gate", penalties=(0.1,), max_loss=0.0).fit(X, y)
    (stage,) = system.stages_
    assert 0 < len(stage.features) < N_FEATURES
    x = X.to_numpy(np.float32)[:, stage.features].astype(np.float64)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    is_yes = (y == "yes").astype(int)
    # the iterations and the tolerance of L1Cascade
    f1 = LogisticRegression(max_iter=500, tol=1e-3).fit(z, is_yes)
    is_wrong = (f1.predict(z) != is_yes).astype(int)
    gate = LogisticRegression(max_iter=500, tol=1e-3).fit(z, is_wrong)
    margins = stage.margins(X.to_numpy(np.float32))
    np.testing.assert_allclose(margins[:, 0], f1.decision_function(z), atol=1e-2)
    np.testing.assert_allclose(margins[:, 1], -gate.decision_function(z), atol=1e-2)


def test_l1_chooses_features_for_f1_alone():
    # L1 logistic regression has no use for a feature that only predicts the errors of f1
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 2)).astype(np.float32)
    is_random_label = x[:, 1] > 0.5
    y = np.where(is_random_label, rng.random(1500) < 0.5, x[:, 0] > 0).astype(int)
    high_cost_model = RandomForestClassifier(5, random_state=0).fit(x, y)
    system = L1Cascade(
        high_cost_model, stop="gate", penalties=(0.3,), random_state=0, max_loss=0.0
    ).fit(x, y)
    assert [stage.features.tolist() for chain in system.chains_ for stage in chain] == [[0]]


@pytest.mark.parametrize("is_binary", [True, False])
def test_confidence_offloads_rows_with_small_margins(is_binary):
    X, X_test, y, _ = load_table(is_binary)
    system = make_method("confidence", X, y, max_loss=0.0, n_subsets=2).fit(X, y)
    offload_shares = []
    for point in system.frontier_.points:
        system_at_point = system.at(budget=point.cost)
        (stage,) = system_at_point.stages_
        (threshold,) = system_at_point.operating_point_.thresholds
        margins = np.sort(stage.margins(X_test.to_numpy(np.float32)), axis=1)
        stop_scores = np.abs(margins[:, 0]) if is_binary else margins[:, -1] - margins[:, -2]
        if threshold is None:
            is_offloaded = np.full(len(stop_scores), True)
        else:
            is_offloaded = stop_scores < np.float32(threshold)
        np.testing.assert_array_equal(system_at_point.offload(X_test), is_offloaded)
        offload_shares.append(is_offloaded.mean())
    # some point splits the rows, so that the comparison is not only of all rows and none
    assert any(0.2 < share < 0.8 for share in offload_shares)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adapt-gbrt", "adapt-lin", "l1"])
def test_gate_and_margin_stops_come_from_one_fit_and_validation_chooses(method, monkeypatch):
    X, X_test, y, y_test = load_table()
    gated_models = []
    candidates_by_stop = {}

    def fit_system(stop):
        system = make_method(method, X, y, stop=stop)
        monkeypatch.setattr(
            system,
            "_store_candidates",
            lambda candidates: candidates_by_stop.update({stop: candidates}),
        )
        return system.fit(X, y, validation=(X_test, y_test))

    original_make_stages = base._make_stages

    def stages_with_recorded_fits(fit, *args):
        def fit_and_record(rows):
            gated_models.append(fit(rows))
            return gated_models[-1]

        return original_make_stages(fit_and_record, *args)

    monkeypatch.setattr(base, "_make_stages", stages_with_recorded_fits)
    gate_system, margin_system, auto_system = (
        fit_system("gate"),
        fit_system("margin"),
        fit_system("auto"),
    )
    n_settings = len(candidates_by_stop["gate"])
    assert n_settings == len(candidates_by_stop["margin"])
    # Adapt also tries single models of nested feature sets, after its other candidates
    gate_and_margin_candidates = candidates_by_stop["auto"][: 2 * n_settings]
    single_models = candidates_by_stop["auto"][2 * n_settings :]
    assert bool(single_models) == (method != "l1")
    assert all(candidate.stages[0].score == "margin" for candidate in single_models)
    if single_models:
        assert len(single_models[-1].stages[0].features) == N_FEATURES
    # both stages have equal margins from one fit; the margin stage omits features of the gate
    rows = X_test.to_numpy(np.float32)
    scores = {candidate.stages[0].score for candidate in gate_and_margin_candidates}
    assert scores == {"column", "margin"}
    assert {stage.score for chain in margin_system.chains_ for stage in chain} == {"margin"}
    assert {stage.score for chain in gate_system.chains_ for stage in chain} == {"column"}
    # one fit for "margin" and one for "auto", which gives the stages of both stops
    assert len(gated_models) == 2
    stages = [candidate.stages[0] for candidate in gate_and_margin_candidates]
    gate_stages = [stage for stage in stages if stage.score == "column"]
    for margin_stage in (stage for stage in stages if stage.score == "margin"):
        margins = margin_stage.margins(rows)
        equal_stages = [
            stage for stage in gate_stages if np.array_equal(stage.margins(rows)[:, :-1], margins)
        ]
        assert equal_stages
        assert any(set(margin_stage.features) <= set(stage.features) for stage in equal_stages)
    for point in (*gate_system.frontier_.points, *margin_system.frontier_.points):
        assert auto_system.at(budget=point.cost).operating_point_.accuracy >= point.accuracy


def make_sample(n=400):
    """Make a sample of equal weights and prices, with drawn losses of the high-cost model."""
    X, _, y, _ = load_table()
    x = X.to_numpy(np.float32)[:n]
    labels = (y[:n] == "yes").astype(np.int64)
    f0_loss = np.random.default_rng(0).exponential(0.1, len(x))
    return Sample(x, labels, np.ones(len(x)), f0_loss, 2, FeatureCosts.uniform(N_FEATURES))


@pytest.mark.slow
def test_the_gate_of_lstsq_is_the_least_squares_fit_of_the_log_odds():
    sample, distance, p_full = make_sample(), LogOdds(), 0.3
    problem, start, *_ = set_up_m_step(sample, distance.curvature_bound)
    pair, _ = alternate(
        problem, sample.f0_loss, p_full, start, tol=1e-3, max_steps=10, distance=distance
    )  # no penalty
    iterate = problem.evaluate(pair)
    probabilities = distance.q_step(
        iterate.f1_loss, sample.f0_loss, iterate.g, p_full, sample.weight
    )
    solution = solve_m_step(problem.with_q(probabilities), pair, tol=1e-8, max_iter=300)
    design = np.column_stack([problem.z, np.ones(len(problem.z))])
    expected_weights, *_ = np.linalg.lstsq(design, logit(probabilities.q), rcond=None)
    gate_weights = np.append(solution.weights[:, -1], solution.bias[-1])
    np.testing.assert_allclose(design @ gate_weights, design @ expected_weights, atol=1e-4)


@pytest.mark.parametrize("p_full", [0.2, 0.6])
def test_gbrt_uses_the_derivatives_of_opt(p_full):
    # After one full Newton step, a leaf's value is -sum(gradient) / sum(hessian) over its rows.
    # With q = sigmoid(loss - f0_loss - beta), the derivatives are
    # (1 - q) (p - y) and (1 - q) p (1 - p) for f1, and sigmoid(0) - q and 1/4 for the gate.
    sample = make_sample()
    growth = Growth(n_rounds=1, num_leaves=2, learning_rate=1.0)
    model = grow_gated_trees(sample, growth, 0.0, p_full=p_full, seed=0)
    margins = model.margins(sample.x)
    base_margins = np.full((len(sample.x), 1), float(model.base[0]))
    target = sample.y[:, None].astype(float)
    loss = log_loss(base_margins, target)
    low, high = 0.0, 50.0
    # bisection finds the multiplier of the bound on mean(q)
    for _ in range(200):
        beta = 0.5 * (low + high)
        q = expit(loss - sample.f0_loss - beta)
        low, high = (beta, high) if q.mean() > p_full else (low, beta)
    q = np.minimum(q, expit(loss - sample.f0_loss))
    p = expit(base_margins[:, 0])
    for column, gradient, hessian in (
        (0, (1 - q) * (p - sample.y), (1 - q) * p * (1 - p)),
        (1, 0.5 - q, np.full(len(q), 0.25)),
    ):
        changes = margins[:, column] - model.base[column]
        leaf_values = np.unique(changes)
        assert len(leaf_values) == 2
        for leaf_value in leaf_values:
            rows = changes == leaf_value
            assert leaf_value == pytest.approx(
                -gradient[rows].sum() / hessian[rows].sum(), rel=1e-4
            )


def test_prefixes_of_the_trees_are_also_stages():
    X, X_test, y, _ = load_table()
    sample = make_sample()
    method = make_method("adapt-gbrt", X, y, penalties=(0.001,), prefixes=(0.3, 1.0))
    prefix_stage, full_stage = method._fit_path(sample, 0.3, 0, method.penalties)
    n_trees = prefix_stage.model.n_trees
    assert n_trees == pytest.approx(0.3 * full_stage.model.n_trees, abs=1)
    # the gate's tree, which has output 1, ends a round
    assert full_stage.model.output[n_trees - 1 : n_trees + 1].tolist() == [1, 0]
    assert set(prefix_stage.features) <= set(full_stage.features)
    first_trees, _ = full_stage.model.select_trees(range(n_trees))
    rows = X_test.to_numpy(np.float32)
    np.testing.assert_array_equal(
        prefix_stage.margins(rows), first_trees.margins(rows[:, full_stage.features])
    )


@pytest.mark.parametrize(
    ("size", "n_leaves", "learning_rate"),
    [((5000, 2), 8, 0.1), ((5000, 5), 8, 0.1), ((5001, 2), 127, 0.2), ((5001, 5), 63, 0.1)],
)
def test_tree_settings_depend_on_the_size_of_the_data(size, n_leaves, learning_rate):
    """Tables up to 5,000 rows get small trees; `size` is the number of rows and of classes."""
    settings = tree_settings(Growth(), *size, few_leaves=8)
    assert (settings["num_leaves"], settings["learning_rate"]) == (n_leaves, learning_rate)
    # a fixed number of rounds needs twice the best number of leaves, and at least 31
    for best_leaves, max_leaves in ((63, 126), (15, 31), (4, 31)):
        limited_settings = tree_settings(Growth(), *size, few_leaves=8, best_leaves=best_leaves)
        assert limited_settings["num_leaves"] == min(n_leaves, max_leaves)
    explicit_settings = tree_settings(
        Growth(num_leaves=7, learning_rate=0.5), *size, best_leaves=15
    )
    assert (explicit_settings["num_leaves"], explicit_settings["learning_rate"]) == (7, 0.5)
