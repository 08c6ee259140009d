"""The file of unsent requests: its bounds and counts, and a kill while it is written."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.device.late_requests import LateRequests
from gatewise_edge.device.unsent_store import UnsentRequest, UnsentStore

#: Writes 50 requests of 100 bytes, then kills itself.
WRITER = """
import os, sys
from pathlib import Path
from gatewise_edge.device.unsent_store import UnsentStore
store = UnsentStore(Path(sys.argv[1]), max_bytes=10**6, max_age_s=1e9)
for number in range(50):
    store.add(bytes([number]) * 100, float(number), is_fallback=True)
os.kill(os.getpid(), 9)
"""


def list_requests(store: UnsentStore) -> list[UnsentRequest]:
    """List all requests in the store."""
    requests: list[UnsentRequest] = []
    while (request := store.next_request(requests[-1].number if requests else 0)) is not None:
        requests.append(request)
    return requests


def list_payloads(store: UnsentStore) -> list[bytes]:
    """List the payloads of all requests in the store."""
    return [request.payload for request in list_requests(store)]


@pytest.mark.slow
def test_full_store_keeps_requests_with_known_probabilities(tmp_path):
    """Sums that weight the stored requests by their inverse probabilities estimate all requests."""
    n_added = 200
    n_stores = 200
    estimates = np.zeros((n_stores, 2))  # of the numbers of early and of later requests
    for seed in range(n_stores):
        store = UnsentStore(
            tmp_path / f"unsent-{seed}",
            max_bytes=100,  # ten requests
            max_age_s=60,
            clock=lambda: 5.0,
            rng=random.Random(seed),
        )
        for number in range(n_added):
            store.add(number.to_bytes(10), 5.0, is_fallback=True)
            assert store.n_bytes <= 100
        assert store.counts["late_kept"] - len(store) <= store.counts["late_dropped"]
        for request in list_requests(store):
            is_later = int.from_bytes(request.payload) >= n_added // 2
            estimates[seed, int(is_later)] += 1 / request.stored_probability
        store.close()
    standard_errors = estimates.std(axis=0) / n_stores**0.5
    assert (np.abs(estimates.mean(axis=0) - n_added / 2) < 4 * standard_errors).all()


def test_probability_outlives_a_restart_and_ends_with_the_last_request(tmp_path):
    store_options = {"max_bytes": 20, "max_age_s": 60, "clock": lambda: 5.0}
    store = UnsentStore(tmp_path / "unsent", **store_options, rng=random.Random(1))
    while store.counts["late_dropped"] == 0 or len(store) == 0:
        store.add(b"ten bytes.", 5.0, is_fallback=True)
    stored_probability = list_requests(store)[0].stored_probability
    assert stored_probability <= 0.5
    store.close()
    reopened_store = UnsentStore(tmp_path / "unsent", **store_options, rng=random.Random(2))
    n_requests = len(reopened_store)
    while len(reopened_store) == n_requests == 1:
        reopened_store.add(b"ten bytes.", 5.0, is_fallback=True)
    assert {request.stored_probability for request in list_requests(reopened_store)} == {
        stored_probability
    }
    for request in list_requests(reopened_store):
        reopened_store.remove(request)
    reopened_store.add(b"ten bytes.", 5.0, is_fallback=True)
    assert [request.stored_probability for request in list_requests(reopened_store)] == [1.0]


def test_request_larger_than_the_store_is_dropped_alone(tmp_path):
    store = UnsentStore(tmp_path / "unsent", max_bytes=10, max_age_s=60, clock=lambda: 5.0)
    for payload in (b"aaaa", b"too long for it", b"bbbb"):
        store.add(payload, 5.0, is_fallback=True)
    assert [(request.payload, request.stored_probability) for request in list_requests(store)] == [
        (b"aaaa", 1.0),
        (b"bbbb", 1.0),
    ]
    assert store.counts == {"late_kept": 2, "late_dropped": 1, "late_expired": 0}


def test_requests_expire_by_the_age_of_their_answers(tmp_path):
    now = [100.0]
    store = UnsentStore(tmp_path / "unsent", max_bytes=100, max_age_s=60, clock=lambda: now[0])
    store.add(b"old", 40.0, is_fallback=True)
    store.add(b"new", 99.0, is_fallback=True)
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
    with pytest.raises(InputError, match=r"--keep-unsent .*not a database; give another name"):
        UnsentStore(path, max_bytes=100, max_age_s=60)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_requests_are_in_memory_while_the_disk_cannot_be_written(
    code, tmp_path, monkeypatch, caplog
):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        store = UnsentStore(tmp_path / "unsent", max_bytes=100, max_age_s=60, clock=lambda: 5.0)
    store.add(b"aa", 5.0, is_fallback=True)
    assert list_payloads(store) == [b"aa"]
    assert "in memory, until the device ends" in caplog.text
    assert store.trouble is not None
    late_requests = LateRequests(store)
    assert late_requests.trouble == store.trouble
    late_requests.close()


def test_store_without_room_for_its_journal_is_in_memory(tmp_path):
    UnsentStore(tmp_path / "unsent", max_bytes=100, max_age_s=60).close()
    (tmp_path / "unsent-wal").mkdir()  # so that SQLite cannot make the journal
    store = UnsentStore(tmp_path / "unsent", max_bytes=100, max_age_s=60)
    assert store.trouble is not None


@pytest.mark.timeout(20)
def test_file_that_another_process_has_emptied_accepts_requests(tmp_path):
    store_options = {"max_bytes": 10, "max_age_s": 60, "clock": lambda: 5.0}
    store = UnsentStore(tmp_path / "unsent", **store_options)
    store.add(b"aaaaaa", 5.0, is_fallback=True)
    other_store = UnsentStore(tmp_path / "unsent", **store_options)
    other_store.remove(other_store.next_request(0))
    store.add(b"bbbbbb", 5.0, is_fallback=True)
    # nothing was dropped at random, so the request was there for certain
    assert [(request.payload, request.stored_probability) for request in list_requests(store)] == [
        (b"bbbbbb", 1.0)
    ]
    assert (len(store), store.n_bytes) == (1, 6)
    assert store.counts["late_dropped"] == 0
