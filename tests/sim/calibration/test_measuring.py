"""Calibrating for real: broker, worker and devices as processes."""

import math
from types import SimpleNamespace

import pytest

from gatewise.errors import InputError
from gatewise_cloud.broker.broker import EmbeddedBroker
from gatewise_sim.calibration.figures import Calibration
from gatewise_sim.calibration.measuring import (
    _divide,
    _stages,
    calibrate,
)
from gatewise_sim.fleet.progress import ProgressListener
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.worker import ServiceTime

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
    routes = SimpleNamespace(plan=SimpleNamespace(n_stages=5))
    assert _stages({1: [0.1, 0.2, 9.0], 3: [0.6]}, routes) == (0.2, 0.2, 0.4, 0.6, 0.6)
    with pytest.raises(InputError, match="none of the rows can be answered"):
        _stages({}, routes)
    with pytest.raises(InputError, match="exchanges is 3; give at least 20"):
        calibrate("bundle", [[0.0]], exchanges=3)


class Progress(ProgressListener):
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.events = []

    def begin(self, title, seconds, expected):
        self.events.append(title)

    def advance(self, snapshot):
        self.events.append(snapshot.done)

    def end(self, text):
        self.events.append(text)


@pytest.mark.slow
def test_a_calibration_has_figures_that_can_be(small, tmp_path):
    watch = Progress()
    found = calibrate(small.bundle.path, small.rows, exchanges=100, watch=watch)
    events = watch.events
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
