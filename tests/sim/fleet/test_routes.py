import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.device.device import Device
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.link.wire import Request, Response, encode_request, encode_response
from gatewise_sim.fleet.answers import ROUTES
from gatewise_sim.fleet.routes import NO_LABEL, Routes


def test_rows_go_and_cost_as_the_estimator_says(small, routes):
    assert 0.1 < routes.offload.mean() < 0.9
    assert np.array_equal(routes.offload, small.system.offload(small.rows))
    assert np.array_equal(routes.cost, small.system.cost(small.rows))
    assert np.array_equal(routes.label, small.system.predict(small.rows))
    assert np.array_equal(routes.cloud_label, small.system.high_cost_model_.labels(small.rows))
    assert not routes.local_route.any()
    with pytest.raises(InputError, match="has 64 columns"):
        Routes.from_bundle(small.bundle, small.rows[:, :5])
    with pytest.raises(InputError, match="labels of shape"):
        Routes.from_bundle(small.bundle, small.rows, small.truth[:5])
    with pytest.raises(InputError, match="offload of shape"):
        routes.choose([True])


def test_rows_go_as_a_device_sends_them(small, routes):
    with Device(small.bundle, policy="edge-only", check=False) as device:
        answers = [device.answer(row) for row in small.rows[:60]]
    for i, answer in enumerate(answers):
        assert (answer.class_index, answer.stage) == (routes.local_label[i], routes.exit[i])
        assert answer.cost == routes.local_cost[i]
        assert tuple(np.flatnonzero(routes.sets[routes.local_set[i]])) == answer.acquired


def test_gate_scores_decide_as_packed(routes):
    at_gate = ~np.isnan(routes.score)
    assert at_gate.any()
    stops = routes.score[at_gate] >= np.float32(routes.threshold)
    assert np.array_equal(~stops, routes.offload[at_gate])
    assert not routes.offload[~at_gate].any()


def test_sizes_are_those_of_the_wire(small, routes):
    plan = routes.plan
    for number in (0, 23, 24, 255, 256, 495, 65_535, 65_536, 1_000_000):
        request = Request(
            id=bytes(range(16)),
            model=plan.model,
            version=plan.version,
            ttl_ms=number,
            X=small.rows[:1, plan.request_inputs],
        )
        assert routes.sizes.request(number) == len(encode_request(request))
        response = Response(
            id=bytes(range(16)),
            model=plan.model,
            version=plan.version,
            labels=np.array([3]),
            probabilities=np.full((1, 10), 0.1, np.float32),
            worker_us=number,
        )
        assert routes.sizes.response(number) == len(encode_response(response))


def test_values_that_are_no_good(small):
    X = small.rows[:6].copy()
    first, carried = small.bundle.manifest.stage_inputs(0), small.bundle.manifest.cloud_inputs()
    X[0, first[0]] = np.nan
    X[1, first[0]] = np.inf
    only_cloud = np.setdiff1d(
        carried, np.concatenate([small.bundle.manifest.stage_inputs(s) for s in (0, 1)])
    )
    X[2:, only_cloud[0]] = np.nan
    routes = Routes.from_bundle(small.bundle, X)
    assert (routes.truth == NO_LABEL).all()
    assert [ROUTES[r] for r in routes.local_route[:2]] == ["error", "error"]
    assert (routes.local_label[:2] == NO_LABEL).all()
    # The very device, with a cloud that would answer anything.
    link = InProcessLink(lambda X: ([0] * len(X), [[0.1] * 10] * len(X)), allow_missing=True)
    with Device(small.bundle, link=link, check=False) as device:
        for i in range(2, 6):
            answer = device.answer(X[i])
            assert not routes.offload[i]
            assert ROUTES[routes.local_route[i]] == answer.route != "cloud"
            assert routes.local_cost[i] == answer.cost
            assert routes.local_label[i] == answer.class_index
