import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_cloud.broker.broker import MosquittoBroker, find_mosquitto
from gatewise_cloud.broker.client import open_client
from gatewise_edge.errors import LinkError
from gatewise_edge.link.mqtt import Endpoint, make_client
from gatewise_sim.errors import RunError
from gatewise_sim.fleet.network.proxy import PROFILES
from gatewise_sim.live import demo_runs as live
from gatewise_sim.report.legs import Expected, compare, measure

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="needs mosquitto")


def quiet(done: float, total: float, what: str = "") -> None:
    """Progress that nobody looks at."""


def settings(**changes) -> live.Settings:
    common = {"devices": 2, "workers": 1, "broker": None, "deadline_ms": 5000.0, "seed": 0}
    return live.Settings(**{**common, "link": PROFILES["none"], **changes})


class Packed:
    """A small system, its bundle, and rows that it has not seen."""

    def __init__(self, folder: Path) -> None:
        from sklearn.ensemble import ExtraTreesClassifier

        from gatewise.costs import CloudPrices
        from gatewise_export import pack
        from gatewise_training import methods
        from gatewise_training.data import datasets

        data = datasets.load("digits")
        train, test = np.arange(0, 1200, 2), np.arange(1, 200, 2)
        f0 = ExtraTreesClassifier(30, random_state=0).fit(data.X[train], data.y[train])
        self.system = methods.cascade(
            "staged",
            high_cost_model=f0,
            cloud_prices=CloudPrices(request=0.3, byte=0.01),
            n_stages=2,
            families=("linear",),
            offload_rate=0.4,
            random_state=0,
        ).fit(data.X[train], data.y[train])
        self.rows, self.truth = data.X[test], data.y[test]
        self.bundle = pack(self.system, folder / "bundle", sample=data.X[train[:16]])

    def expected(self, n: int) -> Expected:
        return Expected(
            truth=self.truth[:n],
            labels=self.system.predict(self.rows[:n]),
            offload=self.system.offload(self.rows[:n]),
            cost=self.system.cost(self.rows[:n]),
            cloud_labels=self.system.high_cost_model_.labels(self.rows[:n]),
        )


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Packed:
    return Packed(tmp_path_factory.mktemp("live"))


def test_real_devices_answer_exactly_as_the_estimator(packed, processes):
    before = processes.below()
    run = live.run(packed.bundle.path, packed.rows, settings(link=PROFILES["wifi"]), quiet)
    assert processes.below() == before
    expected = packed.expected(len(packed.rows))
    assert 0 < expected.offload.sum() < len(packed.rows)
    got = measure(run.legs, packed.truth, packed.bundle.manifest)
    assert got["answers"]["lost"] == got["answers"]["fallback"] == 0
    compared = compare(run.legs, expected)
    assert compared["compared"] == len(packed.rows)
    assert set(compared["differing"].values()) == {0}
    assert got["accuracy"]["system"] == compared["accuracy"]["system"]
    assert got["accuracy"]["cloud_only"] == compared["accuracy"]["cloud_only"]
    assert got["cost"]["full"]["system"] == compared["cost"]
    assert got["offload_rate"] == compared["offload_rate"]
    paper = packed.system.cost(packed.rows, accounting="paper")
    prices = packed.system.cloud_prices_.of_offload(64) * expected.offload
    assert got["cost"]["paper"]["system"] == pytest.approx((paper - prices).mean(), rel=1e-12)
    assert got["passes"]["edge_only"]["edge"] == len(packed.rows)
    assert got["passes"]["cloud_only"]["cloud"] == len(packed.rows)
    assert got["bytes"]["cloud_only"] > 64 * 4 * len(packed.rows)
    assert got["traffic"]["edge_only"]["up"] == 0
    assert run.workers[0]["answered"] >= len(packed.rows) + expected.offload.sum()


@needs_mosquitto
def test_a_run_leaves_nothing_on_somebodys_broker(packed):
    retained: list[str] = []
    with MosquittoBroker() as broker:
        live.run(packed.bundle.path, packed.rows[:4], settings(broker=broker.url), quiet)
        endpoint = Endpoint(broker.url)
        client = make_client(endpoint, "looker", max_inflight=1)
        done = threading.Event()
        client.on_connect = lambda *_: client.subscribe([("#", 0), ("last", 0)])
        # retained messages come before what is published after the subscription
        client.on_subscribe = lambda *_: client.publish("last", b"")
        client.on_message = lambda _c, _u, m: (
            done.set() if m.topic == "last" else retained.append(m.topic)
        )
        open_client(client, endpoint)
        client.loop_start()
        try:
            assert done.wait(30.0)
        finally:
            client.disconnect()
            client.loop_stop()
    assert retained == []


def test_a_device_process_loads_what_a_device_has():
    code = (
        "import sys, gatewise_sim.live.device_process; "
        "print(*{m.split('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"sklearn", "scipy", "lightgbm", "onnx", "skl2onnx", "matplotlib", "pandas", "jinja2"}
    assert heavy.isdisjoint(done.stdout.split())


def test_more_devices_than_processes_or_rows(packed):
    run = live.run(packed.bundle.path, packed.rows[:6], settings(devices=9), quiet)
    assert run.processes == 4
    assert all(leg.lost == 0 for leg in run.legs.values())
    assert len({o.device for o in run.legs["system"].outcomes}) == 6


@needs_mosquitto
def test_two_workers_share_the_load_of_a_real_broker(packed):
    with MosquittoBroker() as broker:
        chosen = settings(broker=broker.url, workers=2)
        live.check(chosen)
        run = live.run(packed.bundle.path, packed.rows, chosen, quiet)
    assert set(compare(run.legs, packed.expected(len(packed.rows)))["differing"].values()) == {0}
    assert all(leg.lost == 0 and leg.routes["fallback"] == 0 for leg in run.legs.values())
    assert len(run.workers) == 2
    assert min(counts["answered"] for counts in run.workers) > 20


def test_a_killed_worker_costs_accuracy_but_no_answer(packed, processes):
    def kill(done: float, total: float, what: str = "") -> None:
        if what == "cloud-only":
            for pid in processes.below():
                if "gatewise_sim.live.run_with_parent" in processes.command(pid):
                    os.kill(pid, signal.SIGKILL)

    chosen = settings(deadline_ms=400.0, link=PROFILES["4g"])
    run = live.run(packed.bundle.path, packed.rows[:16], chosen, kill)
    assert all(leg.lost == 0 for leg in run.legs.values())
    assert run.legs["cloud_only"].routes["fallback"] > 0
    assert run.workers == [{}]
    assert run.troubles == ["cloud worker 1: ended with status -9"]


def test_a_killed_device_process_loses_its_own_rows_only(packed, processes):
    killed: list[int] = []

    def kill(done: float, total: float, what: str = "") -> None:
        if what == "cloud-only" and not killed:
            children = processes.below()
            killed.extend(p for p in children if "device_process" in processes.command(p))
            os.kill(killed[0], signal.SIGKILL)

    chosen = settings(link=PROFILES["4g"])
    run = live.run(packed.bundle.path, packed.rows[:20], chosen, kill)
    legs = run.legs
    assert legs["system"].lost == legs["edge_only"].lost == 0
    assert 0 < legs["cloud_only"].lost <= 10
    assert "device process" in run.troubles[0]


def test_a_worker_that_cannot_start_says_why_and_leaves_nothing(tmp_path, packed, processes):
    before = processes.below()
    with pytest.raises(RunError, match=r"cloud worker 1: .*nowhere"):
        live.run(tmp_path / "nowhere", packed.rows, settings(), quiet)
    assert processes.below() == before


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"workers": 2}, InputError, "embedded broker serves one worker"),
        ({"devices": 0}, InputError, "at least one device"),
        ({"broker": "mqtt://127.0.0.1:9"}, LinkError, "127.0.0.1:9 cannot be reached"),
        ({"broker": "http://x"}, InputError, "mqtt"),
        (
            {"broker": "mqtts://127.0.0.1:9", "link": PROFILES["3g"]},
            InputError,
            "a link is simulated in front of mqtt://",
        ),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(changes, error, message):
    with pytest.raises(error, match=message):
        live.check(settings(**changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path, number, status, processes):
    arguments = ["--dataset", "iris", "--method", "confidence", "--link", "satellite"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    demo = subprocess.Popen(
        [sys.executable, "-m", "gatewise", "demo", *arguments, "--out", "out"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children: set[int] = set()

    def routing() -> bool:
        there = bool(processes.named("device_process", demo.pid))
        children.update(processes.below(demo.pid))
        return there or demo.poll() is not None

    try:
        assert processes.eventually(routing)
        demo.send_signal(number)
        out, err = demo.communicate(timeout=processes.seconds)
    finally:
        demo.kill()
        demo.communicate()
    assert demo.returncode == status, err
    assert out == ""
    assert len(children) >= 3  # broker, worker, device processes
    assert processes.eventually(lambda: not any(processes.command(p) for p in children))
    assert not (tmp_path / "out").exists()
    assert list(scratch.iterdir()) == []
