"""`max_instance_cost` in bundles, on devices and in C: no instance costs more."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.c99.compiled import build, compiler_command
from gatewise.errors import InputError
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.device.device import Device
from gatewise_edge.errors import SensorError
from gatewise_edge.link.link import InProcessLink
from gatewise_export import pack, to_c, verify, verify_graphs
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.manifest_reader import read_manifest
from gatewise_training import CloudPrices
from tests.support.budgeted_methods import COSTS, make_method, table

pytestmark = pytest.mark.slow  # fits, compiles and starts devices

SAMPLE = 16


@pytest.fixture(scope="module", params=[9.0, None], ids=["no-offload", "whole"])
def capped(request, tmp_path_factory):
    """System, bundle and rows with a cap below the cost of an offload or equal to it."""
    X, X_test, y, _ = table()
    highest_cost = float(COSTS.price(np.ones(len(X.columns), bool))) + 1.0
    settings = {
        "cloud_prices": CloudPrices(request=1.0), "families": ("linear",), "allow_missing": False
    }  # fmt: skip
    system = make_method("staged", X, y, **settings).fit(X, y)
    cap = request.param or highest_cost
    system = system.at(max_instance_cost=cap).at(max_loss=0.0 if request.param is None else 1.0)
    folder = tmp_path_factory.mktemp("capped")
    bundle = pack(system, folder / "bundle", sample=X_test[:SAMPLE], name="capped")
    x = X_test.to_numpy(np.float32)
    huge = x.copy()
    huge[np.random.default_rng(0).random(x.shape) < 0.3] = 3e38  # overflowing sums give inf - inf
    huge[np.random.default_rng(1).random(x.shape) < 0.3] = -3e38
    return system, bundle, x, huge, cap


def scores_of(system, x):
    with np.errstate(over="ignore", invalid="ignore"):
        return np.stack([stage.run(x)[1] for stage in system.stages_])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_instance_costs_more_than_the_cap_anywhere(capped, tmp_path):
    system, bundle, x, huge, cap = capped
    manifest = read_manifest(bundle.manifest.to_json())
    assert manifest.max_instance_cost == system.max_instance_cost_ == cap
    offloads = manifest.last_exit == len(manifest.stages)
    assert offloads == (cap > 9.0)
    assert verify(system, bundle, x).agrees
    assert verify_graphs(bundle, x).agrees
    rows = np.concatenate([x, huge])
    assert offloads or np.isnan(scores_of(system, huge)).any()
    frame = pd.DataFrame(rows, columns=system.feature_names_)
    exits = system.exit_stage(frame)
    costs = system.cost(frame)
    assert costs.max() <= cap
    assert (system.offload(frame).any()) == offloads
    link = InProcessLink(CloudModel.from_bundle(bundle).answer)
    with Device(bundle, link=link, deadline_ms=60_000) as device:
        answers = [device.answer(row) for row in rows]
    assert [answer.stage for answer in answers] == exits.tolist()
    np.testing.assert_allclose([answer.cost for answer in answers], costs)
    if compiler_command() is None:
        pytest.skip("Python agrees; this machine has no C compiler (cc, gcc or clang)")
    source = to_c(bundle, tmp_path / "c", name="capped")
    (compiled,) = build(
        [(source, [stage.model.n_outputs for stage in system.stages_])], flags=("-O1",)
    )
    result = compiled(rows)
    assert result.exits.tolist() == exits.tolist()
    assert (result.exits == len(system.stages_)).any() == offloads
    assert compiled.selftest() == 0


def document_of(bundle):
    return json.loads(bundle.manifest.to_json())


def test_a_manifest_with_a_point_above_the_cap_is_refused(capped):
    _, bundle, *_ = capped
    document = document_of(bundle)
    highest = max(float(cost) for cost in bundle.manifest.exit_costs())
    document["max_instance_cost"] = 0.1
    with pytest.raises(
        BundleError, match=r"operating_points\[0\].* may cost .* than max_instance_cost 0.1"
    ):
        read_manifest(json.dumps(document).encode())
    for invalid in (-1.0, "much", True):
        document["max_instance_cost"] = invalid
        with pytest.raises(BundleError, match="max_instance_cost"):
            read_manifest(json.dumps(document).encode())
    for cap in (highest, None):
        document["max_instance_cost"] = cap
        manifest = read_manifest(json.dumps(document).encode())
        assert manifest.last_exit == len(bundle.manifest.stages)


@pytest.mark.parametrize("capped", [9.0], indirect=True)
def test_a_device_offloads_nothing_if_an_offload_exceeds_the_cap(capped):
    _, bundle, x, huge, cap = capped

    def fail(X):
        raise AssertionError("sent")

    with pytest.raises(
        InputError,
        match="cloud-only: an offload may cost more than",
    ):
        Device(bundle, link=InProcessLink(fail), policy="cloud-only")
    incomplete = x.copy()
    incomplete[np.random.default_rng(2).random(x.shape) < 0.2] = np.nan
    for policy in ("system", lambda point: "offload"):
        with Device(bundle, link=InProcessLink(fail), policy=policy) as device:
            for row in np.concatenate([huge, incomplete]):
                try:
                    answer = device.answer(row)
                except (
                    SensorError
                ):  # the first stage's feature is missing, so that no stage can answer
                    continue
                assert answer.route in ("edge", "fallback")
                assert answer.cost <= cap
