"""Exact conversion of high-cost models, and refusal of other models before the fit."""

from __future__ import annotations

import warnings

import lightgbm
import numpy as np
import pandas as pd
import pytest
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    StandardScaler,
)
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import all_estimators
from sklearn.utils._test_common.instance_generator import _construct_instances

from gatewise.errors import InputError
from gatewise_export.packing.converters import convert_and_probe
from gatewise_training import StagedCascade
from gatewise_training.learners.given_models.packable import (
    CLASSIFIERS,
    SKL2ONNX_TRANSFORMERS,
    TRANSFORMERS,
    check_packable,
)
from gatewise_training.learners.given_models.probing import N_ROWS
from gatewise_training.learners.high_cost_model import HighCostModel

xgboost = pytest.importorskip("xgboost", reason="[dev] holds xgboost-cpu on Linux only")

LIBRARY_CLASSIFIERS = {"LGBMClassifier", "XGBClassifier", "XGBRFClassifier", "CatBoostClassifier"}
#: Constructors that replace those of scikit-learn's own tests.
CONSTRUCTORS = {
    "Pipeline": lambda: Pipeline([("a", StandardScaler()), ("b", LogisticRegression())]),
    "VotingClassifier": lambda: VotingClassifier([("a", LogisticRegression())], weights=[2]),
    "StackingClassifier": lambda: StackingClassifier(
        [("a", LogisticRegression()), ("b", DecisionTreeClassifier(max_depth=3))], cv=2
    ),
    "FeatureUnion": lambda: FeatureUnion([("a", StandardScaler())]),
    "ColumnTransformer": lambda: make_column_transformer((StandardScaler(), [0, 2])),
    "GridSearchCV": lambda: GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2),
    "RandomizedSearchCV": lambda: RandomizedSearchCV(
        LogisticRegression(), {"C": [0.1, 1.0]}, n_iter=2, cv=2
    ),
    "QuadraticDiscriminantAnalysis": lambda: QuadraticDiscriminantAnalysis(reg_param=0.1),
    "FrozenEstimator": lambda: FrozenEstimator(LogisticRegression().fit(*make_scaled_table())),
    "KBinsDiscretizer": lambda: KBinsDiscretizer(4, encode="ordinal"),
    "FunctionTransformer": FunctionTransformer,
    "OrdinalEncoder": lambda: OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
}


def make_estimator(name):
    if name in CONSTRUCTORS:
        return CONSTRUCTORS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # raised by deprecated classes
        estimator = next(iter(_construct_instances(dict(all_estimators())[name])))
    if "random_state" in estimator.get_params():
        estimator.set_params(random_state=0)
    return estimator


def make_scaled_table(n_classes=2):
    """Make rows with values of 0 to 1; a third class has a large second value."""
    X, y = load_breast_cancer(return_X_y=True)
    X, y = X[::3, :6], y[::3]  # so that fits are fast
    X = ((X - X.min(axis=0)) / np.ptp(X, axis=0)).astype(np.float32)
    return X, y if n_classes == 2 else y + (X[:, 1] > 0.35)


def assert_conversion_holds(model, X, y, *, allow_missing=False, n_rows=N_ROWS):
    """Fit and convert a model, and check that no probed row is answered differently."""
    check_packable(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some fits do not converge
        model.fit(X, y)
        f0 = HighCostModel.from_model(model, np.unique(y), X.shape[1])
        probed = convert_and_probe(f0, X[:64], allow_missing=allow_missing, n_rows=n_rows).probed
    assert probed.rows >= 0.8 * n_rows  # the model refuses some rows
    # Models that sum in float64 have no undecided rows. Others have at most the bisected rows.
    assert probed.undecided <= probed.kinds["sides of a boundary"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CLASSIFIERS - LIBRARY_CLASSIFIERS))
def test_listed_classifiers_hold_on_adversarial_rows(name):
    assert_conversion_holds(
        make_estimator(name), *make_scaled_table(2 if name in ("NuSVC", "FrozenEstimator") else 3)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TRANSFORMERS))
def test_listed_transformers_hold_on_adversarial_rows(name):
    X, y = make_scaled_table()
    X = np.round(4 * X) if name in ("OneHotEncoder", "OrdinalEncoder") else X
    # The thresholds of a tree reveal differences in the last bits of the transformer.
    assert_conversion_holds(
        make_pipeline(make_estimator(name), DecisionTreeClassifier(random_state=0)), X, y
    )


#: A tree whose thresholds reveal differences in the last bits.
UNLIMITED_TREE = DecisionTreeClassifier(random_state=0)
#: Models with options that the tests above do not use.
OTHER_OPTIONS = [
    make_pipeline(Normalizer("l1"), UNLIMITED_TREE),
    make_pipeline(Normalizer("max"), UNLIMITED_TREE),
    make_pipeline(MinMaxScaler(clip=True), UNLIMITED_TREE),
    make_pipeline(KBinsDiscretizer(4, encode="onehot"), LogisticRegression()),
    make_pipeline(PCA(3, whiten=True), UNLIMITED_TREE),
    make_pipeline(
        FeatureUnion([("a", PCA(2)), ("b", StandardScaler())], transformer_weights={"a": 0.3}),
        UNLIMITED_TREE,
    ),
    SVC(kernel="poly", degree=2, coef0=0.5),
    SVC(kernel="sigmoid"),
    SVC(kernel="linear", break_ties=True),
    make_pipeline(StandardScaler(), MLPClassifier((8, 4), "tanh", max_iter=30)),
    MLPClassifier((8,), "logistic", max_iter=30),
    SGDClassifier("modified_huber", random_state=0),
    SGDClassifier("log_loss", random_state=0),
    StackingClassifier([("a", LinearSVC()), ("b", UNLIMITED_TREE)], passthrough=True, cv=2),
    StackingClassifier([("a", LinearSVC()), ("b", UNLIMITED_TREE)], stack_method="predict", cv=2),
    OneVsOneClassifier(UNLIMITED_TREE),
    OneVsRestClassifier(LinearSVC()),
    StackingClassifier([("a", OneVsRestClassifier(UNLIMITED_TREE)), ("b", LinearSVC())], cv=2),
    CalibratedClassifierCV(LinearSVC(), ensemble=False),
    VotingClassifier([("a", SVC()), ("b", UNLIMITED_TREE)], weights=[1, 2]),
    BaggingClassifier(LogisticRegression(), 4, max_features=0.5, random_state=0),
    GradientBoostingClassifier(n_estimators=10, init="zero"),
    Pipeline([("a", "passthrough"), ("b", LogisticRegression())]),
]


@pytest.mark.slow
@pytest.mark.parametrize("model", OTHER_OPTIONS, ids=lambda model: type(model).__name__)
def test_other_options_hold_on_adversarial_rows(model):
    assert_conversion_holds(model, *make_scaled_table(3), n_rows=2000)


@pytest.mark.slow
@pytest.mark.parametrize("class_labels", [(0, 1, 2), (3, 5, 9), (1.0, 2.0, 3.0), ("a", "b", "c")])
def test_polynomial_features_by_skl2onnx_hold_on_adversarial_rows(class_labels):
    X, y = make_scaled_table(3)
    model = make_pipeline(StandardScaler(), PolynomialFeatures(), LogisticRegression())
    assert_conversion_holds(model, X, np.array(class_labels)[y], n_rows=2000)


@pytest.mark.slow
def test_conversions_of_powers_losses_and_imputed_values_hold():
    X, y = make_scaled_table()
    assert_conversion_holds(
        make_pipeline(PowerTransformer("box-cox"), UNLIMITED_TREE), X + 1, y, n_rows=2000
    )
    assert_conversion_holds(
        GradientBoostingClassifier(n_estimators=10, loss="exponential"), X, y, n_rows=2000
    )
    X[np.random.default_rng(0).random(X.shape) < 0.15] = np.nan
    imputer = SimpleImputer(strategy="median", add_indicator=True)
    assert_conversion_holds(
        make_pipeline(imputer, LogisticRegression()), X, y, allow_missing=True, n_rows=2000
    )
    whole_numbers = np.round(4 * X)
    encoders = (
        OneHotEncoder(handle_unknown="ignore"),
        OrdinalEncoder(
            handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2
        ),
    )
    for encoder in encoders:
        assert_conversion_holds(
            make_pipeline(encoder, UNLIMITED_TREE),
            whole_numbers,
            y,
            allow_missing=True,
            n_rows=2000,
        )


# With one thread, because threads that wait take the time of other tests.
QUIET_LIGHTGBM = {"verbose": -1, "n_jobs": 1}
QUIET_CATBOOST = {"verbose": 0, "allow_writing_files": False, "thread_count": 1}
TREE_MODELS = {
    "LightGBM": lambda: LGBMClassifier(n_estimators=20, min_child_samples=5, **QUIET_LIGHTGBM),
    "XGBoost": lambda: xgboost.XGBClassifier(n_estimators=20, n_jobs=1),
    "XGBoost's forest": lambda: xgboost.XGBRFClassifier(n_estimators=20, n_jobs=1),
    "XGBoost's dart": lambda: xgboost.XGBClassifier(
        n_estimators=20, n_jobs=1, booster="dart", rate_drop=0.3, num_parallel_tree=2
    ),
    "CatBoost": lambda: CatBoostClassifier(iterations=20, **QUIET_CATBOOST),
    "CatBoost leaf by leaf": lambda: CatBoostClassifier(
        iterations=20, grow_policy="Lossguide", **QUIET_CATBOOST
    ),
    "histograms": lambda: HistGradientBoostingClassifier(max_iter=20, min_samples_leaf=5),
    "tree": lambda: DecisionTreeClassifier(random_state=0),
    "forest": lambda: RandomForestClassifier(30, min_samples_leaf=3, random_state=0),
    "bagging": lambda: BaggingClassifier(DecisionTreeClassifier(min_samples_leaf=4), 7),
}


@pytest.mark.slow
@pytest.mark.parametrize("allow_missing", [False, True], ids=["", "missing values"])
@pytest.mark.parametrize("name", TREE_MODELS)
def test_trees_of_all_libraries_hold_on_adversarial_rows(name, allow_missing):
    X, y = make_scaled_table(3)
    if allow_missing:
        X[np.random.default_rng(0).random(X.shape) < 0.15] = np.nan
    assert_conversion_holds(TREE_MODELS[name](), X, y, allow_missing=allow_missing)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["XGBoost", "CatBoost", "histograms"])
def test_boosters_inside_other_estimators_hold_on_adversarial_rows(library):
    assert_conversion_holds(
        make_pipeline(StandardScaler(), TREE_MODELS[library]()), *make_scaled_table(3), n_rows=1000
    )
    voters = [("a", TREE_MODELS[library]()), ("b", GaussianNB()), ("c", "drop")]
    voting_classifier = VotingClassifier(voters, voting="soft", weights=[1, 3, 2])
    assert_conversion_holds(voting_classifier, *make_scaled_table(3), n_rows=1000)
    assert_conversion_holds(
        CalibratedClassifierCV(TREE_MODELS[library](), cv=2), *make_scaled_table(), n_rows=1000
    )


def test_conversions_hold_for_data_with_a_large_offset():
    X, y = make_scaled_table()
    classifier = make_pipeline(MinMaxScaler(), SVC())
    assert_conversion_holds(
        CalibratedClassifierCV(classifier, cv=2), X + np.float32(1e6), y, n_rows=1000
    )


def test_values_between_categories_are_unknown_categories():
    X, y = make_scaled_table()
    X = np.round(4 * X) / 2
    encoder = OneHotEncoder(handle_unknown="ignore", drop="first")
    assert_conversion_holds(make_pipeline(encoder, LogisticRegression()), X, y, n_rows=1000)


@pytest.mark.slow
def test_lightgbm_treats_tiny_numbers_as_zero():
    X = np.random.default_rng(0).choice([-1, 0, 1], (300, 2)).astype(np.float32)
    y = (X[:, 0] == 0) + (X[:, 1] > 0)  # splits between -1 and 0 have the threshold -1e-35
    assert_conversion_holds(
        LGBMClassifier(n_estimators=5, **QUIET_LIGHTGBM), X, y.astype(int), n_rows=1000
    )


@pytest.mark.parametrize("library", ["XGBoost", "LightGBM"])
def test_conversions_use_the_best_iteration(library):
    X, y = make_scaled_table()
    training_data = (X[::2], y[::2])
    stopping_data = (X[1::2], y[1::2])
    if library == "XGBoost":
        early_stopping = xgboost.callback.EarlyStopping(rounds=3)
        model = xgboost.XGBClassifier(
            n_estimators=100, learning_rate=1.0, n_jobs=1, callbacks=[early_stopping]
        )
        model.fit(*training_data, eval_set=[stopping_data], verbose=False)
    else:
        early_stopping = lightgbm.early_stopping(3, verbose=False)
        model = LGBMClassifier(n_estimators=100, learning_rate=1.0, **QUIET_LIGHTGBM)
        model.fit(
            *training_data,
            eval_X=stopping_data[0],
            eval_y=stopping_data[1],
            callbacks=[early_stopping],
        )
    assert_labels_equal(model, X)


def test_conversions_keep_the_order_of_classes():
    X, y = make_scaled_table()
    model = CatBoostClassifier(iterations=30, class_names=[1, 0], **QUIET_CATBOOST)
    model.fit(X[::2], y[::2])
    assert list(model.classes_) == [1, 0]
    assert_labels_equal(model, X)


def assert_labels_equal(model, X):
    f0 = HighCostModel.from_model(model, np.array([0, 1]), X.shape[1])
    np.testing.assert_array_equal(f0.labels(X), np.ravel(model.predict(X)))
    convert_and_probe(f0, X[:64], allow_missing=False, n_rows=1000)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LGBMClassifier(objective="multiclassova"), "objective='multiclassova'"),
        (make_pipeline(StandardScaler(), LGBMClassifier(linear_tree=True)), "linear_tree=True"),
        (make_pipeline(StandardScaler(), LGBMClassifier(boosting="rf")), "boosting='rf'"),
        (xgboost.XGBClassifier(missing=0.0), "missing=0.0"),
        (CatBoostClassifier(text_features=[0]), "text_features"),
        (GradientBoostingClassifier(init=LogisticRegression()), "init="),
        (KNeighborsClassifier(metric="chebyshev"), "ties in the order of its own search"),
        (SVC(probability=True), "probability=True"),
        (SVC(kernel="precomputed"), "kernel='precomputed'"),
        (LGBMClassifier(linear_tree=True), "linear_tree=True"),
        (LGBMClassifier(zero_as_missing=True), "zero_as_missing=True"),
        (make_pipeline(OneHotEncoder(min_frequency=20), SVC()), "min_frequency=20"),
        (make_pipeline(OrdinalEncoder(max_categories=3), SVC()), "max_categories=3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_without_an_exact_form_are_refused_before_the_fit(model, message):
    with pytest.raises(InputError, match=message) as error_info:
        check_packable(model)
    assert "\n" not in str(error_info.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        LGBMClassifier(n_estimators=3, **QUIET_LIGHTGBM),
        xgboost.XGBClassifier(n_estimators=3, enable_categorical=True),
        HistGradientBoostingClassifier(max_iter=3),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_booster_fitted_on_categories_is_refused_before_the_fit(model):
    X, y = make_scaled_table()
    frame = pd.DataFrame(X, columns=list("abcdef"))
    frame["f"] = pd.Categorical((10 * frame["f"]).astype(int))
    check_packable(clone(model).fit(frame.drop(columns="f"), y))
    with pytest.raises(InputError, match="fitted on columns of categories"):
        StagedCascade(clone(model).fit(frame, y)).fit(frame, y)


def test_a_booster_without_an_exact_graph_is_accepted_as_a_library_file():
    model = LGBMClassifier(linear_tree=True)
    check_packable(model, as_library_file=True)
    with pytest.raises(InputError, match="linear_tree=True"):
        check_packable(make_pipeline(StandardScaler(), model), as_library_file=True)


@pytest.mark.parametrize("kind", ["classifier", "transformer"])
def test_other_estimators_of_scikit_learn_are_refused(kind):
    listed_names = (
        CLASSIFIERS | SKL2ONNX_TRANSFORMERS | (TRANSFORMERS if kind == "transformer" else set())
    )
    multi_label = {"ClassifierChain", "MultiOutputClassifier"}
    unlisted_classes = [
        (name, estimator_class)
        for name, estimator_class in all_estimators(kind)
        if name not in listed_names | multi_label
    ]
    assert len(unlisted_classes) > 8  # else the lists are compared wrongly
    for name, estimator_class in unlisted_classes:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            model = next(iter(_construct_instances(estimator_class)))
        if kind == "transformer":
            model = Pipeline([("a", model), ("b", LogisticRegression())])
        with pytest.raises(InputError, match=f"{name}.*(no (exact )?form|reads texts)"):
            check_packable(model)
