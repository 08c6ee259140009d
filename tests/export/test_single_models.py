"""Test that a model without a cloud gives the same answers and costs in a bundle and on a device.

The models are classifiers, a regressor and a ranker. The answers of the last two are numbers.
`test_agreement.py` compares stages of further kinds of trees.
"""

from __future__ import annotations

import functools
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
    BudgetPrune,
    CEGBClassifier,
    CEGBRanker,
    CEGBRegressor,
)
from tests.support.prices import make_grouped_prices

pytestmark = pytest.mark.slow  # the fits take several seconds

DIABETES_ROWS, DIABETES_TARGETS = load_diabetes(return_X_y=True)
DIABETES_ROWS = DIABETES_ROWS.astype(np.float32)
WINE_ROWS, CULTIVARS = load_wine(return_X_y=True)
WINE_ROWS = WINE_ROWS.astype(np.float32)
COSTS = make_grouped_prices(10)
#: Queries of ten rows each, for a ranker.
QUERIES = np.arange(len(DIABETES_TARGETS)) // 10
#: Rows with a target above this, about the mean, are relevant to a query.
MIN_RELEVANT_TARGET = 150
SETTINGS: dict[str, Any] = {"n_rounds": 15, "random_state": 0}
CLASSIFIERS: dict[str, Any] = {
    "pruned": BudgetPrune(make_grouped_prices(13), n_estimators=6, random_state=0),
    "lazy-classes": CEGBClassifier(make_grouped_prices(13), penalties=(0.02, 0.1), **SETTINGS),
}
#: Models that answer with a number.
VALUE_MODELS: dict[str, Any] = {
    "regressor": CEGBRegressor(COSTS, penalties=(0.02,), allow_missing=True, **SETTINGS),
    "ranker": CEGBRanker(COSTS, penalties=(0.02,), **SETTINGS),
}


@functools.cache
def fit_model(name: str) -> tuple[Any, Any]:
    """Fit a model; return it and its rows."""
    if name in CLASSIFIERS:
        return clone(CLASSIFIERS[name]).fit(WINE_ROWS, CULTIVARS), WINE_ROWS
    model = clone(VALUE_MODELS[name])
    rows = DIABETES_ROWS.copy()
    if model.allow_missing:
        rows[np.random.default_rng(0).random(rows.shape) < 0.2] = np.nan
    if isinstance(model, CEGBRanker):
        is_relevant = DIABETES_TARGETS > MIN_RELEVANT_TARGET
        return model.fit(rows, is_relevant.astype(int), qid=QUERIES), rows
    return model.fit(rows, DIABETES_TARGETS), rows


@pytest.mark.parametrize("name", [*CLASSIFIERS, *VALUE_MODELS])
def test_a_device_gives_the_answers_and_costs_of_the_estimator(name, tmp_path):
    model, rows = fit_model(name)
    bundle = pack(model, tmp_path / "bundle.gwb", sample=rows[:32])
    manifest = bundle.manifest
    assert manifest.cloud is None
    assert manifest.reference_accuracy == model.frontier_.reference_accuracy
    for report in (verify(model, bundle, rows), verify_graphs(bundle, rows), self_test(bundle)):
        assert report.agrees
        # the graphs give the margins of the flat arrays bit by bit
        assert report.max_margin_difference == 0
    with Device(bundle) as device:
        answers = [device.answer(row) for row in rows]
    assert [answer.label for answer in answers] == model.predict(rows).tolist()
    assert [answer.cost for answer in answers] == model.cost(rows).tolist()
    # the single stage answers all instances
    assert {(answer.route, answer.stage) for answer in answers} == {("edge", 0)}
    assert model.cost(rows).mean() < model.feature_costs_.total
    assert manifest.answers_values == (name in VALUE_MODELS)


@pytest.mark.parametrize(
    ("name", "task", "score_name"),
    [("regressor", "regress", "R²"), ("ranker", "rank", "AP@5")],
)
def test_a_bundle_with_numbers_has_no_classes_and_other_scores(
    name, task, score_name, tmp_path, capsys
):
    model, rows = fit_model(name)
    path = tmp_path / "bundle"
    bundle = pack(model, path, sample=rows[:32])
    manifest = bundle.manifest
    assert manifest.task == task
    assert (manifest.classes, manifest.n_classes, manifest.link) == ((), 0, "identity")
    with Device(bundle) as device:
        answer = device.answer(rows[0])
    # the label is the number; there is no class and no probability
    assert type(answer.label) is float
    assert (answer.class_index, len(answer.probabilities)) == (-1, 0)
    for command in ("inspect", "frontier"):
        assert main([command, str(path)]) == 0
        output = capsys.readouterr().out
        assert score_name in output
        assert "accuracy" not in output
    lines = [",".join([*manifest.feature_names, "target"])]
    for row, target in zip(rows, DIABETES_TARGETS, strict=True):
        lines.append(",".join(map(repr, [*map(float, row), float(target)])))
    table_file = tmp_path / "table.csv"
    table_file.write_text("\n".join(lines) + "\n")
    command = ["verify", str(path), "--data", str(table_file), "--target", "target", "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["agrees"]
    assert document["task"] == task
    measured = document["data"]
    assert measured["rows"] == len(rows)
    assert measured["cost"] == pytest.approx(model.cost(rows).mean())
    assert "accuracy" not in measured
    # a ranking has no R²
    r_squared = model.score(rows, DIABETES_TARGETS) if task == "regress" else None
    assert measured.get("r2") == (r_squared and pytest.approx(r_squared, abs=1e-9))
