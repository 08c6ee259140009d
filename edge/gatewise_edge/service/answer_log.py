"""Keep the answers of ``gatewise edge --resume``, one line for each row of its data.

A line is written in one piece, so a killed process leaves whole lines and perhaps the beginning
of one, which is cut off. A row with a line is never answered again.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any, Final, Self

from gatewise.console import plain
from gatewise.errors import InputError

_HEAD: Final = b'{"data": '


class AnswerLog:
    """Answers to a file's rows, by row number. Thread-safe.

    `path` is made if it is not there; its first line names the file's content. `answered` are the
    rows with a line. Raises InputError if it belongs to other data, or cannot be read or written.
    """

    def __init__(self, path: Path, data: Path) -> None:
        self.path = path
        self.answered: set[int] = set()
        self._writing = threading.Lock()
        try:
            digest = hashlib.sha256(data.read_bytes()).hexdigest()
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise InputError(f"--resume {path}: {error.strerror}: {error.filename}") from None
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
            raise InputError(f"--resume {self.path}: not a log of answers") from None
        if not same:
            raise InputError(
                f"--resume {self.path}: it belongs to other data than {head['data']}; "
                "name a new file, or give the data that it began with"
            )
        if len(whole) < len(content):
            os.ftruncate(self._file, len(whole))
        if first is None:
            self.write(head)

    def write(self, document: dict[str, Any]) -> None:
        """Append a line; the row of an answer counts as answered from then on."""
        line = json.dumps(plain(document)).encode() + b"\n"
        with self._writing:
            os.write(self._file, line)

    def close(self) -> None:
        """Flush to the disk and close."""
        os.fsync(self._file)
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
