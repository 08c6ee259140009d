"""Outputs for the answers of ``gatewise edge``: standard output, files, and MQTT topics."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from gatewise.console import as_json_value
from gatewise.errors import InputError

if TYPE_CHECKING:
    from gatewise_edge.link.mqtt_link import MqttLink

_LOG = logging.getLogger(__name__)

#: Largest number of answers that wait for the broker, which take about a megabyte. Beyond it the
#: oldest are dropped.
_MAX_WAITING_ANSWERS: Final = 1000
#: Largest number of unacknowledged answers. The link must have room for requests.
_MAX_UNACKED: Final = 32
#: Longest wait for the remaining answers on closing, in seconds. systemd kills a service after
#: 90 s.
_CLOSE_SECONDS: Final = 2.0
#: First bytes of an answer log. Any other file is refused before it is changed.
_LOG_PREFIX: Final = b'{"data": '


def json_line(document: dict[str, Any]) -> str:
    """Format a document as a line of JSON; a value without a JSON form becomes a text."""
    return json.dumps(as_json_value(document), default=str)


class AnswerFile:
    """A file to which each answer is appended as a line; a context manager. Thread-safe.

    Without a `path` the file is standard output. Each line is one write. If the disk stores only a
    part of a line, the remainder is written before the next line. The device continues when the
    disk is full. If the file already ends with an incomplete line, the first answer begins a new
    line.

    Attributes
    ----------
    name : str
        The path, or ``standard output``.
    trouble : str or None
        Reason why the file cannot be written now; None if it can.
    """

    def __init__(self, path: Path | None = None, *, option_name: str = "--out") -> None:
        self.name = "standard output" if path is None else str(path)
        #: Descriptor of the file; None if standard output has none, as in a notebook.
        self._descriptor: int | None = None
        if path is None:
            with suppress(OSError):
                self._descriptor = os.dup(sys.stdout.fileno())
        else:
            try:
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            except OSError as error:
                raise InputError(f"{option_name} {path}: {error.strerror}") from None
        self.trouble: str | None = None
        self._n_dropped = 0
        #: Remainder of a line that was written in part.
        self._remainder = b""
        #: Bytes to write before the next line, which end an incomplete line.
        self._line_prefix = b"\n" if path is not None and _ends_within_a_line(path) else b""
        self._write_lock = threading.Lock()

    @property
    def n_lost(self) -> int:
        """Number of lines that are missing or incomplete in the file."""
        return self._n_dropped + bool(self._remainder)

    def write(self, document: dict[str, Any]) -> None:
        """Append a line; if that fails, count and log it."""
        with self._write_lock:
            line = self._line_prefix + json_line(document).encode() + b"\n"
            is_previous_complete = False
            try:
                self._write_remainder()
                is_previous_complete = True
                self._remainder = line
                self._write_remainder()
            except BrokenPipeError:  # the reader of a pipe has ended, and the device ends as well
                self._remainder = b""
                raise
            except OSError as error:
                if not is_previous_complete:
                    self._n_dropped += 1
                elif self._remainder == line:
                    self._n_dropped += 1
                    self._remainder = b""
                else:  # the remainder of this line follows later
                    self._line_prefix = b""
                self._set_trouble(error)
                return
            self._line_prefix = b""
            if self.trouble is not None:
                _LOG.warning("%s works again; %d lines are lost", self.name, self.n_lost)
            self.trouble = None

    def _write_remainder(self) -> None:
        while self._remainder:
            if self._descriptor is None:
                print(self._remainder.decode(), end="", flush=True)
                self._remainder = b""
            else:
                self._remainder = self._remainder[os.write(self._descriptor, self._remainder) :]

    def _set_trouble(self, error: OSError) -> None:
        trouble = f"{self.name} cannot be written: {error.strerror}"
        if trouble != self.trouble:
            _LOG.error("%s; the device continues to answer", trouble)
        self.trouble = trouble

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def _ends_within_a_line(path: Path) -> bool:
    """Whether a file ends with an incomplete line, for example after a power cut."""
    try:
        if not path.is_file():  # a pipe or a device has no end
            return False
        with path.open("rb") as file:
            n_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, n_bytes - 1))
            return file.read() not in (b"", b"\n")
    except OSError:  # a file that may only be written
        return False


class AnswerLog(AnswerFile):
    """The answer log of ``--resume``, with one line for each answered row of a file. Thread-safe.

    The first line of the log identifies the content of the file `data_path`. `answered_rows` are
    the rows with a line, which are not answered again. An incomplete last line, which a killed
    process may leave, is cut off. Raises InputError if the log belongs to other data, or cannot be
    read or written.
    """

    def __init__(self, path: Path, data_path: Path) -> None:
        self.path = path
        self.answered_rows: set[int] = set()
        try:
            digest = hashlib.sha256(data_path.read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(f"--resume {path}: {error.strerror}: {error.filename}") from None
        super().__init__(path, option_name="--resume")
        try:
            self._read_answered_rows({"data": data_path.name, "sha256": digest})
        except BaseException:
            super().__exit__()
            raise

    def _read_answered_rows(self, header: dict[str, str]) -> None:
        """Read the answered rows; write the header if the log is new."""
        log_content = self.path.read_bytes()
        complete_lines = log_content[: log_content.rfind(b"\n") + 1]
        try:
            if not log_content.startswith(_LOG_PREFIX[: len(log_content)]):
                raise ValueError("another file")
            documents = [json.loads(line) for line in complete_lines.splitlines()]
            log_header = documents[0] if documents else None
            is_same_data = log_header is None or log_header["sha256"] == header["sha256"]
            self.answered_rows = {int(document["row"]) for document in documents[1:]}
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"--resume {self.path}: not an answer log that --resume began; name a new file"
            ) from None
        if not is_same_data:
            raise InputError(
                f"--resume {self.path}: the log belongs to other data than {header['data']}; "
                "name a new file, or give the data of the log"
            )
        if len(complete_lines) < len(log_content):
            os.truncate(self.path, len(complete_lines))
            self._line_prefix = b""
        if log_header is None:
            # If the disk is full now, the header is written before the next line.
            self._remainder = json_line(header).encode() + b"\n"
            try:
                self._write_remainder()
            except OSError as error:
                self._set_trouble(error)

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            with suppress(OSError):  # the disk may be full; its lost lines are counted
                os.fsync(self._descriptor)
        super().__exit__()


@dataclass(slots=True, eq=False)
class _UnackedAnswer:
    """An answer to publish, and the number of the connection on which it was last sent."""

    payload: bytes
    connection_number: int = 0


class AnswerPublisher:
    """A publisher of answers on a topic, in order; a context manager. Thread-safe.

    A bounded number of answers wait until the broker has acknowledged them. Unacknowledged answers
    are sent again on the next connection, so a subscriber may receive an answer twice.
    """

    def __init__(self, link: MqttLink, topic: str) -> None:
        self._link = link
        self._topic = topic
        self._answers: deque[_UnackedAnswer] = deque()
        self._condition = threading.Condition()
        self.n_dropped = 0
        link.when_ready(self._publish)

    def write(self, document: dict[str, Any]) -> None:
        """Publish an answer now, or when the link is connected again."""
        with self._condition:
            if len(self._answers) >= _MAX_WAITING_ANSWERS:
                self._answers.popleft()
                self.n_dropped += 1
            self._answers.append(_UnackedAnswer(json_line(document).encode()))
            self._publish()

    def _publish(self) -> None:
        """Send the first answers that were not sent on this connection."""
        with self._condition:
            connection_number = self._link.connection_number
            for answer in islice(self._answers, _MAX_UNACKED):
                if answer.connection_number == connection_number:
                    continue
                on_ack = partial(self._remove, answer)
                if not self._link.publish(self._topic, answer.payload, on_ack=on_ack):
                    return
                answer.connection_number = connection_number

    def _remove(self, answer: _UnackedAnswer) -> None:
        """Remove an acknowledged answer, and publish the next one."""
        with self._condition:
            with suppress(ValueError):  # it was dropped meanwhile
                self._answers.remove(answer)
            self._publish()
            self._condition.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._condition.wait_for(lambda: not self._answers, _CLOSE_SECONDS)
            self.n_dropped += len(self._answers)
        if self.n_dropped:
            _LOG.warning("%d answers were not published on %s", self.n_dropped, self._topic)
