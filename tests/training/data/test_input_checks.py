"""Test the checks of labels, tables and feature costs that every fit makes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, is_classifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import gatewise_training
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint
from gatewise_training import (
    AdaptGBRT,
    AdaptLin,
    BudgetForest,
    CEGBClassifier,
    CEGBRegressor,
    Frontier,
    GreedyMiser,
    StagedCascade,
    TableEncoder,
)
from gatewise_training.data.input_checks import (
    FitArguments,
    check_classes,
    check_costs,
    check_training,
    warn_of_rounding,
)

CONTINUOUS_LABELS_MESSAGE = (
    "Unknown label type: continuous. This learns classes: bin measured values into classes "
    "first, e.g. with pandas.qcut(y, 3, labels=False)"
)
PUBLIC_OBJECTS = [getattr(gatewise_training, name) for name in gatewise_training.__all__]
#: Classifiers that need labels. A pair of given models does not.
CLASSIFIERS = [
    estimator_class
    for estimator_class in PUBLIC_OBJECTS
    if isinstance(estimator_class, type)
    and issubclass(estimator_class, BaseEstimator)
    and is_classifier(estimator_class())
    and estimator_class is not gatewise_training.PairCascade
]


def test_the_classifiers_under_test_include_all_families():
    names = {estimator_class.__name__ for estimator_class in CLASSIFIERS}
    assert {"StagedCascade", "AdaptGBRT", "AdaptLin", "AdaptLstsq", "L1Cascade"} <= names


@pytest.mark.parametrize(
    "classifier_class", CLASSIFIERS, ids=lambda estimator_class: estimator_class.__name__
)
def test_continuous_labels_and_columns_without_numbers_are_refused_in_one_line(classifier_class):
    rng = np.random.default_rng(0)
    estimator = classifier_class()
    x = rng.normal(size=(60, 4)).astype(np.float32)
    y = x[:, 0] + rng.normal(size=60)
    with pytest.raises(InputError) as error_info:
        estimator.fit(x, y)
    assert str(error_info.value) == CONTINUOUS_LABELS_MESSAGE
    assert not hasattr(estimator, "classes_")  # no half-fitted estimator remains
    with pytest.raises(InputError, match="validation label"):
        estimator.fit(x, (y > 0).astype(int), validation=(x, y))
    columns = {"a": [1.0, 2, 3, 4], "kind": list("xyxy"), "day": pd.to_datetime(["2026-01-02"] * 4)}
    table = pd.DataFrame(
        columns | {"colour": pd.Categorical(list("rgrg")), "on": [True, False] * 2}
    )
    with pytest.raises(InputError, match=r"\['kind', 'day', 'colour'\].*TableEncoder"):
        classifier_class().fit(table, [0, 1, 0, 1])
    with pytest.raises(InputError, match=r"\['day'\].*TableEncoder"):
        classifier_class().fit(table[["a", "day"]], [0, 1, 0, 1])
    # numpy would read a table of times alone as numbers of an arbitrary unit
    with pytest.raises(InputError, match=r"\['day'\].*TableEncoder"):
        classifier_class().fit(table[["day"]], [0, 1, 0, 1])
    with pytest.raises(InputError, match=r"\['span'\].*TableEncoder"):
        classifier_class().fit(table[["a"]].assign(span=pd.to_timedelta(1, "s")), [0, 1, 0, 1])
    with pytest.raises(InputError, match="X holds dates or durations"):
        classifier_class().fit(table[["day"]].to_numpy(), [0, 1, 0, 1])


def test_whole_floats_words_and_binned_values_are_classes():
    measured_values = np.random.default_rng(0).normal(size=60)
    for y in (np.array([0.0, 1.0, 2.0] * 4), np.array(["a", "b"] * 6)):
        check_classes(y)
    check_classes(pd.qcut(measured_values, 3, labels=False))
    with pytest.raises(InputError, match=r"unknown\. This learns classes: give one class label"):
        check_classes(np.array([{}, {}, {}], object))


def test_nullable_labels_keep_their_integers_and_booleans():
    x = np.random.default_rng(0).normal(size=(8, 2))
    large_labels = [2**53, 2**53 + 1] * 4  # equal as floats
    for labels, dtype, classes in (
        (large_labels, "Int64", large_labels[:2]),
        ([True, False] * 4, "boolean", [False, True]),
    ):
        table = check_training(CEGBClassifier(), FitArguments(x, pd.Series(labels, dtype=dtype)))
        assert table.classes.tolist() == classes
        assert table.classes.dtype.kind in "ib"
    for y, validation, message in (
        (pd.array([None, *[0, 1] * 3, 0], dtype="Int64"), None, "y is missing .* in 1 row"),
        ([b"a", b"b"] * 4, None, "y: .*bytes"),
        ([0, 1] * 4, (x, [None, *[0, 1] * 3, 0]), "validation label None"),
    ):
        with pytest.raises(InputError, match=message):
            check_training(CEGBClassifier(), FitArguments(x, y, validation=validation))


@pytest.mark.parametrize(
    ("column", "lost_share"),
    [
        # float32 rounds these seconds since 1970 to multiples of 128, so by up to 64 of 1770
        (1.7e9 + 30 * np.arange(60), "3.6%"),
        (1e-50 * np.arange(60), "100.0%"),
        (16_000_000 + np.arange(60), None),  # whole numbers below 2**24 are exact
        (np.float32(1.7e9) + 128 * np.arange(60, dtype=np.float32), None),
        (np.full(60, 0.1), None),
        (np.where(np.arange(60) % 3, 1e38, -3e38), None),
    ],
)
@pytest.mark.parametrize("dtype", [None, "float64", "Float64"])  # None stands for an array
def test_a_warning_names_columns_that_lose_precision_in_float32(column, lost_share, dtype, recwarn):
    table = np.column_stack([np.random.default_rng(0).normal(size=60), column])
    if dtype is not None:
        table = pd.DataFrame(table, dtype=dtype)
    with np.errstate(under="ignore"):
        rows = np.asarray(table, np.float32)
    warn_of_rounding(table, rows, ("other", "clock"))
    if lost_share is None:
        assert not recwarn.list
    else:
        warning = str(recwarn.pop(UserWarning).message)
        assert f"columns ['clock'] lose up to {lost_share} of their range in float32" in warning


def test_regression_targets_that_lose_precision_in_float32_are_refused():
    x = np.arange(60.0)[:, None]
    for y, message in (
        (1.7e9 + x[:, 0], "varies by 59 around 1.7e\\+09.*subtract its mean"),
        (1e39 * x[:, 0], "too large for float32"),
    ):
        with pytest.raises(InputError, match=message):
            CEGBRegressor().fit(x, y)


def test_feature_costs_may_be_a_list_or_a_mapping_in_any_order():
    expected_costs = FeatureCosts([1.0, 2.0], names=["a", "b"])
    for costs in (
        {"b": 2.0, "a": 1.0},
        pd.Series({"b": 2.0, "a": 1.0}),
        expected_costs.in_order(["b", "a"]),
    ):
        assert check_costs(costs, ("a", "b"), has_names=True) == expected_costs
    assert check_costs([1.0, 2.0], ("x0", "x1"), has_names=False).own.tolist() == [1.0, 2.0]
    for costs, message in (
        ({"a": 1.0}, "no feature cost for 'b'$"),
        (
            {"a": 1.0, "B": 1.0},
            "no feature cost for 'b'; a feature cost for 'B', which is not a column",
        ),
        ("cheap", "from_file reads a file"),
        ([1.0], "1 feature costs for 2"),
        (["cheap"] * 2, "must be numbers"),
    ):
        with pytest.raises(InputError, match=message):
            check_costs(costs, ("a", "b"), has_names=True)
    with pytest.raises(InputError, match="the data has no names"):
        check_costs({"a": 1.0, "b": 2.0}, ("x0", "x1"), has_names=False)


def test_errors_name_the_setting_that_is_not_a_number():
    X, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    for model, fit_options, message in (
        (GreedyMiser(penalties=["a"]), {}, "penalties must be at least 0, not"),
        (AdaptLin(p_full=[None]), {}, "p_full must be shares"),
        (AdaptGBRT(prefixes=["a"]), {}, "prefixes must be shares"),
        (AdaptGBRT(prefixes=[0.0, 1.0]), {}, "prefixes must be shares"),
        (GreedyMiser(), {"sample_weight": -y}, "Negative values in data passed to"),
        (CEGBRegressor(), {"sample_weight": [1.0]}, "sample_weight.shape"),
    ):
        with pytest.raises(InputError, match=message):
            model.fit(X, y, **fit_options)
    point = OperatingPoint((None,), cost=1.0, accuracy=0.9, offload_rate=1.0)
    with pytest.raises(InputError, match="budget must be a number"):
        Frontier((point,), 0.9).at(budget="1")


@pytest.mark.parametrize(
    "column",
    [
        pd.date_range("2020", periods=60, tz="Europe/Berlin"),
        pd.period_range("2020", periods=60),
        pd.cut(np.linspace(0, 1, 60), 5),
    ],
    ids=["zone", "period", "interval"],
)
def test_errors_name_columns_of_times_and_intervals_that_an_encoder_accepts(column):
    table = pd.DataFrame({"a": np.linspace(0, 1, 60), "b": column})
    with pytest.raises(InputError, match=r"columns \['b'\] hold no numbers: encode the table"):
        BudgetForest(n_estimators=2).fit(table, np.arange(60) % 2)
    encoder = TableEncoder(columns={"b": "ordinal"}).fit(table)
    encoded_texts = encoder.transform(table.assign(b=table.b.map(str)))
    np.testing.assert_array_equal(encoded_texts, encoder.transform(table))


def test_errors_advise_to_turn_texts_into_columns_first():
    texts = np.array(["good day", "bad day"] * 30, object)
    y = np.arange(60) % 2
    with pytest.raises(InputError, match="convert it to columns first"):
        BudgetForest(n_estimators=2).fit(texts[:, None], y)
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression())
    with pytest.raises(InputError, match=r"TfidfVectorizer.*convert the texts to columns first"):
        StagedCascade(pipeline).fit(texts, y)


def test_many_whole_numbers_are_refused_as_labels_if_some_occur_once():
    y = np.concatenate([np.arange(30), np.arange(25)])
    with pytest.raises(InputError, match=r"30 different numbers, 5 of them once.*pandas\.qcut"):
        check_classes(y)
    check_classes(np.concatenate([np.arange(30)] * 2))  # for example, numbers of species
    check_classes(np.array(list("abcdefghijklmnopqrstuvwxyz") * 3 + ["once"]))
