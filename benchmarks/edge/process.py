"""A fresh edge process: how long until it is there, and what it holds.

Run as a program it is that process: ``python process.py import <when started>`` or
``python process.py serve <when started> <arguments of gatewise edge>``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def measure(mode: str, arguments: list[str]) -> dict[str, Any]:
    """Start one and read what it says.

    "nothing" is an interpreter alone, "import" one that imports all that a device with a broker
    runs, "serve" is ``gatewise edge`` with some arguments from start to end. ``seconds`` are those
    until the imports are done, ``cpu`` what they took, which a busy machine does not stretch;
    ``rss`` and ``peak`` are in bytes at the end, 0 where the system does not say.
    """
    process = subprocess.run(
        [sys.executable, __file__, mode, repr(time.time()), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    sample: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return sample


def _main(mode: str, started: float, arguments: list[str]) -> None:
    if mode != "nothing":
        from gatewise_edge import Device, MqttLink, Sensors  # noqa: F401, I001
        import cbor2  # noqa: F401
        import gatewise_edge.service.cli  # noqa: F401

        if mode == "import":  # what serves decides by itself
            import onnxruntime  # noqa: F401
    seconds, cpu = time.time() - started, time.process_time()
    if mode == "serve":
        from gatewise.cli import main

        out = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = main(["edge", *arguments])
        sys.stdout.flush()
        os.dup2(out, 1)
        assert status == 0, status
    figures = {"seconds": seconds, "cpu": cpu, "rss": _held("VmRSS:"), "peak": _held("VmHWM:")}
    print(json.dumps(figures))


def _held(what: str) -> int:
    status = Path("/proc/self/status")
    if not status.is_file():
        return 0
    lines = [line.split() for line in status.read_text().splitlines()]
    return 1024 * next(int(line[1]) for line in lines if line and line[0] == what)


if __name__ == "__main__":
    _main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
