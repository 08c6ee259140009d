"""Requests that carry what costs less, features or the raw window, for a model of features."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

import gatewise as gw
import gatewise_signals as sig
from gatewise_cloud.errors import RefusedRows
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_export.bundle.errors import ManifestError
from gatewise_export.bundle.manifest_reader import read_manifest
from tests.signals.test_raw_windows import SCHEMA
from tests.support.mosquitto import Mosquitto
from tests.support.window_system import roughness, windows


def blocks(price=40.0):
    two = sig.Channels("acc", (0, 1), ("x", "y"), price=1.0)
    return [
        sig.Mean(two, price=1.0),
        sig.BandPowers(sig.Spectrum(two, 50.0, price=price), (0.0, 10.0, 25.0), price=5.0),
        sig.Statistics(two, price=price),
    ]


def fitted(of_byte, own=None, **changes):
    settings = {
        "families": ("linear",), "effort": "low", "n_stages": 1, "random_state": 0,
        "offload_rate": 0.4, "cloud_prices": gw.CloudPrices(request=3.0, byte=of_byte),
        "high_cost_input": "cheaper",
    }  # fmt: skip
    x, y = windows(300)
    forest = RandomForestClassifier(10, random_state=0)
    return gw.StagedCascade(forest, blocks=own or blocks(), **settings | changes).fit(x, y)


@pytest.fixture(scope="module")
def system(make_once):
    return make_once("carried-windows", lambda _: fitted(0.01))


@pytest.fixture(scope="module")
def bundle(system, tmp_path_factory):
    return gw.pack(system, tmp_path_factory.mktemp("carried") / "b", sample=windows(30, seed=5)[0])


@pytest.fixture(scope="module")
def new():
    return windows(60, seed=9)[0]


def test_requests_carry_what_costs_less(system, new):
    """Cheap bytes: the window; dear ones: the features, of which there are fewer."""
    sent = system.offload(new)
    assert 0.1 < sent.mean() < 0.9
    assert system.explain(new[sent][0]).steps[-1].blocks == ("window",)
    assert "of the raw window" in str(system.summary())
    dear = fitted(2.0)
    assert dear.high_cost_model_.carried is None
    assert not dear.signal_input_.raw
    assert "window" not in str(dear.summary())
    of_features = fitted(0.01, high_cost_input="features")
    assert of_features.operating_point_.cost > system.operating_point_.cost
    np.testing.assert_array_equal(
        of_features.high_cost_model_.labels(of_features._rows(new)),
        system.high_cost_model_.labels(system._rows(new)),
    )
    paid = system.cost(new)[sent] - system.cost(new)[~sent].min()
    assert paid == pytest.approx(3.0 + 0.01 * (69 + 2 * 64))  # int16, and no further block


def test_functions_and_long_windows_are_not_carried():
    rough = sig.Block.from_function(roughness, ["rough.x", "rough.y"], 500.0)
    assert fitted(0.0, [*blocks(), rough]).high_cost_model_.carried is None
    x = np.repeat(windows(60)[0], 1100, axis=1)  # 140 kB
    forest = RandomForestClassifier(3, random_state=0)
    cascade = gw.StagedCascade(
        forest, blocks=blocks(), high_cost_input="cheaper", families=("linear",), effort="low",
        n_stages=1, random_state=0,
    ).fit(x[:, :35_000], windows(60)[1])  # fmt: skip
    assert cascade.high_cost_model_.carried is None


def test_the_bundle_says_so_and_decides_as_the_system(system, bundle, new):
    document = bundle.manifest.to_document()
    SCHEMA(document)
    assert document["cloud"]["carries"] == "window"
    assert tuple(document["cloud"]["inputs"]) == system.signal_input_.graph.feature_names
    assert read_manifest(json.dumps(document)).cloud == bundle.manifest.cloud
    assert len(bundle.manifest.request_inputs()) == 64
    report = gw.verify(system, bundle, new)
    assert report.agrees
    assert (report.differing_costs, report.cloud_label_differences) == (0, 0)


def test_a_worker_computes_the_blocks(system, bundle, new):
    model = CloudModel.from_bundle(bundle)
    rows = system._rows(new)
    found = model.answer(rows[:, bundle.manifest.request_inputs()])
    np.testing.assert_array_equal(found.labels, system.high_cost_model_.labels(rows))
    with pytest.raises(RefusedRows, match="takes 64 columns"):
        model.answer(rows[:, :10])
    with pytest.raises(RefusedRows, match="values that are no int16"):
        model.check(np.full((1, 64), 1e6, np.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"carries": "picture"}, "cloud.carries"),
        ({"inputs": ["window"]}, "must be features of blocks"),
        ({"carries": None}, "not what the cloud's model reads"),
    ],
)
def test_what_requests_carry_is_read_strictly(bundle, change, message):
    document = json.loads((bundle.path / "manifest.json").read_text())
    document["cloud"] |= change
    with pytest.raises(ManifestError, match=message):
        read_manifest(json.dumps(document))


@pytest.mark.slow
def test_windows_over_a_real_broker(system, bundle, new, tmp_path):
    with Mosquitto(tmp_path) as broker:
        link = gw.MqttLink(broker.url)
        with gw.Worker(bundle, broker.url), gw.Device(bundle, link=link, deadline_ms=10_000) as dev:
            link.connect(30)
            answers = [dev.answer(window) for window in new]
    np.testing.assert_array_equal([a.label for a in answers], system.predict(new))
    np.testing.assert_allclose([a.cost for a in answers], system.cost(new))
    np.testing.assert_array_equal([a.route == "cloud" for a in answers], system.offload(new))


def test_simulations_charge_the_window(bundle, system, new):
    report = gw.simulate(bundle, new, devices=2, seconds=60.0, baselines=False, link="none").report
    assert report.stages[-1].price == 0.0
