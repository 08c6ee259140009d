"""``gatewise edge`` takes a signed version while it runs, says so, and starts with it again."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from queue import Queue

from gatewise.cli import main

COMMAND = "import sys; from gatewise.cli import main; sys.exit(main(sys.argv[1:]))"


def test_a_running_process_takes_an_announced_version(
    make_gwb, server, keys, broker, make_peer, tmp_path, tools
):
    peer = make_peer()
    first, second = make_gwb("7"), make_gwb("8")
    url = server.put("/small-8.gwb", second.read_bytes())
    command = [
        sys.executable, "-c", COMMAND, "edge", str(first), "--broker", broker.url,
        "--device", "pi-1", "--public-key", str(keys.pub), "--store", str(tmp_path / "kept"),
        "--update-host", server.host, "--update-ca-file", str(server.ca_file),
        "--metrics-port", "0", "--connect-timeout", "60", "--json",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        page = process.stderr.readline().split()[-1]
        said: Queue[str] = Queue()
        reader = threading.Thread(target=lambda: [said.put(line) for line in process.stderr])
        reader.start()

        def answer() -> dict:
            process.stdin.write("[1,0,0,0,0,0]\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        assert answer()["label"] == "yes"
        tools.wait_for(lambda: ("pi-1", "online small/7") in peer.statuses, "version 7", 60)
        args = ["publish", second, "--url", url, "--key", keys.key, "--broker", broker.url]
        assert main([str(a) for a in args]) == 0
        tools.wait_for(lambda: ("pi-1", "online small/8") in peer.statuses, "version 8", 60)
        assert answer()["label"] == "yes"
        with urllib.request.urlopen(page, timeout=30) as response:
            metrics = response.read().decode()
        assert 'gatewise_model_info{model="small",version="8"} 1.0' in metrics
        assert 'gatewise_update_total{event="taken"} 1.0' in metrics
        process.stdin.close()
        *_, last = process.stdout.read().splitlines()
        process.wait(60)
        reader.join(60)
    assert process.returncode == 0
    summary = json.loads(last)["summary"]
    assert (summary["answers"]["edge"], summary["model"]) == (2, "small/8")
    # Without a broker or hosts: what was taken stays in force.
    kept = ["--public-key", str(keys.pub), "--store", str(tmp_path / "kept"), "--json"]
    done = subprocess.run(
        [*command[:5], *kept], input="[1,0,0,0,0,0]\n", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["summary"]["model"] == "small/8"


def test_a_bundle_must_be_signed_by_the_key(make_gwb, keys, capsys):
    bundle = make_gwb("7", key=keys.other)
    assert main(["edge", str(bundle), "--public-key", str(keys.pub)]) == 2
    assert "sign" in capsys.readouterr().err
