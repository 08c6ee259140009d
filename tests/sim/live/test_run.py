"""Whole runs: real brokers, workers and devices."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_cloud.broker.broker import EmbeddedBroker, MosquittoBroker, find_mosquitto
from gatewise_edge.errors import LinkError
from gatewise_sim.errors import RunError
from gatewise_sim.fleet.answers import REASON
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.network.profiles import PROFILES
from gatewise_sim.fleet.progress import Listeners, Snapshot
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import ServiceTime
from gatewise_sim.live.checks import check_live
from gatewise_sim.live.run import LiveRun, run_live

pytestmark = pytest.mark.slow
needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="needs mosquitto")

EDGE, CLOUD, FALLBACK = range(3)
COLUMNS = ("time", "device", "row", "route", "stage", "label", "cost", "feature_cost", "reason")


@pytest.fixture(scope="module")
def routes(small) -> Routes:
    return Routes.from_bundle(small.bundle, small.rows, small.truth)


def settings(**changes) -> FleetSettings:
    common = {
        "devices": 20,
        "seconds": 10.0,
        "deadline_ms": 10_000.0,
        "service": ServiceTime(0.001, 0.0),
        "seed": 3,
    }
    if not {"in_turn", "arrivals"} & set(changes):
        common["workload"] = "poisson:1/s"
    return FleetSettings(**{**common, **changes})


class Looker(Listeners):
    """A watch that keeps what it is told, and may act on it."""

    def __init__(self, act: Callable[[Snapshot], None] | None = None) -> None:
        super().__init__()
        self.snapshots: list[Snapshot] = []
        self.faults: list[tuple[str, bool, float]] = []
        self._act = act

    def advance(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)
        if self._act is not None:
            self._act(snapshot)

    def fault(self, what: str, up: bool, at: float) -> None:
        self.faults.append((what, up, at))


def run(small, chosen: FleetSettings, **options) -> LiveRun:
    return run_live(small.bundle.path, small.rows, chosen, **options)


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
    told = np.array([routes.sizes.response(n) for n in us])
    assert (a.payload_down[once] == told).all()
    usual = told == b.payload_down[once]
    assert (a.down[once] - a.payload_down[once] == b.down[once] - b.payload_down[once])[usual].all()


# -- a run in which nothing goes wrong -----------------------------------------------------


@needs_mosquitto
def test_a_live_fleet_decides_and_sends_exactly_as_virtual_time(small, routes, processes):
    before = processes.below()
    look = Looker()
    chosen = settings()
    live = run(small, chosen, truth=small.truth.astype(np.int64), watch=look)
    assert processes.below() == before
    virtual = simulate_fleet(routes, chosen)
    assert live.lost == 0
    assert live.troubles == []
    assert live.broker == "mosquitto"
    assert live.processes == 2
    for name in COLUMNS:
        assert (getattr(live.answers, name) == getattr(virtual.answers, name)).all(), name
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

    assert 5 <= len(look.snapshots) <= 70
    last = look.snapshots[-1]
    assert last.answered == len(answers)
    assert (last.edge, last.cloud) == ((~sent).sum(), sent.sum())
    assert last.right == (answers.label == small.truth[answers.row]).sum()
    assert last.judged == len(answers)
    assert last.done == 1.0
    assert last.in_flight == 0
    assert last.workers_up == 1
    assert last.devices_up == 20
    times = [snapshot.at for snapshot in look.snapshots]
    assert times == sorted(times)


@needs_mosquitto
def test_rows_in_turn_begin_when_the_one_before_is_answered(small, routes):
    some = np.random.default_rng(0).permutation(len(small.rows)).tolist()
    turns = [some[:30], some[30:50], []]
    chosen = settings(devices=3, in_turn=turns, pause_ms=5.0, link=PROFILES["wifi"])
    live = run(small, chosen)
    virtual = simulate_fleet(routes, chosen)
    assert live.lost == 0
    for name in set(COLUMNS) - {"time"}:
        assert (getattr(live.answers, name) == getattr(virtual.answers, name)).all(), name
    assert_same_bytes(live, virtual, routes)
    for device in range(3):
        mine = live.answers.take(live.answers.device == device)
        ends = mine.time + mine.latency_ms / 1000.0
        assert (mine.time[1:] >= ends[:-1] + 0.005 - 1e-6).all()


@needs_mosquitto
@pytest.mark.parametrize("policy", ["edge-only", "cloud-only"])
def test_other_policies_take_the_routes_of_virtual_time(small, routes, policy):
    chosen = settings(seconds=3.0, policy=policy)
    live = run(small, chosen, processes=1)
    virtual = simulate_fleet(routes, chosen)
    assert live.lost == 0
    assert live.processes == 1
    for name in COLUMNS:
        assert (getattr(live.answers, name) == getattr(virtual.answers, name)).all(), name
    assert len(live.workers) == (policy == "cloud-only")


@needs_mosquitto
def test_several_workers_and_a_pacer(small):
    chosen = settings(devices=6, workload="periodic:20ms", pace="offload_rate=0.2", workers=2)
    live = run(small, chosen)
    assert live.lost == 0
    assert live.answers.paced.mean() > 0.5
    paced = live.answers.take(live.answers.paced)
    assert np.mean(paced.route != EDGE) == pytest.approx(0.2, abs=0.06)
    assert min(worker["answered"] for worker in live.workers) > 0.3 * live.devices["cloud"]


def test_the_embedded_broker_and_somebodys(small, monkeypatch, processes):
    before = processes.below()
    chosen = settings(devices=3, seconds=2.0)
    with EmbeddedBroker() as broker:
        with pytest.raises(InputError, match="does not serve shared subscriptions"):
            check_live(settings(workers=2), broker=broker.url)
        live = run(small, chosen, broker=broker.url)
        assert live.broker == broker.url
        assert live.lost == 0
    monkeypatch.setattr("gatewise_sim.live.brokers.find_mosquitto", lambda: None)
    live = run(small, settings(devices=3, seconds=4.0, outages=Outages.parse("broker:+1s-+2s")))
    assert live.broker == "embedded"
    assert live.lost == 0
    assert [(f["what"], f["up"]) for f in live.faults] == [("broker", False), ("broker", True)]
    assert processes.below() == before


# -- outages -------------------------------------------------------------------------------


def outage(small, text: str, *, seconds: float = 12.0, **changes) -> tuple[LiveRun, list]:
    look = Looker()
    chosen = settings(
        **{
            "seconds": seconds,
            "workload": "periodic:100ms",
            "devices": 6,
            "deadline_ms": 600.0,
            "outages": Outages.parse(text),
            **changes,
        }
    )
    live = run(small, chosen, watch=look)
    assert live.lost == 0
    assert live.troubles == []
    assert len(live.answers) == len(next(iter(chosen.chunks(len(small.rows))))[0])
    told = {(what, up, round(at, 3)) for what, up, at in look.faults}
    assert {tuple(fault.values()) for fault in live.faults} <= told
    assert look.snapshots[-1].done == 1.0
    return live, [tuple(fault.values()) for fault in live.faults]


def late(live: LiveRun) -> float:
    """Seconds by which an instance began behind its time, at most: this machine may be busy."""
    return live.behind_ms["max"] / 1000.0


def fallbacks(live: LiveRun, begin: float, end: float) -> tuple[int, int]:
    """Answers by the cloud and fallbacks among the instances that came then."""
    here = (live.answers.time >= begin) & (live.answers.time < end)
    routes = live.answers.route[here]
    return int((routes == CLOUD).sum()), int((routes == FALLBACK).sum())


@needs_mosquitto
@pytest.mark.parametrize(
    ("what", "named"), [("cloud", {"cloud"}), ("workers:2", {"worker 1", "worker 2"})]
)
def test_killed_workers_come_back(small, what, named):
    live, faults = outage(small, f"{what}:+3s-+5s", seconds=16.0, workers=2)
    assert {name for name, _, _ in faults} == named
    downs = [at for _, up, at in faults if not up]
    ups = [at for _, up, at in faults if up]
    assert len(downs) == len(ups) == len(named)
    assert min(downs) >= 3.0
    assert min(ups) >= 5.0
    assert fallbacks(live, 0, min(downs) - 1.0)[0] > 0
    # What was on its way to a device in the last moment still comes there.
    assert fallbacks(live, max(downs) + 0.3, min(ups) - 1.2 - late(live))[0] == 0
    assert fallbacks(live, max(downs), min(ups))[1] > 0
    breaker = 3.0  # its pause before it tries again
    assert fallbacks(live, max(ups) + breaker, 16.0)[0] > 0
    assert [worker["restarts"] for worker in live.workers] == [1, 1]
    why = live.answers.reason[live.answers.route == FALLBACK]
    assert set(why.tolist()) <= {REASON[r] for r in ("timeout", "breaker-open", "full")}


@needs_mosquitto
def test_one_of_two_workers_is_down(small):
    live, faults = outage(small, "workers:1:+2s-+4s", seconds=8.0, workers=2)
    assert [name for name, _, _ in faults] == ["worker 1"] * 2
    assert fallbacks(live, 2.5, 4.0)[0] > 0
    assert ["restarts" in worker for worker in live.workers] == [True, False]


@needs_mosquitto
def test_a_killed_broker_comes_back_on_its_port(small):
    live, faults = outage(small, "broker:+3s-+4s", seconds=16.0)
    assert [(what, up) for what, up, _ in faults] == [("broker", False), ("broker", True)]
    down, up = (at for _, _, at in faults)
    assert fallbacks(live, 0, down - 1.0)[0] > 0
    assert fallbacks(live, down + 0.3, up - late(live))[0] == 0
    why = live.answers.reason[live.answers.route == FALLBACK]
    assert REASON["link-down"] in why
    # Each device waits before it connects again, at first about a second, twice as long each time.
    assert fallbacks(live, up + 6.0, 16.0)[0] > 0
    assert live.devices["cloud"] == (live.answers.route == CLOUD).sum()


@needs_mosquitto
def test_a_link_falls_silent(small):
    live, faults = outage(small, "link:+3s-+5800ms", seconds=11.0, link=PROFILES["wifi"])
    assert [(what, up) for what, up, _ in faults] == [("link", False), ("link", True)]
    # What was on its way in the last moment may have come through.
    assert fallbacks(live, 3.1, 5.1 - late(live))[0] == 0
    assert fallbacks(live, 3.1, 5.8)[1] > 0
    assert fallbacks(live, 9.0, 11.0)[0] > 0
    assert live.devices["late"] > 0
    fell = live.answers.take(live.answers.route == FALLBACK)
    # Responses that came too late are paid for by the instances that they are about.
    assert (fell.payload_down > 0).any()


@needs_mosquitto
def test_a_link_that_is_down_at_first_was_up_while_devices_connected(small):
    live, _ = outage(small, "link:+0s-+2s", seconds=5.0, link=PROFILES["wifi"])
    assert fallbacks(live, 0.1, 1.3 - late(live))[0] == 0
    assert fallbacks(live, 0.1, 2.0)[1] > 0
    assert fallbacks(live, 4.0, 5.0)[0] > 0
    assert REASON["link-down"] not in live.answers.reason


@needs_mosquitto
def test_outages_that_overlap_or_never_end(small):
    live, faults = outage(small, "cloud:+2s-+60s,broker:+3s-+4s", seconds=6.0)
    assert [what for what, _, _ in faults] == ["cloud", "broker", "broker"]
    assert fallbacks(live, 2.5, 6.0)[0] == 0
    assert live.workers == [{}]


# -- what goes wrong -----------------------------------------------------------------------


@needs_mosquitto
def test_a_killed_device_process_loses_its_own_instances_and_is_named(small, processes):
    before = processes.below()
    killed: list[float] = []

    def kill(snapshot: Snapshot) -> None:
        if snapshot.at > 2.0 and not killed:
            killed.append(snapshot.at)
            os.kill(processes.named("device_process")[0], signal.SIGKILL)

    chosen = settings(seconds=6.0, devices=4)
    live = run(small, chosen, watch=Looker(kill))
    assert processes.below() == before
    total = sum(len(times) for times, _, _ in chosen.chunks(len(small.rows)))
    assert live.lost > 0
    assert len(live.answers) + live.lost == total
    mine = live.answers.device % 2 == 0
    assert (live.answers.time[mine] < killed[0] + 1.0).all()
    assert live.answers.time[~mine].max() > 5.0
    assert len(live.troubles) == 1
    assert live.troubles[0].startswith("device process 1: ended with status -9; ")
    assert f"; {live.lost} of its " in live.troubles[0]


@needs_mosquitto
def test_a_device_process_that_hangs_is_ended(small, processes, monkeypatch):
    monkeypatch.setattr("gatewise_sim.live.device_processes._SILENCE_SECONDS", 2.0)
    hung: list[int] = []

    def stop(snapshot: Snapshot) -> None:
        if snapshot.at > 1.0 and not hung:
            hung.extend(processes.named("device_process")[:1])
            os.kill(hung[0], signal.SIGSTOP)

    before = processes.below()
    live = run(small, settings(seconds=4.0, devices=4), watch=Looker(stop))
    assert processes.below() == before
    assert live.lost > 0
    assert "device process 1: says nothing any more" in live.troubles[0]


@needs_mosquitto
def test_a_worker_and_a_broker_that_die_unasked_are_named(small, processes):
    done: list[str] = []
    others = set(processes.below())  # a broker that tests share must live

    def kill(snapshot: Snapshot) -> None:
        if snapshot.at > 1.0 and not done:
            done.append("x")
            os.kill(processes.named("service.worker_process")[0], signal.SIGKILL)
            program = f"{find_mosquitto()} "
            started = set(processes.below()) - others
            (broker,) = (p for p in started if processes.command(p).startswith(program))
            os.kill(broker, signal.SIGKILL)

    live = run(small, settings(seconds=4.0, devices=4, deadline_ms=300.0), watch=Looker(kill))
    assert live.lost == 0
    assert any("the mosquitto broker ended" in trouble for trouble in live.troubles)
    assert any("cloud worker 1: ended with status -9" in trouble for trouble in live.troubles)
    assert live.faults == []


@needs_mosquitto
def test_a_worker_that_does_not_start_leaves_nothing(small, processes, monkeypatch, tmp_path):
    before = processes.below()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(
        "gatewise_sim.live.deployment._worker_options",
        lambda settings: {"public_key": "nowhere.pub"},
    )
    with pytest.raises(RunError, match=r"cloud worker 1: .*nowhere\.pub"):
        run(small, settings(devices=2))
    assert processes.below() == before
    assert list(tmp_path.iterdir()) == []


@needs_mosquitto
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_from_outside_leaves_nothing(small, processes, tmp_path, number):
    code = """
        import sys
        from pathlib import Path
        import numpy as np
        from gatewise_sim import FleetSettings, ServiceTime
        from gatewise_sim.live.run import run_live
        from gatewise_sim.fleet.network.profiles import PROFILES
        from gatewise_sim.fleet.network.outages import Outages
        from gatewise_sim.fleet.progress import Listeners
        class ProgressListener(Listeners):
            def advance(self, snapshot):
                if snapshot.answered:
                    print("under way", flush=True)
        settings = FleetSettings(devices=6, seconds=600, workload="poisson:2/s",
            service=ServiceTime(0.001, 0), link=PROFILES["4g"])
        run_live(Path(sys.argv[1]), np.load(sys.argv[2]), settings, watch=ProgressListener())
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
        children = processes.below(owner.pid)
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
    assert processes.eventually(lambda: not any(processes.command(p) for p in children))
    if number != signal.SIGKILL:
        assert list(scratch.iterdir()) == []


def test_it_runs_outside_of_the_main_thread_too(small):
    done: list[LiveRun] = []
    chosen = settings(devices=2, seconds=1.0, policy="edge-only")
    thread = threading.Thread(target=lambda: done.append(run(small, chosen)))
    thread.start()
    thread.join(120.0)
    assert done[0].lost == 0


@pytest.mark.parametrize(
    ("changes", "broker", "error", "message"),
    [
        ({"devices": 70_000}, None, InputError, "devices is 70000"),
        (
            {"outages": Outages.parse("broker:+1s-+2s")},
            "mqtt://127.0.0.1:9",
            InputError,
            "leave out its URL",
        ),
        ({"link": PROFILES["4g"]}, "mqtts://127.0.0.1:9", InputError, "in front of mqtt://"),
        ({}, "http://x", InputError, "mqtt://"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(changes, broker, error, message):
    with pytest.raises(error, match=message):
        check_live(settings(**changes), broker=broker)


def test_the_embedded_broker_serves_one_worker(monkeypatch):
    monkeypatch.setattr("gatewise_sim.live.checks.find_mosquitto", lambda: None)
    with pytest.raises(InputError, match="install mosquitto, or run one worker"):
        check_live(settings(workers=2))


def test_rows_that_do_not_fit_are_refused(small):
    with pytest.raises(InputError, match="rows of shape"):
        run_live(small.bundle.path, small.rows[:, :5], settings())
    with pytest.raises(InputError, match="row 400 of a table of 300"):
        run(small, settings(devices=1, in_turn=[[0, 400]]))


def test_a_broker_that_is_not_there_is_named(small, processes):
    before = processes.below()
    with pytest.raises((RunError, LinkError), match=r"127\.0\.0\.1:9"):
        run(small, settings(devices=2, seconds=1.0), broker="mqtt://127.0.0.1:9")
    assert processes.below() == before


# -- size ----------------------------------------------------------------------------------


@needs_mosquitto
def test_five_hundred_devices_end_in_time_with_nothing_lost_and_nothing_left(
    small, routes, processes
):
    before = processes.below()
    chosen = settings(devices=500, seconds=20.0, workload="periodic:5s", link=PROFILES["wifi"])
    began = time.monotonic()
    live = run(small, chosen)
    took = time.monotonic() - began
    assert processes.below() == before
    assert live.lost == 0
    assert live.troubles == []
    virtual = simulate_fleet(routes, chosen)
    for name in COLUMNS:
        assert (getattr(live.answers, name) == getattr(virtual.answers, name)).all(), name
    assert len(live.answers) == 2000
    assert live.seconds <= 20.0 + 10.0
    # Within the run's own limit: getting ready, the arrivals, the last deadline, its grace.
    assert took < 160.0 + 20.0 + 10.0 + 20.0


@needs_mosquitto
def test_somebodys_broker_forgets_the_devices(small):
    with MosquittoBroker() as broker:
        run(small, settings(devices=5, seconds=1.0), broker=broker.url)
        retained = retained_topics(broker.url)
    assert retained == []


def retained_topics(url: str) -> list[str]:
    from gatewise_cloud.broker.mqtt_client import close_client, open_client
    from gatewise_edge.link.mqtt import Endpoint, make_client

    found: list[str] = []
    endpoint, done = Endpoint(url), threading.Event()
    client = make_client(endpoint, "looker", max_inflight=1)
    client.on_connect = lambda *_: client.subscribe([("#", 0), ("last", 0)])
    client.on_subscribe = lambda *_: client.publish("last", b"")
    client.on_message = lambda _c, _u, m: done.set() if m.topic == "last" else found.append(m.topic)
    open_client(client, endpoint)
    client.loop_start()
    try:
        assert done.wait(30.0)
    finally:
        close_client(client)
    return found
