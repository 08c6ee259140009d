"""Conversion of scikit-learn's classifiers to values of a graph.

Sums are in float64, as in scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import class_positions
from gatewise.errors import InputError
from gatewise_training.learners.given_models.flat_forms import (
    FOREST_CLASSES,
    TREE_CLASSES,
    flat_trees,
    trees_of_leaf_indices,
)
from gatewise_training.learners.given_models.graph_values import (
    GraphAnswers,
    Value,
    binary_probabilities,
    hstack,
    normalise_rows,
    sigmoid,
)
from gatewise_training.learners.given_models.packable import Estimator, library_class_name
from gatewise_training.learners.given_models.sklearn_transformers import write_transformer
from gatewise_training.learners.given_models.support_vectors import (
    count_pairwise_votes,
    write_support_vector_machine,
)


def write_classifier(model: Estimator, x: Value) -> GraphAnswers:
    """Write the predictions of a fitted classifier for the rows `x`."""
    model = inner_estimator(model)
    class_name = library_class_name(model) or ""
    if class_name in (*FOREST_CLASSES, *TREE_CLASSES):
        return _write_forest(model, x)
    if class_name in CLASSIFIER_WRITERS:
        return CLASSIFIER_WRITERS[class_name](model, x)
    flat_form = flat_trees(model)
    if flat_form is None:
        raise InputError(f"{class_name or type(model).__name__} has no form as a graph")
    trees, link = flat_form
    margins = x.tree_sums(trees)
    answers = GraphAnswers.of_margins(margins, trees.n_outputs)
    margins = margins.double()
    probabilities = (
        margins.softmax() if link == "softmax" else binary_probabilities(sigmoid(margins))
    )
    return GraphAnswers(answers.label, probabilities, margins)


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


def _write_linear_model(model: Estimator, x: Value) -> GraphAnswers:
    weights = np.atleast_2d(np.asarray(model.coef_, np.float64)).T  # one row for two classes
    decision = x.double() @ weights + np.asarray(model.intercept_, np.float64)
    answers = GraphAnswers.of_margins(decision, weights.shape[1])
    if not hasattr(model, "predict_proba"):
        return answers
    is_binary = len(model.classes_) == 2
    is_sgd = library_class_name(model) == "SGDClassifier"
    is_one_vs_rest = is_sgd or getattr(model, "solver", None) == "liblinear"
    if is_sgd and model.loss == "modified_huber":  # (clip(decision, -1, 1) + 1) / 2
        probabilities = (decision.maximum(-1.0).minimum(1.0) + 1.0) / 2.0
    elif is_binary or is_one_vs_rest:  # each class against the others, before normalisation
        probabilities = sigmoid(decision)
    else:
        return GraphAnswers(answers.label, decision.softmax(), decision)
    probabilities = (
        binary_probabilities(probabilities) if is_binary else normalise_rows(probabilities)
    )
    return GraphAnswers(answers.label, probabilities, decision)


def _write_quadratic_discriminant(model: Estimator, x: Value) -> GraphAnswers:
    """Write log prior - (mahalanobis(x)^2 + log |covariance|) / 2 as the margin of a class.

    The covariance of a class is rotation diag(scaling) rotation'.
    """
    log_likelihoods = []
    for rotation, scaling, class_mean, prior in zip(
        model.rotations_, model.scalings_, model.means_, model.priors_, strict=True
    ):
        rotated_rows = (x.double() - np.asarray(class_mean, np.float64)) @ (
            rotation * scaling**-0.5
        )
        distance = (rotated_rows * rotated_rows).sum() + float(np.log(scaling).sum())
        log_likelihoods.append(distance * -0.5 + float(np.log(prior)))
    log_likelihood = hstack(log_likelihoods)
    margins = log_likelihood
    if len(log_likelihoods) == 2:
        margins = log_likelihood.columns([1]) - log_likelihood.columns([0])
    return GraphAnswers(log_likelihood.argmax(), log_likelihood.softmax(), margins)


def _write_gaussian_naive_bayes(model: Estimator, x: Value) -> GraphAnswers:
    """Write log prior - sum((x - mean)^2 / variance + log(2 pi variance)) / 2 for each class."""
    log_likelihoods = []
    for mean, variance, prior in zip(model.theta_, model.var_, model.class_prior_, strict=True):
        deviation = x.double() - np.asarray(mean, np.float64)
        distance = (deviation * deviation / np.asarray(variance, np.float64)).sum()
        constant = -0.5 * np.log(2.0 * np.pi * variance).sum() + np.log(prior)
        log_likelihoods.append(distance * -0.5 + float(constant))
    return _write_naive_bayes(hstack(log_likelihoods))


def _write_naive_bayes(log_likelihood: Value) -> GraphAnswers:
    return GraphAnswers(log_likelihood.argmax(), log_likelihood.softmax())


def _write_naive_bayes_of_counts(model: Estimator, x: Value) -> GraphAnswers:
    log_likelihood = x.double() @ np.asarray(model.feature_log_prob_, np.float64).T
    if library_class_name(model) == "MultinomialNB":  # ComplementNB leaves out the prior
        log_likelihood = log_likelihood + np.asarray(model.class_log_prior_, np.float64)
    return _write_naive_bayes(log_likelihood)


def _write_bernoulli_naive_bayes(model: Estimator, x: Value) -> GraphAnswers:
    if model.binarize is not None:
        x = (x > model.binarize).astype(x.dtype)
    # sum(x log p + (1 - x) log(1 - p)) = sum(x (log p - log(1 - p))) + sum(log(1 - p))
    log_probability = np.asarray(model.feature_log_prob_, np.float64)
    log_complement = np.log(1 - np.exp(log_probability))
    log_likelihood = x.double() @ (log_probability - log_complement).T
    return _write_naive_bayes(
        log_likelihood + (model.class_log_prior_ + log_complement.sum(axis=1))
    )


def _write_neural_network(model: Estimator, x: Value) -> GraphAnswers:
    activations = x.double()
    operators = {"relu": "Relu", "tanh": "Tanh", "logistic": "Sigmoid"}
    for layer, (weights, bias) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        activations = activations @ weights.astype(np.float64) + bias.astype(np.float64)
        if layer < len(model.coefs_) - 1 and model.activation in operators:
            activations = activations.apply(operators[model.activation])
    if model.n_outputs_ > 1:
        return GraphAnswers.of_probabilities(activations.softmax())
    second_probability = sigmoid(activations)
    return GraphAnswers(
        (second_probability > 0.5).astype(np.int64).ravel(),
        binary_probabilities(second_probability),
    )


# -- trees ---------------------------------------------------------------------------------


def _write_forest(model: Estimator, x: Value) -> GraphAnswers:
    estimators = getattr(model, "estimators_", [model])
    leaf_weights = np.concatenate([tree.tree_.value[:, 0, :] for tree in estimators])
    trees = trees_of_leaf_indices(estimators, model.n_features_in_)
    probability_sums = x.leaf_sums(trees, leaf_weights / leaf_weights.sum(axis=1, keepdims=True))
    return GraphAnswers.of_probabilities(probability_sums / float(len(estimators)))


def _write_gradient_boosting(model: Estimator, x: Value) -> GraphAnswers:
    margin_columns = []
    initial_margins = model._raw_predict_init(np.zeros((1, model.n_features_in_), np.float32))[0]
    for k, trees_of_class in enumerate(model.estimators_.T):
        leaf_values = np.concatenate([tree.tree_.value[:, 0, :] for tree in trees_of_class])
        trees = trees_of_leaf_indices(trees_of_class, model.n_features_in_)
        margin_columns.append(
            x.leaf_sums(trees, leaf_values * model.learning_rate) + float(initial_margins[k])
        )
    margins = hstack(margin_columns)
    if len(margin_columns) > 1:
        return GraphAnswers(margins.argmax(), margins.softmax(), margins)
    label = (margins >= 0.0).astype(np.int64).ravel()
    # with the exponential loss, the margin is half the log odds
    log_odds = margins * 2.0 if model.loss == "exponential" else margins
    return GraphAnswers(label, binary_probabilities(sigmoid(log_odds)), margins)


# -- classifiers that contain other estimators ---------------------------------------------


def _write_pipeline(model: Estimator, x: Value) -> GraphAnswers:
    for _, step in model.steps[:-1]:
        x = write_transformer(step, x)
    return write_classifier(model.steps[-1][1], x)


def _write_probabilities(model: Estimator, x: Value) -> Value:
    answers = write_classifier(model, x)
    if answers.probabilities is None:
        raise InputError(f"{type(model).__name__} gives no probabilities")
    return answers.probabilities.double()


def _move_to_classes(
    probabilities: Value, class_indices: NDArray[np.int64], n_classes: int
) -> Value:
    """Move the columns to the indices of their classes, among `n_classes` columns."""
    if class_indices.tolist() == list(range(n_classes)):
        return probabilities
    return probabilities @ np.eye(n_classes)[class_indices]


def _sum_values(values: Sequence[Value]) -> Value:
    return reduce(Value.__add__, values)


def _write_bagging(model: Estimator, x: Value) -> GraphAnswers:
    n_classes = len(model.classes_)
    member_probabilities = []
    for member, columns in zip(model.estimators_, model.estimators_features_, strict=True):
        probabilities = _write_probabilities(member, x.columns(columns))
        member_probabilities.append(_move_to_classes(probabilities, member.classes_, n_classes))
    return GraphAnswers.of_probabilities(
        _sum_values(member_probabilities) / float(model.n_estimators)
    )


def _write_response(model: Estimator, x: Value, n_pairs: int | None = None) -> Value:
    """Get the decision function or, without one, the probabilities (the second of two classes).

    Of a decision function with a column for each pair of classes, only the first `n_pairs` columns
    are returned, because scikit-learn calibrates as many as there are classes.
    """
    answers = write_classifier(model, x)
    if answers.response is not None and n_pairs is not None:
        return answers.response.columns(range(n_pairs))
    decision = answers.decision if answers.response is None else answers.response
    if decision is not None and hasattr(model, "decision_function"):
        return decision
    assert answers.probabilities is not None
    probabilities = answers.probabilities.double()
    return probabilities.columns([1]) if len(model.classes_) == 2 else probabilities


def _write_calibrated_classifier(model: Estimator, x: Value) -> GraphAnswers:
    """Write the mean of the folds' probabilities, which Platt's sigmoid calibrates."""
    n_classes = len(model.classes_)
    fold_probabilities = []
    for calibrated_fold in model.calibrated_classifiers_:
        n_calibrators = len(calibrated_fold.calibrators)
        response = _write_response(calibrated_fold.estimator, x, n_calibrators)
        slopes = np.array([calibrator.a_ for calibrator in calibrated_fold.calibrators], np.float64)
        intercepts = np.array(
            [calibrator.b_ for calibrator in calibrated_fold.calibrators], np.float64
        )
        # Platt's calibration 1 / (1 + exp(a response + b))
        probabilities = sigmoid(-(response * slopes + intercepts))
        if n_classes == 2:
            fold_probabilities.append(binary_probabilities(probabilities))
            continue
        class_indices = class_positions(calibrated_fold.classes, calibrated_fold.estimator.classes_)
        fold_probabilities.append(
            normalise_rows(_move_to_classes(probabilities, class_indices, n_classes))
        )
    return GraphAnswers.of_probabilities(
        _sum_values(fold_probabilities) / float(len(fold_probabilities))
    )


def _write_one_vs_rest(model: Estimator, x: Value) -> GraphAnswers:
    if any(type(member).__name__ == "_ConstantPredictor" for member in model.estimators_):
        raise InputError("OneVsRestClassifier was fitted on a class that has no rows")
    responses = [_write_response(member, x) for member in model.estimators_]
    has_decision = hasattr(model.estimators_[0], "decision_function")
    scores = hstack(responses)
    decision = scores if has_decision else None
    if len(responses) == 1:
        label = (scores > (0.0 if has_decision else 0.5)).astype(np.int64).ravel()
    else:
        label = scores.argmax()
    if not hasattr(model, "predict_proba"):
        return GraphAnswers(label, decision=decision)
    columns = [_write_probabilities(member, x).columns([1]) for member in model.estimators_]
    if len(columns) == 1:
        return GraphAnswers(label, binary_probabilities(columns[0]), decision)
    # as scikit-learn, leave a row at zeros if no member accepts it
    probabilities = hstack(columns)
    total = probabilities.sum()
    nonzero_total = total.equals(0.0).where(total * 0.0 + 1.0, total)
    return GraphAnswers(label, probabilities / nonzero_total, decision)


def _write_one_vs_one(model: Estimator, x: Value) -> GraphAnswers:
    answers = [write_classifier(member, x) for member in model.estimators_]
    labels = [member_answers.label.reshape([-1, 1]) for member_answers in answers]
    responses = [_write_response(member, x) for member in model.estimators_]
    first_wins = hstack(labels).equals(0)
    confidences = hstack(responses)
    _, decision = count_pairwise_votes(first_wins, confidences, len(model.classes_))
    if len(model.classes_) > 2:
        return GraphAnswers(decision.argmax(), decision=decision)
    has_decision = hasattr(model.estimators_[0], "decision_function")
    second_response = decision.columns([1])
    label = (second_response > (0.0 if has_decision else 0.5)).astype(np.int64).ravel()
    return GraphAnswers(label, decision=second_response)


def _write_voting(model: Estimator, x: Value) -> GraphAnswers:
    """Write the weighted sum of the members' votes, or the mean of their probabilities."""
    n_classes = len(model.classes_)
    weights = model._weights_not_none or [1.0] * len(model.estimators_)
    weighted_votes = []
    for member, weight in zip(model.estimators_, weights, strict=True):
        if model.voting == "hard":
            label = write_classifier(member, x).label.reshape([-1, 1])
            probabilities = label.equals(np.arange(n_classes)[None, :]).astype(np.float64)
        else:
            probabilities = _write_probabilities(member, x)
        weighted_votes.append(probabilities * float(weight))
    vote_sum = _sum_values(weighted_votes)
    if model.voting == "hard":
        return GraphAnswers(vote_sum.argmax())
    return GraphAnswers.of_probabilities(vote_sum / float(np.sum(weights)))


def _write_stacking(model: Estimator, x: Value) -> GraphAnswers:
    """Write the final estimator's answers to the members' answers."""
    is_binary = len(model.classes_) == 2
    final_inputs = []
    # a dropped member is the text "drop"
    members = [member for member in model.estimators_ if not isinstance(member, str)]
    for member, method in zip(members, model.stack_method_, strict=True):
        answers = write_classifier(member, x)
        if method == "predict_proba":
            probabilities = _write_probabilities(member, x)
            final_inputs.append(probabilities.columns([1]) if is_binary else probabilities)
        elif method == "decision_function":
            final_inputs.append(_write_response(member, x))
        else:
            is_label = answers.label.reshape([-1, 1]).equals(np.arange(len(member.classes_)))
            # a member that was fitted before has its own labels
            final_inputs.append(is_label.double() @ np.array(member.classes_, float)[:, None])
    if model.passthrough:
        final_inputs.append(x)
    return write_classifier(model.final_estimator_, hstack(final_inputs))


#: Classifiers whose decision function is linear in the columns.
LINEAR_CLASSIFIERS = (
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

#: Functions that write the predictions of a classifier, by its class; trees have no entry.
CLASSIFIER_WRITERS: dict[str, Callable[[Estimator, Value], GraphAnswers]] = {
    **dict.fromkeys(LINEAR_CLASSIFIERS, _write_linear_model),
    "BaggingClassifier": _write_bagging,
    "BernoulliNB": _write_bernoulli_naive_bayes,
    "CalibratedClassifierCV": _write_calibrated_classifier,
    "ComplementNB": _write_naive_bayes_of_counts,
    "GaussianNB": _write_gaussian_naive_bayes,
    "GradientBoostingClassifier": _write_gradient_boosting,
    "MLPClassifier": _write_neural_network,
    "MultinomialNB": _write_naive_bayes_of_counts,
    "NuSVC": write_support_vector_machine,
    "OneVsOneClassifier": _write_one_vs_one,
    "OneVsRestClassifier": _write_one_vs_rest,
    "Pipeline": _write_pipeline,
    "QuadraticDiscriminantAnalysis": _write_quadratic_discriminant,
    "SVC": write_support_vector_machine,
    "StackingClassifier": _write_stacking,
    "VotingClassifier": _write_voting,
}
