"""Stages on several tiers in a bundle: the same decisions and costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import make_classification
from sklearn.ensemble import ExtraTreesClassifier

from gatewise_export import Bundle, pack
from gatewise_export.bundle.manifest_reader import read_manifest
from gatewise_export.packing.verification import self_test, verify, verify_graphs
from gatewise_training import CloudPrices, StagedCascade
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.learners.model_families import cross_fitted_stage
from gatewise_training.learners.stage_bounds import Bounds

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
    assert gateway == pytest.approx(K + 1.0 + 0.01 * (69 + 4 * K) + 0.25)
    assert cloud == pytest.approx(gateway + 9.0)
