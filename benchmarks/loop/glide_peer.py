"""GLIDE (https://github.com/EmertonData/glide) on the same streams: intervals and alarms.

GLIDE estimates means from few labels and many predictions. Its values here are the errors of the
rows of the archive, multiplied by the number of instances that each row represents. They vary less
than the products of right answers, because errors are rare. Its intervals get the labels that this
project chooses, with their probabilities. Its monitor knows no probabilities, so it gets as many
labels that are drawn at random from the same rows.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data.loop_streams import LettersStreams, audit_sampler, drawn_stream
from benchmarks.loop.alarms import (
    ACCURACY,
    N_INSTANCES_PER_WEEK,
    N_LABELS_PER_WEEK,
    DrawWeek,
    alarm_rates,
)
from benchmarks.loop.estimates import (
    ACCURACIES,
    LABEL_COUNTS,
    N_INSTANCES,
    N_WIDTH_LABELS,
    label_numbers,
    measure_accuracy,
)
from gatewise.console import note
from gatewise_export.archive.choice import correct_probability
from gatewise_export.archive.shard import ArchivedRows


def measure_glide(n_interval_streams: int, n_alarm_streams: int) -> dict[str, Any]:
    """Measure coverage, widths and alarms of GLIDE; nothing if it cannot be imported."""
    try:
        import glide
    except ImportError:
        note("glide cannot be imported, so it is not compared")
        return {}
    try:
        glide_version = version("glide-py")
    except PackageNotFoundError:  # a clone on the path
        glide_version = "of a clone"
    note(f"glide {glide_version} in {glide.__path__[0]}")
    letters = LettersStreams()
    simulated_accuracy = measure_accuracy(ACCURACY)
    return {
        "version": glide_version,
        "estimates": [_measure_intervals(accuracy, n_interval_streams) for accuracy in ACCURACIES],
        "letters": _measure_alarms(
            n_alarm_streams,
            lambda rng, loss, sampler: letters.stream(rng, N_INSTANCES_PER_WEEK, loss, sampler),
            letters.accuracy,
        ),
        "drawn": _measure_alarms(
            n_alarm_streams,
            lambda rng, loss, _: drawn_stream(rng, N_INSTANCES_PER_WEEK, ACCURACY, loss),
            simulated_accuracy,
        ),
    }


def _measure_intervals(accuracy: float, n_streams: int) -> dict[str, Any]:
    """Coverage of active statistical inference by number of labels, and its width."""
    from glide.estimators import ASIMeanEstimator

    truth = measure_accuracy(accuracy)
    is_covered = np.zeros((n_streams, len(LABEL_COUNTS)), np.bool_)
    widths = np.full(n_streams, np.nan)
    for seed in range(n_streams):
        rng = np.random.default_rng((seed, round(1000 * accuracy)))
        rows, is_right = drawn_stream(rng, N_INSTANCES, accuracy).archive(rng)
        probability, label_number = label_numbers(rows, rng)
        scale = rows.weights * len(rows) / N_INSTANCES
        for look, n_labels in enumerate(LABEL_COUNTS):
            share = n_labels / LABEL_COUNTS[-1]
            is_labelled = label_number < share
            try:
                interval = (
                    ASIMeanEstimator()
                    .estimate(
                        np.where(is_labelled, (1 - is_right) * scale, np.nan),
                        (1 - correct_probability(rows)) * scale,
                        probability * share,
                    )
                    .confidence_interval
                )
            except ValueError:  # without a labelled error it has no interval, which covers nothing
                continue
            low, high = interval.lower_bound, interval.upper_bound
            is_covered[seed, look] = low <= 1 - truth <= high
            if n_labels == N_WIDTH_LABELS:
                widths[seed] = high - low
    return {
        "accuracy": accuracy,
        "streams": n_streams,
        "coverage": is_covered.mean(axis=0).tolist(),
        "at_all_looks": float(is_covered.all(axis=1).mean()),
        "width": float(np.nanmean(widths)),
    }


def _measure_alarms(n_streams: int, draw_week: DrawWeek, accuracy: float) -> dict[str, float]:
    """Rates of the alarms of GLIDE's monitor, by the same rules as this project's."""

    def has_alarm(seed: int, loss: float, tolerated_rate: float, max_sent: int) -> bool:
        rng = np.random.default_rng((7, seed))
        sampler = audit_sampler(seed)
        weeks: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        n_sent = 0
        while True:
            rows, is_right = draw_week(rng, loss, sampler).archive(rng)
            n_sent += len(rows)
            if n_sent > max_sent:
                break
            weeks.append(_weekly_values(rng, rows, is_right))
        return _glide_alarm(weeks, tolerated_rate)

    return alarm_rates(n_streams, accuracy, has_alarm)


def _weekly_values(
    rng: np.random.Generator, rows: ArchivedRows, is_right: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Errors with NaN where there is no label, and predicted errors; means are rates of a week."""
    scale = rows.weights * len(rows) / N_INSTANCES_PER_WEEK
    n_labels = min(N_LABELS_PER_WEEK, len(rows) - 2)
    is_labelled = np.zeros(len(rows), np.bool_)
    is_labelled[rng.permutation(len(rows))[:n_labels]] = True
    errors = np.where(is_labelled, (1 - is_right) * scale, np.nan)
    return errors, (1 - correct_probability(rows)) * scale


def _glide_alarm(
    weeks: list[tuple[NDArray[np.float64], NDArray[np.float64]]], tolerated_rate: float
) -> bool:
    from glide.monitors import AsymptoticPPRM

    errors, predicted_errors = zip(*weeks, strict=True)
    result = AsymptoticPPRM().detect(
        np.concatenate(errors),
        np.concatenate(predicted_errors),
        np.repeat(np.arange(len(weeks)), [len(values) for values in errors]),
        higher_is_better=False,
        threshold=tolerated_rate,
        confidence_level=0.95,
    )
    return bool(result.drift_detected)
