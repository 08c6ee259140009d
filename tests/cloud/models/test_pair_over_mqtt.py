"""Two unrelated ONNX models of images and unlabelled rows: to a running device and worker."""

from __future__ import annotations

import io
import threading
import time

import numpy as np
import pytest
from PIL import Image
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import gatewise as gw
from gatewise_edge.link import wire
from tests.support.image_models import conv_graph, digit_images, mlp_graph
from tests.support.mosquitto import Mosquitto
from tests.support.shared_data import shared_data

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


def test_jpeg_files_over_a_real_broker(tmp_path):
    """Real files go as they are; what is no such image is refused, and the worker goes on."""
    data = np.load(shared_data("cifar10_jpeg.npz"))
    content, offsets = data["jpeg"].tobytes(), data["offset"]
    chosen = np.random.default_rng(0).permutation(len(offsets) - 1)[:1000]
    files = [content[offsets[k] : offsets[k + 1]] for k in chosen]
    x = np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])
    vehicle = np.isin(data["y"][chosen], (0, 1, 8, 9)).astype(int)
    flat = x.reshape(len(x), -1)
    small = LogisticRegression(C=1e-7, tol=0.5).fit(flat[:300], vehicle[:300])
    big = RandomForestClassifier(30, random_state=0).fit(flat[:600], vehicle[:600])
    pair = gw.PairCascade(
        low_cost_model=small, high_cost_model=big, encoding="jpeg", offload_rate=0.4, random_state=0
    ).fit(x[600:900])
    bundle = gw.pack(pair, tmp_path / "bundle", sample=x[600:620], name="cifar")
    got, came = [], threading.Event()

    def receive(payload):
        got.append(wire.decode_response(payload))
        came.set()

    with Mosquitto(tmp_path) as broker:
        link, raw = gw.MqttLink(broker.url), gw.MqttLink(broker.url, device="stranger")
        with (
            gw.Worker(bundle, broker.url),
            gw.Device(bundle, link=link, deadline_ms=10_000) as device,
        ):
            raw.open(receive)
            raw.connect(30)
            for bad in (b"GIF89a", files[0][:200], files[0].replace(b"\0 \0 ", b"\xff" * 4)):
                came.clear()
                request = wire.Request(
                    id=wire.new_id(), model="cifar", version="1", ttl_ms=9000, jpeg=bad
                )
                assert raw.send(wire.encode_request(request))
                assert came.wait(10)
                assert (got[-1].error, got[-1].id) == ("bad-request", request.id)
            assert "65535 x 65535" in got[-1].detail
            raw.close()
            link.connect(30)
            answers = [device.answer(file) for file in files[900:]]
            sent = device.counters["bytes_up"]
    assert [a.label for a in answers] == pair.predict(x[900:]).tolist()
    offloaded = sum(a.route == "cloud" for a in answers)
    assert offloaded == int(pair.offload(x[900:]).sum()) > 10
    assert sent / offloaded < 0.4 * pair.request_bytes_
