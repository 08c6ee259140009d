"""Rates of false alarms, and of alarms after a loss of accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from benchmarks.data.loop_streams import LettersStreams, Stream, audit_sampler, drawn_stream
from benchmarks.loop.estimates import measure_accuracy
from gatewise_edge.device.audit import AuditSampler
from gatewise_export.archive.alarm import TOLERANCE, LabelBatch, evidence
from gatewise_export.archive.choice import (
    choice_probabilities,
    correct_probability,
    largest_correction,
)

N_INSTANCES_PER_WEEK: Final = 1500
N_LABELS_PER_WEEK: Final = 100
#: Accuracy of the high-cost model of simulated streams.
ACCURACY: Final = 0.95
#: Share of instances that :func:`drawn_stream` offloads.
OFFLOAD_RATE: Final = 0.3
#: Loss of accuracy that should be detected, in addition to the tolerated one.
LOSS: Final = 0.03
#: Evidence at which the monitor raises its alarm: false alarms are rarer than 1 in 20.
ALARM_EVIDENCE: Final = 20

#: Draws a week of a stream with a loss of accuracy.
DrawWeek = Callable[[np.random.Generator, float, AuditSampler], Stream]


def measure_alarms(n_streams: int) -> dict[str, Any]:
    """Measure the rates of alarms on streams of Letters and on simulated ones."""
    letters = LettersStreams()
    simulated_accuracy = measure_accuracy(ACCURACY)

    def draw_letters_week(rng: np.random.Generator, loss: float, sampler: AuditSampler) -> Stream:
        return letters.stream(rng, N_INSTANCES_PER_WEEK, loss, sampler)

    def draw_simulated_week(rng: np.random.Generator, loss: float, _: AuditSampler) -> Stream:
        return drawn_stream(rng, N_INSTANCES_PER_WEEK, ACCURACY, loss)

    return {
        "letters": {
            "streams": n_streams,
            "accuracy": letters.accuracy,
            "offload_rate": letters.offload_rate,
            **_measure_rates(n_streams, draw_letters_week, letters.accuracy),
        },
        "drawn": {
            "streams": n_streams,
            "accuracy": simulated_accuracy,
            "offload_rate": OFFLOAD_RATE,
            **_measure_rates(n_streams, draw_simulated_week, simulated_accuracy),
        },
    }


def _measure_rates(n_streams: int, draw_week: DrawWeek, accuracy: float) -> dict[str, float]:
    """Measure the rates of this project's alarm."""
    return alarm_rates(
        n_streams,
        accuracy,
        lambda seed, loss, tolerated_rate, max_sent: _has_alarm(
            seed, draw_week, loss, tolerated_rate, max_sent
        ),
    )


def alarm_rates(
    n_streams: int, accuracy: float, has_alarm: Callable[[int, float, float, int], bool]
) -> dict[str, float]:
    """Measure the share of streams with an alarm, at the tolerated error rate and above it.

    `has_alarm` takes the seed of a stream, its loss of accuracy, the tolerated error rate and the
    largest number of sent instances.
    """
    tolerated_rate = 1 - accuracy + TOLERANCE
    rates = {}
    for name, loss, max_sent in (
        ("false_alarms", TOLERANCE, 10_000),
        ("found_within_2000", TOLERANCE + LOSS, 2_000),
        ("found_within_10000", TOLERANCE + LOSS, 10_000),
    ):
        # the same streams of random numbers for each rate
        n_alarms = sum(has_alarm(seed, loss, tolerated_rate, max_sent) for seed in range(n_streams))
        rates[name] = n_alarms / n_streams
    return rates


def _has_alarm(
    seed: int, draw_week: DrawWeek, loss: float, tolerated_rate: float, max_sent: int
) -> bool:
    """Whether a stream raises the alarm before `max_sent` instances were sent."""
    rng = np.random.default_rng((7, seed))  # 7: other streams than those of the estimates
    sampler = audit_sampler(seed)
    batches: list[LabelBatch] = []
    n_sent = 0
    while True:
        batch, n_week = _label_week(rng, draw_week(rng, loss, sampler))
        n_sent += n_week
        if n_sent > max_sent:
            return False
        batches.append(batch)
        if evidence(batches, tolerated_rate) >= ALARM_EVIDENCE:
            return True


def _label_week(rng: np.random.Generator, stream: Stream) -> tuple[LabelBatch, int]:
    """Label about N_LABELS_PER_WEEK instances of a week; also count those that were sent."""
    rows, is_right = stream.archive(rng)
    probability, _ = choice_probabilities(rows, N_LABELS_PER_WEEK, rng)
    is_labelled = rng.random(len(rows)) < probability
    batch = LabelBatch(
        weights=rows.weights,
        label_weights=np.where(is_labelled, rows.weights / probability, 0.0),
        wrong_probability=1 - correct_probability(rows),
        is_wrong=(1 - is_right) * is_labelled,
        largest_correction=largest_correction(rows, probability),
    )
    return batch, len(rows)
