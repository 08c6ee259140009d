"""A limit on the memory that a given model may take while it is loaded and tested."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

try:
    import resource
except ImportError:  # only on Unix
    resource = None  # type: ignore[assignment]

_STATUS: Final = Path("/proc/self/status")


@contextmanager
def memory_limit(n_bytes: int) -> Iterator[None]:
    """Let allocations fail that would add more than `n_bytes` to this process; on Linux only.

    Other threads fall under it as well: leave them room.
    """
    if resource is None or not _STATUS.exists():
        yield
        return
    lines = _STATUS.read_text().splitlines()
    used = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (used + n_bytes, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
