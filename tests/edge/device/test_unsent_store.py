"""The file of unsent requests: its bounds and counts, and a kill while it is written."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from gatewise.errors import InputError
from gatewise_edge.device.unsent_store import UnsentStore

#: Writes 50 requests of 100 bytes, then kills itself.
WRITER = """
import os, sys
from pathlib import Path
from gatewise_edge.device.unsent_store import UnsentStore
store = UnsentStore(Path(sys.argv[1]), max_bytes=10**6, max_age_s=1e9)
for number in range(50):
    store.add(bytes([number]) * 100, float(number))
os.kill(os.getpid(), 9)
"""


def list_payloads(store: UnsentStore) -> list[bytes]:
    """List the payloads of all requests in the store."""
    payloads = []
    last_number = 0
    while (request := store.next_request(last_number)) is not None:
        payloads.append(request.payload)
        last_number = request.number
    return payloads


def test_oldest_requests_are_dropped_when_the_store_is_full(tmp_path):
    store = UnsentStore(tmp_path / "unsent", max_bytes=10, max_age_s=60, clock=lambda: 5.0)
    for payload in (b"aaaa", b"bbbb", b"cccc", b"too long for it"):
        store.add(payload, 5.0)
    assert list_payloads(store) == [b"bbbb", b"cccc"]
    assert (len(store), store.n_bytes) == (2, 8)
    # The payload that is too long was dropped as well, but not kept before.
    assert store.counts == {"late_kept": 3, "late_dropped": 2, "late_expired": 0}


def test_requests_expire_by_the_age_of_their_answers(tmp_path):
    now = [100.0]
    store = UnsentStore(tmp_path / "unsent", max_bytes=100, max_age_s=60, clock=lambda: now[0])
    store.add(b"old", 40.0)
    store.add(b"new", 99.0)
    now[0] = 101.0  # 61 s after the older answer
    assert list_payloads(store) == [b"new"]
    assert store.counts["late_expired"] == 1
    request = store.next_request(0)
    store.remove(request)
    store.remove(request)  # the second removal changes nothing
    assert (len(store), store.n_bytes) == (0, 0)


def test_killed_process_leaves_complete_requests_that_only_its_user_can_read(tmp_path):
    path = tmp_path / "unsent"
    process = subprocess.run([sys.executable, "-c", WRITER, str(path)], timeout=240)
    assert process.returncode == -signal.SIGKILL
    store = UnsentStore(path, max_bytes=10**6, max_age_s=1e12)
    assert list_payloads(store) == [bytes([number]) * 100 for number in range(50)]
    assert (len(store), store.n_bytes) == (50, 5000)
    for store_file in tmp_path.iterdir():
        assert store_file.stat().st_mode & 0o077 == 0, store_file


def test_file_that_is_no_store_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, not a database; " * 50)  # longer than SQLite's header
    with pytest.raises(InputError, match="--keep-unsent"):
        UnsentStore(path, max_bytes=100, max_age_s=60)


@pytest.mark.timeout(20)
def test_file_that_another_process_has_emptied_accepts_requests(tmp_path):
    store_options = {"max_bytes": 10, "max_age_s": 60, "clock": lambda: 5.0}
    store = UnsentStore(tmp_path / "unsent", **store_options)
    store.add(b"aaaaaa", 5.0)
    other_store = UnsentStore(tmp_path / "unsent", **store_options)
    other_store.remove(other_store.next_request(0))
    store.add(b"bbbbbb", 5.0)
    assert list_payloads(store) == [b"bbbbbb"]
    assert (len(store), store.n_bytes) == (1, 6)
    assert store.counts["late_dropped"] == 0
