"""Labels at the door: measured values are no classes, for any estimator that learns classes."""

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
    check_classes,
    check_costs,
    check_training,
    warn_of_rounding,
)

SAYS = (
    "Unknown label type: continuous. This learns classes: bin measured values into classes "
    "first, e.g. with pandas.qcut(y, 3, labels=False)"
)
PUBLIC = [getattr(gatewise_training, name) for name in gatewise_training.__all__]
#: Estimators that learn from labels, which a pair need not have.
CLASSIFIERS = [
    cls
    for cls in PUBLIC
    if isinstance(cls, type)
    and issubclass(cls, BaseEstimator)
    and is_classifier(cls())
    and cls is not gatewise_training.PairCascade
]


def test_the_estimators_are_found():
    names = {c.__name__ for c in CLASSIFIERS}
    assert {"StagedCascade", "AdaptGBRT", "AdaptLin", "AdaptLstsq", "L1Cascade"} <= names


@pytest.mark.parametrize("make", CLASSIFIERS, ids=lambda c: c.__name__)
def test_measured_values_and_columns_without_numbers_are_refused_in_one_line(make):
    rng, estimator = np.random.default_rng(0), make()
    x = rng.normal(size=(60, 4)).astype(np.float32)
    y = x[:, 0] + rng.normal(size=60)
    with pytest.raises(InputError) as caught:
        estimator.fit(x, y)
    assert str(caught.value) == SAYS
    assert not hasattr(estimator, "classes_")  # nothing half-fitted is left behind
    with pytest.raises(InputError, match="validation label"):
        estimator.fit(x, (y > 0).astype(int), validation=(x, y))
    rows = {"a": [1.0, 2, 3, 4], "kind": list("xyxy"), "day": pd.to_datetime(["2026-01-02"] * 4)}
    frame = pd.DataFrame(rows | {"colour": pd.Categorical(list("rgrg")), "on": [True, False] * 2})
    with pytest.raises(InputError, match=r"\['kind', 'day', 'colour'\].*TableEncoder"):
        make().fit(frame, [0, 1, 0, 1])
    with pytest.raises(InputError, match=r"\['day'\].*TableEncoder"):
        make().fit(frame[["a", "day"]], [0, 1, 0, 1])


def test_whole_floats_words_and_what_the_advice_gives_are_classes():
    measured = np.random.default_rng(0).normal(size=60)
    for y in (np.array([0.0, 1.0, 2.0] * 4), np.array(["a", "b"] * 6)):
        check_classes(y)
    check_classes(pd.qcut(measured, 3, labels=False))
    with pytest.raises(InputError, match=r"unknown\. This learns classes: give one class label"):
        check_classes(np.array([{}, {}, {}], object))


def test_nullable_labels_stay_whole_numbers_and_truths():
    x = np.random.default_rng(0).normal(size=(8, 2))
    large = [2**53, 2**53 + 1] * 4  # one number as floats
    for labels, dtype, classes in (
        (large, "Int64", large[:2]),
        ([True, False] * 4, "boolean", [False, True]),
    ):
        table = check_training(CEGBClassifier(), x, pd.Series(labels, dtype=dtype), None, None)
        assert table.classes.tolist() == classes
        assert table.classes.dtype.kind in "ib"
    for y, held, says in (
        (pd.array([None, *[0, 1] * 3, 0], dtype="Int64"), None, "y is missing .* in 1 row"),
        ([b"a", b"b"] * 4, None, "y: .*bytes"),
        ([0, 1] * 4, (x, [None, *[0, 1] * 3, 0]), "validation label None"),
    ):
        with pytest.raises(InputError, match=says):
            check_training(CEGBClassifier(), x, y, None, held)


@pytest.mark.parametrize(
    ("column", "share"),
    [
        (1.7e9 + 30 * np.arange(60), "3.6%"),  # seconds since 1970: float32 takes steps of 128
        (1e-50 * np.arange(60), "100.0%"),
        (16_000_000 + np.arange(60), None),  # whole numbers below 2**24 are exact
        (np.float32(1.7e9) + 128 * np.arange(60, dtype=np.float32), None),
        (np.full(60, 0.1), None),
        (np.where(np.arange(60) % 3, 1e38, -3e38), None),
    ],
)
@pytest.mark.parametrize("dtype", [None, "float64", "Float64"])  # an array, or a frame
def test_columns_that_float32_would_lose_are_named(column, share, dtype, recwarn):
    table = np.column_stack([np.random.default_rng(0).normal(size=60), column])
    if dtype is not None:
        table = pd.DataFrame(table, dtype=dtype)
    with np.errstate(under="ignore"):
        rows = np.asarray(table, np.float32)
    warn_of_rounding(table, rows, ("other", "clock"))
    if share is None:
        assert not recwarn.list
    else:
        said = str(recwarn.pop(UserWarning).message)
        assert f"columns ['clock'] lose up to {share} of their range in float32" in said


def test_measured_values_that_float32_would_lose_are_refused():
    x = np.arange(60.0)[:, None]
    for y, says in (
        (1.7e9 + x[:, 0], "varies by 59 around 1.7e\\+09.*subtract its mean"),
        (1e39 * x[:, 0], "too large for float32"),
    ):
        with pytest.raises(InputError, match=says):
            CEGBRegressor().fit(x, y)


def test_prices_may_be_a_list_or_by_name_in_any_order():
    wanted = FeatureCosts([1.0, 2.0], names=["a", "b"])
    for given in (
        {"b": 2.0, "a": 1.0},
        pd.Series({"b": 2.0, "a": 1.0}),
        wanted.in_order(["b", "a"]),
    ):
        assert check_costs(given, ("a", "b"), has_names=True) == wanted
    assert check_costs([1.0, 2.0], ("x0", "x1"), has_names=False).own.tolist() == [1.0, 2.0]
    for given, says in (
        ({"a": 1.0}, "no feature cost for 'b'$"),
        (
            {"a": 1.0, "B": 1.0},
            "no feature cost for 'b'; a feature cost for 'B', which is not a column",
        ),
        ("cheap", "from_file reads a file"),
        ([1.0], "1 feature costs for 2"),
        (["cheap"] * 2, "must be numbers"),
    ):
        with pytest.raises(InputError, match=says):
            check_costs(given, ("a", "b"), has_names=True)
    with pytest.raises(InputError, match="the data has no names"):
        check_costs({"a": 1.0, "b": 2.0}, ("x0", "x1"), has_names=False)


def test_what_is_no_number_is_refused_by_its_name():
    X, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    for model, fit, says in (
        (GreedyMiser(penalties=["a"]), {}, "penalties must be at least 0, not"),
        (AdaptLin(p_full=[None]), {}, "p_full must be shares"),
        (AdaptGBRT(prefixes=["a"]), {}, "prefixes must be shares"),
        (GreedyMiser(), {"sample_weight": -y}, "Negative values in data passed to"),
        (CEGBRegressor(), {"sample_weight": [1.0]}, "sample_weight.shape"),
    ):
        with pytest.raises(InputError, match=says):
            model.fit(X, y, **fit)
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
def test_columns_of_times_and_intervals_are_named_and_may_be_encoded(column):
    frame = pd.DataFrame({"a": np.linspace(0, 1, 60), "b": column})
    with pytest.raises(InputError, match=r"columns \['b'\] hold no numbers: encode the table"):
        BudgetForest(n_estimators=2).fit(frame, np.arange(60) % 2)
    encoder = TableEncoder(columns={"b": "category"}, max_one_hot=1).fit(frame)
    back = encoder.transform(frame.assign(b=frame.b.map(str)))
    np.testing.assert_array_equal(back, encoder.transform(frame))


def test_texts_are_refused_with_advice_that_works():
    texts = np.array(["good day", "bad day"] * 30, object)
    y = np.arange(60) % 2
    with pytest.raises(InputError, match="make columns of them first"):
        BudgetForest(n_estimators=2).fit(texts[:, None], y)
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression())
    with pytest.raises(InputError, match=r"TfidfVectorizer.*turn the texts into columns first"):
        StagedCascade(pipeline).fit(texts, y)


def test_many_whole_values_of_which_some_stand_once_are_measured():
    y = np.concatenate([np.arange(30), np.arange(25)])
    with pytest.raises(InputError, match=r"30 different numbers, 5 of them once.*pandas\.qcut"):
        check_classes(y)
    check_classes(np.concatenate([np.arange(30)] * 2))  # species by number
    check_classes(np.array(list("abcdefghijklmnopqrstuvwxyz") * 3 + ["once"]))
