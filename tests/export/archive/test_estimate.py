"""Estimates from few labels, with good and worthless high-cost models."""

import numpy as np
import pytest

from gatewise_export.archive.estimate import FigureData, Terms, boundary, estimate_figure

N_INSTANCES = 3000
#: Accuracy of the answers: the mean a / (a + b) of the beta distribution with a = 6 and b = 1.
TRUE_ACCURACY = 6 / 7


def make_figure_data(seed, *, trust=1.0, labelled_share=100 / N_INSTANCES):
    """Make offloads and audits; with `trust` 0 the model's predictions are random."""
    rng = np.random.default_rng(seed)
    correct_probability = rng.beta(6, 1, N_INSTANCES)
    is_correct = (rng.random(N_INSTANCES) < correct_probability).astype(float)
    predictions = trust * correct_probability + (1 - trust) * rng.random(N_INSTANCES)
    # Uncertain instances are offloaded, and a tenth of the others is audited.
    sent_probability = np.where(correct_probability < 0.8, 1.0, 0.1)
    is_sent = rng.random(N_INSTANCES) < sent_probability
    weights = 1 / sent_probability[is_sent]
    # Labels prefer instances of a large weight and a doubtful answer.
    preference = np.where(correct_probability[is_sent] < 0.9, 1.5, 0.5)
    label_probability = np.minimum(1.0, labelled_share * weights * preference)
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


@pytest.mark.parametrize("trust", [1.0, 0.0])
def test_intervals_cover_the_truth_for_good_and_worthless_models(trust):
    figures = [estimate_figure(make_figure_data(seed, trust=trust)) for seed in range(200)]
    estimates = [figure.value for figure in figures]
    # Four standard errors, and a small bias of the ratio.
    tolerance = 4 * np.std(estimates) / np.sqrt(len(estimates)) + 0.003
    assert abs(np.mean(estimates) - TRUE_ACCURACY) < tolerance
    assert np.mean([figure.low <= TRUE_ACCURACY <= figure.high for figure in figures]) >= 0.95


def test_a_good_model_narrows_the_interval_and_a_worthless_one_does_not_widen_it():
    def estimate_figures(trust, **options):
        return [estimate_figure(make_figure_data(i, trust=trust), **options) for i in range(40)]

    def mean_width(figures):
        return np.mean([figure.high - figure.low for figure in figures])

    labels_only_width = mean_width(estimate_figures(1.0, tuning=0.0))
    assert mean_width(estimate_figures(1.0)) < 0.95 * labels_only_width
    worthless_figures = estimate_figures(0.0)
    assert mean_width(worthless_figures) < 1.02 * labels_only_width
    # The tuning is the weight of the model's predictions.
    assert np.mean([figure.tuning for figure in worthless_figures]) < 0.3


def test_estimate_from_labels_only_equals_horvitz_thompson():
    # Three labels with the weights 2, 1 and 5: (2 + 5) / (2 + 1 + 5) = 7 / 8.
    labels = Terms(np.array([1.0, 0.0, 1.0]), np.ones(3), np.array([2.0, 1.0, 5.0]))
    no_predictions = Terms(np.zeros(3), np.zeros(3), np.ones(3))
    figure = estimate_figure(FigureData(no_predictions, labels, no_predictions), tuning=0.0)
    assert figure.value == pytest.approx(7 / 8)
    residuals = np.array([2 * (1 - 7 / 8), -7 / 8, 5 * (1 - 7 / 8)])
    # An additional, assumed label has the largest weight and the squared residual 0.04.
    error = np.sqrt(residuals @ residuals + 0.04 * 5**2) / 8
    assert figure.high - figure.value == pytest.approx(boundary(3, 0.05) * error)


def test_predictions_do_not_matter_if_all_instances_are_labelled():
    rng = np.random.default_rng(0)
    ones = np.ones(200)
    is_correct = (rng.random(200) < 0.8).astype(float)
    for predictions in (rng.random(200), is_correct, ones):
        prediction_terms = Terms(predictions, ones, ones)
        data = FigureData(prediction_terms, Terms(is_correct, ones, ones), prediction_terms)
        for tuning in (0.0, 0.6, 1.0):
            assert estimate_figure(data, tuning=tuning).value == pytest.approx(is_correct.mean())


def test_without_labels_there_is_no_interval():
    no_terms = Terms(np.zeros(0), np.zeros(0), np.zeros(0))
    figure = estimate_figure(
        FigureData(Terms(np.full(4, 0.9), np.ones(4), np.ones(4)), no_terms, no_terms)
    )
    assert figure.value == pytest.approx(0.9)
    assert np.isnan([figure.low, figure.high]).all()


def test_a_higher_level_gives_a_narrower_interval():
    data = make_figure_data(0)
    upper_bounds = [estimate_figure(data, level=level).high for level in (0.01, 0.05, 0.2)]
    assert upper_bounds == sorted(upper_bounds, reverse=True)
