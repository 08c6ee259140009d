"""``gatewise edge`` adopts a release while it runs, and starts despite all kinds of problems."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
import urllib.request

import pytest

from gatewise.cli import main
from gatewise_export.bundle.signing import keygen
from tests.support.certificates import Authority
from tests.support.mosquitto import Mosquitto
from tests.support.processes import run_in_process
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # processes start

#: A row for which stage 0 of the small bundle stops, as a JSON line.
ROW = "[1,0,0,0,0,0]\n"
#: A row for which no stage stops, so that it is offloaded.
HARD_ROW = "[0,0,0,0,1,0]\n"


@pytest.fixture
def run_once(first_path, caplog):
    """Run the command in this process; return its log and the lines of its output."""

    def run_command(*options, bundle=first_path, input_lines=ROW):
        caplog.clear()
        completed = run_in_process("edge", bundle, *options, stdin_text=input_lines)
        assert completed.returncode == 0, completed.stderr
        return caplog.text, [json.loads(line) for line in completed.stdout.splitlines()]

    return run_command


def test_running_process_adopts_a_published_release(
    fleet, server, first_path, broker, make_peer, tmp_path, command, run_once
):
    peer = make_peer()
    store, settings = tmp_path / "store", tmp_path / "settings.toml"
    settings.write_text("update_interval = 1.0\nconnect_timeout = 60.0\n")
    process = command(
        "edge", first_path, "--broker", broker.url, "--device", "pi-1", "--store", store,
        "--trust", fleet.trust, "--update-host", server.url, "--metrics-port", 0,
        "--json", "--settings", settings,
    )  # fmt: skip
    metrics_url = process.process.stderr.readline().split()[-1]
    # Read the log, so that the process never waits for a full pipe.
    threading.Thread(target=process.process.stderr.read).start()

    def request_answer() -> dict:
        process.write(ROW)
        return json.loads(process.read_line())

    assert request_answer()["label"] == "yes"
    wait_until(lambda: ("pi-1", "online small/7") in peer.statuses, "version 7")
    fleet.add("8")
    arguments = ["repo", "publish", fleet.folder, "small/8", "--broker", broker.url]
    assert main([str(argument) for argument in arguments]) == 0
    wait_until(lambda: ("pi-1", "online small/8 trial") in peer.statuses, "version 8")
    assert request_answer()["label"] == "yes"
    with urllib.request.urlopen(metrics_url.replace("metrics", "healthz"), timeout=30) as response:
        assert response.read() == b"ok\n"

    def read_metrics() -> str:
        with urllib.request.urlopen(metrics_url, timeout=30) as response:
            return response.read().decode()

    # the status is published before the event is counted
    wait_until(
        lambda: 'gatewise_update_total{event="adopted"} 1.0' in read_metrics(), "the adoption"
    )
    metrics = read_metrics()
    assert 'gatewise_model_info{model="small",version="8"} 1.0' in metrics
    assert 'gatewise_update_total{event="announced"} 1.0' in metrics
    assert 'gatewise_trouble{what="update"} 0.0' in metrics
    process.process.stdin.close()
    *_, last_line = process.process.stdout.read().splitlines()
    assert process.process.wait(60) == 0
    assert json.loads(last_line)["summary"]["model"] == "small/8"
    # A later start without a broker and a repository runs the adopted release.
    _, lines = run_once("--store", store, "--json")
    assert lines[-1]["summary"]["model"] == "small/8"


def test_process_answers_without_its_broker(run_once):
    log, lines = run_once("--broker", "mqtt://127.0.0.1:1", input_lines=ROW + HARD_ROW)
    assert [line["reason"] for line in lines] == ["stopped", "link-down"]
    assert "cannot be used" in log


def test_process_answers_with_a_certificate_that_is_not_valid_now(first_path, command, tmp_path):
    """The server's certificate has expired, or the clock of the device is wrong."""
    authority = Authority(tmp_path, "authority", days=-20)
    certificate, key = authority.issue("server")
    tls_files = {"cafile": authority.file, "certfile": certificate, "keyfile": key}
    with Mosquitto(tmp_path, *(f"{option} {path}" for option, path in tls_files.items())) as broker:
        url = broker.url.replace("mqtt:", "mqtts:")
        process = command("edge", first_path, "--broker", url, "--ca-file", authority.file)
        process.write(ROW)
        status, output, log = process.finish()
    assert (status, json.loads(output)["label"]) == (0, "yes")
    assert "cannot be used" in log


def test_process_answers_if_its_store_cannot_be_made(run_once, tmp_path, fleet, server):
    (tmp_path / "file").write_text("")
    store = tmp_path / "file" / "store"
    log, lines = run_once(
        "--store", store, "--trust", fleet.trust, "--update-host", server.url, "--json"
    )
    assert lines[0]["label"] == "yes"
    assert lines[-1]["summary"]["model"] == "small/7"
    assert f"store {store} cannot be written" in log


def test_process_answers_if_its_store_is_read_only(first_path, device_at_8, fleet, server, command):
    device_at_8.close()
    store = device_at_8.store.folder
    for name in ("state.json", "state.copy.json"):
        (store / f".{name}.new").mkdir()  # so that no file can be written there
    (store / "lock").unlink()
    (store / "lock").mkdir()
    process = command(
        "edge", first_path, "--store", store, "--trust", fleet.trust, "--update-host", server.url,
        "--json",
    )  # fmt: skip
    process.write(ROW)
    assert json.loads(process.read_line())["label"] == "yes"
    # the first check finds it, which may come after the answer
    assert any(f"store {store} cannot be written" in line for line in process.process.stderr)
    process.process.stdin.close()
    *_, last_line = process.process.stdout.read().splitlines()
    assert json.loads(last_line)["summary"]["model"] == "small/8"


def test_process_answers_if_the_first_bundle_or_the_stored_one_is_unusable(
    first_path, device_at_8, run_once
):
    device_at_8.close()
    store = device_at_8.store.folder
    first_copy = shutil.copytree(first_path, first_path.with_name("copy"))
    shutil.rmtree(first_path)
    log, lines = run_once("--store", store, "--json")
    assert lines[-1]["summary"]["model"] == "small/8"
    assert "does not exist" in log
    for path in (store / "bundles").rglob("stage_0.onnx"):
        path.write_bytes(b"")
    _, lines = run_once("--store", store, "--json", bundle=first_copy)
    assert lines[-1]["summary"]["model"] == "small/7"


def test_sigterm_ends_the_process_despite_a_slow_server(
    first_path, fleet, server, tmp_path, command
):
    server.handlers[""] = lambda handler: time.sleep(60)  # longer than the bound below
    process = command(
        "edge", first_path, "--store", tmp_path / "store", "--trust", fleet.trust,
        "--update-host", server.url,
    )  # fmt: skip
    wait_until(lambda: server.requested_paths, "a check")
    started_at = time.monotonic()
    process.process.send_signal(signal.SIGTERM)
    assert process.finish()[0] == 0
    assert time.monotonic() - started_at < 10.0  # a loaded machine takes seconds to end it


def test_bundle_without_the_signature_of_the_key_is_refused(first_path, tmp_path, capsys):
    keygen(tmp_path / "fleet")
    assert main(["edge", str(first_path), "--public-key", str(tmp_path / "fleet.pub")]) == 2
    assert "sign" in capsys.readouterr().err
