"""Guarantees of fitted systems; the tests behind them are proven in test_guarantee."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.model_selection import train_test_split

from gatewise.errors import InputError
from gatewise_training import StagedCascade

pytestmark = pytest.mark.slow  # a certified fit takes ten seconds


@pytest.fixture(scope="module")
def rows():
    X, y = load_digits(return_X_y=True)
    return train_test_split(X, y, test_size=0.3, stratify=y, random_state=0)


def quick(**more):
    return StagedCascade(
        ExtraTreesClassifier(100, random_state=0), n_stages=3, families=("extra-trees",),
        random_state=0, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def system(rows):
    X, _, y, _ = rows
    return quick(guarantee=0.9, offload_rate=0.3).fit(X, y)


def test_a_certified_point_says_what_it_promises(system):
    terms = system.operating_point_.guarantee
    assert terms["kind"] == "offload_rate"
    assert terms["bound"] == 0.3
    assert terms["confidence"] == 0.9
    assert 0.15 * 1257 < terms["calibration_rows"] < 0.25 * 1257
    assert system.operating_point_ in system.operating_points_


def test_it_holds_on_new_rows(system, rows):
    _, X_test, _, _ = rows
    assert system.offload(X_test).mean() <= 0.3 + 2 * np.sqrt(0.3 * 0.7 / len(X_test))
    moved = system.at(max_loss=0.05)
    assert moved.operating_point_.guarantee["kind"] == "max_loss"
    cheap = system.at(budget=40.0)
    assert cheap.cost(X_test).mean() <= 40.0


def test_rows_that_certify_fit_nothing(system, rows):
    X, _, _, _ = rows
    certifying = len(system.calibration_.certifying[0].weights)
    tuning = len(system.calibration_.tuning[0].weights)
    assert certifying + tuning == len(X)


def test_what_cannot_be_promised_is_refused(rows):
    X, _, y, _ = rows
    with pytest.raises(InputError, match=r"budget=0\.5 cannot be guaranteed"):
        quick(guarantee=0.9, budget=0.5).fit(X, y)
    with pytest.raises(InputError, match="guarantee must be between 0 and 1"):
        quick(guarantee=1.5).fit(X, y)
    with pytest.raises(InputError, match="equal weight"):
        quick(guarantee=0.9).fit(X, y, sample_weight=np.linspace(1, 2, len(y)))
