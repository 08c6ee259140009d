from types import SimpleNamespace

import numpy as np
import pytest

from gatewise_sim.experiment.promise import broken_promise
from tests.support.fleets import make_table


def sentence(table, **guarantee) -> str | None:
    point = SimpleNamespace(guarantee=guarantee or None)
    return broken_promise(SimpleNamespace(active_point=point), table)


def table_with(n_wrong: int, n: int = 400, **columns):
    """A table of which the device answers the first rows otherwise than the cloud, and wrongly."""
    label = np.where(np.arange(n) < n_wrong, 0, 1)
    return make_table(n, 0, local_label=label, **columns)


def test_rows_that_keep_what_is_promised_need_no_word():
    assert sentence(table_with(4, promised=0.02), kind="max_loss", bound=0.02) is None
    assert sentence(table_with(0)) is None


def test_a_loss_beyond_the_guaranteed_one():
    text = sentence(table_with(40), kind="max_loss", bound=0.02)
    assert text.startswith("The rows break the bundle's promise: it loses 10.0 % of accuracy")
    assert "at most 2.0 % is guaranteed" in text
    # Without labels nothing is known of accuracy.
    assert sentence(table_with(40, truth=np.full(400, -1)), kind="max_loss", bound=0.02) is None


def test_a_cost_beyond_the_guaranteed_one():
    text = sentence(make_table(400, 200), kind="budget", bound=2.0)
    assert "an instance costs 2.25 on average, and at most 2 is guaranteed" in text
    assert sentence(make_table(400, 200), kind="budget", bound=2.5) is None


def test_more_offloads_than_guaranteed():
    text = sentence(make_table(400, 200), kind="offload_rate", bound=0.1)
    assert "50.0 % of them are offloaded, and at most 10.0 % is guaranteed" in text


def test_answers_that_agree_less_often_than_promised():
    text = sentence(table_with(40, promised=0.02))
    assert "10.0 % of them are answered otherwise than by the high-cost model" in text
    assert "at most 2.0 % is promised" in text


@pytest.mark.parametrize(("n_wrong", "broken"), [(12, False), (20, True)])
def test_only_what_is_beyond_chance_breaks_a_promise(n_wrong, broken):
    """Of 400 rows 2 % are 8 within 8 + 1.645 * 2.8."""
    assert (sentence(table_with(n_wrong, promised=0.02)) is not None) == broken


def test_a_bundle_without_a_cloud_promises_nothing():
    assert sentence(table_with(40, promised=0.02, has_cloud=False)) is None
