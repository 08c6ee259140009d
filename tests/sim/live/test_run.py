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
def test_live_fleet_has_the_answers_and_bytes_of_virtual_time(small, table):
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
    # a local answer takes the device's time only; a cloud's answer also takes network time
    assert (answers.device_ms[~cloud] == answers.latency_ms[~cloud].astype(np.float32)).all()
    assert (answers.cloud_ms[cloud] > 0).all()
    assert (answers.latency_ms - answers.device_ms - answers.cloud_ms)[cloud].min() > 0
    # the bytes are counted by the devices; a busy machine may cause retries, which add bytes
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
def test_policy_has_the_routes_of_virtual_time(small, table, policy):
    chosen = scenario(time="3s", policy=policy, devices=2)
    live = run(small, table, chosen)
    assert live.fleet.lost == 0
    routes = live.fleet.answers.route
    assert (routes == (EDGE if policy == "edge-only" else CLOUD)).all()
    assert_same(live.fleet.answers, twin(table, chosen, live).answers, set(COLUMNS) - {"reason"})


def test_two_workers_share_the_requests_and_count_the_audits(small, table):
    chosen = scenario(devices=3, workload="periodic:50ms", time="3s", workers=2, audit=0.5)
    live = run(small, table, chosen)
    assert live.fleet.lost == 0
    n_local = int((live.fleet.answers.route == EDGE).sum())
    assert 0.3 * n_local < live.fleet.workers["audits"] < 0.7 * n_local


# -- failures -------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
def test_killed_device_is_reported_and_loses_only_its_instances(small, table):
    kill_times: list[float] = []

    def kill(now: float, n_answers: int) -> None:
        if now > 2.0 and not kill_times:
            kill_times.append(now)
            os.kill(named("gatewise edge")[0], signal.SIGKILL)

    chosen = scenario(devices=2)
    live = run(small, table, chosen, watch=kill)
    n_instances = len(chosen.arrivals(len(table)).time)
    assert live.fleet.lost > 0
    assert len(live.fleet.answers) + live.fleet.lost == n_instances
    assert len(live.troubles) == 1
    assert live.troubles[0].startswith("device ")
    assert live.troubles[0].endswith("its instances are lost")


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_run_leaves_no_process_and_no_file(small, tmp_path, signal_number):
    code = """
        import sys
        from pathlib import Path
        from gatewise_sim import Scenario, simulate
        from gatewise_sim.experiment import run
        import numpy as np
        run._RunProgress.__call__ = lambda self, now, n: n and print("started", flush=True)
        scenario = Scenario(devices=2, time="10min", workload="poisson:2/s", link="4g",
            engine="live")
        simulate(Path(sys.argv[1]), np.load(sys.argv[2]), scenario=scenario)
    """
    rows = tmp_path / "rows.npy"
    np.save(rows, small.rows)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    simulation = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(small.bundle.path), str(rows)],
        env={**os.environ, "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C in a terminal signals the whole group, and each child has its own group
        start_new_session=True,
    )
    try:
        assert simulation.stdout is not None
        assert simulation.stdout.readline() == "started\n", simulation.communicate()[1]
        children = below(simulation.pid)
        assert len(children) >= 5  # mosquitto, a worker and their guards, two devices
        if signal_number == signal.SIGINT:
            os.killpg(simulation.pid, signal_number)
        else:
            simulation.send_signal(signal_number)
        _, errors = simulation.communicate(timeout=60.0)
    finally:
        simulation.kill()
        simulation.communicate()
    expected = {
        signal.SIGTERM: 128 + signal_number,
        signal.SIGKILL: -signal_number,
        signal.SIGINT: -signal_number,
    }
    assert simulation.returncode == expected[signal_number], errors
    assert all_end(children)
    if signal_number != signal.SIGKILL:
        assert list(scratch.iterdir()) == []


@pytest.mark.usefixtures("nothing_left")
def test_unreachable_broker_is_named_in_the_error(small, table):
    with pytest.raises((RunError, LinkError), match=r"127\.0\.0\.1:9"):
        run(small, table, scenario(devices=2, time="1s", broker="mqtt://127.0.0.1:9"))
