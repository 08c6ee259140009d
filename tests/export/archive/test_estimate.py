"""Estimates from few labels: right on average, whatever the high-cost model is worth."""

import numpy as np
import pytest

from gatewise_export.archive.estimate import FigureData, Terms, boundary, estimate_figure

N = 3000


def stream(seed, *, trust=1.0, share_labelled=100 / N):
    """Instances with audits of a chance of 0.1; `trust` 0 makes the model's word worthless."""
    rng = np.random.default_rng(seed)
    p = rng.beta(6, 1, N)
    right = (rng.random(N) < p).astype(float)
    predicted = trust * p + (1 - trust) * rng.random(N)
    sent_chance = np.where(p < 0.8, 1.0, 0.1)
    sent = rng.random(N) < sent_chance
    w = 1 / sent_chance[sent]
    chance = np.minimum(1.0, share_labelled * w * np.where(p[sent] < 0.9, 1.5, 0.5))
    labelled = rng.random(sent.sum()) < chance
    one = np.ones(sent.sum())
    return FigureData(
        archive=Terms(predicted[sent], one, w),
        labelled=Terms(right[sent][labelled], one[labelled], w[labelled] / chance[labelled]),
        predicted=Terms(predicted[sent][labelled], one[labelled], w[labelled]),
    )


TRUTH = 6 / 7  # the mean of the beta distribution


@pytest.mark.parametrize("trust", [1.0, 0.0])
def test_intervals_hold_whatever_the_model_is_worth(trust):
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


def test_labels_alone_are_horvitz_thompson_by_hand():
    labels = Terms(np.array([1.0, 0.0, 1.0]), np.ones(3), np.array([2.0, 1.0, 5.0]))
    nothing = Terms(np.zeros(3), np.zeros(3), np.ones(3))
    figure = estimate_figure(FigureData(nothing, labels, nothing), tuning=0.0)
    assert figure.value == pytest.approx(7 / 8)
    residuals = np.array([2 * (1 - 7 / 8), -7 / 8, 5 * (1 - 7 / 8)])
    error = np.sqrt(residuals @ residuals + 0.25 * 25) / 8
    assert figure.high - figure.value == pytest.approx(boundary(3, 0.05) * error)


def test_when_all_are_labelled_the_predictions_do_not_matter():
    rng = np.random.default_rng(0)
    one = np.ones(200)
    right = (rng.random(200) < 0.8).astype(float)
    for predicted in (rng.random(200), right, one):
        archive = Terms(predicted, one, one)
        data = FigureData(archive, Terms(right, one, one), archive)
        for tuning in (0.0, 0.6, 1.0):
            assert estimate_figure(data, tuning=tuning).value == pytest.approx(right.mean())


def test_without_labels_there_is_no_interval():
    none = Terms(np.zeros(0), np.zeros(0), np.zeros(0))
    figure = estimate_figure(FigureData(Terms(np.full(4, 0.9), np.ones(4), np.ones(4)), none, none))
    assert figure.value == pytest.approx(0.9)
    assert np.isnan([figure.low, figure.high]).all()


def test_a_bolder_level_is_narrower():
    data = stream(0)
    widths = [estimate_figure(data, level=level).high for level in (0.01, 0.05, 0.2)]
    assert widths == sorted(widths, reverse=True)
