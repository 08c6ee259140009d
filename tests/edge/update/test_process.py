"""``gatewise edge`` takes a release while it runs, and starts in every trouble."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from queue import Queue

import pytest

from gatewise.cli import main

pytestmark = pytest.mark.slow  # processes start

COMMAND = [
    sys.executable, "-c", "import sys; from gatewise.cli import main; sys.exit(main(sys.argv[1:]))",
    "edge",
]  # fmt: skip
ROW = "[1,0,0,0,0,0]\n"


def run_once(*args, given=ROW):
    done = subprocess.run(
        [*COMMAND, *map(str, args)], input=given, capture_output=True, text=True, timeout=120
    )
    return done, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_running_process_takes_a_published_release(
    fleet, server, first, broker, make_peer, tmp_path, tools
):
    peer = make_peer()
    store = tmp_path / "store"
    command = [
        *COMMAND, first, "--broker", broker.url, "--device", "pi-1", "--store", store,
        "--trust", fleet.trust, "--update-host", server.url, "--metrics-port", 0, "--json",
        "--connect-timeout", 60,
    ]  # fmt: skip
    with subprocess.Popen(
        [str(c) for c in command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        page = process.stderr.readline().split()[-1]
        said: Queue[str] = Queue()
        reader = threading.Thread(target=lambda: [said.put(line) for line in process.stderr])
        reader.start()

        def answer() -> dict:
            process.stdin.write(ROW)
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        assert answer()["label"] == "yes"
        tools.wait_for(lambda: ("pi-1", "online small/7") in peer.statuses, "version 7", 60)
        fleet.add("8")
        args = ["repo", "publish", fleet.folder, "small/8", "--broker", broker.url]
        assert main([str(a) for a in args]) == 0
        tools.wait_for(lambda: ("pi-1", "online small/8") in peer.statuses, "version 8", 60)
        assert answer()["label"] == "yes"
        with urllib.request.urlopen(page, timeout=30) as response:
            metrics = response.read().decode()
        assert 'gatewise_model_info{model="small",version="8"} 1.0' in metrics
        assert 'gatewise_update_total{event="taken"} 1.0' in metrics
        assert 'gatewise_trouble{what="update"} 0.0' in metrics
        process.stdin.close()
        *_, last = process.stdout.read().splitlines()
        process.wait(60)
        reader.join(60)
    assert process.returncode == 0
    assert json.loads(last)["summary"]["model"] == "small/8"
    # Without a broker or a repository: what was taken stays active.
    done, lines = run_once(first, "--store", store, "--json")
    assert done.returncode == 0, done.stderr
    assert lines[-1]["summary"]["model"] == "small/8"


@pytest.fixture
def store(fleet, server, run, tmp_path):
    """A store at version 8."""
    fleet.publish("8")
    device = run(urls=[server.url])
    device.reaches("8")
    device.passes()
    device.close()
    return tmp_path / "store"


def test_a_broker_that_is_away(first, tools):
    done, lines = run_once(first, "--broker", "mqtt://127.0.0.1:1", given=ROW + "[0,0,0,0,1,0]\n")
    assert done.returncode == 0, done.stderr
    assert [line["reason"] for line in lines] == ["stopped", "link-down"]
    assert "cannot be used" in done.stderr


@pytest.mark.parametrize("when", ["expired", "of the future"])
def test_a_certificate_that_does_not_hold_now(first, certified_broker, when):
    """An expired server certificate, or one that a wrong clock takes for such."""
    broker, ca_file = certified_broker(-20 if when == "expired" else 20)
    done, lines = run_once(
        first, "--broker", broker.url.replace("mqtt:", "mqtts:"), "--ca-file", ca_file
    )
    assert done.returncode == 0, done.stderr
    assert [line["label"] for line in lines] == ["yes"]
    assert "cannot be used" in done.stderr


def test_a_store_that_is_read_only_or_cannot_be_made(first, store, tmp_path, fleet, server):
    (tmp_path / "file").write_text("")
    for folder, version in ((tmp_path / "file" / "store", "7"), (store, "8")):
        if folder == store:
            for path in (store / "state.json", store / "state.copy.json"):
                path.with_name(f".{path.name}.new").mkdir()  # no file can be written there
            (store / "lock").unlink(missing_ok=True)
            (store / "lock").mkdir()
        done, lines = run_once(
            first, "--store", folder, "--trust", fleet.trust, "--update-host", server.url, "--json"
        )
        assert done.returncode == 0, done.stderr
        assert lines[0]["label"] == "yes"
        assert lines[-1]["summary"]["model"] == f"small/{version}"
        assert "store" in done.stderr


def test_a_first_bundle_that_is_damaged_or_gone(first, store):
    shutil.rmtree(first)
    done, lines = run_once(first, "--store", store, "--json")
    assert done.returncode == 0, done.stderr
    assert lines[-1]["summary"]["model"] == "small/8"
    assert "does not exist" in done.stderr


def test_a_stored_bundle_that_does_not_run_here(first, store, tmp_path):
    for path in (store / "bundles").rglob("stage_0.onnx"):
        path.write_bytes(b"")
    done, lines = run_once(first, "--store", store, "--json")
    assert done.returncode == 0, done.stderr
    assert lines[-1]["summary"]["model"] == "small/7"


def test_sigterm_ends_it_beside_a_slow_server(first, fleet, server, tmp_path, tools):
    server.behave[""] = lambda handler: time.sleep(60)
    command = [
        *COMMAND, first, "--store", tmp_path / "store", "--trust", fleet.trust,
        "--update-host", server.url,
    ]  # fmt: skip
    with subprocess.Popen(
        [str(c) for c in command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        tools.wait_for(lambda: server.asked, "a check", 60)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert time.monotonic() - began < 10.0
    assert process.returncode == 0


def test_a_bundle_must_be_signed_by_the_key(first, tmp_path, capsys):
    assert main(["keygen", "--out", str(tmp_path / "fleet")]) == 0
    assert main(["edge", str(first), "--public-key", str(tmp_path / "fleet.pub")]) == 2
    assert "sign" in capsys.readouterr().err
    assert os.listdir(tmp_path)
