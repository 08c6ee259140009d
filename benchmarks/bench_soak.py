"""Memory, threads and open files of device, worker and broker during 1,000,000 messages.

    python -m benchmarks.bench_soak [--quick | --messages N]

``gatewise edge`` sends every row of a file to ``gatewise cloud`` over a broker as fast as possible,
with at most eight pending requests. A device that sends 11.6 messages per second needs 24 hours for
1,000,000 messages. The benchmark samples the three processes every few seconds. The results are
soak.json and soak.md in benchmarks/results; ``--quick`` sends 20,000 messages and writes into
.bench-cache/quick.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from benchmarks import harness
from gatewise.console import note
from gatewise.errors import GatewiseError
from gatewise_cloud.broker.broker import MosquittoBroker
from gatewise_export import pack
from gatewise_training import ConfidenceCascade

PACKAGES = ("gatewise", "numpy", "onnxruntime", "paho-mqtt", "cbor2")
#: Messages of a run: a leak of 10 bytes per message adds 10 MB.
N_MESSAGES = 1_000_000
N_QUICK_MESSAGES = 20_000
#: The page shows the samples after these fractions of the messages.
PAGE_FRACTIONS = (0.02, 0.1, 0.25, 0.5, 0.75, 1.0)
FIGURES = ("memory_mb", "threads", "files")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Send the messages and sample the processes."""
    with tempfile.TemporaryDirectory() as folder:
        return watch_processes(
            Path(folder), N_QUICK_MESSAGES if options.quick else options.messages
        )


def watch_processes(folder: Path, n_messages: int) -> dict[str, Any]:
    """Send the messages; return samples of the processes and the growth of their memory."""
    # pack a small system, and write a table with one row per message
    X, y = load_iris(return_X_y=True)
    system = ConfidenceCascade(LogisticRegression(max_iter=500), random_state=0).fit(X, y)
    bundle = pack(system, folder / "bundle", sample=X[:16]).path
    rows = np.random.default_rng(0).integers(0, len(X), n_messages)
    header = ",".join(f'"{name}"' for name in system.feature_names_)
    lines = np.array([",".join(map(repr, row.tolist())) for row in X])
    (folder / "rows.csv").write_text("\n".join([header, *lines[rows].tolist(), ""]))
    with ExitStack() as stack:
        # start a broker and a worker, then a device that reads the table
        broker = stack.enter_context(MosquittoBroker())
        cloud_command = ("-m", "gatewise", "cloud", bundle, "--broker", broker.url)
        worker, _ = stack.enter_context(harness.python_process(*cloud_command, ready_text="ready"))
        start_time = time.monotonic()
        table = folder / "rows.csv"
        edge_command = ("-m", "gatewise", "edge", bundle, "--broker", broker.url, "--data", table)
        options = ("--policy", "cloud-only", "--parallel", "8", "--deadline-ms", "20000", "--json")
        device, _ = stack.enter_context(harness.python_process(*edge_command, *options))
        output = _Output(device)
        processes = {"device": device.pid, "worker": worker.pid, "broker": _broker_pid()}
        # sample the three processes until the device exits
        samples = []
        while device.poll() is None:
            n_lines = output.n_lines
            sample = {"answers": n_lines} | {
                name: _sample_process(pid) for name, pid in processes.items()
            }
            if device.poll() is not None:  # exited during the sample, so its figures are not valid
                break
            samples.append(sample)
            note(f"{n_lines:,} of {n_messages:,} answers")
            output.has_ended.wait(5.0 if n_messages > N_QUICK_MESSAGES else 0.5)
        seconds = time.monotonic() - start_time
    summary = output.summary()
    return {
        "messages": n_messages,
        "seconds": seconds,
        "answers": summary["answers"],
        "samples": samples,
        "growth_mb": {name: _growth(samples, name, n_messages) for name in processes},
    }


class _Output:
    """Counter of the lines that the device prints; keeps the last line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.n_lines = 1  # the first line is already read
        self.has_ended = threading.Event()
        self._last_line = ""
        self._stream = process.stdout
        threading.Thread(target=self._read_lines, daemon=True).start()

    def _read_lines(self) -> None:
        assert self._stream is not None
        for line in self._stream:
            self._last_line = line
            self.n_lines += 1
        self.has_ended.set()

    def summary(self) -> dict[str, Any]:
        """Read the summary that the device prints in its last line."""
        self.has_ended.wait()
        summary: dict[str, Any] = json.loads(self._last_line)["summary"]
        return summary


def _broker_pid() -> int:
    """Find the process id of the last mosquitto that descends from this process."""
    brokers = [
        process for process in psutil.Process().children(True) if process.name() == "mosquitto"
    ]
    if not brokers:
        raise GatewiseError("mosquitto is not running; install it (apt install mosquitto)")
    return brokers[-1].pid


def _sample_process(pid: int) -> dict[str, float]:
    """Read memory, threads and open files of a process; NaN if it does not exist."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            memory = process.memory_info().rss / 1e6
            return {
                "memory_mb": memory,
                "threads": process.num_threads(),
                "files": process.num_fds(),
            }
    except psutil.Error:
        return dict.fromkeys(FIGURES, float("nan"))


def _growth(samples: Sequence[dict[str, Any]], name: str, n_messages: int) -> float:
    """Compute the growth of memory in MB from a tenth of the messages to the last message."""
    sizes = [
        sample[name]["memory_mb"] for sample in samples if sample["answers"] >= n_messages / 10
    ]
    sizes = [size for size in sizes if not math.isnan(size)]
    return sizes[-1] - sizes[0] if sizes else float("nan")


def page(results: Mapping[str, Any]) -> list[str]:
    """Write the page ``soak.md``."""
    n_messages, samples = results["messages"], results["samples"]
    lines = [
        "# A day's messages through one device and one worker",
        "",
        f"`make bench-soak` writes this page. A device sent {n_messages:,} messages in "
        f"{results['seconds']:,.0f} s ({n_messages / results['seconds']:,.0f} per second), eight "
        f"at a time, and offloaded every row. The answers by route are {results['answers']}.",
        "",
        "The table has memory in MB / threads / open files.",
        "",
        "| answers | device | worker | broker |",
        "| --- | --- | --- | --- |",
    ]
    for fraction in PAGE_FRACTIONS:
        sample = min(samples, key=lambda sample: abs(sample["answers"] - fraction * n_messages))
        cells = [
            f"{sample[name]['memory_mb']:.1f} / {sample[name]['threads']} / {sample[name]['files']}"
            for name in ("device", "worker", "broker")
        ]
        lines.append(f"| {sample['answers']:,} | {' | '.join(cells)} |")
    growth = ", ".join(f"{name} {mb:+.1f}" for name, mb in results["growth_mb"].items())
    lines += ["", f"From a tenth of the messages to the last, memory grew by (MB): {growth}."]
    return lines


BENCHMARK = harness.Benchmark(
    name="soak",
    quick_help=f"send {N_QUICK_MESSAGES:,} messages",
    packages=PACKAGES,
    measure=measure,
    page=page,
    options={"--messages": {"type": int, "default": N_MESSAGES, "help": "number of messages"}},
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
