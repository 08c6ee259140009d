"""Answer files have complete lines, and each row once, even after a kill or on a full disk."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gatewise.errors import InputError
from gatewise_edge.link.mqtt_link import MqttLink
from gatewise_edge.service import outputs
from gatewise_edge.service.outputs import AnswerFile, AnswerLog, AnswerPublisher
from tests.support.mqtt_clients import MqttClient
from tests.support.relay import Relay
from tests.support.waiting import wait_until


@pytest.fixture
def data_path(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,2\n3,4\n")
    return path


def read_row_numbers(path):
    """Read the row numbers of a log, after its first line, which has the hash of the data."""
    return [json.loads(line)["row"] for line in path.read_text().splitlines()[1:]]


# A line has more than 20 bytes.
@pytest.mark.parametrize("n_bytes", [0, *range(1, 20, 3)])
def test_log_reads_answered_rows_and_cuts_off_an_incomplete_line(tmp_path, data_path, n_bytes):
    path = tmp_path / "log"
    with AnswerLog(path, data_path) as log:
        assert log.answered_rows == set()
        for row in (0, 2):
            log.write({"row": row, "label": "yes"})
        size_before = path.stat().st_size
        log.write({"row": 1, "label": "yes"})
    with path.open("r+b") as file:
        file.truncate(size_before + n_bytes)
    with AnswerLog(path, data_path) as log:
        assert log.answered_rows == {0, 2}
        log.write({"row": 1, "label": "no"})
    assert read_row_numbers(path) == [0, 2, 1]


def test_threads_write_complete_lines(tmp_path, data_path):
    path = tmp_path / "log"
    with AnswerLog(path, data_path) as log, ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda thread_number: [
                    log.write({"row": thread_number + 4 * line_number}) for line_number in range(50)
                ],
                range(4),
            )
        )
    assert sorted(read_row_numbers(path)) == list(range(200))


def test_full_disk_is_logged_once_and_its_lost_lines_are_counted(caplog):
    with AnswerFile(Path("/dev/full")) as file:
        for row in range(3):
            file.write({"row": row})
    assert (file.n_lost, "/dev/full cannot be written: No space" in file.trouble) == (3, True)
    assert len(caplog.records) == 1


def test_log_that_began_on_a_full_disk_has_its_first_line(tmp_path, data_path, monkeypatch):
    path = tmp_path / "log"

    def fail(file: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(outputs.os, "write", fail)
    with AnswerLog(path, data_path) as log:
        log.write({"row": 0})
        assert (log.n_lost, log.trouble is None) == (2, False)
        monkeypatch.undo()
        log.write({"row": 1})
        assert (log.n_lost, log.trouble) == (1, None)
    with AnswerLog(path, data_path) as log:
        assert log.answered_rows == {1}


def test_line_that_is_written_in_parts_is_complete(tmp_path, data_path, monkeypatch):
    path = tmp_path / "log"
    write_all = os.write
    n_free_bytes = [30]

    def write_part(file: int, content: bytes) -> int:
        if not n_free_bytes[0]:
            raise OSError(errno.ENOSPC, "no space left")
        n_written = write_all(file, content[: min(7, n_free_bytes[0])])
        n_free_bytes[0] -= n_written
        return n_written

    with AnswerLog(path, data_path) as log:
        monkeypatch.setattr(outputs.os, "write", write_part)
        log.write({"row": 0})
        log.write({"row": 1, "label": "yes"})
        log.write({"row": 7})
        assert (log.n_lost, log.trouble is None) == (2, False)  # one of them is written in part
        n_free_bytes[0] = 1000
        log.write({"row": 2})
        assert (log.n_lost, log.trouble) == (1, None)
        monkeypatch.undo()
    assert read_row_numbers(path) == [0, 1, 2]


def test_lines_after_one_that_lacks_only_its_end_are_counted_as_lost(tmp_path, monkeypatch):
    path = tmp_path / "answers"
    line = b'{"row": 0}\n'
    n_free_bytes = len(line) - 1
    write_all = os.write

    def write_part(file: int, content: bytes) -> int:
        n_written = write_all(file, content[: n_free_bytes - path.stat().st_size])
        if not n_written:
            raise OSError(errno.ENOSPC, "no space left")
        return n_written

    monkeypatch.setattr(outputs.os, "write", write_part)
    with AnswerFile(path) as file:
        for row in range(4):
            file.write({"row": row})
        assert file.n_lost == 4  # the first one because of its end
        n_free_bytes = 1000
        file.write({"row": 4})
        assert file.n_lost == 3
    assert path.read_bytes() == line + b'{"row": 4}\n'


@pytest.mark.parametrize("content", [b"", b'{"row": 0}\n', b'{"row": 0}\n{"row": 1, "la'])
def test_first_answer_begins_a_line_after_an_interrupted_run(tmp_path, content):
    path = tmp_path / "answers"
    path.write_bytes(content)
    with AnswerFile(path) as file:
        file.write({"row": 0})
        file.write({"row": 1})
    *lines, last_line = path.read_bytes().splitlines(keepends=True)
    assert (lines[-1], last_line) == (b'{"row": 0}\n', b'{"row": 1}\n')
    assert path.read_bytes().startswith(content)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_reconnects")
def test_unacknowledged_lines_are_published_again_on_the_next_connection(broker):
    subscriber = MqttClient(broker.url, "answers")

    def received_rows():
        return [json.loads(payload)["row"] for _, payload, _ in subscriber.messages]

    with Relay(broker.port) as relay:
        link = MqttLink(relay.url, device="pi-1")
        link.connect(60)
        with AnswerPublisher(link, "answers") as publisher:
            publisher.write({"row": 0})
            wait_until(lambda: subscriber.messages)
            relay.drops_bytes = True
            for row in range(1, 100):  # more than may be unacknowledged
                publisher.write({"row": row})
            relay.break_connections()
            # The waiting lines are published on the next connection without another write.
            wait_until(lambda: len(set(received_rows())) >= 100)
        assert publisher.n_dropped == 0
        link.close()
    # They arrive in order; a line whose acknowledgement was lost arrives twice.
    assert list(dict.fromkeys(received_rows())) == list(range(100))
    subscriber.close()


@pytest.mark.parametrize("content", [b"hello\n", b"no end", b"[1]\n", b'{"sha256": 1}\n{"x": 2}\n'])
def test_foreign_file_is_refused_and_unchanged(tmp_path, data_path, content):
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(InputError):
        AnswerLog(path, data_path)
    assert path.read_bytes() == content


def test_log_of_other_data_and_unusable_paths_are_refused(tmp_path, data_path):
    with AnswerLog(tmp_path / "log", data_path):
        data_path.write_text("a,b\n9,9\n")
    with pytest.raises(InputError, match="other data"):
        AnswerLog(tmp_path / "log", data_path)
    with pytest.raises(InputError, match="nowhere"):
        AnswerLog(tmp_path / "nowhere" / "log", data_path)
    with pytest.raises(InputError, match=r"none\.csv"):
        AnswerLog(tmp_path / "log", tmp_path / "none.csv")
