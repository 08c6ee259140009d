"""Rates of false alarms, and of alarms after a loss of accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import numpy as np

from benchmarks.data.loop_streams import LettersStreams, Stream, audit_sampler, drawn_stream
from benchmarks.harness import Options
from benchmarks.loop.estimates import measure_accuracy
from gatewise_edge.device.audit_sampler import AuditSampler
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


def measure_alarms(options: Options) -> dict[str, Any]:
    """Measure the rates of alarms on streams of Letters and on simulated ones."""
    n_streams = 20 if options.quick else 200
    letters = LettersStreams()

    def draw_simulated_week(rng: np.random.Generator, loss: float, _: AuditSampler) -> Stream:
        return drawn_stream(rng, N_INSTANCES_PER_WEEK, ACCURACY, loss)

    cases: dict[str, tuple[float, float, DrawWeek]] = {
        "letters": (
            letters.accuracy,
            letters.offload_rate,
            lambda rng, loss, sampler: letters.stream(rng, N_INSTANCES_PER_WEEK, loss, sampler),
        ),
        "drawn": (measure_accuracy(ACCURACY), OFFLOAD_RATE, draw_simulated_week),
    }
    return {
        name: {
            "streams": n_streams,
            "accuracy": accuracy,
            "offload_rate": offload_rate,
            **_measure_rates(n_streams, draw_week, 1 - accuracy + TOLERANCE),
        }
        for name, (accuracy, offload_rate, draw_week) in cases.items()
    }


def _measure_rates(n_streams: int, draw_week: DrawWeek, tolerated_rate: float) -> dict[str, float]:
    """Measure the share of streams with an alarm, at the tolerated error rate and above it."""
    rates = {}
    for name, loss, max_sent in (
        ("false_alarms", TOLERANCE, 10_000),
        ("found_within_2000", TOLERANCE + LOSS, 2_000),
        ("found_within_10000", TOLERANCE + LOSS, 10_000),
    ):
        n_alarms = 0
        for seed in range(n_streams):
            # 7: other streams than those of the estimates, and the same for each rate
            rng, sampler = np.random.default_rng((7, seed)), audit_sampler(seed)
            weeks = (_label_week(rng, draw_week(rng, loss, sampler)) for _ in count())
            n_alarms += _has_alarm(weeks, tolerated_rate, max_sent)
        rates[name] = n_alarms / n_streams
    return rates


def _has_alarm(
    weeks: Iterator[tuple[LabelBatch, int]], tolerated_rate: float, max_sent: int
) -> bool:
    """Whether the alarm is raised before `max_sent` instances were sent."""
    batches: list[LabelBatch] = []
    n_sent = 0
    for batch, n_week in weeks:
        n_sent += n_week
        if n_sent > max_sent:
            break
        batches.append(batch)
        if evidence(batches, tolerated_rate) >= ALARM_EVIDENCE:
            return True
    return False


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
