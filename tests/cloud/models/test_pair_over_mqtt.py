"""Two unrelated ONNX models of images and unlabelled rows: to a running device and worker."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gatewise as gw
from tests.support.image_models import conv_graph, digit_images, mlp_graph
from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.slow


def test_from_unlabelled_images_to_answers_over_a_real_broker(tmp_path):
    images, y = digit_images()
    small, big = tmp_path / "small.onnx", tmp_path / "big.onnx"
    small.write_bytes(conv_graph(images[:300], y[:300]))
    big.write_bytes(mlp_graph(images[:900], y[:900]))
    rows, new = images[900:1500], images[1500:]
    with Mosquitto(tmp_path) as broker:
        url, folder, start = broker.url, tmp_path / "bundle", time.monotonic()
        # the ten lines
        pair = gw.PairCascade(low_cost_model=small, high_cost_model=big).fit(rows)
        bundle = gw.pack(pair, folder, sample=rows[:64], name="digits")
        link = gw.MqttLink(url)
        with (
            gw.Worker(bundle, url),
            gw.Device(bundle, link=link, deadline_ms=10_000) as device,
        ):
            link.connect(30)
            answers = [device.answer(image) for image in new]
        assert time.monotonic() - start < 120
    np.testing.assert_array_equal([a.label for a in answers], pair.predict(new))
    routes = {a.route for a in answers}
    assert routes == {"edge", "cloud"}
    sent = np.array([a.route == "cloud" for a in answers])
    np.testing.assert_array_equal(sent, pair.offload(new))
    agreement = np.mean(pair.predict(new) == pair.classes_[pair.high_cost_model_.labels(
        new.reshape(len(new), -1).astype(np.float32)
    )])  # fmt: skip
    low, high = pair.operating_point_.interval
    spread = 2 * np.sqrt(agreement * (1 - agreement) / len(new))  # 297 new rows scatter, too
    assert low - spread <= agreement <= high + spread
