"""Calibrating for real: broker, worker and devices as processes; and the twin that comes of it."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_cloud.broker.broker import EmbeddedBroker
from gatewise_sim.calibration.figures import Calibration
from gatewise_sim.calibration.measuring import (
    _divide,
    _stages,
    calibrate,
)
from gatewise_sim.fleet.network.link import LinkProfile
from gatewise_sim.fleet.progress import Listeners
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import ServiceTime
from gatewise_sim.live.run import run_live

RUN = ServiceTime(100e-6, 20e-6)


def test_the_way_is_divided_and_nothing_is_lost():
    service, hop = _divide(2.0, RUN, worker_us=420.0, broker_us=30.0, message=1.0)
    assert service == ServiceTime(100e-6, 20e-6, 300e-6)
    assert hop == pytest.approx((2.0 - 0.42 - 2 * 0.03) / 2)
    # Without the worker's own time a message costs the usual.
    service, hop = _divide(2.0, RUN, worker_us=None, broker_us=30.0, message=265e-6)
    assert service.message == 265e-6
    assert hop == pytest.approx((2.0 - 0.385 - 0.06) / 2)
    # A worker that works after its answer makes no way longer.
    service, hop = _divide(0.3, RUN, worker_us=900.0, broker_us=30.0, message=0.0)
    assert hop == 0.0
    assert service.mean(1, 1) + 60e-6 == pytest.approx(0.3e-3)


def test_a_stage_that_no_row_stops_at_lies_between_its_neighbours():
    routes = SimpleNamespace(plan=SimpleNamespace(n_here=5))
    assert _stages({1: [0.1, 0.2, 9.0], 3: [0.6]}, routes) == (0.2, 0.2, 0.4, 0.6, 0.6)
    with pytest.raises(InputError, match="none of the rows can be answered"):
        _stages({}, routes)
    with pytest.raises(InputError, match="exchanges is 3; give at least 20"):
        calibrate("bundle", [[0.0]], exchanges=3)


@pytest.fixture(scope="module")
def measured(small, make_once):
    """A calibration, and the events of its listener."""
    return make_once("measured", lambda _: _measured(small))


def _measured(small):
    events: list[object] = []

    class Listener(Listeners):
        def begin(self, title, seconds, expected):
            events.append(title)

        def advance(self, snapshot):
            events.append(snapshot.done)

        def end(self, text):
            events.append(text)

    return calibrate(small.bundle.path, small.rows, exchanges=100, watch=Listener()), events


@pytest.mark.slow
def test_a_calibration_has_figures_that_can_be(measured, small, tmp_path):
    found, events = measured
    plan = Routes.from_bundle(small.bundle, small.rows[:2]).plan
    assert len(found.edge_ms) == plan.n_here
    times = [*found.edge_ms, 1e3 * found.service.mean(1, 1), found.broker_us]
    assert all(math.isfinite(t) and t > 0 for t in times)
    assert math.isfinite(found.hop_ms + found.proxy_ms)
    assert (found.source, found.model) == ("measured", f"{plan.model}/{plan.version}")
    assert found.about["exchanges"] >= 100
    # The sum is what was measured.
    way = 2 * found.hop_ms + 2e-3 * found.broker_us + 1e3 * found.service.mean(1, 1)
    assert way == pytest.approx(found.about["way_ms"], rel=0.01)
    assert events[0] == "calibration"
    assert events[-1] == "calibrated"
    assert events[1:-1] == sorted(events[1:-1])
    found.write(tmp_path / "c.json")
    assert Calibration.from_file(tmp_path / "c.json").service == found.service


@pytest.mark.slow
@pytest.mark.parametrize(
    "link", [LinkProfile("none"), LinkProfile("near", 6, 2)], ids=lambda v: v.name
)
def test_the_twin_decides_as_the_live_fleet_and_sends_the_same_bytes(measured, small, link):
    calibration, _ = measured
    settings = FleetSettings(
        devices=3,
        seconds=60.0,
        in_turn=[list(range(i, 150, 3)) for i in range(3)],
        link=link,
        service=RUN,
        # Long: a machine that is busy answers late, and no request is to be given up.
        deadline_ms=30_000.0,
    )
    routes = Routes.from_bundle(small.bundle, small.rows, small.truth)
    twin = simulate_fleet(routes, calibration.apply(settings, live=True)).answers
    run = run_live(small.bundle.path, small.rows, settings)
    live = run.answers
    assert (run.lost, run.troubles) == (0, [])
    for name in ("device", "row", "route", "stage", "label", "cost", "feature_cost"):
        assert np.array_equal(getattr(live, name), getattr(twin, name)), name
    # A request that was slow is sent again, with the very same bytes.
    once = twin.payload_up > 0
    assert np.array_equal(live.payload_up[once] % twin.payload_up[once], np.zeros(once.sum()))
    once &= live.payload_up == twin.payload_up
    assert once.sum() > 10
    assert np.array_equal(live.up[once], twin.up[once])
    # A response tells the worker's time, which is a byte or two shorter if it is short.
    worker_us = np.rint(1000.0 * live.cloud_ms[once]).astype(int).tolist()
    assert live.payload_down[once].tolist() == [routes.sizes.response(us) for us in worker_us]
    assert not live.up[~routes.offload[live.row]].any()


@pytest.mark.slow
def test_a_bundle_is_calibrated_on_a_broker_that_runs_already(small):
    # The embedded one, which shares no subscriptions.
    with EmbeddedBroker() as broker:
        found = calibrate(small.bundle.path, small.rows, broker=broker.url, exchanges=40)
    assert found.about["broker"] == "given"
    assert found.broker_us == 30.0  # its process is somebody else's
    assert found.hop_ms > 0


@pytest.mark.slow
def test_without_a_cloud_only_the_stages_are_measured(tmp_path):
    from sklearn.datasets import load_digits

    from gatewise_export import pack
    from gatewise_training import methods

    X, y = load_digits(return_X_y=True)
    forest = methods.make("budget-forest", n_estimators=3, random_state=0).fit(X[:600], y[:600])
    bundle = pack(forest, tmp_path / "bundle", sample=X[:8])
    found = calibrate(bundle.path, X[600:700])
    assumed = Calibration.assumed(Routes.from_bundle(bundle, X[600:700]))
    assert found.service == assumed.service
    assert found.edge_ms != assumed.edge_ms
    assert found.source == "measured"
