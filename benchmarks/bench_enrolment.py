"""Enrolments per minute at a running broker that has 20,000 registered devices.

    python -m benchmarks.bench_enrolment [--quick]

``gatewise broker enrol`` and mosquitto run as separate processes. Each device is a thread of this
process; it makes its own key and enrols with its own token. Broker, server and devices share the
cores of the machine. The results are enrolment.json and enrolment.md in benchmarks/results;
``--quick`` writes them into .bench-cache/quick.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import harness
from gatewise.errors import GatewiseError
from gatewise_cloud.broker.broker import find_mosquitto
from gatewise_cloud.broker.broker_control import operator_endpoint, read_clients_with_rights
from gatewise_cloud.broker.broker_init import init_broker, register_devices
from gatewise_cloud.broker.enrolment import make_tokens
from gatewise_cloud.child_process import ChildProcess
from gatewise_edge.service.enrolment import enrol

#: Target of the rate, at which the 20,000 devices of the broker would enrol in 20 minutes.
TARGETS: dict[str, tuple[str, str, float]] = {
    "per_minute": ("enrolments a minute", "at least", 1000)
}

#: Longest wait for the broker, which reads the rights of 20,000 devices before it listens.
BROKER_START_SECONDS = 60.0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Enrol a few devices one at a time, then the others in parallel.

    The first enrolments measure how long a device waits, and the others the rate of the server.
    """
    n_known, n_devices, n_threads = (500, 60, 8) if options.quick else (20_000, 2_000, 64)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        broker = init_broker(
            folder / "broker",
            hosts=("localhost", "127.0.0.1"),
            port=options.port,
            # otherwise mosquitto changes to its own user, who cannot read the temporary folder
            run_as="root" if os.geteuid() == 0 else None,
        )
        if not broker.has_live_control:
            raise GatewiseError("mosquitto's dynamic security plugin is missing: install it")
        register_devices(broker.folder, [f"known-{i}" for i in range(n_known)])
        command = [str(find_mosquitto()), "-c", str(broker.config)]
        stack.enter_context(
            ChildProcess("mosquitto", command, follows_input=False, captures_stderr=False)
        )
        _wait_for_broker(options.port)
        # start the enrolment server
        names = [f"pi-{i}" for i in range(n_devices)]
        tokens = make_tokens(broker.folder, names)
        # port 0 lets the system choose a port, which the server prints
        server_options = ("--dir", broker.folder, "--port", "0", "--host", "127.0.0.1", "--json")
        server = harness.python_process(
            *("-m", "gatewise", "broker", "enrol", *server_options), ready_text='"port"'
        )
        _, port_line = stack.enter_context(server)
        url = f"https://localhost:{json.loads(port_line)['port']}"
        # 1 % of the devices, but at least 5 for a mean, because each sequential enrolment is slow
        n_sequential = max(5, n_devices // 100)
        sequential_tokens = [tokens[name] for name in names[:n_sequential]]
        sequential_seconds = _enrol_all(url, sequential_tokens, folder, n_threads=1)
        parallel_tokens = [tokens[name] for name in names[n_sequential:]]
        parallel_seconds = _enrol_all(url, parallel_tokens, folder, n_threads)
        # a device that has enrolled without rights at the broker would make the rate worthless
        names_with_rights = read_clients_with_rights(operator_endpoint(broker), names)
        n_without_rights = len(set(names).difference(names_with_rights))
    figures = {
        "known": n_known,
        "devices": n_devices,
        "threads": n_threads,
        "alone_seconds": sequential_seconds / n_sequential,
        "per_minute": 60 * len(parallel_tokens) / parallel_seconds,
        "without_rights": n_without_rights,
    }
    return {"figures": figures, "holds": harness.targets_met(TARGETS, figures)}


def _enrol_all(url: str, tokens: list[str], folder: Path, n_threads: int) -> float:
    """Enrol one device per token; return the seconds for all of them."""
    start_time = time.perf_counter()
    with ThreadPoolExecutor(n_threads) as pool:
        # a token begins with the name of its device; list() raises the error of any enrolment
        list(pool.map(lambda token: enrol(url, token, folder / token.split(".")[0]), tokens))
    return time.perf_counter() - start_time


def _wait_for_broker(port: int) -> None:
    """Wait until the broker listens, which is after it has read the rights of all devices."""
    deadline = time.monotonic() + BROKER_START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise GatewiseError(f"mosquitto does not listen on port {port}")


def page(results: Mapping[str, Any]) -> list[str]:
    """Write the page ``enrolment.md``."""
    figures = results["figures"]
    return [
        "# Enrolment with one-time tokens",
        "",
        f"`make bench-enrolment` writes this page. A mosquitto has the rights of "
        f"{figures['known']:,} devices, and {figures['devices']:,} more enrol, "
        f"{figures['threads']} at a time. Broker, server and devices share "
        f"{results['machine']['cores']} cores.",
        "",
        *harness.targets_table(TARGETS, results),
        "",
        f"A device that enrols alone waits {figures['alone_seconds']:.2f} s. "
        f"At the end, {figures['without_rights']} devices have no rights.",
    ]


BENCHMARK = harness.Benchmark(
    name="enrolment",
    quick_help="enrol few devices",
    packages=("gatewise", "cryptography", "paho-mqtt"),
    measure=measure,
    page=page,
    # not 8883, so that a broker that already runs on this machine stays undisturbed
    options={"--port": {"type": int, "default": 18883, "help": "port of the broker"}},
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
