"""Workers that archive instances on a real broker, and the memory limit of the writer."""

import errno
import sys
import time

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_cloud import Worker
from gatewise_cloud.archive.writer import ArchiveWriter
from gatewise_cloud.worker.batcher import Ticket
from gatewise_edge.link.messages import AuditMark
from gatewise_export.archive.folder import ArchiveFolder, read_rows, shards_in
from gatewise_export.archive.shard import read_facts
from gatewise_export.bundle.bundle import Bundle
from tests.support import tiny_bundle as tiny
from tests.support.waiting import wait_until

pytest.importorskip("pyarrow")


def test_a_worker_archives_all_instances_but_those_of_private_devices(
    tmp_path, bundle, mosquitto, connect_caller
):
    started_at = time.time()
    with Worker(bundle, mosquitto.url, keep=tmp_path / "kept") as worker:
        client = connect_caller(mosquitto)
        offload_request = client.ask(tiny.random_rows(3))
        audit_request = client.ask(tiny.random_rows(1, seed=1), audit=AuditMark(2, 0.05, 0.875))
        late_request = client.ask(tiny.random_rows(1, seed=2), audit=AuditMark(1, 1.0), late_s=500)
        client.ask(tiny.random_rows(2, seed=3), is_private=True)
        client.responses(4)
        # Late instances are no evidence. A worker responds before it counts an audit.
        wait_until(lambda: worker.counters["audits"], "the audit")
        assert worker.counters["audits"]["tiny/1"]["audits"] == 1
    (shard,) = shards_in(tmp_path / "kept")
    facts = read_facts(shard)
    rows = read_rows([shard])
    assert facts.release == ("tiny", "1")
    assert facts.inputs == Bundle.open(bundle).manifest.cloud.inputs
    ids = [
        *(f"{offload_request.id.hex()}-{row}" for row in range(3)),
        f"{audit_request.id.hex()}-0",
    ]
    assert rows.ids.tolist() == [*ids, f"{late_request.id.hex()}-0"]
    sent_rows = np.concatenate(
        [tiny.random_rows(3), tiny.random_rows(1, seed=1), tiny.random_rows(1, seed=2)]
    )
    np.testing.assert_array_equal(rows.X, sent_rows)
    labels, probabilities = tiny.cloud_answers(sent_rows)
    assert rows.cloud_label.tolist() == labels.tolist()
    # The model computes in float32, the reference in float64.
    np.testing.assert_allclose(rows.probabilities, probabilities, atol=1e-6)
    assert rows.device_label.tolist() == [-1, -1, -1, 2, 1]
    assert rows.sent_probability.tolist() == [1, 1, 1, 0.05, 1]
    assert rows.confidence[3] == 0.875
    assert rows.late.tolist() == [False, False, False, False, True]
    assert set(rows.device) == {client.device}
    assert started_at <= rows.time[0] <= time.time()
    assert rows.time[4] < started_at - 490  # it was answered 500 s before it arrived
    assert worker.counters["archive"] == {"kept": 5, "thinned": 0, "lost": 0, "shards": 1}


def test_a_disk_failure_loses_no_answer(tmp_path, bundle, mosquitto, connect_caller):
    folder = tmp_path / "kept"
    with Worker(bundle, mosquitto.url, keep=folder, keep_seconds=0.01) as worker:
        (folder / "lock").unlink()
        folder.rmdir()
        client = connect_caller(mosquitto)
        client.ask(tiny.random_rows(3))
        assert client.response().n_rows == 3
    assert worker.counters["archive"]["lost"] == 3


def make_ticket(n_rows, **fields):
    """Make a request that a worker has answered."""
    default_fields = {
        "device": "pi", "id": bytes(16), "digest": b"", "model": ("tiny", "1"),
        "rows": np.zeros((n_rows, tiny.N_FEATURES), np.float32),
        "arrived_at": 0.0, "expires_at": 1.0,
    }  # fmt: skip
    return Ticket(**default_fields | fields)


@pytest.mark.slow
def test_a_slow_disk_thins_the_instances_in_memory(tmp_path, bundle, monkeypatch):
    """The weights of stored instances sum to the number of offered instances."""
    # Room for a few hundred of the 5,000 instances.
    monkeypatch.setattr("gatewise_cloud.archive.writer._SHARD_BYTES", 20_000)
    monkeypatch.setattr("gatewise_cloud.archive.writer._MAX_WAITING_BYTES", 60_000)
    rng = np.random.default_rng(0)
    folder = ArchiveFolder(tmp_path, max_bytes=1e9, max_days=30, rng=rng)
    writer = ArchiveWriter(folder, shard_seconds=60.0, rng=rng)
    manifest = Bundle.open(bundle).manifest
    labels = np.zeros(50, np.int64)
    probabilities = np.full((50, 3), 1 / 3, np.float32)
    for _ in range(100):
        writer.archive(make_ticket(50), manifest, labels, probabilities)
    writer.start()  # only now are shards written
    writer.close()
    rows = read_rows(shards_in(tmp_path))
    assert writer.counters["kept"] == len(rows) == 5000 - writer.counters["thinned"]
    assert len(rows) < 1000  # the waiting shards have 60,000 bytes, and an instance above 200
    # A row with the weight w was stored with the probability 1 / w, and adds w (w - 1) to the
    # estimated variance of the sum of the weights.
    three_standard_errors = 3 * np.sqrt((rows.weights * (rows.weights - 1)).sum())
    assert abs(rows.weights.sum() - 5000) < three_standard_errors
    assert len(set(rows.stored_probability.tolist())) > 1
    assert len(shards_in(tmp_path)) == writer.counters["shards"] > 1


def test_full_disk_is_logged_in_one_line_and_counted(tmp_path, bundle, monkeypatch, caplog):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = ArchiveFolder(tmp_path, max_bytes=1e9, max_days=30, rng=np.random.default_rng(0))
    writer = ArchiveWriter(folder, shard_seconds=60.0, rng=np.random.default_rng(0))
    probabilities = np.full((50, 3), 1 / 3, np.float32)
    manifest = Bundle.open(bundle).manifest
    writer.archive(make_ticket(50), manifest, np.zeros(50, np.int64), probabilities)
    monkeypatch.setattr(folder, "add", fail)
    writer.start()
    writer.close()
    assert (writer.counters["lost"], writer.counters["kept"]) == (50, 0)
    (record,) = caplog.records
    assert "50 instances are not archived" in record.getMessage()
    assert "No space left on device" in record.getMessage()
    assert record.exc_info is None


def test_error_without_pyarrow_names_the_extra(tmp_path, bundle, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"needs pyarrow.*pip install 'gatewise\[parquet\]'"):
        Worker(bundle, "mqtt://127.0.0.1:1", keep=tmp_path / "kept")
