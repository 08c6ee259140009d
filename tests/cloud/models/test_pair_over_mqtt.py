"""A cascade of two unrelated ONNX models, from unlabelled images to a device and a worker."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gatewise as gw
from tests.support.image_models import fit_conv_graph, fit_mlp_graph, load_digit_images
from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.slow


def test_a_pair_fitted_to_unlabelled_images_answers_over_a_real_broker(tmp_path):
    images, y = load_digit_images()
    low_cost_path, high_cost_path = tmp_path / "low.onnx", tmp_path / "high.onnx"
    low_cost_path.write_bytes(fit_conv_graph(images[:300], y[:300]))
    high_cost_path.write_bytes(fit_mlp_graph(images[:900], y[:900]))
    training_images = images[900:1500]
    new_images = images[1500:]
    with Mosquitto(tmp_path) as broker:
        url = broker.url
        folder = tmp_path / "bundle"
        started_at = time.monotonic()
        # From two models to a running worker and device.
        pair = gw.PairCascade(low_cost_model=low_cost_path, high_cost_model=high_cost_path).fit(
            training_images
        )
        bundle = gw.pack(pair, folder, sample=training_images[:64], name="digits")
        link = gw.MqttLink(url)
        with gw.Worker(bundle, url), gw.Device(bundle, link=link, deadline_ms=10_000) as device:
            link.connect(30)
            answers = [device.answer(image) for image in new_images]
        assert time.monotonic() - started_at < 120  # two minutes suffice also on a loaded machine
    np.testing.assert_array_equal([answer.label for answer in answers], pair.predict(new_images))
    routes = {answer.route for answer in answers}
    assert routes == {"edge", "cloud"}
    was_offloaded = np.array([answer.route == "cloud" for answer in answers])
    np.testing.assert_array_equal(was_offloaded, pair.offload(new_images))
    # The agreement with the high-cost model lies in its interval, but for the error of these rows.
    flat_images = new_images.reshape(len(new_images), -1).astype(np.float32)
    high_cost_labels = pair.classes_[pair.high_cost_model_.labels(flat_images)]
    agreement = np.mean(pair.predict(new_images) == high_cost_labels)
    lower_bound, upper_bound = pair.operating_point_.interval
    # The standard error of a share p of n rows is sqrt(p (1 - p) / n).
    two_standard_errors = 2 * np.sqrt(agreement * (1 - agreement) / len(new_images))
    assert lower_bound - two_standard_errors <= agreement <= upper_bound + two_standard_errors
