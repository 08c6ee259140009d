"""Coverage and width of the intervals of accuracies that labels of the archive estimate."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.data.loop_streams import drawn_stream
from benchmarks.harness import Options
from gatewise_export.archive.choice import choice_probabilities, correct_probability
from gatewise_export.archive.estimate import FigureData, Terms, TrueFigure, estimate_figure
from gatewise_export.archive.shard import ArchivedRows

#: Accuracies of the high-cost model.
ACCURACIES: Final = (0.99, 0.95, 0.85)
#: Numbers of labels after which the interval is read, in ascending order.
LABEL_COUNTS: Final = (25, 50, 100, 200)
#: Number of labels, one of LABEL_COUNTS, at which widths are compared.
N_WIDTH_LABELS: Final = 100
#: Number of instances in a stream; about 8,000 of them are archived, many more than are labelled.
N_INSTANCES: Final = 25_000
#: Number of instances whose mean is taken as the accuracy, with a standard error below 0.0002.
N_TRUTH_INSTANCES: Final = 4_000_000


def measure_estimates(options: Options) -> list[dict[str, Any]]:
    """Measure coverage by number of labels, and widths with and without the high-cost model."""
    n_streams = 40 if options.quick else 500
    records = []
    for accuracy in ACCURACIES:
        truth = measure_accuracy(accuracy)
        is_covered = np.zeros((n_streams, len(LABEL_COUNTS)))
        widths = np.zeros((n_streams, 2))
        for seed in range(n_streams):
            rng = np.random.default_rng((seed, round(1000 * accuracy)))
            is_covered[seed], widths[seed] = _measure_stream(rng, accuracy, truth)
        records.append(
            {
                "accuracy": accuracy,
                "system_accuracy": truth,
                "streams": n_streams,
                "coverage": is_covered.mean(axis=0).tolist(),
                "coverage_at_all_looks": float(is_covered.all(axis=1).mean()),
                "width": float(widths[:, 0].mean()),
                "width_alone": float(widths[:, 1].mean()),
            }
        )
    return records


def measure_accuracy(accuracy: float) -> float:
    """Measure the accuracy of a simulated system with a high-cost model of this `accuracy`."""
    stream = drawn_stream(np.random.default_rng(0), N_TRUTH_INSTANCES, accuracy)
    return float(stream.is_right.mean())


def _measure_stream(
    rng: np.random.Generator, accuracy: float, truth: float
) -> tuple[list[bool], tuple[float, float]]:
    """Measure a stream.

    Returns whether the interval contains `truth` after each number of labels, and the widths at
    N_WIDTH_LABELS of the interval and of one from labels alone.
    """
    rows, is_right = drawn_stream(rng, N_INSTANCES, accuracy).archive(rng)
    # The samples of labels are nested. An instance is in the last and largest one with the
    # probability p. With u uniform in (0, 1), it is in the sample of the share s if u / p < s, thus
    # with the probability s p. The maximum avoids a division by 0.
    probability, _ = choice_probabilities(rows, LABEL_COUNTS[-1], rng)
    label_number = rng.random(len(rows)) / np.maximum(probability, 1e-12)
    is_covered = []
    widths = (np.nan, np.nan)
    for n_labels in LABEL_COUNTS:
        share = n_labels / LABEL_COUNTS[-1]
        estimate = _estimate_accuracy(rows, is_right, label_number < share, probability * share)
        is_covered.append(bool(estimate.low <= truth <= estimate.high))
        if n_labels == N_WIDTH_LABELS:
            by_labels = _estimate_by_labels(rows, is_right, rng)
            widths = estimate.high - estimate.low, by_labels.high - by_labels.low
    return is_covered, widths


def _estimate_by_labels(
    rows: ArchivedRows, is_right: NDArray[np.float64], rng: np.random.Generator
) -> TrueFigure:
    """Estimate the accuracy without the high-cost model, from labels in proportion to weights."""
    probability = rows.weights * N_WIDTH_LABELS / rows.weights.sum()
    is_labelled = rng.random(len(rows)) < probability
    return _estimate_accuracy(rows, is_right, is_labelled, probability, tuning=0.0)


def _estimate_accuracy(
    rows: ArchivedRows,
    is_right: NDArray[np.float64],
    is_labelled: NDArray[np.bool_],
    probability: NDArray[np.float64],
    *,
    tuning: float | None = None,
) -> TrueFigure:
    """Estimate the accuracy from labels that were drawn with a `probability` of each row."""
    ones = np.ones(len(rows))
    predictions = correct_probability(rows)
    weights = rows.weights
    label_weights = (weights / probability)[is_labelled]
    return estimate_figure(
        FigureData(
            archive_predictions=Terms(predictions, ones, weights),
            label_terms=Terms(is_right[is_labelled], ones[is_labelled], label_weights),
            label_predictions=Terms(
                predictions[is_labelled], ones[is_labelled], weights[is_labelled]
            ),
        ),
        tuning=tuning,
    )
