"""The alarm is rare while the promise holds, and comes soon when it does not."""

import numpy as np
import pytest

from gatewise_export.archive.alarm import LabelBatch, evidence


def batch(rng, accuracy, n_rows=1000, n_labels=100):
    """Make a batch of offloads and audits, with a calibrated high-cost model."""
    correct_probability = np.clip(
        accuracy + rng.choice([-0.3, 0.1], n_rows, p=[0.25, 0.75]), 0, 0.999
    )
    is_correct = (rng.random(n_rows) < correct_probability).astype(float)
    w = np.where(rng.random(n_rows) < 0.3, 10.0, 1.0)
    label_probability = np.minimum(1.0, n_labels * w / w.sum())
    is_labelled = rng.random(n_rows) < label_probability
    return LabelBatch(
        weights=w,
        label_weights=np.where(is_labelled, w / label_probability, 0.0),
        correct_probability=correct_probability,
        is_correct=np.where(is_labelled, is_correct, 0.0),
        largest_weight=float((w / label_probability).max()),
    )


def stream(seed, accuracies):
    rng = np.random.default_rng(seed)
    return [batch(rng, accuracy) for accuracy in accuracies]


def test_false_alarms_are_rare_if_evidence_is_read_after_each_batch():
    alarms = 0
    for seed in range(100):
        batches = stream(seed, [0.9] * 6)
        alarms += any(evidence(batches[:k], 0.9) >= 20 for k in range(1, 7))
    assert alarms <= 5 + 2 * np.sqrt(100 * 0.05 * 0.95)


@pytest.mark.parametrize("n_good_batches", [0, 3])
def test_a_loss_raises_the_alarm_even_if_it_begins_late(n_good_batches):
    accuracies = [0.9] * n_good_batches + [0.75] * 4
    alarms = [evidence(stream(seed, accuracies), 0.9) >= 20 for seed in range(30)]
    assert np.mean(alarms) > 0.8


def test_evidence_without_labels_is_one():
    assert evidence([], 0.9) == 1.0


def test_no_factor_becomes_negative():
    """Not even if every label contradicts a certain prediction."""
    w = np.ones(10)
    worst_batch = LabelBatch(w, 5 * w, np.zeros(10), w, 5.0)
    assert np.isfinite(evidence([worst_batch], 0.99))
    assert evidence([worst_batch], 0.99) < 1
