"""Tests of the policies that a simulation compares."""

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_sim.experiment.policies import (
    POLICIES,
    PolicyContext,
    fill_share,
    system_policy,
)
from gatewise_sim.fleet.results import NO_LABEL
from gatewise_sim.scenario import Scenario
from tests.support.fleets import make_table

# Of ten rows the device gets the first four wrong and the cloud all but the last right.
TABLE = make_table(
    10,
    3,
    local_label=np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 1]),
    cloud_label=np.array([1, 1, 1, 1, 1, 1, 1, 1, NO_LABEL, 0]),
    confidence=np.array([0.9, 0.6, np.nan, 0.55, 0.7, 0.8, 0.95, 0.96, 0.5, 0.99], np.float32),
)


def make(key: str, table=TABLE, **changes):
    fields = {
        "table": table,
        "weights": np.ones(len(table)),
        "offload_rate": 0.3,
        "labelled": True,
        "scenario": Scenario(),
    }
    (policy,) = (each for each in POLICIES if each.key == key)
    return policy.make(PolicyContext(**fields | changes))


def test_all_edge_offloads_no_row_and_all_cloud_every_row():
    assert not make("edge_only").offload.any()
    cloud = make("cloud_only")
    assert cloud.request_first
    assert np.array_equal(cloud.offload, TABLE.can_offload)


def test_confidence_offloads_the_least_confident_rows():
    """The row without an answer, and the two least sure ones that the cloud takes."""
    assert np.flatnonzero(make("confidence").offload).tolist() == [1, 2, 3]
    weights = np.where(np.arange(10) == 2, 3.0, 1.0)
    assert np.flatnonzero(make("confidence", weights=weights).offload).tolist() in ([2], [2, 3])


def test_random_has_the_offload_rate_of_the_system():
    policy = make("random")
    assert not policy.offload.any()
    assert policy.chance == pytest.approx(0.3 / 0.9)
    assert make("random", offload_rate=1.0).chance == 1.0


def test_oracle_offloads_rows_that_only_the_cloud_gets_right():
    assert np.flatnonzero(make("oracle").offload).tolist() == [0, 1, 2, 3]
    assert make("oracle", labelled=False) is None


def test_without_a_cloud_only_all_edge_applies():
    table = make_table(4, 0, has_cloud=False, cloud_label=np.full(4, NO_LABEL))
    made = [policy.key for policy in POLICIES if make(policy.key, table) is not None]
    assert made == ["edge_only"]
    with pytest.raises(InputError, match="this bundle has no cloud model"):
        system_policy(Scenario(policy="cloud-only"), table)


@pytest.mark.parametrize(
    ("changes", "name", "offloaded", "limited"),
    [
        ({}, "Gatewise", 3, True),
        ({"policy": "edge-only"}, "edge-only", 0, False),
        ({"policy": "cloud-only"}, "cloud-only", 9, False),
    ],
)
def test_system_has_the_policy_of_the_scenario(changes, name, offloaded, limited):
    policy = system_policy(Scenario(**changes), TABLE)
    assert (policy.key, policy.name, policy.limited) == ("system", name, limited)
    assert policy.offload.sum() == offloaded


def test_fill_share_selects_the_nearest_number_of_rows():
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    order = np.array([3, 2, 1, 0])
    assert fill_share(order, weights, 0.5).tolist() == [False, False, False, True]
    assert fill_share(order, weights, 0.6).tolist() == [False, False, True, True]
    assert not fill_share(order, weights, 0.0).any()
