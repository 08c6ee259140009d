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
from tests.sim.live.runs import (
    COLUMNS,
    assert_same_answers,
    make_live_scenario,
    run_live_fleet,
    run_virtual,
)
from tests.support.processes import find_descendants, find_descendants_named, wait_for_end

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("nothing_left")
def test_live_fleet_has_the_answers_and_bytes_of_virtual_time(digits, table):
    progress: list[tuple[float, int]] = []
    scenario = make_live_scenario(link="wifi", time="4s")
    live_run = run_live_fleet(
        digits,
        table,
        scenario,
        on_progress=lambda now, n_answers: progress.append((now, n_answers)),
    )
    answers = live_run.fleet.answers
    virtual_run = run_virtual(table, scenario, live_run)
    assert (live_run.fleet.n_lost, live_run.troubles, live_run.broker) == (0, [], "mosquitto")
    assert_same_answers(answers, virtual_run.answers)
    is_cloud = answers.route == CLOUD
    assert set(answers.route.tolist()) == {EDGE, CLOUD}
    assert (is_cloud == table.is_offloaded[answers.row]).all()
    # a local answer takes the device's time only; a cloud's answer also takes network time
    assert (answers.device_ms[~is_cloud] == answers.latency_ms[~is_cloud].astype(np.float32)).all()
    assert (answers.cloud_ms[is_cloud] > 0).all()
    assert (answers.latency_ms - answers.device_ms - answers.cloud_ms)[is_cloud].min() > 0
    # the bytes are counted by the devices; a busy machine may cause retries, which add bytes
    assert answers.payload_bytes_up.sum() == live_run.fleet.device_counts["bytes_up"]
    assert answers.payload_bytes_down.sum() == live_run.fleet.device_counts["bytes_down"]
    if not live_run.fleet.device_counts["retries"]:
        for name in ("bytes_up", "bytes_down"):
            n_bytes = getattr(answers, name).sum()
            # some numbers in the messages, such as durations, have other lengths
            assert n_bytes == pytest.approx(getattr(virtual_run.answers, name).sum(), rel=0.02)
    assert (
        live_run.fleet.device_counts["cloud"]
        == live_run.fleet.worker_counts["answered"]
        == is_cloud.sum()
    )
    assert live_run.timings.edge_ms[0] > 0
    assert live_run.timings.run_us > 0
    assert 0 < progress[-1][1] <= len(answers)
    assert progress == sorted(progress)


@pytest.mark.parametrize("policy", ["edge-only", "cloud-only"])
def test_policy_has_the_routes_of_virtual_time(digits, table, policy):
    scenario = make_live_scenario(time="1s", workload="periodic:100ms", policy=policy, devices=2)
    live_run = run_live_fleet(digits, table, scenario)
    assert live_run.fleet.n_lost == 0
    routes = live_run.fleet.answers.route
    assert (routes == (EDGE if policy == "edge-only" else CLOUD)).all()
    assert_same_answers(
        live_run.fleet.answers,
        run_virtual(table, scenario, live_run).answers,
        set(COLUMNS) - {"reason"},
    )


def test_two_workers_share_the_requests_and_count_the_audits(digits, table):
    scenario = make_live_scenario(
        devices=2, workload="periodic:40ms", time="3s", workers=2, audit=0.5
    )
    live_run = run_live_fleet(digits, table, scenario)
    assert live_run.fleet.n_lost == 0
    # Half of the local answers are audited; of 150 instances most are local, and 0.2 are more than
    # four standard deviations.
    n_local = int((live_run.fleet.answers.route == EDGE).sum())
    assert 0.3 * n_local < live_run.fleet.worker_counts["audits"] < 0.7 * n_local


# -- failures -------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
def test_killed_device_is_reported_and_loses_only_its_instances(digits, table):
    kill_times: list[float] = []

    def kill_device(now: float, n_answers: int) -> None:
        if now > 1.0 and not kill_times:  # a third of the run
            kill_times.append(now)
            os.kill(find_descendants_named("gatewise edge")[0], signal.SIGKILL)

    scenario = make_live_scenario(devices=2, time="3s")
    live_run = run_live_fleet(digits, table, scenario, on_progress=kill_device)
    n_instances = len(scenario.draw_fleet_arrivals(len(table)).time)
    assert live_run.fleet.n_lost > 0
    assert len(live_run.fleet.answers) + live_run.fleet.n_lost == n_instances
    assert len(live_run.troubles) == 1
    assert live_run.troubles[0].startswith("device ")
    assert live_run.troubles[0].endswith("its instances are lost")


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_killed_run_leaves_no_process_and_no_file(digits, tmp_path, signal_number):
    # The replaced progress prints once an instance is answered, so that all processes run.
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
    rows_file = tmp_path / "rows.npy"
    np.save(rows_file, digits.rows)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    simulation = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(digits.bundle.path), str(rows_file)],
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
        children = find_descendants(simulation.pid)
        assert len(children) >= 5  # mosquitto, a worker and their guards, two devices
        if signal_number == signal.SIGINT:
            os.killpg(simulation.pid, signal_number)
        else:
            simulation.send_signal(signal_number)
        _, error_output = simulation.communicate(timeout=60.0)  # s, for a busy machine
    finally:
        simulation.kill()
        simulation.communicate()
    # Python converts SIGINT to an exception and then dies of it.
    assert simulation.returncode == -signal_number, error_output
    assert wait_for_end(children)
    if signal_number != signal.SIGKILL:  # after which nothing can delete the files
        assert list(scratch.iterdir()) == []


@pytest.mark.usefixtures("nothing_left")
def test_unreachable_broker_is_named_in_the_error(digits, table):
    with pytest.raises((RunError, LinkError), match=r"127\.0\.0\.1:9"):
        run_live_fleet(
            digits, table, make_live_scenario(devices=2, time="1s", broker="mqtt://127.0.0.1:9")
        )
