"""Stages on several tiers in a bundle: the same decisions and costs; clear refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import make_classification
from sklearn.ensemble import ExtraTreesClassifier

from gatewise_export import Bundle, pack
from gatewise_export.bundle.errors import ManifestError
from gatewise_export.bundle.manifest_reader import read_manifest
from gatewise_export.packing.verification import self_test, verify, verify_graphs
from gatewise_training import CloudPrices, StagedCascade
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.learners.model_families import Bounds, cross_fitted_stage

pytestmark = pytest.mark.slow  # fits models or starts processes

K = 6
Floats = NDArray[np.float32]


class TwoLines(StagedCascade):
    """Two linear stages, two features and all."""

    def _fit_candidates(self, problem: Problem) -> list[FittedStages]:
        fits = [
            cross_fitted_stage(problem.plan, "linear", np.arange(k), problem.n_classes, 0, Bounds())
            for k in (2, K)
        ]
        return self._placed(
            [FittedStages(tuple(s for s, _ in fits), tuple(out for _, out in fits))]
        )


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> tuple[TwoLines, Bundle, Floats]:
    prices = CloudPrices(request=1.0, byte=0.01, evaluation=9.0, gateway=0.25)
    X, y = make_classification(2200, K, n_informative=4, n_redundant=0, random_state=0)
    X = X.astype(np.float32)
    f0 = ExtraTreesClassifier(20, min_samples_leaf=3, random_state=0)
    system = TwoLines(f0, random_state=0, tiers=("device", "gateway"), cloud_prices=prices)
    system.fit(X[:1600], y[:1600])
    X = X[1600:]
    halves = tuple(float(np.median(stage.run(X)[1])) for stage in system.stages_)
    system.operating_point_ = replace(system.operating_point_, thresholds=halves)
    return system, pack(system, tmp_path_factory.mktemp("tiers") / "b", sample=X[:40]), X


def test_a_bundle_places_stages_and_charges_as_the_system(
    tiered: tuple[TwoLines, Bundle, Floats],
) -> None:
    system, bundle, X = tiered
    manifest = read_manifest(bundle.manifest.to_json())
    assert manifest.tiers == ("device", "gateway")
    assert manifest.prices == system.cloud_prices_
    assert set(system.exit_stage(X)) == {0, 1, 2}
    for report in (verify(system, bundle, X), verify_graphs(bundle, X), self_test(bundle)):
        assert report.agrees
    gateway, cloud = manifest.exit_costs()[1:]
    assert gateway == pytest.approx(K + 1.0 + 0.01 * (60 + 4 * K) + 0.25)
    assert cloud == pytest.approx(gateway + 9.0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda d: d["stages"][0].update(tier="gateway"), "tier"),
        (lambda d: d["stages"][1].update(tier="fog"), "tier"),
        (lambda d: d.update(chains=[[1, 0]], operating_points=d["operating_points"][:1]), "tier"),
        (lambda d: d["stages"][1].update(kind="lazy"), "tier"),
        (lambda d: d["prices"].update(gateway=-1.0), "gateway"),
        (lambda d: d["prices"].update(ether=1.0), "prices"),
    ],
)
def test_manifests_with_impossible_places_are_refused(
    tiered: tuple[TwoLines, Bundle, Floats],
    change: Callable[[dict[str, Any]], Any],
    field: str,
) -> None:
    document = json.loads(tiered[1].manifest.to_json())
    change(document)
    with pytest.raises(ManifestError) as told:
        read_manifest(json.dumps(document))
    assert field in str(told.value)


def test_without_a_cloud_all_stages_are_the_devices(
    tiered: tuple[TwoLines, Bundle, Floats],
) -> None:
    document = json.loads(tiered[1].manifest.to_json())
    del document["files"][document["cloud"]["file"]]
    document["cloud"] = None
    for point in document["operating_points"]:
        point["thresholds"][-1] = float(np.finfo(np.float32).min)
    with pytest.raises(ManifestError, match="no cloud model"):
        read_manifest(json.dumps(document))


def test_old_manifests_have_no_price_of_a_gateway(
    tiered: tuple[TwoLines, Bundle, Floats],
) -> None:
    document = json.loads(tiered[1].manifest.to_json())
    del document["prices"]["gateway"]
    assert read_manifest(json.dumps(document)).prices.gateway == 0.0
