"""The alarm is rare while the promise holds, and comes soon when it does not."""

from dataclasses import replace

import numpy as np
import pytest

from gatewise_export.archive.alarm import LabelBatch, evidence, log_growth


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
        wrong_probability=1 - correct_probability,
        is_wrong=np.where(is_labelled, 1 - is_correct, 0.0),
        largest_correction=float(
            ((1 - correct_probability) * w * (1 / label_probability - 1)).max()
        ),
    )


def stream(seed, accuracies):
    rng = np.random.default_rng(seed)
    return [batch(rng, accuracy) for accuracy in accuracies]


def test_false_alarms_are_rare_if_evidence_is_read_after_each_batch():
    alarms = 0
    for seed in range(100):
        batches = stream(seed, [0.9] * 6)
        alarms += any(evidence(batches[:k], 0.1) >= 20 for k in range(1, 7))
    assert alarms <= 5 + 2 * np.sqrt(100 * 0.05 * 0.95)


@pytest.mark.parametrize("n_good_batches", [0, 3])
def test_a_loss_raises_the_alarm_even_if_it_begins_late(n_good_batches):
    accuracies = [0.9] * n_good_batches + [0.75] * 4
    alarms = [evidence(stream(seed, accuracies), 0.1) >= 20 for seed in range(30)]
    assert np.mean(alarms) > 0.8


def test_evidence_without_labels_is_one():
    assert evidence([], 0.1) == 1.0


def test_factors_stay_positive_whatever_a_label_says():
    """The largest bet is 0.35 of the one with which a factor could be zero."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        w = 10 ** rng.uniform(0, 2, 1)
        wrong_probability = rng.random(1)
        label_probability = rng.uniform(0.01, 1, 1)
        correction = float((wrong_probability * w * (1 / label_probability - 1))[0])
        for label_weight in (w / label_probability, np.zeros(1)):
            batch = LabelBatch(w, label_weight, wrong_probability, np.zeros(1), correction)
            assert (log_growth(batch, 0.05, float(w[0])) >= np.log(0.65) - 1e-12).all()


def test_a_factor_has_a_mean_of_one_at_the_tolerated_rate():
    """Whatever the high-cost model believes: the sum over label or none, and right or wrong."""
    w, q, c, rate = 7.0, 0.8, 0.3, 0.1
    mean = np.zeros((2, 3))
    for is_labelled, labelled_probability in ((1.0, c), (0.0, 1 - c)):
        for is_wrong, wrong_probability in ((1.0, rate), (0.0, 1 - rate)):
            batch = LabelBatch(
                weights=np.array([w]),
                label_weights=np.array([is_labelled * w / c]),
                wrong_probability=np.array([q]),
                is_wrong=np.array([is_labelled * is_wrong]),
                largest_correction=q * w * (1 / c - 1),
            )
            factor = np.exp(log_growth(batch, rate, earlier_weight=w))
            mean += labelled_probability * wrong_probability * factor
    np.testing.assert_allclose(mean, 1.0, rtol=1e-12)


def test_bets_depend_only_on_earlier_instances():
    """The growth of the first half is the same, whatever weights the second half has."""
    whole = batch(np.random.default_rng(3), 0.8)
    arrays = ("weights", "label_weights", "wrong_probability", "is_wrong")
    first, second = (
        replace(whole, **{name: getattr(whole, name)[half] for name in arrays})
        for half in (slice(500), slice(500, None))
    )
    heavier_second = replace(second, weights=50 * second.weights)
    for part in (second, heavier_second):
        joined = replace(
            first,
            **{
                name: np.concatenate([getattr(first, name), getattr(part, name)]) for name in arrays
            },
        )
        growth = log_growth(joined, 0.1, 1.0) - log_growth(part, 0.1, first.weights.max())
        np.testing.assert_allclose(growth, log_growth(first, 0.1, 1.0), atol=1e-9)
