"""Single budgeted classifiers, regressors and rankers in bundles and on devices."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_wine

from gatewise.cli import main
from gatewise_edge import Device
from gatewise_export import pack, self_test, verify, verify_graphs
from gatewise_training import (
    BudgetForest,
    BudgetPrune,
    CEGBClassifier,
    CEGBRanker,
    CEGBRegressor,
    GreedyMiser,
)
from tests.support.prices import make_grouped_prices

pytestmark = pytest.mark.slow  # fits of several seconds

X, TARGETS = load_diabetes(return_X_y=True)
X = X.astype(np.float32)
WINE_ROWS, CULTIVARS = load_wine(return_X_y=True)
WINE_ROWS = WINE_ROWS.astype(np.float32)
COSTS = make_grouped_prices(10)
#: Queries of ten rows each, for a ranker.
QUERIES = np.arange(len(TARGETS)) // 10
SETTINGS: dict[str, Any] = {"n_rounds": 15, "random_state": 0}
CLASSIFIERS: dict[str, Any] = {
    "cost-aware": BudgetForest(
        make_grouped_prices(13), criterion="entropy", mu=0.1, n_estimators=6, random_state=0
    ),
    "pruned": BudgetPrune(make_grouped_prices(13), n_estimators=6, random_state=0),
    "lazy-classes": CEGBClassifier(make_grouped_prices(13), penalties=(0.02, 0.1), **SETTINGS),
    "greedy-miser": GreedyMiser(make_grouped_prices(13), budget=8.0, **SETTINGS),
}
VALUE_MODELS: dict[str, Any] = {
    "lazy": CEGBRegressor(COSTS, penalties=(0.1, 0.01), **SETTINGS),
    "coupled": CEGBRegressor(COSTS, accounting="coupled", penalties=(0.1, 0.01), **SETTINGS),
    "missing": CEGBRegressor(COSTS, penalties=(0.02,), allow_missing=True, **SETTINGS),
    "rank": CEGBRanker(COSTS, penalties=(0.02,), **SETTINGS),
}


def fit_model(name: str) -> tuple[Any, Any]:
    """Fit a model; return it and its rows."""
    if name in CLASSIFIERS:
        return clone(CLASSIFIERS[name]).fit(WINE_ROWS, CULTIVARS), WINE_ROWS
    model, rows = clone(VALUE_MODELS[name]), X.copy()
    if name == "missing":
        rows[np.random.default_rng(0).random(rows.shape) < 0.2] = np.nan
    if name == "rank":
        # Rows above 150, about the mean, are relevant.
        return model.fit(rows, (TARGETS > 150).astype(int), qid=QUERIES), rows
    return model.fit(rows, TARGETS), rows


@pytest.mark.parametrize("name", [*CLASSIFIERS, *VALUE_MODELS])
def test_a_device_gives_the_answers_and_costs_of_the_estimator(name, tmp_path):
    model, rows = fit_model(name)
    bundle = pack(model, tmp_path / "bundle.gwb", sample=rows[:32])
    manifest = bundle.manifest
    assert manifest.cloud is None
    assert manifest.reference_accuracy == model.frontier_.reference_accuracy
    for report in (verify(model, bundle, rows), verify_graphs(bundle, rows), self_test(bundle)):
        assert report.agrees
        assert report.max_margin_difference == 0
    with Device(bundle) as device:
        answers = [device.answer(row) for row in rows]
    assert [answer.label for answer in answers] == model.predict(rows).tolist()
    assert [answer.cost for answer in answers] == model.cost(rows).tolist()
    assert {(answer.route, answer.stage) for answer in answers} == {("edge", 0)}
    assert model.cost(rows).mean() < model.feature_costs_.total
    assert manifest.answers_values == (name in VALUE_MODELS)
    if manifest.answers_values:
        assert manifest.task == ("rank" if name == "rank" else "regress")
        assert (manifest.classes, manifest.n_classes, manifest.link) == ((), 0, "identity")
        assert {type(answer.label) for answer in answers} == {float}
        assert {(answer.class_index, len(answer.probabilities)) for answer in answers} == {(-1, 0)}


@pytest.mark.parametrize("name", ["coupled", "rank"])
def test_commands_print_scores_for_models_of_values(name, tmp_path, capsys):
    model, rows = fit_model(name)
    path = tmp_path / "bundle"
    bundle = pack(model, path, sample=rows[:32])
    columns = [*bundle.manifest.feature_names, "target"]
    table_file = tmp_path / "table.csv"
    lines = [",".join(columns)]
    for row, target in zip(rows, TARGETS, strict=True):
        lines.append(",".join(map(repr, [*map(float, row), float(target)])))
    table_file.write_text("\n".join(lines) + "\n")
    score_name = {"coupled": "R²", "rank": "AP@5"}[name]
    for command in (["inspect", str(path)], ["frontier", str(path)]):
        assert main(command) == 0
        output = capsys.readouterr().out
        assert score_name in output
        assert "accuracy" not in output
    command = ["verify", str(path), "--data", str(table_file), "--target", "target", "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["agrees"]
    assert document["task"] == bundle.manifest.task
    assert document["data"]["rows"] == len(rows)
    if name == "coupled":
        assert document["data"]["r2"] == pytest.approx(model.score(rows, TARGETS), abs=1e-9)
    else:
        assert "r2" not in document["data"]
    assert "accuracy" not in document["data"]
    assert document["data"]["cost"] == pytest.approx(model.cost(rows).mean())
