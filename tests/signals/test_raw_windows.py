"""High-cost models that read whole windows, in the estimator, the bundle and on a device."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier

import gatewise as gw
import gatewise_signals as sig
from gatewise.errors import InputError
from gatewise_export import to_c
from gatewise_export.bundle.errors import ManifestError
from gatewise_export.bundle.manifest_reader import read_manifest
from tests.support.image_models import fit_conv_graph, load_digit_images
from tests.support.mosquitto import Mosquitto
from tests.support.mqtt_clients import DeviceClient

PRICES = gw.CloudPrices(request=3.0, byte=0.01, evaluation=0.5)
SETTINGS = {
    "high_cost_input": "window", "families": ("linear",), "effort": "low", "n_stages": 2,
    "cloud_prices": PRICES, "random_state": 0,
}  # fmt: skip


def make_picture_blocks():
    pixels = sig.Pixels(price=0.5)
    return [sig.Thumbnail(pixels, 3, 3, price=1.0), sig.BlockStatistics(pixels, 2, 2, price=6.0)]


@pytest.fixture(scope="module")
def system(make_once):
    """System on digits: its stages read features, and its network reads the whole picture."""

    def fit_system(_):
        x, y = load_digit_images()
        high_cost_model = gw.OnnxModel(fit_conv_graph(x[:700], y[:700]))
        cascade = gw.StagedCascade(
            high_cost_model, blocks=make_picture_blocks(), offload_rate=0.3, **SETTINGS
        )
        return cascade.fit(x[900:1200], y[900:1200], validation=(x[1200:1500], y[1200:1500]))

    return make_once("system-on-raw-windows", fit_system)


@pytest.fixture(scope="module")
def bundle(system, tmp_path_factory):
    path = tmp_path_factory.mktemp("raw") / "bundle"
    return gw.pack(system, path, sample=load_digit_images()[0][:40])


@pytest.fixture(scope="module")
def labelled_pictures():
    x, y = load_digit_images()
    return x[1500:], y[1500:]


@pytest.mark.slow
def test_the_high_cost_model_gets_pictures_and_stages_get_features(system, labelled_pictures):
    x, y = labelled_pictures
    is_offloaded = system.offload(x)
    high_cost_model = system.high_cost_model_
    n_features = len(system.signal_input_.graph.feature_names)
    assert 0.1 < is_offloaded.mean() < 0.5  # on the validation rows it is at most 0.3
    assert system.explain(x[is_offloaded][0]).steps[-1].blocks == ("window",)
    # the pixels follow the features
    assert high_cost_model.features.tolist() == list(range(n_features, n_features + 64))
    assert all((stage.features < n_features).all() for chain in system.chains_ for stage in chain)
    network = replace(high_cost_model, features=np.arange(64))
    network_labels = network.labels(x.reshape(-1, 64).astype(np.float32))
    np.testing.assert_array_equal(system.predict(x)[is_offloaded], network_labels[is_offloaded])
    # ten classes; few features recognise less than whole pictures
    assert (network_labels == y).mean() > 0.85 > (system.predict(x) == y).mean() > 0.7


@pytest.mark.slow
def test_an_offloaded_picture_costs_its_bytes_but_no_further_block(system, labelled_pictures):
    x, _ = labelled_pictures
    graph = system.signal_input_.graph
    exits = system.exit_stage(x)
    for stage in np.unique(exits):
        columns = {
            column
            for visited_stage in system.stages_[: stage + 1]
            for column in visited_stage.features.tolist()
        }
        expected_cost = sum(
            graph.blocks[block].price
            for block in set(graph.block_of_feature[sorted(columns)].tolist())
        )
        expected_cost += 0.5  # the picture itself, which both blocks read
        if stage == len(system.stages_):
            expected_cost += 3.0 + 0.01 * (69 + 64) + 0.5  # header, one byte per pixel, evaluation
        assert system.cost(x)[exits == stage] == pytest.approx(expected_cost)


@pytest.mark.slow
def test_a_bundle_lists_the_window_once_and_decides_as_the_system(
    system, bundle, labelled_pictures
):
    document = json.loads(bundle.manifest.to_json())
    assert document["features"][-1] == {"name": "window", "own": 0.0}
    assert len(document["features"]) == len(system.signal_input_.graph.feature_names) + 1
    assert document["cloud"]["inputs"] == ["window"]
    manifest = read_manifest(json.dumps(document).encode())
    assert (manifest.features, manifest.cloud) == (bundle.manifest.features, bundle.manifest.cloud)
    assert bundle.manifest.cloud_prices().item_size == 1
    report = gw.verify(system, bundle, labelled_pictures[0])
    assert report.agrees
    assert (report.differing_costs, report.cloud_label_differences) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change_document", "message"),
    [
        (
            lambda document: document["features"].pop(),
            r"cloud.inputs\[0\]: 'window' is not a feature",
        ),
        (
            lambda document: document["features"].insert(0, document["features"].pop()),
            "their features differ",
        ),
        (
            lambda document: document["stages"][0].update(inputs=["window"]),
            "only the cloud may read",
        ),
        (
            lambda document: document["cloud"].update(inputs=["window[1]"]),
            "which the cloud's model must read",
        ),
        (lambda document: document.update(cloud=None), "'cloud.onnx' is not used"),
        (lambda document: document["signal"].update(shape=[2000, 2000]), "has 4000000 values"),
    ],
)
def test_raw_windows_of_a_bundle_are_read_strictly(bundle, change_document, message):
    document = json.loads((bundle.path / "manifest.json").read_text())
    change_document(document)
    with pytest.raises(ManifestError, match=message):
        read_manifest(json.dumps(document).encode())


def test_an_unfitted_model_is_fitted_on_flat_windows():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    x = np.round(1000 * (rng.normal(0, 1, (120, 20, 2)) + y[:, None, None])).astype(np.int16)
    blocks = [sig.Mean(sig.Channels(price=0.0), price=1.0)]
    forest = RandomForestClassifier(5, random_state=0)
    cascade = gw.StagedCascade(forest, blocks=blocks, **SETTINGS)
    cascade = cascade.fit(x, y, groups=np.arange(120) // 4)
    reference_forest = clone(forest).fit(x.reshape(120, -1).astype(np.float32), y)
    rows = cascade._rows(x)
    np.testing.assert_array_equal(
        cascade.high_cost_model_.labels(rows), reference_forest.predict(rows[:, -40:])
    )
    assert clone(cascade).high_cost_input == "window"
    assert cascade.cloud_prices_.item_size == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"high_cost_input": "pixels"}, "high_cost_input"),
        ({"blocks": None}, "high_cost_input='window' needs blocks"),
        ({"blocks": [sig.Block.from_function(np.ravel, ["window"], 1.0, name="f")]}, "'window'"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    x, y = load_digit_images()
    all_settings = SETTINGS | {"blocks": make_picture_blocks()} | settings
    with pytest.raises(InputError, match=message):
        gw.StagedCascade(**all_settings).fit(x[:60, :1, :1], y[:60])


@pytest.mark.slow
def test_c_computes_only_the_blocks_of_stages(bundle, tmp_path):
    source = to_c(bundle, tmp_path / "c", name="digits")
    assert source.signals.n_features < len(bundle.manifest.features) - 64 + 1


def predict_by_first_value(rows):
    """Predict probabilities of two classes by the first value of flat windows."""
    return np.eye(2)[(rows[:, 0] >= 100).astype(int)]


@pytest.mark.slow
def test_a_window_too_large_for_a_message_is_not_packed(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = (rng.integers(0, 99, (60, 33_000)) + 100 * y[:, None]).astype(np.float32)
    blocks = [sig.Mean(sig.Channels(price=0.0), price=1.0)]
    cascade = gw.StagedCascade(predict_by_first_value, blocks=blocks, **SETTINGS)
    cascade = cascade.fit(x[:40], y[:40], validation=(x[40:], y[40:]))
    with pytest.raises(InputError, match="132069 bytes, more than max_message=131072"):
        gw.pack(cascade, tmp_path / "long", sample=x[:4])
    bundle = gw.pack(cascade, tmp_path / "long", sample=x[:4], max_message=1 << 18)
    assert bundle.manifest.largest_request == 132069  # 33,000 float32 values and 69 bytes


@pytest.mark.slow
def test_a_device_offloads_pictures_over_a_real_broker(system, bundle, labelled_pictures, tmp_path):
    """Answers and costs equal the system's, also after the worker has refused other rows."""
    x, _ = labelled_pictures
    with Mosquitto(tmp_path) as broker:
        link = gw.MqttLink(broker.url)
        with (
            gw.Worker(bundle, broker.url),
            gw.Device(bundle, link=link, deadline_ms=10_000) as device,
        ):
            client = DeviceClient(broker.url, "client")
            model_and_version = {"model": bundle.manifest.name, "version": bundle.manifest.version}
            for invalid_rows, reason in (
                (x[:1].reshape(1, 64)[:, :63], "takes 64 columns"),
                (np.full((1, 64), np.nan, np.float32), "NaN"),
                (np.zeros((1, 65), np.int16), "takes 64 columns"),
            ):
                request = client.ask(invalid_rows, **model_and_version)
                answer = client.response()
                assert (answer.id, answer.error) == (request.id, "bad-request")
                assert reason in answer.detail
            client.close()
            link.connect(30)
            answers = [device.answer(picture) for picture in x]
            bytes_up = device.counters["bytes_up"]
    np.testing.assert_array_equal([answer.label for answer in answers], system.predict(x))
    np.testing.assert_allclose([answer.cost for answer in answers], system.cost(x))
    is_offloaded = np.array([answer.route == "cloud" for answer in answers])
    np.testing.assert_array_equal(is_offloaded, system.offload(x))
    assert bytes_up / is_offloaded.sum() == pytest.approx(69 + 64, abs=8)  # header, pixels
