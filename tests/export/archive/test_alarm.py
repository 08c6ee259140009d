"""The alarm is rare while the promise holds, and comes soon when it does not."""

from dataclasses import replace

import numpy as np
import pytest

from gatewise_export.archive.alarm import LabelBatch, evidence, log_growth

#: Evidence that raises the alarm: by Ville's inequality it is reached with a probability of at most
#: 1 / 20 while the promise holds.
ALARM_EVIDENCE = 20


def make_batch(rng, accuracy, n_rows=1000, n_labels=100):
    """Make a batch of offloads and audits, with a calibrated high-cost model."""
    # A quarter of the rows is difficult; the mean of the offsets is 0.
    offsets = rng.choice([-0.3, 0.1], n_rows, p=[0.25, 0.75])
    correct_probability = np.clip(accuracy + offsets, 0, 0.999)
    is_correct = (rng.random(n_rows) < correct_probability).astype(float)
    weights = np.where(rng.random(n_rows) < 0.3, 10.0, 1.0)  # 30 % are audits
    label_probability = np.minimum(1.0, n_labels * weights / weights.sum())
    is_labelled = rng.random(n_rows) < label_probability
    return LabelBatch(
        weights=weights,
        label_weights=np.where(is_labelled, weights / label_probability, 0.0),
        wrong_probability=1 - correct_probability,
        is_wrong=np.where(is_labelled, 1 - is_correct, 0.0),
        largest_correction=float(
            ((1 - correct_probability) * weights * (1 / label_probability - 1)).max()
        ),
    )


def make_batches(seed, accuracies):
    rng = np.random.default_rng(seed)
    return [make_batch(rng, accuracy) for accuracy in accuracies]


@pytest.mark.slow
def test_false_alarms_are_rare_if_evidence_is_read_after_each_batch():
    n_alarms = 0
    for seed in range(100):
        batches = make_batches(seed, [0.9] * 6)
        n_alarms += any(
            evidence(batches[:n_batches], 0.1) >= ALARM_EVIDENCE for n_batches in range(1, 7)
        )
    # At most 5 % in the mean, and two standard errors of this number.
    assert n_alarms <= 5 + 2 * np.sqrt(100 * 0.05 * 0.95)


@pytest.mark.parametrize("n_good_batches", [0, 3])
def test_a_loss_raises_the_alarm_even_if_it_begins_late(n_good_batches):
    accuracies = [0.9] * n_good_batches + [0.75] * 4
    has_alarm = [
        evidence(make_batches(seed, accuracies), 0.1) >= ALARM_EVIDENCE for seed in range(30)
    ]
    assert np.mean(has_alarm) > 0.8


def test_evidence_without_labels_is_one():
    assert evidence([], 0.1) == 1.0


def test_factors_stay_positive_whatever_a_label_says():
    """The largest bet is 0.35 of the one with which a factor could be zero."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        weights = 10 ** rng.uniform(0, 2, 1)
        wrong_probability = rng.random(1)
        label_probability = rng.uniform(0.01, 1, 1)
        correction = float((wrong_probability * weights * (1 / label_probability - 1))[0])
        for label_weights in (weights / label_probability, np.zeros(1)):
            batch = LabelBatch(weights, label_weights, wrong_probability, np.zeros(1), correction)
            growth = log_growth(batch, 0.05, float(weights[0]))
            assert (growth >= np.log(1 - 0.35) - 1e-12).all()


def test_a_factor_has_a_mean_of_one_at_the_tolerated_rate():
    """Whatever the high-cost model believes: the sum over label or none, and right or wrong."""
    # Any numbers. The model believes in another probability of a wrong answer than the rate.
    weight = 7.0
    believed_probability = 0.8
    label_probability = 0.3
    rate = 0.1
    mean_factors = np.zeros((2, 3))  # of all bets
    for is_labelled, p_labelled in ((1.0, label_probability), (0.0, 1 - label_probability)):
        for is_wrong, p_wrong in ((1.0, rate), (0.0, 1 - rate)):
            batch = LabelBatch(
                weights=np.array([weight]),
                label_weights=np.array([is_labelled * weight / label_probability]),
                wrong_probability=np.array([believed_probability]),
                is_wrong=np.array([is_labelled * is_wrong]),
                largest_correction=believed_probability * weight * (1 / label_probability - 1),
            )
            factors = np.exp(log_growth(batch, rate, earlier_weight=weight))
            mean_factors += p_labelled * p_wrong * factors
    np.testing.assert_allclose(mean_factors, 1.0, rtol=1e-12)


def test_bets_depend_only_on_earlier_instances():
    """The growth of the first half is the same, whatever weights the second half has."""
    whole_batch = make_batch(np.random.default_rng(3), 0.8)
    field_names = ("weights", "label_weights", "wrong_probability", "is_wrong")
    first_half, second_half = (
        replace(whole_batch, **{name: getattr(whole_batch, name)[rows] for name in field_names})
        for rows in (slice(500), slice(500, None))
    )
    heavier_half = replace(second_half, weights=50 * second_half.weights)
    for last_half in (second_half, heavier_half):
        joined_arrays = {
            name: np.concatenate([getattr(first_half, name), getattr(last_half, name)])
            for name in field_names
        }
        total_growth = log_growth(replace(first_half, **joined_arrays), 0.1, 1.0)
        last_growth = log_growth(last_half, 0.1, first_half.weights.max())
        first_growth = log_growth(first_half, 0.1, 1.0)
        np.testing.assert_allclose(total_growth - last_growth, first_growth, atol=1e-9)
