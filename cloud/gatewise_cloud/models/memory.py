"""A limit on the memory that this process may add while a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_STATUS = Path("/proc/self/status")


@contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Let allocations fail that would add more than `more` bytes to this process; on Linux only.

    Other threads fall under it, too: leave them room.
    """
    if resource is None or not _STATUS.exists():
        yield
        return
    lines = _STATUS.read_text().splitlines()
    used = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [used + more, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
