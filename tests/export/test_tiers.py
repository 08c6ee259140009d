"""Stages on several tiers in a bundle: the same decisions and costs."""

from __future__ import annotations

import pytest

from gatewise_export.bundle.manifest_reader import read_manifest
from gatewise_export.packing.verification import self_test, verify, verify_graphs
from tests.support.once import MakeOnce
from tests.support.tiers import K, make_tiered

pytestmark = pytest.mark.slow  # fits models


def test_a_bundle_places_stages_and_charges_as_the_system(make_once: MakeOnce) -> None:
    tiered = make_once("tiered", make_tiered)
    system, bundle, X = tiered.system, tiered.bundle, tiered.rows
    manifest = read_manifest(bundle.manifest.to_json())
    assert manifest.tiers == ("device", "gateway", "cloud")
    assert manifest.prices == system.cloud_prices_
    assert set(system.exit_stage(X)) == {0, 1, 2, 3}
    for report in (verify(system, bundle, X), verify_graphs(bundle, X), self_test(bundle)):
        assert report.agrees
    features = system.feature_costs_.total
    _, gateway, cloud, high_cost = manifest.exit_costs()
    assert gateway == pytest.approx(features + 1.5 + 0.01 * (69 + 4 * K) + 0.25)
    assert cloud == pytest.approx(gateway)
    assert high_cost == pytest.approx(gateway + 30.0)
