"""Where the lines of ``gatewise edge`` go: standard output, files, and a topic of the broker."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from gatewise.console import plain
from gatewise.errors import InputError

if TYPE_CHECKING:
    from gatewise_edge.link.mqtt import MqttLink

_LOG = logging.getLogger(__name__)

#: Answers that wait for the broker, at most; beyond them the oldest are dropped.
_MOST_WAITING: Final = 1000
#: Seconds at the end for what still waits.
_LAST_SECONDS: Final = 2.0
#: How the first line of an answer log begins.
_HEAD: Final = b'{"data": '


def json_line(document: dict[str, Any]) -> str:
    """One line of JSON; what JSON has no form for goes as its text."""
    return json.dumps(plain(document), default=str)


def print_json(document: dict[str, Any]) -> None:
    """Print a JSON line at once."""
    print(json_line(document), flush=True)


class AnswerFile:
    """A file that gets a line for each answer, appended in one piece; a context manager.

    Thread-safe. Where the disk takes a part of a line, the rest goes before the next line.
    """

    def __init__(self, path: Path, *, option: str = "--out") -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise InputError(f"{option} {path}: {error.strerror}") from None
        self._rest = b""
        self._writing = threading.Lock()

    def write(self, document: dict[str, Any]) -> None:
        """Append a line."""
        with self._writing:
            self._rest += json_line(document).encode() + b"\n"
            while self._rest:
                self._rest = self._rest[os.write(self._file, self._rest) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


class AnswerLog(AnswerFile):
    """The answers of ``--resume``, one line for each row of a file. Thread-safe.

    `path` is made if it is not there; its first line names the content of the file `data`.
    `answered` are the rows with a line: they are never answered again. A killed process leaves
    whole lines and perhaps the beginning of one, which is cut off. Raises InputError if it belongs
    to other data, or cannot be read or written.
    """

    def __init__(self, path: Path, data: Path) -> None:
        self.answered: set[int] = set()
        try:
            digest = hashlib.sha256(data.read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(f"--resume {path}: {error.strerror}: {error.filename}") from None
        super().__init__(path, option="--resume")
        try:
            self._read({"data": data.name, "sha256": digest})
        except BaseException:
            os.close(self._file)
            raise

    def _read(self, head: dict[str, str]) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        try:
            if not content.startswith(_HEAD[: len(content)]):
                raise ValueError("another file")
            first, *lines = [json.loads(line) for line in whole.splitlines()] or [None]
            same = first is None or first["sha256"] == head["sha256"]
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
            os.ftruncate(self._file, len(whole))
        if first is None:
            self.write(head)

    def __exit__(self, *_: object) -> None:
        os.fsync(self._file)
        os.close(self._file)


class AnswerPublisher:
    """Publishes answers on a topic, in their order; a context manager. Thread-safe.

    While there is no connection they wait, up to a bound.
    """

    def __init__(self, link: MqttLink, topic: str) -> None:
        self._link = link
        self._topic = topic
        self._waiting: deque[bytes] = deque()
        self._writing = threading.Lock()
        self.dropped = 0

    def write(self, document: dict[str, Any]) -> None:
        """Publish an answer now, or as soon as there is a connection."""
        with self._writing:
            if len(self._waiting) >= _MOST_WAITING:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(json_line(document).encode())
            self._publish()

    def _publish(self) -> bool:
        """Publish what waits; whether nothing is left."""
        while self._waiting and self._link.publish(self._topic, self._waiting[0]):
            self._waiting.popleft()
        return not self._waiting

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        until = time.monotonic() + _LAST_SECONDS
        with self._writing:
            while not self._publish() and time.monotonic() < until:
                time.sleep(0.05)
            self.dropped += len(self._waiting)
        if self.dropped:
            _LOG.warning("%d answers were not published on %s", self.dropped, self._topic)
