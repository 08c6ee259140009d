"""Whole runs: real brokers, workers and devices."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.errors import LinkError
from gatewise_sim.errors import RunError
from gatewise_sim.fleet.answer_rules import rows_by_stage
from gatewise_sim.fleet.devices.decisions import routes_by_stage
from gatewise_sim.fleet.network.profiles import PROFILES
from gatewise_sim.fleet.progress import Snapshot
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.live.run import LiveRun, run_live
from tests.sim.live.runs import CLOUD, COLUMNS, EDGE, asks_early, assert_same, run, settings
from tests.sim.recorder import Recorder
from tests.support.processes import all_end, below, named

pytestmark = pytest.mark.slow


def assert_same_bytes(live: LiveRun, virtual, routes: Routes) -> None:
    """Equal to virtual time's, but for copies that a busy machine made devices send."""
    a, b = live.answers, virtual.answers
    sent = b.payload_up > 0
    assert (a.payload_up[~sent] == 0).all()
    assert (a.up[~sent] + a.down[~sent] == 0).all()
    copies = a.payload_up[sent] // b.payload_up[sent]
    assert (copies * b.payload_up[sent] == a.payload_up[sent]).all()
    assert (copies - 1).sum() == live.devices["retries"]
    once = np.flatnonzero(sent)[copies == 1]
    assert len(once) > 0.5 * sent.sum()
    assert (a.up[once] == b.up[once]).all()
    # A response tells the worker's own time, and a number of microseconds has one to five bytes.
    us = np.rint(1000.0 * a.cloud_ms[once].astype(np.float64)).astype(int).tolist()
    usual = np.array([routes.sizes.response(n) for n in us])
    assert (a.payload_down[once] == usual).all()
    same = usual == b.payload_down[once]
    assert (a.down[once] - a.payload_down[once] == b.down[once] - b.payload_down[once])[same].all()


# -- a run in which nothing goes wrong -----------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
def test_a_live_fleet_decides_and_sends_exactly_as_virtual_time(small, routes):
    watch = Recorder()
    chosen = settings()
    live = run(small, chosen, truth=small.truth.astype(np.int64), watch=watch)
    virtual = simulate_fleet(routes, chosen)
    assert live.lost == 0
    assert live.troubles == []
    assert live.broker == "mosquitto"
    assert live.processes == 2
    assert_same(live.answers, virtual.answers)
    answers = live.answers
    assert set(answers.route.tolist()) == {EDGE, CLOUD}
    assert (answers.label == routes.label[answers.row]).all()
    assert (answers.cost == routes.cost[answers.row]).all()
    assert ((answers.route == CLOUD) == routes.offload[answers.row]).all()
    assert_same_bytes(live, virtual, routes)
    sent = answers.route == CLOUD
    assert (answers.device_ms[~sent] == answers.latency_ms[~sent].astype(np.float32)).all()
    assert (answers.cloud_ms[~sent] == 0).all()
    assert (answers.cloud_ms[sent] > 0).all()
    beyond = answers.latency_ms - answers.device_ms - answers.cloud_ms
    assert (beyond[sent] > 0).all()
    assert live.joules.shape == (len(answers),)
    assert live.devices["cloud"] == sent.sum()
    assert live.workers[0]["answered"] == sent.sum()
    assert live.seconds >= answers.time.max()

    assert 5 <= len(watch.snapshots) <= 70
    last = watch.snapshots[-1]
    assert last.answered == len(answers)
    assert (last.edge, last.cloud) == ((~sent).sum(), sent.sum())
    assert last.right == (answers.label == small.truth[answers.row]).sum()
    assert last.labelled == len(answers)
    assert last.done == 1.0
    times = [snapshot.at for snapshot in watch.snapshots]
    assert times == sorted(times)


def test_audits_are_those_of_virtual_time(small, routes):
    """The same instances audited at the same seed, and the same alarms."""
    # Rows of which a device gets many wrong, so that there are alarms.
    wrong = np.flatnonzero(~routes.offload & (routes.local_label != routes.cloud_label))
    rng = np.random.default_rng(0)
    times, device = np.sort(rng.uniform(0, 10, 400)), rng.integers(0, 20, 400)
    row = np.where(rng.random(400) < 0.3, rng.choice(wrong, 400), rng.integers(0, 300, 400))
    chosen = settings(audit=0.5, arrivals=lambda *_: [(times, device, row)])
    live = run(small, chosen, truth=small.truth.astype(np.int64))
    virtual = simulate_fleet(routes, chosen)
    assert_same(live.answers, virtual.answers)
    assert (live.answers.audited == virtual.answers.audited).all()
    # What audits send and receive is part of what their instances cost.
    audited = virtual.answers.audited
    for name in ("up", "payload_up"):
        assert (getattr(live.answers, name) == getattr(virtual.answers, name))[audited].all(), name
    # (but for the digits of the worker's time in a response)
    assert np.abs(live.answers.down - virtual.answers.down)[audited].max() <= 4
    own = (live.answers.route == EDGE).sum()
    assert 0.3 * own < audited.sum() == live.devices["audits"] < 0.7 * own
    counted = {k: v for k, v in virtual.devices.items() if k.startswith("audit")}
    assert {k: live.devices[k] for k in counted} == counted
    assert live.workers[0]["audits"] == virtual.workers[0]["audits"] == audited.sum()
    assert live.alarms == virtual.alarms
    assert len(live.alarms) == 1


def test_rows_in_turn_begin_when_the_one_before_is_answered(small, routes):
    some = np.random.default_rng(0).permutation(len(small.rows)).tolist()
    turns = [some[:30], some[30:50], []]
    chosen = settings(devices=3, in_turn=turns, pause_ms=5.0, link=PROFILES["wifi"])
    live = run(small, chosen)
    virtual = simulate_fleet(routes, chosen)
    assert live.lost == 0
    assert_same(live.answers, virtual.answers, set(COLUMNS) - {"time"})
    assert_same_bytes(live, virtual, routes)
    for device in range(3):
        mine = live.answers.take(live.answers.device == device)
        ends = mine.time + mine.latency_ms / 1000.0
        assert (mine.time[1:] >= ends[:-1] + 0.005 - 1e-6).all()


@pytest.mark.parametrize("policy", ["edge-only", "cloud-only"])
def test_other_policies_take_the_routes_of_virtual_time(small, routes, policy):
    chosen = settings(seconds=3.0, policy=policy)
    live = run(small, chosen, processes=1)
    virtual = simulate_fleet(routes, chosen)
    assert live.lost == 0
    assert live.processes == 1
    assert_same(live.answers, virtual.answers)
    assert len(live.workers) == (policy == "cloud-only")


def test_a_policy_of_ones_own_decides_row_by_row_as_in_virtual_time(small, routes):
    chosen = settings(policy=asks_early, seconds=4.0)
    live = run(small, chosen)
    by_stage = routes_by_stage(small.bundle, small.rows, routes)
    virtual = simulate_fleet(by_stage, chosen)
    found, n = replace(virtual.answers, row=virtual.answers.row % len(small.rows)), len(small.rows)
    assert_same(live.answers, found)
    again = rows_by_stage(live.answers, by_stage)
    local = live.answers.route == EDGE
    assert (again.row[local] == virtual.answers.row[local]).all()
    assert (again.row % n == found.row).all()
    stage, sent = virtual.answers.row // n, ~local
    assert len(set(zip(stage.tolist(), sent.tolist(), strict=True))) == 4
    with pytest.raises(InputError, match="module:function"):
        run(small, settings(policy=lambda point: "stop"))


def test_several_workers_share_the_requests(small):
    chosen = settings(devices=6, workload="periodic:20ms", workers=2)
    live = run(small, chosen)
    assert live.lost == 0
    assert min(worker["answered"] for worker in live.workers) > 0.3 * live.devices["cloud"]


# -- what goes wrong -----------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
def test_a_killed_device_process_loses_its_own_instances_and_is_named(small):
    killed: list[float] = []

    def kill(snapshot: Snapshot) -> None:
        if snapshot.at > 2.0 and not killed:
            killed.append(snapshot.at)
            os.kill(named("device_process")[0], signal.SIGKILL)

    chosen = settings(seconds=6.0, devices=4)
    live = run(small, chosen, watch=Recorder(kill))
    total = sum(len(times) for times, _, _ in chosen.chunks(len(small.rows)))
    assert live.lost > 0
    assert len(live.answers) + live.lost == total
    mine = live.answers.device % 2 == 0
    assert (live.answers.time[mine] < killed[0] + 1.0).all()
    assert live.answers.time[~mine].max() > 5.0
    assert len(live.troubles) == 1
    assert live.troubles[0].startswith("device process 1: ended with status -9; ")
    assert f"; {live.lost} of its " in live.troubles[0]


@pytest.mark.usefixtures("nothing_left")
def test_a_device_process_that_hangs_is_ended(small, monkeypatch):
    monkeypatch.setattr("gatewise_sim.live.device_processes._SILENCE_SECONDS", 2.0)
    hung: list[int] = []

    def stop(snapshot: Snapshot) -> None:
        if snapshot.at > 1.0 and not hung:
            hung.extend(named("device_process")[:1])
            os.kill(hung[0], signal.SIGSTOP)

    live = run(small, settings(seconds=4.0, devices=4), watch=Recorder(stop))
    assert live.lost > 0
    assert "device process 1: says nothing any more" in live.troubles[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_from_outside_leaves_nothing(small, tmp_path, number):
    code = """
        import sys
        from pathlib import Path
        import numpy as np
        from gatewise_sim import FleetSettings, ServiceTime
        from gatewise_sim.live.run import run_live
        from gatewise_sim.fleet.network.profiles import PROFILES
        from gatewise_sim.fleet.network.outages import Outages
        from gatewise_sim.fleet.progress import ProgressListener
        class Watch(ProgressListener):
            def advance(self, snapshot):
                if snapshot.answered:
                    print("under way", flush=True)
        settings = FleetSettings(devices=6, seconds=600, workload="poisson:2/s",
            service=ServiceTime(0.001, 0), link=PROFILES["4g"])
        run_live(Path(sys.argv[1]), np.load(sys.argv[2]), settings, watch=Watch())
    """
    rows = tmp_path / "rows.npy"
    np.save(rows, small.rows)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(small.bundle.path), str(rows)],
        env={**os.environ, "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A terminal's Ctrl-C reaches the whole group: the children have sessions of their own.
        start_new_session=True,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "under way\n", owner.communicate()[1]
        children = below(owner.pid)
        assert len(children) >= 5  # mosquitto and its two guards, a worker, two device processes
        if number == signal.SIGINT:
            os.killpg(owner.pid, number)
        else:
            owner.send_signal(number)
        _, errors = owner.communicate(timeout=60.0)
    finally:
        owner.kill()
        owner.communicate()
    expected = {signal.SIGTERM: 128 + number, signal.SIGKILL: -number, signal.SIGINT: -number}
    assert owner.returncode == expected[number], errors
    assert all_end(children)
    if number != signal.SIGKILL:
        assert list(scratch.iterdir()) == []


def test_it_runs_outside_of_the_main_thread_too(small):
    done: list[LiveRun] = []
    chosen = settings(devices=2, seconds=1.0, policy="edge-only")
    thread = threading.Thread(target=lambda: done.append(run(small, chosen)))
    thread.start()
    thread.join(120.0)
    assert done[0].lost == 0


def test_rows_that_do_not_fit_are_refused(small):
    with pytest.raises(InputError, match="rows of shape"):
        run_live(small.bundle.path, small.rows[:, :5], settings())
    with pytest.raises(InputError, match="row 400 of a table of 300"):
        run(small, settings(devices=1, in_turn=[[0, 400]]))


@pytest.mark.usefixtures("nothing_left")
def test_a_broker_that_is_not_there_is_named(small):
    with pytest.raises((RunError, LinkError), match=r"127\.0\.0\.1:9"):
        run(small, settings(devices=2, seconds=1.0), broker="mqtt://127.0.0.1:9")


# -- size ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
def test_five_hundred_devices_end_in_time_with_nothing_lost_and_nothing_left(small, routes):
    chosen = settings(devices=500, seconds=10.0, workload="periodic:5s", link=PROFILES["wifi"])
    began = time.monotonic()
    live = run(small, chosen)
    took = time.monotonic() - began
    assert live.lost == 0
    assert live.troubles == []
    virtual = simulate_fleet(routes, chosen)
    assert_same(live.answers, virtual.answers)
    assert len(live.answers) == 1000
    assert live.seconds <= 10.0 + 10.0
    # Within the run's own limit: getting ready, the arrivals, the last deadline, its grace.
    assert took < 160.0 + 10.0 + 10.0 + 20.0
