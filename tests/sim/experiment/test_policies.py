"""Tests of the policies that a simulation compares."""

from dataclasses import replace

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_sim.experiment.policies import (
    compared_policies,
    count_compared_policies,
    select_share,
    system_policy,
)
from gatewise_sim.fleet.results import NO_LABEL
from gatewise_sim.scenario import Scenario
from tests.support.fleets import make_table

# Ten rows of class 1. The device is wrong on the first four rows. The cloud does not accept the
# last row but one, and is wrong on the last.
TABLE = make_table(
    10,
    3,
    local_label=np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 1]),
    cloud_label=np.array([1, 1, 1, 1, 1, 1, 1, 1, NO_LABEL, 0]),
    confidence=np.array([0.9, 0.6, np.nan, 0.55, 0.7, 0.8, 0.95, 0.96, 0.5, 0.99], np.float32),
)


def make_policies(table=TABLE, row_weights=None, offload_rate=0.3):
    """Make the policies of a run, by default one that offloads 30 % of equally likely rows."""
    weights = np.ones(len(table)) if row_weights is None else row_weights
    policies = compared_policies(table, weights, offload_rate)
    assert len(policies) == count_compared_policies(table)
    return {policy.key: policy for policy in policies}


def test_edge_only_offloads_no_row_and_cloud_only_every_accepted_row():
    policies = make_policies()
    assert not policies["edge_only"].is_offloaded.any()
    cloud_policy = policies["cloud_only"]
    assert cloud_policy.is_cloud_first
    assert np.array_equal(cloud_policy.is_offloaded, TABLE.can_offload)


def test_confidence_offloads_the_least_confident_rows():
    """Row 2 has no answer; rows 1 and 3 are the least confident that the cloud accepts."""
    assert np.flatnonzero(make_policies()["confidence"].is_offloaded).tolist() == [1, 2, 3]
    row_weights = np.where(np.arange(10) == 2, 3.0, 1.0)
    weighted_policy = make_policies(row_weights=row_weights)["confidence"]
    assert np.flatnonzero(weighted_policy.is_offloaded).tolist() in ([2], [2, 3])


def test_random_has_the_offload_rate_of_the_system():
    policy = make_policies()["random"]
    assert not policy.is_offloaded.any()
    # the cloud accepts nine of the ten rows
    assert policy.random_share == pytest.approx(0.3 / 0.9)
    assert make_policies(offload_rate=1.0)["random"].random_share == 1.0


def test_oracle_offloads_rows_that_only_the_cloud_gets_right():
    assert np.flatnonzero(make_policies()["oracle"].is_offloaded).tolist() == [0, 1, 2, 3]
    unlabelled_table = replace(TABLE, truth=np.full(10, NO_LABEL))
    assert "oracle" not in make_policies(unlabelled_table)


def test_bundle_without_a_cloud_model_has_only_the_edge_only_policy():
    table = make_table(4, 0, has_cloud=False, cloud_label=np.full(4, NO_LABEL))
    assert [*make_policies(table)] == ["edge_only"]
    with pytest.raises(InputError, match="the bundle has no high-cost model"):
        system_policy(Scenario(policy="cloud-only"), table)


@pytest.mark.parametrize(
    ("changes", "name", "n_offloaded", "has_audits_and_limit"),
    [
        ({}, "Gatewise", 3, True),
        ({"policy": "edge-only"}, "edge-only", 0, False),
        ({"policy": "cloud-only"}, "cloud-only", 9, False),
    ],
)
def test_system_has_the_policy_of_the_scenario(changes, name, n_offloaded, has_audits_and_limit):
    policy = system_policy(Scenario(**changes), TABLE)
    assert (policy.key, policy.name, policy.has_audits_and_limit) == (
        "system",
        name,
        has_audits_and_limit,
    )
    assert policy.is_offloaded.sum() == n_offloaded


def test_select_share_selects_the_nearest_number_of_rows():
    row_weights = np.array([1.0, 2.0, 3.0, 4.0])
    order = np.array([3, 2, 1, 0])
    assert select_share(order, row_weights, 0.5).tolist() == [False, False, False, True]
    assert select_share(order, row_weights, 0.6).tolist() == [False, False, True, True]
    assert not select_share(order, row_weights, 0.0).any()
