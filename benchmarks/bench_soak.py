"""A day's messages through one device and one worker: memory, threads and descriptors over time.

    python -m benchmarks.bench_soak [--quick | --messages N]

``gatewise edge`` sends every row of a file to ``gatewise cloud`` over a broker, eight at a time, as
fast as they go: 1,000,000 messages, which a device with 11.6 a second takes 24 hours for. Memory,
threads and open files of the three processes are read every few seconds. Writes soak.json and
soak.md into benchmarks/results; a quick look (20,000 messages) into .bench-cache/quick.
"""

from __future__ import annotations

import argparse
import json
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
MESSAGES = 1_000_000
QUICK = 20_000
#: Shares of the messages at which the processes are shown.
SHOWN = (0.02, 0.1, 0.25, 0.5, 0.75, 1.0)
FIGURES = ("memory_mb", "threads", "files")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 2 for bad input, 130 after Ctrl-C."""
    parser = BENCHMARK.parser()
    parser.add_argument("--messages", type=int, default=MESSAGES, help="how many are sent")
    return BENCHMARK.main(arguments, parser)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Send the messages, and watch the processes meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        return watch_processes(Path(folder), QUICK if options.quick else options.messages)


def watch_processes(folder: Path, messages: int) -> dict[str, Any]:
    """Send the messages; what the processes held meanwhile."""
    # a small system, and a table with a row for each message
    X, y = load_iris(return_X_y=True)
    system = ConfidenceCascade(LogisticRegression(max_iter=500), random_state=0).fit(X, y)
    bundle = pack(system, folder / "bundle", sample=X[:16]).path
    rows = np.random.default_rng(0).integers(0, len(X), messages)
    head = ",".join(f'"{name}"' for name in system.feature_names_)
    lines = np.array([",".join(map(repr, row.tolist())) for row in X])
    (folder / "rows.csv").write_text("\n".join([head, *lines[rows].tolist(), ""]))
    with ExitStack() as stack:
        # a broker, a worker that is ready, and a device that reads the table
        broker = stack.enter_context(MosquittoBroker())
        worker = _start(stack, "cloud", str(bundle), "--broker", broker.url)
        assert worker.stdout is not None
        for line in worker.stdout:
            if b"ready" in line:
                break
        started = time.monotonic()
        words = [str(bundle), "--broker", broker.url, "--data", str(folder / "rows.csv")]
        words += ["--policy", "cloud-only", "--parallel", "8", "--deadline-ms", "20000", "--json"]
        device = _start(stack, "edge", *words)
        output = _Output(device)
        processes = {"device": device.pid, "worker": worker.pid, "broker": _mosquitto()}
        # what the three hold, until the device has ended
        samples = []
        while device.poll() is None:
            n_lines = output.lines
            sample = {"answers": n_lines} | {n: _held(pid) for n, pid in processes.items()}
            if device.poll() is not None:  # it ended meanwhile, and holds nothing any more
                break
            samples.append(sample)
            note(f"{n_lines:,} of {messages:,} answers")
            output.ended.wait(5.0 if messages > QUICK else 0.5)
        seconds = time.monotonic() - started
    summary = output.summary()
    return {
        "messages": messages,
        "seconds": seconds,
        "answers": summary["answers"],
        "samples": samples,
        "growth_mb": {n: _growth(samples, n, messages) for n in processes},
    }


class _Output:
    """What the device prints: lines are counted, the last one is kept."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.lines, self.ended, self._last = 0, threading.Event(), b""
        self._stream = process.stdout
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._stream is not None
        remaining = b""
        while block := self._stream.read1(1 << 16):  # type: ignore[attr-defined]
            *whole, remaining = (remaining + block).split(b"\n")
            self.lines += len(whole)
            self._last = whole[-1] if whole else self._last
        self.ended.set()

    def summary(self) -> dict[str, Any]:
        """The document that the device ends with."""
        summary: dict[str, Any] = json.loads(self._last)["summary"]
        return summary


def _start(stack: ExitStack, *words: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gatewise", *words], stdout=subprocess.PIPE, stderr=sys.stderr
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


def _mosquitto() -> int:
    """Process id of the broker, the latest mosquitto below this process."""
    brokers = [p for p in psutil.Process().children(True) if p.name() == "mosquitto"]
    if not brokers:
        raise GatewiseError("mosquitto is not running; install it (apt install mosquitto)")
    return brokers[-1].pid


def _held(pid: int) -> dict[str, float]:
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


def _growth(samples: Sequence[dict[str, Any]], name: str, messages: int) -> float:
    """Memory at the end less that at a tenth of the messages, in MB."""
    late = [s[name]["memory_mb"] for s in samples if s["answers"] >= messages / 10]
    late = [memory for memory in late if memory == memory]
    return late[-1] - late[0] if late else float("nan")


def page(found: Mapping[str, Any]) -> list[str]:
    """Lines of the page."""
    messages, samples = found["messages"], found["samples"]
    lines = [
        "# A day's messages through one device and one worker",
        "",
        f"{messages:,} messages in {found['seconds']:,.0f} s "
        f"({messages / found['seconds']:,.0f} a second), eight at a time, every row offloaded; "
        f"answers: {found['answers']}. Made by `make bench-soak`.",
        "",
        "Memory in MB / threads / open files:",
        "",
        "| answers | device | worker | broker |",
        "| --- | --- | --- | --- |",
    ]
    for share in SHOWN:
        sample = min(samples, key=lambda s: abs(s["answers"] - share * messages))
        cells = [
            f"{sample[n]['memory_mb']:.1f} / {sample[n]['threads']} / {sample[n]['files']}"
            for n in ("device", "worker", "broker")
        ]
        lines.append(f"| {sample['answers']:,} | {' | '.join(cells)} |")
    growth = ", ".join(f"{name} {mb:+.1f}" for name, mb in found["growth_mb"].items())
    lines += ["", f"Memory added between a tenth of the messages and the last, in MB: {growth}."]
    return lines


BENCHMARK = harness.Benchmark(
    name="soak",
    description=__doc__,
    quick=f"{QUICK:,} messages",
    packages=PACKAGES,
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(main())
