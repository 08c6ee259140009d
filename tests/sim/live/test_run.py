"""Tests of live runs with a real broker, ``gatewise cloud`` and ``gatewise edge``."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from gatewise_edge.errors import LinkError
from gatewise_sim.errors import RunError
from gatewise_sim.fleet.results import CLOUD, EDGE
from tests.sim.live.runs import COLUMNS, assert_same, run, scenario, twin
from tests.support.processes import all_end, below, named

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("nothing_left")
def test_a_live_fleet_decides_and_sends_as_virtual_time(small, table):
    progress: list[tuple[float, int]] = []
    chosen = scenario(link="wifi")
    live = run(small, table, chosen, watch=lambda now, n: progress.append((now, n)))
    answers = live.fleet.answers
    virtual = twin(table, chosen, live)
    assert (live.fleet.lost, live.troubles, live.broker) == (0, [], "mosquitto")
    assert_same(answers, virtual.answers)
    cloud = answers.route == CLOUD
    assert set(answers.route.tolist()) == {EDGE, CLOUD}
    assert (cloud == table.offload[answers.row]).all()
    # The latency of a local answer is the device's, that of the cloud has a network's part.
    assert (answers.device_ms[~cloud] == answers.latency_ms[~cloud].astype(np.float32)).all()
    assert (answers.cloud_ms[cloud] > 0).all()
    assert (answers.latency_ms - answers.device_ms - answers.cloud_ms)[cloud].min() > 0
    # Bytes are the devices' own counts; copies come of a busy machine.
    assert answers.payload_up.sum() == live.fleet.counts["bytes_up"]
    assert answers.payload_down.sum() == live.fleet.counts["bytes_down"]
    if not live.fleet.counts["retries"]:
        for name in ("up", "down"):
            total = getattr(answers, name).sum()
            assert total == pytest.approx(getattr(virtual.answers, name).sum(), rel=0.02)
    assert live.fleet.counts["cloud"] == live.fleet.workers["answered"] == cloud.sum()
    assert live.timings.edge_ms[0] > 0
    assert live.timings.run_us > 0
    assert 0 < progress[-1][1] <= len(answers)
    assert progress == sorted(progress)


@pytest.mark.parametrize("policy", ["edge-only", "cloud-only"])
def test_other_policies_take_the_routes_of_virtual_time(small, table, policy):
    chosen = scenario(time="3s", policy=policy, devices=2)
    live = run(small, table, chosen)
    assert live.fleet.lost == 0
    routes = live.fleet.answers.route
    assert (routes == (EDGE if policy == "edge-only" else CLOUD)).all()
    assert_same(live.fleet.answers, twin(table, chosen, live).answers, set(COLUMNS) - {"reason"})


def test_several_workers_share_the_requests_and_audits_are_counted(small, table):
    chosen = scenario(devices=3, workload="periodic:50ms", time="3s", workers=2, audit=0.5)
    live = run(small, table, chosen)
    assert live.fleet.lost == 0
    own = int((live.fleet.answers.route == EDGE).sum())
    assert 0.3 * own < live.fleet.workers["audits"] < 0.7 * own


# -- what goes wrong -----------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
def test_a_killed_device_loses_its_own_instances_and_is_named(small, table):
    killed: list[float] = []

    def kill(now: float, n_answers: int) -> None:
        if now > 2.0 and not killed:
            killed.append(now)
            os.kill(named("gatewise edge")[0], signal.SIGKILL)

    chosen = scenario(devices=2)
    live = run(small, table, chosen, watch=kill)
    n_instances = len(chosen.arrivals(len(table)).time)
    assert live.fleet.lost > 0
    assert len(live.fleet.answers) + live.fleet.lost == n_instances
    assert len(live.troubles) == 1
    assert live.troubles[0].startswith("device ")
    assert live.troubles[0].endswith("its instances are lost")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_from_outside_leaves_nothing(small, tmp_path, number):
    code = """
        import sys
        from pathlib import Path
        from gatewise_sim import Scenario, simulate
        from gatewise_sim.experiment import run
        import numpy as np
        run._RunProgress.__call__ = lambda self, now, n: n and print("under way", flush=True)
        scenario = Scenario(devices=2, time="10min", workload="poisson:2/s", link="4g",
            engine="live")
        simulate(Path(sys.argv[1]), np.load(sys.argv[2]), scenario=scenario)
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
        # A terminal's Ctrl-C reaches the whole group: the children have groups of their own.
        start_new_session=True,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "under way\n", owner.communicate()[1]
        children = below(owner.pid)
        assert len(children) >= 5  # mosquitto, a worker and their guards, two devices
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


@pytest.mark.usefixtures("nothing_left")
def test_a_broker_that_is_not_there_is_named(small, table):
    with pytest.raises((RunError, LinkError), match=r"127\.0\.0\.1:9"):
        run(small, table, scenario(devices=2, time="1s", broker="mqtt://127.0.0.1:9"))
