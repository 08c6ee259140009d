"""Checks of numbers in settings."""

import math

import pytest

from gatewise.errors import InputError
from gatewise_edge.checks import check_positive


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, 10**400, True, "1", None])
def test_a_value_that_is_not_a_positive_finite_number_is_refused(value):
    with pytest.raises(InputError, match=r"deadline_ms is .*must be a positive number"):
        check_positive("deadline_ms", value)


def test_a_positive_integer_becomes_a_float():
    assert isinstance(check_positive("deadline_ms", 5), float)
