"""``gatewise cloud`` and ``gatewise broker`` in processes of their own."""

import json
import os
import signal
import socket

import pytest

from tests.support import tiny_bundle as tiny
from tests.support.ports import free_port
from tests.support.processes import refused

pytestmark = pytest.mark.slow  # processes start


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_answers_queued_requests_after_sigterm(
    command, slow_bundle, mosquitto, caller, stop
):
    worker = command("cloud", slow_bundle, "--broker", mosquitto.url, "--max-batch", 1, "--json")
    ready = json.loads(worker.line())
    assert ready == {
        "ready": True,
        "models": ["slow 1"],
        "broker": mosquitto.url,
        "subscription": "$share/gw/gw/v1/+/req",
        "metrics_port": None,
    }
    one = caller(mosquitto)
    asked = [one.ask(tiny.rows(1), model="slow", ttl_ms=20_000) for _ in range(6)]
    first = one.response()
    worker.process.send_signal(stop)
    answers = [first, *one.responses(5)]
    assert {answer.id for answer in answers} == {request.id for request in asked}
    status, out, err = worker.finish()
    assert (status, err) == (0, "")
    counters = json.loads(out)
    assert (counters["answered"], counters["abandoned"], counters["connected"]) == (6, 0, False)


def test_the_summary_is_text_without_json(command, bundle, mosquitto, caller):
    worker = command(
        "cloud", bundle, "--broker", mosquitto.url, "--plain-subscription", "--max-batch", 8
    )
    assert worker.line() == f"ready: model tiny 1 on {mosquitto.url}"
    one = caller(mosquitto)
    one.ask(tiny.rows(2))
    one.response()
    one.ask(tiny.rows(1), model="other")
    one.response()
    worker.process.terminate()
    status, out, err = worker.finish()
    assert (status, err) == (0, "")
    assert out == "stopped: answered 1 of 2 requests; 2 instances in 1 runs; errors: no-model 1\n"


def test_on_the_embedded_broker_it_warns_and_serves(command, bundle, embedded, caller):
    worker = command("cloud", bundle, "--broker", embedded.url)
    assert worker.line().startswith(f"ready: model tiny 1 on {embedded.url}")
    one = caller(embedded)
    one.ask(tiny.rows(1))
    assert one.response().error is None
    worker.process.terminate()
    status, _, err = worker.finish()
    assert status == 0
    assert "only one worker" in err
    assert err.count("\n") == 1


def test_bad_options_are_one_line_on_stderr(bundle, tmp_path):
    port = free_port()
    err = refused("cloud", bundle, "--broker", f"mqtt://127.0.0.1:{port}")
    assert f"broker mqtt://127.0.0.1:{port} cannot be reached" in err
    assert "nothing" in refused("cloud", tmp_path / "nothing")
    assert "/v2/models/NAME" in refused("cloud", bundle, "--backend-binary")
    assert "--max-batch: must be a whole number of at least 1, not 0" in refused(
        "cloud", bundle, "--max-batch", "0"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        err = refused("broker", "--port", port, "--embedded")
    assert f"port {port} on 127.0.0.1 is in use" in err


@pytest.mark.parametrize(
    ("options", "kind", "notes"), [(["--embedded"], "embedded", 1), ([], "mosquitto", 0)]
)
def test_the_broker_command_prints_kind_and_url(command, options, kind, notes):
    broker = command("broker", "--port", 0, *options)
    ready = broker.line()
    start, url = ready.rsplit(" ", 1)
    assert start == f"ready: {kind} broker on"
    port = int(url.removeprefix("mqtt://127.0.0.1:"))
    broker.process.terminate()
    status, _, err = broker.finish()
    assert status == 0
    assert err.count("--plain-subscription") == notes
    socket.create_server(("127.0.0.1", port)).close()


def test_a_broker_that_dies_is_an_error(command):
    broker = command("broker", "--port", 0, "--json", "--embedded")
    ready = json.loads(broker.line())
    assert (ready["kind"], ready["shared_subscriptions"]) == ("embedded", False)
    # Its process is the only child.
    with open(f"/proc/{broker.process.pid}/task/{broker.process.pid}/children") as children:
        (child,) = children.read().split()
    os.kill(int(child), signal.SIGKILL)
    status, _, err = broker.finish()
    assert status == 2
    assert "ended unexpectedly" in err


def test_rare_settings_come_from_a_file_and_the_broker_from_the_environment(
    command, bundle, mosquitto, tmp_path, monkeypatch
):
    monkeypatch.setenv("GATEWISE_BROKER", mosquitto.url)
    file = tmp_path / "worker.toml"
    file.write_text("drain_seconds = 0.0\nthreads = 1\nmax_batch = 8\n")
    worker = command("cloud", bundle, "--settings", file)
    assert worker.line() == f"ready: model tiny 1 on {mosquitto.url}"
    worker.process.terminate()
    assert worker.finish()[0] == 0
    file.write_text("parts = 3\n")
    assert "parts: is not a setting" in refused("cloud", bundle, "--settings", file)
