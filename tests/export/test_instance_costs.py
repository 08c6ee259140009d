"""`max_instance_cost` in bundles, on devices and in C: no instance costs more."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.c99.compiled import compile_models, compiler_command
from gatewise.errors import InputError
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.device.device import Device
from gatewise_edge.errors import SensorError
from gatewise_edge.link.link import InProcessLink
from gatewise_export import pack, to_c, verify, verify_graphs
from gatewise_export.bundle.manifest_reader import read_manifest
from gatewise_training import CloudPrices
from tests.support.budgeted_methods import COSTS, load_table, make_method

pytestmark = pytest.mark.slow  # fits, compiles and starts devices

N_SAMPLE_ROWS = 16
#: A cap below the cost of an offload, which acquires all features.
LOW_COST = 9.0


@pytest.fixture(scope="module", params=[LOW_COST, None], ids=["no-offload", "whole"])
def capped_system(request, tmp_path_factory):
    """System, bundle and rows with a cap below the cost of an offload or equal to it."""
    X, X_test, y, _ = load_table()
    highest_cost = float(COSTS.price(np.ones(len(X.columns), bool))) + 1.0
    system_settings = {
        "cloud_prices": CloudPrices(request=1.0), "families": ("linear",), "allow_missing": False
    }  # fmt: skip
    system = make_method("staged", X, y, **system_settings).fit(X, y)
    max_cost = request.param or highest_cost
    system = system.at(max_instance_cost=max_cost).at(
        max_loss=0.0 if request.param is None else 1.0
    )
    folder = tmp_path_factory.mktemp("capped")
    bundle = pack(system, folder / "bundle", sample=X_test[:N_SAMPLE_ROWS], name="capped")
    rows = X_test.to_numpy(np.float32)
    # Sums of numbers near the largest float32 overflow, and some are inf - inf.
    huge_rows = rows.copy()
    huge_rows[np.random.default_rng(0).random(rows.shape) < 0.3] = 3e38
    huge_rows[np.random.default_rng(1).random(rows.shape) < 0.3] = -3e38
    return system, bundle, rows, huge_rows, max_cost


def compute_stop_scores(system, rows):
    """Compute the score of each stage for each row."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.stack([stage.run(rows)[1] for stage in system.stages_])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_instance_costs_more_than_the_cap_anywhere(capped_system, tmp_path):
    system, bundle, rows, huge_rows, max_cost = capped_system
    manifest = read_manifest(bundle.manifest.to_json())
    assert manifest.max_instance_cost == system.max_instance_cost_ == max_cost
    offloads = manifest.last_exit == len(manifest.stages)
    assert offloads == (max_cost > LOW_COST)
    assert verify(system, bundle, rows).agrees
    assert verify_graphs(bundle, rows).agrees
    all_rows = np.concatenate([rows, huge_rows])
    assert offloads or np.isnan(compute_stop_scores(system, huge_rows)).any()
    frame = pd.DataFrame(all_rows, columns=system.feature_names_)
    exits = system.exit_stage(frame)
    costs = system.cost(frame)
    assert costs.max() <= max_cost
    assert (system.offload(frame).any()) == offloads
    link = InProcessLink(CloudModel.from_bundle(bundle).answer)
    with Device(bundle, link=link, deadline_ms=60_000) as device:
        answers = [device.answer(row) for row in all_rows]
    assert [answer.stage for answer in answers] == exits.tolist()
    np.testing.assert_allclose([answer.cost for answer in answers], costs)
    if compiler_command() is None:
        pytest.skip("Python agrees; this machine has no C compiler (cc, gcc or clang)")
    source = to_c(bundle, tmp_path / "c", name="capped")
    (compiled_model,) = compile_models(
        [(source, [stage.model.n_outputs for stage in system.stages_])], flags=("-O1",)
    )
    c_answers = compiled_model(all_rows)
    assert c_answers.exits.tolist() == exits.tolist()
    assert (c_answers.exits == len(system.stages_)).any() == offloads
    assert compiled_model.count_selftest_failures() == 0


@pytest.mark.parametrize("capped_system", [LOW_COST], indirect=True)
def test_a_device_offloads_nothing_if_an_offload_exceeds_the_cap(capped_system):
    _, bundle, rows, huge_rows, max_cost = capped_system

    def fail_if_sent(X):
        raise AssertionError("sent")

    with pytest.raises(InputError, match="cloud-only: an offload may cost more than"):
        Device(bundle, link=InProcessLink(fail_if_sent), policy="cloud-only")
    incomplete_rows = rows.copy()
    incomplete_rows[np.random.default_rng(2).random(rows.shape) < 0.2] = np.nan
    for policy in ("system", lambda point: "offload"):
        with Device(bundle, link=InProcessLink(fail_if_sent), policy=policy) as device:
            for row in np.concatenate([huge_rows, incomplete_rows]):
                try:
                    answer = device.answer(row)
                except SensorError:
                    continue  # the first stage's feature is missing, so that no stage can answer
                assert answer.route in ("edge", "fallback")
                assert answer.cost <= max_cost
