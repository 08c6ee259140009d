"""Windows of 1 MiB, which no message holds: in parts, over a real mosquitto."""

from __future__ import annotations

import time

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import gatewise as gw
import gatewise_signals as sig
from gatewise_edge.link import wire
from gatewise_edge.link.messages import Part
from tests.support.image_models import digit_images
from tests.support.mosquitto import Mosquitto
from tests.support.mqtt_clients import Caller
from tests.support.processes import Command
from tests.support.wire_vectors import altered

pytestmark = pytest.mark.slow
SIDE = 512
PRICES = gw.CloudPrices(request=3.0, byte=1e-5, evaluation=0.5)


def pictures():
    """Digits 3, 8 and 9, enlarged to 512 x 512 float32: 1 MiB each; and as they were."""
    x, y = digit_images()
    kept = np.flatnonzero(np.isin(y, (3, 8, 9)))
    large = np.kron(x[kept[:72]] / 16, np.ones((SIDE // 8, SIDE // 8))).astype(np.float32)
    return large, y[kept[:72]], x[kept[72:]].reshape(-1, 64) / 16, y[kept[72:]]


@pytest.fixture(scope="module")
def data():
    return pictures()


@pytest.fixture(scope="module")
def system(make_once):
    """A stage on four grey levels, and a given linear model of all pixels."""

    def fit(_):
        x, y, small, digits = pictures()
        model = LogisticRegression(C=10).fit(small, digits)
        size = SIDE // 8
        spread = np.kron(model.coef_.reshape(3, 8, 8), np.ones((size, size)) / size**2)
        model.coef_, model.n_features_in_ = spread.reshape(3, -1), SIDE * SIDE
        cascade = gw.StagedCascade(
            model,
            blocks=[sig.Thumbnail(sig.Pixels(price=0.5), 2, 2, price=1.0)],
            high_cost_input="window",
            families=("linear",),
            effort="low",
            n_stages=1,
            cloud_prices=PRICES,
            max_loss=0.05,
            random_state=0,
        )
        return cascade.fit(x[:32], y[:32], validation=(x[32:64], y[32:64]))

    return make_once("system-on-large-windows", fit)


@pytest.fixture(scope="module")
def bundle(system, data, tmp_path_factory):
    return gw.pack(system, tmp_path_factory.mktemp("large") / "bundle", sample=data[0][:4])


class KillingLink(gw.MqttLink):
    """A link that kills a worker's process in the middle of what it sends to it."""

    def __init__(self, url, **settings):
        super().__init__(url, **settings)
        self.workers: list[str] = []
        self.doomed: tuple[str, Command] | None = None

    def send_parts(self, parts, worker):
        self.workers.append(worker)
        super().send_parts(self._until_killed(parts, worker), worker)

    def _until_killed(self, parts, worker):
        for i, payload in enumerate(parts):
            if i == 8 and self.doomed is not None and self.doomed[0] == worker:
                self.doomed[1].process.kill()
                self.doomed[1].process.wait()
            yield payload


def test_windows_in_parts_and_a_worker_killed_in_the_middle(system, bundle, data, tmp_path):
    x = data[0][64:]
    with Mosquitto(tmp_path) as broker:
        first = Command("cloud", bundle.path, "--broker", broker.url)
        try:
            assert first.line().startswith("ready")
            link = KillingLink(broker.url, device="cam-1")
            with gw.Device(bundle, link=link, deadline_ms=20_000, audit=None) as device:
                link.connect(30)
                answers = [device.answer(window) for window in x]
                sent = np.array([a.route == "cloud" for a in answers])
                np.testing.assert_array_equal(sent, system.offload(x))
                np.testing.assert_array_equal([a.label for a in answers], system.predict(x))
                np.testing.assert_allclose([a.cost for a in answers], system.cost(x))
                assert sent.sum() >= 2
                # A machine that stalls for a moment costs a retry: a transfer more at most.
                counts, window = device.counters, 4 * SIDE * SIDE
                least, most = sent.sum() * window, (sent.sum() + counts["retries"]) * window
                assert least < counts["bytes_up"] < 1.002 * most

                (doomed,) = set(link.workers)
                hard = x[np.flatnonzero(sent)[0]]
                right = system.predict(hard[None])[0]
                with gw.Worker(bundle, broker.url) as second:
                    link.doomed = doomed, first
                    labels = [device.answer(hard).label for _ in range(4)]
                    assert first.process.poll() is not None
                    assert labels == [right] * 4
                    retries = device.counters["retries"] - counts["retries"]
                    assert retries >= 1
                    assert device.counters["fallback"] == 0
                    assert second.counters["answered"] >= 4 or set(link.workers) != {doomed}
                    assert second.counters["stray_parts"] == 0 or retries > 1
        finally:
            first.close()


def test_what_is_no_such_window_is_refused_with_the_reason(bundle, data, tmp_path):
    names = {"model": bundle.manifest.name, "version": bundle.manifest.version}

    def announce(X):
        request = wire.Request(id=wire.new_id(), ttl_ms=9000, X=X, **names)
        return request.id, *wire.encode_in_parts(request)

    x = data[0][:1].reshape(1, -1)
    with Mosquitto(tmp_path) as broker, gw.Worker(bundle, broker.url) as worker:
        caller = Caller(broker.url, "cam-9")

        def refusal(id_, payload):
            caller.send(payload)
            response = caller.response()
            assert (response.id, response.error) == (id_, "bad-request")
            return response.detail

        id_, payload, content = announce(x)
        assert "takes 262144 columns" in refusal(*announce(x[:, :-1])[:2])
        assert "xb must lie in 1 to 4194304" in refusal(id_, altered(payload, {"xb": 5 << 20}))
        caller.send(payload)
        to = caller.response().parts_to
        topic = wire.part_topic("cam-9", to)
        parts = list(wire.cut_parts(id_, content))
        for part in parts[:3]:
            caller.send(part, topic=topic)
        truncated = wire.encode_part(Part(id_, 3, content[:100]))
        caller.send(truncated, topic=topic)
        assert "part 3 of 16 has 100 bytes" in caller.response().detail
        caller.send(parts[4], topic=topic)  # of a request that is forgotten

        caller.send(payload)
        assert caller.response().parts_to == to
        for part in parts[::-1]:
            caller.send(part, topic=topic)
        caller.send(parts[0][:-9], topic=topic)
        answer, dead = caller.get(), caller.get()
        if answer[0].startswith("gw/v1/dead"):
            answer, dead = dead, answer
        assert wire.decode_response(answer[1]).rows == 1
        assert dead == ("gw/v1/dead/cbor", parts[0][:-9])

        caller.send(payload)  # a copy of what was answered: answered again, without its parts
        assert wire.decode_response(caller.get()[1]).rows == 1
        counts = worker.counters
        assert (counts["stray_parts"], counts["repeated"], counts["parts"]) == (1, 1, 22)
        infinite = x.copy()
        infinite[0, 5] = np.nan
        id_, payload, content = announce(infinite)
        caller.send(payload)
        assert caller.response().parts_to == to
        for part in wire.cut_parts(id_, content):
            caller.send(part, topic=topic)
        assert "NaN" in caller.response().detail
        caller.close()


def test_a_deadline_ends_a_transfer(bundle, data, tmp_path):
    """What is late is not sent to its end, and the device answers by itself in time."""

    class SlowLink(gw.MqttLink):
        def send_parts(self, parts, worker):
            super().send_parts((p for p in parts if not time.sleep(0.05)), worker)

    with Mosquitto(tmp_path) as broker, gw.Worker(bundle, broker.url) as worker:
        link = SlowLink(broker.url, device="cam-1")
        with gw.Device(
            bundle, link=link, deadline_ms=300, policy="cloud-only", breaker=False
        ) as device:
            link.connect(30)
            answer = device.answer(data[0][0])
            assert (answer.route, answer.reason) == ("fallback", "timeout")
            assert answer.latency_ms < 600
            time.sleep(0.3)
            assert 1 <= worker.counters["parts"] < 12
            assert device.counters["bytes_up"] < 12 * 65_700
