"""Conversion of scikit-learn's classifiers to values of a graph.

Sums are in float64, as in scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import class_positions
from gatewise.errors import InputError
from gatewise_training.learners.given_models.flat_forms import (
    FORESTS,
    TREES,
    flat_trees,
    trees_of_leaf_indices,
)
from gatewise_training.learners.given_models.graph_values import (
    GraphAnswers,
    Value,
    shares,
    sigmoid,
    two_columns,
)
from gatewise_training.learners.given_models.packable import Estimator, library_name
from gatewise_training.learners.given_models.sklearn_transformers import write_transformer


def write_classifier(model: Estimator, x: Value) -> GraphAnswers:
    """Write the predictions of a fitted classifier for the rows `x`."""
    model = inner_estimator(model)
    name = library_name(model) or ""
    if name in (*FORESTS, *TREES):
        return _forest(model, x)
    if name in CLASSIFIER_WRITERS:
        return CLASSIFIER_WRITERS[name](model, x)
    form = flat_trees(model)
    if form is None:
        raise InputError(f"{name or type(model).__name__} has no form as a graph")
    trees, link = form
    margins = x.tree_sums(trees)
    answers = GraphAnswers.of_margins(margins, len(model.classes_))
    margins = margins.double()
    chances = margins.softmax() if link == "softmax" else two_columns(sigmoid(margins))
    return GraphAnswers(answers.label, chances, margins)


def inner_estimator(estimator: Estimator) -> Estimator:
    """Get the classifier inside scikit-learn's FrozenEstimator and parameter searches."""
    while True:
        if type(estimator).__name__ == "FrozenEstimator":
            estimator = estimator.estimator
        elif hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        else:
            return estimator


# -- linear models -------------------------------------------------------------------------


def _linear(model: Estimator, x: Value) -> GraphAnswers:
    weights = np.asarray(model.coef_, np.float64).T
    decision = x.double() @ weights + np.asarray(model.intercept_, np.float64)
    answers = GraphAnswers.of_margins(decision, len(model.classes_))
    if not hasattr(model, "predict_proba"):
        return answers
    is_binary = len(model.classes_) == 2
    is_sgd = library_name(model) == "SGDClassifier"
    one_by_one = is_sgd or getattr(model, "solver", None) == "liblinear"
    if is_sgd and model.loss == "modified_huber":
        chances = (decision.maximum(-1.0).minimum(1.0) + 1.0) / 2.0
    elif is_binary or one_by_one:
        chances = sigmoid(decision)
    else:
        return GraphAnswers(answers.label, decision.softmax(), decision)
    chances = two_columns(chances) if is_binary else shares(chances)
    return GraphAnswers(answers.label, chances, decision)


def _quadratic(model: Estimator, x: Value) -> GraphAnswers:
    columns = []
    for rotation, scaling, mean, prior in zip(
        model.rotations_, model.scalings_, model.means_, model.priors_, strict=True
    ):
        turned = (x.double() - np.asarray(mean, np.float64)) @ (rotation * scaling**-0.5)
        distance = (turned * turned).sum() + float(np.log(scaling).sum())
        columns.append(distance * -0.5 + float(np.log(prior)))
    likelihood = columns[0].beside(*columns[1:])
    margins = likelihood
    if len(columns) == 2:
        margins = likelihood.columns([1]) - likelihood.columns([0])
    return GraphAnswers(likelihood.argmax(), likelihood.softmax(), margins)


def _gaussian(model: Estimator, x: Value) -> GraphAnswers:
    columns = []
    for mean, variance, prior in zip(model.theta_, model.var_, model.class_prior_, strict=True):
        gap = x.double() - np.asarray(mean, np.float64)
        distance = (gap * gap / np.asarray(variance, np.float64)).sum()
        constant = -0.5 * np.log(2.0 * np.pi * variance).sum() + np.log(prior)
        columns.append(distance * -0.5 + float(constant))
    return _naive(columns[0].beside(*columns[1:]))


def _naive(likelihood: Value) -> GraphAnswers:
    return GraphAnswers(likelihood.argmax(), likelihood.softmax())


def _counts(model: Estimator, x: Value) -> GraphAnswers:
    likelihood = x.double() @ np.asarray(model.feature_log_prob_, np.float64).T
    if library_name(model) == "MultinomialNB":
        likelihood = likelihood + np.asarray(model.class_log_prior_, np.float64)
    return _naive(likelihood)


def _bernoulli(model: Estimator, x: Value) -> GraphAnswers:
    if model.binarize is not None:
        x = (x > model.binarize).astype(x.dtype)
    positive = np.asarray(model.feature_log_prob_, np.float64)
    negative = np.log(1 - np.exp(positive))
    likelihood = x.double() @ (positive - negative).T
    return _naive(likelihood + (model.class_log_prior_ + negative.sum(axis=1)))


def _network(model: Estimator, x: Value) -> GraphAnswers:
    value = x.double()
    operators = {"relu": "Relu", "tanh": "Tanh", "logistic": "Sigmoid"}
    for layer, (weights, bias) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        value = value @ weights.astype(np.float64) + bias.astype(np.float64)
        if layer < len(model.coefs_) - 1 and model.activation in operators:
            value = value.apply(operators[model.activation])
    if model.n_outputs_ > 1:
        return GraphAnswers.of_chances(value.softmax())
    second = sigmoid(value)
    return GraphAnswers((second > 0.5).astype(np.int64).flat(), two_columns(second))


# -- support vectors -----------------------------------------------------------------------


def _machine(model: Estimator, x: Value) -> GraphAnswers:
    n_classes = len(model.classes_)
    kernel = _kernel(model, x.double())
    if n_classes == 2:
        weights = np.asarray(model.dual_coef_, np.float64).T
        decision = kernel @ weights + np.asarray(model.intercept_, np.float64)
        return GraphAnswers((decision >= 0.0).astype(np.int64).flat(), decision=decision)
    stops = np.cumsum(model.n_support_)
    starts = stops - model.n_support_
    pairs = list(combinations(range(n_classes), 2))
    weights = np.zeros((len(model.support_vectors_), len(pairs)))
    for k, (i, j) in enumerate(pairs):
        of_first = slice(starts[i], stops[i])
        of_second = slice(starts[j], stops[j])
        weights[of_first, k] = model.dual_coef_[j - 1, of_first]
        weights[of_second, k] = model.dual_coef_[i, of_second]
    margins = kernel @ weights + np.asarray(model.intercept_, np.float64)
    votes, decision = _pairwise(margins > 0.0, -margins, n_classes)
    by_votes = not (model.break_ties and model.decision_function_shape == "ovr")
    label = votes.argmax() if by_votes else decision.argmax()
    return GraphAnswers(label, decision=decision)


def _kernel(model: Estimator, x: Value) -> Value:
    """Compute the kernel of each row with each support vector."""
    vectors = np.asarray(model.support_vectors_, np.float64)
    if model.kernel == "linear":
        return x @ vectors.T
    gamma = float(model._gamma)
    if model.kernel == "rbf":
        # |x - v|^2 = |x|^2 + |v|^2 - 2 x v, after the mean of the vectors is subtracted
        mean = vectors.mean(axis=0)
        vectors = vectors - mean
        x = x - mean
        products = (x @ vectors.T) * -2.0
        distance: Value = (x * x).sum() + (vectors * vectors).sum(axis=1)[None, :] + products
        return (distance.maximum(0.0) * -gamma).apply("Exp")
    # gamma is multiplied first, because onnxruntime would round a later factor to float32
    products = x @ (vectors.T * gamma) + float(model.coef0)
    if model.kernel == "sigmoid":
        return products.apply("Tanh")
    return reduce(Value.__mul__, [products] * int(model.degree))


def _pairwise(first_wins: Value, confidences: Value, n_classes: int) -> tuple[Value, Value]:
    """Count the votes of all pairs of classes.

    Returns the votes, and the votes plus the confidences that break ties. `confidences` are the
    confidences in the second class of each pair.
    """
    pairs = list(combinations(range(n_classes), 2))
    sides = np.zeros((2, len(pairs), n_classes))
    for k, (i, j) in enumerate(pairs):
        sides[0, k, i] = 1.0
        sides[1, k, j] = 1.0
    is_first = first_wins.astype(np.float64)
    votes = is_first @ sides[0] + (-is_first + 1.0) @ sides[1]
    sums = confidences @ (sides[1] - sides[0])
    return votes, votes + sums / ((sums.apply("Abs") + 1.0) * 3.0)


# -- trees ---------------------------------------------------------------------------------


def _forest(model: Estimator, x: Value) -> GraphAnswers:
    estimators = getattr(model, "estimators_", [model])
    counts = np.concatenate([tree.tree_.value[:, 0, :] for tree in estimators])
    trees = trees_of_leaf_indices(estimators, model.n_features_in_)
    sums = x.leaf_sums(trees, counts / counts.sum(axis=1, keepdims=True))
    return GraphAnswers.of_chances(sums / float(len(estimators)))


def _boosted(model: Estimator, x: Value) -> GraphAnswers:
    columns = []
    start = model._raw_predict_init(np.zeros((1, model.n_features_in_), np.float32))[0]
    for k, of_class in enumerate(model.estimators_.T):
        values = np.concatenate([tree.tree_.value[:, 0, :] for tree in of_class])
        trees = trees_of_leaf_indices(of_class, model.n_features_in_)
        columns.append(x.leaf_sums(trees, values * model.learning_rate) + float(start[k]))
    margins = columns[0].beside(*columns[1:])
    if len(columns) > 1:
        return GraphAnswers(margins.argmax(), margins.softmax(), margins)
    label = (margins >= 0.0).astype(np.int64).flat()
    # with the exponential loss, the margin is half the log odds
    odds = margins * 2.0 if model.loss == "exponential" else margins
    return GraphAnswers(label, two_columns(sigmoid(odds)), margins)


# -- classifiers that contain other estimators ---------------------------------------------


def _pipeline(model: Estimator, x: Value) -> GraphAnswers:
    for _, step in model.steps[:-1]:
        x = write_transformer(step, x)
    return write_classifier(model.steps[-1][1], x)


def _chances(model: Estimator, x: Value) -> Value:
    answers = write_classifier(model, x)
    if answers.probabilities is None:
        raise InputError(f"{type(model).__name__} gives no probabilities")
    return answers.probabilities.double()


def _spread(chances: Value, indices: NDArray[np.int64], n_classes: int) -> Value:
    """Move the columns to the indices of their classes, among `n_classes` columns."""
    if indices.tolist() == list(range(n_classes)):
        return chances
    return chances @ np.eye(n_classes)[indices]


def _total(values: Sequence[Value]) -> Value:
    return reduce(Value.__add__, values)


def _bagging(model: Estimator, x: Value) -> GraphAnswers:
    n_classes = len(model.classes_)
    members = []
    for member, columns in zip(model.estimators_, model.estimators_features_, strict=True):
        chances = _chances(member, x.columns(columns))
        members.append(_spread(chances, member.classes_, n_classes))
    return GraphAnswers.of_chances(_total(members) / float(model.n_estimators))


def _response(model: Estimator, x: Value) -> Value:
    """Get the decision function or, without one, the probabilities (the second of two classes)."""
    answers = write_classifier(model, x)
    decision = answers.decision
    if decision is not None and hasattr(model, "decision_function"):
        return decision
    assert answers.probabilities is not None
    chances = answers.probabilities.double()
    return chances.columns([1]) if len(model.classes_) == 2 else chances


def _calibrated(model: Estimator, x: Value) -> GraphAnswers:
    n_classes = len(model.classes_)
    members = []
    for fold in model.calibrated_classifiers_:
        response = _response(fold.estimator, x)
        slopes = np.array([c.a_ for c in fold.calibrators], np.float64)
        intercepts = np.array([c.b_ for c in fold.calibrators], np.float64)
        chances = sigmoid(-(response * slopes + intercepts))
        if n_classes == 2:
            members.append(two_columns(chances))
            continue
        indices = class_positions(fold.classes, fold.estimator.classes_)
        members.append(shares(_spread(chances, indices, n_classes)))
    return GraphAnswers.of_chances(_total(members) / float(len(members)))


def _one_vs_rest(model: Estimator, x: Value) -> GraphAnswers:
    if any(type(member).__name__ == "_ConstantPredictor" for member in model.estimators_):
        raise InputError("OneVsRestClassifier was fitted on a class that has no rows")
    members = [_response(member, x) for member in model.estimators_]
    has_decision = hasattr(model.estimators_[0], "decision_function")
    scores = members[0].beside(*members[1:])
    decision = scores if has_decision else None
    if len(members) == 1:
        label = (scores > (0.0 if has_decision else 0.5)).astype(np.int64).flat()
    else:
        label = scores.argmax()
    if not hasattr(model, "predict_proba"):
        return GraphAnswers(label, decision=decision)
    columns = [_chances(member, x).columns([1]) for member in model.estimators_]
    if len(columns) == 1:
        return GraphAnswers(label, two_columns(columns[0]), decision)
    return GraphAnswers(label, shares(columns[0].beside(*columns[1:])), decision)


def _one_vs_one(model: Estimator, x: Value) -> GraphAnswers:
    answers = [write_classifier(member, x) for member in model.estimators_]
    labels = [a.label.reshape([-1, 1]) for a in answers]
    responses = [_response(member, x) for member in model.estimators_]
    first_wins = labels[0].beside(*labels[1:]).equals(0)
    confidences = responses[0].beside(*responses[1:])
    _, decision = _pairwise(first_wins, confidences, len(model.classes_))
    if len(model.classes_) > 2:
        return GraphAnswers(decision.argmax(), decision=decision)
    has_decision = hasattr(model.estimators_[0], "decision_function")
    second = decision.columns([1])
    label = (second > (0.0 if has_decision else 0.5)).astype(np.int64).flat()
    return GraphAnswers(label, decision=second)


def _vote(model: Estimator, x: Value) -> GraphAnswers:
    n_classes = len(model.classes_)
    weights = model._weights_not_none or [1.0] * len(model.estimators_)
    members = []
    for member, weight in zip(model.estimators_, weights, strict=True):
        if model.voting == "hard":
            label = write_classifier(member, x).label.reshape([-1, 1])
            chances = label.equals(np.arange(n_classes)[None, :]).astype(np.float64)
        else:
            chances = _chances(member, x)
        members.append(chances * float(weight))
    total = _total(members)
    if model.voting == "hard":
        return GraphAnswers(total.argmax())
    return GraphAnswers.of_chances(total / float(np.sum(weights)))


def _stack(model: Estimator, x: Value) -> GraphAnswers:
    is_binary = len(model.classes_) == 2
    members = []
    fitted = [e for e in model.estimators_ if not isinstance(e, str)]
    for member, method in zip(fitted, model.stack_method_, strict=True):
        answers = write_classifier(member, x)
        if method == "predict_proba":
            chances = _chances(member, x)
            members.append(chances.columns([1]) if is_binary else chances)
        elif method == "decision_function":
            members.append(_response(member, x))
        else:
            members.append(answers.label.reshape([-1, 1]).double())
    if model.passthrough:
        members.append(x)
    return write_classifier(model.final_estimator_, members[0].beside(*members[1:]))


LINEAR = (
    "LinearDiscriminantAnalysis",
    "LinearSVC",
    "LogisticRegression",
    "LogisticRegressionCV",
    "PassiveAggressiveClassifier",
    "Perceptron",
    "RidgeClassifier",
    "RidgeClassifierCV",
    "SGDClassifier",
)
CLASSIFIER_WRITERS: dict[str, Callable[[Estimator, Value], GraphAnswers]] = {
    **dict.fromkeys(LINEAR, _linear),
    "BaggingClassifier": _bagging,
    "BernoulliNB": _bernoulli,
    "CalibratedClassifierCV": _calibrated,
    "ComplementNB": _counts,
    "GaussianNB": _gaussian,
    "GradientBoostingClassifier": _boosted,
    "MLPClassifier": _network,
    "MultinomialNB": _counts,
    "NuSVC": _machine,
    "OneVsOneClassifier": _one_vs_one,
    "OneVsRestClassifier": _one_vs_rest,
    "Pipeline": _pipeline,
    "QuadraticDiscriminantAnalysis": _quadratic,
    "SVC": _machine,
    "StackingClassifier": _stack,
    "VotingClassifier": _vote,
}
