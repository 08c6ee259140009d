"""Estimates from few labels, with good and worthless high-cost models."""

import numpy as np
import pytest

from gatewise_export.archive.estimate import FigureData, Terms, boundary, estimate_figure

N = 3000


def stream(seed, *, trust=1.0, labelled_share=100 / N):
    """Make offloads and audits; with `trust` 0 the model's predictions are random."""
    rng = np.random.default_rng(seed)
    p = rng.beta(6, 1, N)
    is_correct = (rng.random(N) < p).astype(float)
    predictions = trust * p + (1 - trust) * rng.random(N)
    sent_chance = np.where(p < 0.8, 1.0, 0.1)
    is_sent = rng.random(N) < sent_chance
    weights = 1 / sent_chance[is_sent]
    label_probability = np.minimum(
        1.0, labelled_share * weights * np.where(p[is_sent] < 0.9, 1.5, 0.5)
    )
    is_labelled = rng.random(is_sent.sum()) < label_probability
    ones = np.ones(is_sent.sum())
    return FigureData(
        archive_predictions=Terms(predictions[is_sent], ones, weights),
        label_terms=Terms(
            is_correct[is_sent][is_labelled],
            ones[is_labelled],
            weights[is_labelled] / label_probability[is_labelled],
        ),
        label_predictions=Terms(
            predictions[is_sent][is_labelled], ones[is_labelled], weights[is_labelled]
        ),
    )


TRUTH = 6 / 7  # the mean of the beta distribution


@pytest.mark.parametrize("trust", [1.0, 0.0])
def test_intervals_cover_the_truth_for_good_and_worthless_models(trust):
    figures = [estimate_figure(stream(seed, trust=trust)) for seed in range(200)]
    values = [figure.value for figure in figures]
    assert abs(np.mean(values) - TRUTH) < 4 * np.std(values) / np.sqrt(200) + 0.003
    assert np.mean([figure.low <= TRUTH <= figure.high for figure in figures]) >= 0.95


def test_a_good_model_narrows_the_interval_and_a_worthless_one_does_not_widen_it():
    def widths(**options):
        figures = [estimate_figure(stream(seed, **options)) for seed in range(40)]
        return np.mean([figure.high - figure.low for figure in figures])

    labels_only = [estimate_figure(stream(seed), tuning=0.0) for seed in range(40)]
    labels_only_width = np.mean([figure.high - figure.low for figure in labels_only])
    assert widths(trust=1.0) < 0.95 * labels_only_width
    assert widths(trust=0.0) < 1.02 * labels_only_width
    assert np.mean([estimate_figure(stream(s, trust=0.0)).tuning for s in range(40)]) < 0.3


def test_estimate_from_labels_only_equals_horvitz_thompson():
    labels = Terms(np.array([1.0, 0.0, 1.0]), np.ones(3), np.array([2.0, 1.0, 5.0]))
    no_predictions = Terms(np.zeros(3), np.zeros(3), np.ones(3))
    figure = estimate_figure(FigureData(no_predictions, labels, no_predictions), tuning=0.0)
    assert figure.value == pytest.approx(7 / 8)
    residuals = np.array([2 * (1 - 7 / 8), -7 / 8, 5 * (1 - 7 / 8)])
    error = np.sqrt(residuals @ residuals + 0.04 * 25) / 8
    assert figure.high - figure.value == pytest.approx(boundary(3, 0.05) * error)


def test_predictions_do_not_matter_if_all_instances_are_labelled():
    rng = np.random.default_rng(0)
    ones = np.ones(200)
    right = (rng.random(200) < 0.8).astype(float)
    for predicted in (rng.random(200), right, ones):
        archive = Terms(predicted, ones, ones)
        data = FigureData(archive, Terms(right, ones, ones), archive)
        for tuning in (0.0, 0.6, 1.0):
            assert estimate_figure(data, tuning=tuning).value == pytest.approx(right.mean())


def test_without_labels_there_is_no_interval():
    no_terms = Terms(np.zeros(0), np.zeros(0), np.zeros(0))
    figure = estimate_figure(
        FigureData(Terms(np.full(4, 0.9), np.ones(4), np.ones(4)), no_terms, no_terms)
    )
    assert figure.value == pytest.approx(0.9)
    assert np.isnan([figure.low, figure.high]).all()


def test_a_higher_level_gives_a_narrower_interval():
    data = stream(0)
    upper_bounds = [estimate_figure(data, level=level).high for level in (0.01, 0.05, 0.2)]
    assert upper_bounds == sorted(upper_bounds, reverse=True)
