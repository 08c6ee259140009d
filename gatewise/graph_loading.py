"""Check that a model file loads and runs within limits of memory and time.

A small graph may need a minute and gigabytes, because onnxruntime computes constants while it
loads a graph. A child process, which runs this module as a program, therefore loads the graph and
runs it once before the parent process loads it. The input of the child is a task as a line of JSON,
the graph, and the rows. If it exits with status 1, its output is the error.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.documents import Amount, Record, decode_json, encode_json
from gatewise.errors import InputError, one_line
from gatewise.imports import load_onnxruntime, open_session
from gatewise.models.booster_files import BoosterFile, Library

try:
    import resource
except ImportError:  # Windows can import this module, but has no signals to check a graph
    resource = None  # type: ignore[assignment]

_PROCESS_STATUS: Final = Path("/proc/self/status")
#: Limits for a bundle that states none: for an empty graph, and their growth per byte of a graph.
_DEFAULT_MEMORY_BYTES: Final = 1 << 30  # 1 GiB
_MEMORY_BYTES_PER_GRAPH_BYTE: Final = 8
_DEFAULT_SECONDS: Final = 10.0
_SECONDS_PER_BYTE: Final = 1e-6
#: Additional seconds after which the parent kills the child if the child's own timer fails.
_GRACE_SECONDS: Final = 60.0


class LoadLimits(Record, frozen=True):
    """Largest memory in `bytes` and time in `seconds` for loading a graph and running it once."""

    bytes: Amount
    seconds: Amount


#: Largest limits that a bundle may state, unless the operator allows others.
MAX_LOAD_LIMITS: Final = LoadLimits(bytes=4 << 30, seconds=60.0)

#: Digests of the checks that succeeded in this process, which need not run again.
_checked_digests: set[bytes] = set()


class GraphLoadError(InputError):
    """A graph that does not load and run within its limits."""


class _LoadTask(Record, frozen=True):
    """Task of the child: sizes of the graph and of the rows that follow, and the limits.

    `library` is None for an ONNX graph.
    """

    n_graph_bytes: int
    shape: tuple[int, ...]
    dtype: str
    library: Library | None
    n_classes: int
    limits: LoadLimits


def check_loads(
    graph: bytes,
    x: NDArray[Any],
    stated_limits: LoadLimits | None = None,
    max_limits: LoadLimits = MAX_LOAD_LIMITS,
    *,
    library: Library | None = None,
    n_classes: int = 0,
) -> None:
    """Check that a graph, or the file of a `library`, loads and runs on rows `x` within limits.

    Without the `stated_limits` of a bundle, the limits grow with the size of the graph. Raises
    GraphLoadError if stated limits exceed the `max_limits`, or if the graph exceeds its limits.
    Memory is limited on Linux only.
    """
    limits = _choose_limits(len(graph), stated_limits, max_limits)
    task = _LoadTask(len(graph), x.shape, str(x.dtype), library, n_classes, limits)
    content = b"\n".join([encode_json(task), graph]) + x.tobytes()
    digest = hashlib.sha256(content).digest()
    if digest in _checked_digests:
        return
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input=content,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limits.seconds + _GRACE_SECONDS,
            check=False,
        )
        status = child.returncode
    except subprocess.TimeoutExpired:
        status = -signal.SIGALRM
    if status == -signal.SIGALRM:
        raise GraphLoadError(f"loading it took more than {limits.seconds:g} s")
    if status:
        message = child.stdout.decode("utf-8", "replace").strip()
        mib = limits.bytes / (1 << 20)
        raise GraphLoadError(
            message or f"loading it within {mib:.0f} MiB ended with status {status}"
        )
    _checked_digests.add(digest)


def _choose_limits(
    n_bytes: int, stated_limits: LoadLimits | None, max_limits: LoadLimits
) -> LoadLimits:
    """Choose the limits for a graph of `n_bytes` bytes, within `max_limits`."""
    if stated_limits is None:
        return LoadLimits(
            bytes=min(
                _DEFAULT_MEMORY_BYTES + _MEMORY_BYTES_PER_GRAPH_BYTE * n_bytes, max_limits.bytes
            ),
            seconds=min(_DEFAULT_SECONDS + _SECONDS_PER_BYTE * n_bytes, max_limits.seconds),
        )
    for name in ("bytes", "seconds"):
        stated_value = getattr(stated_limits, name)
        largest_value = getattr(max_limits, name)
        if stated_value > largest_value:
            raise GraphLoadError(
                f"its bundle states that loading takes up to {stated_value:g} {name}, but at most "
                f"{largest_value:g} are allowed: raise load_{name}"
            )
    return stated_limits


# -- the child process -----------------------------------------------------------------------


def _main() -> None:
    """Load a graph and run it once, within the limits of the task."""
    task_line, _, content = sys.stdin.buffer.read().partition(b"\n")
    task = decode_json(task_line, _LoadTask, "task")
    graph = content[: task.n_graph_bytes]
    x = np.frombuffer(content[task.n_graph_bytes :], task.dtype).reshape(task.shape)
    # load the library before the limits apply
    if task.library is None:
        load_onnxruntime()
    else:
        import_module(task.library)
    _limit_process(int(task.limits.bytes), task.limits.seconds)
    try:
        if task.library is None:
            session = open_session(graph)
            session.run(None, {session.get_inputs()[0].name: x})
        else:
            BoosterFile(task.library, graph, task.n_classes).predict_proba(x)
    except Exception as error:  # errors of the libraries have no common base class
        print(one_line(error))
        sys.exit(1)


def _limit_process(n_bytes: int, seconds: float) -> None:
    """Limit the additional memory and the remaining time of this process."""
    # the default action of SIGALRM ends the process
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    if resource is None or not _PROCESS_STATUS.exists():
        return
    lines = _PROCESS_STATUS.read_text().splitlines()
    used_bytes = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [
        limit
        for limit in (used_bytes + n_bytes, soft_limit, hard_limit)
        if limit != resource.RLIM_INFINITY
    ]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard_limit))


if __name__ == "__main__":
    _main()
