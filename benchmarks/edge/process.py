"""Start-up time and memory of a new edge process.

:func:`measure` runs this file as the process: ``python process.py import START_TIME`` or
``python process.py serve START_TIME ARGUMENTS_OF_GATEWISE_EDGE``.
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
    """Run a process and return its figures.

    Mode "nothing" is a bare interpreter. Mode "import" imports all modules of a device with a
    broker. Mode "serve" runs ``gatewise edge`` with `arguments` until it ends. ``seconds`` and
    ``cpu`` are the elapsed time and the CPU time until the imports are done. ``rss`` and ``peak``
    are bytes at the end, or 0 on systems without /proc.
    """
    completed_process = subprocess.run(
        [sys.executable, __file__, mode, repr(time.time()), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    sample: dict[str, Any] = json.loads(completed_process.stdout.splitlines()[-1])
    return sample


def _main(mode: str, start_time: float, arguments: list[str]) -> None:
    if mode != "nothing":
        from gatewise_edge import Device, MqttLink, Sensors  # noqa: F401, I001
        import cbor2  # noqa: F401
        import gatewise_edge.service.cli  # noqa: F401

        if mode == "import":  # "serve" imports onnxruntime only if its runner needs it
            import onnxruntime  # noqa: F401
    seconds = time.time() - start_time
    cpu_seconds = time.process_time()
    if mode == "serve":
        from gatewise.cli import main

        # hide what the service prints, because the last line of the output has the figures
        saved_stdout = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = main(["edge", *arguments])
        sys.stdout.flush()
        os.dup2(saved_stdout, 1)
        assert status == 0, status
    figures = {
        "seconds": seconds,
        "cpu": cpu_seconds,
        "rss": _memory("VmRSS:"),
        "peak": _memory("VmHWM:"),
    }
    print(json.dumps(figures))


def _memory(field_name: str) -> int:
    """Read the bytes of a field of /proc/self/status; return 0 on other systems."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return 0
    lines = [line.split() for line in status.read_text().splitlines()]
    return 1024 * next(int(line[1]) for line in lines if line and line[0] == field_name)


if __name__ == "__main__":
    _main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
