"""Outputs of ``gatewise edge``: standard output, files, and a topic of the broker."""

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

from gatewise.console import plain
from gatewise.errors import InputError

if TYPE_CHECKING:
    from gatewise_edge.link.mqtt import MqttLink

_LOG = logging.getLogger(__name__)

#: Largest number of answers that wait for the broker; the oldest are dropped.
_MOST_WAITING: Final = 1000
#: Largest number of answers without acknowledgement: the link must have room for requests.
_MOST_SENT: Final = 32
#: Seconds at the end for what still waits.
_LAST_SECONDS: Final = 2.0
#: How the first line of an answer log begins.
_HEAD: Final = b'{"data": '


def json_line(document: dict[str, Any]) -> str:
    """Format a line of JSON; values without a form in JSON become texts."""
    return json.dumps(plain(document), default=str)


class AnswerFile:
    """A file that gets a line for each answer, appended in one piece; a context manager.

    Without a `path` it is standard output. Thread-safe. If the disk takes only a part of a line,
    the remainder is written before the next line. A full disk does not end the device.

    Attributes
    ----------
    name : str
    n_lost : int
        Lines that the disk did not take.
    trouble : str or None
        Why it takes none now.
    """

    def __init__(self, path: Path | None = None, *, option: str = "--out") -> None:
        self.name = "standard output" if path is None else str(path)
        #: None where standard output is not a file, as in a notebook.
        self._file: int | None = None
        if path is None:
            with suppress(OSError):
                self._file = os.dup(sys.stdout.fileno())
        else:
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            except OSError as error:
                raise InputError(f"{option} {path}: {error.strerror}") from None
        self.n_lost = 0
        self.trouble: str | None = None
        #: End of a line whose beginning the disk has taken.
        self._remainder = b""
        self._writing = threading.Lock()

    def write(self, document: dict[str, Any]) -> None:
        """Append a line; count and log it where the disk does not take it."""
        line = json_line(document).encode() + b"\n"
        with self._writing:
            try:
                self._write_remainder()
                self._remainder = line
                self._write_remainder()
            except BrokenPipeError:  # the reader of a pipe has gone: nothing is left to do
                raise
            except OSError as error:
                if self._remainder == line:
                    self._remainder = b""
                # The remainder of a line follows once the disk has room.
                self.n_lost += not (self._remainder and line.endswith(self._remainder))
                self._note(error)
                return
            if self.trouble is not None:
                _LOG.warning("%s is written again; %d lines are lost", self.name, self.n_lost)
            self.trouble = None

    def _write_remainder(self) -> None:
        while self._remainder:
            if self._file is None:
                print(self._remainder.decode(), end="", flush=True)
                self._remainder = b""
            else:
                self._remainder = self._remainder[os.write(self._file, self._remainder) :]

    def _note(self, error: OSError) -> None:
        trouble = f"{self.name} cannot be written: {error.strerror}"
        if trouble != self.trouble:
            _LOG.error("%s; the device answers on", trouble)
        self.trouble = trouble

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)


class AnswerLog(AnswerFile):
    """The answers of ``--resume``, one line for each row of a file. Thread-safe.

    The first line of `path`, which is made if it does not exist, names the content of the file
    `data`. `answered` are the rows with a line: they are not answered again. A killed process
    leaves whole lines and perhaps the beginning of one, which is cut off. Raises InputError if the
    log belongs to other data, or cannot be read or written.
    """

    def __init__(self, path: Path, data: Path) -> None:
        self.path = path
        self.answered: set[int] = set()
        try:
            digest = hashlib.sha256(data.read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(f"--resume {path}: {error.strerror}: {error.filename}") from None
        super().__init__(path, option="--resume")
        try:
            self._read({"data": data.name, "sha256": digest})
        except BaseException:
            super().__exit__()
            raise

    def _read(self, head: dict[str, str]) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        try:
            if not content.startswith(_HEAD[: len(content)]):
                raise ValueError("another file")
            head_line, *lines = [json.loads(line) for line in whole.splitlines()] or [None]
            same = head_line is None or head_line["sha256"] == head["sha256"]
            self.answered = {int(line["row"]) for line in lines}
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"--resume {self.path}: not a log of answers that --resume began; name a new file"
            ) from None
        if not same:
            raise InputError(
                f"--resume {self.path}: it belongs to other data than {head['data']}; "
                "name a new file, or give the data that it began with"
            )
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        if head_line is None:
            self.write(head)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # of a full disk: its lines are counted
                os.fsync(self._file)
        super().__exit__()


@dataclass(slots=True, eq=False)
class _Line:
    """An answer to publish; `connection` is the one of the link that it was last sent on."""

    payload: bytes
    connection: int = 0


class AnswerPublisher:
    """Publishes answers on a topic, in their order; a context manager. Thread-safe.

    Until the broker has acknowledged them they wait, up to a bound, and are sent again on the next
    connection: one may come twice.
    """

    def __init__(self, link: MqttLink, topic: str) -> None:
        self._link = link
        self._topic = topic
        self._lines: deque[_Line] = deque()
        self._changed = threading.Condition()
        self.dropped = 0
        link.when_ready(self._publish)

    def write(self, document: dict[str, Any]) -> None:
        """Publish an answer now, or as soon as there is a connection."""
        with self._changed:
            if len(self._lines) >= _MOST_WAITING:
                self._lines.popleft()
                self.dropped += 1
            self._lines.append(_Line(json_line(document).encode()))
            self._publish()

    def _publish(self) -> None:
        """Send the first lines that were not sent on this connection."""
        with self._changed:
            connection = self._link.connection
            for line in islice(self._lines, _MOST_SENT):
                if line.connection == connection:
                    continue
                acknowledged = partial(self._acknowledged, line)
                if not self._link.deliver(self._topic, line.payload, acknowledged):
                    return
                line.connection = connection

    def _acknowledged(self, line: _Line) -> None:
        with self._changed:
            with suppress(ValueError):  # of one that was dropped meanwhile
                self._lines.remove(line)
            self._publish()
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, _LAST_SECONDS)
            self.dropped += len(self._lines)
        if self.dropped:
            _LOG.warning("%d answers were not published on %s", self.dropped, self._topic)
