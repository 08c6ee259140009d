"""Several worker processes under one parent: load, a death, the end, and the parent's own death."""

import json
import os
import resource
import signal

import pytest

from gatewise.errors import InputError
from gatewise_edge.link import wire
from gatewise_edge.link.messages import AuditMark
from tests.support import tiny_bundle as tiny
from tests.support.mosquitto import SecureBroker, make_folder
from tests.support.mqtt_clients import MqttClient
from tests.support.ports import page
from tests.support.processes import running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # workers and brokers in processes of their own


@pytest.fixture
def two(command, bundle, mosquitto):
    parent = command(
        "cloud", bundle, "--broker", mosquitto.url, "--workers", 2, "--max-batch", 8,
        "--metrics-port", 0, "--json",
    )  # fmt: skip
    return parent, json.loads(parent.line())


def ask(one, n, audit=None):
    for _ in range(n):
        one.ask(tiny.rows(1), audit=audit)
        assert one.response().error is None


def test_they_share_the_load_and_drain_together(two, mosquitto, caller):
    parent, ready = two
    assert ready["workers"] == len(ready["pids"]) == 2
    one = caller(mosquitto)
    label = int(tiny.expected(tiny.rows(1))[0][0])
    ask(one, 4, AuditMark(label, 0.5, 0))
    ask(one, 2, AuditMark((label + 1) % tiny.CLASSES, 0.5, 0))
    ask(one, 4)
    assert page(ready["metrics_port"], "/healthz") == (200, "ok\n")
    _, metrics = page(ready["metrics_port"], "/metrics")
    shares = [
        float(line.rsplit(" ", 1)[1])
        for line in metrics.splitlines()
        if line.startswith("gatewise_worker_answered_total{")
    ]
    assert len(shares) == 2
    assert sum(shares) == 10
    assert min(shares) > 0
    assert "gatewise_workers_answering 2.0" in metrics
    parent.process.send_signal(signal.SIGTERM)
    status, out, err = parent.finish()
    assert (status, err) == (0, "")
    counters = json.loads(out)
    assert (counters["answered"], counters["restarts"]) == (10, 0)
    assert counters["audits"] == {"tiny 1": {"audits": 6, "disagreed": 2}}
    assert all(not running(pid) for pid in ready["pids"])


def test_one_that_dies_is_started_again(two, mosquitto, caller):
    parent, ready = two
    port = ready["metrics_port"]
    os.kill(ready["pids"][0], signal.SIGKILL)
    wait_until(lambda: "gatewise_workers_restarts_total 1.0" in page(port, "/metrics")[1])
    assert page(port, "/healthz")[0] == 200
    wait_until(lambda: "gatewise_workers_answering 2.0" in page(port, "/metrics")[1])
    ask(caller(mosquitto), 4)
    parent.process.terminate()
    status, out, err = parent.finish()
    assert (status, json.loads(out)["restarts"]) == (0, 1)
    assert err == "warning: worker 0 died: starting it again in 0.5 s\n"


def test_one_that_cannot_be_started_again_does_not_end_the_others(two, mosquitto, caller):
    parent, ready = two
    files = resource.prlimit(parent.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(parent.process.pid, resource.RLIMIT_NOFILE, (3, files[1]))
    os.kill(ready["pids"][0], signal.SIGKILL)
    lines = [parent.process.stderr.readline() for _ in range(2)]
    assert "worker 0 died: starting it again in 0.5 s" in lines[0]
    assert "worker 0 cannot be started: " in lines[1]
    ask(caller(mosquitto), 4)
    resource.prlimit(parent.process.pid, resource.RLIMIT_NOFILE, files)
    port = ready["metrics_port"]
    wait_until(lambda: "gatewise_workers_answering 2.0" in page(port, "/metrics")[1])
    assert "gatewise_workers_restarts_total 1.0" in page(port, "/metrics")[1]


def test_each_process_has_a_certificate_of_its_own(command, bundle, tmp_path):
    """The broker takes one session of each: with one certificate they would end each other's."""
    made = make_folder(tmp_path / "broker", workers=["w-1", "w-2"])
    clients = made.folder / "clients"
    with SecureBroker(made) as broker:
        parent = command(
            "cloud", bundle, "--broker", broker.url, "--workers", 2, "--max-batch", 8, "--json",
            "--ca-file", made.folder / "ca.crt", "--cert-file", clients / "w-{n}.crt",
            "--key-file", clients / "w-{n}.key", "--pool-file", clients / "pool",
        )  # fmt: skip
        assert json.loads(parent.line())["subscription"] == wire.shared(made.pool)
        device = MqttClient(broker.url, "gw/v1/pi-1/rsp", files=made.client("pi-1"))
        for row in tiny.rows(6):
            request = wire.Request(
                id=wire.new_id(), model="tiny", version="1", ttl_ms=9000, X=row[None]
            )
            device.publish("gw/v1/pi-1/req", wire.encode_request(request))
            assert wire.decode_response(device.get()[1]).error is None
        device.close()
        parent.process.terminate()
        status, out, err = parent.finish()
    assert (status, err) == (0, "")
    counters = json.loads(out)
    assert (counters["answered"], counters["connects"]) == (6, 2)


def test_none_outlives_a_parent_that_is_killed(two):
    parent, ready = two
    parent.process.kill()
    wait_until(lambda: all(not running(pid) for pid in ready["pids"]), "the end of the children")


def test_what_a_child_cannot_do_is_one_line(command, bundle, tmp_path, embedded):
    def failure(*arguments):
        status, out, err = command("cloud", *arguments, "--workers", 2).finish(60.0)
        assert (status, out) == (2, "")
        return err

    assert "cannot be reached" in failure(bundle, "--broker", "mqtt://127.0.0.1:9")
    assert "nothing" in failure(tmp_path / "nothing")
    assert "--plain-subscription" in failure(bundle, "--plain-subscription")
    assert "use --workers 1" in failure(bundle, "--broker", embedded.url)


def test_no_workers_is_refused():
    from gatewise_cloud.service.supervisor import Supervisor

    with pytest.raises(InputError, match="workers"):
        Supervisor({}, 0)
