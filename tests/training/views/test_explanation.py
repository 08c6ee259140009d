"""Test that explanations, summaries and plots agree with a fitted system."""

from __future__ import annotations

import pytest
from sklearn.datasets import load_digits, load_wine
from sklearn.linear_model import LogisticRegression

import gatewise as gw
from gatewise.errors import InputError

pytestmark = pytest.mark.usefixtures("two_folds")


@pytest.fixture(scope="module")
def wine_table():
    """The first six features of wine, and the names of its classes."""
    dataset = load_wine(as_frame=True)
    return dataset.data.iloc[:, :6], dataset.target_names[dataset.target]


@pytest.fixture(scope="module")
def system(wine_table, make_once):
    """Three stages on the wine table with prices of 1 to 6, at the point without a loss."""
    prices = dict(zip(wine_table[0].columns, (1, 2, 3, 4, 5, 6), strict=True))
    unfitted_system = gw.StagedCascade(
        LogisticRegression(max_iter=2000), feature_costs=prices, n_stages=3,
        cloud_prices=gw.CloudPrices(request=2.0), families=("linear",), random_state=0,
    )  # fmt: skip
    return make_once("explained-wine", lambda _: unfitted_system.fit(*wine_table).at(max_loss=0.0))


@pytest.fixture(scope="module")
def tree_system(make_once):
    """Trees that acquire features one by one and always answer, without a high-cost model."""
    unfitted_system = gw.GreedyMiser(penalties=(0.01,), n_rounds=10, random_state=0)
    rows = load_digits(n_class=3, return_X_y=True)
    return make_once("explained-trees", lambda _: unfitted_system.fit(*rows))


@pytest.mark.slow
def test_explanations_agree_with_predictions_costs_and_stages(system, wine_table):
    x = wine_table[0]
    labels, costs, exits = system.predict(x), system.cost(x), system.exit_stage(x)
    label_probabilities = system.predict_proba(x).max(axis=1)
    for row in range(0, len(x), 5):  # a fifth of the rows, of all three classes, to save time
        explanation = system.explain(x.iloc[row])
        assert (explanation.label, explanation.stage) == (labels[row], exits[row])
        assert explanation.cost == pytest.approx(costs[row])
        assert explanation.cost == pytest.approx(sum(step.price for step in explanation.steps))
        # the order of float32 additions may differ between one row and many rows
        assert explanation.probability == pytest.approx(label_probabilities[row], rel=1e-5)
        *earlier_steps, last_step = explanation.steps
        assert last_step.has_stopped
        assert not any(step.has_stopped for step in earlier_steps)
        # no feature is acquired twice
        acquired_names = [name for step in explanation.steps for name in step.acquired]
        assert len(acquired_names) == len(set(acquired_names))
    # some instances are offloaded, and others are not, so both kinds of explanations are compared
    assert 0 < (exits == len(system.stages_)).sum() < len(x)


@pytest.mark.slow
def test_an_explanation_is_printed_with_a_line_per_stage(system, wine_table):
    x = wine_table[0]
    is_offloaded = system.offload(x)
    printed_explanation = str(system.explain(x.iloc[int(is_offloaded.argmax())]))
    # all features cost 1 + 2 + 3 + 4 + 5 + 6 = 21, and the request 2
    assert printed_explanation.splitlines()[0].endswith("answered by the high-cost model; cost 23")
    assert "continues" in printed_explanation
    assert printed_explanation.endswith("no stage was sure enough")
    local_explanation = system.explain(x.iloc[int((~is_offloaded).argmax())])
    # a stage stops if its score is at least its threshold
    assert ">=" in local_explanation.steps[-1].why
    assert local_explanation.cost_of_offload == 23


def test_explain_accepts_one_instance_in_any_form(system, wine_table):
    table = wine_table[0].iloc[[3]]  # any instance
    row = table.iloc[0]
    instances = [table, row, row.to_dict(), row.to_numpy(), row.tolist(), table.to_numpy()]
    assert len({str(system.explain(instance)) for instance in instances}) == 1
    with pytest.raises(InputError, match="the instance lacks 'ash'"):
        system.explain({name: value for name, value in row.items() if name != "ash"})
    with pytest.raises(InputError, match="explain takes one instance, not 2"):
        system.explain(wine_table[0].iloc[:2])
    with pytest.raises(InputError, match="has 5 features; 6 are needed"):
        system.explain(row.tolist()[:5])


def test_the_explanation_of_trees_agrees_with_their_prediction_and_cost(tree_system):
    instance = load_digits(n_class=3).data[7:8]  # any instance
    explanation = tree_system.explain(instance[0])
    assert explanation.label == tree_system.predict(instance)[0]
    assert explanation.cost == pytest.approx(tree_system.cost(instance)[0])
    assert explanation.steps[-1].why == "always stops here"


def test_summaries_show_stages_and_figures(system, tree_system):
    summary = system.summary()
    point = system.operating_point_
    assert summary.startswith(
        "StagedCascade: 3 stages before a high-cost model (LogisticRegression)"
    )
    assert f"accuracy {point.accuracy:.4f}" in summary
    assert f"recall (the high-cost model): class_0 {point.recall[0]:.3f}" in summary
    # thresholds of stages that always stop are -3.4e38, which is written as a word
    assert "3.4e" not in summary + repr(point) + repr(system.frontier_) + repr(system.stages_)
    assert "always" in tree_system.summary()
    assert "recall (the costliest model): " in tree_system.summary()
    assert sum(point.exit_shares) == pytest.approx(1.0)
    for described_object in (point, system.frontier_, system.stages_[0], tree_system.frontier_):
        assert len(repr(described_object)) < 200  # short enough to read in a console


def test_plot_frontier_draws_on_the_given_axes(system):
    from matplotlib import pyplot

    _, axes = pyplot.subplots()
    assert system.plot_frontier(ax=axes) is axes
    pyplot.close("all")


@pytest.mark.slow
def test_summaries_compare_a_certified_point_with_the_reference_on_calibration_rows(wine_table):
    certified_system = gw.StagedCascade(
        LogisticRegression(max_iter=2000), n_stages=1, families=("linear",), effort="low",
        guarantee=0.95, random_state=0,
    ).fit(*wine_table)  # fmt: skip
    point, summary = certified_system.operating_point_, certified_system.summary()
    # no threshold of the stage is certified on so few calibration rows
    assert point.offload_rate == 1.0
    assert f"on {point.guarantee['calibration_rows']} calibration rows:" in summary
    assert f"accuracy {point.accuracy:.4f}, the high-cost model {point.accuracy:.4f}" in summary
    assert "since the high-cost model answers all" in summary
