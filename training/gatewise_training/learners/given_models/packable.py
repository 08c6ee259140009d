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

Estimator = Any
"""A classifier or transformer with the interface of scikit-learn."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CLASSIFIERS = _words(
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

TRANSFORMERS = _words(
    "Binarizer ColumnTransformer FeatureUnion FunctionTransformer GaussianRandomProjection "
    "GenericUnivariateSelect IncrementalPCA KBinsDiscretizer MaxAbsScaler MinMaxScaler "
    "NeighborhoodComponentsAnalysis Normalizer OneHotEncoder OrdinalEncoder PCA "
    "PowerTransformer RobustScaler SelectKBest SelectPercentile SimpleImputer StandardScaler "
    "TruncatedSVD VarianceThreshold"
)

LIBRARY_FORMS = _words("PolynomialFeatures")
"""Transformers that only skl2onnx converts. It converts the whole classifier that contains them."""

TEXT_READERS = _words(
    "CountVectorizer HashingVectorizer TfidfVectorizer DictVectorizer FeatureHasher"
)
"""Transformers of texts or dicts, which cannot be converted because instances are numbers."""

BACKEND_ADVICE = (
    "its predict_proba as a function that a worker runs: gatewise cloud --backend "
    "python:module:function"
)
ADVICE = f"give another classifier, an ONNX file, or {BACKEND_ADVICE}"
STAGE_ADVICE = "give another classifier, or an ONNX file"


LIBRARY_FILES: dict[str, Library] = {
    "LGBMClassifier": "lightgbm",
    "XGBClassifier": "xgboost",
    "XGBRFClassifier": "xgboost",
    "CatBoostClassifier": "catboost",
}
"""Boosters that a worker can also run with their own library, from a file of that library."""

LIBRARIES = ("sklearn", "lightgbm", "xgboost", "catboost")
"""Libraries with classifiers that can be converted. Classifiers of other libraries are opaque."""


def library_name(estimator: Estimator) -> str | None:
    """Get the name of a model's class in a known library, or of the library class that it extends.

    None for a class of another library, or with its own methods of prediction. A
    :class:`.RawBooster` states its library class itself.
    """
    if hasattr(estimator, "library_class"):
        return str(estimator.library_class)
    for kind in type(estimator).__mro__:
        if kind.__module__.partition(".")[0] in LIBRARIES and kind.__module__ != "sklearn.base":
            predicts_alike = kind is type(estimator) or _predicts_like(kind, estimator)
            return str(kind.__name__) if predicts_alike else None
    return None


def library_of(model: Estimator) -> Library | None:
    """Get the library of a booster; None for any other classifier."""
    return LIBRARY_FILES.get(library_name(model) or "")


def is_column(name_in_model: Any, name: Any) -> bool:
    """Whether a column name of a model is a name of the data; LightGBM replaces spaces by ``_``."""
    return bool(name_in_model == name) or name_in_model == re.sub(r"\s", "_", str(name))


def _predicts_like(kind: type, estimator: Estimator) -> bool:
    """Whether an estimator has the prediction methods of `kind`, a library class it extends."""
    own_class = type(estimator)
    names = ("predict", "predict_proba", "transform", "decision_function")
    return all(getattr(own_class, name, None) is getattr(kind, name, None) for name in names)


def needs_backend(model: Estimator) -> bool:
    """Whether a model with ``predict_proba`` is opaque, as a class or as of an unknown library."""
    while type(model).__name__ == "FrozenEstimator":
        model = model.estimator
    return isinstance(model, type) or library_name(model) is None


def check_packable(
    model: Estimator,
    name: str = "high_cost_model",
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
        raise InputError(f"{name} is the class {model.__name__}: give an instance of it")
    if not hasattr(model, "get_params") or needs_backend(model):
        return
    part_names = [type(part).__name__ for part in _parts(model)]
    text_readers = [part_name for part_name in part_names if part_name in TEXT_READERS]
    if text_readers:
        raise InputError(
            f"{name} cannot be packed: {text_readers[0]} (in {type(model).__name__}) reads "
            "texts or dicts, but instances are numbers: convert the texts to columns first (word "
            "counts, an embedding), and give only the classifier that follows"
        )
    problems = [
        f"{library_name(estimator) or type(estimator).__name__}"
        f"{_container_text(estimator, model)}: {problem}"
        for estimator in _parts(model)
        for problem in _problems(estimator, is_whole=estimator is model and as_library_file)
    ]
    if problems:
        advice = STAGE_ADVICE if as_stage else ADVICE
        raise InputError(f"{name} cannot be packed: {'; '.join(problems)}; {advice}")


def needs_skl2onnx(model: Estimator) -> bool:
    """Whether only skl2onnx can convert a classifier or a part of it."""
    return any(library_name(part) in LIBRARY_FORMS for part in _parts(model))


def _container_text(part: Estimator, model: Estimator) -> str:
    return "" if part is model else f" (in {type(model).__name__})"


def _parts(model: Estimator) -> Iterator[Any]:
    """Yield the estimator and all estimators inside it."""
    if not hasattr(model, "get_params"):
        return
    candidates = [model, *model.get_params(deep=True).values()]
    estimators: list[Any] = []
    for candidate in candidates:
        is_estimator = hasattr(candidate, "get_params") and not isinstance(candidate, type)
        if is_estimator and not any(candidate is estimator for estimator in estimators):
            estimators.append(candidate)
    yield from estimators


def _problems(part: Estimator, *, is_whole: bool) -> Iterator[str]:
    """Yield the reasons why a part of a model, or the whole model, cannot be packed."""
    name = library_name(part)
    if name in REASONS:
        yield REASONS[name]
        return
    if name not in CLASSIFIERS | TRANSFORMERS | LIBRARY_FORMS:
        yield "it has no form that a worker runs"
        return
    if _reads_categories(part):
        yield (
            "it was fitted on columns of categories, but instances have numbers: encode the "
            "columns (TableEncoder), and fit it on the numbers"
        )
    params = part.get_params(deep=False)
    runs_by_library = is_whole and library_of(part) is not None
    for option, exact_values in EXACT_OPTIONS.get(name, {}).items():
        if runs_by_library and option not in OBJECTIVE_OPTIONS | INPUT_OPTIONS:
            continue
        value = params.get(option, exact_values[0])
        if not any(value is choice or _equal(value, choice) for choice in exact_values):
            yield f"{option}={value!r} has no exact form"
    if name == "XGBClassifier" and not _is_nan(params.get("missing")):
        yield f"missing={params['missing']!r} has no exact form; mark missing values by NaN"
    if (
        name == "BaggingClassifier"
        and part.estimator is not None
        and not hasattr(part.estimator, "predict_proba")
    ):
        yield "its estimator gives no probabilities"


def _reads_categories(part: Estimator) -> bool:
    """Whether a fitted booster reads some of its columns as categories."""
    booster = getattr(part, "booster_", None)  # LightGBM's
    if booster is not None:
        return bool(getattr(booster, "pandas_categorical", None))
    if hasattr(part, "get_booster") and hasattr(part, "classes_"):  # XGBoost's
        return "c" in (part.get_booster().feature_types or ())
    return False


def _equal(value: Any, choice: Any) -> bool:
    """Whether two settings of the same type are equal."""
    return isinstance(value, type(choice)) and bool(value == choice)


def _is_nan(value: Any) -> bool:
    return value is None or value != value


OBJECTIVE_OPTIONS = _words("objective objective_type application app loss loss_function")
"""Options for the objective of boosters, which must give probabilities of classes."""

INPUT_OPTIONS = _words("cat_features text_features embedding_features")
"""Options for columns of boosters that are not numbers."""

REASONS = {
    "AdaBoostClassifier": (
        "its votes have no exact form, since skl2onnx sums them in another precision, and close "
        "votes may then name another class"
    ),
    "KNeighborsClassifier": (
        "neighbours at equal distances have no exact form, since the library breaks such ties in "
        "the order of its own search"
    ),
}
"""Reasons why well-known classifiers are refused."""

_GROUPING: dict[str, tuple[Any, ...]] = {"min_frequency": (None,), "max_categories": (None,)}
_MACHINE: dict[str, tuple[Any, ...]] = {
    "kernel": ("rbf", "linear", "poly", "sigmoid"),
    "probability": (False, "deprecated"),
}
_XGBOOST: dict[str, tuple[Any, ...]] = {
    "booster": (None, "gbtree", "dart"),
    "objective": (None, "binary:logistic", "multi:softprob", "multi:softmax"),
    "multi_strategy": (None, "one_output_per_tree"),
}
_LIGHTGBM_OBJECTIVES = (None, "binary", "multiclass", "softmax")
_LIGHTGBM_BOOSTING = ("gbdt", "dart", "goss", "gbrt")

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
        **dict.fromkeys(("boosting_type", "boosting", "boost"), _LIGHTGBM_BOOSTING),
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
    "NuSVC": _MACHINE,
    "OneHotEncoder": _GROUPING,
    "OrdinalEncoder": _GROUPING,
    "SVC": _MACHINE,
    "XGBClassifier": _XGBOOST,
    "XGBRFClassifier": _XGBOOST,
}
"""Values of each option that have an exact form; the default comes first."""
