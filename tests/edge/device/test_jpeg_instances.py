"""Images given as JPEG files: decoded for the stages, sent as they are."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest
from PIL import Image
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import gatewise as gw
from gatewise.errors import InputError
from gatewise_cloud import CloudModel
from gatewise_cloud.errors import ModelError, RefusedRows
from gatewise_edge import Device, InProcessLink, SensorError
from gatewise_edge.link import wire
from gatewise_edge.link.messages import MAX_FILE
from gatewise_edge.sensors import row_sources
from tests.support.image_models import digit_images

SIDE = 32


def as_file(image, **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", **{"quality": 80} | options)
    return file.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A pair of models of 32 x 32 images, its bundle, and files that neither has seen."""
    images, y = digit_images()
    large = np.kron(images[:900], np.ones((4, 4), np.uint8)) * np.uint8(15)
    files = [as_file(image) for image in large]
    x = np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])
    flat = x.reshape(len(x), -1)
    small = LogisticRegression(C=1e-7, tol=0.5).fit(flat[:100], y[:100])
    big = RandomForestClassifier(20, random_state=0).fit(flat[:300], y[:300])
    pair = gw.PairCascade(
        low_cost_model=small, high_cost_model=big, encoding="jpeg", offload_rate=0.5, random_state=0
    ).fit(x[300:800])
    bundle = gw.pack(pair, tmp_path_factory.mktemp("jpeg") / "bundle", sample=x[300:400])
    return pair, bundle, files[800:], x[800:]


class Recorder(InProcessLink):
    """An in-process link that keeps the requests."""

    def __init__(self, model, **options):
        super().__init__(model.answer, **{"decode": model.decode} | options)
        self.requests = []

    def send(self, payload):
        self.requests.append(wire.decode_request(payload))
        return super().send(payload)


def figures(answers):
    return [(a.label, a.route, a.cost, a.reason) for a in answers]


@pytest.mark.slow
def test_files_are_answered_as_their_values_and_sent_as_they_are(made):
    pair, bundle, files, x = made
    assert bundle.manifest.instance.encoding == "jpeg"
    model = CloudModel.from_bundle(bundle)
    links = [Recorder(model), Recorder(model)]
    with Device(bundle, link=links[0], deadline_ms=9000) as device:
        of_files = [device.answer(file) for file in files]
        counted = device.counters["bytes_up"]
        assert figures(device.answer_many(files[:20])) == figures(of_files[:20])
    with Device(bundle, link=links[1], deadline_ms=9000) as device:
        of_values = device.answer_many(x)
        assert counted < 0.9 * device.counters["bytes_up"]
    assert figures(of_files) == figures(of_values)
    assert [a.label for a in of_files] == pair.predict(x).tolist()
    assert {a.route for a in of_files} == {"edge", "cloud"}
    sent = [file for file, a in zip(files, of_files, strict=True) if a.route == "cloud"]
    assert [r.jpeg for r in links[0].requests[: len(sent)]] == sent
    assert {r.jpeg for r in links[1].requests} == {None}


def test_a_file_that_no_stage_reads_is_not_decoded(made, monkeypatch):
    pair, bundle, files, x = made
    model = CloudModel.from_bundle(bundle)

    def decoded(*_):
        raise InputError("it was decoded")

    monkeypatch.setattr(row_sources, "decode_jpeg", decoded)
    with Device(bundle, link=Recorder(model), policy="cloud-only") as device:
        answers = [device.answer(file) for file in files[:10]]
    labels = pair.high_cost_model_.labels(x[:10].reshape(10, -1).astype(np.float32))
    assert [a.class_index for a in answers] == labels.tolist()
    assert {a.feature_cost for a in answers} == {1.0}
    with Device(bundle) as alone, pytest.raises(SensorError, match="it was decoded"):
        alone.answer(files[0])


def test_what_is_no_such_image_is_refused_here_and_there(made):
    _, bundle, files, x = made
    model = CloudModel.from_bundle(bundle)
    image = np.asarray(x[0])
    wide, colour = as_file(image[:16]), as_file(np.stack([image] * 3, -1))
    cut = files[0][: len(files[0]) // 2]
    with Device(bundle, link=Recorder(model)) as device:
        for bad, why in ((wide, "32 x 16"), (colour, "colour"), (b"", "not a JPEG image")):
            with pytest.raises(InputError, match=why):
                device.answer(bad)
            with pytest.raises(RefusedRows, match=why):
                model.decode(bad)
        with pytest.raises(SensorError, match="cannot be decoded"):  # and is not sent
            device.answer(cut)
        assert device.counters["bytes_up"] == 0
        with pytest.raises(RefusedRows, match="cannot be decoded"):
            model.decode(cut)


def test_a_file_too_large_for_a_message_goes_as_values(made):
    _, bundle, _, x = made
    model = CloudModel.from_bundle(bundle)
    link = Recorder(model)
    padded = as_file(np.asarray(x[0]), comment=b"x" * 65000)
    padded = padded[:2] + (b"\xff\xfe\xff\xff" + b"y" * 65533) * 2 + padded[2:]
    assert len(padded) > wire.MAX_PAYLOAD
    with Device(bundle, link=link, policy="cloud-only") as device:
        answer = device.answer(padded)
    assert answer.route == "cloud"
    assert link.requests[0].X.dtype == np.uint8
    assert link.requests[0].jpeg is None


def test_the_largest_file_fits_a_message_whatever_the_names():
    request = wire.Request(
        id=bytes(16), model="m" * 64, version="ü" * 32, ttl_ms=86_400_000, jpeg=bytes(MAX_FILE)
    )
    assert len(wire.encode_request(request)) <= wire.MAX_PAYLOAD


def test_other_bundles_take_no_files(made, tmp_path):
    pair, _, files, x = made
    plain = gw.PairCascade(
        low_cost_model=pair.low_cost_model, high_cost_model=pair.high_cost_model, random_state=0
    ).fit(x)
    bundle = gw.pack(plain, tmp_path / "plain", sample=x[:20])
    assert "encoding" not in json.loads(bundle.manifest.to_json())["instance"]
    model = CloudModel.from_bundle(bundle)
    with Device(bundle) as device, pytest.raises(InputError, match='has no "encoding"'):
        device.answer(files[0])
    with pytest.raises(RefusedRows, match="takes no JPEG files"):
        model.decode(files[0])


def test_without_a_decoder_a_device_sends_and_a_worker_does_not_start(made, monkeypatch):
    _, bundle, files, _ = made
    model = CloudModel.from_bundle(bundle)
    link = Recorder(model, decode=lambda _: np.zeros((1, SIDE * SIDE), np.float32))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with Device(bundle, link=link, policy="cloud-only") as device:
        assert device.answer(files[0]).route == "cloud"
    with Device(bundle) as device, pytest.raises(SensorError, match="pip install"):
        device.answer(files[0])
    with pytest.raises(ModelError, match=r"pip install 'gatewise\[jpeg\]'"):
        CloudModel.from_bundle(bundle)
