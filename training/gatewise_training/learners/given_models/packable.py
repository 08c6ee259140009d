"""Classifiers that can be packed as graphs, which are recognised by their types before any fit.

The graph of each listed type gives the same predictions as the estimator. The tests of export
convert all of them and compare the predictions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gatewise.errors import InputError
from gatewise.models.booster_files import Library

#: A classifier or transformer with the interface of scikit-learn.
Estimator = Any


def _name_set(names: str) -> frozenset[str]:
    return frozenset(names.split())


#: Classifiers with an exact form as flat trees or as a graph.
CLASSIFIERS = _name_set(
    "BaggingClassifier BernoulliNB CalibratedClassifierCV CatBoostClassifier ComplementNB "
    "DecisionTreeClassifier ExtraTreeClassifier ExtraTreesClassifier FrozenEstimator GaussianNB "
    "GradientBoostingClassifier GridSearchCV HistGradientBoostingClassifier "
    "LGBMClassifier LinearDiscriminantAnalysis LinearSVC "
    "LogisticRegression LogisticRegressionCV MLPClassifier MultinomialNB NuSVC "
    "OneVsOneClassifier OneVsRestClassifier PassiveAggressiveClassifier Perceptron Pipeline "
    "QuadraticDiscriminantAnalysis RandomForestClassifier RandomizedSearchCV RidgeClassifier "
    "RidgeClassifierCV SGDClassifier SVC StackingClassifier VotingClassifier XGBClassifier "
    "XGBRFClassifier"
)

#: Transformers with an exact form as part of a graph.
TRANSFORMERS = _name_set(
    "Binarizer ColumnTransformer FeatureUnion FunctionTransformer GaussianRandomProjection "
    "GenericUnivariateSelect IncrementalPCA KBinsDiscretizer MaxAbsScaler MinMaxScaler "
    "NeighborhoodComponentsAnalysis Normalizer OneHotEncoder OrdinalEncoder PCA "
    "PowerTransformer RobustScaler SelectKBest SelectPercentile SimpleImputer StandardScaler "
    "TruncatedSVD VarianceThreshold"
)

#: Transformers that only skl2onnx converts. It converts the whole classifier that contains them.
SKL2ONNX_TRANSFORMERS = _name_set("PolynomialFeatures")

#: Classifiers that skl2onnx does not convert.
NOT_IN_SKL2ONNX = _name_set(
    "CatBoostClassifier HistGradientBoostingClassifier LGBMClassifier LinearSVC RandomizedSearchCV "
    "XGBClassifier XGBRFClassifier"
)

#: Transformers of texts or dicts, which cannot be converted because instances are numbers.
TEXT_TRANSFORMERS = _name_set(
    "CountVectorizer HashingVectorizer TfidfVectorizer DictVectorizer FeatureHasher"
)

BACKEND_ADVICE = (
    "its predict_proba as a function that a worker runs: gatewise cloud --backend "
    "python:module:function"
)
#: Remedies in errors; a stage runs on the device, which has no backend.
ADVICE = f"give another classifier, an ONNX file, or {BACKEND_ADVICE}"
STAGE_ADVICE = "give another classifier, or an ONNX file"

#: Boosters that a worker can also run with their own library, from a file of that library.
LIBRARY_FILES: dict[str, Library] = {
    "LGBMClassifier": "lightgbm",
    "XGBClassifier": "xgboost",
    "XGBRFClassifier": "xgboost",
    "CatBoostClassifier": "catboost",
}

#: Libraries with classifiers that can be converted. Classifiers of other libraries are opaque.
LIBRARIES = ("sklearn", "lightgbm", "xgboost", "catboost")


def library_class_name(estimator: Estimator) -> str | None:
    """Get the name of a model's class in a known library, or of the library class that it extends.

    The name is None for a class of another library, and for a class with its own methods of
    prediction. A :class:`.RawBooster` states its library class itself.
    """
    if hasattr(estimator, "library_class"):
        return str(estimator.library_class)
    for base_class in type(estimator).__mro__:
        if (
            base_class.__module__.partition(".")[0] in LIBRARIES
            and base_class.__module__ != "sklearn.base"
        ):
            has_same_predictions = base_class is type(estimator) or _predicts_like(
                base_class, estimator
            )
            return str(base_class.__name__) if has_same_predictions else None
    return None


def library_of(model: Estimator) -> Library | None:
    """Get the library of a booster, or None for any other classifier."""
    return LIBRARY_FILES.get(library_class_name(model) or "")


def is_same_column(model_column: Any, data_column: Any) -> bool:
    """Whether a column name of a model is a name of the data; LightGBM replaces spaces by ``_``."""
    return bool(model_column == data_column) or model_column == re.sub(r"\s", "_", str(data_column))


def _predicts_like(base_class: type, estimator: Estimator) -> bool:
    """Whether an estimator predicts by the methods of a library class that it extends."""
    own_class = type(estimator)
    method_names = ("predict", "predict_proba", "transform", "decision_function")
    return all(
        getattr(own_class, method, None) is getattr(base_class, method, None)
        for method in method_names
    )


def needs_backend(model: Estimator) -> bool:
    """Whether a model with ``predict_proba`` is opaque, as a class or as of an unknown library."""
    while type(model).__name__ == "FrozenEstimator":
        model = model.estimator
    return isinstance(model, type) or library_class_name(model) is None


def check_packable(
    model: Estimator,
    model_name: str = "high_cost_model",
    *,
    as_stage: bool = False,
    as_library_file: bool = False,
) -> None:
    """Refuse a classifier that cannot be converted to a graph; other objects are accepted.

    The InputError names the estimator, or the part of it, and the remedy. For a stage, the remedy
    cannot be a backend. With `as_library_file`, a booster is accepted if a worker can run the file
    of its library.
    """
    if isinstance(model, type) and hasattr(model, "fit"):
        raise InputError(f"{model_name} is the class {model.__name__}: give an instance of it")
    if not hasattr(model, "get_params") or needs_backend(model):
        return
    estimator_names = [type(estimator).__name__ for estimator in find_estimators(model)]
    text_readers = [
        estimator_name for estimator_name in estimator_names if estimator_name in TEXT_TRANSFORMERS
    ]
    if text_readers:
        raise InputError(
            f"{model_name} cannot be packed: {text_readers[0]} (in {type(model).__name__}) reads "
            "texts or dicts, but instances are numbers: convert the texts to columns first (word "
            "counts, an embedding), and give only the classifier that follows"
        )
    container = f" (in {type(model).__name__})"
    by_skl2onnx = needs_skl2onnx(model)
    problems = [
        f"{library_class_name(estimator) or type(estimator).__name__}"
        f"{'' if estimator is model else container}: {problem}"
        for estimator in find_estimators(model)
        for problem in _find_problems(
            estimator, is_whole=estimator is model and as_library_file, by_skl2onnx=by_skl2onnx
        )
    ]
    if problems:
        advice = STAGE_ADVICE if as_stage else ADVICE
        raise InputError(f"{model_name} cannot be packed: {'; '.join(problems)}; {advice}")


def needs_skl2onnx(model: Estimator) -> bool:
    """Whether only skl2onnx can convert a classifier or a part of it."""
    return any(
        library_class_name(estimator) in SKL2ONNX_TRANSFORMERS
        for estimator in find_estimators(model)
    )


def find_estimators(model: Estimator) -> Iterator[Any]:
    """Yield the estimator and all estimators inside it."""
    if not hasattr(model, "get_params"):
        return
    parts = [model, *model.get_params(deep=True).values()]
    estimators: list[Any] = []
    for candidate in parts:
        is_estimator = hasattr(candidate, "get_params") and not isinstance(candidate, type)
        if is_estimator and not any(candidate is estimator for estimator in estimators):
            estimators.append(candidate)
    yield from estimators


def _find_problems(estimator: Estimator, *, is_whole: bool, by_skl2onnx: bool) -> Iterator[str]:
    """Yield the reasons why a part of a model, or the whole model, cannot be packed."""
    class_name = library_class_name(estimator)
    if class_name in REFUSAL_REASONS:
        yield REFUSAL_REASONS[class_name]
        return
    if class_name not in CLASSIFIERS | TRANSFORMERS | SKL2ONNX_TRANSFORMERS:
        yield "it has no form that a worker runs"
        return
    if by_skl2onnx and class_name in NOT_IN_SKL2ONNX:
        yield "skl2onnx cannot convert it, but another part of the model needs skl2onnx"
    if _reads_categories(estimator):
        yield (
            "it was fitted on columns of categories, but instances have numbers: encode the "
            "columns (TableEncoder), and fit it on the numbers"
        )
    params = estimator.get_params(deep=False)
    runs_by_library = is_whole and library_of(estimator) is not None
    for option, exact_values in EXACT_OPTIONS.get(class_name, {}).items():
        if runs_by_library and option not in OBJECTIVE_OPTIONS | INPUT_OPTIONS:
            continue
        setting = params.get(option, exact_values[0])
        if not any(
            setting is exact_value or _is_equal(setting, exact_value)
            for exact_value in exact_values
        ):
            yield f"{option}={setting!r} has no exact form"
    if class_name == "XGBClassifier" and not _is_nan(params.get("missing")):
        yield f"missing={params['missing']!r} has no exact form; mark missing values by NaN"
    if (
        class_name == "BaggingClassifier"
        and estimator.estimator is not None
        and not hasattr(estimator.estimator, "predict_proba")
    ):
        yield "its estimator gives no probabilities"


def _reads_categories(estimator: Estimator) -> bool:
    """Whether a fitted booster reads some of its columns as categories."""
    booster = getattr(estimator, "booster_", None)  # LightGBM's
    if booster is not None:
        return bool(getattr(booster, "pandas_categorical", None))
    if hasattr(estimator, "get_booster") and hasattr(estimator, "classes_"):  # XGBoost's
        return "c" in (estimator.get_booster().feature_types or ())
    is_categorical = getattr(estimator, "is_categorical_", None)  # scikit-learn's
    return is_categorical is not None and bool(is_categorical.any())


def _is_equal(setting: Any, exact_value: Any) -> bool:
    """Whether two settings of the same type are equal."""
    return isinstance(setting, type(exact_value)) and bool(setting == exact_value)


def _is_nan(setting: Any) -> bool:
    # None is XGBoost's default, which means NaN
    return setting is None or setting != setting


#: Options for the objective of boosters, which must give probabilities of classes.
OBJECTIVE_OPTIONS = _name_set("objective objective_type application app loss loss_function")

#: Options for columns of boosters that are not numbers.
INPUT_OPTIONS = _name_set("cat_features text_features embedding_features")

#: Reasons why well-known classifiers are refused.
REFUSAL_REASONS = {
    "AdaBoostClassifier": (
        "its votes have no exact form, since skl2onnx sums them in another precision, and close "
        "votes may then name another class"
    ),
    "KNeighborsClassifier": (
        "neighbours at equal distances have no exact form, since the library breaks such ties in "
        "the order of its own search"
    ),
}

_ENCODER_OPTIONS: dict[str, tuple[Any, ...]] = {"min_frequency": (None,), "max_categories": (None,)}
_SVM_OPTIONS: dict[str, tuple[Any, ...]] = {
    "kernel": ("rbf", "linear", "poly", "sigmoid"),
    "probability": (False, "deprecated"),
}
_XGBOOST_OPTIONS: dict[str, tuple[Any, ...]] = {
    "booster": (None, "gbtree", "dart"),
    "objective": (None, "binary:logistic", "multi:softprob", "multi:softmax"),
    "multi_strategy": (None, "one_output_per_tree"),
}
_LIGHTGBM_OBJECTIVES = (None, "binary", "multiclass", "softmax")
_LIGHTGBM_BOOSTING_TYPES = ("gbdt", "dart", "goss", "gbrt")

#: Values of each option that have an exact form; the default comes first.
EXACT_OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "CalibratedClassifierCV": {"method": ("sigmoid",)},
    "CatBoostClassifier": {
        "loss_function": (None, "Logloss", "CrossEntropy", "MultiClass"),
        "objective": (None, "Logloss", "CrossEntropy", "MultiClass"),
        **dict.fromkeys(("cat_features", "text_features", "embedding_features"), (None, [])),
    },
    "FunctionTransformer": {"func": (None,)},
    "GradientBoostingClassifier": {"init": (None, "zero")},
    "HistGradientBoostingClassifier": {"categorical_features": (None, "from_dtype", "warn")},
    "LGBMClassifier": {
        **dict.fromkeys(("boosting_type", "boosting", "boost"), _LIGHTGBM_BOOSTING_TYPES),
        **dict.fromkeys(
            ("objective", "objective_type", "application", "app", "loss"), _LIGHTGBM_OBJECTIVES
        ),
        **dict.fromkeys(("linear_tree", "linear_trees", "zero_as_missing"), (False,)),
        **dict.fromkeys(
            ("categorical_feature", "cat_feature", "categorical_column", "cat_column"),
            ("auto", "", []),
        ),
        "sigmoid": (1.0, 1),
    },
    "NuSVC": _SVM_OPTIONS,
    "OneHotEncoder": _ENCODER_OPTIONS,
    "OrdinalEncoder": _ENCODER_OPTIONS,
    "SVC": _SVM_OPTIONS,
    "XGBClassifier": _XGBOOST_OPTIONS,
    "XGBRFClassifier": _XGBOOST_OPTIONS,
}
