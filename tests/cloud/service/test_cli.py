"""The commands ``gatewise cloud`` and ``gatewise broker`` as real processes."""

import json
import os
import signal
import socket

import pytest

from tests.support import tiny_bundle as tiny
from tests.support.ports import free_port
from tests.support.processes import assert_command_refused

pytestmark = pytest.mark.slow  # processes start


def test_a_worker_answers_queued_requests_after_sigterm(
    command, slow_bundle, mosquitto, connect_caller
):
    worker = command("cloud", slow_bundle, "--broker", mosquitto.url, "--max-batch", 1, "--json")
    ready_document = json.loads(worker.read_line())
    assert ready_document == {
        "ready": True, "models": ["slow 1"], "broker": mosquitto.url,
        "subscription": "$share/gw/gw/v1/+/req", "metrics_port": None,
    }  # fmt: skip
    client = connect_caller(mosquitto)
    requests = [client.ask(tiny.random_rows(1), model="slow", ttl_ms=20_000) for _ in range(6)]
    first_answer = client.response()
    worker.process.send_signal(signal.SIGTERM)
    answers = [first_answer, *client.responses(5)]
    assert {answer.id for answer in answers} == {request.id for request in requests}
    exit_status, output, errors = worker.finish()
    assert (exit_status, errors) == (0, "")
    counters = json.loads(output)
    assert (counters["answered"], counters["abandoned"], counters["connected"]) == (6, 0, False)


def test_without_json_the_summary_is_text_also_after_ctrl_c(
    command, bundle, mosquitto, connect_caller, tmp_path, monkeypatch
):
    """Settings come from a file, and the broker from the environment."""
    monkeypatch.setenv("GATEWISE_BROKER", mosquitto.url)
    settings_file = tmp_path / "worker.toml"
    settings_file.write_text("drain_seconds = 0.0\nthreads = 1\nmax_batch = 8\n")
    worker = command("cloud", bundle, "--plain-subscription", "--settings", settings_file)
    assert worker.read_line() == f"ready: model tiny 1 on {mosquitto.url}"
    client = connect_caller(mosquitto)
    client.ask(tiny.random_rows(2))
    client.response()
    client.ask(tiny.random_rows(1), model="other")
    client.response()
    worker.process.send_signal(signal.SIGINT)
    summary = "answered 1 of 2 requests; 2 instances in 1 runs; errors: no-model 1"
    assert worker.finish() == (0, f"stopped: {summary}\n", "")


def test_invalid_options_are_reported_in_one_line(bundle, tmp_path):
    port = free_port()
    message = assert_command_refused("cloud", bundle, "--broker", f"mqtt://127.0.0.1:{port}")
    assert f"broker mqtt://127.0.0.1:{port} cannot be reached" in message
    assert "nothing" in assert_command_refused("cloud", tmp_path / "nothing")
    assert "--max-batch: must be a whole number of at least 1, not 0" in assert_command_refused(
        "cloud", bundle, "--max-batch", "0"
    )
    for setting in ('keep_bytes = "1MB"', "keep_days = 7", "keep_seconds = 3"):
        (tmp_path / "worker.toml").write_text(setting)
        message = assert_command_refused("cloud", bundle, "--settings", tmp_path / "worker.toml")
        assert f"{setting.split()[0]} needs the folder of --keep" in message
    (tmp_path / "worker.toml").write_text("parts = 3\n")
    message = assert_command_refused("cloud", bundle, "--settings", tmp_path / "worker.toml")
    assert "parts: is not a setting" in message
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        message = assert_command_refused("broker", "--port", port, "--embedded")
    assert f"port {port} on 127.0.0.1 is in use" in message


@pytest.mark.parametrize(
    ("options", "kind", "n_warnings"), [(["--embedded"], "embedded", 1), ([], "mosquitto", 0)]
)
def test_the_broker_command_prints_kind_and_url(command, options, kind, n_warnings):
    broker = command("broker", "--port", 0, *options)
    ready_line = broker.read_line()
    prefix, url = ready_line.rsplit(" ", 1)
    assert prefix == f"ready: {kind} broker on"
    port = int(url.removeprefix("mqtt://127.0.0.1:"))
    broker.process.terminate()
    status, _, notes = broker.finish()
    assert status == 0
    assert notes.count("--plain-subscription") == n_warnings
    socket.create_server(("127.0.0.1", port)).close()  # the port is free again


def test_the_broker_command_fails_if_its_broker_dies(command):
    broker = command("broker", "--port", 0, "--json", "--embedded")
    ready_document = json.loads(broker.read_line())
    assert (ready_document["kind"], ready_document["shared_subscriptions"]) == ("embedded", False)
    # The broker's process is the only child of the command.
    with open(f"/proc/{broker.process.pid}/task/{broker.process.pid}/children") as children:
        (child_pid,) = children.read().split()
    os.kill(int(child_pid), signal.SIGKILL)
    status, _, message = broker.finish()
    assert status == 2
    assert "ended unexpectedly" in message
