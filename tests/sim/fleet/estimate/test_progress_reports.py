import numpy as np
import pytest

from gatewise_sim.fleet.estimate.progress_reports import RunReports
from gatewise_sim.fleet.estimate.sampling import choose_plan
from gatewise_sim.fleet.estimate.stepping import estimate_fleet
from gatewise_sim.fleet.network.link import LinkProfile
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.run import VirtualFleet
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import ServiceTime
from tests.sim.recorder import Recorder
from tests.support.routes import make_routes


def settings(**changes) -> FleetSettings:
    common = {
        "devices": 100,
        "seconds": 1200.0,
        "workload": "poisson:6/min",
        "link": LinkProfile("l", 60, 20),
        "service": ServiceTime(0.010, 0.002),
        "workers": 3,
        "primed": True,
        "outages": Outages.parse("cloud:+5min-+6min,workers:2:+10min-+11min"),
    }
    return FleetSettings(**(common | changes))


def assert_progress(snapshots) -> None:
    for name in ("at", "answered", "edge", "cloud", "fallback", "error", "labelled", "done"):
        values = [getattr(s, name) for s in snapshots]
        assert values == sorted(values), name
    for s in snapshots:
        assert s.answered == s.edge + s.cloud + s.fallback + s.error
        assert 0 <= s.right <= s.labelled
        assert s.labelled == pytest.approx(s.answered, abs=4)
        assert 0 <= s.done <= 1


def test_a_run_that_is_stepped_whole_is_reported_by_the_clock():
    """With a clock that gains a second at each call every step is reported."""
    routes, own, seen, counted = make_routes(100, 20), settings(), Recorder(), []
    fleet = VirtualFleet(routes, own)
    tick = iter(range(10**9))
    reports = RunReports(seen, fleet.state, own.seconds, clock=lambda: float(next(tick)))

    def on_step(parts) -> None:
        reports.advance(parts)
        counted.append(sum(int((p.route >= 0).sum()) for p in parts))

    local: list[int] = []

    def keep(times, rows) -> None:
        local.append(len(rows))
        reports.add_local(rows)

    fleet.run_open(keep, on_step)
    assert len(seen.snapshots) == len(counted) > 3
    assert_progress(seen.snapshots)
    for snapshot, answered in zip(seen.snapshots, counted, strict=True):
        assert snapshot.answered == answered + sum(local)
    assert 60 < np.median([s.p50_ms for s in seen.snapshots]) < 90
    assert seen.snapshots[-1].right == pytest.approx(
        seen.snapshots[-1].answered - seen.snapshots[-1].fallback
    )


def test_windows_are_reported_as_they_are_done():
    routes, own, seen = make_routes(100, 20), settings(), Recorder()
    few = choose_plan(routes, own, requests=1500)
    found = estimate_fleet(routes, own, sampling=few, watch=seen)
    unwatched = estimate_fleet(routes, own, sampling=few)
    assert (unwatched.means, unwatched.timeline) == (found.means, found.timeline)
    assert len(seen.snapshots) == len(few.windows)
    assert_progress(seen.snapshots)
    last = seen.snapshots[-1]
    assert last.done == pytest.approx(1.0)
    assert last.at == pytest.approx(own.seconds)
    assert last.answered == pytest.approx(found.instances, rel=1e-3)
    assert last.cloud == pytest.approx(found.means["cloud"].value * found.instances, rel=0.01)
    assert seen.faults == [
        ("cloud", False, 300.0),
        ("cloud", True, 360.0),
        ("2 workers", False, 600.0),
        ("2 workers", True, 660.0),
    ]
