"""Conversion of support vector machines to values of a graph, and votes of pairs of classes."""

from __future__ import annotations

from functools import reduce
from itertools import combinations

import numpy as np

from gatewise_training.learners.given_models.graph_values import GraphAnswers, Value
from gatewise_training.learners.given_models.packable import Estimator


def write_support_vector_machine(model: Estimator, x: Value) -> GraphAnswers:
    """Write the label and the decision function, without probabilities.

    Of several classes, each pair has a margin, which votes for one class of the pair.
    """
    n_classes = len(model.classes_)
    kernel = _write_kernel(model, x.double())
    if n_classes == 2:
        weights = np.asarray(model.dual_coef_, np.float64).T
        decision = kernel @ weights + np.asarray(model.intercept_, np.float64)
        return GraphAnswers((decision >= 0.0).astype(np.int64).ravel(), decision=decision)
    stops = np.cumsum(model.n_support_)
    starts = stops - model.n_support_
    pairs = list(combinations(range(n_classes), 2))
    weights = np.zeros((len(model.support_vectors_), len(pairs)))
    # libsvm numbers the opponents of a class without the class itself: j is number j - 1 for i < j
    for pair, (i, j) in enumerate(pairs):
        first_vectors = slice(starts[i], stops[i])
        second_vectors = slice(starts[j], stops[j])
        weights[first_vectors, pair] = model.dual_coef_[j - 1, first_vectors]
        weights[second_vectors, pair] = model.dual_coef_[i, second_vectors]
    margins = kernel @ weights + np.asarray(model.intercept_, np.float64)
    votes, decision = count_pairwise_votes(margins > 0.0, -margins, n_classes)
    label_is_by_votes = not (model.break_ties and model.decision_function_shape == "ovr")
    label = votes.argmax() if label_is_by_votes else decision.argmax()
    has_pairs = model.decision_function_shape == "ovo"
    return GraphAnswers(label, decision=decision, response=margins if has_pairs else None)


def _write_kernel(model: Estimator, x: Value) -> Value:
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


def count_pairwise_votes(
    first_wins: Value, confidences: Value, n_classes: int
) -> tuple[Value, Value]:
    """Count the votes of all pairs of classes.

    Returns the votes, and the votes plus the confidences that break ties. `confidences` are the
    confidences in the second class of each pair.
    """
    pairs = list(combinations(range(n_classes), 2))
    vote_matrices = np.zeros((2, len(pairs), n_classes))
    for pair, (i, j) in enumerate(pairs):
        vote_matrices[0, pair, i] = 1.0
        vote_matrices[1, pair, j] = 1.0
    is_first = first_wins.astype(np.float64)
    votes = is_first @ vote_matrices[0] + (-is_first + 1.0) @ vote_matrices[1]
    confidence_sums = confidences @ (vote_matrices[1] - vote_matrices[0])
    # |sum / (3 (|sum| + 1))| < 1/3, so that confidences only break ties of votes (scikit-learn's
    # _ovr_decision_function)
    return votes, votes + confidence_sums / ((confidence_sums.apply("Abs") + 1.0) * 3.0)
