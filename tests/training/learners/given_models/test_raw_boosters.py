"""Tests that users may give boosters, or their files, as models.

A raw booster is a model of the library's own interface, without the classes of a scikit-learn
classifier. The tests train small ones, and give them or their files to :func:`.as_classifier`.
"""

from __future__ import annotations

import lightgbm
import numpy as np
import pytest
import xgboost
from catboost import CatBoostClassifier
from sklearn.datasets import load_breast_cancer, load_iris

from gatewise.errors import InputError
from gatewise_cloud import CloudModel
from gatewise_export import pack
from gatewise_training import PairCascade, StagedCascade
from gatewise_training.learners.given_models.flat_forms import flat_trees
from gatewise_training.learners.given_models.packable import is_same_column
from gatewise_training.learners.given_models.raw_boosters import as_classifier

pytestmark = pytest.mark.usefixtures("two_folds")

# one thread, so that floats are added in the same order in each run
LIGHTGBM_PARAMS = {"num_leaves": 7, "verbose": -1, "seed": 0, "num_threads": 1}
N_ROUNDS = 8  # some trees for each class, in little time
N_TRAINING_ROWS = 300  # of 569 rows of breast cancer


def train_lightgbm(x, y):
    objective = {"objective": "binary"}
    if y.max() > 1:
        objective = {"objective": "multiclass", "num_class": 3}
    return lightgbm.train(LIGHTGBM_PARAMS | objective, lightgbm.Dataset(x, y), N_ROUNDS)


def train_xgboost(x, y):
    objective = {"objective": "binary:logistic"}
    if y.max() > 1:
        objective = {"objective": "multi:softprob", "num_class": 3}
    return xgboost.train(objective | {"nthread": 1}, xgboost.DMatrix(x, y), N_ROUNDS)


def train_catboost(x, y):
    return CatBoostClassifier(
        iterations=N_ROUNDS, verbose=0, thread_count=1, allow_writing_files=False
    ).fit(x, y)


def predict_by_library(model, x):
    """Compute the probabilities of all classes with the model's own library."""
    if isinstance(model, CatBoostClassifier):
        return model.predict_proba(x)
    outputs = model.predict(xgboost.DMatrix(x) if isinstance(model, xgboost.Booster) else x)
    if outputs.ndim == 1:  # of two classes, the boosters give the second probability
        return np.column_stack([1 - outputs, outputs])
    return outputs


# a CatBoostClassifier is itself a classifier; only its file has no classes
TRAINERS_AND_FILES = [
    (train_lightgbm, None), (train_lightgbm, "model.txt"),
    (train_xgboost, None), (train_xgboost, "model.json"), (train_xgboost, "model.ubj"),
    (train_catboost, "model.cbm"),
]  # fmt: skip


@pytest.mark.parametrize(
    "load_table", [load_breast_cancer, load_iris], ids=["two classes", "three classes"]
)
@pytest.mark.parametrize(("train_booster", "file_name"), TRAINERS_AND_FILES)
def test_boosters_predict_like_their_library(train_booster, file_name, load_table, tmp_path):
    x, y = load_table(return_X_y=True)
    x = x.astype(np.float32)
    model = train_booster(x, y)
    if file_name is not None:
        model.save_model(str(tmp_path / file_name))
    classifier = as_classifier(model if file_name is None else tmp_path / file_name)
    probabilities = classifier.predict_proba(x)
    # the libraries round in other places; 1e-6 is some ten times the resolution of float32
    np.testing.assert_allclose(probabilities, predict_by_library(model, x), atol=1e-6)
    np.testing.assert_array_equal(classifier.predict(x), probabilities.argmax(axis=1))
    assert classifier.n_features_in_ == x.shape[1]
    trees, _ = flat_trees(classifier)
    assert trees.n_features == x.shape[1]


@pytest.mark.slow
def test_boosters_are_high_cost_low_cost_and_first_models(tmp_path):
    x, y = load_breast_cancer(return_X_y=True)
    x = x.astype(np.float32)
    x_train, y_train = x[:N_TRAINING_ROWS], y[:N_TRAINING_ROWS]
    x_rest, y_rest = x[N_TRAINING_ROWS:], y[N_TRAINING_ROWS:]
    high_cost_file = tmp_path / "high_cost.ubj"
    train_xgboost(x_train, y_train).save_model(str(high_cost_file))
    first_stage_file = tmp_path / "first_stage.txt"
    train_lightgbm(x_train[:, :3], y_train).save_model(str(first_stage_file))
    staged_cascade = StagedCascade(
        high_cost_file,
        n_stages=2,
        families=("linear",),
        effort="low",
        first_stages=[(first_stage_file, [0, 1, 2])],
        random_state=0,
    ).fit(x_train, y_train, validation=(x_rest, y_rest))
    # the more frequent class has 63 % of all rows
    assert staged_cascade.score(x_rest, y_rest) > 0.9
    low_cost_file = tmp_path / "low_cost.txt"
    train_lightgbm(x_train, y_train).save_model(str(low_cost_file))
    pair_cascade = PairCascade(
        low_cost_model=str(low_cost_file), high_cost_model=str(high_cost_file), random_state=0
    )
    # only the gate is fitted, on rows that the two models have not seen
    assert pair_cascade.fit(x_rest, y_rest).score(x_rest, y_rest) > 0.9


@pytest.mark.slow
def test_columns_with_spaces_match_the_names_of_lightgbm():
    x, y = load_breast_cancer(return_X_y=True, as_frame=True)
    model = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1).fit(x, y)
    # the column is "mean radius"; LightGBM replaces spaces, which its files cannot hold
    assert model.feature_names_in_[0] == "mean_radius"
    settings = {"n_stages": 1, "families": ("linear",), "effort": "low", "random_state": 0}
    assert StagedCascade(model, **settings).fit(x, y, validation=(x, y)).score(x, y) > 0.9
    swapped_table = x[[*x.columns[1::-1], *x.columns[2:]]]  # the first two columns are swapped
    with pytest.raises(InputError, match="fitted with 'mean_radius' as column 0"):
        StagedCascade(model, **settings).fit(swapped_table, y, validation=(swapped_table, y))


def test_column_names_match_with_underscores_for_spaces():
    assert is_same_column("a_b", "a b")
    assert is_same_column("a b", "a b")
    assert not is_same_column("a b", "a_b")
    assert is_same_column(3, 3)  # columns of arrays have numbers


def test_models_that_are_not_classifiers_are_refused(tmp_path):
    x, y = load_iris(return_X_y=True)
    regressor = lightgbm.train(LIGHTGBM_PARAMS | {"objective": "l2"}, lightgbm.Dataset(x, y), 2)
    # the error names the default parameter of as_classifier, and l2 by LightGBM's full name
    with pytest.raises(InputError, match="high_cost_model: LightGBM objective 'regression'"):
        as_classifier(regressor)
    (tmp_path / "broken.txt").write_text("no model")
    with pytest.raises(InputError, match="high_cost_model is not a classifier of lightgbm"):
        as_classifier(tmp_path / "broken.txt")
    (tmp_path / "broken.ubj").write_bytes(b"{")
    with pytest.raises(InputError, match="high_cost_model is not a classifier of xgboost"):
        as_classifier(tmp_path / "broken.ubj")
    with pytest.raises(InputError, match=r"absent\.cbm does not exist"):
        as_classifier(str(tmp_path / "absent.cbm"))
    # ONNX files and None are not boosters, and are returned as they are
    assert as_classifier("model.onnx") == "model.onnx"
    assert as_classifier(None) is None


@pytest.mark.slow
def test_xgboost_with_categories_runs_by_its_library_as_high_cost_model(tmp_path):
    x, y = load_iris(return_X_y=True)
    x = np.round(x).astype(np.float32)  # categories are whole numbers
    # two columns of categories and two of quantities
    matrix = xgboost.DMatrix(x, y, feature_types=["c", "c", "q", "q"], enable_categorical=True)
    params = {"objective": "multi:softprob", "num_class": 3, "nthread": 1}
    booster = xgboost.train(params, matrix, N_ROUNDS)
    cascade = StagedCascade(booster, n_stages=1, families=("linear",), effort="low", random_state=0)
    # the rows are sorted by class, so every second row goes to each part
    cascade.fit(x[::2], y[::2], validation=(x[1::2], y[1::2]))
    bundle = pack(cascade, tmp_path / "bundle", sample=x[:32])
    assert bundle.manifest.cloud.kind == "xgboost"
    answers = CloudModel.from_bundle(bundle).answer(x)
    np.testing.assert_array_equal(answers.labels, booster.predict(matrix).argmax(axis=1))
    # a device has no xgboost
    with pytest.raises(InputError, match="low_cost_model: XGBoost's categorical splits"):
        as_classifier(booster, "low_cost_model")
