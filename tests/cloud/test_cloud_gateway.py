"""Three tiers: what device, gateway and cloud answer together is what the system answers alone."""

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_cloud import CloudModel, ModelError, MosquittoBroker, Worker
from gatewise_cloud.models.gateway_model import GatewayModel
from gatewise_cloud.models.tier_stages import TierAnswer
from gatewise_cloud.worker.batcher import Batcher
from gatewise_cloud.worker.counters import Counters
from gatewise_cloud.worker.gateway import CloudAbove
from gatewise_cloud.worker.serving import BatchServer
from gatewise_edge import Device, MqttLink
from gatewise_edge.link import wire
from gatewise_export import Bundle
from tests.support.tiers import make_tiered, pack_tiers, two_classes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # workers and brokers in processes of their own

ROWS = 120


@pytest.fixture(scope="module")
def tiered(make_once):
    """A system with a stage on each tier, its bundle, and rows that it has not seen."""
    return make_once("tiered", make_tiered)


@pytest.fixture(scope="module")
def brokers():
    with MosquittoBroker() as below, MosquittoBroker() as above:
        yield below, above


def answers(device, X):
    return [device.answer(row) for row in X]


@pytest.mark.parametrize("processes", [False, True], ids=["in-process", "processes"])
def test_three_tiers_answer_as_the_system_does(tiered, brokers, command, processes):
    system, path = tiered.system, tiered.bundle.path
    below, above = brokers
    X = tiered.rows[:ROWS]
    if processes:
        running = [
            command("cloud", path, "--broker", above.url, "--max-batch", 8, "--json"),
            command(
                "cloud", path, "--broker", below.url, "--tier", "gateway",
                "--uplink", above.url, "--max-batch", 8, "--json",
            ),
        ]  # fmt: skip
        for one in running:
            assert json.loads(one.line())["ready"]
    else:
        running = [
            Worker(path, above.url, max_batch=8).start(),
            Worker(path, below.url, tier="gateway", uplink=above.url, max_batch=8).start(),
        ]
        wait_until(lambda: running[1].counters["uplink"])
    with Device(path, link=MqttLink(below.url), deadline_ms=20_000) as device:
        wait_until(lambda: device.answer(X[0]).route != "fallback", "the gateway")
        given = answers(device, X)
    exits = system.exit_stage(X)
    assert set(exits) == {0, 1, 2, 3}
    assert [a.stage for a in given] == exits.tolist()
    assert [a.route for a in given] == ["edge" if e == 0 else "cloud" for e in exits]
    assert [a.label for a in given] == system.predict(X).tolist()
    assert [a.cost for a in given] == pytest.approx(system.cost(X).tolist())
    assert {a.reason for a, e in zip(given, exits, strict=True) if e == 1} == {"gateway"}
    np.testing.assert_allclose([a.probabilities for a in given], system.predict_proba(X), atol=1e-5)
    if processes:
        for one in running:
            one.process.terminate()
        ends = [one.finish() for one in running]
        assert [(status, err) for status, _, err in ends] == [(0, ""), (0, "")]
        cloud, gateway = (json.loads(out) for _, out, _ in ends)
    else:
        for one in reversed(running):
            one.stop()
        cloud, gateway = (one.counters for one in running)
    assert gateway["forwarded"] >= np.count_nonzero(exits >= 2)
    assert cloud["answered"] == gateway["forwarded"]
    assert gateway["stood_in"] == {}


def test_one_request_of_many_rows_is_answered_by_several_tiers(tiered, brokers, caller):
    system, path = tiered.system, tiered.bundle.path
    below, above = brokers
    X = tiered.rows[:ROWS]
    exits = system.exit_stage(X)
    manifest = tiered.bundle.manifest
    beyond = X[exits > 0]
    with (
        Worker(path, above.url) as cloud,
        Worker(path, below.url, tier="gateway", uplink=above.url) as gateway,
    ):
        wait_until(lambda: gateway.counters["uplink"])
        one = caller(below)
        one.ask(beyond[:, manifest.request_inputs()], model="model", ttl_ms=20_000)
        answer = one.response()
    assert answer.exits.tolist() == exits[exits > 0].tolist()
    wanted = [system.classes_.tolist().index(label) for label in system.predict(beyond)]
    assert answer.labels.tolist() == wanted
    assert cloud.counters["instances"] == np.count_nonzero(exits >= 2)
    assert gateway.counters["instances"] == len(beyond)


@pytest.mark.parametrize("trouble", ["no-broker", "silent", "no-model"])
def test_without_the_cloud_above_the_last_gateway_stage_answers(tiered, brokers, bundle, trouble):
    """The broker above is away, nobody serves there, or another model is served."""
    system, path = tiered.system, tiered.bundle.path
    below, above = brokers
    X = tiered.rows[:40]
    url = "mqtt://127.0.0.1:9" if trouble == "no-broker" else above.url
    other = Worker(bundle, above.url) if trouble == "no-model" else None
    if other is not None:
        other.start()
    with Worker(path, below.url, tier="gateway", uplink=url) as gateway:
        if trouble != "no-broker":
            wait_until(lambda: gateway.counters["uplink"])
        with Device(path, link=MqttLink(below.url), deadline_ms=600) as device:
            wait_until(lambda: device.answer(X[0]).route != "fallback", "the gateway")
            given = answers(device, X)
        counters = gateway.counters
    if other is not None:
        other.stop()
    exits = np.minimum(system.exit_stage(X), 1)
    beyond = [a for a in given if a.route != "edge"]
    assert len(beyond) == np.count_nonzero(exits)
    # On a machine that is busy a device may answer by itself now and then: never wrongly marked.
    by_gateway = [a for a in beyond if a.route == "cloud"]
    assert {a.stage for a in by_gateway} == {1}
    assert {a.reason for a in by_gateway} == {"gateway"}
    assert len(by_gateway) >= len(beyond) / 2
    expected = system.stages_[1].run(X)[0]
    labels = (expected[:, 0] > 0).astype(int)
    for answer, label in zip(given, labels, strict=True):
        if answer.route == "cloud":
            assert answer.class_index == label
    why = {"no-broker": "link-down", "silent": "timeout", "no-model": "cloud:no-model"}[trouble]
    assert why in counters["stood_in"]


def test_a_gateway_that_ends_answers_what_is_above(tiered, brokers, caller):
    """Nobody serves above; the gateway is told to end while requests wait for it."""
    system, path = tiered.system, tiered.bundle.path
    below, above = brokers
    X = tiered.rows[:100]
    hard = X[system.exit_stage(X) >= 2][:5][:, tiered.bundle.manifest.request_inputs()]
    gateway = Worker(path, below.url, tier="gateway", uplink=above.url, drain_seconds=0.2).start()
    wait_until(lambda: gateway.counters["uplink"])
    one = caller(below)
    for row in hard:
        one.ask(row[np.newaxis], model="model", ttl_ms=60_000)
    wait_until(lambda: gateway.counters["forwarded"] == len(hard))
    gateway.stop()
    assert {tuple(answer.exits) for answer in one.responses(len(hard))} == {(1,)}
    assert gateway.counters["stood_in"] == {"drain": len(hard)}


def test_stages_in_the_cloud_come_before_the_high_cost_model(tmp_path):
    X, y = two_classes()
    system, path = pack_tiers(tmp_path / "bundle", X, y, {"device": 1, "cloud": None})
    X = X[500:700]
    exits = system.exit_stage(X)
    beyond = X[exits > 0]
    model = CloudModel.from_bundle(path)
    columns = Bundle.open(path).manifest.request_inputs()
    answer = model.run(np.ascontiguousarray(beyond[:, columns]))
    assert answer.exits.tolist() == exits[exits > 0].tolist()
    assert Counter(answer.exits.tolist()).keys() == {1, 2, 3}
    assert system.classes_[answer.labels].tolist() == system.predict(beyond).tolist()


def test_missing_values_pass_by_stages_that_take_none(tiered):
    path = tiered.bundle.path
    X = tiered.rows[:10][:, tiered.bundle.manifest.request_inputs()].copy()
    X[3, 0] = np.nan
    answer = GatewayModel.from_bundle(path).run(X)
    assert answer.offload[3]
    assert (answer.exits < 0).tolist() == [i == 3 for i in range(10)]


def test_bundles_and_settings_that_make_no_gateway(bundle, tiered, brokers):
    below, above = brokers
    with pytest.raises(ModelError, match="places no stage on a gateway"):
        Worker(bundle, below.url, tier="gateway", uplink=above.url)
    path = tiered.bundle.path
    with pytest.raises(InputError, match="uplink"):
        Worker(path, below.url, tier="gateway")
    with pytest.raises(InputError, match="uplink"):
        Worker(path, below.url, uplink=above.url)


class EvenStops:
    """A gateway's model in the place of a bundle's: its stage stops every second row of a run."""

    local, n_classes, n_stages, disagreement_bound = True, 2, 2, None

    def check(self, X):
        pass

    def run(self, X):
        assert X.dtype == np.float32
        n = len(X)
        offload = np.arange(n) % 2 == 1
        return TierAnswer(np.zeros(n, int), np.full((n, 2), 0.5, "f4"), np.zeros(n, int), offload)


class KeptLink:
    """A link that keeps what it sends, to nobody."""

    ready = True

    def __init__(self):
        self.sent = []

    def open(self, on_response):
        pass

    def send(self, payload):
        self.sent.append(payload)
        return True

    def close(self):
        pass


def served(forward, X, **options):
    """Answer a batch of requests of devices a, b and c, of which b's goes up.

    Gives the responses by device, what `forward` made, and the counters.
    """
    responses = {device: [] for device in "abc"}
    session = SimpleNamespace(
        worker="w",
        unread=True,
        respond=lambda device, response, form: responses[device].append(response),
        send=lambda device, payload, form: responses[device].append(wire.decode_response(payload)),
    )
    models = SimpleNamespace(get=lambda key: EvenStops(), running=lambda key: EvenStops())
    counters = Counters()
    server = BatchServer(models, Batcher(max_batch=4), session, counters)
    server.forward = forward(server, counters)
    for device in responses:
        request = wire.Request(
            id=wire.new_id(), model="m", version="1", ttl_ms=60_000, X=X, **options
        )
        server.receive(f"gw/v1/{device}/req", wire.encode_request(request), False)
    server.start()
    server.finish(10.0)
    return responses, server.forward, counters


@pytest.mark.parametrize(("dtype", "why"), [("uint8", "drain"), ("float32", "size")])
def test_a_gateway_passes_on_what_a_message_holds_and_stands_in_for_the_rest(dtype, why):
    """What came compressed may be too large; nobody responds from above."""
    X, link = np.ones((1, 224 * 224), dtype), KeptLink()
    responses, above, counters = served(
        lambda server, counters: CloudAbove(link, server, counters, limit=8), X, deflate=True
    )
    above.finish(0.0)
    assert [[r.error for r in each] for each in responses.values()] == [[None]] * 3
    for payload in link.sent:
        np.testing.assert_array_equal(wire.decode_request(payload).X, X, strict=True)
    assert len(link.sent) == (why == "drain")
    assert counters.snapshot()["stood_in"] == {why: 1}


def test_what_fails_in_a_batch_spoils_no_answer_that_was_given():
    def forward(ticket, answer):
        raise RuntimeError("nothing is above")

    responses, _, counters = served(lambda *_: forward, np.zeros((1, 4), np.float32))
    codes = [[r.error for r in each] for each in responses.values()]
    assert codes == [[None], ["failed"], ["failed"]]
    assert counters.snapshot()["answered"] == 1
