"""Tests that the policy for AFABench has the answers and costs of the fitted system."""

import json

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from benchmarks import bench_afabench
from benchmarks.afabench.acquisition_policy import STOP, AcquisitionPolicy, make_feature_costs
from benchmarks.afabench.metrics import record_of_row
from gatewise.errors import InputError
from gatewise_training import AdaptGBRT, StagedCascade

pytestmark = pytest.mark.usefixtures("two_folds")


def load_breast_cancer_rows():
    """Load standardised rows and labels to fit on, and test rows."""
    X, y = load_breast_cancer(return_X_y=True)
    X = ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32)
    return X[:400], y[:400], X[400:]


def run_episodes(policy, X):
    """Acquire selections until every row stops; return labels and selections."""
    n_selections = int(policy.selection_of_feature.max()) + 1
    selected = np.zeros((len(X), n_selections), bool)
    for _ in range(n_selections + 1):
        observed = selected[:, policy.selection_of_feature]
        actions, proba = policy.choose_actions(np.where(observed, X, 0), observed)
        rows = np.flatnonzero(actions != STOP)
        if not len(rows):
            return proba.argmax(axis=1), selected
        # no selection is acquired twice
        assert not selected[rows, actions[rows] - 1].any()
        selected[rows, actions[rows] - 1] = True
    raise AssertionError("the policy does not stop")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (StagedCascade, {"families": ("linear",), "n_stages": 3, "effort": "low"}),
        (AdaptGBRT, {"n_rounds": 5, "warm_up": 2, "penalties": (0.05,), "p_full": (0.3,)}),
    ],
)
@pytest.mark.parametrize("hard_budget", [None, 4.0])
def test_episodes_have_the_answers_and_costs_of_the_system(method, settings, hard_budget):
    X, y, X_test = load_breast_cancer_rows()
    # features 0 to 4 belong to one selection with one price
    selection_of_feature = np.maximum(np.arange(30) - 4, 0)
    prices = np.linspace(0.5, 1.5, 26)
    costs = make_feature_costs(selection_of_feature, prices)
    if hard_budget is not None:
        settings = settings | {"budget": hard_budget, "max_instance_cost": hard_budget}
    system = method(
        LogisticRegression(max_iter=1000), feature_costs=costs, random_state=0, **settings
    )
    system.fit(X, y)
    policy = AcquisitionPolicy(system, selection_of_feature, np.array([0.4, 0.6]))
    labels, selected = run_episodes(policy, X_test)
    np.testing.assert_array_equal(labels, system.predict(X_test))
    np.testing.assert_allclose(selected @ prices, system.cost(X_test))
    if hard_budget is not None:
        assert (selected @ prices).max() <= hard_budget + 1e-9  # rounding of sums


def test_feature_costs_charge_a_shared_selection_once():
    costs = make_feature_costs(np.array([0, 0, 1, 2]), np.array([2.0, 1.0, 3.0]))
    assert costs.price([0]) == costs.price([0, 1]) == 2.0
    assert costs.price([1, 2, 3]) == costs.total == 6.0


def test_cpu_seconds_are_summed_by_step_method_and_set(tmp_path):
    fit_arguments = (
        "save_path=extra/output/trained_methods/initializer-cold/cae/dataset-cube+instance_idx-0/m"
    )
    entries = [  # seconds, script and arguments; other programs are omitted
        [7.0, "scripts/train/cae.py", fit_arguments],
        [2.0, "scripts/train/cae.py", fit_arguments],  # the step was repeated
        [3.0, "scripts/train/cae.py", fit_arguments.replace("idx-0", "idx-1")],
        [9.0, "-V"],
    ]
    log_path = tmp_path / "log.jsonl"
    log_path.write_text("\n".join(json.dumps(entry) for entry in entries))
    assert bench_afabench.cpu_seconds(log_path) == [
        {"step": "trained_methods", "name": "cae", "set": "cube", "seconds": 5.0}
    ]


@pytest.mark.parametrize(
    ("has_f_score", "metric", "metric_name"), [(False, 0.9, "accuracy"), (True, 0.7, "macro F1")]
)
def test_records_have_the_metric_of_their_set(has_f_score, metric, metric_name):
    row = {
        "afa_method": "cae", "dataset": "cube", "train_seed": 1, "eval_hard_budget": 3.0,
        "soft_budget_param": None, "f_score": 0.7, "accuracy": 0.9, "avg_accumulated_cost": 2.5,
    }  # fmt: skip
    record = record_of_row(row, "builtin", has_f_score=has_f_score)
    assert (record["metric"], record["metric_name"]) == (metric, metric_name)
    assert (record["method"], record["set"], record["instance"]) == ("cae", "cube", 1)
    assert (record["hard_budget"], record["soft_budget"], record["cost"]) == (3.0, None, 2.5)
    assert record["classifier"] == "builtin"


def make_part(set_name, metrics_by_method, **fields):
    """Make the figures of a set at one hard budget, with the built-in classifier."""
    record = {
        "set": set_name, "instance": 0, "hard_budget": 3.0, "soft_budget": None,
        "classifier": "builtin", "metric_name": "accuracy", "cost": 3.0,
    }  # fmt: skip
    return {
        "commit": bench_afabench.COMMIT,
        "records": [
            record | fields | {"method": method, "metric": metric}
            for method, metric in metrics_by_method.items()
        ],
        "cpu_seconds": [],
    }


def test_rows_of_the_page_rank_the_methods_that_were_run():
    figures = {
        "cube": make_part("cube", {"gatewise_staged": 0.6, "cae": 0.5, "ma2018_external": 0.7}),
        "ckd": make_part("ckd", {"gatewise_staged": 0.9, "cae": 0.8}),
    }
    lines = bench_afabench.page(figures)
    start = lines.index("| set | budget | `StagedCascade` | CAE-S | EDDI |")
    assert lines[start + 2 : start + 5] == [
        "| ckd, accuracy (1) | 3 | **90.0** (1) | 80.0 (2) |  |",
        "| cube, accuracy (1) | 3 | 60.0 (2) | 50.0 (3) | **70.0** (1) |",
        "| mean rank |  | 1.5 | 2.5 | 1.0 |",
    ]


def test_methods_with_fewer_instances_have_no_rank():
    part = make_part("cube", {"cae": 0.5, "ma2018_external": 0.7})
    part["records"] += make_part("cube", {"cae": 0.7}, instance=1)["records"]
    lines = bench_afabench.page({"cube": part})
    assert "| cube, accuracy (2) | 3 | **60.0 ± 10.0** (1) | 70.0 on 1 |" in lines


def test_peers_may_have_fewer_instances():
    assert bench_afabench.split_methods("cae,ma2018_external:1,aaco", 3) == {
        3: ["gatewise_staged", "gatewise_adapt_gbrt", "cae", "aaco"],
        1: ["ma2018_external"],
    }
    with pytest.raises(InputError, match="no peer 'x'"):
        bench_afabench.split_methods("cae,x:1", 3)
    with pytest.raises(InputError, match="--peers cae:two: give a number of instances"):
        bench_afabench.split_methods("cae:two", 3)


def test_page_lists_the_soft_budgets_of_each_classifier():
    soft = {"hard_budget": None, "soft_budget": 0.1}
    figures = {"cube": make_part("cube", {"aaco": 0.8}, classifier="external", **soft)}
    lines = bench_afabench.page(figures)
    start = lines.index("## Soft budgets: mean cost and metric of each point, external classifier")
    assert lines[start + 2] == "| set | AACO |"
    assert lines[start + 4] == "| cube | 3.0: 80.0 |"


def test_fits_include_the_model_that_the_pipeline_fits_before():
    time_sums = [
        {"step": "pretrained_models", "name": "pvae", "set": "cube", "seconds": 400.0},
        {"step": "trained_methods", "name": "ma2018_external", "set": "cube", "seconds": 3.0},
        {"step": "eval_results", "name": "ma2018_external", "set": "cube", "seconds": 280.0},
    ]
    part = make_part("cube", {"ma2018_external": 0.7}) | {"cpu_seconds": time_sums}
    assert bench_afabench.page({"cube": part})[-1] == "| cube | 403 + 280 |"
