"""Tests of a bundle's promises on the rows of a simulation."""

from types import SimpleNamespace

import numpy as np
import pytest

from gatewise.operating_point import OperatingPoint
from gatewise_sim.experiment.promise import broken_promise
from tests.support.fleets import make_table


def describe_violation(
    table, *, validation_accuracy=0.0, interval=None, n_validation=0, **guarantee
) -> str | None:
    """Test a bundle's promises on a table; return the sentence about a broken one."""
    operating_point = OperatingPoint(
        (None,), 1.0, validation_accuracy, 0.0, interval=interval, guarantee=guarantee or None
    )
    class_rows = (n_validation,) if n_validation else None
    return broken_promise(
        SimpleNamespace(active_point=operating_point, class_rows=class_rows), table
    )


def make_wrong_table(n_wrong: int, n_rows: int = 400, **columns):
    """Make a table whose first rows the device answers wrongly, and the cloud correctly."""
    local_label = np.where(np.arange(n_rows) < n_wrong, 0, 1)
    return make_table(n_rows, 0, local_label=local_label, **columns)


def test_kept_promise_gives_no_sentence():
    assert (
        describe_violation(make_wrong_table(4, max_disagreement=0.02), kind="max_loss", bound=0.02)
        is None
    )
    assert describe_violation(make_wrong_table(0)) is None


def test_loss_above_the_guarantee_is_reported():
    sentence = describe_violation(make_wrong_table(40), kind="max_loss", bound=0.02)
    assert sentence.startswith(
        "The rows break the bundle's promise: their accuracy is 10.0 % below"
    )
    assert "at most 2.0 % is guaranteed" in sentence
    # Without labels nothing is known of accuracy.
    assert (
        describe_violation(
            make_wrong_table(40, truth=np.full(400, -1)), kind="max_loss", bound=0.02
        )
        is None
    )


def test_loss_is_tested_by_paired_differences():
    """Where device and cloud err on the same rows, they differ by less than each errs.

    Of 400 rows the cloud gets 100 wrong, and the device 8 more: a mean loss of 2 %, 1.645 standard
    errors of which are 1.153 % (of two independent shares they would be 5 %).
    """
    cloud_label = np.where(np.arange(400) < 300, 1, 0)
    local_label = np.where(np.arange(400) < 292, 1, 0)
    table = make_table(400, 0, cloud_label=cloud_label, local_label=local_label)
    # 2 % - 1.153 % = 0.847 % lies between the two bounds
    assert describe_violation(table, kind="max_loss", bound=0.00846) is not None
    assert describe_violation(table, kind="max_loss", bound=0.00848) is None


def test_cost_above_the_guarantee_is_reported():
    sentence = describe_violation(make_table(400, 200), kind="budget", bound=2.0)
    # half of the rows cost 1, and the others 3.5
    assert "an instance costs 2.25 on average, but at most 2 is guaranteed" in sentence
    assert describe_violation(make_table(400, 200), kind="budget", bound=2.5) is None


def test_offload_rate_above_the_guarantee_is_reported():
    sentence = describe_violation(make_table(400, 200), kind="offload_rate", bound=0.1)
    assert "50.0 % of the rows are offloaded, but at most 10.0 % is guaranteed" in sentence


def test_agreement_below_the_promise_is_reported():
    sentence = describe_violation(make_wrong_table(40, max_disagreement=0.02))
    assert "10.0 % of their answers differ from those of the high-cost model" in sentence
    assert "at most 2.0 % is promised" in sentence


@pytest.mark.parametrize(("n_wrong", "is_broken"), [(14, False), (15, True)])
def test_only_significant_differences_break_a_promise(n_wrong, is_broken):
    """Of 400 rows 2 % are 8, and 1.645 standard errors 6.05 of 14 and 6.26 of 15."""
    assert (
        describe_violation(make_wrong_table(n_wrong, max_disagreement=0.02)) is not None
    ) == is_broken


def test_accuracy_below_that_on_validation_rows_is_reported():
    sentence = describe_violation(make_wrong_table(20), validation_accuracy=0.986)
    assert sentence.endswith(
        ": 95.0 % of their answers are correct, but 98.6 % of the answers on the validation "
        "rows were."
    )
    # A bundle without a cloud promises its accuracy as well.
    assert (
        describe_violation(make_wrong_table(20, has_cloud=False), validation_accuracy=0.986)
        is not None
    )
    assert (
        describe_violation(make_wrong_table(20, truth=np.full(400, -1)), validation_accuracy=0.986)
        is None
    )


@pytest.mark.parametrize(
    ("known_error", "is_broken"),
    [  # 95 % of 400 rows are correct, with a standard error of 1.1 %, and 98 % were promised
        ({}, True),
        ({"interval": (0.97, 0.99)}, True),
        ({"interval": (0.94, 1.0)}, False),
        ({"n_validation": 400}, True),
        ({"n_validation": 30}, False),
    ],
)
def test_error_of_the_validation_accuracy_is_included(known_error, is_broken):
    assert (
        describe_violation(make_wrong_table(20), validation_accuracy=0.98, **known_error)
        is not None
    ) == is_broken
