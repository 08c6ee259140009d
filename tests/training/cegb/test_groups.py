"""Groups and times of the regressor: whole groups fit or validate, and errors are theirs."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_training.cegb.regressor import CEGBRegressor

FEW = {"n_rounds": 15, "penalties": (0.02,), "max_loss": 0.2, "random_state": 0}


def machines(n=300, k=12):
    """Each machine's values have a level that its rows' first column gives away."""
    rng = np.random.default_rng(0)
    groups = np.repeat([f"machine {i}" for i in range(k)], n // k)
    level = np.repeat(rng.normal(size=k), n // k)
    x = np.column_stack([level, rng.normal(size=(n, 3))])
    return x, rng.normal(size=k).repeat(n // k) * 3 + x[:, 1], groups


def test_whole_groups_are_held_out_and_give_the_errors():
    x, y, groups = machines()
    shuffled = CEGBRegressor(**FEW).fit(x, y)
    grouped = CEGBRegressor(**FEW).fit(x, y, groups=groups)
    point = grouped.operating_point_
    assert point.validation_groups == 12
    assert shuffled.operating_point_.validation_groups is None
    best = [max(m.frontier_.points, key=lambda p: p.accuracy) for m in (shuffled, grouped)]
    assert best[0].accuracy > best[1].accuracy + 0.3  # a machine that is new is not known
    again = CEGBRegressor(**FEW).fit(x, y, groups=groups, sample_weight=(y > -9).astype(float))
    np.testing.assert_array_equal(again.predict(x), grouped.predict(x))


def test_the_last_fifth_validates_in_time():
    x, y, _ = machines()
    time = np.arange(300)[::-1]
    model = CEGBRegressor(**FEW).fit(x, y, time=time)
    early = CEGBRegressor(**FEW).fit(x[60:], y[60:], validation=(x[:60], y[:60]))
    assert [p.accuracy for p in model.frontier_.points] == pytest.approx(
        [p.accuracy for p in early.frontier_.points]
    )


def test_given_validation_rows_have_groups_of_their_own():
    x, y, groups = machines()
    new = groups >= "machine 7"
    held = (x[new], y[new], groups[new])
    model = CEGBRegressor(**FEW).fit(x[~new], y[~new], groups=groups[~new], validation=held)
    assert model.operating_point_.validation_groups == 3
    with pytest.raises(InputError, match="groups are given for training rows"):
        CEGBRegressor(**FEW).fit(x[~new], y[~new], groups=groups[~new], validation=held[:2])
    with pytest.raises(InputError, match="one value for each of the 300 rows"):
        CEGBRegressor(**FEW).fit(x, y, groups=groups[:9])
