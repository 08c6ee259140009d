"""Check that a model file loads and runs within limits of memory and time.

A small graph may need a minute and gigabytes, because onnxruntime computes constants while it
loads a graph. A child process, which runs this module as a program, therefore loads the graph and
runs it once before the parent process loads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.documents import Amount, Record
from gatewise.errors import InputError, one_line
from gatewise.imports import load_onnxruntime, open_session
from gatewise.models.booster_files import BoosterFile, Library

try:
    import resource
except ImportError:  # only on Unix
    resource = None  # type: ignore[assignment]

_STATUS: Final = Path("/proc/self/status")
#: Limits for a bundle that states no limits, and their growth per byte of the graph.
_BYTES: Final = 1 << 30
_BYTES_PER_BYTE: Final = 8
_SECONDS: Final = 10.0
_SECONDS_PER_BYTE: Final = 1e-6
#: Additional seconds after which the parent kills the child if the child's own timer fails.
_GRACE_SECONDS: Final = 60.0


class LoadLimits(Record, frozen=True):
    """Largest memory in `bytes` and time in `seconds` for loading a graph and running it once."""

    bytes: Amount
    seconds: Amount


#: Largest limits that an operator allows by default; a bundle may state lower ones.
MAX_LOAD_LIMITS: Final = LoadLimits(bytes=4 << 30, seconds=60.0)

#: Digests of the checks that succeeded in this process.
_passed: set[bytes] = set()


class GraphLoadError(InputError):
    """Graph that does not load and run within its limits."""


def check_loads(
    graph: bytes,
    x: NDArray[Any],
    stated: LoadLimits | None = None,
    bound: LoadLimits = MAX_LOAD_LIMITS,
    *,
    library: Library | None = None,
    n_classes: int = 0,
) -> None:
    """Check that a graph, or the file of a `library`, loads and runs on rows `x` within limits.

    A bundle may have `stated` its limits; otherwise they grow with the size of the graph. Raises
    GraphLoadError if stated limits exceed the `bound`, or if the graph exceeds its limits. Memory
    is limited on Linux only.
    """
    limits = _limits(len(graph), stated, bound)
    task = {"size": len(graph), "shape": x.shape, "dtype": str(x.dtype)}
    task |= {"library": library, "n_classes": n_classes}
    header = json.dumps(task | {"bytes": limits.bytes, "seconds": limits.seconds}).encode()
    content = b"\n".join([header, graph]) + x.tobytes()
    digest = hashlib.sha256(content).digest()
    if digest in _passed:
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
        why = child.stdout.decode("utf-8", "replace").strip()
        mib = limits.bytes / (1 << 20)
        raise GraphLoadError(why or f"loading it within {mib:.0f} MiB ended with status {status}")
    _passed.add(digest)


def _limits(n_bytes: int, stated: LoadLimits | None, bound: LoadLimits) -> LoadLimits:
    if stated is None:
        return LoadLimits(
            bytes=min(_BYTES + _BYTES_PER_BYTE * n_bytes, bound.bytes),
            seconds=min(_SECONDS + _SECONDS_PER_BYTE * n_bytes, bound.seconds),
        )
    for name in ("bytes", "seconds"):
        need = getattr(stated, name)
        allowed = getattr(bound, name)
        if need > allowed:
            raise GraphLoadError(
                f"its bundle states that loading takes up to {need:g} {name}, but at most "
                f"{allowed:g} are allowed: raise load_{name}"
            )
    return stated


# -- the child process -----------------------------------------------------------------------


def _main() -> None:
    header, _, content = sys.stdin.buffer.read().partition(b"\n")
    task = json.loads(header)
    size = task["size"]
    x = np.frombuffer(content[size:], task["dtype"]).reshape(task["shape"])
    library = task["library"]
    # load the library before the limits apply
    if library is None:
        load_onnxruntime()
    else:
        import_module(library)
    _limit_process(int(task["bytes"]), task["seconds"])
    try:
        if library is None:
            session = open_session(content[:size])
            session.run(None, {session.get_inputs()[0].name: x})
        else:
            BoosterFile(library, content[:size], task["n_classes"]).predict_proba(x)
    except Exception as error:  # errors of the libraries have no common base class
        print(one_line(error))
        sys.exit(1)


def _limit_process(n_bytes: int, seconds: float) -> None:
    """Limit the additional memory and the remaining time of this process."""
    # the default action of SIGALRM ends the process
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    if resource is None or not _STATUS.exists():
        return
    lines = _STATUS.read_text().splitlines()
    used = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (used + n_bytes, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))


if __name__ == "__main__":
    _main()
