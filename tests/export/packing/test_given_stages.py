"""Bundles of given models decide the same in Python, on a device and in a worker."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import gatewise as gw
from gatewise.models.instances import InstanceSpec
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.device.installation import Installation
from gatewise_edge.device.self_checks import self_test
from gatewise_edge.errors import SelfTestError
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.errors import BundleError, ConversionError
from gatewise_export.bundle.manifest_reader import read_manifest
from gatewise_export.c99.writer import to_c
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.fleet.link import MessageSizes
from tests.support.bundle_files import replace_file
from tests.support.image_models import fit_conv_graph, fit_mlp_graph, load_digit_images

#: Rows that trained neither model.
UNSEEN_ROWS = slice(700, None)


@pytest.fixture(scope="module")
def pair_and_path(make_once):
    """A pair of image models and the path of its bundle."""
    images, y = load_digit_images()

    def make_pair(folder):
        low_cost_graph = fit_conv_graph(images[:200], y[:200])
        high_cost_graph = fit_mlp_graph(images[:700], y[:700])
        pair = gw.PairCascade(
            low_cost_model=low_cost_graph, high_cost_model=high_cost_graph,
            offload_rate=0.3, random_state=0, cloud_prices=gw.CloudPrices(byte=0.01),
        ).fit(images[UNSEEN_ROWS])  # fmt: skip
        gw.pack(pair, folder / "bundle", sample=images[UNSEEN_ROWS], name="digits")
        return pair, folder / "bundle"

    return make_once("packed_pair", make_pair)


@pytest.mark.slow
def test_a_device_answers_images_as_python_does(pair_and_path):
    images, _ = load_digit_images()
    rows = images[700:900]
    pair, path = pair_and_path
    bundle = gw.Bundle.open(path)
    assert gw.verify(pair, bundle, rows).agrees
    worker = CloudModel.from_bundle(bundle)
    link = gw.InProcessLink(worker.answer)
    with gw.Device(bundle, link=link, deadline_ms=20_000) as device:
        answers = [device.answer(image) for image in rows]
        assert [answer.label for answer in device.answer_many(rows[:20])] == [
            answer.label for answer in answers[:20]
        ]
        flat_answer = device.answer(rows[0].reshape(-1).astype(np.float32))
        with pytest.raises(gw.InputError, match="shape"):
            device.answer(rows[0][:4])
    assert flat_answer.label == answers[0].label
    np.testing.assert_array_equal([answer.label for answer in answers], pair.predict(rows))
    np.testing.assert_array_equal([answer.cost for answer in answers], pair.cost(rows))
    is_offloaded = [answer.route == "cloud" for answer in answers]
    np.testing.assert_array_equal(is_offloaded, pair.offload(rows))
    assert 20 < sum(is_offloaded) < 100  # around 30 % of 200 rows


@pytest.mark.slow
def test_a_simulation_reads_images_and_counts_their_bytes(pair_and_path):
    images, y = load_digit_images()
    pair, path = pair_and_path
    bundle = gw.Bundle.open(path)
    rows = Rows.from_arrays("digits", images[:50], y[:50], bundle.manifest)
    np.testing.assert_array_equal(rows.X, images[:50].reshape(50, 64))
    installation = Installation.load(bundle, runs_self_test=False)
    sizes = MessageSizes(
        model=installation.manifest.name,
        version=installation.manifest.version,
        n_values=len(installation.request_inputs),
        n_classes=len(installation.manifest.classes),
        dtype=installation.request_dtype,
    )
    # 9,000 ms to live; the names of model and version are a few bytes.
    assert sizes.request(9000) == pytest.approx(pair.request_bytes_, rel=0.05)


@pytest.mark.slow
def test_the_manifest_lists_an_array_once(pair_and_path):
    _, path = pair_and_path
    bundle = gw.Bundle.open(path)
    document = json.loads(bundle.manifest.to_json())
    assert document["instance"] == {"shape": [8, 8], "dtype": "uint8"}
    assert [feature["name"] for feature in document["features"]] == ["instance"]
    assert document["stages"][0]["inputs"] == document["cloud"]["inputs"] == ["instance"]
    assert bundle.manifest.instance == InstanceSpec((8, 8), "uint8")
    assert len(bundle.manifest.features) == 64
    assert read_manifest(bundle.manifest.to_json()) == bundle.manifest
    point = bundle.manifest.active_point
    assert point.measured == "agreement"
    assert point.interval[0] <= point.accuracy <= point.interval[1]


@pytest.mark.slow
def test_c99_of_a_given_stage_is_refused(pair_and_path):
    pair, path = pair_and_path
    bundle = gw.Bundle.open(path)
    with pytest.raises(BundleError, match="needs onnxruntime"):
        gw.Device(bundle, runner="numpy")
    for source in (bundle, pair):
        with pytest.raises(ConversionError, match=r"an ONNX graph, which cannot be written in C"):
            to_c(source, path.parent / "c")
    with pytest.raises(ConversionError, match="is a given graph"):
        gw.to_onnx(pair.stages_[0], n_features=64)


@pytest.mark.slow
def test_the_self_test_allows_differences_only_in_the_last_bits(pair_and_path, tmp_path):
    """Change the sample as if another processor had computed it."""
    _, path = pair_and_path
    bundle = gw.Bundle.open(path)
    arrays = read_arrays(bundle.read("sample.npz"))
    for factor, is_allowed in ((1 + 1e-6, True), (1.01, False)):
        changed_arrays = dict(arrays)
        changed_arrays["stage_0"] = (arrays["stage_0"] * np.float32(factor)).astype(np.float32)
        changed_path = tmp_path / str(is_allowed)
        shutil.copytree(path, changed_path)
        replace_file(changed_path, "sample.npz", write_arrays(changed_arrays))
        if is_allowed:
            assert self_test(gw.Bundle.open(changed_path)) == len(arrays["X"])
        else:
            with pytest.raises(SelfTestError, match="stage_0"):
                self_test(gw.Bundle.open(changed_path))
